"""How a program follows what its own writers append, record by record and in order. Costs nothing while none does.

A factory makes a tap for each journal that is opened. The tap is first given what the journal holds already, then every
record that is appended, after the writer has released its locks; what it raises is logged and goes no further.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    Record = dict[str, Any]
    # Given the session's directory and meta.json; None: that journal is not followed.
    Factory = Callable[[Path, Mapping[str, Any]], "Tap | None"]

__all__ = ["WAITING_RECORDS_MAX", "Feed", "Tap", "feed_for", "install", "uninstall"]

# What may wait for a tap that is slow, or stuck in another thread; beyond it the oldest are dropped, and counted.
WAITING_RECORDS_MAX: Final = 10_000

_log = logging.getLogger("raxol_otel.journal")
_lock = threading.RLock()
_factory: Factory | None = None


class Tap(Protocol):
    """Follows one journal. `seen` and `appended` come one at a time, in the order of the offsets."""

    def seen(self, records: Sequence[Record]) -> None:
        """Records that were there when the following began."""
        ...

    def context(self, events: Sequence[Any]) -> Any:
        """In the appending thread, before anything is written: whatever `stamp` will need of it."""
        ...

    def stamp(self, record: Record, context: Any) -> None:
        """Add to a record before it is written; it is a copy of the caller's. Called under the writer's lock."""
        ...

    def appended(self, records: Sequence[Record]) -> None:
        """Records that were appended, as they were written (`hash` and `prev_hash` apart)."""
        ...

    def closed(self) -> None:
        """The writer is closed."""
        ...


def install(factory: Factory) -> None:
    """Make a tap for each journal opened from now on."""
    global _factory  # noqa: PLW0603 - one a process
    with _lock:
        _factory = factory


def uninstall(factory: Factory) -> None:
    """Make no more, if it is this factory that does."""
    global _factory  # noqa: PLW0603 - as above
    with _lock:
        if _factory == factory:
            _factory = None


def feed_for(directory: Path, meta: Mapping[str, Any]) -> Feed | None:
    """The feed of a journal that is being opened; None where nobody follows it."""
    factory = _factory
    if factory is None:
        return None
    try:
        tap = factory(directory, meta)
    except Exception:  # noqa: BLE001 - following must never disturb the journal
        _log.warning("journal %s is not followed", directory.name, exc_info=True)
        return None
    return None if tap is None else Feed(tap)


class Feed:
    """Gives a writer's records to its tap."""

    def __init__(self, tap: Tap) -> None:
        self.tap = tap
        self.dropped = 0
        self._waiting: deque[Record] = deque()
        self._lock = threading.RLock()
        self._is_draining = self._has_failed = False

    def seen(self, records: Sequence[Record]) -> None:
        """See `Tap.seen`."""
        self._call(self.tap.seen, records)

    def context(self, events: Sequence[Any]) -> Any:
        """See `Tap.context`; None where it fails."""
        return self._call(self.tap.context, events)

    def stamp(self, record: Record, context: Any) -> None:
        """See `Tap.stamp`."""
        self._call(self.tap.stamp, record, context)

    def put(self, records: Sequence[Record]) -> None:
        """Under the writer's lock: these were written."""
        self._waiting.extend(records)
        while len(self._waiting) > WAITING_RECORDS_MAX:
            self._waiting.popleft()
            self.dropped += 1

    def drain(self) -> None:
        """Give what waits to the tap, unless another thread is at it, or this one further out."""
        while self._waiting and not self._is_draining and self._lock.acquire(blocking=False):
            try:
                self._give()
            finally:
                self._lock.release()

    def _give(self) -> None:
        """Under `_lock`: give what waits to the tap."""
        if self._is_draining:
            return
        self._is_draining = True
        try:
            records = [self._waiting.popleft() for _ in range(len(self._waiting))]
            self._call(self.tap.appended, records)
        finally:
            self._is_draining = False

    def close(self) -> None:
        """The writer is closed: whoever is at it is waited for, and nothing is left out."""
        with self._lock:
            self._give()
            self._call(self.tap.closed)

    def abandon(self) -> None:
        """In a forked child: a thread that is not here may have been at it."""
        self._lock = threading.RLock()

    def _call(self, method: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return method(*arguments)
        except Exception:  # noqa: BLE001 - as above
            if not self._has_failed:
                self._has_failed = True
                _log.warning("following a journal failed; further failures are not logged", exc_info=True)
            return None
