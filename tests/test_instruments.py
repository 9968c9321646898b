"""Turns on OpenTelemetry instruments: the pinned revision's names, units and buckets; amounts worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.metrics import NoOpMeterProvider

from raxol_otel import catalogue, signals
from raxol_otel.live import TurnInstruments
from raxol_otel.turns import FoldConfig, Span, TurnFold
from tests.conftest import ROOT
from tests.live_sdk import Meters
from tests.metrics_scrape import Agent
from tests.test_fold import CANCEL, DONE, ERROR, START, item, record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raxol_otel.catalogue_entries import Instrument

USAGE: Final = {
    "input_tokens": 30,
    "cache_read_input_tokens": 60,
    "cache_creation_input_tokens": 10,
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 15},
}
# Two provider calls, of which the second ends the turn; two calls of a tool, one of which fails; 9 seconds.
TURN: Final = [
    record(1, START, provider="anthropic", model="claude-x"),
    item(2, "tool_use", "i2", name="sh", call_id="1"),
    item(4, "tool_result", "i4", name="sh", call_id="1"),
    record(5, DONE, final=False, usage=USAGE),
    item(6, "tool_use", "i6", name="sh", call_id="2"),
    item(9, "tool_result", "i9", name="sh", call_id="2", is_error=True),
    record(10, DONE, final=True, usage={"input_tokens": 7, "output_tokens": 3}),
]
DURATION: Final = "gen_ai.invoke_agent.duration"
CALLS: Final = "gen_ai.invoke_agent.inference_calls"
TOOLS: Final = "gen_ai.invoke_agent.tool_calls"
TOOL_DURATION: Final = "gen_ai.execute_tool.duration"
TOKENS: Final = "gen_ai.client.inference.usage."
LEGACY_USAGE, LEGACY_DURATION = "gen_ai.client.token.usage", "gen_ai.client.operation.duration"


def spans_of(*records: Mapping[str, Any], **config: Any) -> list[Span]:
    """A session folded to its end."""
    fold = TurnFold("s", config=FoldConfig(**config))
    return fold.feed_many(records) + fold.close()


def observed(*records: Mapping[str, Any], legacy: bool = False, **config: Any) -> Meters:
    """What a session's spans put on instruments."""
    meters = Meters()
    instruments = TurnInstruments(meters.provider, legacy=legacy, agent_name=config.get("agent_name"))
    instruments.observe_spans(spans_of(*records, **config))
    return meters


def by(*attributes: Mapping[str, Any]) -> frozenset[tuple[str, Any]]:
    """Attributes as a key."""
    return frozenset(pair for some in attributes for pair in some.items())


SPENT: Final = {
    "gen_ai.operation.name": "invoke_agent",
    "gen_ai.provider.name": "anthropic",
    "gen_ai.request.model": "claude-x",
}


def test_a_turn() -> None:
    """How long it took, how many calls it made of the model and of tools."""
    meters = observed(*TURN, agent_name="Math Tutor")
    turn = {"gen_ai.operation.name": "invoke_agent", "raxol.turn.outcome": "completed"}
    agent = {"gen_ai.agent.name": "Math Tutor"}
    assert meters.said(DURATION) == {by(turn, agent): (1, 9.0)}
    assert meters.said(CALLS) == {by(agent): (1, 2)}
    assert meters.said(TOOLS) == {by(agent): (1, 2)}


def test_tools() -> None:
    """From the call to its result; a failure is told from a success by its error."""
    meters = observed(*TURN, agent_name="Math Tutor")
    tool = {"gen_ai.tool.name": "sh", "gen_ai.tool.type": "function", "gen_ai.agent.name": "Math Tutor"}
    assert meters.said(TOOL_DURATION) == {by(tool): (1, 2.0), by(tool, {"error.type": "_OTHER"}): (1, 3.0)}


