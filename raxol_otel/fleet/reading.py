"""What was read of all sessions for one endpoint: spans on their way, positions to keep, turns that may never end."""

from __future__ import annotations

import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from raxol_otel import catalogue as names
from raxol_otel.errors import ExportError, JournalUnreadable
from raxol_otel.exporters.limits import Limits
from raxol_otel.exporters.replay import SETTLE_SECONDS
from raxol_otel.fleet.kept import Kept
from raxol_otel.fleet.leaving import Leaving
from raxol_otel.fleet.wanted import Wanted
from raxol_otel.journal.files_seen import NOTHING, Seen, look
from raxol_otel.journal.lock import probe
from raxol_otel.turns import FoldConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path

    from raxol_otel.fleet.state import FleetState
    from raxol_otel.turns import Span

__all__ = ["DeliveryOptions", "Known", "Reading"]

# A session is read in pieces of about so much, and so many of them before it is another's turn.
PIECE_BYTES: Final = 512 * 1024
PIECES: Final = 8
# So many sessions are kept in memory, and some more until their positions are kept.
HOT_MAX: Final = 1_024
HOT_SLACK: Final = 64
# A session's open turns are given up on when its writer is gone and nothing came for so long.
QUIET_SECONDS: Final = 2.0
# What could not be read is tried again, what changed while it was looked at is looked at again, after so many seconds.
RETRY_SECONDS: Final = 10.0
AGAIN_SECONDS: Final = 1.0


@dataclass(frozen=True, slots=True)
class DeliveryOptions:
    """What leaves, and how. `settle_seconds`: as for replay, of journals whose writer cannot be told."""

    wanted: Wanted = field(default_factory=Wanted)
    fold: FoldConfig = field(default_factory=FoldConfig)
    limits: Limits = field(default_factory=Limits)
    settle_seconds: float = SETTLE_SECONDS


@dataclass(slots=True)
class Known:
    """What is known of every session: what its files were when it was read last, and how much was."""

    seen: Seen = field(default_factory=Seen)
    consumed: int = 0
    has_more: bool = False
    error: str = ""
    last_ns: int = 0


