"""Journals opened for writing: the handle, and the registry that makes one writer of many handles.

    with open_journal("session-1") as journal:
        journal.append({"type": "turn_started", "payload": {"prompt": "hi"}})

A handle may be used from several threads. From asyncio, hand calls to a thread, as in
`await asyncio.to_thread(journal.append, event)`; where the order of concurrent tasks matters, to an executor of one.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Literal, Protocol, Self, runtime_checkable

from raxol_otel.errors import JournalDamaged, NotChained, UntrustedDirectory, WriterClosed
from raxol_otel.journal import private as privacy
from raxol_otel.journal import reader, tap
from raxol_otel.journal.ceiling import CEILING
from raxol_otel.journal.failure import publish_failure, write_failed
from raxol_otel.journal.files import OS_FILES, replace_file
from raxol_otel.journal.layout import (
    SCHEMA_VERSION,
    SEGMENT_CAP,
    SNAPSHOTS,
    base_directory,
    check_session_id,
    read_meta,
)
from raxol_otel.journal.opening import open_writer
from raxol_otel.journal.options import Description, WriterOptions
from raxol_otel.journal.records import Records

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path
    from types import TracebackType

    from raxol_otel.contract import Event
    from raxol_otel.journal.files import Files
    from raxol_otel.journal.tap import Factory
    from raxol_otel.journal.writer import Writer

    Record = dict[str, Any]

__all__ = ["Journal", "JournalStore", "follow", "is_failing", "open_journal", "unfollow", "unsynced_seconds"]


@runtime_checkable
class JournalStore(Protocol):
    """What any store of one session's journal can do; `Journal` is the one kept in files."""

    @property
    def session_id(self) -> str:
        """The session's id."""
        ...

    def append(self, event: Mapping[str, Any] | Event, *, sync: bool | None = None) -> int:
        """Append one event; its offset."""
        ...

    def append_many(self, events: Iterable[Mapping[str, Any] | Event], *, sync: bool | None = None) -> list[int]:
        """Append all events or none; their offsets."""
        ...

    def append_checked(self, event: Mapping[str, Any] | Event, check: Callable[[Records], object]) -> int:
        """Append one event unless `check` objects; its offset."""
        ...

    def read(self, from_offset: int | None = None) -> list[Record]:
        """The records, or those from an offset on."""
        ...

    def status(self) -> Literal["ok", "damaged"]:
        """Whether the record is intact."""
        ...

    def flush(self) -> None:
        """Make everything appended durable."""
        ...

    def close(self) -> None:
        """Give the journal up; twice is once."""
        ...


class _Place:
    """Where the process opens one journal: one writer at a time, for all handles."""

    __slots__ = ("__weakref__", "lock", "writer")

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.writer: Writer | None = None


_places: weakref.WeakValueDictionary[str, _Place] = weakref.WeakValueDictionary()
_places_lock = threading.RLock()


