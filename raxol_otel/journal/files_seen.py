"""What a tail remembers of a journal's files: enough to tell growth from change without reading them.

A file's status change time moves with its bytes and its attributes alike, so that it says where to look and never what
happened: that is told by a checksum of the bytes consumed (of their beginning and end, for a file that has only grown).
"""

from __future__ import annotations

import os
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.journal import layout

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Sequence
    from pathlib import Path

    Status = tuple[int, int, int, int]

__all__ = [
    "NOTHING",
    "Moved",
    "Part",
    "Seen",
    "fingerprint",
    "is_settled",
    "look",
    "next_lines",
    "opened",
    "read",
    "session_files",
    "statuses",
]

# Device, inode, size and time of change: of what is not there, or cannot be looked at.
NOTHING: Final[Status] = (0, 0, 0, 0)
# Files change unseen within one tick of the kernel's clock (at most 10 ms): looked at sooner, they are looked at again.
TICK_NS: Final = 20_000_000
# Of a file that has grown its first line is compared, up to so much, and the bytes before the place to go on at.
_BEGIN_BYTES: Final = 1_024
_END_BYTES: Final = 256
# Small pieces are added to those bytes until they are so many.
_END_BYTES_MAX: Final = 16 * 1024
# Lines are read in pieces that stay in the processor's cache while they are decoded; a long one is looked through.
_READ_BYTES: Final = 16 * 1024
_CHUNK_BYTES: Final = 256 * 1024


class Moved(Exception):
    """A file is no longer as it was looked at; told to nobody: the tail looks again."""


@dataclass(slots=True)
class Part:
    """A segment: its status when looked at, whether a change since would show in it, and what was consumed of it.

    `crc` is the checksum of the `consumed` bytes, which are so many `lines`; `begin` and `end` those of their first and
    last few. `is_open`: the last line has no newline; the next segment's content made a record of it.
    """

    name: str
    status: Status
    is_settled: bool
    consumed: int = 0
    lines: int = 0
    crc: int = 0
    begin: int = 0
    begin_bytes: int = 0
    end: int = 0
    end_bytes: int = 0
    is_open: bool = False
    has_records: bool = False

    @property
    def size(self) -> int:
        """The size in bytes when looked at."""
        return self.status[2]

    def consume(self, text: bytes, lines: int) -> None:
        """Note that this text, so many lines, was consumed."""
        if not text:
            return
        if not self.consumed:
            first = text[: min(text.find(b"\n") + 1 or _BEGIN_BYTES, _BEGIN_BYTES)]
            self.begin, self.begin_bytes = zlib.crc32(first), len(first)
        self.consumed += len(text)
        self.lines += lines
        self.crc = zlib.crc32(text, self.crc)
        if len(text) >= _END_BYTES or self.end_bytes >= _END_BYTES_MAX:
            end = text[-_END_BYTES:]
            self.end, self.end_bytes = zlib.crc32(end), len(end)
        else:
            self.end, self.end_bytes = zlib.crc32(text, self.end), self.end_bytes + len(text)

    def is_same(self, found: Status, path: Path, *, is_last: bool) -> bool:
        """Whether the bytes consumed are still the file's; the last one may have more. Raises `JournalUnreadable`."""
        if found == self.status and self.is_settled:
            return True
        size = found[2]
        try:
            # Opened in any case: what cannot be read may be the same again later.
            with opened(path) as descriptor:
                if size < self.consumed or (size > self.consumed and (self.is_open or not is_last)):
                    return False
                if size > self.size and found[:2] == self.status[:2]:
                    return self._begins(descriptor) and self.is_before(descriptor)
                return _checksum(descriptor, 0, self.consumed) == self.crc
        except OSError as error:
            raise layout.unreadable(path, error) from error

    def begins_at(self, path: Path) -> bool:
        """Whether the file begins as what was consumed. Raises `JournalUnreadable`."""
        try:
            with opened(path) as descriptor:
                return self._begins(descriptor)
        except OSError as error:
            raise layout.unreadable(path, error) from error

    def _begins(self, descriptor: int) -> bool:
        return _checksum(descriptor, 0, self.begin_bytes) == self.begin

    def is_before(self, descriptor: int) -> bool:
        """Whether the bytes before the place to go on at are those consumed last."""
        return _checksum(descriptor, self.consumed - self.end_bytes, self.end_bytes) == self.end

    def saved(self) -> list[Any]:
        """As plain data."""
        marks = (self.begin, self.begin_bytes, self.end, self.end_bytes)
        consumed = (self.consumed, self.lines, self.crc)
        return [self.name, *self.status, self.is_settled, *consumed, *marks, self.is_open, self.has_records]

    @classmethod
    def restored(cls, saved: Sequence[Any]) -> Part:
        """From plain data; `ValueError` or `TypeError` when it is none of ours."""
        name, device, inode, size, changed_ns, settled, *numbers, is_open, has_records = saved
        consumed, lines, crc, begin, begin_bytes, end, end_bytes = numbers
        if any(type(number) is not int or number < 0 for number in numbers):
            raise ValueError("not a number of a segment")
        if max(begin_bytes, end_bytes, lines) > consumed:
            raise ValueError("more than was consumed")
        part = cls(_name(name), _status((device, inode, size, changed_ns)), _is(settled))
        part.consumed, part.lines, part.crc = consumed, lines, crc
        part.is_open, part.has_records = _is(is_open), _is(has_records)
        part.begin, part.begin_bytes, part.end, part.end_bytes = begin, begin_bytes, end, end_bytes
        return part