class Reading:
    """The sessions, for one thread. `reader` is whose positions these are in the state; `notice` is told what is wrong.

    `buffer` holds the spans that may leave, each with its session; whoever delivers them takes them away.
    """

    def __init__(self, reader: str, state: FleetState, options: DeliveryOptions, notice: Callable[[str], None]) -> None:
        self.options = options
        self.buffer: list[tuple[str, Span]] = []
        self.known: dict[str, Known] = {}
        # Sessions whose damage the endpoint is to be told of.
        self.untold: set[str] = set()
        self.spans = self.bytes = 0
        self._kept = Kept(state, reader)
        self._notice = notice
        self._hot: OrderedDict[str, Leaving] = OrderedDict()
        self._dirty: set[str] = set()
        # Sessions with open turns, and when their writer is looked at next; those that are to be read again.
        self._open: dict[str, float] = {}
        self._again: dict[str, float] = {}

    # -- reading

    def read(self, where: str, path: Path, make_room: Callable[[], bool], *, is_told: bool = False) -> bool:
        """Read what is new in a session, some of it; whether there is more.

        `make_room` is called between pieces, and says whether to go on. `is_told`: it has changed, no need to look.
        Raises `ExportError` from `make_room`.
        """
        known = self.known.get(where) or Known()
        try:
            if not (is_told and where in self._hot) and not self._has_changed(path, known):
                return False
            leaving = self._leaving(where, path)
            if where not in self.known:
                # As it was kept: what has not changed since need not be kept again.
                self.known[where] = known
                known.seen, known.consumed = leaving.followed.tail.seen, leaving.followed.tail.consumed_bytes
            for _ in range(PIECES):
                before = leaving.followed.tail.consumed_bytes
                spans = leaving.read(PIECE_BYTES)
                self.bytes += max(leaving.followed.tail.consumed_bytes - before, 0)
                self._take(where, leaving, spans)
                known.has_more = leaving.followed.tail.has_more
                if not known.has_more or not make_room():
                    break
            self._note(where, known, leaving)
        except JournalUnreadable as error:
            if not path.exists():
                # Soon nobody will offer it any more.
                self._forget(where)
                return False
            self._refuse(where, known, f"{error.path.name}: {error.reason}")
        except ExportError:
            raise
        except Exception as error:  # noqa: BLE001 - one session never holds up the others
            self._refuse(where, known, f"{type(error).__name__}: {error}")
        return known.has_more and not known.error

    @staticmethod
    def _has_changed(path: Path, known: Known) -> bool:
        seen = look(path, known.seen)
        if seen.files[0] == NOTHING:
            return False
        return seen is not known.seen or known.has_more or bool(known.error) or not known.seen.is_settled

    def _note(self, where: str, known: Known, leaving: Leaving) -> None:
        tail = leaving.followed.tail
        if tail.consumed_bytes != known.consumed or not tail.seen.is_as(known.seen):
            self._dirty.add(where)
        known.seen, known.consumed, known.last_ns, known.error = tail.seen, tail.consumed_bytes, leaving.last_ns, ""
        if not tail.seen.is_settled:
            self._again[where] = time.monotonic() + AGAIN_SECONDS
        self._open.pop(where, None)
        if leaving.is_damaged:
            # Those that were read before it was found, and have not left.
            _mark(span for owner, span in self.buffer if owner == where)
            if leaving.untold() and where not in self.untold:
                self.untold.add(where)
                self._dirty.add(where)
                self._notice(f"{leaving.followed.tail.session_id} is {leaving.followed.tail.damage}")
            self._take(where, leaving, leaving.unfinished())
        elif leaving.is_open and not known.has_more:
            self._open[where] = time.monotonic() + QUIET_SECONDS

    def _take(self, where: str, leaving: Leaving, spans: list[Span]) -> None:
        if spans:
            self.spans += len(spans)
            self.options.limits.apply(spans)
            if leaving.is_damaged:
                _mark(spans)
            self.buffer += [(where, span) for span in spans]
            self._dirty.add(where)

    def _refuse(self, where: str, known: Known, reason: str) -> None:
        # What was read of it and not kept is read, and sent, again.
        self._hot.pop(where, None)
        self._dirty.discard(where)
        self._open.pop(where, None)
        if known.error != reason:
            known.error = reason
            self._notice(f"cannot read {where}: {reason}")
        self.known[where] = known
        self._again[where] = time.monotonic() + RETRY_SECONDS

    def _leaving(self, where: str, path: Path) -> Leaving:
        leaving = self._hot.pop(where, None)
        if leaving is None:
            options = self.options
            leaving = Leaving(path, options.wanted, options.fold, saved=self._kept.saved(where))
        self._hot[where] = leaving
        return leaving

    # -- turns without an end

    def next_at(self) -> float | None:
        """When, on the monotonic clock, something is to be looked at again; None when nothing is."""
        return min((*self._open.values(), *self._again.values()), default=None)

    def take_again(self) -> list[str]:
        """The sessions that are to be read again now."""
        now = time.monotonic()
        due = [where for where, at in self._again.items() if at <= now]
        for where in due:
            del self._again[where]
        return due

    def quiet(self) -> list[str]:
        """The sessions with open turns that nothing came of for a while."""
        now = time.monotonic()
        return [where for where, at in self._open.items() if at <= now]

    def look_after(self, where: str, path: Path, make_room: Callable[[], bool]) -> None:
        """Let a quiet session's open turns leave, if nobody is there to end them."""
        known = self.known.get(where)
        if known is None:
            self._open.pop(where, None)
            return
        self._open[where] = time.monotonic() + QUIET_SECONDS
        # Before the journal: a writer that leaves while we read leaves its last records behind.
        writer = probe(path).state
        is_settled = time.time() - known.last_ns / 1e9 >= self.options.settle_seconds
        if writer == "live" or (writer == "unknown" and not is_settled):
            return
        consumed = known.consumed
        self.read(where, path, make_room)
        if known.error or known.has_more or known.consumed != consumed or where not in self._open:
            return
        leaving = self._leaving(where, path)
        self._take(where, leaving, leaving.unfinished())
        self._dirty.add(where)
        del self._open[where]

    # -- what is told and kept

    def leaving(self, where: str, path: Path) -> Leaving:
        """The session, to tell of its damage; it is kept anew then."""
        self._dirty.add(where)
        return self._leaving(where, path)

    @property
    def has_too_many(self) -> bool:
        """Whether so many sessions are in memory that some have to be let go."""
        return len(self._hot) > HOT_MAX + HOT_SLACK

    @property
    def is_dirty(self) -> bool:
        """Whether there are positions to keep."""
        return bool(self._dirty)

    def settle(self, *, everything: bool) -> None:
        """All that was read is delivered: keep the positions, and let go of sessions not used lately.

        Unless `everything`, only positions of those let go are kept. Where the state cannot be written, they are kept
        in memory until it can.
        """
        cold = [where for where, _ in zip(self._hot, range(len(self._hot) - HOT_MAX), strict=False)]
        kept = sorted(self._dirty if everything else self._dirty.intersection(cold))
        # Some at a time: they may be large.
        for begin in range(0, len(kept), HOT_SLACK):
            part = kept[begin : begin + HOT_SLACK]
            self._kept.keep((), [(where, self._hot[where].save()) for where in part])
            self._dirty.difference_update(part)
        for where in cold:
            del self._hot[where]

    def flush(self) -> None:
        """Write what waits for the state. Raises `ExportError`."""
        self._kept.flush()

    def forget_all_but(self, there: Mapping[str, Path]) -> None:
        """Sessions that are gone."""
        for where in self.known.keys() - there.keys():
            self._forget(where)

    def _forget(self, where: str) -> None:
        for kept in (self._hot, self.known, self._open, self._again):
            kept.pop(where, None)
        self._dirty.discard(where)
        self.untold.discard(where)


def _mark(spans: Iterable[Span]) -> None:
    """The turns leave a journal that is known to be damaged."""
    for span in spans:
        if span.role == "turn":
            span.attributes[names.JOURNAL_DAMAGED] = True
