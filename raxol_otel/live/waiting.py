"""Records of one journal that wait to be told of: many at once cost half of what each costs by itself, or less.

While an agent writes slowly nothing waits. What comes faster does, for a moment: until there are many, some time has
passed, or somebody asks. What waits is a copy, as the agent may change its own.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, cast

from raxol_otel import catalogue as names
from raxol_otel import signals
from raxol_otel.journal.ceiling import Ceiling

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Record = dict[str, Any]

__all__ = ["Waiting"]

# So many records in a second are told of at once, one by one.
AT_ONCE_MAX: Final = 32
# So many may wait: more gain little, and the append that finds them there takes as long as all of them do.
WAITING_MAX: Final = 256
# After so many seconds without any being told of they are, by a thread of ours: none waits for twice as long.
WAITING_SECONDS: Final = 0.1
# What is kept for another thread that is stuck in telling; beyond it the oldest are dropped, and counted.
KEPT_MAX: Final = 10_000
# How long a thread waits for another that is telling: it may be stuck, or wait for this one.
PATIENCE_SECONDS: Final = 0.25

# A person may be waiting for what these tell.
_URGENT: Final = frozenset({"approval_requested", "error"})
_PLAIN: Final = frozenset({str, int, float, bool, type(None)})

_log = logging.getLogger(__name__)
_clock: Final = Ceiling()
# Held by the clock's thread while it tells, and across a fork: no lock of the SDK may be held in a child by a thread
# that is gone.
_at_it = threading.RLock()


class Waiting:
    """Holds records back, and gives them to `tell` in order, in one thread at a time, never within itself.

    What `tell` raises is logged once and counted as a failure of the handler `raxol_otel.tracing`.
    """

    def __init__(self, tell: Callable[[list[Record]], None]) -> None:
        self._tell = tell
        self._records: deque[Record] = deque()
        self.lock = threading.RLock()
        self._teller: int | None = None
        self._is_asked = self._is_stuck = False
        self._left = 0
        self._until = self._told_at = 0.0

    def put(self, records: Sequence[Record]) -> None:
        """Tell of the records, now or soon. One caller at a time."""
        now = time.monotonic()
        if now >= self._until:
            self._until, self._left = now + 1, AT_ONCE_MAX
        self._left -= len(records)
        is_due = self._left >= 0
        for record in records:
            is_due = is_due or not _may_wait(record)
            self._records.append(record)
        if is_due or len(self._records) >= WAITING_MAX or not (self._is_asked or self._ask()):
            self.flush()

    def flush(self) -> None:
        """Tell of all that waits, unless another thread is at it and stays so, or this one further out."""
        while self._records and self._teller != threading.get_ident():
            if not self.lock.acquire(timeout=0 if self._is_stuck else PATIENCE_SECONDS):
                self._is_stuck = True
                self._drop()
                # It may have looked for more just before these came.
                self._is_asked = self._is_asked or self._ask()
                return
            try:
                self._give()
            finally:
                self.lock.release()

    def due(self) -> None:
        """Called by the clock. While the appending thread does it all, it is not disturbed."""
        self._is_asked = False
        if time.monotonic() - self._told_at >= WAITING_SECONDS or (self._records and not self._ask()):
            with _at_it:
                self.flush()

    def _give(self) -> None:
        self._teller = threading.get_ident()
        records: list[Record] = []
        try:
            with suppress(IndexError):  # another thread drops some
                records.extend(self._records.popleft() for _ in range(len(self._records)))
            self._tell(records)
        except Exception as error:  # noqa: BLE001 - nothing is raised into the agent
            _lost(type(error).__name__)
        finally:
            self._teller = None
            self._is_stuck = False
            self._told_at = time.monotonic()

    def _drop(self) -> None:
        """Keep a bounded number for the thread that is stuck; it tells of them if it ever goes on."""
        while len(self._records) > KEPT_MAX:
            self._records.popleft()
            _lost("the thread that tells of them is stuck")

    def _ask(self) -> bool:
        """Have the clock call; False where there is none, as at the interpreter's end."""
        self._is_asked = True
        try:
            _clock.after(WAITING_SECONDS, self)
        except RuntimeError:
            self._is_asked = False
        return self._is_asked


def _may_wait(record: Record) -> bool:
    """Whether it may; then it is made independent of what the agent has."""
    try:
        if record.get("type") in _URGENT:
            return False
        for key, value in record.items():
            if type(value) not in _PLAIN:
                record[key] = _copied(value)
    except (TypeError, RecursionError):  # what only an encoder takes
        return False
    return True


def _copied(value: Any) -> Any:
    """A copy of what JSON is made of. Raises `TypeError` for anything else."""
    if type(value) is dict:
        members = cast("dict[str, Any]", value)
        if _PLAIN.issuperset(map(type, members.values())):
            return members.copy()
        return {key: one if type(one) in _PLAIN else _copied(one) for key, one in members.items()}
    if type(value) is list:
        return [one if type(one) in _PLAIN else _copied(one) for one in cast("Sequence[Any]", value)]
    raise TypeError


def _lost(why: str) -> None:
    if signals.count_error(names.TRACING_HANDLER) == 1:
        # Not what an error says, which may quote a journal.
        _log.warning("records were not told of (%s); further losses are only counted", why)


def _before_fork() -> None:
    _at_it.acquire(timeout=PATIENCE_SECONDS)


def _in_parent() -> None:
    with suppress(RuntimeError):  # it was not to be had
        _at_it.release()


def _in_child() -> None:
    global _at_it  # noqa: PLW0603 - its thread is gone
    _at_it = threading.RLock()
    _clock.reset()


os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
