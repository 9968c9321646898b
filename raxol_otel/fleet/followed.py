"""One session that is followed: its journal's tail, the fold of its turns, and whoever hears what is new."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel.journal.tail import LINE_BYTES_MAX, Tail
from raxol_otel.turns import FoldConfig, TurnFold

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from raxol_otel.journal.tail import Restart
    from raxol_otel.turns import Span

    Records = Sequence[Mapping[str, Any]]
    Observer = Callable[[Records, Sequence[Span]], object]

__all__ = ["KNOWN_PAST", "Followed"]

# Of one among thousands of sessions fewer closed turns are remembered than of one that is replayed alone.
CLOSED_TURNS_MAX: Final = 2_048
# Saved of a journal whose past is known, but not where following stands; up to which offset may follow.
KNOWN_PAST: Final = b"-"
_VERSION: Final = 1


class Followed:
    """A session's tail and fold.

    `listen` is called for each new fold and gives what observes its records and spans. A journal's past is folded
    silently where it `is_baseline`, and where it is read again because it was rewritten: it was observed before.
    `saved` is what `save` gave; what is not (any more) is read again as a baseline. `select`: as of `TurnFold`.
    """

    def __init__(
        self,
        directory: Path,
        *,
        saved: bytes | None = None,
        config: FoldConfig | None = None,
        listen: Callable[[TurnFold], Observer] | None = None,
        is_baseline: bool = False,
        has_silent_past: bool = True,
        select: Callable[[str, int], bool] | None = None,
        closed_turns_max: int = CLOSED_TURNS_MAX,
    ) -> None:
        self.directory = directory
        self._config = config or FoldConfig()
        self._listen = listen
        self._select = select
        self._closed_turns_max = closed_turns_max
        # The last offset that was heard before; None: all that there is.
        self._known_to: int | None = None if is_baseline else 0
        self._has_silent_past = has_silent_past
        self._observe: Observer | None = None
        self.fold: TurnFold | None = None
        self.tail = Tail(directory, line_bytes_max=LINE_BYTES_MAX)
        if saved is not None and not self._restore(saved):
            self.tail, self.fold = Tail(directory), None
            self._known_to = None if has_silent_past else 0

    def catch_up(self, bytes_max: int | None = None) -> Restart | None:
        """Read and fold what is new; says whether, and why, that was everything. Raises `JournalUnreadable`.

        Reads about `bytes_max` bytes; `tail.has_more` says whether there is more.
        """
        tail = self.tail
        heard = tail.last_offset
        restart = tail.begin()
        if restart is not None:
            self._known_to = self._heard_to(heard) if restart == "rewritten" and self._has_silent_past else 0
        if restart is not None or self.fold is None:
            self._begin()
        fold = self.fold
        assert fold is not None  # noqa: S101 - said for the type checker
        for records in tail.batches(bytes_max):
            known = self._known_of(records)
            if known == len(records):
                fold.feed_many(records)
                continue
            fold.feed_many(records[:known])
            self._hear(fold, records[known:])
        if not tail.has_more:
            fold.wake()
            # What is behind damage, or was lost, was heard before, too, and may come back.
            if (tail.damage is None and not tail.is_behind_head) or self._known_to is None:
                self._known_to = 0
        return restart

    def _heard_to(self, heard: int) -> int | None:
        """The last offset that was heard before, now that so much was consumed; what is read again counts no less."""
        return None if self._known_to is None else max(heard, self._known_to)

    def _known_of(self, records: Records) -> int:
        """How many of the records, which are in sequence, were heard before."""
        if self._known_to is None:
            return len(records)
        return min(max(self._known_to - records[0]["id"] + 1, 0), len(records)) if self._known_to else 0

    def _hear(self, fold: TurnFold, records: Records) -> None:
        fold.wake()
        if self._observe is None:
            self._observe = self._listen(fold) if self._listen is not None else _deaf
        self._observe(records, fold.feed_many(records))

    def _begin(self) -> None:
        tail = self.tail
        self.fold = TurnFold(
            tail.session_id,
            created_at=tail.created_at,
            config=self._config,
            select=self._select,
            closed_turns_max=self._closed_turns_max,
            quiet=self._known_to != 0,
        )
        self._observe = None

    def save(self) -> bytes:
        """Where following stands, to go on from; in the middle of a past that is known, that it be read again so."""
        known_to = "" if self._known_to is None else str(self._known_to)
        if self.fold is None or (self.tail.has_more and self._known_to != 0):
            return KNOWN_PAST + known_to.encode()
        # The snapshot as it is: it need not be text.
        return orjson.dumps([_VERSION, known_to, self.tail.position()]) + b"\n" + self.fold.snapshot()

    def _restore(self, saved: bytes) -> bool:
        try:
            if saved.startswith(KNOWN_PAST):
                known = saved[len(KNOWN_PAST) :]
                self._known_to = (int(known) if known else None) if self._has_silent_past else 0
                return True
            head, _, snapshot = saved.partition(b"\n")
            version, known_to, position = orjson.loads(head)
            if version != _VERSION:
                return False
            self.tail = tail = Tail(self.directory, position)
            self.fold = TurnFold.restore(
                snapshot,
                session_id=tail.session_id,
                created_at=tail.created_at,
                config=self._config,
                select=self._select,
                closed_turns_max=self._closed_turns_max,
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            return False
        self._known_to = int(known_to) if known_to else None
        return True


def _deaf(_records: Records, _spans: Sequence[Span]) -> None:
    return
