"""OTLP protobuf put together by hand: read back with the protobuf library, and the same as the OTLP JSON."""

from __future__ import annotations

import base64
import math
import re
import struct
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from google.protobuf import json_format
from hypothesis import example, given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from opentelemetry.proto.trace.v1 import trace_pb2

from raxol_otel.canonical import is_array, is_object
from raxol_otel.exporters.otlp_json import Envelope
from raxol_otel.exporters.otlp_proto import ProtoEnvelope, span_proto
from raxol_otel.exporters.resource import replay_envelope, replay_proto_envelope
from raxol_otel.turns.span import Link, Span, SpanEvent
from tests.exporter_contract import ODD_SPANS, START_NS, child_span, turn_span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raxol_otel.turns.span import AttributeValue

AROUND: Final[dict[str, Any]] = {
    "resource": {"service.name": "cart", "raxol.replayed": True, "n": 7, "share": 0.5},
    "scope_name": "raxol_otel",
    "scope_version": "1.2.3",
    "schema_url": "https://example.org/schema",
}
INT64_MIN: Final = -(2**63)
INT64_MAX: Final = 2**63 - 1
IDS: Final = ("traceId", "spanId", "parentSpanId")


def read(span: Span) -> trace_pb2.Span:
    """The span after its way through the bytes; nothing in them is unknown to the library."""
    message = trace_pb2.Span.FromString(span_proto(span))
    again = trace_pb2.Span.FromString(message.SerializeToString())
    again.DiscardUnknownFields()
    assert again.SerializeToString(deterministic=True) == message.SerializeToString(deterministic=True)
    return message


def text(given: str) -> str:
    """What can be read back of a text: a lone surrogate is replaced."""
    return re.sub("[\ud800-\udfff]", "\ufffd", given)


def pairs(attributes: Mapping[str, AttributeValue]) -> list[KeyValue]:
    """The attributes as the protobuf library would have them."""
    return [KeyValue(key=text(key), value=any_value(value)) for key, value in attributes.items()]


def any_value(value: AttributeValue) -> AnyValue:
    """The value in the field of its own type; an integer that no field takes is text."""
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        fits = INT64_MIN <= value <= INT64_MAX
        return AnyValue(int_value=value) if fits else AnyValue(string_value=str(value))
    return AnyValue(double_value=value) if isinstance(value, float) else AnyValue(string_value=text(value))


def expected(span: Span) -> trace_pb2.Span:
    """The span as the protobuf library would build it."""
    return trace_pb2.Span(
        trace_id=bytes.fromhex(span.trace_id),
        span_id=bytes.fromhex(span.span_id),
        parent_span_id=bytes.fromhex(span.parent_id),
        name=text(span.name),
        kind=trace_pb2.Span.SPAN_KIND_INTERNAL,
        start_time_unix_nano=span.start_ns,
        end_time_unix_nano=span.end_ns,
        attributes=pairs(span.attributes),
        events=[
            trace_pb2.Span.Event(time_unix_nano=each.time_ns, name=text(each.name), attributes=pairs(each.attributes))
            for each in span.events
        ],
        dropped_events_count=span.dropped_events,
        links=[
            trace_pb2.Span.Link(trace_id=bytes.fromhex(link.trace_id), span_id=bytes.fromhex(link.span_id))
            for link in span.links
        ],
        status=trace_pb2.Status(code=trace_pb2.Status.STATUS_CODE_ERROR) if span.error else None,
    )


def plain(message: Any) -> bytes:
    """A message as bytes, which also tell NaN, -0.0, 1 and True apart."""
    return bytes(message.SerializeToString(deterministic=True))


# -- by hand


