"""Named places where a journal can be made to fail, and the file layer that does it."""

from __future__ import annotations

import errno
import os
import re
import signal
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal, get_args

from raxol_otel.journal.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["FOR_GOOD", "KILLING", "SITES", "Fault", "FaultFiles", "Faults", "Site", "Times"]

Site = Literal[
    "append_fail",
    "open_fail",
    "kill_after_write_before_head",
    "kill_after_head_before_publish",
    "writer_down",
    "short_write",
    "sync_fail",
    "rotate_fail",
]
Times = int | Literal["for good"]

SITES: Final[tuple[Site, ...]] = get_args(Site)
FOR_GOOD: Final = "for good"
# These end the process that meets them.
KILLING: Final = frozenset({"kill_after_write_before_head", "kill_after_head_before_publish"})
# What the system says unless the test chooses; the other sites have no errno.
_ERRORS: Final = {
    "append_fail": errno.ENOSPC,
    "open_fail": errno.EACCES,
    "short_write": errno.ENOSPC,
    "sync_fail": errno.EIO,
    "rotate_fail": errno.ENOSPC,
}
_SEGMENT: Final = re.compile(r"[0-9]{6}\.jsonl", re.ASCII)
_FIRST_SEGMENT: Final = "000001.jsonl"


@dataclass(slots=True)
class Fault:
    """A site that was armed, how often it is to fire, and how often it has. `error` is an errno, 0 where there is none.

    `is_ripe`: a record was written since it was armed.
    """

    site: Site
    times: Times
    error: int
    fired: int = 0
    is_ripe: bool = False

    @property
    def is_spent(self) -> bool:
        """Whether it fires no more."""
        return self.times != FOR_GOOD and self.fired >= self.times

    @property
    def is_owed(self) -> bool:
        """Whether it fired less often than it was armed for; once is enough for one that is armed for good."""
        return self.fired == 0 if self.times == FOR_GOOD else not self.is_spent

    def __str__(self) -> str:
        return f"{self.site} (fired {self.fired}, armed {self.times})"


class Faults:
    """The sites that are armed. Safe to use from several threads.

    `observe(what, fault)` is told of each one `armed` and `fired`, and of those that are `disarmed`, as it happens.
    """

    def __init__(self, observe: Callable[[str, Fault], object] | None = None) -> None:
        self._armed: list[Fault] = []
        self._guard = threading.Lock()
        self._observe = observe

    def arm(self, site: Site, *, times: Times = 1, error: int | None = None) -> Fault:
        """Arm a site. Raises `ValueError` for what makes no sense."""
        if site not in SITES:
            message = f"no fault site {site!r}; there are {', '.join(SITES)}"
            raise ValueError(message)
        if times != FOR_GOOD and (type(times) is not int or times < 1):
            message = f"times is a number above 0, or {FOR_GOOD!r}, not {times!r}"
            raise ValueError(message)
        if error is not None and (site not in _ERRORS or error not in errno.errorcode):
            message = f"{site} fails without an errno" if site not in _ERRORS else f"{error!r} is no errno"
            raise ValueError(message)
        return self.add(Fault(site, times, _ERRORS.get(site, 0) if error is None else error))

    def add(self, fault: Fault) -> Fault:
        """Arm what was made elsewhere."""
        with self._guard:
            self._armed.append(fault)
        self._say("armed", fault)
        return fault

    def disarm(self, site: Site | None = None) -> None:
        """Forget the faults of a site, or all: they fire no more, and are not owed."""
        with self._guard:
            gone = [fault for fault in self._armed if site in {None, fault.site}]
            self._armed = [fault for fault in self._armed if fault not in gone]
        for fault in gone:
            self._say("disarmed", fault)

    def fire(self, site: Site, *, is_ripe: bool = False) -> Fault | None:
        """The fault that strikes now, counted as fired; None where there is none. `is_ripe`: only one that is."""
        with self._guard:
            for fault in self._armed:
                if fault.site == site and not fault.is_spent and (fault.is_ripe or not is_ripe):
                    fault.fired += 1
                    break
            else:
                return None
        self._say("fired", fault)
        return fault

    def ripen(self) -> None:
        """A record was written."""
        with self._guard:
            for fault in self._armed:
                fault.is_ripe = True

    def armed(self) -> list[Fault]:
        """All that were armed and not disarmed, spent or not."""
        with self._guard:
            return list(self._armed)

    def _say(self, what: str, fault: Fault) -> None:
        if self._observe is not None:
            self._observe(what, fault)


class FaultFiles(Files):
    """The real files, with the faults that are armed. `is_used` tells whether a writer has done anything with it."""

    def __init__(self, faults: Faults) -> None:
        self.is_used = False
        self._faults = faults
        self._paths: dict[int, Path] = {}
        # After a short write: the descriptor, where the rest would go, and the errno that whoever writes it gets.
        self._rest: tuple[int, int, int] | None = None

    def _strike(self, site: Site, path: Path) -> None:
        fault = self._faults.fire(site)
        if fault is not None:
            raise OSError(fault.error, os.strerror(fault.error), str(path))

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """Open: a segment that must be new, but for the first, is a rotation."""
        if _is_segment(path):
            is_rotation = bool(flags & os.O_EXCL) and path.name != _FIRST_SEGMENT
            self._strike("rotate_fail" if is_rotation else "open_fail", path)
        descriptor = super().open(path, flags, mode)
        self._paths[descriptor] = path
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close."""
        self._paths.pop(descriptor, None)
        super().close(descriptor)

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """Write: what goes to the end of a segment is an append."""
        path = self._paths.get(descriptor)
        if path is None or not _is_segment(path):
            return super().write(descriptor, data, position)
        rest, self._rest = self._rest, None
        if rest is not None and rest[:2] == (descriptor, position):
            raise OSError(rest[2], os.strerror(rest[2]), str(path))
        if position < os.fstat(descriptor).st_size:
            # What a failed sync left unsure is written once more.
            return super().write(descriptor, data, position)
        self._strike("append_fail", path)
        short = self._faults.fire("short_write")
        if short is not None:
            written = super().write(descriptor, data[: len(data) // 2], position)
            self._rest = (descriptor, position + written, short.error)
            return written
        written = super().write(descriptor, data, position)
        self._faults.ripen()
        if self._faults.fire("kill_after_write_before_head"):
            _die()
        return written

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut."""
        self._rest = None
        super().truncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Sync."""
        path = self._paths.get(descriptor)
        if path is not None and _is_segment(path):
            self._strike("sync_fail", path)
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename: so HEAD comes into its place."""
        super().rename(source, target)
        if target.name == "HEAD" and self._faults.fire("kill_after_head_before_publish", is_ripe=True):
            _die()

    def make_directory(self, path: Path, mode: int) -> bool:
        """Make a directory: what every writer begins with."""
        self.is_used = True
        return super().make_directory(path, mode)


def _is_segment(path: Path) -> bool:
    return path.parent.name == "journal" and _SEGMENT.fullmatch(path.name) is not None


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
