r"""What the fuzzer feeds: JSON values, texts that spell them in every way, and texts that something happened to.

Everything is drawn from the dice that it is given, and from nothing else.
"""

from __future__ import annotations

import random
import re
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from tests import naive_reader

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["NUMBERS", "TOKENS", "Case", "Dice", "bent", "dice", "odd_value", "spelled", "value"]

Dice: TypeAlias = random.Random
# An input: files by name. Names that end in a slash are folders.
Case: TypeAlias = dict[str, bytes]

NUMBERS: Final = (
    *(b"0 -0 1 -1 2 3 7 9 10 4.0 4e0 1E5 1e-400 1e400 -1e400 01 +1 1. .5 1e 5e-324 1e16 1e+16 1.0e16".split()),
    *(b"9007199254740991.0 9007199254740992.0 9.007199254740992e15 0.1 100.0 1.0e3 -0.0 0e0 0.00001 1e22".split()),
    *(str(2**bits + more).encode() for bits in (31, 53, 63, 64, 128) for more in (-1, 0, 1)),
    *(str(-(2**bits) + more).encode() for bits in (53, 63, 64) for more in (-1, 0, 1)),
    *(b"9" * size for size in (17, 18, 19, 20, 21, 22, 23, 1023, 1024, 1025, 5000)),
    *(b"-" + b"9" * size for size in (19, 20, 1023, 1024)),
    b"0." + b"3" * 1100,
)
TOKENS: Final = (
    *rb""" [ ] { } : , " \ "" {} [] true false null NaN Infinity -Infinity "id" "a" "$s" "hash" "prev_hash" """.split(),
    *rb""" \u \ud83d \ude00 \ud83d\ude00 \u0061 \u0000 \u001F \u001f \n \x \/ \" \b "id":1, "id":2, '' // """.split(),
    *(b" ", b"\t", b"\r", b"\n", b"\n\n", b"\r\n", b"\0", b"\0" * 4, b"\0" * 300, b"\x0b", b"\x1f", b"\x7f", b"\xa0"),
    *(b"\xc3\xa9", b"\xc3", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\xff\xfe", b"\xc0\xaf", b"\xf4\x90\x80\x80"),
    *("\u2028\U0001f600\ufeff\u0661\uff11".encode(), b'}{"id":3,', b'},{"id":2,', b'"hash":"', b"e+1"),
)
_TEXTS: Final = (
    *("", "a", "id", "hash", "$s", "applied", "main", "event", "x" * 300, "\u00e9", "e\u0301", "\U0001f600", "\uffff"),
    *(
        "\0\x1f\n\t\b\f\r",
        '"\\/',
        "\x7f\u0085\u2028\u2029\ufeff",
        "\\ud800",
        "\\u001f",
        '}{"id":3,',
        '"hash":"',
        "1.5e+3]",
    ),
)
_FLOATS: Final = (0.0, -0.0, 1.5, 0.1, 1e16, 1e-5, 1e22, 5e-324, 1.7976931348623157e308, 2.0**53, 1 / 3, 123456.0)
_DEPTHS: Final = (1, 2, 63, 64, 65, 200, 250, 253, 254, 255, 256, 398, 401, 1022, 1024, 1025, 4000)
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|[\[\]{},:]|[^\s\[\]{},:"]+')
_NUMBER: Final = re.compile(rb"-?[0-9][0-9.eE+-]*")


def dice(seed: int, name: str, iteration: int) -> Dice:
    """What decides the input of one iteration."""
    return random.Random(f"{seed} {name} {iteration}")  # noqa: S311 - it has to come out the same again


# --- values


def value(d: Dice, depth: int = 3, *, floats: bool = True) -> Any:
    """A JSON value."""
    if depth and d.random() < 0.5:
        inner = [value(d, depth - 1, floats=floats) for _ in range(d.choice((0, 1, 1, 2, 3, 6)))]
        return inner if d.random() < 0.4 else {_text(d): one for one in inner}
    kind = d.randrange(10)
    if kind < 4:
        return _text(d)
    if kind < 6 or not floats:
        return d.choice((None, True, False, 0, -1, d.randrange(100), d.getrandbits(70), -d.getrandbits(64), 10**1023))
    return d.choice(_FLOATS) if d.random() < 0.5 else _float(d)


def _float(d: Dice) -> float:
    size = d.choice((1, 10, 1e6, 1e15, 1e17, 1e-5, 1e-7, 1e300, 1e-300))
    return round(d.random() * 10, d.randrange(17)) * size


def _text(d: Dice) -> str:
    if d.random() < 0.7:
        return d.choice(_TEXTS)
    top = d.choice((0x20, 0x80, 0x800, 0xD800))
    return "".join(chr(d.randrange(top)) for _ in range(d.randrange(12)))


def odd_value(d: Dice, depth: int = 3) -> Any:
    """A value of Python's that JSON may or may not carry."""
    if depth and d.random() < 0.4:
        inner = [odd_value(d, depth - 1) for _ in range(d.randrange(4))]
        kind = d.randrange(4)
        if kind == 0:
            return tuple(inner)
        return inner if kind == 1 else {_odd_key(d): one for one in inner}
    if d.random() < 0.8:
        return value(d, 1)
    infinity = float("inf")
    odd: tuple[Any, ...] = (
        *(infinity, -infinity, infinity - infinity, "\ud800", "a\udc00", b"a", bytearray(b"a"), {1}, object(), 1j),
        *(10**1024, -(10**1023), 10**4000, _Text("t"), _Number(2**70), _Real(1.5), range(3), type, Exception("x")),
    )
    return d.choice(odd)


def _odd_key(d: Dice) -> Any:
    return d.choice((1, None, True, b"a", "\ud800", ("a",), _Text("k"))) if d.random() < 0.1 else _text(d)


class _Text(str):
    """Text by inheritance."""

    __slots__ = ()


class _Number(int):
    """An integer by inheritance."""


class _Real(float):
    """A float by inheritance."""

    __slots__ = ()


# --- texts


def spelled(d: Dice, item: Any) -> bytes:
    """A text of the value: canonical, or in another valid spelling."""
    if d.random() < 0.4:
        return naive_reader.dump(item).encode()
    return naive_reader.dump(item, lambda text: _spelled_text(d, text), lambda real: _spelled_float(d, real)).encode()


def _spelled_text(d: Dice, text: str) -> str:
    style = d.randrange(3)
    if style == 0:
        return naive_reader.written_string(text)
    out: list[str] = []
    for character in text:
        unit = ord(character)
        if (style == 1 or d.random() < 0.3) and unit < 0x10000:
            out.append(f"\\u{unit:04x}" if d.random() < 0.5 else f"\\u{unit:04X}")
        elif unit >= 0x10000 and d.random() < 0.5:
            high, low = divmod(unit - 0x10000, 0x400)
            out.append(f"\\u{0xD800 + high:04x}\\u{0xDC00 + low:04X}")
        else:
            out.append("\\/" if character == "/" else naive_reader.written_string(character)[1:-1])
    return f'"{"".join(out)}"'


def _spelled_float(d: Dice, real: float) -> str:
    right = naive_reader.written_float(real)
    return d.choice((right, right, repr(real), f"{real:.17e}", f"{real:.16E}", right.replace(".0e", "e"), f"{right}0"))


def _bytes(d: Dice, size: int) -> bytes:
    return bytes(d.getrandbits(8) for _ in range(size))


def _flip(d: Dice, data: bytes) -> bytes:
    at = d.randrange(len(data))
    byte = data[at] ^ (1 << d.randrange(8)) if d.random() < 0.5 else d.choice((0, 10, 13, 32, 34, 48, 92, 255))
    return data[:at] + bytes([byte]) + data[at + 1 :]


def _insert(d: Dice, data: bytes) -> bytes:
    at = d.randrange(len(data) + 1)
    piece = d.choice((TOKENS, NUMBERS, (_bytes(d, d.randrange(1, 4)),)))
    return data[:at] + d.choice(piece) + data[at:]


def _delete(d: Dice, data: bytes) -> bytes:
    at = d.randrange(len(data))
    return data[:at] + data[at + d.choice((1, 1, 2, 5, 40, 300)) :]


def _cut(d: Dice, data: bytes) -> bytes:
    return data[: d.randrange(len(data))] if d.random() < 0.7 else data[-d.choice((1, 2, 3)) :]


def _zero(d: Dice, data: bytes) -> bytes:
    at, size = d.randrange(len(data)), d.choice((1, 3, 4, 16, 64, 5000))
    return data[:at] + b"\0" * len(data[at : at + size]) + data[at + size :]


def _again(d: Dice, data: bytes) -> bytes:
    start = d.randrange(len(data))
    piece = data[start : start + d.choice((1, 8, 40, 400))]
    at = d.randrange(len(data) + 1)
    return data[:at] + piece + data[at:]


def _token(d: Dice, data: bytes) -> bytes:
    found = list(_TOKEN.finditer(data))
    if not found:
        return _insert(d, data)
    one, other = d.choice(found), d.choice(found)
    depth = d.choice(_DEPTHS)
    put = d.choice(
        (
            *(b"", other[0], one[0] + one[0], d.choice(TOKENS), d.choice(NUMBERS), b" " + one[0] + b"\t"),
            *(b"[" * depth + one[0] + b"]" * depth, b'{"a":' * depth + one[0] + b"}" * depth, b"[" * depth + one[0]),
            spelled(d, value(d, 1)),
        )
    )
    return data[: one.start()] + put + data[one.end() :]


def _number(d: Dice, data: bytes) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return _insert(d, data)
    one = d.choice(found)
    return data[: one.start()] + d.choice(NUMBERS) + data[one.end() :]


def _repeat_key(d: Dice, data: bytes) -> bytes:
    keys = [found[0] for found in _TOKEN.finditer(data) if data[found.end() : found.end() + 1] == b":"]
    places = [found.end() for found in re.finditer(rb"\{(?!\})", data)]
    if not keys or not places:
        return _insert(d, data)
    at = d.choice(places)
    return data[:at] + d.choice(keys) + b":" + spelled(d, value(d, 1)) + b"," + data[at:]


_FATES: Final[tuple[Callable[[Dice, bytes], bytes], ...]] = (
    *(_flip, _flip, _insert, _insert, _delete, _cut, _zero, _again, _token, _token, _token, _number, _repeat_key),
)


def bent(d: Dice, data: bytes) -> bytes:
    """The bytes after something happened to them."""
    return d.choice(_FATES)(d, data) if data else _insert(d, data)