@dataclass(frozen=True, slots=True)
class Seen:
    """The status of all that a journal consists of. `is_settled`: what changes from now on will show.

    `files` are the session's directory, meta.json, HEAD and the folder of the segments, whose `names` and `parts` (the
    status of each) follow.
    """

    files: tuple[Status, ...] = ()
    names: tuple[str, ...] = ()
    parts: tuple[Status, ...] = ()
    is_settled: bool = False
    # When the look began, in nanoseconds since the epoch.
    looked_ns: int = 0

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return sum(part[2] for part in self.parts)

    def is_as(self, other: Seen) -> bool:
        """Whether both looks saw the same."""
        return self is other or (self.files, self.names, self.parts) == (other.files, other.names, other.parts)

    def saved(self) -> list[Any]:
        """As plain data."""
        return [self.files, self.names, self.parts, self.is_settled, self.looked_ns]

    @classmethod
    def restored(cls, saved: Sequence[Any]) -> Seen:
        """From plain data; `ValueError` or `TypeError` when it is none of ours."""
        files, names, parts, settled, looked_ns = saved
        if len(files) not in {0, 4} or len(names) != len(parts) or type(looked_ns) is not int:
            raise ValueError("not the files of a journal")
        found = tuple(map(_status, files)), tuple(map(_name, names)), tuple(map(_status, parts))
        return cls(*found, is_settled=_is(settled), looked_ns=looked_ns)


def _status(numbers: Iterable[Any]) -> Status:
    device, inode, size, changed_ns = numbers
    if any(type(number) is not int for number in (device, inode, size, changed_ns)) or size < 0:
        raise ValueError("not a file's status")
    return device, inode, size, changed_ns


def _name(text: Any) -> str:
    if type(text) is not str:
        raise ValueError("not a segment's name")
    return text


def _is(value: Any) -> bool:
    if type(value) is not bool:
        raise ValueError("neither true nor false")
    return value


def statuses(paths: Iterable[str]) -> list[Status]:
    """The status of each file now."""
    found: list[Status] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - a path object for each would cost as much as the call
        except OSError:
            # Why it cannot be looked at is told by whoever opens it.
            found.append(NOTHING)
        else:
            found.append((status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns))
    return found


def session_files(directory: Path) -> list[Status]:
    """The status of the session's directory, meta.json, HEAD and the folder of the segments."""
    base = os.fspath(directory)
    return statuses((base, f"{base}/{layout.META}", f"{base}/{layout.HEAD}", f"{base}/{layout.JOURNAL}"))


