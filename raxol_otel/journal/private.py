"""Private journals: directories only their owner can enter, and none that others could have touched."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import UntrustedDirectory

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["DIRECTORY_MODE", "FILE_MODE", "check", "tighten", "tighten_within"]

DIRECTORY_MODE: Final = 0o700
FILE_MODE: Final = 0o600


def check(directory: Path) -> bool:
    """Whether the directory is there; then it is ours alone to write.

    Raises `UntrustedDirectory` for a symbolic link, what is no directory, another account's directory, and one that
    its group or others may write to. Raises `OSError`.
    """
    try:
        status = directory.lstat()
    except FileNotFoundError:
        return False
    if stat.S_ISLNK(status.st_mode):
        reason = "it is a symbolic link"
    elif not stat.S_ISDIR(status.st_mode):
        reason = "it is not a directory"
    elif status.st_uid != os.geteuid():
        reason = f"it belongs to user {status.st_uid}, not to {os.geteuid()}"
    elif status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        reason = f"others may write to it (mode {stat.S_IMODE(status.st_mode):04o})"
    else:
        return True
    message = f"a private journal cannot be kept in {directory}: {reason}"
    raise UntrustedDirectory(message)


def tighten(directory: Path) -> None:
    """Let only the owner into a directory that `check` has passed. Raises `UntrustedDirectory` and `OSError`."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(descriptor).st_uid != os.geteuid():
            message = f"a private journal cannot be kept in {directory}: it was replaced meanwhile"
            raise UntrustedDirectory(message)
        os.fchmod(descriptor, DIRECTORY_MODE)
    finally:
        os.close(descriptor)


def tighten_within(directory: Path) -> None:
    """Let only the owner into the session's folders and files, which an opener without `private` may have made.

    Raises `OSError`.
    """
    for folder, folders, names in os.walk(directory):
        for name in (*folders, *names):
            path = directory / folder / name
            status = path.lstat()
            if status.st_uid == os.geteuid() and not stat.S_ISLNK(status.st_mode):
                mode = DIRECTORY_MODE if stat.S_ISDIR(status.st_mode) else stat.S_IMODE(status.st_mode) & DIRECTORY_MODE
                if mode != stat.S_IMODE(status.st_mode):
                    path.chmod(mode)
