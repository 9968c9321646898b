"""The reference of signals and metrics, made from the catalogue: `python -m tests.make_telemetry` writes it anew."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raxol_otel import catalogue
from raxol_otel.catalogue_entries import SOURCES
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raxol_otel.catalogue_entries import Instrument, Metric

__all__ = ["PATH", "text"]

PATH: Final = ROOT / "docs" / "reference" / "telemetry.md"
HEAD: Final = f"""# Signals, log events, metrics and instruments

Made from `raxol_otel/catalogue.py` by `python -m tests.make_telemetry`; do not edit. Names and label values are
public: they may grow in number and never change. Spans and their attributes: [spans.md](spans.md). GenAI
conventions: revision {catalogue.GENAI_REVISION}, schema <{catalogue.SCHEMA_URL}>.
"""
SIGNALS: Final = """## Signals

Published by the journal core in the thread where it happened, to handlers attached with
`raxol_otel.signals.attach(name, handler)`. A handler that raises is logged once and counted; the journal never feels
it.
"""
EVENTS: Final = f"""### As log events of OpenTelemetry

`raxol_otel.live.LogEvents(logger_provider).attach()` gives each signal to a logger of that provider, or of the global
one, as the handler `{catalogue.LOG_EVENTS_HANDLER}`: a LogRecord whose `event_name` is the signal's name, without a
body, with the ids of the active span. The severity is that of the table above. Each distinct damage is emitted once a
process, as it is counted once. Without an SDK nothing happens.
"""
EVENTS_SAID: Final = f"""* `{catalogue.JOURNAL_SEGMENT}`: the file's place in the session's directory,
  `journal/000003.jsonl` or `HEAD`. Where that directory is never leaves the process.
* `{catalogue.ERROR_TYPE}`: the name of the errno, `ENOSPC`, or `{catalogue.UNNAMED}`.
* `{catalogue.CHECKPOINT_TIP}` is there where there is a tip.
* A cause, stage or op that this version has not heard of is `{catalogue.OVERFLOW}`.
"""
METRICS: Final = """## Metrics

`raxol_otel.metrics.Metrics(registry)`, a collector of prometheus_client. Every metric carries the label `source`:
`agent` in a process that runs an agent, `fleet` in one that watches the journals of many. Label sets of closed
values are there from the start, at 0; of a tool whose name was not heard before, all outcomes are there at once.
"""
NOTES: Final = """## What is counted when

* Turns, tools, tokens, cost, evidence: when the span ends, so they agree with the traces; an observed turn and its
  calls count like any other. The duration of a tool is that of calls that got their result (`ok`, `error`). Tokens
  are partitions: their sum is what the span says. An unknown amount, or one beyond 2^53, adds nothing.
* Records, errors, approvals, tainted items, observed steps: from the records, whatever becomes of their turn.
* `raxol_journal_damaged_total`: each distinct damage once a process (directory, segment, last good offset and
  cause), the last 16,384 of them being remembered.
* A tool's name that is not one (a whole command line, say), or none, is `_OTHER`, and so is an error without a name.
  `other` is what came after the bound, and a cause, stage or op that this version has not heard of.
* `raxol_journal_unsynced_seconds` and `raxol_journal_writer_failing` are there once a writer can be asked.
* What goes wrong in the metrics themselves is counted in `raxol_telemetry_handler_errors_total` under
  `raxol_otel.metrics`.

## Exemplars

Turns (count, duration, provider calls, evidence, cost) and tools (count, duration) carry `trace_id` and `span_id` of
the last span that is exported. They show in the OpenMetrics format only.

## Processes

* A forked child starts at 0 with locks of its own, those of the registry included.
* In prometheus_client's multiprocess mode (`PROMETHEUS_MULTIPROC_DIR`) counters and histograms add up over the
  processes. Not there: exemplars, the two gauges of the writer and `raxol_telemetry_handler_errors_total`, which a
  process only knows of itself. The bounds on names hold for each process. As that mode asks, fork before threads are
  started: its one lock cannot be renewed. Values of processes that have ended stay until the directory is emptied.
* The times of creation (`_created`) are left out: counters start at 0.
"""
INSTRUMENTS: Final = """## Instruments of OpenTelemetry

`raxol_otel.live.TurnInstruments(meter_provider)` records finished spans on a meter of that provider, or of the global
one: for those who take metrics over OTLP, the facts of the metrics above in the conventions' own names. Prometheus'
names begin with `raxol_`, so that both may stand in one registry. Without an SDK nothing happens.
"""
LIMITS: Final = ", ".join(
    f"{label.limit} {what}"
    for what, label in (
        ("names of tools", catalogue.METRIC_TOOL_CALLS.labels[0]),
        ("of models", catalogue.NAMES_MODEL),
        ("of errors", catalogue.METRIC_ERRORS.labels[0]),
        ("of providers", catalogue.NAMES_PROVIDER),
        ("of agents", catalogue.NAMES_AGENT),
    )
)
RECORDED: Final = f"""### What is recorded when

