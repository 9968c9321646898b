"""An operator's act: the records of a damaged journal before the damage, written as a new journal."""

from __future__ import annotations

import errno
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.canonical import is_object
from raxol_otel.errors import JournalDamaged, WriteFailed
from raxol_otel.journal.codec import encode
from raxol_otel.journal.failure import reason_of
from raxol_otel.journal.files import OS_FILES, replace_file
from raxol_otel.journal.head import HeadFile
from raxol_otel.journal.layout import (
    HEAD,
    JOURNAL,
    META,
    SCHEMA_VERSION,
    SEGMENT_CAP,
    SNAPSHOTS,
    check_session_id,
    open_regular,
    read_head,
)
from raxol_otel.journal.options import WriterOptions
from raxol_otel.journal.reader import Walk, read_batches
from raxol_otel.journal.segment import SEGMENT_NUMBER_MAX, End, Segment, open_segment

if TYPE_CHECKING:
    from collections.abc import Iterable

__all__ = ["salvage"]

_SNAPSHOT: Final = re.compile(r"snapshots/([0-9a-f]{64}\.json)", re.ASCII)
_FILE_MODE: Final = 0o600
_DIRECTORY_MODE: Final = 0o700


def salvage(directory: str | os.PathLike[str], new_directory: str | os.PathLike[str]) -> int:
    """Write the records before the damage as a new journal; how many there are. The old one is not touched.

    The records keep their ids and their hashes, and snapshots that they point to come along; a torn tail does not.
    The new journal is private to its owner, and is there whole or not at all.

    Raises `InvalidSessionId` for the new directory's name, `WriteFailed` when it is there already (an empty directory
    apart) or cannot be written, `JournalUnreadable` when the old one cannot be read.
    """
    old, new = Path(directory), Path(new_directory).absolute()
    check_session_id(new.name)
    if not old.is_dir():
        raise WriteFailed(f"nothing to salvage: {old} is not a directory", stage="append", reason="enoent")
    inside = Path(os.path.realpath(new))
    if inside.is_relative_to(os.path.realpath(old)):
        raise WriteFailed(f"{new} lies within {old}, which must not change", stage="append", reason="other")
    try:
        if os.path.lexists(new) and (not new.is_dir() or new.is_symlink() or any(new.iterdir())):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(new))
        making = Path(tempfile.mkdtemp(prefix=f"{new.name}.tmp.", dir=new.parent))
        making.chmod(_DIRECTORY_MODE)
        try:
            count = _write(old, making)
            making.rename(new)
        except BaseException:
            shutil.rmtree(making, ignore_errors=True)
            raise
        OS_FILES.sync_directory(new.parent)
    except OSError as error:
        message = f"cannot write the salvaged journal {new}: {error.strerror or error}"
        raise WriteFailed(message, stage="append", reason=reason_of(error)) from error
    return count


def _write(old: Path, new: Path) -> int:
    walk = Walk(old, quiet=True)
    walk.open()
    for folder in (JOURNAL, SNAPSHOTS):
        OS_FILES.make_directory(new / folder, _DIRECTORY_MODE)
    if walk.meta:
        replace_file(OS_FILES, new / META, encode(walk.meta), _FILE_MODE)
    head = read_head(old) or {}
    cap = head.get("segment_cap")
    out = _Out(new, cap if type(cap) is int and cap > 0 else SEGMENT_CAP)
    try:
        for batch in read_batches(walk):
            out.write(batch)
            _copy_snapshots(old, new, batch)
    except JournalDamaged:
        pass
    finally:
        end, number = out.close()
    schema = head.get("schema_version")
    options = WriterOptions(
        segment_cap=out.cap,
        immediate_sync_types=frozenset(),
        sync_ceiling_ms=0,
        schema_version=schema if type(schema) is str else SCHEMA_VERSION,
        file_mode=_FILE_MODE,
        directory_mode=_DIRECTORY_MODE,
    )
    HeadFile(OS_FILES, new / HEAD, options, chained=walk.chained).write(
        End(end.size, end.offset, walk.last_hash), number
    )
    for place in (new / JOURNAL, new / SNAPSHOTS, new):
        OS_FILES.sync_directory(place)
    return walk.records


class _Out:
    """The new journal's segments. Raises `OSError`."""

    def __init__(self, directory: Path, cap: int) -> None:
        self.cap = cap
        self._folder = directory / JOURNAL
        self._segment = self._open(1, End(0, 0, None))

    def _open(self, number: int, end: End) -> Segment:
        return open_segment(OS_FILES, self._folder, number, end, mode=_FILE_MODE, is_new=True)

    def write(self, records: Iterable[dict[str, Any]]) -> None:
        """Write a batch; segments end after the record that takes them to the cap."""
        for record in records:
            segment = self._segment
            segment.append(encode(record) + b"\n", record["id"], None)
            segment.forget(len(segment.unsynced))
            if segment.end.size >= self.cap and segment.number < SEGMENT_NUMBER_MAX:
                self._segment = self._open(segment.number + 1, segment.end)
                self._finish(segment)

    def _finish(self, segment: Segment) -> None:
        try:
            segment.sync()
        finally:
            segment.close()

    def close(self) -> tuple[End, int]:
        """Make all durable; where it ends, and the last segment's number."""
        self._finish(self._segment)
        return self._segment.end, self._segment.number


def _copy_snapshots(old: Path, new: Path, records: Iterable[dict[str, Any]]) -> None:
    """Copy what checkpoint records point to, where it is there to copy; a restore looks at it closely."""
    for record in records:
        if record.get("kind") != "checkpoint" or not is_object(record):
            continue
        reference = record.get("snapshot_ref")
        match = _SNAPSHOT.fullmatch(reference) if type(reference) is str else None
        if match is None:
            continue
        target = new / SNAPSHOTS / match[1]
        if target.exists():
            continue
        try:
            source = open_regular(old / SNAPSHOTS / match[1])
        except OSError:
            continue
        with source, target.open("xb") as copy:
            target.chmod(_FILE_MODE)
            shutil.copyfileobj(source, copy)
            copy.flush()
            os.fdatasync(copy.fileno())
