"""Turns that nobody asked for, passed over: a turn whose records are plain leaves only what later records may ask for.

The records of the open turn are held back, and dropped when it ends. What is looked at is what could make a record do
something else: its type, turn, branch and offset, and all of a record that begins or ends a turn. Where there is a
doubt, what is held back is folded as usual. Of the turns passed over not all is counted: no message of the user's, no
unknown item, and no item's record that does not fold (one of another kind, family or tier).
"""

from __future__ import annotations

from collections import deque
from operator import length_hint
from typing import TYPE_CHECKING, Any, Final

from raxol_otel import catalogue as names
from raxol_otel.turns import values
from raxol_otel.turns.span import Link
from raxol_otel.turns.turn import turn_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raxol_otel.turns.state import FoldState

__all__ = ["HELD_RECORDS_MAX", "Quiet"]

# How many records of an open turn are held back; with more of them the turn is folded as usual. Bounds the memory.
HELD_RECORDS_MAX: Final = 8_192

_INERT: Final = names.QUIET_TYPES | {"item_delta"}
_INT64: Final = 2**63
_NOBODY: Final = object()
_MICROSECONDS_MIN: Final = values.MICROSECONDS_MIN
_MICROSECONDS_MAX: Final = values.MICROSECONDS_MAX
_BOUNDARIES: Final = ("turn_completed", "turn_started", "turn_canceled", "error", "approval_requested")


