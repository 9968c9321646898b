"""The records of an open journal, up to an offset that is known to be whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel.errors import JournalDamaged
from raxol_otel.journal import codec
from raxol_otel.journal.blocks import blocks
from raxol_otel.journal.layout import segments
from raxol_otel.journal.reader import Walk, read_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raxol_otel.journal.writer import Writer

    Record = dict[str, Any]

__all__ = ["Records"]


class Records:
    """All records that the writer had appended when this was made, read anew at each iteration, in bounded memory.

    Records beyond are left out: a write in progress. Iterating raises `JournalDamaged` after the last good record, and
    `JournalUnreadable`.
    """

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self._directory = writer.directory
        self.last_offset = writer.last_offset

    def __len__(self) -> int:
        """How many there are."""
        return self.last_offset - self._writer.offset_before

    def __iter__(self) -> Iterator[Record]:
        """The records, in order."""
        for batch in self.batches():
            yield from batch

    def batches(self) -> Iterator[list[Record]]:
        """The records, in order, a few dozen at a time."""
        seen: int | None = None
        try:
            for batch in self._walk(quiet=True):
                yield batch
                seen = batch[-1]["id"]
        except JournalDamaged:
            yield from self._again(seen)

    def _again(self, seen: int | None) -> Iterator[list[Record]]:
        """What follows a record, looked at with the writer held off.

        Damage seen beside it may have been a write that failed and was cut back: damage is what stays.
        """
        rest: list[Record] = []
        confirmed = None
        with self._writer.locked():
            try:
                for batch in self._walk(quiet=False):
                    rest += batch if seen is None else [record for record in batch if record["id"] > seen]
            except JournalDamaged as error:
                confirmed = error
                self._writer.refuse(error.damage)
        if rest:
            yield rest
        if confirmed is not None:
            raise confirmed

    def _walk(self, *, quiet: bool) -> Iterator[list[Record]]:
        for batch in read_batches(Walk(self._directory, quiet=quiet)):
            excess = batch[-1]["id"] - self.last_offset
            if excess <= 0:
                yield batch
            elif excess < len(batch):
                yield batch[:-excess]

    def since(self, offset: int | None) -> list[Record]:
        """Those from an offset on, all for None."""
        found: list[Record] = []
        for batch in self.batches():
            if offset is None or batch[0]["id"] >= offset:
                found += batch
            else:
                found += batch[offset - batch[0]["id"] :]
        return found

    def after(self, offset: int) -> Iterator[Record]:
        """Those after an offset that was read before: only the segments that have them, and not verified again."""
        paths: list[Path] = []
        for path in reversed(segments(self._directory)):
            paths.append(path)
            first = next(_plain_records(path), None)
            if first is not None and first["id"] <= offset + 1:
                break
        for path in reversed(paths):
            for record in _plain_records(path):
                if offset < record["id"] <= self.last_offset:
                    yield record

    def check(self) -> None:
        """Read them all, and keep none."""
        for _ in self.batches():
            pass


def _plain_records(path: Path) -> Iterator[Record]:
    """A segment's records as they stand. Raises `JournalUnreadable`."""
    for block in blocks(path):
        # The unterminated rest of an earlier segment is a record like any other; a write in progress is none yet, or
        # one that the caller leaves out.
        lines = [line if line.endswith(b"\n") else line + b"\n" for line in block.records()]
        if lines:
            yield from codec.decode_lines(lines)[0]
