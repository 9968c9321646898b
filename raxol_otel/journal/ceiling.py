"""One thread a process that calls writers back when a ceiling is due, so that each need not have its own.

It begins with the first call, ends when there is nothing to wait for, and begins anew. In a forked child there is none.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
import weakref
from typing import Final, Protocol

__all__ = ["CEILING", "Ceiling"]

_log = logging.getLogger("raxol_otel.journal")
# So long the thread waits for something to do, in seconds, before it ends.
_IDLE_SECONDS: Final = 10.0


class _Due(Protocol):
    def due(self) -> None:
        """Called when the time has come."""
        ...


class Ceiling:
    """Calls `due()` of an object after a delay. The object may be gone by then."""

    _lock: threading.RLock
    _changed: threading.Condition
    _heap: list[tuple[float, int, weakref.ref[_Due]]]
    _thread: threading.Thread | None

    def __init__(self) -> None:
        self._order = itertools.count()
        self.reset()

    def reset(self) -> None:
        """Forget everything, in a forked child: the thread and what it waited for are the parent's."""
        # `with` on a lock of C leaves no gap for an interruption, on a condition it does.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._heap = []
        self._thread = None

    def after(self, seconds: float, target: _Due) -> None:
        """Call `target.due()` so many seconds from now. Raises `RuntimeError` when no thread can be started."""
        with self._lock:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), weakref.ref(target)))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="raxol-otel-ceiling", daemon=True)
                try:
                    self._thread.start()
                except RuntimeError:
                    self._thread = None
                    raise
            elif self._heap[0][2]() is target:
                self._changed.notify()

    def _run(self) -> None:
        while True:
            with self._lock:
                target = self._next()
                if target is None and not self._heap:
                    self._thread = None
                    return
            if target is not None:
                try:
                    target.due()
                except Exception:  # noqa: BLE001 - the thread serves all journals
                    _log.exception("committing a journal failed")
                del target

    def _next(self) -> _Due | None:
        """Wait for the next that is due; None when it is gone, or there was none for long."""
        if not self._heap and not self._changed.wait(_IDLE_SECONDS):
            return None
        while self._heap:
            wait = self._heap[0][0] - time.monotonic()
            if wait <= 0:
                return heapq.heappop(self._heap)[2]()
            self._changed.wait(wait)
        return None


CEILING: Final = Ceiling()
