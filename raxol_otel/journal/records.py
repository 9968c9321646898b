"""The records of an open journal, up to an offset that is known to be whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel.journal.reader import Walk, read_batches

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    Record = dict[str, Any]

__all__ = ["Records"]


class Records:
    """All records up to `last_offset`, read anew at each iteration, in bounded memory.

    Records beyond are left out: a write in progress. Iterating raises `JournalDamaged` at the end of the good ones, and
    `JournalUnreadable`; damage is published as a signal unless `is_quiet`.
    """

    def __init__(self, directory: Path, last_offset: int, *, is_quiet: bool = True) -> None:
        self.directory = directory
        self.last_offset = last_offset
        self._is_quiet = is_quiet

    def __len__(self) -> int:
        """The offset of the last record, which is their number where the first is 1."""
        return max(self.last_offset, 0)

    def __iter__(self) -> Iterator[Record]:
        """The records, in order."""
        for batch in self._batches():
            yield from batch

    def _batches(self) -> Iterator[list[Record]]:
        for batch in read_batches(Walk(self.directory, quiet=self._is_quiet)):
            excess = batch[-1]["id"] - self.last_offset
            if excess <= 0:
                yield batch
            elif excess < len(batch):
                yield batch[:-excess]

    def since(self, offset: int | None) -> list[Record]:
        """Those from an offset on, all for None."""
        found: list[Record] = []
        for batch in self._batches():
            if offset is None or batch[0]["id"] >= offset:
                found += batch
            else:
                found += batch[offset - batch[0]["id"] :]
        return found

    def check(self) -> None:
        """Read them all, and keep none."""
        for _ in self._batches():
            pass
