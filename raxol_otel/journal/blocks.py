"""A segment's bytes as blocks of whole lines, in bounded memory, with places known to the line and the byte."""

from __future__ import annotations

import sys
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


def blocks(path: Path, size: int = sys.maxsize) -> Iterator[Block]:
    """The segment's lines, of its first `size` bytes, block by block; an unterminated rest comes last and alone.

    Raises `JournalUnreadable`.
    """
    line, byte = 1, 0
    try:
        with open_regular(path, buffering=READ_BYTES) as file:
            while byte < size and (lines := file.readlines(READ_BYTES)):
                length = sum(map(len, lines))
                if length > size - byte:
                    lines, length = _cut(lines, length - (size - byte)), size - byte
                rest = b"" if lines[-1].endswith(b"\n") else lines.pop()
                if lines:
                    yield Block(path, lines, line, byte, length - len(rest))
                    line += len(lines)
                if rest:
                    yield Block(path, [rest], line, byte + length - len(rest), len(rest))
                    line += 1
                byte += length
    except OSError as error:
        raise unreadable(path, error) from error


def _cut(lines: list[bytes], beyond: int) -> list[bytes]:
    """The lines without so many bytes at their end."""
    while beyond >= len(lines[-1]):
        beyond -= len(lines.pop())
    return [*lines[:-1], lines[-1][: len(lines[-1]) - beyond]]


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
