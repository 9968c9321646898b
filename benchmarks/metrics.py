"""What counting costs: `python -m benchmarks.metrics [--records N]`.

Records: a journal's, decoded and folded in nobody's time; what is timed is counting them and their spans, with and
without exemplars. Signals: published to the metrics alone, beside to nobody; damage that is new each time, damage that
was met before, and failures of the writer; then to the metrics and the log events, whose records go to the SDK's batch
processor and from there nowhere. Nothing attached: what an append that is synced does for signals and meters, and
nothing else. Instruments: a journal's spans on those of the SDK, beside on those of Prometheus. Scrapes: all metrics of
the catalogue with what a journal of several tools left in them; with the tools and errors of a busy agent; and with as
many names as there can be.
"""

from __future__ import annotations

import time
from functools import partial
from itertools import count, islice
from typing import TYPE_CHECKING, Final

from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor, LogRecordExporter, LogRecordExportResult
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder

from benchmarks.common import Row, alternate, command_line, note
from benchmarks.journals import make
from raxol_otel import catalogue as names
from raxol_otel import signals
from raxol_otel.journal import meter
from raxol_otel.journal.failure import publish_failures
from raxol_otel.journal.reader import Walk, read_batches
from raxol_otel.live import LogEvents, TurnInstruments
from raxol_otel.metrics import Metrics
from raxol_otel.turns import TurnFold

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opentelemetry.sdk._logs import ReadableLogRecord

    from benchmarks.common import Times
    from benchmarks.journals import Journal

__all__ = ["run"]

_ROUNDS: Final = 9
_COUNTED_RECORDS: Final = 40_000
_SIGNALS: Final = 10_000
_APPENDS: Final = 100_000
_SCRAPES: Final = 20
_BUSY_TOOLS: Final = 20
_BUSY_ERRORS: Final = 10
_openmetrics: Final = choose_encoder("application/openmetrics-text; version=1.0.0")[0]
_METADATA: Final = {
    "dir": "/var/lib/agent/sessions/s1",
    "segment": "/var/lib/agent/sessions/s1/journal/000001.jsonl",
    "session_id": "s1",
    "cause": "nul_run",
    "stage": "append",
    "reason": "enospc",
}


def run(folder: Path, records: int) -> list[Row]:
    """Measure records, signals, appends without any, instruments and scrapes."""
    note("metrics: records, signals, instruments, scrapes")
    journal = make(folder / "counted", min(records, _COUNTED_RECORDS))
    return [*_records(journal), *_signals(), *_both_handlers(), *_nobody(), *_instruments(journal), *_scrapes(journal)]


def _records(journal: Journal) -> list[Row]:
    records = [record for batch in read_batches(Walk(journal.directory)) for record in batch]
    spans = TurnFold("counted").feed_many(records)
    assert len(spans) == journal.spans
    fold = TurnFold("counted")
    following = Metrics(CollectorRegistry()).follow(fold)
    ours, led, bare = alternate(
        (
            partial(following.observe, records, spans),
            partial(following.observe, records, spans, exemplar=True),
            lambda: TurnFold("counted").feed_many(records),
        ),
        _ROUNDS,
    )
    beside = f"folding it: {_each(bare.best, bare.median, len(records))}"
    what = "metrics of a record and its share of the spans"
    return [
        Row(what, _each(ours.best, ours.median, len(records)), beside, "", "under 5 µs"),
        Row("the same, with exemplars", _each(led.best, led.median, len(records)), "", "", "under 5 µs"),
    ]


def _signals() -> list[Row]:
    metrics = Metrics(CollectorRegistry())
    works = _publishing()
    nobody, *_ = alternate((works["damage that is new"],), _ROUNDS)
    metrics.attach()
    try:
        times = alternate(tuple(works.values()), _ROUNDS)
    finally:
        metrics.detach()
    beside = f"no handler: {_each(nobody.best, nobody.median, _SIGNALS)}"
    return [
        Row(
            f"a signal made, published and counted: {what}",
            _each(t.best, t.median, _SIGNALS),
            beside,
            "",
            "under 30 µs",
        )
        for what, t in zip(works, times, strict=True)
    ]


def _both_handlers() -> list[Row]:
    metrics = Metrics(CollectorRegistry())
    provider = LoggerProvider()
    # A queue that is never full while it is measured: dropping would be cheaper than keeping.
    provider.add_log_record_processor(BatchLogRecordProcessor(_Nowhere(), max_queue_size=20 * _SIGNALS))
    events, works = LogEvents(provider), _publishing()
    metrics.attach()
    events.attach()
    try:
        times = alternate(tuple(works.values()), _ROUNDS)
        assert signals.handler_errors() == {}
    finally:
        events.detach()
        metrics.detach()
        provider.shutdown()
    return [
        Row(f"the same with both handlers: {what}", _each(t.best, t.median, _SIGNALS), "", "", "under 30 µs")
        for what, t in zip(works, times, strict=True)
    ]


