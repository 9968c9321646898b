"""Spans as OTLP protobuf, put together by hand from ready pieces: several times as fast as building messages.

The wire format is protobuf's (varints, length-delimited fields); the field numbers are those of opentelemetry-proto's
trace.proto, common.proto and resource.proto.
"""

from __future__ import annotations

import re
import struct
from typing import TYPE_CHECKING, Final

from raxol_otel.canonical import without_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from raxol_otel.turns import Link, Span, SpanEvent
    from raxol_otel.turns.span import AttributeValue

__all__ = ["ProtoEnvelope", "field", "span_proto"]

_KIND_INTERNAL: Final = b"\x30\x01"  # field 6, varint 1
_STATUS_ERROR: Final = b"\x7a\x02\x18\x02"  # field 15, a message of field 3, varint 2
_CACHE_ENTRIES_MAX: Final = 4096
_CACHE_VALUE_CHARS_MAX: Final = 64
# Tags (field number and wire type) of what occurs.
_TAG: Final = {number: bytes([number << 3 | 2]) for number in range(1, 16)}
_TIMES: Final = struct.Struct("<BQBQ")  # fields 7 and 8, fixed64
_EVENT_TIME: Final = struct.Struct("<BQ")
_DOUBLE: Final = struct.Struct("<Bd")
_HEX: Final = re.compile("[0-9a-f]+")
_ONE_BYTE: Final = [bytes([number]) for number in range(128)]

_cache: dict[tuple[str, str], bytes] = {}


class ProtoEnvelope:
    """The resource and scope around the spans of one ExportTraceServiceRequest."""

    def __init__(
        self, resource: Mapping[str, AttributeValue], *, scope_name: str, scope_version: str, schema_url: str
    ) -> None:
        # Resource and KeyValue lists: field 1 is `attributes` in Resource, so its pieces carry that tag.
        attributes = b"".join(field(1, _key_value(key, value)) for key, value in resource.items())
        scope = field(1, _text(scope_name)) + field(2, _text(scope_version))
        self._resource = field(1, attributes)
        self._scope = field(1, scope)
        self._schema = field(3, _text(schema_url))

    def wrap(self, spans: Iterable[bytes]) -> bytes:
        """The request that carries these encoded spans."""
        body = b"".join(field(2, span) for span in spans)
        return field(1, self._resource + field(2, self._scope + body + self._schema))


def span_proto(span: Span) -> bytes:
    """One span as a Span message. Raises `ValueError` for ids that are not lower-case hex of the right length."""
    trace_id, span_id = _id(span.trace_id, 16), _id(span.span_id, 8)
    name = _text(span.name)
    parts = [b"\x0a\x10", trace_id, b"\x12\x08", span_id]
    if span.parent_id:
        parts += (b"\x22\x08", _id(span.parent_id, 8))
    parts += (b"\x2a", varint(len(name)), name, _KIND_INTERNAL, _TIMES.pack(0x39, span.start_ns, 0x41, span.end_ns))
    for key, value in span.attributes.items():
        if type(value) is str:
            piece = _cache.get((key, value)) or _text_attribute(key, value)
        else:
            piece = field(9, _key_value(key, value))
        parts.append(piece)
    for event in span.events:
        parts.append(field(11, _event(event)))
    if span.dropped_events:
        parts.append(b"\x60" + varint(span.dropped_events))
    for link in span.links:
        parts.append(field(13, _link(link)))
    if span.error:
        parts.append(_STATUS_ERROR)
    return b"".join(parts)


def _text_attribute(key: str, value: str) -> bytes:
    piece = field(9, _key_value(key, value))
    if len(value) <= _CACHE_VALUE_CHARS_MAX:
        if len(_cache) >= _CACHE_ENTRIES_MAX:
            _cache.clear()
        _cache[key, value] = piece
    return piece


def _event(event: SpanEvent) -> bytes:
    attributes = b"".join(field(3, _key_value(key, value)) for key, value in event.attributes.items())
    return _EVENT_TIME.pack(0x09, event.time_ns) + field(2, _text(event.name)) + attributes


def _link(link: Link) -> bytes:
    return field(1, _id(link.trace_id, 16)) + field(2, _id(link.span_id, 8))


def _id(text: str, size: int) -> bytes:
    if not _HEX.fullmatch(text) or len(text) != 2 * size:
        message = f"an id that is not {2 * size} lower-case hex digits"
        raise ValueError(message)
    return bytes.fromhex(text)


def _key_value(key: str, value: AttributeValue) -> bytes:
    return field(1, _text(key)) + field(2, _any_value(value))


def _any_value(value: AttributeValue) -> bytes:
    if isinstance(value, str):
        return field(1, _text(value))
    if isinstance(value, bool):
        return b"\x10\x01" if value else b"\x10\x00"
    if isinstance(value, int):
        if not -(2**63) <= value < 2**63:
            return field(1, str(value).encode())
        return b"\x18" + varint(value & 0xFFFFFFFFFFFFFFFF)
    return _DOUBLE.pack(0x21, value)


def _text(text: str) -> bytes:
    return without_surrogates(text).encode()


def field(number: int, content: bytes) -> bytes:
    """A length-delimited field."""
    return _TAG[number] + varint(len(content)) + content


def varint(value: int) -> bytes:
    """An unsigned integer as protobuf writes it."""
    if value < 128:  # noqa: PLR2004 - one byte
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 128:  # noqa: PLR2004 - seven bits a byte
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)
