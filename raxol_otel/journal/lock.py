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
from raxol_otel.journal.files import OS_FILES
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
_CLOCK_SLACK_SECONDS: Final = 2.0
# A process that has ended, though its parent has not yet asked how.
_DEAD_STATES: Final = frozenset({"Z", "X", "x"})
_HOLDER_TRIES: Final = 10
_HOLDER_PAUSE_SECONDS: Final = 0.005
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
    is_live = is_held or _is_alive(pid, written)
    return Writer("live" if is_live else "stale", pid)


@dataclass(slots=True)
class Lock:
    """A writer's hold on its journal."""

    path: Path
    descriptor: int

    def release(self) -> None:
        """Remove the file, if it is still ours, and let go. Never raises; twice is once."""
        if self.descriptor >= 0:
            try:
                if _is_at(self.path, self.descriptor):
                    self.path.unlink()
                # Before it is closed: interrupted in between, a descriptor is lost, but no lock is kept.
                fcntl.fcntl(self.descriptor, fcntl.F_OFD_SETLK, _flock(fcntl.F_UNLCK))
            except OSError:
                pass
            self.abandon()

    def abandon(self) -> None:
        """Close the descriptor. Of a copy that a forked child inherited the parent's lock stands."""
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
            descriptor = OS_FILES.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
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
        if not _lock_file(descriptor, fcntl.F_WRLCK):
            raise _locked(path, _holder(descriptor))
        if not _is_at(path, descriptor):
            return None
        pid = parse_pid(os.pread(descriptor, _LOCK_BYTES_MAX, 0))
        if _is_alive(pid, os.fstat(descriptor).st_mtime):
            raise _locked(path, pid)
        os.ftruncate(descriptor, 0)
        with contextlib.suppress(OSError):  # a full disk: the lock itself is held all the same
            os.pwrite(descriptor, str(os.getpid()).encode(), 0)
        is_ours = True
        return Lock(path, descriptor)
    finally:
        if not is_ours:
            os.close(descriptor)


def _holder(descriptor: int) -> int | None:
    """The pid of whoever holds the lock; one that took it just now may not have written it yet."""
    for _ in range(_HOLDER_TRIES):
        pid = parse_pid(os.pread(descriptor, _LOCK_BYTES_MAX, 0))
        if pid == os.getpid() or _is_alive(pid, os.fstat(descriptor).st_mtime):
            return pid
        time.sleep(_HOLDER_PAUSE_SECONDS)
    # Of another pid namespace, perhaps: what the file says is all there is.
    return parse_pid(os.pread(descriptor, _LOCK_BYTES_MAX, 0))


def _lock_file(descriptor: int, kind: int) -> bool:
    """Lock the open file; False when another holds it. Where the file system has no locks the pid must do."""
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, _flock(kind))
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
        is_plain = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
        if is_plain and os.access(path, os.W_OK, effective_ids=True):
            return  # and it is a lock like any other now
        descriptor = _open_to_look(path)
        if descriptor is None:
            path.unlink()  # it leads to no file, so that nobody holds it
            return
        try:
            # While it is held nobody can take the file over in place, as one who may write it would.
            if not _lock_file(descriptor, fcntl.F_RDLCK):
                raise _locked(path, _holder(descriptor))
            pid = parse_pid(os.pread(descriptor, _LOCK_BYTES_MAX, 0))
            if _is_alive(pid, os.fstat(descriptor).st_mtime):
                raise _locked(path, pid)
            if stat.S_ISLNK(status.st_mode) or _is_at(path, descriptor):
                path.unlink()
        finally:
            os.close(descriptor)


def _open_to_look(path: Path) -> int | None:
    """Open what is at the path for reading; None when that is no regular file.

    Raises `JournalLocked` where it may not be read: whose it is cannot be told.
    """
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            return None
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError:
        raise _locked(path, None) from None
    except OSError as error:
        if error.errno in {errno.ENOENT, errno.ELOOP, errno.ENOTDIR, errno.ENXIO}:
            return None
        raise


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


def _flock(kind: int) -> bytes:
    """What to ask for: a lock of that kind on the whole file."""
    return struct.pack(_FLOCK, kind, os.SEEK_SET, 0, 0, 0)


def _is_held(descriptor: int) -> bool:
    try:
        answer = fcntl.fcntl(descriptor, fcntl.F_OFD_GETLK, _flock(fcntl.F_WRLCK))
    except OSError:  # no file locks here: the pid must tell
        return False
    return bool(struct.unpack(_FLOCK, answer)[0] != fcntl.F_UNLCK)


def _is_alive(pid: int | None, written: float) -> bool:
    """Whether the pid is another process that lives, and lived when the lock was written (seconds since the epoch)."""
    if pid is None or pid == os.getpid():
        return False
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        pass  # it lives, and is somebody else's
    state, began = _state(pid)
    if state in _DEAD_STATES:
        return False
    # A start in the future says nothing: the clocks of a container need not be those of its host.
    now = time.time()
    return began is None or began <= written + _CLOCK_SLACK_SECONDS or began > now + _CLOCK_SLACK_SECONDS


def _state(pid: int) -> tuple[str, float | None]:
    """The process's state as /proc gives it, and when it began in seconds since the epoch; None where it is unknown."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        since_boot = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return fields[0].decode(), time.time() - time.clock_gettime(time.CLOCK_BOOTTIME) + since_boot
    except (OSError, ValueError, IndexError):
        return "", None