def is_settled(found: Iterable[Status], now_ns: int) -> bool:
    """Whether whatever changes after `now_ns`, the time before they were looked at, will have another status."""
    # A time far ahead is that of a clock which was set back since: it does not come again soon.
    return all(abs(now_ns - status[3]) >= TICK_NS for status in found)


def look(directory: Path, before: Seen | None = None, files: Sequence[Status] = ()) -> Seen:
    """The status of the journal's files now; `before` itself where nothing has changed.

    With `before` the segments are those known then, unless the folder has changed. `files`, where they were looked at
    already, are not looked at again. Raises `JournalUnreadable`.
    """
    now = time.time_ns()
    folder = f"{directory}/{layout.JOURNAL}"
    four = tuple(files or session_files(directory))
    is_known = before is not None and before.is_settled and bool(before.files) and before.files[3] == four[3]
    names = before.names if before is not None and is_known else tuple(layout.segment_names(directory))
    # The last one first: whatever a writer adds to another segment before it goes on to the last is seen then.
    found = statuses([f"{folder}/{name}" for name in reversed(names)])
    found.reverse()
    if before is not None and is_known and before.files == four and before.parts == tuple(found):
        return before
    if NOTHING in found:
        there = [os.path.lexists(f"{folder}/{name}") for name in names]
        names = tuple(name for name, is_there in zip(names, there, strict=True) if is_there)
        found = [status for status, is_there in zip(found, there, strict=True) if is_there]
    settled = is_settled(four, now) and is_settled(found, now)
    return Seen(four, names, tuple(found), is_settled=settled, looked_ns=now)


@contextmanager
def opened(path: Path, status: Status | None = None) -> Generator[int]:
    """The descriptor of a segment, for a while. Raises `OSError`, and `Moved` where its status says it is another."""
    try:
        file = layout.open_regular(path, buffering=0)
    except FileNotFoundError:
        if status is None or os.path.lexists(path):
            raise
        raise Moved from None
    with file:
        descriptor = file.fileno()
        if status is not None:
            now = os.fstat(descriptor)
            if (now.st_dev, now.st_ino) != status[:2]:
                raise Moved
        yield descriptor


def next_lines(descriptor: int, begin: int, end: int, *, known: int = 0, bytes_max: int) -> tuple[bytes, int]:
    """The lines from `begin` on, some kilobytes of them and at least one; or how long the unterminated rest is.

    No byte is looked at from `end` on. The first `known` are known to have no newline. Raises `ValueError` for a line
    of more than `bytes_max`, `Moved` for a file that has become shorter, and `OSError`.
    """
    size = end - begin
    if known < _READ_BYTES:
        text = read(descriptor, begin, min(size, _READ_BYTES, bytes_max + 1))
        lines = text.rfind(b"\n") + 1
        if lines:
            return text[:lines], 0
        known = len(text)
    while known < size and known <= bytes_max:
        chunk = read(descriptor, begin + known, min(size - known, _CHUNK_BYTES))
        newline = chunk.find(b"\n")
        if newline >= 0:
            known += newline
            break
        known += len(chunk)
    if known > bytes_max:
        raise ValueError(f"a line of more than {bytes_max} bytes")
    return (b"", size) if known == size else (read(descriptor, begin, known + 1), 0)


def read(descriptor: int, begin: int, size: int) -> bytes:
    """So many bytes. Raises `Moved` where there are fewer, and `OSError`."""
    text = os.pread(descriptor, size, begin)
    if len(text) != size:
        raise Moved
    return text


def fingerprint(descriptor: int, end: int) -> int:
    """The checksum of the few bytes before `end`."""
    begin = max(end - _END_BYTES, 0)
    return _checksum(descriptor, begin, end - begin)


def _checksum(descriptor: int, begin: int, size: int) -> int:
    """The checksum of so many bytes; -1 where there are fewer."""
    crc = 0
    while size > 0:
        chunk = os.pread(descriptor, min(size, _CHUNK_BYTES), begin)
        if not chunk:
            return -1
        crc = zlib.crc32(chunk, crc)
        begin, size = begin + len(chunk), size - len(chunk)
    return crc
