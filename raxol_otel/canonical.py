r"""Canonical JSON, the writing rules of the journal: one text for each value.

Compact; keys sorted by their UTF-8 bytes; `\u00XX` in upper case for control characters, nothing else escaped; floats
as the shortest digits in the shorter of two forms (a float's text is never taken from orjson).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, TypeGuard

import orjson

from raxol_otel.errors import EncodeError, FloatRefused, Unencodable

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = [
    "INTEGER_BYTES_MAX",
    "encode",
    "float_text",
    "is_array",
    "is_mapping",
    "is_object",
    "plain_repr",
    "text_of",
    "upper_escapes",
    "without_surrogates",
]

# An integer's text, its sign included; longer ones are refused both ways.
INTEGER_BYTES_MAX: Final = 1024
# 10**1024 has 3,402 bits: a longer integer need not be turned into digits to know that it is too long.
_INTEGER_BITS_MAX: Final = 3402
# orjson writes 254 levels; deeper values take the explicit stack below.
_ORJSON_DEPTH: Final = 250
_FLOAT_INTEGER_LIMIT: Final = 2.0**53

_SCALARS: Final = frozenset({str, int, bool, type(None)})
_NOT_READY: Final = object()

_SHORT: Final = {"\b": "\\b", "\t": "\\t", "\n": "\\n", "\f": "\\f", "\r": "\\r", '"': '\\"', "\\": "\\\\"}
# Any escape, so that an escaped backslash before `u00` is not misread.
_ESCAPE: Final = re.compile(rb"\\(?:u[0-9a-f]{4}|.)")
_SURROGATE: Final = re.compile("[\ud800-\udfff]")
_ESCAPED: Final = re.compile(r'[\x00-\x1f"\\]')


def is_object(value: object) -> TypeGuard[dict[str, Any]]:
    """Whether a decoded value is a JSON object."""
    return type(value) is dict


def is_mapping(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Whether a value given by a program stands for a JSON object."""
    return type(value) is dict or isinstance(value, Mapping)


