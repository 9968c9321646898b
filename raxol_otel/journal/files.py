"""The operating system, as the writer uses it: one object whose methods are the only way it touches a file.

Tests put another one in its place, to make a chosen operation fail, or to stop the process before it.
"""

from __future__ import annotations

import errno
import itertools
import os
import stat
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["OS_FILES", "Files", "replace_file", "sweep_temporaries"]

_USUAL_FILE_MODE: Final = 0o666
_USUAL_DIRECTORY_MODE: Final = 0o777
_TEMPORARY: Final = itertools.count(1)


class Files:
    """The operations of the writer; each raises `OSError`. Positions and sizes are in bytes."""

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """Open a file and return its descriptor, which a child process does not inherit.

        A new one has the mode `mode`, less the process's mask only where that is the usual 0666.
        """
        descriptor = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, mode)
        if flags & os.O_EXCL and mode != _USUAL_FILE_MODE:
            try:
                os.fchmod(descriptor, mode)
            except OSError:
                os.close(descriptor)
                os.unlink(path)  # noqa: PTH108 - one style for all of them
                raise
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close a descriptor."""
        os.close(descriptor)

    def size(self, descriptor: int) -> int:
        """The size of an open file. Raises `ENOENT` when it has been deleted: nothing written to it would remain."""
        status = os.fstat(descriptor)
        if not status.st_nlink:
            raise FileNotFoundError(errno.ENOENT, "the file was deleted while it was open")
        return status.st_size

    def is_at(self, path: Path, descriptor: int) -> bool:
        """Whether the open file is the one at the path."""
        try:
            return os.path.samestat(os.stat(path), os.fstat(descriptor))  # noqa: PTH116 - as below
        except FileNotFoundError:
            return False

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """Write at a position; how many bytes were written, which may be fewer."""
        return os.pwrite(descriptor, data, position)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut a file."""
        os.ftruncate(descriptor, size)

    def sync(self, descriptor: int) -> None:
        """Make a file's content and size durable."""
        os.fdatasync(descriptor)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable. A file system that cannot is let be."""
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        except OSError as error:
            if error.errno != errno.EINVAL:
                raise
        finally:
            os.close(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename a file, in the place of the target if it is there."""
        os.rename(source, target)  # noqa: PTH104 - one style for all of them

    def unlink(self, path: Path) -> None:
        """Remove a name."""
        os.unlink(path)  # noqa: PTH108 - as above

    def make_directory(self, path: Path, mode: int) -> bool:
        """Make a directory, its mode as for `open`; says whether it was not there."""
        try:
            os.mkdir(path, mode)  # noqa: PTH102 - as above
            if mode != _USUAL_DIRECTORY_MODE:
                os.chmod(path, mode)  # noqa: PTH101 - as above
        except FileExistsError:
            if not path.is_dir():
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path)) from None
            return False
        return True


OS_FILES: Final = Files()


def replace_file(files: Files, path: Path, content: bytes, mode: int, *, within: Path | None = None) -> None:
    """Put a small file in place whole: a temporary one, synced, renamed, the directory synced.

    The temporary file stands beside it, or in the directory `within`, of the same file system. Raises `OSError`; then
    the old file, if there was one, is still there and the temporary one is gone.
    """
    temporary = (within or path.parent) / f"{path.name}.tmp.{os.getpid()}.{next(_TEMPORARY)}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    descriptor = files.open(temporary, flags, mode)
    try:
        try:
            written = files.write(descriptor, content, 0)
            if written != len(content):
                raise OSError(errno.ENOSPC, f"only {written} of {len(content)} bytes were written")
            files.sync(descriptor)
        finally:
            files.close(descriptor)
        files.rename(temporary, path)
    except OSError:
        _remove_quietly(files, temporary)
        raise
    files.sync_directory(path.parent)


def sweep_temporaries(files: Files, directory: Path) -> None:
    """Remove what a crash left of `replace_file`, directly in the directory. What cannot be removed stays."""
    try:
        with os.scandir(directory) as entries:
            names = [entry.path for entry in entries if ".tmp." in entry.name and _is_file(entry)]
    except OSError:
        return
    for name in names:
        _remove_quietly(files, type(directory)(name))


def _is_file(entry: os.DirEntry[str]) -> bool:
    return stat.S_ISREG(entry.stat(follow_symlinks=False).st_mode)


def _remove_quietly(files: Files, path: Path) -> None:
    try:
        files.unlink(path)
    except OSError:
        return
