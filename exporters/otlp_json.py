"""Spans as OTLP JSON: ids in hex, 64-bit integers as text, enumerations as numbers, lowerCamelCase names.

The rules are those of the OTLP specification's JSON protobuf encoding. The text is put together from ready pieces:
building dictionaries for a general encoder costs several times as much.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

import orjson

from raxol_otel.canonical import without_surrogates

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from raxol_otel.turns import Link, Span, SpanEvent
    from raxol_otel.turns.span import Attributes, AttributeValue

__all__ = ["Envelope", "attributes_json", "span_json"]

_KIND_INTERNAL: Final = 1
_STATUS_ERROR: Final = 2
# Ready attributes that recur, by key and value: of so many keys the first so many values, and only short ones. What
# comes later is made each time: ids, which never recur, must not push out what does.
_KEYS_MAX: Final = 256
_VALUES_MAX: Final = 64
_VALUE_CHARS_MAX: Final = 64


class _Key:
    """How the attributes of one key begin, and the ready ones."""

    __slots__ = ("number", "ready", "text")

    def __init__(self, key: str) -> None:
        head = b'{"key":%b,"value":{' % _text(key)
        self.text = head + b'"stringValue":'
        self.number = head + b'"intValue":"'
        self.ready: dict[str, bytes] = {}


_keys: dict[str, _Key] = {}


class Envelope:
    """The resource and scope around the spans of one TracesData object."""

    def __init__(
        self,
        resource: Mapping[str, AttributeValue],
        *,
        scope_name: str,
        scope_version: str,
        schema_url: str,
        resource_schema_url: str = "",
    ) -> None:
        scope = orjson.dumps({"name": scope_name, "version": scope_version})
        self._head = b'{"resourceSpans":[{"resource":{"attributes":[%b]},"scopeSpans":[{"scope":%b,"spans":[' % (
            attributes_json(resource),
            scope,
        )
        self._tail = b'],"schemaUrl":%b}]%b}]}' % (
            orjson.dumps(schema_url),
            b',"schemaUrl":%b' % orjson.dumps(resource_schema_url) if resource_schema_url else b"",
        )

    def wrap(self, spans: Iterable[Span]) -> bytes:
        """One TracesData object of these spans, on one line, without a newline."""
        return b"%b%b%b" % (self._head, b",".join(map(span_json, spans)), self._tail)


def span_json(span: Span) -> bytes:
    """One span as an OTLP JSON object."""
    parent = b',"parentSpanId":"%b"' % span.parent_id.encode() if span.parent_id else b""
    more = b""
    if span.events or span.links or span.dropped_events or span.error:
        more = _rare(span)
    return (
        b'{"traceId":"%b","spanId":"%b"%b,"name":%b,"kind":%d,"startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":[%b]%b}'
        % (
            span.trace_id.encode(),
            span.span_id.encode(),
            parent,
            _text(span.name),
            _KIND_INTERNAL,
            span.start_ns,
            span.end_ns,
            attributes_json(span.attributes),
            more,
        )
    )


def _rare(span: Span) -> bytes:
    more = b""
    if span.events:
        more += b',"events":[%b]' % b",".join(map(_event_json, span.events))
    if span.dropped_events:
        more += b',"droppedEventsCount":%d' % span.dropped_events
    if span.links:
        more += b',"links":[%b]' % b",".join(map(_link_json, span.links))
    if span.error:
        more += b',"status":{"code":%d}' % _STATUS_ERROR
    return more


def _event_json(event: SpanEvent) -> bytes:
    return b'{"timeUnixNano":"%d","name":%b,"attributes":[%b]}' % (
        event.time_ns,
        _text(event.name),
        attributes_json(event.attributes),
    )


def _link_json(link: Link) -> bytes:
    return b'{"traceId":"%b","spanId":"%b"}' % (link.trace_id.encode(), link.span_id.encode())


def attributes_json(attributes: Attributes | Mapping[str, AttributeValue]) -> bytes:
    """The attributes as the comma-separated KeyValue objects of an OTLP JSON array."""
    pieces: list[bytes] = []
    for key, value in attributes.items():
        head = _keys.get(key) or _key(key)
        if type(value) is str:
            pieces.append(head.ready.get(value) or _text_attribute(head, value))
        elif type(value) is int and -(2**63) <= value < 2**63:
            pieces.append(b'%b%d"}}' % (head.number, value))
        else:
            pieces.append(b'{"key":%b,"value":{%b}}' % (_text(key), _value(value)))
    return b",".join(pieces)


def _key(key: str) -> _Key:
    head = _Key(key)
    if len(_keys) < _KEYS_MAX:
        _keys[key] = head
    return head


def _text_attribute(head: _Key, value: str) -> bytes:
    piece = b"%b%b}}" % (head.text, _text(value))
    if len(head.ready) < _VALUES_MAX and len(value) <= _VALUE_CHARS_MAX:
        head.ready[value] = piece
    return piece


def _value(value: AttributeValue) -> bytes:
    if isinstance(value, str):
        return b'"stringValue":%b' % _text(value)
    if isinstance(value, bool):
        return b'"boolValue":true' if value else b'"boolValue":false'
    if isinstance(value, int):
        if -(2**63) <= value < 2**63:
            return b'"intValue":"%d"' % value
        return b'"stringValue":"%d"' % value
    # The JSON mapping of protobuf writes what is no number as text.
    if math.isfinite(value):
        return b'"doubleValue":%b' % orjson.dumps(value)
    return b'"doubleValue":"%b"' % (b"NaN" if math.isnan(value) else b"Infinity" if value > 0 else b"-Infinity")


def _text(text: str) -> bytes:
    try:
        return orjson.dumps(text)
    except orjson.JSONEncodeError:
        return orjson.dumps(without_surrogates(text))


def batches(spans: Sequence[Span], size: int) -> Iterable[Sequence[Span]]:
    """The spans in parts of at most `size`."""
    return (spans[start : start + size] for start in range(0, len(spans), size))
