"""Reading a journal: strict verdicts, in a stream, without ever writing (but for the owner's repair of a torn tail).

The rules, from the format:
* segments in ascending order, bytes split on newlines only, an exactly empty line skipped;
* the torn tail (the last non-empty line of all, unterminated) is left out and the journal is healthy;
* anything else that is no record with the next id is damage. The records before it stand; nothing at or after it is
  ever returned; one line is logged and one `damaged` signal published;
* a chained journal must link, and HEAD anchors it.

`read_batches` is the one loop over a journal; everything else here is built on it.
"""

from __future__ import annotations

import errno
import logging
import operator
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel import signals
from raxol_otel.errors import JournalDamaged, NotChained, WriteFailed
from raxol_otel.journal import chain, codec, layout
from raxol_otel.journal.blocks import Block, blocks, has_content
from raxol_otel.journal.damage import Damage, id_cause, unreadable_cause
from raxol_otel.journal.failure import reason_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Record = dict[str, Any]

__all__ = [
    "Damage",
    "Scan",
    "Walk",
    "cut_torn_tail",
    "iter_records",
    "last_offset",
    "publish_damage",
    "read_batches",
    "records_of",
    "resume_scan",
    "scan",
    "tail_damage",
    "verify",
]

_log = logging.getLogger("raxol_otel.journal")
_ID: Final = operator.itemgetter("id")
_INTEGERS: Final = {int}
_READ_ONLY_ERRORS: Final = frozenset({errno.EROFS, errno.EACCES, errno.EPERM})


@dataclass(frozen=True, slots=True)
class Scan:
    """What one reading of a journal found. `records` are those before the damage, where there is any."""

    ok: bool
    records: list[Record]
    damage: Damage | None = None
    torn: bool = False


@dataclass(slots=True)
class Walk:
    """Where a reading of one journal stands; read its fields after `read_batches` is exhausted or has raised.

    `last_id` is the last good record's offset (None: none yet). `head_offset` and `head_hash` are HEAD's anchor, taken
    before the segments; they only count in a chained journal. `is_sealed`: the first record carries a chain's hashes.
    `torn` is the unterminated tail; `unterminated` the last record, where it is the rest of an earlier segment. A
    `quiet` walk neither logs nor publishes damage: it is for whoever reads the journal again at once.
    """

    directory: Path
    quiet: bool = False
    chained: bool = False
    head_offset: int | None = None
    head_hash: str | None = None
    last_id: int | None = None
    last_hash: str = chain.GENESIS
    records: int = 0
    is_sealed: bool = False
    bytes_read: int = 0
    torn: Block | None = None
    unterminated: Block | None = None
    damage: Damage | None = None
    meta: dict[str, Any] = field(default_factory=dict[str, Any])

    def open(self) -> None:
        """Read meta.json and HEAD. Raises `JournalUnreadable`."""
        meta = layout.read_meta(self.directory)
        self.meta = dict(meta or {})
        self.chained = layout.is_chained(meta)
        head = layout.read_head(self.directory) or {}
        offset, tip_hash = head.get("offset"), head.get("tip_hash")
        self.head_offset = offset if type(offset) is int else None
        self.head_hash = tip_hash if type(tip_hash) is str else None

    @property
    def session_id(self) -> str:
        """The name of the session directory."""
        name = self.directory.name
        # Only a link has another; finding the whole real path costs, with thousands of sessions.
        return name if name not in {"", ".."} and not self.directory.is_symlink() else self.directory.resolve().name


def iter_records(directory: str | os.PathLike[str]) -> Iterator[Record]:
    """The journal's records, one by one, in bounded memory.

    Raises `JournalDamaged` after the last good record, `JournalUnreadable` where a file cannot be read.
    """
    for batch in read_batches(Walk(Path(directory))):
        yield from batch


def scan(directory: str | os.PathLike[str]) -> Scan:
    """All records and the verdict. Raises `JournalUnreadable`; damage is told, not raised."""
    walk = Walk(Path(directory))
    return _collect(walk)


def _collect(walk: Walk) -> Scan:
    records: list[Record] = []
    try:
        for batch in read_batches(walk):
            records += batch
    except JournalDamaged as error:
        return Scan(ok=False, records=records, damage=error.damage)
    return Scan(ok=True, records=records, torn=walk.torn is not None)


