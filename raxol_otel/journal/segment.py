"""One segment file, as its writer has it open.

The writer counts where its bytes end and writes there, so that what a failed, short or interrupted write left behind
can be cut off before anything else is appended. It keeps what is not yet durable: after a failed sync the kernel may
have dropped the pages, and only writing them again makes a later sync mean something.
"""

from __future__ import annotations

import errno
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.journal.files import Files

__all__ = ["SEGMENT_NUMBER_MAX", "End", "Segment", "open_segment"]

SEGMENT_NUMBER_MAX: Final = 999_999


class End(NamedTuple):
    """Where a journal ends: the segment's size in bytes, the last offset, and its hash in a chained journal.

    One object, replaced whole, so that an interruption never leaves one part of it new and another old.
    """

    size: int
    offset: int
    tip_hash: str | None


@dataclass(slots=True, eq=False)
class Segment:
    """An open segment file. Its methods raise `OSError`."""

    files: Files
    path: Path
    number: int
    descriptor: int
    end: End
    # What was written since the last sync, and where.
    unsynced: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    unsynced_bytes: int = 0
    # There may be bytes beyond the end.
    is_dirty: bool = False
    # A sync has failed: what is unsynced may be gone from the page cache, and must be written again.
    is_suspect: bool = False

    def append(self, data: bytes, offset: int, tip_hash: str | None) -> None:
        """Write at the end, all or nothing; `offset` and `tip_hash` are those of the last record written."""
        self.clean()
        if self.is_suspect:
            self._repeat()  # before anything follows it
        size = self.end.size
        self.is_dirty = True
        try:
            written = self.files.write(self.descriptor, data, size)
            if written != len(data):
                # A disk that is full shows as a short write first; the next one says why.
                self.files.write(self.descriptor, data[written:], size + written)
                raise OSError(0, f"only {written} of {len(data)} bytes were written")  # noqa: TRY301
        except OSError:
            self._cut_quietly()
            raise
        self.unsynced.append((size, data))
        self.unsynced_bytes += len(data)
        self.end = End(size + len(data), offset, tip_hash)
        self.is_dirty = False

    def check(self) -> None:
        """Raise when the file was deleted or replaced, or is no longer as it was left."""
        found = self.files.size(self.descriptor)
        if not self.files.is_at(self.path, self.descriptor):
            raise OSError(errno.ESTALE, f"{self.path.name} was moved or replaced while it was open")
        if found != self.end.size and not self.is_dirty:
            message = f"{self.path.name} was changed by another: it has {found} bytes, not {self.end.size}"
            raise OSError(errno.ESTALE, message)

    def clean(self) -> None:
        """Cut off what a failed write may have left beyond the end, if that could not be done at once."""
        if self.is_dirty:
            self._cut()

    def _cut(self) -> None:
        self.files.truncate(self.descriptor, self.end.size)
        self.unsynced = [(position, data) for position, data in self.unsynced if position < self.end.size]
        self.is_dirty = False

    def _cut_quietly(self) -> None:
        try:
            self._cut()
        except OSError:
            return  # tried again before the next append

    def sync(self) -> None:
        """Make what was written before the call durable."""
        if self.is_suspect:
            self._repeat()
        try:
            self.files.sync(self.descriptor)
        except BaseException:
            self.is_suspect = True
            raise

    def _repeat(self) -> None:
        """Write again what a failed sync left unsure."""
        for position, data in list(self.unsynced):
            if position < self.end.size and self.files.write(self.descriptor, data, position) != len(data):
                raise OSError(errno.EIO, "a short write while repeating what a failed sync left unsure")
        self.is_suspect = False

    def forget(self, count: int) -> None:
        """The first `count` unsynced writes are durable, and need not be kept."""
        if count == len(self.unsynced):
            self.unsynced, self.unsynced_bytes = [], 0
        else:
            durable = self.unsynced[:count]
            del self.unsynced[:count]
            self.unsynced_bytes -= sum(len(data) for _, data in durable)

    def close(self) -> None:
        """Close the file; twice is once. Never raises."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            try:
                self.files.close(descriptor)
            except OSError:
                return


def open_segment(files: Files, folder: Path, number: int, end: End, *, mode: int, is_new: bool) -> Segment:
    """Open a segment for appending, or make it; `end.size` is taken from the file.

    The name of a new one may be taken by an empty file only. Raises `OSError`.
    """
    path = folder / f"{number:06d}.jsonl"
    flags = os.O_RDWR | os.O_NOFOLLOW
    if is_new:
        try:
            descriptor = files.open(path, flags | os.O_CREAT | os.O_EXCL, mode)
            return Segment(files, path, number, descriptor, End(0, end.offset, end.tip_hash))
        except FileExistsError:
            pass  # a directory or a file; opening it tells which
    descriptor = files.open(path, flags, mode)
    try:
        size = files.size(descriptor)
        if is_new and size:
            raise FileExistsError(errno.EEXIST, "the next segment is there already, and not empty", str(path))
    except OSError:
        files.close(descriptor)
        raise
    return Segment(files, path, number, descriptor, End(size, end.offset, end.tip_hash))
