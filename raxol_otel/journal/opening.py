"""From a session's directory to its writer: what is checked, repaired and made, in this order.

1. The directories, the lock, what a crash left behind.
2. meta.json says whether there is a chain; nothing is written where `chain=True` cannot be.
3. One streaming scan. A damaged journal, or one whose HEAD names more than there is, stays as it is to the last byte.
4. The torn tail is cut; everything HEAD may name is made durable; the last segment is opened; HEAD is written.
"""

from __future__ import annotations

import errno
import logging
import os
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, NoReturn

from raxol_otel.errors import JournalDamaged, NotChained, WriteFailed
from raxol_otel.journal import lock as locks
from raxol_otel.journal import meter, private
from raxol_otel.journal.blocks import has_content
from raxol_otel.journal.codec import encode
from raxol_otel.journal.damage import Damage
from raxol_otel.journal.failure import publish_failure, write_failed
from raxol_otel.journal.files import replace_file, sweep_temporaries
from raxol_otel.journal.layout import HEAD, JOURNAL, META, SNAPSHOTS, is_chained, read_head, read_meta, segments
from raxol_otel.journal.output import Output
from raxol_otel.journal.reader import Walk, cut_torn_tail, publish_damage, read_batches
from raxol_otel.journal.segment import End, open_segment
from raxol_otel.journal.tap import feed_for
from raxol_otel.journal.writer import Writer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from raxol_otel.journal.files import Files
    from raxol_otel.journal.lock import Lock
    from raxol_otel.journal.options import Description, WriterOptions
    from raxol_otel.journal.segment import Segment
    from raxol_otel.journal.tap import Feed

__all__ = ["open_writer"]

_log = logging.getLogger("raxol_otel.journal")
_CHUNK_BYTES: Final = 2**20
_NOT_ALLOWED: Final = frozenset(
    {errno.EACCES, errno.EPERM, errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENAMETOOLONG}
)


def open_writer(directory: Path, wanted: Description, options: WriterOptions, files: Files) -> Writer:
    """Open or create a journal for writing.

    Raises `JournalLocked`, `JournalUnreadable`, `NotChained`, `UntrustedDirectory`, and `WriteFailed` where it cannot
    be opened at all.
    """
    _make_directories(directory, wanted, options, files)
    lock = _lock(directory, options)
    try:
        return _open(directory, wanted, options, files, lock)
    except BaseException:
        if lock is not None:
            lock.release()
        raise


def _make_directories(directory: Path, wanted: Description, options: WriterOptions, files: Files) -> None:
    base = directory.parent
    try:
        if wanted.private:
            # Both are looked at before either is changed.
            for place in [place for place in (base, directory) if private.check(place)]:
                private.tighten(place)
        _make_ancestors(base.parent, files)
        for place in (base, directory):
            files.make_directory(place, options.directory_mode)
        if not os.path.lexists(directory / HEAD):
            # Whoever made them may have died before their names were durable.
            with suppress(PermissionError):  # one that may be entered, but not looked into
                files.sync_directory(base.parent)
            files.sync_directory(base)
    except OSError as error:
        _refuse(directory, f"cannot make {error.filename or directory}", "meta", error)


def _make_ancestors(place: Path, files: Files) -> None:
    missing: list[Path] = []
    while not place.exists():
        missing.append(place)
        place = place.parent
    for one in reversed(missing):
        files.make_directory(one, 0o777)
        with suppress(PermissionError):
            files.sync_directory(one.parent)


def _lock(directory: Path, options: WriterOptions) -> Lock | None:
    try:
        return locks.acquire(directory, mode=options.file_mode)
    except OSError as error:
        _log.warning("%s is written without a lock: %s", directory, error.strerror or error)
        if error.errno != errno.EISDIR:  # somebody's way to do without one
            publish_failure(directory.name, "lock", error)
        return None


def _open(directory: Path, wanted: Description, options: WriterOptions, files: Files, lock: Lock | None) -> Writer:
    meta = read_meta(directory)
    has_meta = os.path.lexists(directory / META)
    has_records = any(has_content(path) for path in segments(directory))
    chained = is_chained(meta)
    if wanted.chain and not chained and (has_meta or has_records):
        message = f"{directory} is not chained, and a chain cannot begin in the middle of a journal"
        raise NotChained(message)
    chained = chained or wanted.chain
    walk = Walk(directory)
    feed = feed_for(directory, meta or {})
    with ExitStack() as unless_opened:
        if feed is not None:
            unless_opened.callback(feed.close)
        damage = _damage(walk, feed)
        if damage is not None:
            before = _offset_before(walk)
            return Writer(directory, options, files, lock=lock, chained=chained, damage=damage, offset_before=before)
        sweep_temporaries(files, directory)
        if wanted.private:
            _tighten(directory)
        if not has_meta and not has_records:
            _describe(directory, wanted, options, files)
        segment = _prepare(directory, walk, options, files, chained=chained)
        unless_opened.pop_all()
    writer = Writer(
        directory,
        options,
        files,
        lock=lock,
        chained=chained,
        output=Output(files, directory / JOURNAL, segment, cap=options.segment_cap, mode=options.file_mode),
        feed=feed,
        offset_before=_offset_before(walk),
    )
    writer.due()  # HEAD
    return writer


