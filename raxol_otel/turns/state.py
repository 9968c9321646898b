"""What a fold keeps between two records, in one view: what a snapshot holds."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raxol_otel.turns.counts import Counts
    from raxol_otel.turns.recent import Recent
    from raxol_otel.turns.span import Link
    from raxol_otel.turns.turn import Turn

__all__ = ["FoldState", "ObservedState", "OpenTurn"]


@dataclass(frozen=True, slots=True)
class OpenTurn:
    """An open turn, in nanoseconds since the epoch.

    `waits_since_ns` is the time of its last approval request where nothing but words came after it; else None. What an
    observed turn waits for is not in the journal.
    """

    start_ns: int
    waits_since_ns: int | None


@dataclass(frozen=True, slots=True)
class ObservedState:
    """Of the observations: open turns, finished calls and last turns by branch. The containers are the fold's own."""

    open: dict[str, Turn]
    finished: dict[str, set[str]]
    last: dict[str, Link]


@dataclass(slots=True)
class FoldState:
    """Of a whole fold. The containers are the fold's own; `now`, `offset` and `top` are copies."""

    now: int
    offset: int
    top: int
    open: dict[tuple[str, str], Turn]
    closed: Recent[tuple[str, str]]
    ids: Recent[str]
    last: dict[str, Link]
    counts: Counts
    observed: ObservedState