class Journal:
    """One session's journal, open for writing. Made by `open_journal`; a context manager that closes.

    Every method raises `WriterClosed` once the writer is gone: this handle was closed, or the handle that opened the
    journal first in this process was, or this is a forked child.
    """

    def __init__(self, place: _Place, writer: Writer, *, is_owner: bool) -> None:
        self._place = place
        self._writer = writer
        self._is_owner = is_owner
        self._is_closed = False
        if is_owner:
            # At the interpreter's end, or when the handle is forgotten, what was appended becomes durable all the same.
            weakref.finalize(self, writer.close)

    @property
    def session_id(self) -> str:
        """The session's id."""
        return self._writer.session_id

    @property
    def path(self) -> Path:
        """The session's directory."""
        return self._writer.directory

    @property
    def last_offset(self) -> int:
        """The offset of the last record; of the last good one in a damaged journal."""
        return self._writer.last_offset

    def append(self, event: Mapping[str, Any] | Event, *, sync: bool | None = None) -> int:
        """Append one event; its offset.

        `sync=True` returns only when the record is durable. `None` syncs before it returns unless another append waits,
        and `False` never waits, both but for the types in `immediate_sync_types`; what is not synced then is within the
        ceiling.

        Raises `WriteFailed`: nothing was appended, or, with `sync=True` and `.offsets`, appended but not durably.
        Raises `Unencodable` and `FloatRefused`, naming the path, and `JournalDamaged`.
        """
        if self._is_closed:
            self._open()
        return self._writer.append([event], sync=sync)[0]

    def append_many(self, events: Iterable[Mapping[str, Any] | Event], *, sync: bool | None = None) -> list[int]:
        """Append all events or none, with one write; their offsets. Otherwise as `append`."""
        return list(self._open().append(list(events), sync=sync))

    def append_checked(
        self, event: Mapping[str, Any] | Event, check: Callable[[Records], object], *, sync: bool | None = None
    ) -> int:
        """Append one event unless `check(records)` objects; its offset. Nothing is appended in between.

        `check` objects by raising, which passes through, or by returning False: `CheckRefused`. `records` are all
        appended so far, read when they are iterated; `len` is known at once. Other appends wait meanwhile.
        """
        writer = self._open()
        return writer.append([event], sync=sync, check=lambda: check(Records(writer)))[0]

    def read(self, from_offset: int | None = None) -> list[Record]:
        """All records, or those from an offset on; everything appended before the call is there.

        Raises `JournalDamaged`, `JournalUnreadable`.
        """
        return self.records().since(from_offset)

    def records(self) -> Records:
        """All records appended so far, read each time they are iterated, in bounded memory."""
        return Records(self._open())

    def status(self) -> Literal["ok", "damaged"]:
        """Whether the record is intact. Reads all of it. Raises `JournalUnreadable`."""
        with suppress(JournalDamaged):
            self.records().check()
        return "ok" if self._writer.damage is None else "damaged"

    def verify(self) -> int | None:
        """The first offset of a chained journal that does not link, None when all do. Raises `NotChained`."""
        return reader.verify(self._open().directory)

    def write_snapshot(self, name: str, content: bytes) -> None:
        """Put a file of this name into `snapshots/`, durably; `checkpoint.write` does. Raises `WriteFailed`."""
        writer = self._open()
        folder, options = writer.directory / SNAPSHOTS, writer.options
        try:
            writer.files.make_directory(folder, options.directory_mode)
            replace_file(writer.files, folder / name, content, options.file_mode, within=writer.directory)
        except OSError as error:
            publish_failure(self.session_id, "snapshot", error)
            raise write_failed(self.session_id, "the snapshot was not written", "snapshot", error) from error

    def flush(self) -> None:
        """Make everything appended durable, and HEAD exact. Raises `WriteFailed` when the records are not durable."""
        self._open().flush()

    def close(self) -> None:
        """Close the handle; the one that opened the journal also closes the writer, durably, and gives back the lock.

        Twice is once. What fails is published as a signal, and does not raise.
        """
        if self._is_owner:
            with self._place.lock:  # whoever opens it anew waits until the lock file is gone
                self._writer.close()
        # Only now: a close that was interrupted can be repeated.
        self._is_closed = True

    def _open(self) -> Writer:
        if self._is_closed:
            message = f"this handle of {self._writer.directory} is closed"
            raise WriterClosed(message)
        self._writer.check_usable()
        return self._writer

    def __enter__(self) -> Self:
        """The journal itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def __repr__(self) -> str:
        """The path and whether it can be written to."""
        is_open = not self._is_closed and self._writer.is_usable
        return f"<Journal {str(self.path)!r} {'open' if is_open else 'closed'}>"


def open_journal(
    session_id: str,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    chain: bool = False,
    private: bool = False,
    segment_cap: int = SEGMENT_CAP,
    immediate_sync_types: Iterable[str] = ("tool_result", "approval"),
    sync_ceiling_ms: float = 200,
    schema_version: str = SCHEMA_VERSION,
    cwd: str | None = None,
    git_branch: str | None = None,
    title: str | None = None,
    files: Files = OS_FILES,
) -> Journal:
    """Open a session's journal for writing, or create it.

    `base_dir`: where sessions live, else `$RAXOL_SESSIONS_DIR`, else `~/.raxol/sessions`. `chain` makes a new journal
    hash-chained for life. `private` keeps directories 0700 and files 0600. `segment_cap` in bytes; `sync_ceiling_ms` in
    milliseconds: how late a shared sync, and HEAD, may come. `cwd`, `git_branch` and `title` go into a new journal's
    meta.json and nowhere else. `files` is the file layer, for tests.

    A journal that is open in this process already is joined, as it was opened. A damaged one opens for reading only;
    so does one whose HEAD names more records than there are.

    Raises `InvalidSessionId`, `JournalLocked`, `JournalUnreadable`, `NotChained`, `UntrustedDirectory`, `WriteFailed`,
    and `ValueError` for options out of range.
    """
    if segment_cap < 1 or sync_ceiling_ms < 0:
        message = "segment_cap is at least 1 byte, sync_ceiling_ms at least 0 milliseconds"
        raise ValueError(message)
    directory = base_directory(base_dir).absolute() / check_session_id(session_id)
    options = WriterOptions(
        segment_cap=segment_cap,
        immediate_sync_types=frozenset(immediate_sync_types),
        sync_ceiling_ms=sync_ceiling_ms,
        schema_version=schema_version,
        file_mode=privacy.FILE_MODE if private else 0o666,
        directory_mode=privacy.DIRECTORY_MODE if private else 0o777,
    )
    described = Description(chain=chain, private=private, cwd=cwd, git_branch=git_branch, title=title)
    with _places_lock:
        place = _places.setdefault(os.path.realpath(directory), _Place())
    with place.lock:
        writer = place.writer
        if writer is not None and writer.is_usable:
            if chain and not writer.chained:
                message = f"{directory} is open already, and not chained"
                raise NotChained(message)
            if private and writer.options.file_mode != privacy.FILE_MODE:
                message = f"{directory} is open already, and not private"
                raise UntrustedDirectory(message)
            return Journal(place, writer, is_owner=False)
        place.writer = open_writer(directory, described, options, files)
        return Journal(place, place.writer, is_owner=True)


def follow(factory: Factory) -> None:
    """Have a tap of this factory follow each journal of this process, those that are open and those opened later."""
    tap.install(factory)
    for writer in _open_writers():
        if writer.damage is not None:
            continue
        feed = tap.feed_for(writer.directory, read_meta(writer.directory) or {})
        if feed is None:
            continue
        # What is there first, without holding the writer up; then, with it held, only what came meanwhile.
        records = Records(writer)
        for batch in records.batches():
            feed.seen(batch)
        with writer.locked():
            feed.seen(list(Records(writer).after(records.last_offset)))
            writer.feed = feed


def unfollow(factory: Factory) -> None:
    """Follow no journal any more."""
    tap.uninstall(factory)
    for writer in _open_writers():
        with writer.locked():
            feed, writer.feed = writer.feed, None
        if feed is not None:
            feed.close()


def unsynced_seconds() -> float:
    """The age of the oldest record, of any writer of this process, that is not durable yet; 0 when all are."""
    since = [writer.output.unsynced_since for writer in _open_writers() if writer.output is not None]
    return max((time.monotonic() - one for one in since if one is not None), default=0.0)


def is_failing() -> bool:
    """Whether the last operation of any open writer of this process failed."""
    return any(writer.is_failing for writer in _open_writers())


def _open_writers() -> list[Writer]:
    writers = [place.writer for place in list(_places.values())]
    return [writer for writer in writers if writer is not None and writer.is_usable]


def _after_fork() -> None:
    """In a forked child no journal is open, whatever the parent's threads were doing."""
    global _places_lock  # noqa: PLW0603 - a thread that is not here may hold it
    _places_lock = threading.RLock()
    CEILING.reset()
    for place in list(_places.values()):
        place.lock = threading.RLock()
        if place.writer is not None:
            place.writer.abandon()
            place.writer = None


os.register_at_fork(after_in_child=_after_fork)
