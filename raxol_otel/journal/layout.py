"""Names of files and folders of a journal, and where journals live.

<base>/<session_id>/
  meta.json  HEAD  writer.lock
  journal/NNNNNN.jsonl        segments, read in ascending order
  snapshots/<sha256>.json
"""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

from raxol_otel.canonical import is_object
from raxol_otel.errors import InvalidSessionId, JournalUnreadable
from raxol_otel.journal import codec

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "HEAD",
    "JOURNAL",
    "LOCK",
    "META",
    "SCHEMA_VERSION",
    "SEGMENT_CAP",
    "SESSIONS_DIR_VARIABLE",
    "SNAPSHOTS",
    "base_directory",
    "check_session_id",
    "is_chained",
    "is_session_directory",
    "open_regular",
    "read_head",
    "read_meta",
    "segment_names",
    "segments",
]

HEAD: Final = "HEAD"
META: Final = "meta.json"
LOCK: Final = "writer.lock"
JOURNAL: Final = "journal"
SNAPSHOTS: Final = "snapshots"
# What a writer of today stamps.
SCHEMA_VERSION: Final = "1.2.0"
# A segment that has reached this size, in bytes, is followed by the next one.
SEGMENT_CAP: Final = 8 * 2**20
SESSIONS_DIR_VARIABLE: Final = "RAXOL_SESSIONS_DIR"

_SEGMENT: Final = re.compile(r"[0-9]{6}\.jsonl", re.ASCII)
_SESSION_ID: Final = re.compile(r"[A-Za-z0-9._-]+", re.ASCII)
# HEAD and meta.json are a few hundred bytes; a larger one is no HEAD of ours and is not read into memory whole.
SMALL_FILE_BYTES_MAX: Final = 16 * 2**20


def base_directory(base_dir: str | os.PathLike[str] | None = None) -> Path:
    """Where sessions live: the argument, else `$RAXOL_SESSIONS_DIR`, else `~/.raxol/sessions`."""
    if base_dir is not None:
        return Path(base_dir)
    from_environment = os.environ.get(SESSIONS_DIR_VARIABLE)
    return Path(from_environment) if from_environment else Path.home() / ".raxol" / "sessions"


def check_session_id(session_id: str) -> str:
    """The session id itself, or `InvalidSessionId`."""
    if session_id in {".", ".."} or not _SESSION_ID.fullmatch(session_id):
        msg = f"invalid session id {session_id!r}: letters, digits, '.', '_' and '-' only, not '.' or '..'"
        raise InvalidSessionId(msg)
    return session_id


def is_session_directory(directory: Path) -> bool:
    """Whether the directory looks like one session: it has `journal/`, `meta.json` or `HEAD`.

    Raises `OSError` when the directory cannot be looked into.
    """
    with os.scandir(directory) as entries:
        names = {entry.name for entry in entries}
    if JOURNAL in names:
        return (directory / JOURNAL).is_dir() or META in names or HEAD in names
    return META in names and HEAD in names


def segments(directory: Path) -> list[Path]:
    """The journal's segment files in ascending order; none when `journal/` is missing.

    Raises `JournalUnreadable` when the folder is there but cannot be listed.
    """
    return [directory / JOURNAL / name for name in segment_names(directory)]


def segment_names(directory: Path) -> list[str]:
    """As `segments`, the names alone. Raises `JournalUnreadable`."""
    try:
        # As text here and below: of thousands of sessions the path objects would cost as much as the calls.
        names = os.listdir(f"{directory}/{JOURNAL}")
    except FileNotFoundError:
        return []
    except OSError as error:
        raise unreadable(directory / JOURNAL, error) from error
    return sorted(filter(_SEGMENT.fullmatch, names))


def unreadable(path: Path, error: OSError) -> JournalUnreadable:
    """The error for a path that the operating system refuses."""
    return JournalUnreadable(path, error.strerror or str(error))


def read_meta(directory: Path) -> Mapping[str, Any] | None:
    """What meta.json says; None when it is absent or not a JSON object.

    Raises `JournalUnreadable` on any error but its absence: a meta.json that cannot be read must never make a
    chained journal pass as an unchained one.
    """
    try:
        text = _read_small(f"{directory}/{META}")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise unreadable(directory / META, error) from error
    return _as_object(text)


def read_head(directory: Path) -> Mapping[str, Any] | None:
    """What HEAD says; None when it is absent, unreadable or not a JSON object: then there is no anchor."""
    try:
        text = _read_small(f"{directory}/{HEAD}")
    except OSError:
        return None
    return _as_object(text)


def is_chained(meta: Mapping[str, Any] | None) -> bool:
    """Whether meta.json makes the journal chained: `chain` is exactly `true`."""
    return meta is not None and meta.get("chain") is True


def open_regular(path: str | Path, *, buffering: int = -1) -> BinaryIO:
    """Open a regular file for reading, and nothing else: a pipe in its place would be waited for.

    Raises `OSError`.
    """
    return open(path, "rb", buffering=buffering, opener=_regular)


def _regular(name: str, flags: int) -> int:
    descriptor = os.open(name, flags | os.O_NONBLOCK | os.O_CLOEXEC)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
    raise OSError(errno.EINVAL, "not a regular file", name)


def _read_small(path: str) -> bytes:
    with open_regular(path) as file:
        # Not more at once than is there: a reader makes room for all that it is asked for.
        text = file.read(min(os.fstat(file.fileno()).st_size, SMALL_FILE_BYTES_MAX) + 1)
    if len(text) > SMALL_FILE_BYTES_MAX:
        raise OSError(errno.EFBIG, f"larger than {SMALL_FILE_BYTES_MAX} bytes")
    return text


def _as_object(text: bytes) -> Mapping[str, Any] | None:
    try:
        value = codec.decode(text)
    except codec.DecodeError:
        return None
    return value if is_object(value) else None