def test_tokens_add_up_over_the_calls_of_a_turn() -> None:
    """Input with that of caches, output with that of reasoning, and what of them came from where."""
    meters = observed(*TURN)
    spent = by(SPENT, {"gen_ai.token.modality": "unknown"})
    assert {name.removeprefix(TOKENS): meters.said(name) for name in meters.metrics() if name.startswith(TOKENS)} == {
        "input_tokens": {spent: 107},
        "output_tokens": {spent: 43},
        "cache_read.input_tokens": {spent: 60},
        "cache_write.input_tokens": {spent: 10},
        "reasoning.output_tokens": {spent: 15},
    }


def test_the_older_histograms_only_where_asked_for() -> None:
    """The switch adds them, with the tokens of a turn, input and output apart; all else stays as it is."""
    without, meters = observed(*TURN), observed(*TURN, legacy=True)
    assert meters.metrics().keys() - without.metrics().keys() == {LEGACY_USAGE, LEGACY_DURATION}
    assert without.metrics().keys() <= meters.metrics().keys()
    assert meters.said(LEGACY_DURATION) == {by(SPENT): (1, 9.0)}
    assert meters.said(LEGACY_USAGE) == {
        by(SPENT, {"gen_ai.token.type": "input"}): (1, 107),
        by(SPENT, {"gen_ai.token.type": "output"}): (1, 43),
    }


@pytest.mark.parametrize(
    ("records", "outcome", "error"),
    [
        ([record(1, START), record(3, CANCEL)], "canceled", None),
        ([record(1, START), item(3, "message")], "incomplete", None),
        ([record(1, START), record(3, ERROR, reason="boom")], "error", "boom"),
        ([record(1, START), record(3, ERROR, reason="%Req.TransportError{reason: 1}")], "error", "Req.TransportError"),
        ([record(1, START), record(3, ERROR, reason="I am a sentence.")], "error", "_OTHER"),
    ],
)
def test_every_outcome(records: list[dict[str, Any]], outcome: str, error: str | None) -> None:
    """Each ends a turn of 2 seconds that called no tool; of the model's calls and tokens nothing is known."""
    meters = observed(*records, legacy=True)
    failed: dict[str, Any] = {} if error is None else {"error.type": error}
    turn = {"gen_ai.operation.name": "invoke_agent", "raxol.turn.outcome": outcome}
    assert meters.said(DURATION) == {by(turn, failed): (1, 2.0)}
    assert meters.said(TOOLS) == {by(): (1, 0)}
    nobody = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "_OTHER"}
    assert meters.said(LEGACY_DURATION) == {by(nobody, failed): (1, 2.0)}
    assert meters.metrics().keys() == {DURATION, TOOLS, LEGACY_DURATION}


def test_what_a_journal_does_not_carry_adds_nothing() -> None:
    """Usage without output, a call without its result, a result without its call: no 0 and no duration."""
    meters = observed(
        record(1, START),
        item(2, "tool_use", "i2", name="a", call_id="1"),
        item(3, "tool_result", "i3", name="b", call_id="2"),
        record(4, DONE, final=True, usage={"input_tokens": 0}),
    )
    spent = {"gen_ai.operation.name": "invoke_agent", "gen_ai.provider.name": "_OTHER"}
    assert meters.said(f"{TOKENS}input_tokens") == {by(spent, {"gen_ai.token.modality": "unknown"}): 0}
    assert meters.metrics().keys() == {DURATION, CALLS, TOOLS, f"{TOKENS}input_tokens"}
    assert meters.said(TOOLS) == {by(): (1, 1)}


def test_an_observed_turn() -> None:
    """Its calls of tools are known, those of a model are not; its tools have no type."""

    def seen(offset: int, **payload: Any) -> dict[str, Any]:
        return record(offset, "observed", None, {"family": "meta"}, **payload)

    meters = observed(
        seen(1, step="prompted"),
        seen(2, step="tool_call", call="a", status="pending"),
        seen(3, step="tool_call", call="b", status="pending"),
        seen(5, step="tool_call", call="a", status="failed"),
        seen(9, step="turn_ended", reason="end_turn"),
    )
    assert meters.metrics().keys() == {DURATION, TOOLS, TOOL_DURATION}
    assert meters.said(TOOLS) == {by(): (1, 2)}
    assert meters.said(TOOL_DURATION) == {by({"gen_ai.tool.name": "_OTHER", "error.type": "_OTHER"}): (1, 3.0)}
    turn = {"gen_ai.operation.name": "invoke_agent", "raxol.turn.outcome": "completed"}
    assert meters.said(DURATION) == {by(turn): (1, 8.0)}


