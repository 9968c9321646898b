"""What one look at a fleet has found: plain data, from which the page and the metrics are made."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

__all__ = ["FleetFacts", "FleetState", "SessionFacts"]

FleetState = Literal["healthy", "torn", "damaged", "unreadable"]


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """One session. `name` is its directory's, `where` its path below the sessions directory.

    `cause` and `place` (segment, line and byte) say what is damaged, `error` why it cannot be read. `is_behind_head`:
    HEAD names offset `head_offset`, but the last record is `last_offset`. `since` is when the state was first met, in
    seconds since the epoch. Texts hold no content of the journal.
    """

    name: str
    where: str
    state: FleetState
    is_behind_head: bool = False
    cause: str = ""
    place: str = ""
    error: str = ""
    last_offset: int = 0
    head_offset: int | None = None
    since: float = 0.0
    is_acknowledged: bool = False


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The whole fleet after one look. `troubles` are the damaged, unreadable and truncated sessions, newest first.

    `states` and `writers` count sessions by their state and writers by theirs; `is_ready` once the first look is done,
    until then `waiting_for` says what for. Times are in seconds since the epoch: `looked_at` is when the look ended,
    `oldest_turn_at` and `oldest_approval_at` since when the oldest is open or waited for, None when none is.
    `named` are the damaged sessions told by name, with their cause; `omitted` those beyond the bound, `acknowledged`
    those that an operator knows of. `troubles_omitted` are those beyond the bound of the list.
    """

    sessions_dir: str
    is_ready: bool
    waiting_for: str = ""
    looked_at: float = 0.0
    duration_seconds: float = 0.0
    states: dict[FleetState, int] = field(default_factory=dict[FleetState, int])
    writers: dict[str, int] = field(default_factory=dict[str, int])
    behind_head: int = 0
    size_bytes: int = 0
    segments: int = 0
    head_lag_records: int = 0
    open_turns: int = 0
    oldest_turn_at: float | None = None
    oldest_approval_at: float | None = None
    scan_errors: int = 0
    named: tuple[tuple[str, str], ...] = ()
    omitted: int = 0
    acknowledged: int = 0
    troubles: tuple[SessionFacts, ...] = ()
    troubles_omitted: int = 0
