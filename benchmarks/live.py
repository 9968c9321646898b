"""What following a journal costs: `python -m benchmarks.live`.

The loop of `benchmarks.writing`, one thread, `sync=True`, lines of 400 bytes, twice: bare, and instrumented with the
SDK, a batch processor whose spans go nowhere, instruments and Prometheus metrics. On the clock, in turns; beside it the
processor's time of both, all threads of it, whose difference is what a record costs.

Its events are a whole turn each 20 records: begun, 9 messages begun and completed, completed. In the other loop every
record is a turn of its own, as no agent writes: two spans a record, and a turn that is given up on.
"""

from __future__ import annotations

import time
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry

from benchmarks.common import Row, command_line, note, settled
from raxol_otel.canonical import encode
from raxol_otel.journal import open_journal
from raxol_otel.live import JournalInstrumentor

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

__all__ = ["run"]

_ROUNDS: Final = 9
_APPENDS: Final = 2_000
_TURN: Final = 20
_LINE_BYTES: Final = 400
_names: Final = count(1)


class _Nowhere(SpanExporter):
    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Take them."""
        del spans
        return SpanExportResult.SUCCESS


def _event(number: int, turn: int, kind: str, **payload: Any) -> dict[str, Any]:
    own = {"v": 0, "session_id": "bench", "turn_id": f"turn-{turn}", "ts": 1_785_900_000_000_000 + number}
    event = {**own, "family": "loop", "type": kind, "tier": "durable", "payload": payload}
    event["provenance"] = {"source": "primary", "trust": "trusted"}
    payload["content"] = ""
    short = _LINE_BYTES - 1 - len(encode({**event, "id": 1_000, "schema_version": "1.2.0"}))
    payload["content"] = "x" * short
    return event


def _turns() -> list[dict[str, Any]]:
    """Whole turns."""
    events: list[dict[str, Any]] = []
    for number in range(_APPENDS):
        turn, step = divmod(number, _TURN)
        if step == 0:
            events.append(_event(number, turn, "turn_started"))
        elif step == _TURN - 1:
            events.append(_event(number, turn, "turn_completed", final=True, usage={"input_tokens": 9}))
        else:
            kind = "item_started" if step % 2 else "item_completed"
            events.append(
                _event(number, turn, kind, item_id=f"i{(step - 1) // 2}", item_type="message", role="assistant")
            )
    return events


def _alone() -> list[dict[str, Any]]:
    """Each a turn of its own, as in `benchmarks.writing`."""
    more = {"item_id": "i1", "item_type": "message", "role": "assistant"}
    return [_event(number, number, "item_completed", **more) for number in range(_APPENDS)]


def _append(folder: Path, events: list[dict[str, Any]]) -> tuple[float, float]:
    """Seconds on the clock and of the processor, a record."""
    with open_journal(f"live-{next(_names)}", base_dir=folder) as journal:
        journal.append(_event(0, -1, "idle"), sync=True)
        with settled():
            wall, start = time.perf_counter(), time.process_time()
            for event in events:
                journal.append(dict(event), sync=True)
            return (time.perf_counter() - wall) / len(events), (time.process_time() - start) / len(events)


def _instrumented(folder: Path, events: list[dict[str, Any]]) -> tuple[float, float]:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Nowhere(), max_queue_size=100_000))
    meters = MeterProvider([InMemoryMetricReader()], shutdown_on_exit=False)
    instrumentor = JournalInstrumentor()
    instrumentor.instrument(tracer_provider=provider, meter_provider=meters, registry=CollectorRegistry())
    try:
        return _append(folder, events)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()


def _row(folder: Path, what: str, events: list[dict[str, Any]], required: str) -> Row:
    works: tuple[Callable[[], tuple[float, float]], ...] = (
        lambda: _append(folder, events),
        lambda: _instrumented(folder, events),
    )
    took: tuple[list[tuple[float, float]], ...] = ([], [])
    for number in range(_ROUNDS):
        for step in range(2):
            index = (number + step) % 2
            took[index].append(works[index]())
    bare, ours = took
    # Of neighbours in time: the disk and the machine change from round to round.
    slower = sorted(our[0] / one[0] - 1 for our, one in zip(ours, bare, strict=True))
    more = sorted(our[1] - one[1] for our, one in zip(ours, bare, strict=True))
    fastest, middle = min(wall for wall, _ in ours), median(wall for wall, _ in ours)
    beside, beside_middle = min(wall for wall, _ in bare), median(wall for wall, _ in bare)
    return Row(
        f"`append`, `sync=True`, one thread, instrumented: {what}",
        f"{1 / fastest:,.0f}/s ({1 / middle:,.0f}/s); {more[0] * 1e6:.1f} µs ({median(more) * 1e6:.1f} µs) more CPU",
        f"bare: {1 / beside:,.0f}/s ({1 / beside_middle:,.0f}/s)",
        f"{slower[0]:+.1%} ({median(slower):+.1%})",
        required,
    )


def run(folder: Path, _records: int) -> list[Row]:
    """Measure both loops."""
    note("live: appending, bare and instrumented")
    return [
        _row(folder, "turns of 20 records", _turns(), "under 15 %, under 25 µs a record"),
        _row(folder, "every record a turn", _alone(), ""),
    ]


if __name__ == "__main__":
    command_line("live", run)