def test_parts_never_exceed_their_total() -> None:
    """As with the metrics of Prometheus: what the parts claim beyond it is not counted, nor is an absurd amount."""
    usage = {"input_tokens": 100, "cache_read_input_tokens": 80, "cache_creation_input_tokens": 80}
    meters = Meters()
    (turn,) = spans_of(record(1, START), record(2, DONE, final=True))
    turn.attributes |= {
        "gen_ai.usage.input_tokens": usage["input_tokens"],
        "gen_ai.usage.cache_read.input_tokens": usage["cache_read_input_tokens"],
        "gen_ai.usage.cache_write.input_tokens": usage["cache_creation_input_tokens"],
        "gen_ai.usage.output_tokens": 2**53,
        "gen_ai.usage.reasoning.output_tokens": 5,
    }
    TurnInstruments(meters.provider, legacy=True).observe_span(turn)
    said = {name.removeprefix(TOKENS): sum(meters.said(name).values()) for name in meters.metrics() if TOKENS in name}
    assert said == {
        "input_tokens": 100,
        "cache_read.input_tokens": 80,
        "cache_write.input_tokens": 20,
        "reasoning.output_tokens": 5,
    }
    assert len(meters.points(LEGACY_USAGE)) == 1


def test_the_same_facts_as_the_metrics_of_prometheus() -> None:
    """Turns of several outcomes, counted both ways."""
    agent, meters = Agent(), Meters()
    instruments = TurnInstruments(meters.provider)
    for records in (TURN, [record(1, START), record(3, CANCEL)], [*TURN[:4], record(9, ERROR, reason="boom")]):
        agent.run(*records)
        instruments.observe_spans(spans_of(*records))
    series = agent.counted()

    def total(name: str) -> int:
        return sum(getattr(point, "count", 0) or point.value for point in meters.points(name))

    outcomes = ("completed", "canceled", "error")
    assert total(DURATION) == sum(series[f'raxol_turns_total{{outcome="{one}"}}'] for one in outcomes) == 3
    assert total(CALLS) == series["raxol_turn_iterations_count"]
    assert total(TOOL_DURATION) == series['raxol_tool_duration_seconds_count{tool="sh"}']
    assert total(f"{TOKENS}input_tokens") == sum(
        series[f'raxol_input_tokens_total{{cache="{part}"}}'] for part in ("none", "read", "write")
    )
    assert total(f"{TOKENS}cache_read.input_tokens") == series['raxol_input_tokens_total{cache="read"}']
    assert total(f"{TOKENS}reasoning.output_tokens") == series['raxol_output_tokens_total{kind="reasoning"}']


@pytest.mark.parametrize("entry", catalogue.INSTRUMENTS, ids=lambda entry: entry.name)
def test_an_instrument_is_what_the_catalogue_says(entry: Instrument) -> None:
    """Every one of them moves: name, type, unit, help, buckets and attributes."""
    meters = observed(*TURN, *([record(20, ERROR, reason="boom")]), legacy=True, agent_name="a")
    metric = meters.metrics()[entry.name]
    assert (metric.unit, metric.description) == (entry.unit, entry.help)
    points = meters.points(entry.name)
    assert points
    for point in points:
        assert set(point.attributes) <= set(entry.attributes)
        assert tuple(getattr(point, "explicit_bounds", ())) == pytest.approx(entry.buckets)
        assert hasattr(point, "bucket_counts") == (entry.kind == "histogram")
    if entry.kind == "counter":
        assert metric.data.is_monotonic


