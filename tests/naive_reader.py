"""A second reader of journals, for tests: slow, whole files in memory, and nothing in it of the package.

It is written from the format's description alone and kept so plain that it can be checked by reading it. The reader
under test has to agree with it on every journal that a test can think of.

    read(directory)   -> Reading      verdict, records, damaged segment, torn
    parse(data)       -> Json         exact JSON, or Refused
    dump(value)       -> str          the writing rules, as a text
    exactly(value)    -> str          to compare two values with their types: 1 is not 1.0, -0.0 not 0.0; at any depth
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Json: TypeAlias = "dict[str, Json] | list[Json] | str | int | float | bool | None"
Record: TypeAlias = dict[str, Json]

GENESIS = "0" * 64
INTEGER_BYTES_MAX = 1024

_NUMBER = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_FOUR_HEX = re.compile(r"[0-9a-fA-F]{4}")
_SHORT_ESCAPES = {'"': '"', "\\": "\\", "/": "/", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
_WRITTEN_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r"}
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}


class Refused(ValueError):
    """The text is not JSON by the exact rules."""


class Reading(NamedTuple):
    """What the naive reader says of a journal; `byte` is where the damaged line begins."""

    verdict: str  # ok, damaged or unreadable
    records: list[Record]
    segment: str | None
    torn: bool
    byte: int


class _Line(NamedTuple):
    segment: str
    byte: int
    data: bytes
    terminated: bool


# --- the journal ------------------------------------------------------------------------------------------------


def read(directory: Path) -> Reading:
    """Read one journal directory by the rules, without a thought for speed."""
    try:
        chained = is_chained(directory)
        lines = _lines(directory)
    except OSError:
        return Reading("unreadable", [], None, torn=False, byte=0)
    head_offset, head_hash = _anchor(directory) if chained else (None, None)
    torn = lines.pop() if lines and not lines[-1].terminated else None

    records: list[Record] = []
    before = GENESIS
    last = 0
    for line in lines:
        record = _record(line, last if records or chained else None)
        if record is None or (chained and not _links(record, before, line)):
            return Reading("damaged", records, line.segment, torn=False, byte=line.byte)
        if record["id"] == head_offset and isinstance(head_hash, str) and record["hash"] != head_hash:
            return Reading("damaged", records, "HEAD", torn=False, byte=0)
        records.append(record)
        last = _integer(record["id"])
        before = str(record.get("hash"))

    if head_offset is not None and last < head_offset:
        if torn is not None:
            return Reading("damaged", records, torn.segment, torn=False, byte=torn.byte)
        return Reading("damaged", records, "HEAD", torn=False, byte=0)
    return Reading("ok", records, None, torn=torn is not None, byte=0)


def is_chained(directory: Path) -> bool:
    """Whether meta.json says so, with nothing but `true`."""
    try:
        meta = parse((directory / "meta.json").read_bytes())
    except (FileNotFoundError, Refused):
        return False
    return isinstance(meta, dict) and meta.get("chain") is True


def _anchor(directory: Path) -> tuple[int | None, Json]:
    try:
        head = parse((directory / "HEAD").read_bytes())
    except (OSError, Refused):
        return None, None
    if not isinstance(head, dict) or not _is_integer(head.get("offset")):
        return None, None
    return _integer(head["offset"]), head.get("tip_hash")


def _lines(directory: Path) -> list[_Line]:
    """Every line that is not empty, over all segments."""
    try:
        names = os.listdir(directory / "journal")
    except FileNotFoundError:
        return []
    lines: list[_Line] = []
    for name in sorted(name for name in names if re.fullmatch(r"[0-9]{6}\.jsonl", name)):
        byte = 0
        pieces = (directory / "journal" / name).read_bytes().split(b"\n")
        for number, piece in enumerate(pieces):
            if piece:
                lines.append(_Line(f"journal/{name}", byte, piece, terminated=number < len(pieces) - 1))
            byte += len(piece) + 1
    return lines


def _record(line: _Line, last: int | None) -> Record | None:
    """The record of a line, or None when it is damage; `last` None: any id may come."""
    try:
        record = parse(line.data)
    except Refused:
        return None
    if not isinstance(record, dict) or not _is_integer(record.get("id")):
        return None
    if last is not None and record["id"] != last + 1:
        return None
    return record


def _links(record: Record, before: str, line: _Line) -> bool:
    without_hash = {key: value for key, value in record.items() if key != "hash"}
    right = hashlib.sha256(dump(without_hash).encode()).hexdigest()
    return record.get("prev_hash") == before and record.get("hash") == right and dump(record).encode() == line.data


def _is_integer(value: Json) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _integer(value: Json) -> int:
    if not isinstance(value, int):
        raise TypeError(value)
    return value


# --- JSON in ----------------------------------------------------------------------------------------------------


def parse(data: bytes) -> Json:
    """The value of an exact JSON text; `Refused` for everything else."""
    try:
        text = _Text(data.decode())
    except UnicodeDecodeError as error:
        raise Refused("not UTF-8") from error
    value = _value(text)
    text.skip_blanks()
    if text.here:
        raise Refused("something after the value")
    return value


class _Text:
    """A text and a place in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0

    @property
    def here(self) -> str:
        """The character at the place; empty at the end."""
        return self.text[self.at : self.at + 1]

    def skip_blanks(self) -> None:
        while self.here in {" ", "\t", "\r", "\n"}:
            self.at += 1

    def take(self, wanted: str) -> bool:
        """Go past `wanted` if it stands here."""
        found = self.text.startswith(wanted, self.at)
        if found:
            self.at += len(wanted)
        return found

    def expect(self, wanted: str) -> None:
        if not self.take(wanted):
            raise Refused(f"{wanted} expected at {self.at}")


