"""What damage is, and what explains it. A cause explains; it never changes a verdict."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel.canonical import is_object
from raxol_otel.catalogue import DAMAGE_CAUSES

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.journal.codec import DecodeError

__all__ = ["CAUSES", "Damage", "id_cause", "unreadable_cause"]

CAUSES: Final = DAMAGE_CAUSES

_NUL_RUN: Final = b"\0\0\0\0"
# Explaining must stay cheap on a huge line of garbage: so many bytes are looked at again.
_SPLICE_BYTES_MAX: Final = 8 * 2**20
_KINDS: Final = {"bool": "a boolean", "int": "an integer", "float": "a float", "str": "a text", "list": "an array"}
_SHOWN_OFFSET_LIMIT: Final = 10**18


@dataclass(frozen=True, slots=True)
class Damage:
    """Where a journal is damaged.

    `cause` is one of `CAUSES`; `segment` the file (a segment, or HEAD); `line` its line from 1; `byte` the offset at
    which that line begins; `last_offset` the id of the last good record, 0 when there is none; `detail` says more and
    never holds content of the journal.
    """

    cause: str
    segment: Path
    line: int
    byte: int
    last_offset: int
    detail: str = ""

    @property
    def place(self) -> str:
        """The segment relative to the session directory: `journal/000003.jsonl` or `HEAD`."""
        name = self.segment.name
        return name if name == "HEAD" else f"journal/{name}"

    def __str__(self) -> str:
        more = f" ({self.detail})" if self.detail else ""
        place = f"{self.place} line {self.line}, byte {self.byte}"
        return f"damaged at {place}: {self.cause}{more}; last good offset {self.last_offset}"


def unreadable_cause(line: bytes, error: DecodeError) -> str:
    """Why a line is not one JSON value."""
    if _NUL_RUN in line or not line.strip(b"\0"):
        return "nul_run"
    if error.invalid_utf8:
        return "invalid_utf8"
    return "spliced" if _is_spliced(line) else "unparsable"


def _is_spliced(line: bytes) -> bool:
    """Whether a whole record begins inside the line: two records glued together, or a stub and the next record."""
    if not line.lstrip(b" \t\r").startswith(b"{"):
        return False
    place, budget = 0, _SPLICE_BYTES_MAX
    while budget > 0:
        place = line.find(b'{"', place + 1)
        if place < 0:
            return False
        budget -= len(line) - place
        try:
            # Good enough to explain, and never slow on deep garbage.
            value = orjson.loads(line[place:])
        except orjson.JSONDecodeError:
            continue
        if is_object(value) and "id" in value:
            return True
    return b'}{"' in line


def id_cause(record: Any, previous: int | None, *, first: int | None) -> tuple[str, str] | None:
    """Why a decoded line is no record that may follow `previous`, as (cause, detail); None when it is one.

    `first` is the only id a first record may have, None when any will do.
    """
    if not is_object(record):
        return "not_object", f"the line is {_kind(record)}"
    found = record.get("id")
    if type(found) is not int:
        return "id_missing", f"the id is {_kind(found)}" if "id" in record else "there is no id"
    expected = first if previous is None else previous + 1
    if expected is None or found == expected:
        return None
    cause = "id_repeated" if previous is not None and found <= previous else "id_gap"
    # An id may have 1,024 digits; the message need not.
    if max(abs(found), abs(expected)) >= _SHOWN_OFFSET_LIMIT:
        return cause, "offsets out of order"
    return cause, f"expected offset {expected}, found {found}"


def _kind(value: object) -> str:
    return "null" if value is None else _KINDS.get(type(value).__name__, "an object")