def test_nothing_is_emitted_that_is_not_in_the_catalogue() -> None:
    """Nor are the attributes of the catalogue more than are used."""
    records = [*TURN, record(20, START, "t2", provider="p", model="m"), record(21, ERROR, "t2", reason="boom")]
    meters = observed(*records, legacy=True, agent_name="a")
    assert meters.metrics().keys() == {entry.name for entry in catalogue.INSTRUMENTS}
    for entry in catalogue.INSTRUMENTS:
        used = {name for point in meters.points(entry.name) for name in point.attributes}
        assert used == set(entry.attributes), entry.name


def test_buckets_units_and_names_are_those_of_the_revision() -> None:
    """Written out here once more, from the conventions' own pages."""
    seconds = [0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92]
    agent = [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 51.2, 102.4, 204.8, 409.6]
    calls = [1, 2, 4, 8, 16, 32, 64, 128]
    tokens = [1, 4, 16, 64, 256, 1024, 4096, 16384, 65536, 262144, 1048576, 4194304, 16777216, 67108864]
    assert {entry.name: (entry.unit, list(entry.buckets)) for entry in catalogue.INSTRUMENTS} == {
        "gen_ai.invoke_agent.duration": ("s", agent),
        "gen_ai.invoke_agent.inference_calls": ("{inference_call}", calls),
        "gen_ai.invoke_agent.tool_calls": ("{tool_call}", calls),
        "gen_ai.execute_tool.duration": ("s", seconds),
        "gen_ai.client.inference.usage.input_tokens": ("{token}", []),
        "gen_ai.client.inference.usage.output_tokens": ("{token}", []),
        "gen_ai.client.inference.usage.cache_read.input_tokens": ("{token}", []),
        "gen_ai.client.inference.usage.cache_write.input_tokens": ("{token}", []),
        "gen_ai.client.inference.usage.reasoning.output_tokens": ("{token}", []),
        "gen_ai.client.token.usage": ("{token}", tokens),
        "gen_ai.client.operation.duration": ("s", seconds),
    }


def test_the_scope_says_who_records() -> None:
    """Name, version and the schema of the conventions."""
    (scope,) = observed(*TURN).scopes()
    assert (scope.scope.name, scope.schema_url) == ("raxol_otel", "https://opentelemetry.io/schemas/gen-ai/0.1.0")
    assert scope.scope.version


def test_attributes_are_bounded() -> None:
    """So many names of tools, errors, providers and models; what is no name is `_OTHER`, one too many is `other`."""
    meters = Meters()
    instruments = TurnInstruments(meters.provider)
    for number in range(150):
        instruments.observe_spans(
            spans_of(
                record(1, START, provider=f"p{number}", model=f"m-{number}"),
                item(2, "tool_use", "i2", name=f"tool_{number}", call_id="1"),
                item(3, "tool_result", "i3", name=f"tool_{number}", call_id="1"),
                record(4, DONE, final=False, usage={"input_tokens": 1}),
                record(5, ERROR, reason=f"{{:error_{number}, 1}}"),
            )
        )
    tools = {point.attributes["gen_ai.tool.name"] for point in meters.points(TOOL_DURATION)}
    errors = {point.attributes["error.type"] for point in meters.points(DURATION)}
    inputs = meters.points(f"{TOKENS}input_tokens")
    providers = {point.attributes["gen_ai.provider.name"] for point in inputs}
    models = {point.attributes["gen_ai.request.model"] for point in inputs}
    assert [len(names) for names in (tools, errors, providers, models)] == [101, 51, 51, 101]
    assert all("other" in names for names in (tools, errors, providers, models))


