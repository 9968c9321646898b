"""What is kept in memory of every session: what its journal was when it was read last, in few bytes."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import orjson

from raxol_otel.fleet.facts import SessionFacts
from raxol_otel.journal.files_seen import Seen

if TYPE_CHECKING:
    from raxol_otel.fleet.facts import FleetState
    from raxol_otel.fleet.followed import Followed
    from raxol_otel.journal.lock import WriterState

__all__ = ["Entry"]


@dataclass(slots=True)
class Entry:
    """One session, by its path below the sessions directory; see `SessionFacts` for what the fields say.

    `open_turns` are the starts of open turns, and since when they wait for an approval, in nanoseconds since the epoch.
    """

    where: str
    state: FleetState = "healthy"
    is_behind_head: bool = False
    cause: str = ""
    place: str = ""
    error: str = ""
    last_offset: int = 0
    head_offset: int | None = None
    size_bytes: int = 0
    segments: int = 0
    since: float = 0.0
    has_more: bool = False
    seen: Seen = field(default_factory=Seen)
    open_turns: tuple[tuple[int, int | None], ...] = ()
    writer: WriterState = "none"

    def take(self, followed: Followed, now: float) -> bool:
        """Take over what a reading has found; says whether the journal is damaged in a new way."""
        tail, fold = followed.tail, followed.fold
        cause, place = "", ""
        if tail.damage is not None:
            damage = tail.damage
            cause, place = damage.cause, f"{damage.place} line {damage.line}, byte {damage.byte}"
        is_new = bool(cause) and (cause, place) != (self.cause, self.place)
        self._be(tail.state, now, is_behind_head=tail.is_behind_head)
        self.cause, self.place, self.error = cause, place, ""
        self.last_offset, self.head_offset = tail.last_offset, tail.head_offset
        self.size_bytes, self.segments = tail.size_bytes, tail.segments
        self.has_more, self.seen = tail.has_more, tail.seen
        turns = fold.open_turn_facts() if fold is not None else []
        self.open_turns = tuple((turn.start_ns, turn.waits_since_ns) for turn in turns)
        return is_new

    def refuse(self, error: str, now: float) -> bool:
        """The journal cannot be read; says whether that is news."""
        is_new = self.error != error
        self._be("unreadable", now, is_behind_head=False)
        self.cause, self.place, self.error = "", "", error
        self.has_more, self.open_turns = False, ()
        return is_new

    def _be(self, state: FleetState, now: float, *, is_behind_head: bool) -> None:
        if (state, is_behind_head) != (self.state, self.is_behind_head) or not self.since:
            self.since = now
        self.state, self.is_behind_head = state, is_behind_head

    @property
    def is_trouble(self) -> bool:
        """Whether somebody should look at it."""
        return self.state in {"damaged", "unreadable"} or self.is_behind_head

    def facts(self, *, is_acknowledged: bool) -> SessionFacts:
        """As plain data for others."""
        return SessionFacts(
            name=self.where.rpartition("/")[2],
            where=self.where,
            state=self.state,
            is_behind_head=self.is_behind_head,
            cause=self.cause,
            place=self.place,
            error=self.error,
            last_offset=self.last_offset,
            head_offset=self.head_offset,
            since=self.since,
            is_acknowledged=is_acknowledged,
        )

    def saved(self) -> bytes:
        """As JSON."""
        head = self.head_offset
        return orjson.dumps(
            [
                *(self.state, self.is_behind_head, self.cause, self.place, self.error, str(self.last_offset)),
                *(None if head is None else str(head), self.size_bytes, self.segments, self.since, self.has_more),
                *(self.seen.saved(), self.open_turns),
            ]
        )

    @classmethod
    def restored(cls, where: str, saved: bytes) -> Entry:
        """From what `saved` gave. Raises `ValueError` for anything else."""
        try:
            state, behind, cause, place, error, *numbers, seen, turns = orjson.loads(saved)
            last, head, size, segments, since, more = numbers
            return cls(
                *(where, state, behind, cause, place, error, int(last), None if head is None else int(head)),
                *(size, segments, since, more, Seen.restored(seen)),
                tuple((start, waits) for start, waits in turns),
            )
        except (TypeError, KeyError) as error_met:
            raise ValueError("not a saved session") from error_met
