"""Records in, finished spans out. Pure: no clock, no I/O, no OpenTelemetry; the rules are in docs/reference/spans.md.

    for span in fold(iter_records(directory), directory.name): ...

The same fold serves live tracing and replay, so both give the same ids, names, times and attributes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, Self

from raxol_otel import catalogue as names
from raxol_otel.journal.tip import CONVERSATIONAL_TYPES, branch_of
from raxol_otel.turns import events, snapshot, values
from raxol_otel.turns.config import FoldConfig
from raxol_otel.turns.content import Content
from raxol_otel.turns.counts import Counts
from raxol_otel.turns.observed import ObservedFold
from raxol_otel.turns.plain import ITEM_RECORDS, is_plain_item
from raxol_otel.turns.quiet import Quiet
from raxol_otel.turns.recent import Recent
from raxol_otel.turns.span import Link, Span
from raxol_otel.turns.state import FoldState, OpenTurn
from raxol_otel.turns.turn import Turn, TurnIds, turn_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["CLOSED_TURNS_MAX", "OPEN_TURNS_MAX", "FoldConfig", "TurnFold"]

# How many closed turns a fold remembers, to tell a late record from a new turn. Bounds the memory of a long journal.
CLOSED_TURNS_MAX: Final = 16_384
# How many turns, over all branches, may be open at once; the oldest is closed as the journal's end would.
OPEN_TURNS_MAX: Final = 1_024
# How many branches' last turns are remembered for links.
BRANCHES_MAX: Final = 4_096

_OFFSET_BITS_MAX: Final = 3_400
_MICROSECONDS_MIN: Final = values.MICROSECONDS_MIN
_MICROSECONDS_MAX: Final = values.MICROSECONDS_MAX


class TurnFold:
    """The fold of one session's records, in the order of the journal.

    `created_at` is meta.json's, for records without a usable `ts`. `select` says for each turn that opens, by its id
    and its start in nanoseconds since the epoch, whether its spans are wanted. `on_open` is told of each turn that
    opens, observed ones too, and of the record that opened it. `closed_turns_max`: how many closed turns are
    remembered. `quiet`: no spans and no `on_open` until `wake`, as little work as possible, and `counts` that leave out
    some of `user`, `unfolded` and `unknown`, and the turn that is open until `wake` or `snapshot`.
    """

    def __init__(
        self,
        session_id: str,
        *,
        created_at: Any = None,
        config: FoldConfig | None = None,
        select: Callable[[str, int], bool] | None = None,
        on_open: Callable[[Turn, Mapping[str, Any]], object] | None = None,
        closed_turns_max: int | None = None,
        quiet: bool = False,
    ) -> None:
        self.session_id = session_id
        self.config = config or FoldConfig()
        self.counts = Counts()
        self._now = values.time_ns(created_at) or 0
        self._open: dict[tuple[str, str], Turn] = {}
        self._closed: Recent[tuple[str, str]] = Recent(closed_turns_max or CLOSED_TURNS_MAX)
        # Span ids of the turns that were opened: a record that comes twice must not give one id to two spans.
        self._ids: Recent[str] = Recent(self._closed.limit)
        self._last: dict[str, Link] = {}
        self._current: Turn | None = None
        self._offset = 0
        # The highest offset that opened a turn of the loop.
        self._top = 0
        self._select = select
        self._on_open = on_open
        self._out: list[Span] = []
        # Where spans go; None while none are made.
        self._sink = None if quiet else self._out
        told = None if quiet else on_open
        self._observed = ObservedFold(self.config, self._sink, self.counts, self._ids, select, told)
        self._quiet = Quiet(self._state(), session_id, select, self._fold_for, self._make_room) if quiet else None
        self._boundaries = {
            "turn_completed": self._turn_completed,
            "turn_canceled": self._turn_canceled,
            "error": self._error,
            "approval_requested": self._approval,
        }

    @classmethod
    def restore(
        cls,
        data: bytes,
        *,
        session_id: str,
        created_at: Any = None,
        config: FoldConfig | None = None,
        select: Callable[[str, int], bool] | None = None,
        on_open: Callable[[Turn, Mapping[str, Any]], object] | None = None,
        closed_turns_max: int | None = None,
        quiet: bool = False,
    ) -> Self:
        """The fold that `snapshot` was taken of. `closed_turns_max`: None means as many as before.

        The turns that are open are wanted as they were; `select` and `on_open` hear of later ones. Raises `ValueError`
        for what is no snapshot, or one of another version, session or configuration.
        """
        fold = cls(session_id, created_at=created_at, config=config, select=select, on_open=on_open, quiet=quiet)
        state = fold._state() if fold._quiet is None else fold._quiet.state
        snapshot.load(data, state, fold.config, session_id, fold._sink, closed_turns_max)
        fold._now, fold._offset, fold._top = state.now, state.offset, state.top
        return fold

    def snapshot(self) -> bytes:
        """All that the fold keeps, for `restore`. Whether it is quiet is not kept."""
        self._settle()
        return snapshot.dump(self._state(), self.config, self.session_id)

    def _state(self) -> FoldState:
        observed = self._observed
        now, offset, top = self._now, self._offset, max(self._top, observed.top)
        return FoldState(now, offset, top, self._open, self._closed, self._ids, self._last, self.counts, observed.state)

    def wake(self) -> None:
        """From now on a quiet fold gives the spans of what finishes: open turns whole, of their items the rest."""
        self._settle()
        self._quiet, self._sink = None, self._out
        self._observed.wake(self._out, self._on_open)
        for turn in self._open.values():
            turn.out = self._out if turn.wanted else None

    def _settle(self) -> None:
        if self._quiet is not None:
            self._quiet.settle()

    def _fold_for(self, state: FoldState, records: Sequence[Mapping[str, Any]]) -> None:
        if len(self._last) > BRANCHES_MAX:
            del self._last[next(iter(self._last))]
        self._now, self._offset, self._top = state.now, state.offset, state.top
        self._fold(records)
        state.now, state.offset, state.top = self._now, self._offset, max(self._top, self._observed.top)

    def _make_room(self) -> bool:
        for other in [other for other in self._open if other[0] == "main"]:
            self._end_unfinished(other)
        return len(self._open) < OPEN_TURNS_MAX

    @property
    def open_turns(self) -> int:
        """How many turns are open, of those that are wanted."""
        return len(self.open_span_ids())

    def open_span_ids(self) -> set[str]:
        """The span ids of the open turns, of those that are wanted."""
        return {turn.span_id for turn in self._wanted()}

    def open_turn_facts(self) -> list[OpenTurn]:
        """When the open turns began and since when they wait, of those that are wanted; observed turns come last."""
        return [OpenTurn(turn.start_ns, turn.waits_ns) for turn in self._wanted()]

    def _wanted(self) -> list[Turn]:
        self._settle()
        return [turn for turn in (*self._open.values(), *self._observed.state.open.values()) if turn.wanted]

    @property
    def last_ns(self) -> int:
        """The time of the last record, in nanoseconds since the epoch."""
        return self._now

    def feed(self, record: Mapping[str, Any]) -> list[Span]:
        """Fold one record; the spans that it finished, children before their turn."""
        if self._quiet is not None:
            return self.feed_many([record])
        self.counts.records += 1
        self._one(record)
        return self._taken()

    def feed_many(self, records: Sequence[Mapping[str, Any]]) -> list[Span]:
        """Fold many records; the spans that they finished."""
        self.counts.records += len(records)
        if self._quiet is None:
            self._fold(records)
        else:
            self._quiet.feed(records)
            self._now = self._quiet.state.now
        return self._taken()

    def _fold(self, records: Sequence[Mapping[str, Any]]) -> None:
        for record in records:
            turn = self._current
            if turn is None or not is_plain_item(record, turn):
                self._one(record)
                continue
            # What _one does, for an item's record of the turn that the last record belonged to: most records are.
            turn.last_type = kind = record["type"]
            self._offset = turn.last_offset = offset = record["id"]
            self._now = turn.last_ns = now = record["ts"] * 1000
            if kind == "item_started":
                turn.item_started(offset, now, record["payload"])
            else:
                counted = turn.item_completed(offset, now, record["payload"])
                if counted is not None:
                    self.counts.note_item(counted)

    def close(self, *, hold_open: bool = False) -> list[Span]:
        """The journal's end: the spans of the turns still open.

        `hold_open`: they may still be written to, so they are dropped without a span.
        """
        self._settle()
        if hold_open:
            self._open.clear()
            self._current = None
            self._observed.drop()
        for key in list(self._open):
            self._end_unfinished(key)
        self._observed.close()
        return self._taken()

    def _taken(self) -> list[Span]:
        spans = self._out[:]
        self._out.clear()
        return spans

    def _one(self, record: Mapping[str, Any]) -> None:
        stored = record.get("ts")
        if type(stored) is int and _MICROSECONDS_MIN <= stored < _MICROSECONDS_MAX:
            self._now = now = stored * 1000
        else:
            self._now = now = values.time_ns(stored) or self._now
        offset = record.get("id")
        # An integer that no journal can hold is no offset.
        if type(offset) is not int or offset.bit_length() > _OFFSET_BITS_MAX:
            offset = self._offset + 1
        self._offset = offset
        turn_id = record.get("turn_id")
        kind = record.get("type")
        if (
            turn_id is None
            or record.get("family") != "loop"
            or ("kind" in record and record["kind"] != "event")
            or ("tier" in record and record["tier"] != "durable")
            or type(kind) is not str
            or kind not in CONVERSATIONAL_TYPES
        ):
            self._unfolded(record, offset, now)
            return
        branch = branch_of(record) if "branch_id" in record else "main"
        key = (branch, turn_id if type(turn_id) is str else values.text_of(turn_id))
        turn = self._turn_of(record, kind, key, offset, now)
        if turn is None:
            return
        turn.last_type = kind
        turn.last_ns = now
        turn.last_offset = max(turn.last_offset, offset)
        if "provenance" in record and values.as_mapping(record["provenance"]).get("trust") == "tainted":
            turn.tainted = True
        payload = record.get("payload")
        payload = values.as_mapping(payload)
        self._current = turn if branch == "main" else None
        if kind in ITEM_RECORDS:
            self._item(turn, kind, offset, now, payload)
        elif kind != "turn_started":
            self._boundaries[kind](turn, key, now, payload)

    def _item(self, turn: Turn, kind: str, offset: int, now: int, payload: Mapping[str, Any]) -> None:
        if kind == "item_started":
            turn.item_started(offset, now, payload)
            return
        counted = turn.item_completed(offset, now, payload)
        if counted is not None:
            self.counts.note_item(counted)

    # -- opening and closing

    def _turn_of(
        self, record: Mapping[str, Any], kind: str, key: tuple[str, str], offset: int, now: int
    ) -> Turn | None:
        """The turn that the record belongs to, opened where it must be; None for a record that is only counted."""
        turn = None if kind == "turn_started" else self._open.get(key)
        if turn is not None:
            if offset <= turn.last_offset and offset in turn.child_offsets:
                self.counts.duplicate += 1
                return None
            return turn
        if kind != "turn_started" and key in self._closed:
            self.counts.late += 1
            return None
        stored = record.get("session_id")
        session_id = stored if type(stored) is str and stored else self.session_id
        ids = turn_ids(session_id, key[0], offset, record.get("ts"))
        if ids.span_id in self._ids:
            self.counts.duplicate += 1
            return None
        self._ids.add(ids.span_id)
        self._top = max(self._top, offset)
        if kind == "turn_started":
            turn = self._turn_started(record, key, offset, now, session_id, ids)
        else:
            turn = self._opened(key, offset, now, session_id, ids)
            turn.synthesized = True
        if self._on_open is not None and self._quiet is None:
            self._on_open(turn, record)
        return turn

    def _turn_started(  # noqa: PLR0917 - once a turn
        self, record: Mapping[str, Any], key: tuple[str, str], offset: int, now: int, session_id: str, ids: TurnIds
    ) -> Turn:
        for other in [other for other in self._open if other[0] == key[0]]:
            self._end_unfinished(other)
        turn = self._opened(key, offset, now, session_id, ids)
        joined = values.parse_traceparent(record.get("traceparent"))
        if joined is not None:
            turn.trace_id, turn.parent_id = joined
            self._last[key[0]] = Link(turn.trace_id, turn.span_id)
        payload = values.as_mapping(record.get("payload"))
        turn.note_model(payload)
        if turn.content is not None:
            turn.content.ask(payload.get("prompt", payload.get("message")), self.config.content_chars_max)
        return turn

    def _opened(self, key: tuple[str, str], offset: int, now: int, session_id: str, ids: TurnIds) -> Turn:
        if len(self._open) >= OPEN_TURNS_MAX:
            self._end_unfinished(next(iter(self._open)))
        self._closed.discard(key)
        turn = Turn(self.config, session_id, key[0], key[1], offset, now, *ids[:2], "", ids.prefix, self._sink)
        if self._select is None or self._select(key[1], now):
            self.counts.turns += 1
        else:
            turn.wanted, turn.out = False, None
        turn.link = self._last.pop(key[0], None)
        turn.last_offset = offset
        if self.config.capture_content:
            turn.content = Content()
        self._last[key[0]] = Link(ids.trace_id, ids.span_id)
        if len(self._last) > BRANCHES_MAX:
            del self._last[next(iter(self._last))]
        self._open[key] = turn
        return turn

    def _end(self, key: tuple[str, str], outcome: str, end_ns: int, error_type: str | None = None) -> None:
        turn = self._open.pop(key)
        if turn is self._current:
            self._current = None
        self.counts.unknown["item_type"] += turn.close(outcome, end_ns, error_type)
        self._closed.add(key)

    def _end_unfinished(self, key: tuple[str, str]) -> None:
        turn = self._open[key]
        self._end(key, "completed" if turn.last_type == "turn_completed" else "incomplete", turn.last_ns)

    # -- records of an open turn, items apart

    def _turn_completed(self, turn: Turn, key: tuple[str, str], now: int, payload: Mapping[str, Any]) -> None:
        turn.note_completed(payload)
        if payload.get("final") is True:
            self._end(key, "completed", now)

    def _turn_canceled(self, _turn: Turn, key: tuple[str, str], now: int, _payload: Mapping[str, Any]) -> None:
        self._end(key, "canceled", now)

    def _error(self, turn: Turn, key: tuple[str, str], now: int, payload: Mapping[str, Any]) -> None:
        turn.waits_ns = None
        name = values.error_name(payload.get("reason", payload.get("error")))
        turn.event(names.EVENT_EXCEPTION, now, {names.EXCEPTION_TYPE: name})
        if name != "unmapped_acp_update":
            self._end(key, "error", now, name)

    def _approval(self, turn: Turn, _key: tuple[str, str], now: int, payload: Mapping[str, Any]) -> None:
        turn.waits_ns = now
        turn.event(names.EVENT_APPROVAL, now, events.of_approval(payload))

    # -- everything else

    def _unfolded(self, record: Mapping[str, Any], offset: int, now: int) -> None:
        kind, family = record.get("kind", "event"), record.get("family")
        if kind == "event" and family == "meta" and record.get("type") == "observed":
            stored = record.get("session_id")
            session_id = stored if type(stored) is str and stored else self.session_id
            if not self._observed.feed(record, session_id, branch_of(record), offset, now):
                self.counts.unfolded += 1
                self.counts.unknown["type"] += 1
            return
        self.counts.note_unfolded(kind, family, record.get("type"))
        if kind == "checkpoint":
            self._checkpoint(record, now)

    def _checkpoint(self, record: Mapping[str, Any], now: int) -> None:
        branch = branch_of(record)
        for key in reversed(self._open):
            if key[0] == branch:
                self._open[key].event(names.EVENT_CHECKPOINT, now, events.of_checkpoint(record))
                return