@pytest.mark.parametrize(
    "said", ["rm -rf / --no-preserve-root", "a sentence of a journal", "\ud800", "/home/jane/model", "m" * 129]
)
def test_no_text_of_a_journal_is_an_attribute(said: str) -> None:
    """A command line for a tool's name, a sentence for a model's: neither goes anywhere."""
    meters = observed(
        record(1, START, provider=said, model=said),
        item(2, "tool_use", "i2", name=said, call_id="1"),
        item(3, "tool_result", "i3", name=said, call_id="1"),
        record(4, DONE, final=True, usage={"input_tokens": 1}),
        legacy=True,
        capture_content=True,
    )
    attributes = [dict(point.attributes) for name in meters.metrics() for point in meters.points(name)]
    assert all(value != said for each in attributes for value in each.values())
    assert {each["gen_ai.request.model"] for each in attributes if "gen_ai.request.model" in each} == {"_OTHER"}
    assert {each["gen_ai.tool.name"] for each in attributes if "gen_ai.tool.name" in each} == {"_OTHER"}


@pytest.mark.parametrize(
    "model", ["gpt-4o-mini", "meta-llama/Llama-3.1-70B", "us.anthropic.claude-3-5:0", "@cf/meta/x", "4o", "claude@2025"]
)
def test_names_of_models_are_told(model: str) -> None:
    """All the forms that providers use."""
    meters = observed(record(1, START, model=model), record(2, DONE, final=True, usage={"input_tokens": 1}))
    (point,) = meters.points(f"{TOKENS}input_tokens")
    assert point.attributes["gen_ai.request.model"] == model


def test_an_exemplar_leads_to_the_span() -> None:
    """Where the span is exported under its ids; never to whatever span is active when it is observed."""
    turn = next(span for span in spans_of(*TURN) if span.role == "turn")
    for exemplar in (True, False):
        meters = Meters()
        with meters.active_span():
            TurnInstruments(meters.provider).observe_span(turn, exemplar=exemplar)
        (point,) = meters.points(DURATION)
        ids = [(f"{one.trace_id:032x}", f"{one.span_id:016x}") for one in point.exemplars]
        assert ids == ([(turn.trace_id, turn.span_id)] if exemplar else [])


def test_a_failure_is_counted_and_never_raised() -> None:
    """A span that no fold makes, or a provider that raises, costs the observation and shows in the metrics."""
    agent = Agent()
    name = 'raxol_telemetry_handler_errors_total{handler="raxol_otel.instruments"}'
    before = signals.handler_errors().get("raxol_otel.instruments", 0)
    instruments = TurnInstruments(Meters().provider)
    ids = ("0" * 32, "0" * 16)
    instruments.observe_span(Span("x", "turn", "s", 1, *ids, "", 1, 2, {}))
    instruments.observe_span(Span("x", "turn", "s", 1, *ids, "", 1, 2, {"raxol.turn.outcome": "a sentence"}))
    instruments.observe_span(Span("x", "tool", "s", 1, *ids, "", 1, 2, {}))
    instruments.observe_span(Span("x", "item", "s", 1, *ids, "", 1, 2, {}))
    assert signals.handler_errors()["raxol_otel.instruments"] == before + 3
    assert agent.series()[name] == before + 3
    TurnInstruments(NoOpMeterProvider(), legacy=True).observe_spans(spans_of(*TURN), exemplar=True)
    assert signals.handler_errors()["raxol_otel.instruments"] == before + 3


def test_sessions_in_threads_are_all_recorded() -> None:
    """Several at once, with names that are new to all of them: the totals are exact."""
    meters = Meters()
    instruments = TurnInstruments(meters.provider)

    def session() -> None:
        for number in range(60):
            instruments.observe_spans(spans_of(*TURN), exemplar=True)
            tool = {"name": f"t{number}"}
            new = [item(2, "tool_use", "i", **tool), item(3, "tool_result", **tool)]
            instruments.observe_spans(spans_of(record(1, START), *new))

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=session) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(before)
    assert sum(point.count for point in meters.points(DURATION)) == 2 * 6 * 60
    assert sum(point.value for point in meters.points(f"{TOKENS}input_tokens")) == 6 * 60 * 107
    assert {point.count for point in meters.points(TOOL_DURATION)} == {6, 6 * 60}


def test_a_forked_child_never_hangs() -> None:
    """A hundred forks while threads record, publish and log: in every child both go on working."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.live_processes", "forks"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []
