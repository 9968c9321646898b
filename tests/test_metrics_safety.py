"""Whatever a journal holds: nothing raises, every scrape succeeds, no content becomes a label, labels are bounded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest

from raxol_otel import catalogue, signals
from raxol_otel.signals import Signal
from raxol_otel.turns import Span
from tests.metrics_scrape import Agent, families, openmetrics
from tests.test_fold import ERROR, START, item, record
from tests.test_fold_safety import SECRETS, STREAMS, stream

if TYPE_CHECKING:
    from raxol_otel.catalogue_entries import SignalEntry
    from raxol_otel.turns.span import Role

OWN: Final = 'raxol_telemetry_handler_errors_total{handler="raxol_otel.metrics"}'
CLOSED: Final = {
    label.name: {*label.values, catalogue.OVERFLOW}
    for metric in catalogue.PROCESS_METRICS
    for label in metric.labels
    if not label.limit and label.name not in {"outcome", "type"}
}
TEXTS: Final = st.one_of(st.text(max_size=20), st.text(alphabet='\ud800\udfff\n"\\\0\u2028{}=', max_size=5))
VALUES: Final = st.one_of(TEXTS, st.booleans(), st.integers(), st.floats())
ATTRIBUTES: Final = st.dictionaries(
    st.sampled_from(
        [
            *(catalogue.TURN_OUTCOME, catalogue.TOOL_OUTCOME, catalogue.TOOL_NAME, catalogue.TURN_EVIDENCE),
            *(catalogue.TURN_ITERATIONS, catalogue.TURN_COST, catalogue.INPUT_TOKENS, catalogue.OUTPUT_TOKENS),
            *(catalogue.CACHE_READ_TOKENS, catalogue.REASONING_TOKENS),
        ]
    ),
    st.one_of(VALUES, st.sampled_from(["completed", "ok", "accepted", "sh"])),
)
# Anything at all where a journal or a program may put something.
ANYTHING: Final = st.recursive(
    st.one_of(st.none(), VALUES, st.binary(max_size=3)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=5,
)
FIELDS: Final = ("type", "kind", "family", "payload", "provenance", "turn_id", "ts", "id", "branch_id")


def scraped(agent: Agent) -> str:
    """Both formats of a scrape, the strict one parsed; the labels of closed sets are of these."""
    strict = openmetrics(agent.registry)
    for family in families(strict):
        for sample in family.samples:
            for name, value in sample.labels.items():
                assert value in CLOSED.get(name, {value}), sample
    return strict + generate_latest(agent.registry).decode()


@settings(max_examples=100)
@given(STREAMS, st.booleans())
def test_any_stream_of_records_can_be_scraped(drawn: list[Any], capture: bool) -> None:  # noqa: FBT001
    """And none of it was too odd to be counted."""
    records = stream(drawn)
    agent = Agent()
    agent.run(*records, exemplar=True, capture=capture)
    scraped(agent)
    series = agent.series()
    assert series[OWN] == 0
    assert sum(value for name, value in series.items() if "_records_total{" in name) == len(records)


@settings(max_examples=100)
@given(st.lists(st.dictionaries(st.sampled_from(FIELDS), ANYTHING, max_size=6), max_size=5))
def test_any_value_in_any_field_of_a_record_can_be_scraped(records: list[dict[str, Any]]) -> None:
    """A record is counted whatever stands in it."""
    agent = Agent()
    agent.metrics.observe_records(records)
    scraped(agent)
    series = agent.series()
    assert series[OWN] == 0
    assert sum(value for name, value in series.items() if "_records_total{" in name) == len(records)


@settings(max_examples=100)
@given(st.sampled_from(("turn", "tool", "item")), TEXTS, TEXTS, st.integers(), st.integers(), ATTRIBUTES)
def test_any_span_can_be_scraped(  # noqa: PLR0917 - what hypothesis draws
    role: Role, trace_id: str, span_id: str, start: int, end: int, attributes: dict[str, Any]
) -> None:
    """One that our fold would never make is left out and counted as lost; the scrape goes on."""
    agent = Agent()
    for ids in ((trace_id, span_id), ("0" * 32, "1" * 16), (trace_id * 100, span_id)):
        agent.metrics.observe_span(Span("x", role, "s", 1, *ids, "", start, end, attributes), exemplar=True)
    scraped(agent)


@settings(max_examples=100)
@given(st.sampled_from(catalogue.SIGNALS), ANYTHING, st.dictionaries(TEXTS, ANYTHING, max_size=3), TEXTS)
def test_any_signal_and_any_handler_can_be_scraped(
    entry: SignalEntry, value: Any, more: dict[str, Any], handler: str
) -> None:
    """Whatever a signal carries and whatever a handler is called."""

    def fail(_signal: Signal) -> None:
        raise ValueError

    agent = Agent()
    agent.metrics.attach()
    signals.attach(handler, fail)
    try:
        signals.publish(Signal(entry.name, dict.fromkeys(entry.metadata, value) | more))
        scraped(agent)
    finally:
        for name in signals.handlers():
            signals.detach(name)
        vars(signals)["_errors"].pop(handler, None)
    assert agent.series()[OWN] == 0


@pytest.mark.parametrize("capture", [False, True])
def test_no_content_becomes_a_label(capture: bool) -> None:  # noqa: FBT001
    """Not even where spans carry it: prompts, results, error texts, and command lines in a tool's place."""
    agent = Agent()
    agent.run(*SECRETS, exemplar=True, capture=capture)
    agent.run(record(1, START), item(2, "tool_use", "i2", name="rm -rf canary", call_id="1"), capture=capture)
    assert "canary" not in scraped(agent)
    assert agent.series()['raxol_tool_calls_total{outcome="unanswered",tool="_OTHER"}'] >= 1


def test_tools_and_errors_are_bounded() -> None:
    """The first names are told apart, those after them are `other`; a name that has its place keeps it."""
    agent = Agent()
    for number in range(300):
        agent.run(
            record(1, START),
            item(2, "tool_result", "i", name=f"tool_{number}"),
            record(3, ERROR, reason=f"{'e' * (number % 40 + 1)}"),
        )
        agent.run(record(1, ERROR, reason=f"{{:error_{number}, 1}}"))
    agent.run(record(1, START), item(2, "tool_result", "i", name="tool_0"))
    found = agent.counted()
    tools = {name: value for name, value in found.items() if "_calls_total" in name}
    errors = {name: value for name, value in found.items() if "_errors_total{error" in name}
    assert len(tools) == 100 + 1
    assert tools['raxol_tool_calls_total{outcome="orphan",tool="tool_0"}'] == 2
    assert tools['raxol_tool_calls_total{outcome="orphan",tool="other"}'] == 200
    assert len(errors) == 50 + 1
    assert sum(errors.values()) == 600