class Quiet:
    """What is passed over of one session.

    `state.now`, `.offset` and `.top` are the fold's, also where it is here that they change. `fold` folds records as
    usual; `make_room` ends the open turns of the main branch and says whether one more may be opened.
    """

    def __init__(
        self,
        state: FoldState,
        session_id: str,
        select: Callable[[str, int], bool] | None,
        fold: Callable[[FoldState, Sequence[Mapping[str, Any]]], None],
        make_room: Callable[[], bool],
    ) -> None:
        self.state = state
        self._session_id = session_id
        self._select = select
        self._fold = fold
        self._make_room = make_room
        # The turn that is held back: its id, its first record, and the records of it before this batch.
        self._turn_id: Any = _NOBODY
        self._start: Mapping[str, Any] = {}
        self._held: list[Mapping[str, Any]] = []
        self._inert = 0
        # Of turns that are over, to be noted soon: the first record, and how many inert records there were.
        self._over: list[tuple[Mapping[str, Any], int]] = []
        # Of turns passed over: what their ids are made of (session, offset, ts) and the trace that was joined.
        self._passed: deque[tuple[str, int, Any, Any]] = deque()

    def feed(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Pass over what can be passed over; the rest is folded."""
        at = 0
        while at < len(records):
            at = self._skip(records, at)
            if at == len(records):
                break
            self.settle()
            # A turn that has been begun to be folded is folded to its end.
            until = at + 1
            while until < len(records) and records[until].get("type") != "turn_started":
                until += 1
            self._fold(self.state, records[at:until])
            at = until
        if len(self._held) > HELD_RECORDS_MAX:
            self.settle()

    def _skip(self, records: Sequence[Mapping[str, Any]], at: int) -> int:
        """Pass over records from there on, or hold them back; the place of the first that must be folded."""
        rest = records[at:] if at else records
        until = len(rest)
        # How far this has come is asked for at the end, instead of counted for each record.
        ahead = iter(rest)
        turn_id, last = self._turn_id, self.state.offset
        for record in ahead:
            try:
                kind = record["type"]
                if (
                    (kind == "item_completed" or kind == "item_started")  # noqa: PLR1714 - faster than a set
                    and record["turn_id"] == turn_id
                    and "branch_id" not in record
                ):
                    offset = record["id"]
                    if offset == last + 1 or (type(offset) is int and last < offset < _INT64):
                        last = offset
                        continue
            except KeyError:
                kind = None
            if not self._passes(kind, record, last):
                until -= length_hint(ahead) + 1
                break
            turn_id, last = self._turn_id, record["id"]
        if self._over:
            self._note_over()
        if until:
            self._note_end(rest, until)
        return at + until

    def _passes(self, kind: Any, record: Mapping[str, Any], last: int) -> bool:
        """Whether a record that is none of an item can be passed over: what it does to the held turn is done here."""
        offset = record.get("id")
        if type(offset) is not int or not last < offset < _INT64 or record.get("family") != "loop" or "kind" in record:
            return False
        if kind in _BOUNDARIES:
            return self._bounds(kind, offset, record)
        if type(kind) is not str or kind not in _INERT:
            return False
        if self._turn_id is _NOBODY:
            self.state.counts.unfolded += 1
        else:
            self._inert += 1
        return True

    def _bounds(self, kind: str, offset: int, record: Mapping[str, Any]) -> bool:
        if "branch_id" in record or record.get("tier") != "durable":
            return False
        if kind == "turn_started":
            return self._begins(offset, record)
        if record.get("turn_id") != self._turn_id:
            return False
        if _ends(kind, record):
            self._end()
        return True

    def _begins(self, offset: int, record: Mapping[str, Any]) -> bool:
        turn_id, ts, state = record.get("turn_id"), record.get("ts"), self.state
        if type(turn_id) is not str or type(ts) is not int or not _MICROSECONDS_MIN <= ts < _MICROSECONDS_MAX:
            return False
        # An offset that opened a turn before may do so no more: the fold looks closer.
        if offset <= state.top:
            return False
        if self._turn_id is not _NOBODY:
            self._end()
        if state.open and not self._make_room():
            return False
        state.top = offset
        self._turn_id, self._start = turn_id, record
        return True

    def _end(self) -> None:
        self._over.append((self._start, self._inert))
        self._turn_id, self._inert = _NOBODY, 0

    def _note_over(self) -> None:
        """Remember of the turns that are over what later records may ask for."""
        state, select, passed = self.state, self._select, self._passed
        for start, inert in self._over:
            turn_id, stored, ts = start["turn_id"], start.get("session_id"), start["ts"]
            if select is None or select(turn_id, ts * 1000):
                state.counts.turns += 1
            state.counts.unfolded += inert
            state.closed.add(("main", turn_id))
            session_id = stored if type(stored) is str and stored else self._session_id
            passed.append((session_id, start["id"], ts, start.get("traceparent")))
        while len(passed) > state.ids.limit:
            passed.popleft()
        if self._over:
            # What is held back of earlier batches is of the first of them.
            self._over, self._held = [], []

    def _note_end(self, rest: Sequence[Mapping[str, Any]], until: int) -> None:
        """Keep what the records before that place say to the next ones."""
        state = self.state
        # An offset may be a float or a boolean that equals the right one.
        state.offset = int(rest[until - 1]["id"])
        for place in range(until - 1, -1, -1):
            now = values.time_ns(rest[place].get("ts"))
            if now:
                state.now = now
                break
        if self._turn_id is not _NOBODY:
            begin = 0
            if not self._held:
                begin = until - 1
                while rest[begin] is not self._start:
                    begin -= 1
            self._held += rest[begin:until]

    def settle(self) -> None:
        """Let the fold know all of the turns passed over, and fold what is held back."""
        state = self.state
        for session_id, offset, ts, traceparent in self._passed:
            ids = turn_ids(session_id, "main", offset, ts)
            state.ids.add(ids.span_id)
            joined = values.parse_traceparent(traceparent)
            state.last.pop("main", None)
            state.last["main"] = Link(joined[0] if joined else ids.trace_id, ids.span_id)
        self._passed.clear()
        held = self._held
        self._turn_id, self._held, self._inert = _NOBODY, [], 0
        self._fold(state, held)


def _ends(kind: str, record: Mapping[str, Any]) -> bool:
    """Whether a record of a turn, none of an item, closes it."""
    payload = values.as_mapping(record.get("payload"))
    if kind == "turn_completed":
        return payload.get("final") is True
    if kind == "error":
        return values.error_name(payload.get("reason", payload.get("error"))) != "unmapped_acp_update"
    return kind == "turn_canceled"