* A turn when its span ends: its duration, its tool calls (those that were made; a result without a call is none), its
  provider calls if there were any, and the tokens of its usage. A tool call when its result came.
* Tokens are recorded once a turn, under the turn's own operation, `{catalogue.SPAN_TURN}`: they can be told from those
  that the instrumentation of a provider's client counts for each call. Cached and reasoning tokens are part of the
  input and output tokens, and never exceed them. An unknown amount, or one beyond 2^53, adds nothing.
* `{catalogue.PROVIDER_NAME}` is `{catalogue.UNNAMED}` where nothing names a provider; `{catalogue.MODALITY}` is always
  `{catalogue.MODALITY_UNKNOWN}`.
* Attributes are bounded: {LIMITS}, then
  `{catalogue.OVERFLOW}`; what is no single word is `{catalogue.UNNAMED}` (an agent's name, which is configured, may be
  several).
* `legacy=True` adds the two histograms of earlier conventions, for dashboards that still read them; there a turn is
  one operation, `{catalogue.SPAN_TURN}`.
* What goes wrong is counted in `{catalogue.METRIC_HANDLER_ERRORS.name}` under `{catalogue.INSTRUMENTS_HANDLER}`;
  of spans that are made while turns happen, and of their events, under `{catalogue.TRACING_HANDLER}`.
* A forked child goes on from the parent's sums, which the SDK keeps: make the provider after forking, as the SDK's
  exporters ask for too. No thread of ours is inside the SDK at a fork. Its own reader may be, for the millisecond of
  a collection, and the SDK does not renew the locks of that.
"""


def text() -> str:
    """The whole page."""
    signals = _table(
        ("Signal", "When", "Metadata", "Severity"),
        ((f"`{entry.name}`", entry.when, _codes(entry.metadata), entry.severity) for entry in catalogue.SIGNALS),
    )
    events = _table(
        ("Event", "Attributes"), ((f"`{entry.name}`", _codes(entry.attributes)) for entry in catalogue.SIGNALS)
    )
    instruments = _table(
        ("Instrument", "Type", "Unit", "Attributes", "Bounds of its buckets", "What it says"),
        (_instrument(entry) for entry in catalogue.INSTRUMENTS),
    )
    metrics = _table(
        ("Metric", "Type", "Unit", "Labels", "What it says"),
        (
            (f"`{metric.name}`", _kind(metric), metric.unit, _codes(label.name for label in metric.labels), metric.help)
            for metric in catalogue.METRICS
        ),
    )
    labels = _table(("Metric", "Label", "Values"), (row for metric in catalogue.METRICS for row in _labels(metric)))
    buckets = _table(
        ("Histogram", "Upper bounds of its buckets"),
        (
            (f"`{metric.name}`", " ".join(f"{bound:g}" for bound in metric.buckets))
            for metric in catalogue.METRICS
            if metric.buckets
        ),
    )
    return "\n".join(
        [
            *(HEAD, SIGNALS, signals, EVENTS, events, EVENTS_SAID, METRICS, metrics),
            *("### Label values\n", labels, "### Buckets\n", buckets, NOTES, INSTRUMENTS, instruments, RECORDED),
        ]
    )


def _kind(metric: Metric) -> str:
    only = "" if metric.sources == SOURCES else f", {' and '.join(metric.sources)} only"
    return metric.kind + only


def _instrument(entry: Instrument) -> Sequence[str]:
    kind = f"{entry.kind}, with `legacy=True`" if entry.legacy else entry.kind
    bounds = " ".join(f"{bound:g}" if bound < 10**6 else f"{bound:.0f}" for bound in entry.buckets)
    return f"`{entry.name}`", kind, f"`{entry.unit}`", _codes(entry.attributes), bounds, entry.help


def _labels(metric: Metric) -> Iterable[Sequence[str]]:
    for label in metric.labels:
        values = _codes(label.values)
        if label.limit:
            values += f", and the first {label.limit} names"
        yield f"`{metric.name}`", f"`{label.name}`", values
    if metric.pairs:
        pairs = ", ".join(f"`{step}` {outcome}" for step, outcome in metric.pairs)
        yield f"`{metric.name}`", "together", pairs


def _codes(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["".join(f"| {cell} " if cell else "| " for cell in row) + "|" for row in (headings, *rows)]
    return "\n".join([lines[0], "| --- " * len(headings) + "|", *lines[1:], ""])


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
