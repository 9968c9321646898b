"""One open journal followed: its records through the fold, and what comes of them to the tracer, logs and metrics.

The turn's span starts when the turn does, its children are made when they are complete; a moment later where a journal
is written fast, see `raxol_otel.live.waiting`. What the journal held before goes through the fold as well, and out of
it comes nothing but the turns that are still open: whoever wrote the rest has exported it, or a replay will.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as api_context
from opentelemetry.trace import (
    INVALID_SPAN,
    NonRecordingSpan,
    SpanContext,
    TraceFlags,
    get_current_span,
    set_span_in_context,
)

from raxol_otel import catalogue as names
from raxol_otel.canonical import is_mapping
from raxol_otel.contract import Event
from raxol_otel.journal.layout import read_meta
from raxol_otel.live.current import forget, outside
from raxol_otel.live.tracing import NOWHERE
from raxol_otel.live.waiting import PATIENCE_SECONDS, Waiting
from raxol_otel.turns import TurnFold, values

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from opentelemetry.context import Context
    from opentelemetry.trace import Span as LiveSpan

    from raxol_otel.live.counting import LiveMetrics
    from raxol_otel.live.instruments import TurnInstruments
    from raxol_otel.live.tracing import Tracing
    from raxol_otel.live.turn_events import TurnEvents
    from raxol_otel.metrics import Following
    from raxol_otel.turns import FoldConfig, Span
    from raxol_otel.turns.span import Attributes, SpanEvent
    from raxol_otel.turns.turn import Turn

__all__ = ["JournalTap", "Sinks"]

# Contexts of turns that were stamped and not seen again: their write failed, again and again.
_CONTEXTS_MAX: Final = 1_024
_SAID: Final = frozenset({"approval_requested", "error"})


@dataclass(frozen=True, slots=True)
class Sinks:
    """Where everything goes."""

    tracing: Tracing
    events: TurnEvents
    instruments: TurnInstruments
    metrics: LiveMetrics | None
    config: FoldConfig


@dataclass(slots=True)
class _Open:
    """An open turn. `span` once it is started, `context` holds it; `said` are the events that were told of."""

    turn: Turn
    outer: Context
    span: LiveSpan | None = None
    context: Context = field(default_factory=lambda: NOWHERE)
    said: int = 0


class JournalTap:
    """See `raxol_otel.journal.tap.Tap`."""

    def __init__(self, directory: Path, meta: Mapping[str, Any], sinks: Sinks) -> None:
        self.key = str(directory)
        self._directory = directory
        self._created_at = meta.get("created_at")
        self._sinks = sinks
        self._fold: TurnFold | None = None
        self._counting: Following | None = None
        self._open: dict[str, _Open] = {}
        # Those of turns that begin, from the thread that appends to the one that tells.
        self._contexts: dict[int, Context] = {}
        self._waiting = Waiting(self._tell)
        self._lock = self._waiting.lock
        self._is_begun = self._is_closed = False

    # -- in the appending thread

    def context(self, events: Sequence[Any]) -> Context | None:
        """What a turn that begins here is part of."""
        for event in events:
            kind = event.type if isinstance(event, Event) else event.get("type") if is_mapping(event) else None
            if kind == "turn_started":
                return outside(self.key, api_context.get_current()) or None
        return None

    def stamp(self, record: dict[str, Any], context: Context | None) -> None:
        """Write down which span a turn begins in, unless the caller has said it."""
        if record.get("type") != "turn_started" or not _opens(record):
            return
        # What a write that failed has left under this offset.
        self._contexts.pop(record["id"], None)
        if context is None:
            return
        if len(self._contexts) >= _CONTEXTS_MAX:
            self._contexts.pop(next(iter(list(self._contexts))), None)
        self._contexts[record["id"]] = context
        if record.get("traceparent") is None and self._sinks.tracing.is_on:
            active = get_current_span(context).get_span_context()
            if active.is_valid:
                flags = active.trace_flags & TraceFlags.SAMPLED
                record["traceparent"] = f"00-{active.trace_id:032x}-{active.span_id:016x}-{flags:02x}"

    # -- one at a time, in order

    def seen(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Prime the fold."""
        with self._lock:
            for span in self._folded(records):
                if span.role == "turn":
                    self._open.pop(span.span_id, None)

    def appended(self, records: Sequence[dict[str, Any]]) -> None:
        """Tell of what was written, now or soon."""
        if not self._is_closed:
            self._waiting.put(records)

    def flush(self) -> None:
        """Tell of what waits."""
        self._waiting.flush()

    def closed(self) -> None:
        """Nothing comes any more. Turns that are open stay so: whoever opens the journal next ends them."""
        self._is_closed = True
        self._waiting.flush()
        # Another thread may be stuck in telling: then it goes on with what there is.
        if self._lock.acquire(timeout=PATIENCE_SECONDS):
            self._open.clear()
            self._lock.release()
        forget(self)

    # -- for use_turn

    def current(self, branch: str | None) -> LiveSpan | None:
        """The span of the turn that began last (of that branch), of those still open."""
        self._waiting.flush()
        if not self._lock.acquire(timeout=PATIENCE_SECONDS):
            return None
        try:
            for one in reversed(list(self._open.values())):
                if branch is None or one.turn.branch == branch:
                    return self._start(one).span
            return None
        finally:
            self._lock.release()

    # -- under the lock

    def _tell(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Tell of records that were written; of a turn's end before the next one's start."""
        if not self._is_begun:
            self._begin()
        first = 0
        for index, record in enumerate(records):
            if index > first and record.get("type") == "turn_started":
                self._tell_some(records[first:index])
                first = index
        self._tell_some(records[first:] if first else records)
        if self._counting is not None:
            self._counting.observe(records, ())
        if self._sinks.metrics is not None:
            self._sinks.metrics.settle()

    def _tell_some(self, records: Sequence[Mapping[str, Any]]) -> None:
        spans = self._folded(records)
        if self._open:
            for record in records:
                if record.get("type") in _SAID:
                    self._say_all()
                    break
        for span in spans:
            self._finished(span)

    # -- the fold

    def _folded(self, records: Sequence[Mapping[str, Any]]) -> list[Span]:
        fold = self._fold
        if fold is None:
            if self._created_at is None:  # a new journal's is written after it was opened
                self._created_at = (read_meta(self._directory) or {}).get("created_at")
            fold = self._fold = TurnFold(
                self._directory.name, created_at=self._created_at, config=self._sinks.config, on_open=self._opened
            )
        return fold.feed_many(records)

    def _begin(self) -> None:
        """Everything seen so far is somebody else's to count and to tell of."""
        self._is_begun = True
        for one in self._open.values():
            one.said = len(one.turn.events)
        if self._fold is None:
            self._folded(())
        if self._sinks.metrics is not None and self._fold is not None:
            self._counting = self._sinks.metrics.follow(self._fold)

    def _opened(self, turn: Turn, record: Mapping[str, Any]) -> None:
        stored = record.get("id")
        context = self._contexts.pop(stored, None) if type(stored) is int else None
        one = self._open[turn.span_id] = _Open(turn, _outer(turn, record, context))
        if self._is_begun:
            self._start(one)

    # -- what becomes of it

    def _start(self, one: _Open) -> _Open:
        """Start the turn's span, where somebody takes it by now."""
        if one.span is None:
            one.span = self._sinks.tracing.begin(one.turn.beginning(), one.outer)
            one.context = one.outer if one.span is None else set_span_in_context(one.span, one.outer)
        return one

    def _finished(self, span: Span) -> None:
        """Give a finished span to the tracer, and count it; an exemplar leads to it where it is exported."""
        sinks = self._sinks
        if span.role == "turn":
            one = self._open.pop(span.span_id, None)
            made = None if one is None else self._end(one, span)
        else:
            parent = self._open.get(span.parent_id)
            if parent is not None and parent.span is None:
                self._start(parent)
            made = sinks.tracing.whole(span, NOWHERE if parent is None else parent.context)
            if span.role == "item":  # nobody's metric
                return
        is_exported = made is not None and _is_exported(made, span)
        sinks.instruments.observe_span(span, exemplar=is_exported)
        if sinks.metrics is not None:
            sinks.metrics.observe_span(span, exemplar=is_exported)

    def _end(self, one: _Open, span: Span) -> LiveSpan | None:
        self._start(one)
        self._say(one, span.events)
        if one.span is not None:
            self._sinks.tracing.end(one.span, span)
        return one.span

    def _say(self, one: _Open, events: Sequence[SpanEvent]) -> None:
        if len(events) > one.said:
            turn = one.turn
            common: Attributes = {names.SESSION_ID: values.clean(turn.session_id)}
            if turn.turn_id is not None:
                common[names.TURN_ID] = values.clean(turn.turn_id)
            self._sinks.events.emit(events[one.said :], common, self._start(one).context)
            one.said = len(events)

    def _say_all(self) -> None:
        for one in list(self._open.values()):
            self._say(one, one.turn.events)


def _opens(record: Mapping[str, Any]) -> bool:
    """Whether a `turn_started` begins a turn, see docs/reference/spans.md."""
    return (
        record.get("family") == "loop"
        and record.get("turn_id") is not None
        and record.get("kind", "event") == "event"
        and record.get("tier", "durable") == "durable"
    )


def _outer(turn: Turn, record: Mapping[str, Any], context: Context | None) -> Context:
    """The context that a turn begins in: as the appending thread had it, but with the parent that is written down."""
    active = None if context is None else get_current_span(context).get_span_context()
    if not turn.parent_id:
        return NOWHERE if context is None else set_span_in_context(INVALID_SPAN, context)
    trace_id, span_id = int(turn.trace_id, 16), int(turn.parent_id, 16)
    if context is not None and active is not None and (active.trace_id, active.span_id) == (trace_id, span_id):
        return context
    flags = TraceFlags(int(str(record["traceparent"])[53:55], 16) & TraceFlags.SAMPLED)
    parent = SpanContext(trace_id, span_id, is_remote=True, trace_flags=flags)
    return set_span_in_context(NonRecordingSpan(parent), context or NOWHERE)


def _is_exported(made: LiveSpan, span: Span) -> bool:
    context = made.get_span_context()
    return bool(context.trace_flags & TraceFlags.SAMPLED) and context.span_id == int(span.span_id, 16)
