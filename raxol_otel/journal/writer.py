"""The one writer of an open journal: append, group commit, rotation, HEAD.

Two locks, always taken in this order:
* `_sync_lock`: who syncs. Appends go on meanwhile; whoever waits for it finds its records durable already;
* `_lock`: who appends. Everything else that changes is changed under it.

A record is appended once write(2) has taken it: its id stands. It is durable once a sync that began later succeeded.
HEAD never names more than that, and may lag behind by up to the ceiling. Signals are published when no lock is held.

A Python signal handler can run in the middle of any of this, in the same thread, and append to the same journal. So the
locks let their own thread in, and what it may not find half-done is marked as being done.
"""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NoReturn

from raxol_otel.errors import CheckRefused, JournalDamaged, NotChained, WriteFailed, WriterClosed
from raxol_otel.journal.ceiling import CEILING
from raxol_otel.journal.failure import publish_failure, reason_of
from raxol_otel.journal.head import HeadFile
from raxol_otel.journal.layout import HEAD, JOURNAL
from raxol_otel.journal.line import encode_events
from raxol_otel.journal.segment import SEGMENT_NUMBER_MAX, open_segment

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from raxol_otel.contract import Event
    from raxol_otel.journal.damage import Damage
    from raxol_otel.journal.files import Files
    from raxol_otel.journal.lock import Lock
    from raxol_otel.journal.segment import End, Segment

    # What failed during one call, to be published when no lock is held: the stage and why.
    Failures = list[tuple[str, OSError]]

__all__ = ["Writer", "WriterOptions"]