def test_a_span_is_these_bytes() -> None:
    """Every field with its tag and length, put together from the wire format's rules."""
    span = turn_span(
        name="ab",
        trace_id="000102030405060708090a0b0c0d0e0f",
        span_id="f0f1f2f3f4f5f6f7",
        parent_id="e0e1e2e3e4e5e6e7",
        start_ns=1,
        end_ns=258,
        attributes={"k": "v", "n": -1},
        events=[SpanEvent("e", 3, {"b": True})],
        links=(Link("ff" * 16, "ee" * 8),),
        dropped_events=300,
        error=True,
    )
    assert span_proto(span) == b"".join(
        (
            b"\x0a\x10" + bytes(range(16)),  # 1: trace id
            b"\x12\x08" + bytes(range(0xF0, 0xF8)),  # 2: span id
            b"\x22\x08" + bytes(range(0xE0, 0xE8)),  # 4: parent
            b"\x2a\x02ab",  # 5: name
            b"\x30\x01",  # 6: kind INTERNAL
            b"\x39\x01\0\0\0\0\0\0\0",  # 7: start
            b"\x41\x02\x01\0\0\0\0\0\0",  # 8: end
            b"\x4a\x08\x0a\x01k\x12\x03\x0a\x01v",  # 9: attribute k, text
            b"\x4a\x10\x0a\x01n\x12\x0b\x18" + b"\xff" * 9 + b"\x01",  # 9: attribute n, integer
            b"\x5a\x15\x09\x03\0\0\0\0\0\0\0\x12\x01e\x1a\x07\x0a\x01b\x12\x02\x10\x01",  # 11: event
            b"\x60\xac\x02",  # 12: dropped events
            b"\x6a\x1c\x0a\x10" + b"\xff" * 16 + b"\x12\x08" + b"\xee" * 8,  # 13: link
            b"\x7a\x02\x18\x02",  # 15: status ERROR
        )
    )


def test_a_span_reads_back_field_by_field() -> None:
    """A tool's call with everything that a span can carry."""
    found = read(
        child_span(
            turn_span(7),
            2,
            events=[SpanEvent("raxol.approval.requested", START_NS + 5, {"raxol.approval.risk": "high"})],
            links=(Link("a" * 32, "b" * 16), Link("c" * 32, "d" * 16)),
            dropped_events=4,
            error=True,
        )
    )
    assert found.trace_id.hex() == "00000000000000000000000000000007"
    assert found.span_id.hex() == "0000000700000002"
    assert found.parent_span_id.hex() == "0000000000000007"
    assert (found.name, found.kind) == ("execute_tool tool-2", 1)
    assert (found.start_time_unix_nano, found.end_time_unix_nano) == (1_700_000_000 * 10**9, 1_700_000_000_500_000_000)
    assert [(pair.key, pair.value.string_value) for pair in found.attributes] == [("raxol.tool.outcome", "ok")]
    (event,) = found.events
    assert (event.name, event.time_unix_nano) == ("raxol.approval.requested", 1_700_000_000_000_000_005)
    assert [(pair.key, pair.value.string_value) for pair in event.attributes] == [("raxol.approval.risk", "high")]
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in found.links] == [
        ("a" * 32, "b" * 16),
        ("c" * 32, "d" * 16),
    ]
    assert found.dropped_events_count == 4
    assert (found.status.code, found.status.message) == (2, "")


def test_what_is_not_there_is_not_set() -> None:
    """A root without error has no parent, no status, and no empty lists that look like something."""
    fields = {field.name for field, _ in read(turn_span()).ListFields()}
    assert fields == {
        *("trace_id", "span_id", "name", "kind", "start_time_unix_nano", "end_time_unix_nano", "attributes"),
    }


@pytest.mark.parametrize(
    ("value", "kind", "found"),
    [
        ("", "string_value", ""),
        ("x", "string_value", "x"),
        ("x" * 127, "string_value", "x" * 127),
        ("x" * 128, "string_value", "x" * 128),
        ("\u00e9\U0001f600\u2028", "string_value", "\u00e9\U0001f600\u2028"),
        ("a\ud800b", "string_value", "a\ufffdb"),
        ("\udfff\ud800", "string_value", "\ufffd\ufffd"),
        ("\0\n", "string_value", "\0\n"),
        (True, "bool_value", True),
        (False, "bool_value", False),
        (0, "int_value", 0),
        (1, "int_value", 1),
        (-1, "int_value", -1),
        (127, "int_value", 127),
        (128, "int_value", 128),
        (-129, "int_value", -129),
        (2**32, "int_value", 4294967296),
        (INT64_MAX, "int_value", 9223372036854775807),
        (INT64_MIN, "int_value", -9223372036854775808),
        (2**63, "string_value", "9223372036854775808"),
        (INT64_MIN - 1, "string_value", "-9223372036854775809"),
        (10**30, "string_value", "1" + "0" * 30),
        (0.5, "double_value", 0.5),
        (5e-324, "double_value", 5e-324),
        (math.inf, "double_value", math.inf),
        (-math.inf, "double_value", -math.inf),
    ],
)
def test_a_value_keeps_its_type(value: AttributeValue, kind: str, found: AttributeValue) -> None:
    """Zero, false and the empty text are values too; what no field takes is text."""
    span = turn_span(attributes={"k": value}, events=[SpanEvent("e", 1, {"k": value})])
    message = read(span)
    for (pair,) in (message.attributes, message.events[0].attributes):
        assert pair.key == "k"
        assert (pair.value.WhichOneof("value"), getattr(pair.value, kind)) == (kind, found)


