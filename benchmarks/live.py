"""What following a journal costs: `python -m benchmarks.live`.

The loop of `benchmarks.writing`, one thread, `sync=True`, as it is and instrumented: with the SDK's tracer provider and
a batch processor whose spans go nowhere, and the Prometheus metrics that an instrumentor always has. On the clock, in
turns; beside it the processor's time, all threads of it, whose difference is what a record costs. Whatever waits, for
the instrumentor or the batch processor, is waited for.

The events are whole turns: those of `benchmarks.journals` (20 records of 350 bytes, seven spans), and others of 400
bytes and ten spans, nine messages each. In a further loop every record is a turn of its own, as no agent writes: two
spans a record, and a turn that is given up on. By hand: the loop itself makes the same spans, after the append that
completes them, by `start_span` and `end`, from attributes that are ready; nothing reads records, no metric counts.
"""

from __future__ import annotations

import time
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from opentelemetry.context import Context
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import set_span_in_context
from prometheus_client import CollectorRegistry

from benchmarks.common import Row, command_line, note, settled
from benchmarks.journals import make
from raxol_otel.canonical import encode
from raxol_otel.journal import iter_records, open_journal
from raxol_otel.live import JournalInstrumentor
from raxol_otel.turns import Span, TurnFold

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


class _Took(NamedTuple):
    """Seconds on the clock and of the processor, a record."""

    wall: float
    processor: float


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


def _standard(folder: Path) -> list[dict[str, Any]]:
    """Turns as the other benchmarks have them."""
    records = iter_records(make(folder / f"standard-{next(_names)}", _APPENDS).directory)
    return [{key: record[key] for key in record if key not in {"id", "schema_version"}} for record in records]


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


def _append(
    folder: Path,
    events: list[dict[str, Any]],
    *,
    after: Callable[[int], object] | None = None,
    at_last: Callable[[], object] | None = None,
) -> _Took:
    """Append them all; `after(N)` follows the append of the Nth. `at_last()` is part of what is measured."""
    with open_journal(f"live-{next(_names)}", base_dir=folder) as journal:
        journal.append(_event(0, -1, "idle"), sync=True)
        with settled():
            wall, start = time.perf_counter(), time.process_time()
            for number, event in enumerate(events):
                journal.append(dict(event), sync=True)
                if after is not None:
                    after(number)
            if at_last is not None:
                at_last()
            return _Took((time.perf_counter() - wall) / len(events), (time.process_time() - start) / len(events))


def _provider() -> TracerProvider:
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(_Nowhere(), max_queue_size=100_000))
    return provider


def _instrumented(folder: Path, events: list[dict[str, Any]], *, metered: bool = False) -> _Took:
    provider = _provider()
    meters = MeterProvider([InMemoryMetricReader()] if metered else [], shutdown_on_exit=False)
    more = {"meter_provider": meters} if metered else {}
    instrumentor = JournalInstrumentor()
    instrumentor.instrument(tracer_provider=provider, registry=CollectorRegistry(), **more)

    def at_last() -> None:
        instrumentor.flush()
        provider.force_flush()

    try:
        return _append(folder, events, at_last=at_last)
    finally:
        instrumentor.uninstrument()
        provider.shutdown()
        meters.shutdown()


def _by_hand(folder: Path, events: list[dict[str, Any]]) -> _Took:
    """The spans of the fold, in the same order and under the same parents, made in the loop."""
    fold = TurnFold("by-hand")
    begun: dict[int, str] = {}
    complete: list[list[Span]] = []
    for number, event in enumerate(events):
        spans = fold.feed({**event, "id": number})
        complete.append(spans)
        begun.update({span.offset: span.span_id for span in spans if span.role == "turn"})
    provider = _provider()
    tracer = provider.get_tracer("by-hand")
    nowhere = Context({"by": "hand"})
    open_turns: dict[str, tuple[Any, Context]] = {}

    def after(number: int) -> None:
        if number in begun:
            turn = tracer.start_span("invoke_agent", nowhere, start_time=events[number]["ts"] * 1000)
            open_turns[begun[number]] = turn, set_span_in_context(turn, nowhere)
        for span in complete[number]:
            if span.role == "turn":
                turn, _ = open_turns.pop(span.span_id)
                turn.set_attributes(span.attributes)
                turn.end(span.end_ns)
            else:
                _, inside = open_turns[span.parent_id]
                made = tracer.start_span(span.name, inside, attributes=span.attributes, start_time=span.start_ns)
                made.end(span.end_ns)

    try:
        return _append(folder, events, after=after, at_last=provider.force_flush)
    finally:
        provider.shutdown()


def _alternated(works: Sequence[Callable[[], _Took]]) -> list[list[_Took]]:
    took: list[list[_Took]] = [[] for _ in works]
    for number in range(_ROUNDS):
        for step in range(len(works)):
            index = (number + step) % len(works)
            took[index].append(works[index]())
    return took


def _more(ours: Sequence[_Took], bare: Sequence[_Took]) -> list[float]:
    """How many microseconds of the processor more a record took, in order. Of neighbours: the machine changes."""
    return sorted((our.processor - one.processor) * 1e6 for our, one in zip(ours, bare, strict=True))


def _row(what: str, ours: Sequence[_Took], bare: Sequence[_Took], required: str = "") -> Row:
    slower = sorted(our.wall / one.wall - 1 for our, one in zip(ours, bare, strict=True))
    more = _more(ours, bare)
    fastest, middle = (1 / of([one.wall for one in ours]) for of in (min, median))
    beside, beside_middle = (1 / of([one.wall for one in bare]) for of in (min, median))
    return Row(
        f"`append`, `sync=True`, one thread, instrumented: {what}",
        f"{fastest:,.0f}/s ({middle:,.0f}/s); {more[0]:.1f} µs ({median(more):.1f} µs) more CPU",
        f"bare: {beside:,.0f}/s ({beside_middle:,.0f}/s)",
        f"{slower[0]:+.1%} ({median(slower):+.1%})",
        required,
    )


def run(folder: Path, _records: int) -> list[Row]:
    """Measure all loops."""
    note("live: appending, bare and instrumented")
    standard, messages, alone = _standard(folder), _turns(), _alone()
    bare, ours, metered, by_hand = _alternated(
        (
            lambda: _append(folder, standard),
            lambda: _instrumented(folder, standard),
            lambda: _instrumented(folder, standard, metered=True),
            lambda: _by_hand(folder, standard),
        )
    )
    rows = [
        _row("turns of 20 records, 7 spans", ours, bare, "under 15 %, under 25 µs a record"),
        _row("the same, the SDK's meter provider as well", metered, bare),
    ]
    ratio, hand, both = (
        median(_more(ours, bare)) / median(_more(by_hand, bare)),
        _more(by_hand, bare),
        _more(ours, bare),
    )
    rows.append(
        Row(
            "the processor's time of a record, more than bare",
            f"{both[0]:.1f} µs ({median(both):.1f} µs)",
            f"the same spans by hand: {hand[0]:.1f} µs ({median(hand):.1f} µs)",
            f"({ratio:.2f})",
        )
    )
    for what, events in (("turns of 20 records, 10 spans", messages), ("every record a turn", alone)):
        bare, ours = _alternated((lambda: _append(folder, events), lambda: _instrumented(folder, events)))  # noqa: B023 - called in the loop
        rows.append(_row(what, ours, bare))
    return rows


if __name__ == "__main__":
    command_line("live", run)