# What may wait for a sync that keeps failing; beyond it appends are refused.
UNSYNCED_BYTES_MAX: Final = 64 * 2**20
# A sync or HEAD that failed is tried again by itself after so many seconds, if nothing else tries it before.
RETRY_SECONDS: Final = 5.0
_NEVER: Final = float("inf")


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How a writer works; see `open_journal`."""

    segment_cap: int
    immediate_sync_types: frozenset[str]
    sync_ceiling_ms: float
    schema_version: str
    file_mode: int


class Writer:
    """Appends to one journal. Made by `opening.open_writer`, used through `store.Journal`.

    `damage` is what every append is refused for, in a journal that must not be written to; then there is no segment.
    """

    def __init__(
        self,
        directory: Path,
        options: WriterOptions,
        files: Files,
        *,
        lock: Lock | None,
        chained: bool = False,
        segment: Segment | None = None,
        damage: Damage | None = None,
    ) -> None:
        self.directory = directory
        self.session_id = directory.name
        self.chained = chained
        self.options = options
        self.files = files
        self.damage = damage
        self.is_failing = False
        self._held = lock
        self._pid = os.getpid()
        self._make_locks()
        self._waiting: deque[None] = deque()
        self._is_closed = self._is_appending = self._is_syncing = False
        # What is not all durable, and the segment that is appended to, which is the last.
        self._open = [] if segment is None else [segment]
        self._rotations: int = 0
        self._rotations_synced: int = 0
        # What a sync covered last and the segment that was current then: what HEAD may say.
        self._durable: tuple[End, int] | None = None if segment is None else (segment.end, segment.number)
        self._has_sync_failed = False
        self._head = HeadFile(
            files,
            directory / HEAD,
            segment_cap=options.segment_cap,
            schema_version=options.schema_version,
            chained=chained,
            mode=options.file_mode,
        )
        self._due_at = _NEVER

    def _make_locks(self) -> None:
        self._lock = threading.RLock()
        self._sync_lock = threading.RLock()

    @property
    def last_offset(self) -> int:
        """The offset of the last record appended; of the last good one in a damaged journal."""
        if self._open:
            return self._open[-1].end.offset
        return self.damage.last_offset if self.damage is not None else 0

    @property
    def is_usable(self) -> bool:
        """Whether the writer is open, and this process's."""
        return not self._is_closed and self._pid == os.getpid()

    def check_usable(self) -> None:
        """Raise `WriterClosed` unless the writer is open, and this process's."""
        if self._pid != os.getpid():
            message = f"the writer of {self.directory} belongs to process {self._pid}, which forked this one"
            raise WriterClosed(message)
        if self._is_closed:
            message = f"the writer of {self.directory} is closed"
            raise WriterClosed(message)

    def check_joinable(self, *, chain: bool) -> None:
        """Raise `NotChained` when a chain is wanted that the journal does not have."""
        if chain and not self.chained:
            message = f"{self.directory} is open already, and not chained"
            raise NotChained(message)

    def locked(self) -> AbstractContextManager[object]:
        """While it is entered, nothing is appended by another thread."""
        return self._lock

    def refuse(self, damage: Damage) -> None:
        """Damage was found in the open journal: nothing is appended from now on."""
        with self._lock:
            self.damage = self.damage or damage

    def append(
        self,
        events: Iterable[Mapping[str, Any] | Event],
        *,
        sync: bool | None = None,
        check: Callable[[], object] | None = None,
    ) -> list[int]:
        """Append the events, all or none; their offsets. `check()` runs first, and nothing slips between.

        Raises `WriteFailed`, `WriterClosed`, `JournalDamaged`, `EncodeError`, `CheckRefused`, and what `check` raises.
        """
        self.check_usable()
        failures: Failures = []
        is_waiting = True
        self._waiting.append(None)
        try:
            with self._lock:
                self._waiting.pop()
                is_waiting = False
                offsets, is_wanted = self._append(events, sync=sync, check=check, failures=failures)
            is_durable = self._settle(offsets, failures, is_wanted=is_wanted)
        except BaseException:
            if is_waiting:
                self._waiting.pop()
            if failures:
                self._publish(failures)
            raise
        self._publish(failures)
        if sync and not is_durable:
            self._raise(failures, "appended, but not durably", offsets)
        return offsets

    def _append(
        self,
        events: Iterable[Mapping[str, Any] | Event],
        *,
        sync: bool | None,
        check: Callable[[], object] | None,
        failures: Failures,
    ) -> tuple[list[int], bool]:
        """Under `_lock`: write the events; their offsets, and whether a sync is wanted now."""
        self._enter()
        if self.damage is not None:
            raise JournalDamaged(self.damage)
        self._is_appending = True
        try:
            if check is not None and check() is False:
                message = f"{self.directory.name}: the check refused; nothing was appended"
                raise CheckRefused(message)
            offsets, types = self._write(events, failures)
        finally:
            self._is_appending = False
        is_immediate = not self.options.immediate_sync_types.isdisjoint(types)
        return offsets, bool(sync) or is_immediate or (sync is None and not self._waiting)

    def _enter(self) -> None:
        """Raise unless the writer is usable, and this thread is not in the middle of an append."""
        self.check_usable()
        if self._is_appending:
            message = f"{self.directory.name}: called in the middle of an append (from a check, or a signal handler?)"
            raise WriteFailed(message)

    def _write(self, events: Iterable[Mapping[str, Any] | Event], failures: Failures) -> tuple[list[int], list[str]]:
        """Write the events; their offsets and types."""
        segment = self._open[-1]
        if sum(one.unsynced_bytes for one in self._open) > UNSYNCED_BYTES_MAX:
            self._sync_first(failures)
        end, options = segment.end, self.options
        data, types, tip = encode_events(
            events, end.offset + 1, schema_version=options.schema_version, tip=end.tip_hash
        )
        if not types:
            return [], []
        last = end.offset + len(types)
        try:
            if segment.number >= SEGMENT_NUMBER_MAX and end.size >= options.segment_cap:
                raise OSError(0, f"segment {SEGMENT_NUMBER_MAX} is full, and there is no name for another")  # noqa: TRY301
            segment.append(data, last, tip)
        except OSError as error:
            failures.append(("append", error))
            self._raise(failures, "nothing was appended")
        if segment.end.size >= options.segment_cap and segment.number < SEGMENT_NUMBER_MAX:
            self._rotate(segment, failures)
        return list(range(end.offset + 1, last + 1)), types

    def _rotate(self, segment: Segment, failures: Failures) -> None:
        folder, mode = self.directory / JOURNAL, self.options.file_mode
        try:
            following = open_segment(self.files, folder, segment.number + 1, segment.end, mode=mode, is_new=True)
        except OSError as error:
            failures.append(("rotate", error))
            return  # the segment grows past its cap, and the next append tries again
        self._rotations += 1
        self._open.append(following)

    def _sync_first(self, failures: Failures) -> None:
        """Under `_lock`: too much waits for a sync to append more without one."""
        if self._sync_lock.acquire(blocking=False):  # else somebody is at it
            try:
                is_durable = self._make_durable(self.last_offset, failures)
            finally:
                self._sync_lock.release()
            if not is_durable:
                self._raise(failures, f"nothing was appended: over {UNSYNCED_BYTES_MAX} bytes wait for a sync")

    def _settle(self, offsets: list[int], failures: Failures, *, is_wanted: bool) -> bool:
        """After an append: sync if it is wanted, repeat what failed, leave the rest to the ceiling."""
        is_durable = False
        if is_wanted or self._has_sync_failed:
            is_durable = self._make_durable(offsets[-1] if offsets else self.last_offset, failures)
        if self._head.has_failed:
            self._write_head(failures)
        is_repeated = self._has_sync_failed or (self._head.has_failed and is_durable)
        self._set_due(RETRY_SECONDS if is_repeated else self.options.sync_ceiling_ms / 1000)
        return is_durable

    def _make_durable(self, target: int, failures: Failures) -> bool:
        """Whether everything up to the target is durable now; one sync serves all who wait for it."""
        with self._sync_lock:
            if self._durable is not None and self._durable[0].offset >= target:
                return True
            if self._is_syncing:
                failures.append(("datasync", OSError(errno.EDEADLK, "a signal handler cannot wait for a sync")))
                return False
            self._is_syncing = True
            try:
                return self._sync(failures)
            finally:
                self._is_syncing = False

    def _sync(self, failures: Failures) -> bool:
        """Under `_sync_lock`: sync what is not durable; whether that worked."""
        with self._lock:
            current = self._open[-1]
            goal = (current.end, current.number)
            pending = [(segment, len(segment.unsynced)) for segment in self._open]
            rotations = self._rotations
        try:
            for segment, count in pending:
                if count:
                    segment.sync(count)
            if rotations != self._rotations_synced:
                self.files.sync_directory(self.directory / JOURNAL)
        except OSError as error:
            failures.append(("datasync", error))
            self._has_sync_failed = True
            return False
        with self._lock:
            self._durable, self._rotations_synced, self._has_sync_failed = goal, rotations, False
            for segment, count in pending:
                segment.forget(count)
                if segment is not self._open[-1] and not segment.unsynced:
                    self._open.remove(segment)
                    segment.close()
        return True

    def _write_head(self, failures: Failures) -> None:
        if self._durable is not None:
            try:
                self._head.write(*self._durable)
            except OSError as error:
                failures.append(("head", error))

    def _set_due(self, seconds: float) -> None:
        at = time.monotonic() + seconds
        if at >= self._due_at:
            return
        self._due_at = at
        try:
            CEILING.after(seconds, self)
        except RuntimeError:  # no thread is to be had, as at the interpreter's end
            self._due_at = _NEVER
            failures: Failures = []
            self._commit(failures)
            self._publish(failures)

    def due(self) -> None:
        """The ceiling has come: sync what waits and write HEAD."""
        self._due_at = _NEVER
        if not self.is_usable:
            return
        failures: Failures = []
        self._commit(failures)
        if failures:
            self._publish(failures)
            self._set_due(RETRY_SECONDS)

    def _commit(self, failures: Failures) -> bool:
        is_durable = not self._open or self._make_durable(self.last_offset, failures)
        if self.damage is None:
            self._write_head(failures)
        return is_durable

    def flush(self) -> None:
        """Make everything durable, and HEAD exact. Raises `WriteFailed` when the records are not durable."""
        with self._lock:
            self._enter()
        failures: Failures = []
        is_durable = self._commit(failures)
        self._publish(failures)
        if not is_durable:
            self._raise(failures, "not durable")

    def begin(self) -> None:
        """Write HEAD for the first time, at the end of opening."""
        failures: Failures = []
        if self.damage is None:
            self._write_head(failures)
        self._publish(failures)

    def close(self) -> None:
        """Make everything durable and HEAD exact, and give the lock back. Twice is once.

        What fails is published, not raised; only in the middle of an append of this thread it raises `WriteFailed`.
        """
        with self._lock:
            if not self.is_usable:
                return
            self._enter()
            self._is_closed = True
        failures: Failures = []
        self._commit(failures)
        with self._sync_lock, self._lock:
            for segment in self._open:
                segment.close()
            if self._held is not None:
                self._held.release()
        self._publish(failures)

    def abandon(self) -> None:
        """In a forked child: the journal is the parent's. Locks may be held by threads that do not exist here."""
        self._is_closed = True
        self._make_locks()
        self._head.abandon()
        for segment in self._open:
            segment.close()
        if self._held is not None:
            self._held.abandon()

    def _publish(self, failures: Failures) -> None:
        self.is_failing = bool(failures)
        for stage, error in failures:
            publish_failure(self.session_id, stage, error)

    def _raise(self, failures: Failures, what: str, offsets: Iterable[int] = ()) -> NoReturn:
        # HEAD's failure, which may come last, is never why a caller is told.
        stage, error = next(failure for failure in reversed(failures) if failure[0] != "head")
        message = f"{self.directory.name}: {what}: {error.strerror or error}"
        raise WriteFailed(message, stage=stage, reason=reason_of(error), offsets=tuple(offsets)) from error