def _value(text: _Text) -> Json:
    """One value. Open arrays and objects are kept on a list, so that depth costs no recursion."""
    open_ones: list[tuple[dict[str, Json] | list[Json], str]] = []
    while True:
        text.skip_blanks()
        value: Json
        if text.take("["):
            value = []
            text.skip_blanks()
            if not text.take("]"):
                open_ones.append((value, ""))
                continue
        elif text.take("{"):
            value = {}
            text.skip_blanks()
            if not text.take("}"):
                open_ones.append((value, _key(text)))
                continue
        else:
            value = _scalar(text)
        # The value is complete; it may complete what it stands in, and so on outwards.
        while open_ones:
            outer, key = open_ones.pop()
            if isinstance(outer, list):
                outer.append(value)
            else:
                outer.setdefault(key, value)  # the first of repeated keys wins
            text.skip_blanks()
            if text.take(","):
                open_ones.append((outer, _key(text) if isinstance(outer, dict) else ""))
                break
            text.expect("]" if isinstance(outer, list) else "}")
            value = outer
        else:
            return value


def _key(text: _Text) -> str:
    text.skip_blanks()
    key = _string(text)
    text.skip_blanks()
    text.expect(":")
    return key


def _scalar(text: _Text) -> Json:
    if text.here == '"':
        return _string(text)
    for word, value in _WORDS.items():
        if text.take(word):
            return value
    number = _NUMBER.match(text.text, text.at)
    if number is None:
        raise Refused(f"no value at {text.at}")
    text.at = number.end()
    if number[1] is None and number[2] is None:
        if len(number[0]) > INTEGER_BYTES_MAX:
            raise Refused("integer too long")
        return int(number[0])
    real = float(number[0])
    if real in {float("inf"), float("-inf")}:
        raise Refused("float too large")
    return real


def _string(text: _Text) -> str:
    text.expect('"')
    characters: list[str] = []
    while not text.take('"'):
        character = text.here
        text.at += 1
        if character < " ":  # also the end of the text
            raise Refused("raw control character, or no end of the string")
        characters.append(_escaped(text) if character == "\\" else character)
    return "".join(characters)


def _escaped(text: _Text) -> str:
    if not text.take("u"):
        character = text.here
        text.at += 1
        if character not in _SHORT_ESCAPES:
            raise Refused("unknown escape")
        return _SHORT_ESCAPES[character]
    unit = _four_hex(text)
    if 0xD800 <= unit <= 0xDBFF:
        text.expect("\\u")
        low = _four_hex(text)
        if not 0xDC00 <= low <= 0xDFFF:
            raise Refused("no low surrogate after a high one")
        return chr(0x10000 + (unit - 0xD800) * 0x400 + (low - 0xDC00))
    if 0xDC00 <= unit <= 0xDFFF:
        raise Refused("low surrogate alone")
    return chr(unit)


def _four_hex(text: _Text) -> int:
    digits = text.text[text.at : text.at + 4]
    if not _FOUR_HEX.fullmatch(digits):
        raise Refused("four hex digits expected")
    text.at += 4
    return int(digits, 16)


# --- JSON out ---------------------------------------------------------------------------------------------------


def written_string(text: str) -> str:
    """A string as the journal writes it."""
    out = [_WRITTEN_SHORT.get(c) or (f"\\u00{ord(c):02X}" if c < " " else c) for c in text]
    return '"' + "".join(out) + '"'


def written_float(real: float) -> str:
    """A float as the journal writes it: shortest digits, and the shorter of two forms."""
    sign = "-" if str(real).startswith("-") else ""
    if real == 0:
        return f"{sign}0.0"
    mantissa, _, exponent = str(abs(real)).partition("e")
    whole, _, fraction = mantissa.partition(".")
    power = int(exponent or "0") + len(whole) - 1  # of the first digit, zeros in front counted too
    digits = whole + fraction
    power -= len(digits) - len(digits.lstrip("0"))
    digits = digits.strip("0")
    scientific = f"{digits[0]}.{digits[1:] or '0'}e{power}"
    if power < 0:
        plain = "0." + "0" * (-power - 1) + digits
    else:
        plain = digits[: power + 1].ljust(power + 1, "0") + "." + (digits[power + 1 :] or "0")
    return sign + (plain if len(plain) <= len(scientific) and abs(real) < 2**53 else scientific)


def exactly(value: Any) -> str:
    """A text that only an equal value of equal types has."""
    return dump(value)


def dump(
    value: Json, string: Callable[[str], str] = written_string, real: Callable[[float], str] = written_float
) -> str:
    """Compact JSON with sorted keys; no recursion, so any depth will do."""
    done: list[str] = []
    todo: list[tuple[bool, Json]] = [(False, value)]  # (is it text to copy?, text or value), last one first
    while todo:
        is_text, item = todo.pop()
        if is_text:
            done.append(str(item))
        elif isinstance(item, dict):
            parts: list[tuple[bool, Json]] = []
            for key in sorted(item, key=str.encode):
                parts += [(True, "," if parts else ""), (True, string(key) + ":"), (False, item[key])]
            todo += [(True, "}"), *reversed(parts), (True, "{")]
        elif isinstance(item, list):
            parts = []
            for element in item:
                parts += [(True, "," if parts else ""), (False, element)]
            todo += [(True, "]"), *reversed(parts), (True, "[")]
        elif isinstance(item, str):
            done.append(string(item))
        elif isinstance(item, float):
            done.append(real(item))
        elif item is None or isinstance(item, bool):
            done.append({None: "null", True: "true", False: "false"}[item])
        else:
            done.append(str(item))
    return "".join(done)
