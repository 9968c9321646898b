"""Processes that are killed in the middle of what they do to their files, and what they said before."""

from __future__ import annotations

import os
import signal
import struct
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from raxol_otel.journal.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Said = Callable[[int], None]

__all__ = ["Ended", "KillingFiles", "die", "in_child", "kill_at_system_call"]

_NUMBER: Final = struct.Struct("<q")
# Modules of the functions that ask the operating system for something.
_SYSTEM: Final = frozenset({"posix", "fcntl"})


class Ended(NamedTuple):
    """How a child ended, and the numbers it had said until then."""

    is_killed: bool
    said: list[int]


def die() -> None:
    """End this process at once: nothing is flushed, closed or taken back."""
    os.kill(os.getpid(), signal.SIGKILL)


def in_child(work: Callable[[Said], None]) -> Ended:
    """Have a forked child do the work, which is to be killed or to come to its end."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Other threads of this process are the ceiling's at most, and it is made for forks.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        code = 1
        try:
            os.close(reading)
            signal.alarm(60)  # rather than hang for ever
            work(lambda number: void(os.write(writing, _NUMBER.pack(number))))
            code = 0
        except BaseException:  # noqa: BLE001 - the parent fails, and this says why
            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(writing)
    with open(reading, "rb") as pipe:  # noqa: PTH123 - a descriptor
        said = [number for (number,) in _NUMBER.iter_unpack(pipe.read())]
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, -signal.SIGKILL)
    return Ended(code != 0, said)


def void(_: object) -> None:
    """Nothing."""


def kill_at_system_call(number: int) -> None:
    """Kill this process just before or just after (odd, even) one of its calls of the operating system, from here on.

    Those of the lock and of a torn tail's repair are among them, which do not go through `Files`.
    """
    count = 0

    def look(_: object, happened: str, function: Any) -> None:
        nonlocal count
        if happened in ("c_call", "c_return") and getattr(function, "__module__", "") in _SYSTEM:
            count += 1
            if count == number:
                die()

    sys.setprofile(look)


class KillingFiles(Files):
    """Kills its process at its operation number `at` (from 1): `before` it, `after` it, or after `part` bytes of it.

    A number that is no write's kills nobody for `part`. `short_at`: that operation, if a write, takes only half.
    `names` are the operations so far.
    """

    def __init__(self, at: int = 0, how: str = "before", *, part: int = 0, short_at: int = 0) -> None:
        self.at, self.how, self.part, self.short_at = at, how, part, short_at
        self.names: list[str] = []

    def _begin(self, name: str) -> bool:
        """Count; whether to be killed afterwards."""
        self.names.append(name)
        is_now = len(self.names) == self.at
        if is_now and self.how == "before":
            die()
        return is_now and self.how == "after"

    def _end(self, *, is_last: bool) -> None:
        if is_last:
            die()

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """As the real one, perhaps the last thing."""
        is_last = self._begin("open")
        descriptor = super().open(path, flags, mode)
        self._end(is_last=is_last)
        return descriptor

    def close(self, descriptor: int) -> None:
        """As the real one, perhaps the last thing."""
        is_last = self._begin("close")
        super().close(descriptor)
        self._end(is_last=is_last)

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """As the real one, perhaps the last thing, and perhaps not all of it."""
        is_last = self._begin("write")
        if len(self.names) == self.short_at:
            data = data[: len(data) // 2]
        if len(self.names) == self.at and self.how == "part":
            super().write(descriptor, data[: self.part % len(data)], position)
            die()
        written = super().write(descriptor, data, position)
        self._end(is_last=is_last)
        return written

    def truncate(self, descriptor: int, size: int) -> None:
        """As the real one, perhaps the last thing."""
        is_last = self._begin("truncate")
        super().truncate(descriptor, size)
        self._end(is_last=is_last)

    def sync(self, descriptor: int) -> None:
        """Nothing, perhaps the last thing: a killed process loses nothing that it wrote, synced or not."""
        del descriptor
        is_last = self._begin("sync")
        self._end(is_last=is_last)

    def sync_directory(self, path: Path) -> None:
        """Nothing, perhaps the last thing."""
        del path
        is_last = self._begin("sync_directory")
        self._end(is_last=is_last)

    def rename(self, source: Path, target: Path) -> None:
        """As the real one, perhaps the last thing."""
        is_last = self._begin("rename")
        super().rename(source, target)
        self._end(is_last=is_last)

    def unlink(self, path: Path) -> None:
        """As the real one, perhaps the last thing."""
        is_last = self._begin("unlink")
        super().unlink(path)
        self._end(is_last=is_last)

    def make_directory(self, path: Path, mode: int) -> bool:
        """As the real one, perhaps the last thing."""
        is_last = self._begin("make_directory")
        is_new = super().make_directory(path, mode)
        self._end(is_last=is_last)
        return is_new
