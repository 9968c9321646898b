"""Where sessions are read from: a session directory, a folder of sessions, or a tar of either.

Folders are searched to a bounded depth; a directory behind links is taken once, by its real path. A tar is unpacked
into a private temporary folder, member by member, and nothing in it may lead outside.
"""

from __future__ import annotations

import contextlib
import lzma
import os
import shutil
import stat
import tarfile
import tempfile
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final, cast

from raxol_otel.errors import UsageError
from raxol_otel.journal.layout import is_session_directory

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

__all__ = ["DEPTH_MAX", "Found", "open_sources", "refuse_inside_session"]

# How far below the given folder sessions are looked for.
DEPTH_MAX: Final = 5
_COPY_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class Found:
    """The session directories, in order of their paths, and the folders that could not be looked into."""

    sessions: list[Path] = field(default_factory=list[Path])
    unreadable: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])
    archives: list[Path] = field(default_factory=list[Path])
    # For a session out of a tar: how to name it to the user.
    shown: dict[Path, str] = field(default_factory=dict[Path, str])

    def refuse_output(self, path: str | os.PathLike[str], what: str) -> None:
        """Raise `UsageError` when writing there would overwrite, or add to, what is read."""
        refuse_inside_session(path, what)
        real = os.path.realpath(path)
        for archive in self.archives:
            if real == os.path.realpath(archive):
                raise UsageError(f"{what} {path} is the archive that is read", "name another file")
        for session in self.sessions:
            inside = os.path.realpath(session)
            if real == inside or real.startswith(inside + os.sep):
                raise UsageError(f"{what} {path} lies inside the session {self.name(session)}", "name a file elsewhere")

    def name(self, directory: Path) -> str:
        """How the user knows this directory."""
        return self.shown.get(directory, str(directory))


def refuse_inside_session(path: str | os.PathLike[str], what: str) -> None:
    """Raise `UsageError` when writing there would add to a session: it is evidence, whatever is read just now."""
    real = Path(os.path.realpath(path))
    for folder in real.parents:
        with contextlib.suppress(OSError):
            if is_session_directory(folder):
                raise UsageError(f"{what} {path} lies inside the session {folder}", "name a file elsewhere")


@contextmanager
def open_sources(paths: Iterable[str | os.PathLike[str]]) -> Generator[Found]:
    """Find the sessions below all paths; what was unpacked is removed at the end.

    Raises `UsageError` for a path that does not exist, is neither directory nor tar, or has no session.
    """
    found = Found()
    seen: set[str] = set()
    temporary: list[Path] = []
    try:
        for given in paths:
            if not os.fspath(given):
                raise UsageError("an empty PATH names nothing", "is a variable unset?")
            path = Path(given)
            before = len(found.sessions) + len(found.unreadable)
            root = path if _is_directory(path) else _unpacked(path, temporary)
            met = _search(root, found, seen)
            if root is not path:
                found.archives.append(path)
                for session in found.sessions:
                    if session.is_relative_to(root):
                        found.shown[session] = f"{path}:{session.relative_to(root)}"
            if len(found.sessions) + len(found.unreadable) == before and not met:
                raise UsageError(
                    f"no session journal in {path}",
                    "a session is a directory with journal/ or meta.json and HEAD; "
                    f"folders are searched {DEPTH_MAX} levels deep",
                )
        yield found
    finally:
        for folder in temporary:
            shutil.rmtree(folder, ignore_errors=True)


