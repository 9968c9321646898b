"""Where sessions are read from: a session directory, a folder of sessions, or a tar of either.

Folders are searched to a bounded depth; a directory behind links is taken once, by its real path. A tar is unpacked
into a private temporary folder, member by member, and nothing in it may lead outside.
"""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import UsageError
from raxol_otel.journal.layout import is_session_directory

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

__all__ = ["DEPTH_MAX", "Found", "open_sources"]

# How far below the given folder sessions are looked for.
DEPTH_MAX: Final = 5
_COPY_BYTES: Final = 1024 * 1024


@dataclass(slots=True)
class Found:
    """The session directories, in order of their paths, and the folders that could not be looked into."""

    sessions: list[Path] = field(default_factory=list[Path])
    unreadable: list[tuple[Path, str]] = field(default_factory=list[tuple[Path, str]])
    # For a session out of a tar: how to name it to the user.
    shown: dict[Path, str] = field(default_factory=dict[Path, str])

    def name(self, directory: Path) -> str:
        """How the user knows this directory."""
        return self.shown.get(directory, str(directory))


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
            path = Path(given)
            before = len(found.sessions) + len(found.unreadable)
            if not path.exists() and not path.is_symlink():
                raise UsageError(f"{path} does not exist", "name a session directory, a folder of sessions or a tar")
            if not path.is_dir() and not path.is_file():
                raise UsageError(f"{path} is neither a directory nor a file, or a link to itself")
            root = path if path.is_dir() else _unpacked(path, temporary)
            _search(root, found, seen, explicit=True)
            if root is not path:
                for session in found.sessions:
                    if session.is_relative_to(root):
                        found.shown[session] = f"{path}:{session.relative_to(root)}"
            if len(found.sessions) + len(found.unreadable) == before and not _seen_before(root, seen):
                raise UsageError(
                    f"no session journal in {path}",
                    "a session is a directory with journal/ or meta.json and HEAD; "
                    f"folders are searched {DEPTH_MAX} levels deep",
                )
        yield found
    finally:
        for folder in temporary:
            shutil.rmtree(folder, ignore_errors=True)


def _seen_before(root: Path, seen: set[str]) -> bool:
    """Whether the path holds only what an earlier path held already."""
    real = os.path.realpath(root)
    return any(other != real and other.startswith(real + os.sep) for other in seen) or f"session:{real}" in seen


def _search(root: Path, found: Found, seen: set[str], *, explicit: bool) -> None:
    waiting: list[tuple[Path, int]] = [(root, 0)]
    while waiting:
        directory, depth = waiting.pop()
        real = os.path.realpath(directory)
        if f"session:{real}" in seen or (real in seen and not (explicit and depth == 0)):
            continue
        seen.add(real)
        try:
            if is_session_directory(directory):
                seen.add(f"session:{real}")
                found.sessions.append(directory)
                continue
            entries = sorted(entry.name for entry in os.scandir(directory) if entry.is_dir())
        except OSError as error:
            if explicit and depth == 0:
                raise UsageError(f"cannot read {directory}: {error.strerror}") from error
            found.unreadable.append((directory, error.strerror or str(error)))
            continue
        if depth < DEPTH_MAX:
            waiting += [(directory / name, depth + 1) for name in reversed(entries)]


def _unpacked(path: Path, temporary: list[Path]) -> Path:
    """The tar's content in a new private folder."""
    try:
        with tarfile.open(path, "r:*") as archive:
            folder = Path(tempfile.mkdtemp(prefix="raxol-otel-"))
            temporary.append(folder)
            for member in archive:
                _unpack(archive, member, folder, path)
            return folder
    except tarfile.ReadError as error:
        raise UsageError(
            f"{path} is neither a directory nor a tar archive",
            "name a session directory, a folder of sessions or a tar",
        ) from error
    except (tarfile.TarError, EOFError) as error:
        raise UsageError(f"cannot read the archive {path}: {error}") from error
    except OSError as error:
        raise UsageError(f"cannot unpack {path}: {error.strerror or error}") from error


def _unpack(archive: tarfile.TarFile, member: tarfile.TarInfo, folder: Path, path: Path) -> None:
    target = folder / _inside(member.name, member, path)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    if member.issym() or member.islnk():
        linked = member.linkname if member.islnk() else str(PurePosixPath(member.name).parent / member.linkname)
        _inside(linked, member, path)
        try:
            source = archive.extractfile(member)
        except KeyError:
            source = None
        if source is None:
            # A link to a directory of this archive: that one is found by itself.
            return
    elif member.isfile():
        source = archive.extractfile(member)
    else:
        raise UsageError(f"refusing {path}: {member.name!r} is a device or a pipe")
    if source is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with source, target.open("xb") as file:
            shutil.copyfileobj(source, file, _COPY_BYTES)
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
