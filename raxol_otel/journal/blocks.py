"""A segment's bytes as blocks of whole lines, in bounded memory, with places known to the line and the byte."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raxol_otel.journal.layout import open_regular, unreadable

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Block", "blocks", "has_content"]

# A batch that stays in the processor's cache while it is decoded and proven: measured, larger ones are slower.
READ_BYTES: Final = 16 * 1024


@dataclass(slots=True)
class Block:
    """Some lines of a segment, each with its newline; or its unterminated rest, one line without.

    `line` (from 1) and `byte` are where the block begins in the file, `size` is its length in bytes.
    """

    path: Path
    lines: list[bytes]
    line: int
    byte: int
    size: int

    @property
    def terminated(self) -> bool:
        """Whether the last line ends in a newline."""
        return self.lines[-1].endswith(b"\n")

    def records(self) -> list[bytes]:
        """The lines that are not exactly empty."""
        return [line for line in self.lines if line != b"\n"]

    def place(self, index: int) -> tuple[int, int]:
        """The line and the byte at which the non-empty line `index` of this block begins."""
        byte = self.byte
        for number, line in enumerate(self.lines, self.line):
            if line != b"\n":
                if index == 0:
                    return number, byte
                index -= 1
            byte += len(line)
        raise IndexError(index)


def blocks(path: Path, *, line: int = 1, byte: int = 0) -> Iterator[Block]:
    """The segment's lines, block by block; its unterminated rest, where there is one, comes last and alone.

    They begin at a `byte` that begins a line, with that `line`'s number. Raises `JournalUnreadable`.
    """
    try:
        with open_regular(path, buffering=READ_BYTES) as file:
            if byte:
                file.seek(byte)
            while lines := file.readlines(READ_BYTES):
                rest = [] if lines[-1].endswith(b"\n") else [lines.pop()]
                for part in (lines, rest):
                    if part:
                        size = sum(map(len, part))
                        yield Block(path, part, line, byte, size)
                        line += len(part)
                        byte += size
    except OSError as error:
        raise unreadable(path, error) from error


def has_content(path: Path) -> bool:
    """Whether the segment has any byte that is no newline. Raises `JournalUnreadable`."""
    try:
        with open_regular(path) as file:
            while chunk := file.read(READ_BYTES):
                if chunk.strip(b"\n"):
                    return True
    except OSError as error:
        raise unreadable(path, error) from error
    return False
