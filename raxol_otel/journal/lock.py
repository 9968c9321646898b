"""One writer a journal: `writer.lock`, taken, given back, and asked about without taking anything.

The file holds the writer's pid, and the writer holds an open-file-description lock on it for its life. That lock can be
asked about from another process, also across containers on one host; the pid only counts where it lives and its process
began before the file was written (a later one is a reused pid).

A dead writer's file is taken over in place, under its lock. What cannot be taken over so (a link, a file of another
user) is replaced instead, under a lock on the directory, so that two that find it never both replace it.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import re
import stat
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from raxol_otel.errors import JournalLocked
from raxol_otel.journal.layout import LOCK

if TYPE_CHECKING:
    from collections.abc import Generator

__all__ = ["Lock", "Writer", "WriterState", "acquire", "parse_pid", "probe"]

WriterState = Literal["none", "live", "stale", "unknown"]

_log = logging.getLogger("raxol_otel.journal")
# struct flock: type, whence, start, length, pid; padded by native alignment.
_FLOCK: Final = "hhqqi"
_PID: Final = re.compile(r"\+?0*([1-9][0-9]{0,9})", re.ASCII)
_LOCK_BYTES_MAX: Final = 4096
# /proc gives the boot time in whole seconds.
_CLOCK_SLACK_SECONDS: Final = 2.0
# So often two that race for a lock start anew before one gives up.
_TRIES_MAX: Final = 100
_GUARD_SECONDS_MAX: Final = 2.0
_HELD_ERRORS: Final = frozenset({errno.EAGAIN, errno.EACCES})


@dataclass(frozen=True, slots=True)
class Writer:
    """A journal's writer. `none`: no lock file, so it was closed; `unknown`: it could not be told.

    `pid` is what the lock file says, None when it says nothing usable.
    """

    state: WriterState
    pid: int | None = None


def probe(directory: Path, *, is_foreign: bool = False) -> Writer:
    """Look at the journal's lock, changing nothing. Never raises.

    `is_foreign`: the directory came from elsewhere (out of an archive), where the pid meant another process.
    """
    if is_foreign:
        return Writer("unknown" if os.path.lexists(directory / LOCK) else "none")
    try:
        text, written, is_held = _look(directory / LOCK)
    except FileNotFoundError:
        return Writer("none")
    except OSError:
        return Writer("unknown")
    pid = parse_pid(text)
    is_live = is_held or (pid is not None and pid != os.getpid() and _is_running(pid, written))
    return Writer("live" if is_live else "stale", pid)


@dataclass(slots=True)
class Lock:
    """A writer's hold on its journal."""

    path: Path
    descriptor: int

    def release(self) -> None:
        """Remove the file, if it is still ours, and let go. Never raises; twice is once."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor < 0:
            return
        with contextlib.suppress(OSError):
            if _is_at(self.path, descriptor):
                self.path.unlink()
        os.close(descriptor)

    def abandon(self) -> None:
        """Close a copy of the descriptor that a forked child inherited; the parent's lock stands."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)


def acquire(directory: Path, *, mode: int = 0o666) -> Lock:
    """Become the journal's writer.

    Raises `JournalLocked`, naming the holder, when there is another, and `OSError` where no lock can be had.
    """
    path = directory / LOCK
    for _ in range(_TRIES_MAX):
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, mode)
        except FileExistsError:
            lock = _take_over(path)
        else:
            lock = _hold(path, descriptor)
        if lock is not None:
            return lock
    raise _locked(path, None)


def _take_over(path: Path) -> Lock | None:
    """Take over what a dead writer left; None when it changed meanwhile and must be looked at again."""
    try:
        status = path.lstat()
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            with contextlib.suppress(PermissionError):
                return _hold(path, os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    _replace(path)
    return None


def _hold(path: Path, descriptor: int) -> Lock | None:
    """Lock an open file and write our pid into it; None when it is no longer the one at the path.

    Raises `JournalLocked` when another holds it, or when it names a live process. Closes the descriptor but on success.
    """
    is_ours = False
    try:
        if not _lock_file(descriptor):
            raise _locked(path, parse_pid(os.pread(descriptor, _LOCK_BYTES_MAX, 0)))
        if not _is_at(path, descriptor):
            return None
        pid = parse_pid(os.pread(descriptor, _LOCK_BYTES_MAX, 0))
        if pid is not None and pid != os.getpid() and _is_running(pid, os.fstat(descriptor).st_mtime):
            raise _locked(path, pid)
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # a full disk: the lock itself is held all the same
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        is_ours = True
        return Lock(path, descriptor)
    finally:
        if not is_ours:
            os.close(descriptor)


def _lock_file(descriptor: int) -> bool:
    """Lock the open file; False when another holds it. Where the file system has no locks the pid must do."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
    except OSError as error:
        if error.errno in _HELD_ERRORS:
            return False
        _log.warning("the file system has no file locks (%s): only the pid in %s guards the journal", error, LOCK)
    return True


def _replace(path: Path) -> None:
    """Remove what cannot be locked in place, if its writer is dead. Raises `JournalLocked` and `OSError`."""
    with _guard(path.parent):
        try:
            status = path.lstat()
        except FileNotFoundError:
            return  # somebody was faster
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1 and os.access(path, os.W_OK):
            return  # and it is a lock like any other now
        try:
            text, written, is_held = _look(path)
        except FileNotFoundError:
            text, written, is_held = b"", 0.0, False  # a link to nothing
        except PermissionError:
            raise _locked(path, None) from None  # whose it is cannot be told
        pid = parse_pid(text)
        if is_held or (pid is not None and pid != os.getpid() and _is_running(pid, written)):
            raise _locked(path, pid)
        path.unlink()


@contextlib.contextmanager
def _guard(directory: Path) -> Generator[None]:
    """Hold a lock on the directory; only ever for moments, so that waiting for it is bounded. Raises `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + _GUARD_SECONDS_MAX
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.001)
        yield
    finally:
        os.close(descriptor)


def _is_at(path: Path, descriptor: int) -> bool:
    """Whether the open file is the one at the path."""
    try:
        there, ours = path.lstat(), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (there.st_dev, there.st_ino) == (ours.st_dev, ours.st_ino)


def _locked(path: Path, pid: int | None) -> JournalLocked:
    holder = "another process" if pid is None else f"process {pid}"
    return JournalLocked(f"{path.parent} is being written by {holder} (see {path.name})", pid)


def _look(path: Path) -> tuple[bytes, float, bool]:
    """What the lock file says, when it was written (seconds since the epoch), and whether it is held."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        return os.read(descriptor, _LOCK_BYTES_MAX), os.fstat(descriptor).st_mtime, _is_held(descriptor)
    finally:
        os.close(descriptor)


def parse_pid(text: bytes) -> int | None:
    """The pid in a lock file; None for anything that is no pid above 0."""
    match = _PID.fullmatch(text.decode("ascii", "replace").strip(" \t\r\n\0"))
    return int(match[1]) if match else None


def _is_held(descriptor: int) -> bool:
    question = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, question)
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _is_running(pid: int, written: float) -> bool:
    """Whether the pid lives, and lived when the lock was written (seconds since the epoch)."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it lives, and is somebody else's
    began = _began(pid)
    return began is None or began <= written + _CLOCK_SLACK_SECONDS


def _began(pid: int) -> float | None:
    """When the process began, in seconds since the epoch; None where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        ticks = int(fields[19])
        uptime = float(Path("/proc/uptime").read_bytes().split()[0])
        return time.time() - uptime + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return None