def last_offset(directory: str | os.PathLike[str]) -> int:
    """The last record's offset; 0 for an empty or a damaged journal. Raises `JournalUnreadable`."""
    walk = Walk(Path(directory))
    try:
        for _ in read_batches(walk):
            pass
    except JournalDamaged:
        return 0
    return walk.last_id or 0


def verify(directory: str | os.PathLike[str]) -> int | None:
    """The first offset of a chained journal that does not link, None when all do.

    Raises `NotChained` for an unchained journal, `JournalUnreadable` where a file cannot be read.
    """
    walk = Walk(Path(directory))
    if not layout.is_chained(layout.read_meta(walk.directory)):
        message = f"{walk.directory} is not chained: its meta.json does not say chain: true"
        raise NotChained(message)
    try:
        for _ in read_batches(walk):
            pass
    except JournalDamaged as error:
        return error.damage.last_offset + 1
    return None


def resume_scan(directory: str | os.PathLike[str]) -> Scan:
    """The owning writer's scan: as `scan`, and a torn tail is cut at the byte its line began.

    On read-only media the cut is declined quietly, as it is when the file is no longer as it was read.
    Raises `WriteFailed` when the cut fails for another reason.
    """
    walk = Walk(Path(directory))
    found = _collect(walk)
    cut_torn_tail(walk)
    return found


def cut_torn_tail(walk: Walk) -> bool:
    """Cut what a finished walk found torn, and sync; False where that may not be done. See `resume_scan`.

    The record before it may be the unterminated rest of an earlier segment: without the torn line it would be the
    torn one. So that gets its newline first. Raises `WriteFailed`.
    """
    if walk.torn is None:
        return True
    if walk.unterminated is not None and not _repair(walk.unterminated, _terminate, "terminate the last record"):
        return False
    return _repair(walk.torn, _cut, "cut the torn tail")


