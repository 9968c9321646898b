"""What is counted of a span and of a record. Whoever calls these guards against what they raise."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raxol_otel import catalogue as names
from raxol_otel.bounds import AMOUNT_MAX, partition
from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client import Counter

    from raxol_otel.metrics_instruments import Instruments
    from raxol_otel.turns import Span

__all__ = ["count_record", "count_span", "exemplar_of"]

_TRACE_ID_CHARS: Final = 32
_SPAN_ID_CHARS: Final = 16
_ANSWERED: Final = frozenset({"ok", "error"})
_TOOL_CALL_STATUSES: Final = frozenset(names.OBSERVED_OUTCOMES["tool_call"])
_DECISIONS: Final = frozenset(names.OBSERVED_OUTCOMES["decision"])


def count_span(live: Instruments, span: Span, ids: dict[str, str] | None) -> None:
    """Count a turn or a tool call; other spans are nobody's metric."""
    seconds = max(0, span.end_ns - span.start_ns) / 1e9
    attributes = span.attributes
    if span.role == "turn":
        _count_turn(live, attributes, seconds, ids)
    elif span.role == "tool":
        tool = live.tool(attributes.get(names.TOOL_NAME))
        outcome = str(attributes[names.TOOL_OUTCOME])
        tool.calls[outcome].inc(1, ids)
        # A call without a result ended with its turn, a result without a call when it came: neither took that long.
        if outcome in _ANSWERED:
            tool.duration.observe(seconds, ids)


def count_record(live: Instruments, record: Mapping[str, Any]) -> None:
    """Count a record by its type, and what it says that no span does."""
    said = record.get("type")
    if "kind" in record and record["kind"] != "event":
        live.records["checkpoint" if record["kind"] == "checkpoint" else names.OVERFLOW].inc()
        return
    kind = said if type(said) is str and said in live.records else names.OVERFLOW
    live.records[kind].inc()
    if kind in _LOOKED_INTO:
        _LOOKED_INTO[kind](live, record)


def exemplar_of(span: Span) -> dict[str, str] | None:
    """The ids as an exemplar; OpenMetrics allows 128 characters, and a scrape would fail on what cannot be encoded."""
    trace_id, span_id = span.trace_id, span.span_id
    if len(trace_id) == _TRACE_ID_CHARS and len(span_id) == _SPAN_ID_CHARS and (trace_id + span_id).isalnum():
        return {"trace_id": trace_id, "span_id": span_id}
    return None


def _count_turn(live: Instruments, attributes: Mapping[str, Any], seconds: float, ids: dict[str, str] | None) -> None:
    outcome = str(attributes[names.TURN_OUTCOME])
    live.turns[outcome].inc(1, ids)
    live.turn_duration[outcome].observe(seconds, ids)
    if names.TURN_ITERATIONS in attributes:
        live.iterations.observe(attributes[names.TURN_ITERATIONS], ids)
        _count_parts(
            live.input_tokens,
            attributes.get(names.INPUT_TOKENS),
            {"read": attributes.get(names.CACHE_READ_TOKENS), "write": attributes.get(names.CACHE_WRITE_TOKENS)},
            "none",
        )
        _count_parts(
            live.output_tokens,
            attributes.get(names.OUTPUT_TOKENS),
            {"reasoning": attributes.get(names.REASONING_TOKENS)},
            "text",
        )
    if names.TURN_EVIDENCE in attributes:
        live.evidence[str(attributes[names.TURN_EVIDENCE])].inc(1, ids)
    cost = attributes.get(names.TURN_COST)
    if cost is not None and 0 <= cost < AMOUNT_MAX:
        live.cost.inc(cost, ids)


def _count_parts(counters: Mapping[str, Counter], total: Any, parts: Mapping[str, Any], rest: str) -> None:
    """Count a total in its parts: together they are the total where it is known, whatever the parts claim."""
    known, left = partition(total, parts)
    for part, amount in known.items():
        counters[part].inc(amount)
    if left is not None:
        counters[rest].inc(left)


def _look_into_item(live: Instruments, record: Mapping[str, Any]) -> None:
    trust = values.as_mapping(record["provenance"]).get("trust") if "provenance" in record else None
    if trust == "tainted" and record.get("family") == "loop":
        live.tainted.inc()


def _look_into_error(live: Instruments, record: Mapping[str, Any]) -> None:
    if record.get("family") == "loop":
        payload = values.as_mapping(record.get("payload"))
        live.error(values.error_name(payload.get("reason", payload.get("error")))).inc()


def _look_into_approval(live: Instruments, record: Mapping[str, Any]) -> None:
    if record.get("family") == "loop":
        live.approvals.inc()


def _look_into_observation(live: Instruments, record: Mapping[str, Any]) -> None:
    """Count a step of the closed vocabulary, as the fold understands it."""
    if record.get("family") != "meta":
        return
    payload = values.as_mapping(record.get("payload"))
    step = payload.get("step")
    if step in ("prompted", "turn_ended"):
        live.observed.at(step, "none").inc()
    elif type(payload.get("call")) is not str:
        return
    elif step == "decision":
        decided = values.as_mapping(payload.get("outcome")).get("outcome")
        live.observed.at(step, values.member(decided, _DECISIONS)).inc()
    elif step == "tool_call":
        status = payload.get("status")
        if type(status) is str and status in _TOOL_CALL_STATUSES:
            live.observed.at(step, status).inc()


_LOOKED_INTO: Final = {
    "item_completed": _look_into_item,
    "error": _look_into_error,
    "approval_requested": _look_into_approval,
    "observed": _look_into_observation,
}