def _offset_before(walk: Walk) -> int:
    """The offset before the first record's."""
    return (walk.last_id or 0) - walk.records


def _damage(walk: Walk, feed: Feed | None) -> Damage | None:
    """Read the journal; the damage for which it must not be written to."""
    try:
        for batch in read_batches(walk):
            if feed is not None:
                feed.seen(batch)
    except JournalDamaged as error:
        return error.damage
    last, head = walk.last_id or 0, walk.head_offset
    if head is None or head <= last:
        return None
    detail = f"HEAD names offset {head}, the last record is {last}: the journal has lost its tail"
    damage = Damage("below_head", walk.directory / HEAD, 1, 0, last, detail)
    publish_damage(walk, damage)
    return damage


def _tighten(directory: Path) -> None:
    try:
        private.tighten_within(directory)
    except OSError as error:
        _refuse(directory, f"cannot make {error.filename} private", "meta", error)


def _describe(directory: Path, wanted: Description, options: WriterOptions, files: Files) -> None:
    """Write meta.json, once. A chain does not begin without it."""
    meta = {
        "created_at": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "cwd": wanted.cwd,
        "git_branch": wanted.git_branch,
        "schema_version": options.schema_version,
        "title": wanted.title,
    }
    text = encode(meta | {"chain": True} if wanted.chain else meta)
    try:
        replace_file(files, directory / META, text, options.file_mode)
    except OSError as error:
        publish_failure(directory.name, "meta", error)
        if wanted.chain:
            _refuse(directory, "a chained journal cannot be kept without its meta.json", "meta", error, is_told=True)


def _prepare(directory: Path, walk: Walk, options: WriterOptions, files: Files, *, chained: bool) -> Segment:
    """Repair the torn tail, make what is missing, and open the segment that is appended to, everything durable."""
    folder = directory / JOURNAL
    if not cut_torn_tail(walk):
        message = f"{directory.name}: cannot cut the torn tail: its segment may not be written"
        raise WriteFailed(message, stage="append", reason="eacces")
    if walk.torn is not None:
        meter.torn_repaired()
    end = End(0, walk.last_id or 0, walk.last_hash if chained else None)
    there = segments(directory)
    segment = None
    try:
        for place in (folder, directory / SNAPSHOTS):
            files.make_directory(place, options.directory_mode)
        number = int(there[-1].stem) if there else 1
        segment = open_segment(files, folder, number, end, mode=options.file_mode, is_new=not there)
    except OSError as error:
        _refuse(directory, f"cannot open {error.filename or folder} for writing", "append", error)
    try:
        if walk.head_offset != end.offset:
            _make_all_durable(there, read_head(directory), files)
        files.sync(segment.descriptor)
        files.sync_directory(folder)
        files.sync_directory(directory)
    except OSError as error:
        segment.close()
        _refuse(directory, f"cannot sync {error.filename or folder}", "datasync", error)
    return segment


def _make_all_durable(there: list[Path], head: Mapping[str, Any] | None, files: Files) -> None:
    """Make durable what a writer that died may have left behind: everything from the segment that HEAD names on.

    If a sync of its failed, the kernel may take for clean what never reached the disk. So it is written again.
    """
    number = head.get("segment") if head is not None else None
    first = number if type(number) is int else 0
    for path in there:
        if int(path.stem) >= first:
            descriptor = _open_again(path, files)
            try:
                files.sync(descriptor)
            finally:
                files.close(descriptor)


def _open_again(path: Path, files: Files) -> int:
    """Open a segment, its bytes written again in their places where that is allowed."""
    try:
        descriptor = files.open(path, os.O_RDWR)
    except PermissionError:
        return files.open(path, os.O_RDONLY)
    try:
        position = 0
        while chunk := os.pread(descriptor, _CHUNK_BYTES, position):
            position += files.write(descriptor, chunk, position)
    except OSError:
        files.close(descriptor)
        raise
    return descriptor


def _refuse(directory: Path, what: str, stage: str, error: OSError, *, is_told: bool = False) -> NoReturn:
    # What may not be done is the caller's to know; what fails is for whoever watches as well.
    if not is_told and error.errno not in _NOT_ALLOWED:
        publish_failure(directory.name, stage, error)
    raise write_failed(directory.name, what, stage, error) from error
