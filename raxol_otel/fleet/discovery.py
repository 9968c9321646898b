"""Which sessions there are below a folder, found again at little cost: a folder is listed when its status has changed.

A directory behind links is taken once, by its real path; the depth is bounded. A folder that may not be listed hides
nothing but itself.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from raxol_otel.exporters.sources import DEPTH_MAX
from raxol_otel.journal.files_seen import TICK_NS
from raxol_otel.journal.layout import is_session_directory

if TYPE_CHECKING:
    from collections.abc import Collection, Container, Iterable
    from pathlib import Path

__all__ = ["Discovery", "folder_of", "is_there", "sessions_of", "shown"]

_ROOT: Final = "."


@dataclass(slots=True)
class _Folder:
    """A folder that is no session: what it held when it was listed with this status."""

    depth: int
    status: tuple[int, int, int] = (0, 0, 0)
    is_settled: bool = False
    children: list[str] = field(default_factory=list[str])


class Discovery:
    """The sessions below `root`.

    `sessions` maps a session's path below the root to its directory (`.` is the root itself), `refused` a folder's to
    why it could not be listed. Both change with `look`.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.sessions: dict[str, Path] = {}
        self.refused: dict[str, str] = {}
        self._folders: dict[str, _Folder] = {}
        # The real path of each session and folder, and the way that it was first met by.
        self._real: dict[str, str] = {}
        self._met: dict[str, str] = {}
        # By the real path of what was met by more than one way, the folders of the others.
        self._others: dict[str, set[str]] = {}
        self._links = 0

    def look(self) -> tuple[set[str], set[str]]:
        """Look again; the sessions that are new, and those that have vanished.

        Raises `FileNotFoundError` while there is no such folder, `OSError` when it cannot be listed.
        """
        before = set(self.sessions)
        if _ROOT not in self._folders and _ROOT not in self.sessions:
            self._meet(_ROOT, os.path.realpath(self.root))
            self._folders[_ROOT] = _Folder(0)
        for where in list(self._folders):
            if where in self._folders:
                self._look_into(where)
        now = set(self.sessions)
        return now - before, before - now

    @property
    def linked(self) -> set[str]:
        """The sessions behind links, where the system may tell of no change."""
        root = self._real.get(_ROOT, "")
        if not self._links:
            return set()
        return {where for where in self.sessions if where != _ROOT and self._real[where] != f"{root}/{where}"}

    def forget(self, where: str) -> None:
        """The session is gone, or none any more: whatever stands there now is found by the next look."""
        self._drop(where)
        parent = self._folders.get(where.rpartition("/")[0] or _ROOT)
        if parent is not None:
            parent.is_settled = False

    def _look_into(self, where: str) -> None:
        folder = self._folders[where]
        path = self.root / where
        try:
            found = path.stat()
            if not stat.S_ISDIR(found.st_mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
            status = (found.st_dev, found.st_ino, found.st_ctime_ns)
            if folder.is_settled and status == folder.status and where not in self.refused:
                return
            if is_session_directory(path):
                real = self._real[where]
                self._drop(where)
                self._meet(where, real)
                self.sessions[where] = path
                return
            names = _names(path)
        except OSError as error:
            if where == _ROOT:
                raise
            if isinstance(error, FileNotFoundError):
                self._drop(where)
            else:
                self.refused[where] = error.strerror or str(error)
            return
        self.refused.pop(where, None)
        folder.status, folder.is_settled = status, time.time_ns() - status[2] >= TICK_NS
        self._take(where, folder, names)

    def _take(self, where: str, folder: _Folder, names: dict[str, bool]) -> None:
        for name in set(folder.children) - names.keys():
            self._drop(_below(where, name))
        folder.children = list(names)
        if folder.depth >= DEPTH_MAX:
            return
        for name, is_link in names.items():
            child = _below(where, name)
            known = self._real.get(child)
            if known is not None and not is_link and known == f"{self._real[where]}/{name}":
                continue
            real = os.path.realpath(self.root / child) if is_link else os.path.join(self._real[where], name)  # noqa: PTH118 - as text, for thousands
            if known == real:
                continue
            if known is not None:
                # A link that leads elsewhere by now, or something else in a link's place.
                self._drop(child)
            self._links += is_link
            if self._meet(child, real):
                self._folders[child] = _Folder(folder.depth + 1)
                self._look_into(child)
            else:
                self._others.setdefault(real, set()).add(where)

    def _meet(self, where: str, real: str) -> bool:
        """Note where a directory stands; says whether it was not met elsewhere."""
        if self._met.setdefault(real, where) != where:
            return False
        self._real[where] = real
        return True

    def _drop(self, where: str) -> None:
        """Forget a session or a folder with all that is below it."""
        self.sessions.pop(where, None)
        self.refused.pop(where, None)
        real = self._real.pop(where, None)
        if real is not None:
            del self._met[real]
            # It may be met by another way now.
            for other in self._others.pop(real, ()):
                if other in self._folders:
                    self._folders[other].is_settled = False
        folder = self._folders.pop(where, None)
        for name in folder.children if folder else ():
            self._drop(_below(where, name))


def folder_of(where: str, folders: Container[str]) -> str:
    """The one of these folders that the path is, or lies in; empty where none is."""
    while where and where not in folders:
        where = where.rpartition("/")[0]
    return where


def is_there(directory: Path) -> bool:
    """Whether there is a directory, be it one that may not be looked at."""
    try:
        directory.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        pass
    return True


def _names(path: Path) -> dict[str, bool]:
    """The folders in a folder, in order, and whether each is a link."""
    names: dict[str, bool] = {}
    with os.scandir(path) as entries:
        for entry in entries:
            # A link may lead to itself, or to where we may not look: then it is no folder of ours.
            with contextlib.suppress(OSError):
                if entry.is_dir():
                    names[entry.name] = entry.is_symlink()
    return dict(sorted(names.items()))


def _below(where: str, name: str) -> str:
    return name if where == _ROOT else f"{where}/{name}"


def sessions_of(changed: Iterable[str], sessions: Collection[str]) -> set[str]:
    """The sessions that these paths below the root lie in."""
    if "." in sessions:
        return {"."} if any(True for _ in changed) else set()
    found: set[str] = set()
    for path in changed:
        where = path
        while where and where not in sessions:
            where = where.rpartition("/")[0]
        if where:
            found.add(where)
    return found


def shown(path: str | os.PathLike[str]) -> str:
    """A path as text that anybody can print."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")
