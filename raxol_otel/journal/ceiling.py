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
from contextlib import suppress
from typing import Final, Protocol

__all__ = ["CEILING", "Ceiling", "Reminder"]

_log = logging.getLogger("raxol_otel.journal")
# So long the thread waits for something to do, in seconds, before it ends.
_IDLE_SECONDS: Final = 10.0


class _Due(Protocol):
    def due(self) -> None:
        """Called when the time has come."""
        ...


class Ceiling:
    """Calls `due()` of an object after a delay. The object may be gone by then.

    A thread may be interrupted (Ctrl-C) at any point of `after`. So there is no condition variable here: the lock and
    the wake-up are one C call each.
    """

    def __init__(self) -> None:
        self._order = itertools.count()
        self.reset()

    def reset(self) -> None:
        """Forget everything, in a forked child: the thread and what it waited for are the parent's."""
        self._lock = threading.RLock()
        # Released to wake the thread; only the thread acquires it.
        self._wake = threading.Lock()
        self._wake.acquire()
        self._heap: list[tuple[float, int, weakref.ref[_Due]]] = []
        self._thread: threading.Thread | None = None

    def after(self, seconds: float, target: _Due) -> None:
        """Call `target.due()` so many seconds from now. Raises `RuntimeError` when no thread can be started."""
        with self._lock:
            heapq.heappush(self._heap, (time.monotonic() + seconds, next(self._order), weakref.ref(target)))
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="raxol-otel-ceiling", daemon=True)
                thread.start()
                # Only now: one whose start was interrupted may not be there.
                self._thread = thread
            is_first = self._heap[0][2]() is target
        if is_first:
            with suppress(RuntimeError):  # it is awake already
                self._wake.release()

    def _run(self) -> None:
        while True:
            with self._lock:
                wait = self._heap[0][0] - time.monotonic() if self._heap else _IDLE_SECONDS
                target = heapq.heappop(self._heap)[2]() if wait <= 0 else None
            if target is not None:
                try:
                    target.due()
                except Exception:  # noqa: BLE001 - the thread serves all journals
                    _log.exception("committing a journal failed")
                del target
            elif wait > 0 and not self._wake.acquire(timeout=wait):
                with self._lock:
                    if not self._heap:
                        self._thread = None
                        return


CEILING: Final = Ceiling()


class Reminder:
    """Has one object's `due` called: once for all that asks before it, again for the first that must come sooner."""

    __slots__ = ("_is_late", "is_soon")

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        """It was called: the next that asks is the first."""
        self.is_soon = self._is_late = False

    def set(self, target: _Due, seconds: float, *, is_soon: bool) -> bool:
        """Ask for a call in so many seconds; False when no thread is to be had, as at the interpreter's end."""
        if is_soon or not self._is_late:
            try:
                CEILING.after(seconds, target)
            except RuntimeError:
                return False
            # Only now: an interruption before may cost a second call, never the only one.
            self.is_soon, self._is_late = is_soon, True
        return True
