"""The one writer of an open journal: append, group commit, rotation, HEAD.

Two locks: who syncs (`Durability.sync_lock`) and, taken after it, who appends. Appends go on while one syncs; whoever
waits for a sync finds its records durable already.

A record is appended once write(2) has taken it: its id stands. It is durable once a sync that began later succeeded.
HEAD never names more than that, and may lag behind by up to the ceiling. Signals are published when no lock is held.

A Python signal handler can run in the middle of any of this, in the same thread, and append to the same journal. So the
locks let their own thread in, and what it may not find half-done is marked as being done.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any, Final, cast

from raxol_otel.errors import CheckRefused, JournalDamaged, WriteFailed, WriterClosed
from raxol_otel.journal.ceiling import Reminder
from raxol_otel.journal.durability import Durability
from raxol_otel.journal.failure import publish_failures, write_failed
from raxol_otel.journal.group import Group
from raxol_otel.journal.head import HeadFile
from raxol_otel.journal.layout import HEAD
from raxol_otel.journal.line import encode_events
from raxol_otel.journal.request import Append, joined

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from raxol_otel.contract import Event
    from raxol_otel.journal.damage import Damage
    from raxol_otel.journal.files import Files
    from raxol_otel.journal.lock import Lock
    from raxol_otel.journal.options import WriterOptions
    from raxol_otel.journal.output import Output
    from raxol_otel.journal.request import Failures
    from raxol_otel.journal.tap import Feed


__all__ = ["Writer"]

# What may wait for a sync that keeps failing; beyond it appends are refused.
UNSYNCED_BYTES_MAX: Final = 64 * 2**20
# A sync or HEAD that failed is tried again by itself after so many seconds, if nothing else tries it before.
RETRY_SECONDS: Final = 5.0


class Writer:
    """Appends to one journal. Made by `opening.open_writer`, used through `store.Journal`.

    `damage` is what every append is refused for, in a journal that must not be written to; then there is no output.
    """

    def __init__(
        self,
        directory: Path,
        options: WriterOptions,
        files: Files,
        *,
        lock: Lock | None,
        chained: bool = False,
        output: Output | None = None,
        damage: Damage | None = None,
        feed: Feed | None = None,
        offset_before: int = 0,
    ) -> None:
        self.directory = directory
        self.session_id = directory.name
        self.chained = chained
        self.options = options
        self.files = files
        self.damage = damage
        self._held = lock
        self._pid = os.getpid()
        self._main_thread = threading.main_thread().ident
        self._lock = threading.RLock()
        self._group: Group[Append] = Group(self._append_all)
        self._is_closed = self._is_close_wanted = self._is_released = self._is_appending = False
        self._has_append_failed = False
        self.output = output
        self.feed = feed
        # The one before the first record's: a prefix may have been dropped.
        self.offset_before = offset_before
        head = HeadFile(files, directory / HEAD, options, chained=chained)
        self._durability = Durability(output, head, self._lock)
        self._reminder = Reminder()
        self._ceiling = options.sync_ceiling_ms / 1000

    @property
    def last_offset(self) -> int:
        """The offset of the last record appended; of the last good one in a damaged journal."""
        if self.output is not None:
            return self.output.end.offset
        return self.damage.last_offset if self.damage is not None else 0

    @property
    def is_usable(self) -> bool:
        """Whether the writer is open, and this process's."""
        return not self._is_closed and self._pid == os.getpid()

    @property
    def is_failing(self) -> bool:
        """Whether the last append, rotation, sync or HEAD failed."""
        return self._has_append_failed or self._durability.has_sync_failed or self._durability.has_head_failed

    def check_usable(self) -> None:
        """Raise `WriterClosed` unless the writer is open, and this process's."""
        if self._pid != os.getpid():
            message = f"the writer of {self.directory} belongs to process {self._pid}, which forked this one"
            raise WriterClosed(message)
        if self._is_closed:
            message = f"the writer of {self.directory} is closed"
            raise WriterClosed(message)

    def locked(self) -> AbstractContextManager[object]:
        """While it is entered, nothing is appended by another thread."""
        return self._lock

    def refuse(self, damage: Damage) -> None:
        """Append nothing from now on: damage was found."""
        with self._lock:
            self.damage = self.damage or damage

    def append(
        self,
        events: Sequence[Mapping[str, Any] | Event],
        *,
        sync: bool | None = None,
        check: Callable[[], object] | None = None,
    ) -> Sequence[int]:
        """Append the events, all or none; their offsets. `check()` runs first, and nothing slips between.

        Raises `WriteFailed`, `WriterClosed`, `JournalDamaged`, `EncodeError`, `CheckRefused`, and what `check` raises.
        """
        if self._is_closed or os.getpid() != self._pid:
            self.check_usable()
        # `None` where others are at it: their sync, or the ceiling, serves this one too.
        request = Append(events, self.feed, is_wanted=sync or (sync is None and not self._group.is_busy))
        try:
            if not request.is_wanted or check is not None or threading.get_ident() == self._main_thread:
                self._durability.advance(request.failures, is_appending=self._is_appending)
                with self._lock:
                    self._append(request, check)
                request.sync_error = self._settle(request.offsets, request.failures, is_wanted=request.is_wanted)
            else:
                self._group.do(request)
        finally:
            if self._is_close_wanted:
                self.close()
        if request.failures:
            publish_failures(self.session_id, request.failures)
        if request.feed is not None:
            request.feed.drain()
        if request.error is not None:
            raise request.error
        if sync and request.sync_error is not None:
            error = request.sync_error
            raise write_failed(
                self.session_id, "appended, but not durably", "datasync", error, request.offsets
            ) from error
        return request.offsets

    def _append_all(self, requests: list[Append]) -> None:
        """A round of the group: all written, then one sync."""
        try:
            self._durability.advance(requests[0].failures, is_appending=False)
            with self._lock:
                if len(requests) == 1 or not self._append_joined(requests):
                    for request in requests:
                        self._append(request)
            last = next((one.offsets for one in reversed(requests) if one.offsets), ())
            error = self._settle(last, requests[0].failures, is_wanted=True)
            for request in requests:
                request.sync_error = error
        except BaseException as error:  # noqa: BLE001 - told to each that waits, in its own thread
            for request in requests:
                request.error = request.error or error

    def _append_joined(self, requests: list[Append]) -> bool:
        """Under `_lock`: append all with one write; False, and nothing done, where each must be looked at alone."""
        output = self.output
        if output is None or self.damage is not None or self._is_closed or self._durability.has_sync_failed:
            return False
        self._is_appending = True
        try:
            for request in requests:
                request.follow(self.feed)
            is_done = output.append_within(*joined(requests, output.end, self.options.schema_version))
            if is_done:
                self._has_append_failed = False
                for request in requests:
                    request.tell()
        except Exception:  # noqa: BLE001 - whose trouble it is shows when each is looked at
            return False
        finally:
            self._is_appending = False
        return is_done

    def _append(self, request: Append, check: Callable[[], object] | None = None) -> None:
        """Under `_lock`: write what is asked for, or say why not."""
        request.follow(self.feed)
        try:
            if self._is_closed or self._is_appending or (self.output is not None and self.output.is_switching):
                self._enter()
            if self.damage is not None or self.output is None:
                raise JournalDamaged(cast("Damage", self.damage))  # noqa: TRY301
            self._is_appending = True
            try:
                if check is not None and check() is False:
                    message = f"{self.directory.name}: the check refused; nothing was appended"
                    raise CheckRefused(message)
                types = self._write(self.output, request)
            finally:
                self._is_appending = False
            if not self.options.immediate_sync_types.isdisjoint(types):
                request.is_wanted = True
        except Exception as error:  # noqa: BLE001 - raised by the thread that asked
            request.error = error
            request.offsets = ()

    def _enter(self) -> None:
        """Raise unless the writer is usable, and this thread is not in the middle of an append."""
        if self._is_closed:
            self.check_usable()
        if self._is_appending or (self.output is not None and self.output.is_switching):
            message = f"{self.directory.name}: called in the middle of an append (from a check, or a signal handler?)"
            raise WriteFailed(message)

    def _write(self, output: Output, request: Append) -> list[str]:
        """Write the events; their types."""
        if self._durability.has_sync_failed and output.unsynced_bytes > UNSYNCED_BYTES_MAX:
            why = self._durability.reach_without_waiting(self.last_offset, request.failures)
            if why is not None:
                what = f"nothing was appended: over {UNSYNCED_BYTES_MAX} bytes wait for a sync"
                raise write_failed(self.session_id, what, "datasync", why) from why
        end = output.end
        first = end.offset + 1
        schema_version, stamp = self.options.schema_version, request.stamp_for()
        data, types, tip = encode_events(
            request.events, first, schema_version=schema_version, tip=end.tip_hash, stamp=stamp
        )
        if not types:
            return types
        try:
            is_full = output.append(data, end.offset + len(types), tip)
        except OSError as error:
            request.failures.append(("append", error))
            self._has_append_failed = True
            raise write_failed(self.session_id, "nothing was appended", "append", error) from error
        self._has_append_failed = False
        request.offsets = range(first, first + len(types))
        request.tell()
        if is_full:
            self._rotate(output, request.failures)
        return types

    def _rotate(self, output: Output, failures: Failures) -> None:
        """Under `_lock`: make the next segment. Until it is there the full one grows."""
        try:
            output.rotate()
        except OSError as error:
            failures.append(("rotate", error))
            self._has_append_failed = True

    def _settle(self, offsets: Sequence[int], failures: Failures, *, is_wanted: bool) -> OSError | None:
        """After appends: sync if it is wanted, repeat what failed, leave the rest to the ceiling.

        Returns why the sync failed.
        """
        error = None
        is_synced = is_wanted or self._durability.has_sync_failed
        if is_synced:
            error = self._durability.reach(offsets[-1] if offsets else self.last_offset, failures)
        if self._durability.has_head_failed:
            self._durability.write_head(failures)
        is_repeated = error is not None or (self._durability.has_head_failed and is_synced)
        if not self._reminder.is_soon:
            seconds = RETRY_SECONDS if is_repeated else self._ceiling
            if not self._reminder.set(self, seconds, is_soon=not is_repeated):
                self._commit(failures, is_asked=False)
        return error

    def due(self) -> None:
        """The ceiling has come: sync what waits and write HEAD."""
        self._reminder.clear()
        if not self.is_usable:
            return
        failures: Failures = []
        self._commit(failures, is_asked=False)
        if failures:
            publish_failures(self.session_id, failures)
            self._reminder.set(self, RETRY_SECONDS, is_soon=False)

    def _commit(self, failures: Failures, *, is_asked: bool = True) -> OSError | None:
        """Make up for what failed (a rotation only when asked), sync, and write HEAD; why the sync failed."""
        if self.output is not None:
            with self._lock:
                try:
                    self.output.clean()
                except OSError as error:
                    failures.append(("append", error))
                if is_asked and self.output.is_full:
                    self._rotate(self.output, failures)
        why = self._durability.reach(self.last_offset, failures)
        if self.damage is None:
            self._durability.write_head(failures)
        return why

    def flush(self) -> None:
        """Make everything durable, and HEAD exact. Raises `WriteFailed` when the records are not durable."""
        with self._lock:
            self._enter()
        failures: Failures = []
        try:
            error = self._commit(failures)
        finally:
            if self._is_close_wanted:
                self.close()
        publish_failures(self.session_id, failures)
        if error is not None:
            raise write_failed(self.session_id, "not durable", "datasync", error) from error

    def close(self) -> None:
        """Make everything durable and HEAD exact, and give the lock back. Twice is once.

        What fails is published. In the middle of an append of this thread it takes effect when that ends.
        """
        failures: Failures = []
        with self._durability.sync_lock:
            with self._lock:
                if self._is_released or self._pid != os.getpid():
                    return
                self._is_close_wanted = self._is_appending or self._durability.is_syncing
                if self._is_close_wanted:
                    return
                self._is_closed = True
            try:
                self._commit(failures)
            finally:
                if self.output is not None:
                    self.output.close()
                if self._held is not None:
                    self._held.release()
                self._is_released = True
        if self.feed is not None:
            self.feed.close()
        publish_failures(self.session_id, failures)

    def abandon(self) -> None:
        """In a forked child: the journal is the parent's. Locks may be held by threads that do not exist here."""
        self._is_closed = True
        self._lock = threading.RLock()
        self._durability.abandon()
        if self.feed is not None:
            self.feed.abandon()
        if self.output is not None:
            self.output.close()
        if self._held is not None:
            self._held.abandon()
