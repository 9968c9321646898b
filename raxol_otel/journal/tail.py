"""Following a journal that grows: what is new since a position, without ever reading it twice for nothing.

    tail = Tail(directory)
    if tail.has_changed():                 # looks at the files' status only
        restart = tail.begin()             # None, or why everything is read from the start again
        for records in tail.batches(): ...
        tail.state, tail.damage, tail.is_behind_head

Bytes are consumed through the last newline; an unterminated line waits, and its writer may cut it off. A file is known
by its device, inode and a checksum of what was consumed of it: one that was only touched, copied or moved goes on, one
whose bytes are others, or fewer, is read anew. A verdict is that of `scan` over the files as they are.
A position is plain data (`position`, `Tail(directory, position)`), so that following survives a restart.
"""

from __future__ import annotations

import os
from collections import deque
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final, Literal

from raxol_otel.errors import JournalDamaged, JournalUnreadable
from raxol_otel.journal import layout
from raxol_otel.journal.blocks import Block, has_content
from raxol_otel.journal.files_seen import (
    Moved,
    Part,
    Seen,
    fingerprint,
    is_settled,
    look,
    next_lines,
    opened,
    read,
    session_files,
    statuses,
)
from raxol_otel.journal.reader import Walk, read_batches, records_of, tail_damage
from raxol_otel.journal.tail_position import (
    as_list,
    checked,
    restored_anchor,
    restored_damage,
    restored_walk,
    saved_anchor,
    saved_damage,
    saved_walk,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from raxol_otel.journal.damage import Damage
    from raxol_otel.journal.files_seen import Status

    Record = dict[str, Any]

__all__ = ["LINE_BYTES_MAX", "Restart", "Tail", "TailState"]

TailState = Literal["healthy", "torn", "damaged"]
# `rewritten`: the same journal, whose consumed bytes are no longer what they were (truncated, say); `replaced`:
# another journal stands in its place, or none: its first line is another.
Restart = Literal["rewritten", "replaced"]

# A line of more bytes is not read: whoever follows thousands of journals must stay small.
LINE_BYTES_MAX: Final = 128 * 2**20
# The hashes of so many records that HEAD does not name yet are kept, for when it does.
_HASHES_MAX: Final = 4_096
# A writer may cut a failed write back while it is read: damage counts once the file holds still, or so many tries.
_DAMAGE_TRIES: Final = 3
_VERSION: Final = 1


class Tail:
    """One journal, followed. Reads only; neither logs nor publishes.

    `damage` is what stands in the way now, as a scan would find it; `torn_bytes` is the size of an unterminated tail.
    `has_more`: the last `batches` did not come to the end, since it stopped at its limit, raised, or a file was changed
    under it. Raises `ValueError` for a position that is none of ours.
    """

    def __init__(
        self, directory: Path, position: Mapping[str, Any] | None = None, *, line_bytes_max: int = LINE_BYTES_MAX
    ) -> None:
        self.directory = directory
        self.line_bytes_max = line_bytes_max
        self.seen = Seen()
        self._reset()
        if position is not None:
            self._restore(position)

    def _reset(self) -> None:
        self._walk = Walk(self.directory, quiet=True)
        self._parts: list[Part] = []
        # Of the last records of a chained journal, those that HEAD did not name when they were read.
        self._hashes: deque[tuple[int, str]] = deque(maxlen=_HASHES_MAX)
        self._anchor: tuple[int | None, str | None] = (None, None)
        self.damage: Damage | None = None
        self.torn_bytes = 0
        # The checksum of the torn line's last bytes.
        self._torn_end = 0
        self.has_more = False

    # -- what is known

    @property
    def state(self) -> TailState:
        """The verdict over what was there when it was read last."""
        return "damaged" if self.damage is not None else "torn" if self.torn_bytes else "healthy"

    @property
    def is_behind_head(self) -> bool:
        """Whether HEAD names more records than there are, without being damage."""
        head = self._walk.head_offset
        return self.damage is None and not self.has_more and head is not None and head > self.last_offset

    @property
    def last_offset(self) -> int:
        """The offset of the last record consumed, 0 when there is none."""
        return self._walk.last_id or 0

    @property
    def head_offset(self) -> int | None:
        """What HEAD said when the journal was read last."""
        return self._walk.head_offset

    @property
    def records(self) -> int:
        """How many records were consumed."""
        return self._walk.records

    @property
    def session_id(self) -> str:
        """The name of the session directory."""
        return self._walk.session_id

    @property
    def created_at(self) -> Any:
        """What meta.json says of when the session began."""
        return self._walk.meta.get("created_at")

    @property
    def segments(self) -> int:
        """How many segments there are."""
        return len(self.seen.names)

    @property
    def size_bytes(self) -> int:
        """The size of all segments."""
        return self.seen.size_bytes

    @property
    def consumed_bytes(self) -> int:
        """How many bytes of the segments that are still there were consumed."""
        return sum(part.consumed for part in self._parts)

    # -- what is new

    def has_changed(self) -> bool:
        """Whether any file of the journal may hold something new; a few looks at their status."""
        seen = self.seen
        if self.has_more or not seen.is_settled:
            return True
        try:
            return look(self.directory, seen) is not seen
        except JournalUnreadable:
            return True

    def begin(self) -> Restart | None:
        """Look at what changed; says whether, and why, `batches` will begin at the journal's start again.

        Raises `JournalUnreadable`, and may be called again then.
        """
        # HEAD is looked at, read, and then the segments: what it names is in them, and a change of it will show.
        files = session_files(self.directory)
        walk = Walk(self.directory, quiet=True)
        walk.open()
        seen = look(self.directory, self.seen, files)
        restart = self._restart(walk, seen)
        if restart is not None:
            self._reset()
        if self._walk.records:
            self._walk.meta = walk.meta
            self._walk.head_offset, self._walk.head_hash = walk.head_offset, walk.head_hash
        else:
            self._walk = walk
        self._anchor = (walk.head_offset, walk.head_hash)
        while self._hashes and walk.head_offset is not None and self._hashes[0][0] <= walk.head_offset:
            self._hashes.popleft()
        known = {part.name: part for part in self._parts}
        self._parts = []
        for name, status in zip(seen.names, seen.parts, strict=True):
            part = known.get(name) or Part(name, status, is_settled=False)
            if part.status != status or not part.is_settled:
                part.status, part.is_settled = status, is_settled((status,), seen.looked_ns)
            self._parts.append(part)
        self.seen = seen
        return restart

    def batches(self, bytes_max: int | None = None) -> Iterator[list[Record]]:
        """The new records, a few dozen at a time, each batch checked before it is given out; to be exhausted.

        Stops after about `bytes_max`; then `has_more` is true. Raises `JournalUnreadable`.
        """
        walk = self._walk
        self.damage, self.has_more, walk.torn = None, True, None
        torn_before, self.torn_bytes = self.torn_bytes, 0
        limit = None if bytes_max is None else walk.bytes_read + bytes_max
        current = self._current()
        try:
            for index in range(current, len(self._parts)):
                for good in self._part(index, torn_before if index == current else 0):
                    if good:
                        yield good
                    if limit is not None and walk.bytes_read >= limit and self.damage is None:
                        return
                if self.damage is not None or walk.torn is not None:
                    break
        except Moved:
            return
        self.has_more = False
        if self.damage is None and walk.chained:
            self.damage = tail_damage(walk)

    def _current(self) -> int:
        """The index of the segment that reading goes on in: the last one that anything was consumed of."""
        consumed = [index for index, part in enumerate(self._parts) if part.consumed]
        return consumed[-1] if consumed else 0

    def _part(self, index: int, torn_before: int) -> Iterator[list[Record]]:
        """The new records of one segment; sets `damage` and the walk's torn tail where it ends so.

        Nothing is read beyond the size that was looked at. Raises `Moved` where the file is another by now.
        """
        part = self._parts[index]
        if part.consumed and part.consumed == part.size:
            return
        path = self._path(part.name)
        try:
            with opened(path, part.status) as descriptor:
                yield from self._lines(index, path, descriptor, torn_before)
        except OSError as error:
            raise layout.unreadable(path, error) from error

    def _lines(self, index: int, path: Path, descriptor: int, torn_before: int) -> Iterator[list[Record]]:
        part, tries = self._parts[index], 0
        known = self._still_torn(part, descriptor, torn_before)
        while part.consumed < part.size:
            begin, number = part.consumed, part.lines + 1
            try:
                text, rest = next_lines(descriptor, begin, part.size, known=known, bytes_max=self.line_bytes_max)
            except ValueError:
                raise JournalUnreadable(path, f"line {number} has more than {self.line_bytes_max} bytes") from None
            known = 0
            if rest:
                following = self._parts[index + 1 :]
                if not any(later.size and has_content(self._path(later.name)) for later in following):
                    for later in following:
                        # As a scan does, which tells what cannot be opened.
                        has_content(self._path(later.name))
                    # Not the line itself: it may be large, and is read again.
                    self._walk.torn = Block(path, [b"?"], number, begin, rest)
                    self.torn_bytes, self._torn_end = rest, fingerprint(descriptor, part.size)
                    return
                text = read(descriptor, begin, rest)
                if os.fstat(descriptor).st_size != part.size:
                    # It was not the whole line.
                    raise Moved
            lines = BytesIO(text).readlines()
            good = self._consume(part, Block(path, lines, number, begin, len(text)), text)
            if self.damage is not None and tries < _DAMAGE_TRIES and self._is_moving(part, path, descriptor):
                self.damage, tries = None, tries + 1
            yield good
            if self.damage is not None:
                return

    def _consume(self, part: Part, block: Block, text: bytes) -> list[Record]:
        """The good records of a block; the position moves behind them, and `damage` is what comes next."""
        walk = self._walk
        good, damage = records_of(walk, block)
        self.damage = damage
        if good:
            walk.records += len(good)
            if walk.chained and (walk.head_offset is None or walk.head_offset < good[-1]["id"]):
                self._hashes.extend((record["id"], record["hash"]) for record in good[-_HASHES_MAX:])
        count = len(block.lines)
        if damage is not None:
            line, byte = (damage.line, damage.byte) if damage.segment == block.path else block.place(len(good))
            text, count = text[: byte - block.byte], line - block.line
        walk.bytes_read += len(text)
        part.consume(text, count)
        part.is_open = damage is None and not block.terminated
        part.has_records = part.has_records or bool(good)
        return good

    def _is_moving(self, part: Part, path: Path, descriptor: int) -> bool:
        """Whether the file may have changed while it was read. Raises `Moved` when it is another by now."""
        if part.is_settled and statuses([str(path)]) == [part.status]:
            return False
        if os.fstat(descriptor).st_size < part.size or not part.is_before(descriptor):
            raise Moved
        return True

    def _still_torn(self, part: Part, descriptor: int, torn_before: int) -> int:
        """Of how many bytes from the position on it is known that they hold no newline."""
        end = part.consumed + torn_before
        is_there = torn_before and end <= part.size and fingerprint(descriptor, end) == self._torn_end
        return torn_before if is_there else 0

    def _path(self, name: str) -> Path:
        return self.directory / layout.JOURNAL / name

    # -- whether it is still the same

    def _restart(self, walk: Walk, seen: Seen) -> Restart | None:
        consumed = [part for part in self._parts if part.consumed]
        if not consumed:
            return None
        there = dict(zip(seen.names, seen.parts, strict=True))
        if not walk.chained:
            # A prefix of the segments may be dropped, but not all records.
            while consumed[0].name not in there and any(part.has_records for part in consumed[1:]):
                del consumed[0]
        if self._walk.chained == walk.chained and self._are_same(consumed, there) and self._is_anchored(walk):
            return None
        return "rewritten" if self._begins_as_before(consumed[0], there) else "replaced"

    def _are_same(self, consumed: list[Part], there: Mapping[str, Status]) -> bool:
        """Whether the consumed bytes of all these segments are still there, with nothing before or between them."""
        # In the order of a scan, which may be stopped by what comes first.
        known, last = {part.name: part for part in consumed}, consumed[-1].name
        for name in sorted(known.keys() | there.keys()):
            part, found = known.get(name), there.get(name)
            if part is None:
                if name < last and has_content(self._path(name)):
                    return False
                continue
            if found is None or not part.is_same(found, self._path(name), is_last=name == last):
                return False
            if part.is_open and not self._is_followed(name, there):
                return False
        return True

    def _is_followed(self, name: str, there: Mapping[str, Status]) -> bool:
        return any(status[2] and has_content(self._path(later)) for later, status in there.items() if later > name)

    def _is_anchored(self, walk: Walk) -> bool:
        """Whether a chained journal's HEAD agrees with the records consumed."""
        offset, tip_hash = anchor = walk.head_offset, walk.head_hash
        if not walk.chained or offset is None or tip_hash is None or anchor == self._anchor:
            return True
        if not 1 <= offset <= self.last_offset:
            return True
        if offset == self.last_offset:
            return tip_hash == self._walk.last_hash
        if self._hashes and self._hashes[0][0] <= offset:
            return anchor in self._hashes
        try:
            for batch in read_batches(Walk(self.directory, quiet=True)):
                if batch[-1]["id"] >= offset:
                    return True
        except JournalDamaged:
            pass
        return False

    def _begins_as_before(self, first: Part, there: Mapping[str, Status]) -> bool:
        path = next((self._path(name) for name, status in there.items() if status[2]), None)
        return path is not None and first.begins_at(path)

    # -- the position

    def position(self) -> dict[str, Any]:
        """Where following stands, as plain data; only between two readings."""
        return {
            "v": _VERSION,
            "parts": [part.saved() for part in self._parts],
            "seen": self.seen.saved(),
            "anchor": saved_anchor(self._anchor),
            "torn": [self.torn_bytes, self._torn_end],
            "more": self.has_more,
            "damage": saved_damage(self.damage),
            **saved_walk(self._walk),
        }

    def _restore(self, position: Mapping[str, Any]) -> None:
        try:
            if checked(int, position["v"]) != _VERSION:
                raise ValueError("a position of another version")  # noqa: TRY301 - one message for all of them
            self._parts = [Part.restored(saved) for saved in as_list(position["parts"])]
            self.seen = Seen.restored(position["seen"])
            self._anchor = restored_anchor(position["anchor"])
            self.torn_bytes, self._torn_end = (checked(int, number) for number in as_list(position["torn"]))
            self.has_more = checked(bool, position["more"])
            self.damage = restored_damage(self.directory, position["damage"])
            self._walk = restored_walk(self.directory, position)
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError("not a position of a tail, or of another version") from error