def is_array(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Whether a value given by a program stands for a JSON array."""
    return isinstance(value, (list, tuple))


def without_surrogates(text: str) -> str:
    """The text with lone surrogates, which no encoding can carry, as the replacement character."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def text_of(value: Any) -> str:
    """Any value as a text: text as it is, null as nothing, else its JSON. Total, also for what JSON cannot carry."""
    if type(value) is str:
        return without_surrogates(value)
    if value is None:
        return ""
    try:
        return encode(value).decode()
    except EncodeError:
        return plain_repr(value)


def plain_repr(value: object) -> str:
    """The value's `repr` as a clean text, its type's name where even that fails."""
    try:
        return without_surrogates(repr(value))
    except Exception:  # noqa: BLE001 - a broken repr must break nothing else
        return f"<{type(value).__name__}>"


def encode(value: Any, *, floats: bool = True) -> bytes:
    """The canonical JSON text of a value, without a newline.

    Raises `Unencodable`, or `FloatRefused` where `floats` is false, naming the path of the culprit.
    """
    ready = _ready(value, _ORJSON_DEPTH, floats=floats)
    if ready is not _NOT_READY:
        try:
            return upper_escapes(orjson.dumps(ready, None, orjson.OPT_SORT_KEYS))
        except orjson.JSONEncodeError:
            pass  # a lone surrogate, a long integer, a key that is no text: the walk below knows
    return "".join(_chunks(value, floats=floats)).encode()


def upper_escapes(text: bytes) -> bytes:
    r"""A text that orjson wrote, with `\u00XX` in upper case as the format has it."""
    return _ESCAPE.sub(_upper, text) if b"\\u00" in text else text


def _upper(match: re.Match[bytes]) -> bytes:
    escape = match[0]
    return escape[:4] + escape[4:].upper() if escape.startswith(b"\\u") else escape


def _ready(value: Any, depth: int, *, floats: bool) -> Any:
    """The value as orjson writes it by the same rules, or `_NOT_READY` where it would not.

    Exact types only, and not too deep; each float is put in as its text, in a copy of what contains it. What orjson
    refuses by itself (integers beyond 64 bits, keys that are no text, lone surrogates) is not looked for.
    """
    kind = type(value)  # pyright: ignore[reportUnknownVariableType] - no cast here: it is called for each value
    if kind is dict:
        if _SCALARS.issuperset(map(type, value.values())):
            return value
        pairs = value.items()
    elif kind is list or kind is tuple:
        if _SCALARS.issuperset(map(type, value)):
            return value
        pairs = enumerate(value)
    elif kind is float and floats and math.isfinite(value):
        return orjson.Fragment(float_text(value).encode())
    else:
        return value if kind in _SCALARS else _NOT_READY
    changed: dict[Any, Any] = {}
    for key, item in pairs:
        kind_of_item = type(item)  # pyright: ignore[reportUnknownVariableType] - as above
        if kind_of_item in _SCALARS:
            continue
        # Most containers are small and flat; looked at here they cost no call.
        if kind_of_item is not dict or not _SCALARS.issuperset(map(type, item.values())):
            ready = _ready(item, depth - 1, floats=floats) if depth else _NOT_READY
            if ready is not item:
                changed[key] = ready
                if ready is _NOT_READY:
                    return _NOT_READY
    if changed:
        value = {**value, **changed} if kind is dict else [changed.get(n, item) for n, item in enumerate(value)]
    return value


class _Frame:
    """One open container: what is still to be written of it, and where we stand."""

    __slots__ = ("empty", "identity", "is_map", "items", "position")

    def __init__(self, items: Iterator[tuple[str | int, Any]], identity: int, *, is_map: bool) -> None:
        self.items = items
        self.identity = identity
        self.is_map = is_map
        self.empty = True
        self.position: str | int = ""


def _chunks(value: Any, *, floats: bool) -> list[str]:
    out: list[str] = []
    frames: list[_Frame] = []
    open_containers: set[int] = set()
    item = value
    while True:
        try:
            frame = _open(item, open_containers)
            if frame is None:
                out.append(_scalar(item, floats=floats))
        except EncodeError as error:
            raise type(error)(_path(frames), error.reason) from None
        if frame is not None:
            open_containers.add(frame.identity)
            frames.append(frame)
            out.append("{" if frame.is_map else "[")
        while frames:
            top = frames[-1]
            following = next(top.items, None)
            if following is not None:
                break
            out.append("}" if top.is_map else "]")
            open_containers.discard(top.identity)
            frames.pop()
        else:
            return out
        if not top.empty:
            out.append(",")
        top.empty = False
        top.position, item = following
        if top.is_map:
            out.append(_string(str(top.position)) + ":")


def _open(item: Any, open_containers: set[int]) -> _Frame | None:
    """A frame for a container, None for a scalar."""
    if is_mapping(item):
        frame = _Frame(iter(_sorted_items(item)), id(item), is_map=True)
    elif is_array(item):
        frame = _Frame(iter(enumerate(item)), id(item), is_map=False)
    else:
        return None
    if frame.identity in open_containers:
        raise Unencodable("", "a container that contains itself")
    return frame


def _sorted_items(mapping: Mapping[Any, Any]) -> list[tuple[str | int, Any]]:
    for key in mapping:
        if not isinstance(key, str):
            raise Unencodable("", f"a key of type {type(key).__name__}; keys are text")
        if not _is_text(key):
            raise Unencodable("", "a key with a lone surrogate")
    # Code points and UTF-8 bytes sort alike.
    return [(str.__str__(key), mapping[key]) for key in sorted(mapping)]


def _scalar(item: Any, *, floats: bool) -> str:
    if item is None:
        return "null"
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, str):
        if not _is_text(item):
            raise Unencodable("", "a lone surrogate")
        return _string(str.__str__(item))
    if isinstance(item, int):
        text = "" if item.bit_length() > _INTEGER_BITS_MAX else int.__repr__(item)
        if not text or len(text) > INTEGER_BYTES_MAX:
            raise Unencodable("", f"an integer longer than {INTEGER_BYTES_MAX} bytes")
        return text
    if isinstance(item, float):
        if not floats:
            raise FloatRefused("", "a float; records of a chained journal carry none")
        return float_text(item)
    raise Unencodable("", f"a value of type {type(item).__name__}, which JSON cannot carry")


def _is_text(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _string(text: str) -> str:
    return f'"{_ESCAPED.sub(_escape, text)}"'


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    return _SHORT.get(character) or f"\\u{ord(character):04X}"


def float_text(value: float) -> str:
    """A finite float's text: the decimal form when it is not longer and below 2^53, else `d.d...e[-]N`."""
    text = float.__repr__(value)
    if text in {"inf", "-inf", "nan"}:
        raise Unencodable("", f"{text}, which JSON cannot carry")
    sign = "-" if text.startswith("-") else ""
    mantissa, _, exponent_text = text.removeprefix("-").partition("e")
    whole, _, fraction = mantissa.partition(".")
    digits = (whole + fraction).lstrip("0")
    if not digits.strip("0"):
        return f"{sign}0.0"
    # The number is 0.DIGITS * 10**point before the leading zeros are taken off.
    point = len(whole) + int(exponent_text or 0) - (len(whole + fraction) - len(digits))
    digits = digits.rstrip("0")
    exponent = point - 1
    scientific = f"{digits[0]}.{digits[1:] or '0'}e{exponent}"
    if exponent < 0:
        decimal = f"0.{'0' * -point}{digits}"
    elif len(digits) <= point:
        decimal = f"{digits.ljust(point, '0')}.0"
    else:
        decimal = f"{digits[:point]}.{digits[point:]}"
    short = len(decimal) <= len(scientific) and abs(value) < _FLOAT_INTEGER_LIMIT
    return sign + (decimal if short else scientific)


def _path(frames: list[_Frame]) -> str:
    path = ""
    for frame in frames:
        if not frame.is_map:
            path += f"[{frame.position}]"
        else:
            path += f".{frame.position}" if path else str(frame.position)
    return path