def _is_directory(path: Path) -> bool:
    """Whether the path is a directory, else a file. Raises `UsageError` for anything else."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError as error:
        raise UsageError(f"{path} does not exist", "name a session directory, a folder of sessions or a tar") from error
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror or error}") from error
    if not stat.S_ISDIR(mode) and not stat.S_ISREG(mode):
        raise UsageError(f"{path} is neither a directory nor a file")
    return stat.S_ISDIR(mode)


def _search(root: Path, found: Found, seen: set[str]) -> bool:
    """Find the sessions; says whether one was met that was found before."""
    waiting: list[tuple[Path, int]] = [(root, 0)]
    met = False
    while waiting:
        directory, depth = waiting.pop()
        real = os.path.realpath(directory)
        if f"session:{real}" in seen:
            met = True
            continue
        if real in seen and depth:
            met = met or any(other.startswith(f"session:{real}{os.sep}") for other in seen)
            continue
        seen.add(real)
        try:
            if is_session_directory(directory):
                seen.add(f"session:{real}")
                found.sessions.append(directory)
                continue
            entries = _folders(directory)
        except OSError as error:
            if directory is root:
                raise UsageError(f"cannot read {directory}: {error.strerror}") from error
            found.unreadable.append((directory, error.strerror or str(error)))
            continue
        if depth < DEPTH_MAX:
            waiting += [(directory / name, depth + 1) for name in reversed(entries)]
    return met


def _folders(directory: Path) -> list[str]:
    names: list[str] = []
    with os.scandir(directory) as entries:
        for entry in entries:
            # A link may lead to itself, or to where we may not look: then it is no folder of ours.
            with contextlib.suppress(OSError):
                if entry.is_dir():
                    names.append(entry.name)
    return sorted(names)


def _unpacked(path: Path, temporary: list[Path]) -> Path:
    """The tar's content in a new private folder."""
    try:
        with tarfile.open(path, "r:*") as archive:
            private = Path(tempfile.mkdtemp(prefix="raxol-otel-"))
            temporary.append(private)
            # The folder's name is the session's where the archive has none: it must not be another each time.
            folder = private / (path.name.split(".")[0] or "archive")
            folder.mkdir()
            links: list[tuple[Path, Path]] = []
            for member in archive:
                _unpack(archive, member, folder, path, links)
                cast("Any", archive).members = []  # else it keeps them all
            _copy_linked(links)
            # To the end, where the checksum stands.
            while cast("Any", archive).fileobj.read(_COPY_BYTES):
                pass
            return folder
    except tarfile.ReadError as error:
        raise UsageError(
            f"{path} is neither a directory nor a tar archive",
            "name a session directory, a folder of sessions or a tar",
        ) from error
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise UsageError(f"cannot read the archive {path}: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot unpack {path}: {error.strerror or error}") from error


def _copy_linked(links: list[tuple[Path, Path]]) -> None:
    """What links name, until no more can be had: circles and links to nothing stay away."""
    waiting = links
    while waiting:
        missing = [(target, source) for target, source in waiting if not source.is_file()]
        for target, source in waiting:
            if source.is_file() and not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, target)
        if len(missing) == len(waiting):
            return
        waiting = missing


def _unpack(
    archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, path: Path, links: list[tuple[Path, Path]]
) -> None:
    target = folder / _inside(member.name, member, path)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    if member.issym() or member.islnk():
        linked = member.linkname if member.islnk() else str(PurePosixPath(member.name).parent / member.linkname)
        links.append((target, folder / _inside(linked, member, path)))
        return
    if not member.isfile():
        raise UsageError(f"refusing {path}: {member.name!r} is a device or a pipe")
    source = archive.extractfile(member)
    if source is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with source, target.open("xb") as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
        with contextlib.suppress(ValueError, OverflowError, OSError):
            os.utime(target, (member.mtime, member.mtime))


def _inside(name: str, member: tarfile.TarInfo, path: Path) -> PurePosixPath:
    """The name as a path below the root of the archive. Raises `UsageError` when it leads outside."""
    parts: list[str] = []
    is_outside = name.startswith("/")
    for part in PurePosixPath(name).parts:
        if part == "..":
            is_outside = is_outside or not parts
            del parts[-1:]
        else:
            parts.append(part)
    if is_outside or "\0" in name:
        raise UsageError(
            f"refusing {path}: member {member.name!r} leads outside the archive",
            "unpack it yourself where that is safe, and name the folder",
        )
    return PurePosixPath(*parts)