def _publishing() -> dict[str, Callable[[], None]]:
    numbers = count()

    def publish(name: str, last_offset: Callable[[], int]) -> None:
        for _ in range(_SIGNALS):
            signals.publish(signals.Signal(name, _METADATA | {"last_offset": last_offset()}))

    return {
        "damage that is new": partial(publish, names.SIGNAL_DAMAGED, lambda: next(numbers)),
        "damage met before": partial(publish, names.SIGNAL_DAMAGED, lambda: 0),
        "a failure of the writer": partial(publish, names.SIGNAL_WRITE_FAILED, lambda: 0),
    }


def _nobody() -> list[Row]:
    assert (signals.handlers(), meter.attached) == ((), ())

    def appends() -> None:
        since: float | None = None
        for _ in range(_APPENDS):
            # As the writer does: when a record is written, when it is synced, and after the call.
            now = time.monotonic()
            if since is None:
                since = now
            if meter.attached:
                meter.synced(time.monotonic() - now)
            since = None
            publish_failures("s1", ())

    def bare() -> None:
        for _ in range(_APPENDS):
            pass

    hooks, loop = alternate((appends, bare), _ROUNDS)
    cost = _each(hooks.best - loop.best, hooks.median - loop.median, _APPENDS)
    return [Row("signals and meters of an append, nothing attached", cost, "", "", "under 0.3 µs")]


def _instruments(journal: Journal) -> list[Row]:
    records = [record for batch in read_batches(Walk(journal.directory)) for record in batch]
    spans = TurnFold("counted").feed_many(records)
    provider = MeterProvider([InMemoryMetricReader()])
    ours, older, counted = alternate(
        (
            partial(TurnInstruments(provider).observe_spans, spans, exemplar=True),
            partial(TurnInstruments(provider, legacy=True).observe_spans, spans, exemplar=True),
            partial(Metrics(CollectorRegistry()).observe_spans, spans, exemplar=True),
        ),
        _ROUNDS,
    )
    provider.shutdown()
    beside = f"Prometheus: {_each(counted.best, counted.median, len(records))}"
    return [
        Row("instruments of the SDK, spans of a record", _each(ours.best, ours.median, len(records)), beside),
        Row("the same, with the older ones", _each(older.best, older.median, len(records))),
    ]


class _Nowhere(LogRecordExporter):
    """Exports to nobody."""

    def export(self, batch: Sequence[ReadableLogRecord]) -> LogRecordExportResult:
        """Take it."""
        del batch
        return LogRecordExportResult.SUCCESS

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits."""
        del timeout_millis
        return True

    def shutdown(self) -> None:
        """End."""


def _scrapes(journal: Journal) -> list[Row]:
    rows: list[Row] = []
    for what, tools, errors, required in (
        ("the whole catalogue, a journal counted", 0, 0, "under 5 ms"),
        (f"the same, {_BUSY_TOOLS} tools, {_BUSY_ERRORS} errors more", _BUSY_TOOLS, _BUSY_ERRORS, ""),
        ("the same, all names there can be", 200, 200, ""),
    ):
        registry = _counted(journal, tools, errors)
        lines = generate_latest(registry).count(b"\n")
        works = [partial(_scrape, generate, registry) for generate in (generate_latest, _openmetrics)]
        text, openmetrics = alternate(works, _ROUNDS)
        rows.append(
            Row(
                f"`generate_latest`, {what}: {lines:,} lines",
                _scrape_time(text),
                f"OpenMetrics: {_scrape_time(openmetrics)}",
                "",
                required,
            )
        )
    return rows


def _counted(journal: Journal, tools: int, errors: int) -> CollectorRegistry:
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.watch_writers(unsynced=lambda: 0.1, failing=lambda: False)
    fold = TurnFold("counted")
    for batch in islice(read_batches(Walk(journal.directory)), 10):
        metrics.follow(fold).observe(batch, fold.feed_many(batch), exemplar=True)
    for number in range(tools):
        turn = {"family": "loop", "turn_id": "t", "ts": 1_785_800_000_000_000}
        result = {"item_type": "tool_result", "item_id": "i", "name": f"tool_{number}"}
        fold = TurnFold("tools")
        metrics.observe_spans(fold.feed({**turn, "id": 1, "type": "item_completed", "payload": result}))
    for number in range(errors):
        payload = {"reason": f"{{:error_{number}, 1}}"}
        metrics.observe_record({"family": "loop", "type": "error", "payload": payload})
    return registry


def _scrape(generate: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry) -> None:
    for _ in range(_SCRAPES):
        generate(registry)


def _scrape_time(times: Times) -> str:
    return f"{times.best / _SCRAPES * 1e3:.1f} ms ({times.median / _SCRAPES * 1e3:.1f} ms)"


def _each(best: float, median: float, number: int) -> str:
    return f"{best / number * 1e6:.2f} µs ({median / number * 1e6:.2f} µs)"


if __name__ == "__main__":
    command_line("metrics", run)
