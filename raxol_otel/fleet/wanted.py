"""Which spans an endpoint is given."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Wanted"]

_RATIO_BITS: Final = 64


@dataclass(frozen=True, slots=True)
class Wanted:
    """A choice of turns. The default is all of them.

    `since`: the earliest start, in nanoseconds since the epoch. `sample`: this share of the traces, from 0 to 1, chosen
    by the trace id as the SDK's `TraceIdRatioBased` does, so that both choose the same ones. `sessions`: patterns of
    `fnmatch`, one of which the session's name matches. `outcomes`: of the turn, with which its children go.
    """

    since: int | None = None
    sample: float = 1.0
    sessions: tuple[str, ...] = ()
    outcomes: frozenset[str] = frozenset()

    def has_session(self, directory: Path) -> bool:
        """Whether the turns of this session are wanted at all."""
        return not self.sessions or any(fnmatchcase(directory.name, pattern) for pattern in self.sessions)

    def has_turn(self, _turn_id: str, start_ns: int) -> bool:
        """Whether a turn that begins then is wanted."""
        return self.since is None or start_ns >= self.since

    def has_trace(self, trace_id: str) -> bool:
        """Whether the trace is among those sampled."""
        return self.sample >= 1 or int(trace_id[16:], 16) < round(self.sample * 2**_RATIO_BITS)