def test_floats_that_equal_nothing_or_another_keep_their_bits() -> None:
    """NaN stays NaN, and the negative zero negative."""
    nan, zero = (pair.value.double_value for pair in read(turn_span(attributes={"a": math.nan, "b": -0.0})).attributes)
    assert math.isnan(nan)
    assert math.copysign(1.0, zero) == -1.0


@pytest.mark.parametrize("length", [0, 127, 128, 16_383, 16_384, 2_097_152])
def test_lengths_around_the_edges_of_a_varint(length: int) -> None:
    """A name and a value of any size are read back whole."""
    found = read(turn_span(name="n" * length, attributes={"k": "v" * length, "K" * length: 1}))
    assert (found.name, found.attributes[0].value.string_value) == ("n" * length, "v" * length)
    assert found.attributes[1].key == "K" * length


@pytest.mark.parametrize("dropped", [1, 127, 128, 2**32 - 1])
def test_dropped_events_are_counted(dropped: int) -> None:
    """Up to what the field takes."""
    assert read(turn_span(dropped_events=dropped)).dropped_events_count == dropped


def test_many_different_values_do_not_get_mixed_up() -> None:
    """What is kept ready for the next span is the same text under the same key, however many there were."""
    for _ in range(2):
        for number in range(10_000):
            value = f"value {number % 5_000}"
            found = trace_pb2.Span.FromString(span_proto(turn_span(attributes={f"k{number % 2}": value})))
            assert [(pair.key, pair.value.string_value) for pair in found.attributes] == [(f"k{number % 2}", value)]


# -- against the library, and against the JSON


def with_base64_ids(value: Any) -> Any:
    """The same JSON with its hex ids as the protobuf library wants them."""
    if is_array(value):
        return [with_base64_ids(item) for item in value]
    if not is_object(value):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(item)).decode() if key in IDS else with_base64_ids(item)
        for key, item in value.items()
    }


def as_json(spans: Sequence[Span]) -> bytes:
    """What the OTLP JSON of the spans says, as bytes of the same message."""
    line = orjson.loads(Envelope(**AROUND).wrap(spans))
    return plain(json_format.ParseDict(with_base64_ids(line), ExportTraceServiceRequest()))


def as_proto(spans: Sequence[Span]) -> bytes:
    """What the OTLP protobuf of the spans says."""
    return plain(ExportTraceServiceRequest.FromString(ProtoEnvelope(**AROUND).wrap(map(span_proto, spans))))


@pytest.mark.parametrize("what", ODD_SPANS)
def test_an_odd_span_is_what_the_library_makes_of_it(what: str) -> None:
    """Hostile texts, edges of numbers, many of everything."""
    span = ODD_SPANS[what]
    assert plain(read(span)) == plain(expected(span))


@pytest.mark.parametrize("what", ODD_SPANS)
def test_protobuf_and_json_say_the_same(what: str) -> None:
    """A span reads the same over both, between others."""
    spans = [turn_span(1), ODD_SPANS[what], child_span(turn_span(2))]
    assert as_proto(spans) == as_json(spans)


@pytest.mark.parametrize("value", [2**63, INT64_MIN - 1, 10**100])
def test_integers_beyond_64_bits_are_the_same_text_in_both(value: int) -> None:
    """An integer that no field takes never costs its request."""
    span = turn_span(attributes={"k": value}, events=[SpanEvent("e", 1, {"k": value})])
    assert as_proto([span]) == as_json([span])


