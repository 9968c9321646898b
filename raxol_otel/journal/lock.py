"""Who writes a journal, asked without taking anything.

`writer.lock` holds the writer's pid, and the writer holds an open-file-description lock on the file for its life. That
lock can be asked about from another process, also across containers on one host; the pid only counts where it lives
and its process began before the file was written (a later one is a reused pid).
"""

from __future__ import annotations

import fcntl
import os
import re
import struct
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from raxol_otel.journal.layout import LOCK

__all__ = ["Writer", "WriterState", "probe"]

WriterState = Literal["none", "live", "stale", "unknown"]

# struct flock: type, whence, start, length, pid; padded by native alignment.
_FLOCK: Final = "hhqqi"
_PID: Final = re.compile(r"\+?0*([1-9][0-9]{0,9})", re.ASCII)
_LOCK_BYTES_MAX: Final = 4096
# /proc gives the boot time in whole seconds.
_CLOCK_SLACK_SECONDS: Final = 2.0


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
