"""Making durable what a writer has written, and telling HEAD of it. One sync serves all who wait for one.

`lock` is the writer's, under which it appends. `sync_lock` is taken before it, never after, but without waiting.
"""

from __future__ import annotations

import errno
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from raxol_otel.journal.head import HeadFile
    from raxol_otel.journal.output import Output
    from raxol_otel.journal.request import Failures

__all__ = ["Durability"]


class Durability:
    """What is durable of one journal. What fails is added to the caller's failures."""

    def __init__(self, output: Output | None, head: HeadFile, lock: AbstractContextManager[object]) -> None:
        self._output = output
        self._head = head
        self._lock = lock
        self.sync_lock = threading.RLock()
        # Only true under `sync_lock`, so that whoever holds it and sees it is a signal handler in the middle.
        self.is_syncing = False
        self.has_sync_failed = False

    @property
    def has_head_failed(self) -> bool:
        """Whether HEAD could not be written last."""
        return self._head.has_failed

    def reach(self, target: int, failures: Failures) -> OSError | None:
        """Why not everything up to the target is durable now; None when it is."""
        output = self._output
        if failures:
            tried = [error for stage, error in failures if stage == "datasync"]
            if tried:  # in this very call
                return tried[-1]
        with self.sync_lock:
            if output is None or output.durable[0].offset >= target:
                return None
            if self.is_syncing:
                return OSError(errno.EDEADLK, "a signal handler cannot wait for a sync that it interrupts")
            return self._sync(output, failures)

    def reach_without_waiting(self, target: int, failures: Failures) -> OSError | None:
        """As `reach`, but None also where somebody is at it: may be called under the writer's lock."""
        if not self.sync_lock.acquire(blocking=False):
            return None
        try:
            return self.reach(target, failures)
        finally:
            self.sync_lock.release()

    def advance(self, failures: Failures, *, is_appending: bool) -> None:
        """Before an append: if the segment is full, make it durable and go on to the next one, nobody else appending.

        Where that fails the full one is appended to.
        """
        output = self._output
        if output is not None and output.is_rotating and not is_appending:
            with self.sync_lock, self._lock:
                if output.is_rotating and not self.is_syncing:
                    self._sync(output, failures)

    def _sync(self, output: Output, failures: Failures) -> OSError | None:
        """Under `sync_lock`: sync; why it failed."""
        self.is_syncing = True
        try:
            output.sync(self._lock)
            self.has_sync_failed = False
        except OSError as error:
            self.has_sync_failed = True
            failures.append(("datasync", error))
            return error
        finally:
            self.is_syncing = False
        return None

    def write_head(self, failures: Failures) -> None:
        """Make HEAD say what is durable."""
        if self._output is not None:
            try:
                self._head.write(*self._output.durable)
            except OSError as error:
                failures.append(("head", error))

    def abandon(self) -> None:
        """In a forked child: whoever held a lock is not here."""
        self.sync_lock = threading.RLock()
        self._head.abandon()