TEXTS: Final = st.text(max_size=8) | st.text(alphabet="\0\x7f\x80\u07ff\u0800\ud800\udfff\uffff\U0001f600", max_size=5)
NUMBERS: Final = st.integers(INT64_MIN, INT64_MAX) | st.integers(-300, 300)
VALUES: Final = TEXTS | st.booleans() | NUMBERS | st.floats()
ATTRIBUTES: Final = st.dictionaries(TEXTS, VALUES, max_size=4)
TIMES: Final = st.integers(0, 2**64 - 1)
TRACE_IDS: Final = st.binary(min_size=16, max_size=16).map(bytes.hex)
SPAN_IDS: Final = st.binary(min_size=8, max_size=8).map(bytes.hex)
SPANS: Final = st.builds(
    Span,
    name=TEXTS,
    role=st.just("item"),
    session_id=st.just("s1"),
    offset=st.just(1),
    trace_id=TRACE_IDS,
    span_id=SPAN_IDS,
    parent_id=SPAN_IDS | st.just(""),
    start_ns=TIMES,
    end_ns=TIMES,
    attributes=ATTRIBUTES,
    error=st.booleans(),
    events=st.lists(st.builds(SpanEvent, name=TEXTS, time_ns=TIMES, attributes=ATTRIBUTES), max_size=3),
    links=st.lists(st.builds(Link, trace_id=TRACE_IDS, span_id=SPAN_IDS), max_size=3).map(tuple),
    dropped_events=st.integers(0, 2**32 - 1),
)


@given(st.lists(SPANS, max_size=2))
@example([])
def test_any_spans_are_what_the_library_and_the_json_make_of_them(spans: list[Span]) -> None:
    """Whatever a span holds, its bytes say it, and the JSON says the same."""
    assert [plain(read(span)) for span in spans] == [plain(expected(span)) for span in spans]
    assert as_proto(spans) == as_json(spans)


# -- what stands around, and what is refused


def test_resource_scope_and_schema_stand_around_the_spans() -> None:
    """One resource, one scope, all spans in their order."""
    body = ProtoEnvelope(**AROUND).wrap(map(span_proto, (turn_span(1), turn_span(2))))
    (around,) = ExportTraceServiceRequest.FromString(body).resource_spans
    assert [plain(pair) for pair in around.resource.attributes] == [
        plain(KeyValue(key="service.name", value=AnyValue(string_value="cart"))),
        plain(KeyValue(key="raxol.replayed", value=AnyValue(bool_value=True))),
        plain(KeyValue(key="n", value=AnyValue(int_value=7))),
        plain(KeyValue(key="share", value=AnyValue(double_value=0.5))),
    ]
    (scope,) = around.scope_spans
    assert (scope.scope.name, scope.scope.version) == ("raxol_otel", "1.2.3")
    assert (scope.schema_url, around.schema_url) == ("https://example.org/schema", "")
    assert [span.span_id.hex() for span in scope.spans] == ["0000000000000001", "0000000000000002"]


def test_replay_says_the_same_of_itself_in_both(monkeypatch: pytest.MonkeyPatch) -> None:
    """The service and attributes that the user named, and that it is a replay."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", "till")
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "team=tea,zone=b%C3%A9")
    request = ExportTraceServiceRequest.FromString(replay_proto_envelope().wrap([span_proto(turn_span())]))
    line = with_base64_ids(orjson.loads(replay_envelope().wrap([turn_span()])))
    assert plain(request) == plain(json_format.ParseDict(line, ExportTraceServiceRequest()))
    found = {pair.key: pair.value for pair in request.resource_spans[0].resource.attributes}
    assert (found["service.name"].string_value, found["raxol.replayed"].bool_value) == ("till", True)
    assert (found["team"].string_value, found["zone"].string_value) == ("tea", "b\u00e9")


BAD_IDS: Final = ("", "xyz", "\u00e9", "a", "ab", "a" * 14, "a" * 17, "a" * 18, "a" * 30, "a" * 34, "a" * 64, "g" * 16)
PLACES: Final[dict[str, Callable[[str], Span]]] = {
    "trace": lambda bad: turn_span(trace_id=bad),
    "span": lambda bad: turn_span(span_id=bad),
    "parent": lambda bad: turn_span(parent_id=bad or "ab"),
    "link's trace": lambda bad: turn_span(links=(Link(bad, "b" * 16),)),
    "link's span": lambda bad: turn_span(links=(Link("a" * 32, bad),)),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("bad", BAD_IDS)
def test_a_bad_id_is_refused(place: str, bad: str) -> None:
    """32 hex digits for a trace and 16 for a span, wherever it stands; only a root has no parent."""
    span = PLACES[place](bad)
    with pytest.raises(ValueError, match=r"."):
        span_proto(span)


@pytest.mark.parametrize("change", [{"start_ns": -1}, {"end_ns": -1}, {"end_ns": 2**64}])
def test_a_time_outside_of_the_field_is_refused(change: dict[str, int]) -> None:
    """It is never written as another time."""
    with pytest.raises(struct.error):
        span_proto(turn_span(**change))