def _repair(block: Block, repair: Callable[[int, Block], None], what: str) -> bool:
    """Change the end of a segment, if it is still as it was read."""
    try:
        descriptor = os.open(block.path, os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _READ_ONLY_ERRORS:
            return False
        message = f"cannot open {block.path} to {what}: {error.strerror}"
        raise WriteFailed(message, reason=reason_of(error)) from error
    try:
        if os.fstat(descriptor).st_size != block.byte + block.size:
            return False
        repair(descriptor, block)
        os.fdatasync(descriptor)
    except OSError as error:
        message = f"cannot {what} of {block.path}: {error.strerror}"
        raise WriteFailed(message, reason=reason_of(error)) from error
    finally:
        os.close(descriptor)
    return True


def _cut(descriptor: int, torn: Block) -> None:
    os.ftruncate(descriptor, torn.byte)


def _terminate(descriptor: int, record: Block) -> None:
    os.pwrite(descriptor, b"\n", record.byte + record.size)


def read_batches(walk: Walk) -> Iterator[list[Record]]:
    """The records of a journal, a few dozen at a time, each batch checked before it is given out.

    Raises `JournalDamaged` after the last good record; the damage is logged and published before that.
    """
    walk.open()
    segments = _segments(walk.directory)
    for index, (path, size) in enumerate(segments):
        for block in blocks(path, size):
            if not block.terminated and not any(size and has_content(later) for later, size in segments[index + 1 :]):
                walk.torn = block
                break
            good, damage = records_of(walk, block)
            walk.bytes_read += block.size
            if good:
                walk.unterminated = None if block.terminated else block
                if not walk.records:
                    walk.is_sealed = "hash" in good[0] and "prev_hash" in good[0]
                walk.records += len(good)
                yield good
            if damage is not None:
                raise _report(walk, damage)
    if walk.chained:
        lost = tail_damage(walk)
        if lost is not None:
            walk.torn = None
            raise _report(walk, lost)


def _segments(directory: Path) -> list[tuple[Path, int]]:
    """The segments, and how much of each is read, so that what a writer adds meanwhile is behind all of it."""
    paths = layout.segments(directory)
    sizes: list[int] = []
    # The last one first: what an earlier one lacks when it is looked at can only have come after what a later one has.
    for path in reversed(paths):
        try:
            sizes.append(path.stat().st_size)
        except OSError:
            # Told when it is opened: the damage before it comes first.
            sizes.append(0)
    sizes.reverse()
    for index in reversed(range(len(sizes))):
        if sizes[index]:
            # Behind it nothing is read, so that it may be read as far as it goes.
            sizes[index] = sys.maxsize
            break
    return list(zip(paths, sizes, strict=True))


def records_of(walk: Walk, block: Block) -> tuple[list[Record], Damage | None]:
    """The good records at the start of a block, and the damage after them, if any. Moves the walk on."""
    lines = block.lines
    if b"\n" in lines or not block.terminated:
        # A terminated text of each record, so that one way of decoding serves all.
        lines = [line if line.endswith(b"\n") else line + b"\n" for line in block.records()]
        if not lines:
            return [], None
    values, proven, error = codec.decode_lines(lines, sort_keys=walk.chained)
    fault: tuple[str, str] | None = None
    if error is not None:
        fault = (unreadable_cause(lines[len(values)][:-1], error), str(error))
    values, id_fault = _in_sequence(walk, values)
    fault = id_fault or fault
    if walk.chained:
        linked, chain_fault = _linked(walk, lines, values, proven)
        if chain_fault is not None:
            values, fault = values[:linked], chain_fault
    if values:
        walk.last_id = values[-1]["id"]
    if fault is None:
        return values, None
    cause, detail = fault
    if cause == "head_hash":
        return values, _head_damage(walk, cause, detail)
    line, byte = block.place(len(values))
    return values, Damage(cause, block.path, line, byte, walk.last_id or 0, detail)


def _in_sequence(walk: Walk, values: list[Any]) -> tuple[list[Record], tuple[str, str] | None]:
    """The values up to the first that is no record with the next id."""
    previous = walk.last_id
    first = 1 if walk.chained else None
    # All at once where all is well: objects with exact integers, one after the other.
    try:
        ids = list(map(_ID, values))
    except (TypeError, KeyError):
        ids = []
    if ids and set(map(type, ids)) == _INTEGERS:
        start = (ids[0] if first is None else first) if previous is None else previous + 1
        if ids == list(range(start, start + len(ids))):
            return values, None
    for index, value in enumerate(values):
        found = id_cause(value, previous, first=first)
        if found is not None:
            return values[:index], found
        previous = value["id"]
    return values, None


def _linked(
    walk: Walk, lines: Sequence[bytes], values: list[Record], proven: Sequence[bool]
) -> tuple[int, tuple[str, str] | None]:
    """How many of the records link, and why the next one does not. Moves the walk's hash on."""
    count, cause = chain.follow(lines, values, proven, walk.last_hash)
    fault = None if cause is None else (cause, f"offset {values[count]['id']} does not link")
    if walk.head_offset is not None and walk.head_hash is not None and values:
        anchor = walk.head_offset - values[0]["id"]
        if 0 <= anchor < count and values[anchor]["hash"] != walk.head_hash:
            count, fault = anchor, ("head_hash", f"HEAD names another hash for offset {walk.head_offset}")
    if count:
        walk.last_hash = values[count - 1]["hash"]
    return count, fault


def tail_damage(walk: Walk) -> Damage | None:
    """Of a chained journal read to its end: HEAD names what is durable, so less than that, or a torn one, is damage."""
    last = walk.last_id or 0
    if walk.head_offset is None:
        return None
    torn = walk.torn
    if torn is not None and last + 1 <= walk.head_offset:
        line, byte = torn.place(0)
        detail = f"the unterminated record {last + 1} is at or below HEAD's offset {walk.head_offset}"
        return Damage("below_head", torn.path, line, byte, last, detail)
    if last < walk.head_offset:
        detail = f"HEAD names offset {walk.head_offset}, the last record is {last}"
        return _head_damage(walk, "below_head", detail)
    return None


def _head_damage(walk: Walk, cause: str, detail: str) -> Damage:
    return Damage(cause, walk.directory / layout.HEAD, 1, 0, walk.last_id or 0, detail)


def _report(walk: Walk, damage: Damage) -> JournalDamaged:
    walk.damage = damage
    if not walk.quiet:
        publish_damage(walk, damage)
    return JournalDamaged(damage)


def publish_damage(walk: Walk, damage: Damage) -> None:
    """Log one line and publish one `damaged` signal."""
    _log.error("journal %s is %s", walk.session_id, damage)
    signals.publish(
        signals.Signal(
            signals.SIGNAL_DAMAGED,
            {
                "dir": str(walk.directory),
                "segment": str(damage.segment),
                "session_id": walk.session_id,
                "cause": damage.cause,
                "last_offset": damage.last_offset,
            },
        )
    )
