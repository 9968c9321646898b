"""The catalogue's metrics both ways: each has an emitter that fires here, and nothing is emitted that is not in it."""

from __future__ import annotations

import re
import shutil
import subprocess
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client import generate_latest

from raxol_otel import catalogue, signals
from raxol_otel.catalogue_entries import SOURCES
from raxol_otel.contract import Evidence
from raxol_otel.journal import iter_records
from raxol_otel.journal.damage import CAUSES
from raxol_otel.journal.tip import CONVERSATIONAL_TYPES
from raxol_otel.turns import Counts
from tests.conftest import ROOT
from tests.metrics_scrape import Agent, damaged, families, openmetrics, write_failed
from tests.test_fold import ASK, CANCEL, DONE, ERROR, START, item, record

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from prometheus_client.metrics_core import Metric as Family

    from raxol_otel.catalogue_entries import Metric

METRICS: Final = {metric.name: metric for metric in catalogue.PROCESS_METRICS}
ENDINGS: Final = {"counter": ("_total",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}


def tool_turn(*, final: bool = True, **closing: Any) -> list[dict[str, Any]]:
    """A turn with a call and its result."""
    return [
        record(1, START),
        item(2, "tool_use", "i2", name="sh", call_id="1"),
        item(3, "tool_result", "i3", name="sh", call_id="1"),
        record(4, DONE, final=final, **closing),
    ]


def fail(_signal: signals.Signal) -> None:
    """A handler that raises."""
    raise RuntimeError("trouble")


def handler_fails(_agent: Agent) -> None:
    """Let a handler of signals raise."""
    signals.attach("test_metrics_catalogue", fail)
    damaged()


def surrogate(_agent: Agent) -> None:
    """Let the surrogate have written."""
    signals.publish(signals.Signal(signals.SIGNAL_SURROGATE, {"op": "write", "session_id": "s", "tip_offset": None}))


def watched(agent: Agent) -> None:
    """Let a writer be behind and fail."""
    agent.metrics.watch_writers(unsynced=lambda: 2.5, failing=lambda: True)


EMITTERS: Final[dict[str, Callable[[Agent], object]]] = {
    "raxol_journal_damaged_total": lambda _: damaged(),
    "raxol_journal_write_failed_total": lambda _: write_failed("append", "eio"),
    "raxol_journal_checkpoint_surrogate_total": surrogate,
    "raxol_telemetry_handler_errors_total": handler_fails,
    "raxol_turns_total": lambda agent: agent.run(*tool_turn()),
    "raxol_turn_duration_seconds": lambda agent: agent.run(*tool_turn()),
    "raxol_turn_iterations": lambda agent: agent.run(*tool_turn()),
    "raxol_turn_evidence_total": lambda agent: agent.run(*tool_turn()),
    "raxol_turn_late_records_total": lambda agent: agent.run(*tool_turn(), item(9, "message")),
    "raxol_tool_calls_total": lambda agent: agent.run(*tool_turn()),
    "raxol_tool_duration_seconds": lambda agent: agent.run(*tool_turn()),
    "raxol_input_tokens_total": lambda agent: agent.run(*tool_turn(usage={"input_tokens": 3})),
    "raxol_output_tokens_total": lambda agent: agent.run(*tool_turn(usage={"output_tokens": 3})),
    "raxol_cost_usd_total": lambda agent: agent.run(*tool_turn(cost=0.25)),
    "raxol_approvals_requested_total": lambda agent: agent.run(record(1, ASK)),
    "raxol_tainted_items_total": lambda agent: agent.run(
        {**item(1, "message"), "provenance": {"trust": "tainted"}},
    ),
    "raxol_errors_total": lambda agent: agent.run(record(1, ERROR, reason="boom")),
    "raxol_observed_steps_total": lambda agent: agent.run(
        record(1, "observed", None, {"family": "meta"}, step="prompted")
    ),
    "raxol_journal_records_total": lambda agent: agent.run(record(1, START)),
    "raxol_journal_unknown_total": lambda agent: agent.run(record(1, "invented")),
    "raxol_journal_sync_duration_seconds": lambda agent: agent.metrics.observe_sync(0.002),
    "raxol_journal_unsynced_seconds": watched,
    "raxol_journal_writer_failing": watched,
    "raxol_journal_torn_repairs_total": lambda agent: agent.metrics.observe_torn_repair(),
}


@pytest.fixture
def agent() -> Iterator[Agent]:
    """Metrics that count signals, for a while."""
    made = Agent()
    made.metrics.attach()
    yield made
    for name in signals.handlers():
        signals.detach(name)


def total(agent: Agent, metric: Metric) -> float:
    """The sum of what a metric's series have counted."""
    ending = "_count" if metric.kind == "histogram" else ""
    series = agent.series().items()
    return sum(value for name, value in series if re.fullmatch(rf"{metric.name}{ending}(\{{.*\}})?", name))


def by_name(agent: Agent) -> dict[str, Family]:
    """The families of a scrape, by their names."""
    return {family.name: family for family in families(openmetrics(agent.registry))}


def everything(agent: Agent) -> None:
    """Let all there is count: every emitter, the tour, and names beyond all bounds."""
    for emit in EMITTERS.values():
        emit(agent)
    agent.run(*iter_records(ROOT / "golden" / "tour"), exemplar=True)
    agent.run(record(1, START), record(2, CANCEL), *tool_turn(final=False))
    for number in range(200):
        agent.run(
            record(1, START),
            item(2, "tool_result", "i2", name=f"tool-{number}"),
            record(3, ERROR, reason=f"{{:error_{number}, 1}}"),
        )
    for cause in CAUSES:
        damaged(cause=cause)


def test_every_metric_of_the_catalogue_is_listed() -> None:
    """What is walked below is all there is."""
    listed = {value for name, value in vars(catalogue).items() if name.startswith("METRIC_")}
    assert listed == set(catalogue.PROCESS_METRICS)
    assert len(METRICS) == len(catalogue.PROCESS_METRICS)
    assert EMITTERS.keys() == METRICS.keys()


@pytest.mark.parametrize("name", METRICS)
def test_every_metric_has_an_emitter(agent: Agent, name: str) -> None:
    """It moves when what it counts happens: one that nobody moves reads as a healthy 0."""
    before = total(agent, METRICS[name])
    EMITTERS[name](agent)
    assert total(agent, METRICS[name]) > before


@pytest.mark.parametrize("source", SOURCES)
def test_nothing_is_emitted_that_is_not_in_the_catalogue(source: str) -> None:
    """Names, types, units, help, labels and their values, of all that can be brought about."""
    agent = Agent(source)
    agent.metrics.attach()
    everything(agent)
    agent.metrics.detach()
    signals.detach("test_metrics_catalogue")
    found = by_name(agent)
    expected = {metric.family: metric for metric in catalogue.PROCESS_METRICS if source in metric.sources}
    assert found.keys() == expected.keys()
    for name, family in found.items():
        metric = expected[name]
        assert (family.type, family.documentation, family.unit) == (metric.kind, metric.help, metric.unit)
        assert family.samples
        for sample in family.samples:
            labels = dict(sample.labels)
            assert sample.name in {name + ending for ending in ENDINGS[metric.kind]}
            assert labels.pop("source") == source
            if sample.name.endswith("_bucket"):
                assert labels.pop("le") in {*(f"{float(bound)}" for bound in metric.buckets), "+Inf"}
            assert tuple(labels) == tuple(sorted(label.name for label in metric.labels))
            for label in metric.labels:
                assert label.limit or labels[label.name] in label.values, (name, labels)
        for label in metric.labels:
            said = {sample.labels[label.name] for sample in family.samples}
            assert len(said) <= label.limit + len(label.values)


@pytest.mark.parametrize("metric", [metric for metric in catalogue.PROCESS_METRICS if metric.kind != "gauge"])
def test_every_label_set_that_can_occur_starts_at_0(metric: Metric) -> None:
    """A counter that is born at 1 never increases."""
    series = Agent().series()
    ending = "_count" if metric.kind == "histogram" else ""
    names = [label.name for label in metric.labels]
    if metric is catalogue.METRIC_HANDLER_ERRORS:
        assert series[f'{metric.name}{{handler="raxol_otel.metrics"}}'] == 0
        return
    for values in metric.born:
        said = ",".join(f'{name}="{value}"' for name, value in sorted(zip(names, values, strict=True)))
        assert series[f"{metric.name}{ending}" + (f"{{{said}}}" if said else "")] == 0


def test_closed_sets_are_those_of_the_core() -> None:
    """The words of the catalogue are the ones that the journal, the contract and the fold use."""
    assert catalogue.DAMAGE_CAUSES == CAUSES
    assert set(catalogue.EVIDENCE_STATUSES) == set(Evidence)
    assert set(catalogue.UNKNOWN_PARTS) == Counts().unknown.keys()
    own = {"observed", "checkpoint", "other", "item_delta"}
    assert set(catalogue.RECORD_TYPES) == CONVERSATIONAL_TYPES | catalogue.QUIET_TYPES | own


def test_names_and_units_follow_the_conventions() -> None:
    """Counters end in _total, units stand in the name, buckets rise, help is one sentence."""
    for metric in catalogue.METRICS:
        assert re.fullmatch(r"raxol_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind == "counter")
        assert metric.family.endswith(f"_{metric.unit}" if metric.unit else "")
        assert metric.help.endswith(".")
        assert list(metric.buckets) == sorted(set(metric.buckets))
        assert bool(metric.buckets) == (metric.kind == "histogram")
        assert all(re.fullmatch(r"[a-z_]+", label.name) for label in metric.labels)


@pytest.mark.parametrize("source", SOURCES)
def test_promtool_has_nothing_to_say(source: str) -> None:
    """Prometheus' own checker of metrics is content with all of them."""
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: Debian's package `prometheus` has it")
    agent = Agent(source)
    everything(agent)
    signals.detach("test_metrics_catalogue")
    text = generate_latest(agent.registry)
    done = subprocess.run([promtool, "check", "metrics"], input=text, capture_output=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_both_formats_say_the_same(agent: Agent) -> None:
    """The text format and OpenMetrics, read by the client library's parsers."""
    everything(agent)
    plain = families(generate_latest(agent.registry).decode(), strict=False)
    told = {(sample.name, str(sample.labels), sample.value) for family in plain for sample in family.samples}
    strict = {
        (sample.name, str(sample.labels), sample.value)
        for family in families(openmetrics(agent.registry))
        for sample in family.samples
    }
    assert told == strict
