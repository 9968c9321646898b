"""A record <-> a line, exactly.

`decode` accepts and refuses what the format says, keeps integers of any size exact and takes the first of repeated
keys. orjson does neither, so its answer counts only when it is proven: writing the value back must give the very same
bytes. That proof is complete, since the bytes written are then one JSON text of exactly that value (a repeated key
would be gone, an integer turned float has another spelling). Anything unproven is decoded by the standard library
under strict hooks, or by `_decode_deep` where nesting could exhaust the stack.

`encode` is the other direction, see `raxol_otel.canonical`.
"""

from __future__ import annotations

import json
import math
import operator
import re
from itertools import repeat
from typing import TYPE_CHECKING, Any, Final, NoReturn, cast

import orjson

from raxol_otel.canonical import INTEGER_BYTES_MAX, encode, is_object, upper_escapes
from raxol_otel.errors import RaxolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["DecodeError", "decode", "decode_exact", "decode_lines", "encode"]

# More brackets than this in one text and the C scanner's recursion could run out of stack.
_RECURSION_SAFE_BRACKETS: Final = 400

# A valid pair, else a lone surrogate (group 1), else any other escape, so that `\\\\ud800` is not misread.
_ESCAPES: Final = re.compile(
    r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}|\\(u[dD][89a-fA-F][0-9a-fA-F]{2})|\\.",
    re.DOTALL,
)
# A float in a compact text, not so large that it could be infinite. One inside a string only costs the exact way.
_FLOAT: Final = re.compile(rb"[:,\[]-?[0-9]{1,17}\.[0-9]{1,17}(?:e-?[0-9]{1,2})?(?=[],}])")
_BLANKS: Final = re.compile(r"[ \t\n\r]*")


class DecodeError(RaxolError):
    """A text that is not one JSON value by the rules of the format.

    `invalid_utf8` tells bytes that are no text at all from text that is no JSON.
    """

    def __init__(self, reason: str, *, invalid_utf8: bool = False) -> None:
        super().__init__(reason)
        self.invalid_utf8 = invalid_utf8


def decode(text: bytes) -> Any:
    """The value of one JSON text. Raises `DecodeError`."""
    try:
        value = orjson.loads(text)
        if orjson.dumps(value) == text:
            return value
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        pass  # not proof of anything: orjson stops at 1,024 levels
    return decode_exact(text)


def decode_lines(lines: list[bytes], *, sort_keys: bool = False) -> tuple[list[Any], list[bool], DecodeError | None]:
    r"""The values of many lines, each with its newline, up to the first that does not decode.

    Returns the values, for each whether orjson wrote back the very line (but for the case of `\u00XX` and the spelling
    of floats; with `sort_keys` that makes the line canonical but for those), and the error of the line after the last
    value, if any. One joined text is much faster to decode than many small ones; the proof is made line by line, so a
    text that only parses when joined proves nothing.
    """
    options = orjson.OPT_APPEND_NEWLINE | (orjson.OPT_SORT_KEYS if sort_keys else 0)
    try:
        values = orjson.loads(b"[%b]" % b",".join(lines)) if len(lines) > 1 else [orjson.loads(lines[0])]
        written = list(map(orjson.dumps, values, repeat(None), repeat(options)))
    except (orjson.JSONDecodeError, orjson.JSONEncodeError):
        return _decode_each(lines, options)
    if written == lines:
        return values, [True] * len(lines), None
    if len(values) != len(lines):
        return _decode_each(lines, options)
    proven = list(map(operator.eq, written, lines))
    index = -1
    for _ in range(proven.count(False)):
        index = proven.index(False, index + 1)
        line = lines[index]
        text = upper_escapes(written[index])
        if text == line or text == _FLOAT.sub(_respelled, line):
            proven[index] = True
            continue
        try:
            values[index] = decode_exact(line[:-1])
        except DecodeError as error:
            return values[:index], proven[:index], error
    return values, proven, None


def _respelled(match: re.Match[bytes]) -> bytes:
    """What stands before a float, and the float as orjson spells it."""
    text = match[0]
    return text[:1] + orjson.dumps(float(text[1:]))


def _decode_each(lines: Sequence[bytes], options: int) -> tuple[list[Any], list[bool], DecodeError | None]:
    values: list[Any] = []
    proven: list[bool] = []
    for line in lines:
        try:
            value = orjson.loads(line)
            same = upper_escapes(orjson.dumps(value, None, options)) == line
        except (orjson.JSONDecodeError, orjson.JSONEncodeError):
            value, same = None, False
        if not same:
            try:
                value = decode_exact(line[:-1])
            except DecodeError as error:
                return values, proven, error
        values.append(value)
        proven.append(same)
    return values, proven, None


def decode_exact(text: bytes) -> Any:
    """As `decode`, without the fast path."""
    try:
        characters = text.decode("utf-8")
    except UnicodeDecodeError as error:
        message = f"invalid UTF-8 at byte {error.start}"
        raise DecodeError(message, invalid_utf8=True) from None
    try:
        if text.count(b"[") + text.count(b"{") > _RECURSION_SAFE_BRACKETS:
            value = _decode_deep(characters)
        else:
            scanner = _SHORT_SCANNER if len(text) <= INTEGER_BYTES_MAX else _SCANNER
            value = scanner.decode(characters)
    except (json.JSONDecodeError, IndexError) as error:
        raise DecodeError(_reason(error)) from None
    if "\\u" in characters:
        for match in _ESCAPES.finditer(characters):
            if match[1]:
                message = f"lone surrogate escape at character {match.start()}"
                raise DecodeError(message)
    return value


def _reason(error: Exception) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg.removesuffix(' at').removesuffix(' starting')} at character {error.pos}"
    return "the text ends too early"


def _integer(text: str) -> int:
    if len(text) > INTEGER_BYTES_MAX:
        message = f"an integer of {len(text)} bytes; at most {INTEGER_BYTES_MAX} are read"
        raise DecodeError(message)
    return int(text)


def _float(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        message = "a number too large for a float"
        raise DecodeError(message)
    return value


def _constant(text: str) -> NoReturn:
    message = f"{text} is not JSON"
    raise DecodeError(message)


def _first_wins(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        result.clear()
        for key, value in pairs:
            result.setdefault(key, value)
    return result


_SCANNER: Final = json.JSONDecoder(
    parse_int=_integer, parse_float=_float, parse_constant=_constant, object_pairs_hook=_first_wins
)
# For texts that cannot hold an integer that is too long.
_SHORT_SCANNER: Final = json.JSONDecoder(parse_float=_float, parse_constant=_constant, object_pairs_hook=_first_wins)


def _skip(text: str, index: int) -> int:
    return cast("re.Match[str]", _BLANKS.match(text, index)).end()


def _key(text: str, index: int) -> tuple[str, int]:
    """The key at `index` and where its value begins."""
    if text[index] != '"':
        message = "Expecting property name enclosed in double quotes"
        raise json.JSONDecodeError(message, text, index)
    key, index = _SCANNER.raw_decode(text, index)
    index = _skip(text, index)
    if text[index] != ":":
        message = "Expecting ':' delimiter"
        raise json.JSONDecodeError(message, text, index)
    return key, _skip(text, index + 1)


def _decode_deep(text: str) -> Any:
    """A JSON text of any depth, with an explicit stack. Scalars and keys go to the C scanner."""
    # The last of pairs would win in a dict, so the first is kept by setdefault.
    stack: list[tuple[dict[str, Any] | list[Any], str]] = []
    index = _skip(text, 0)
    while True:
        opener = text[index]
        if opener in "[{":
            container: dict[str, Any] | list[Any] = {} if opener == "{" else []
            index = _skip(text, index + 1)
            if text[index] != "}]"[opener == "["]:
                key = ""
                if opener == "{":
                    key, index = _key(text, index)
                stack.append((container, key))
                continue
            value: Any = container
            index += 1
        else:
            value, index = _SCANNER.raw_decode(text, index)
        while stack:
            container, key = stack[-1]
            if is_object(container):
                container.setdefault(key, value)
            else:
                cast("list[Any]", container).append(value)
            index = _skip(text, index)
            separator = text[index]
            if separator == ",":
                index = _skip(text, index + 1)
                if is_object(container):
                    key, index = _key(text, index)
                    stack[-1] = (container, key)
                break
            if separator != ("}" if is_object(container) else "]"):
                message = "Expecting ',' delimiter"
                raise json.JSONDecodeError(message, text, index)
            stack.pop()
            value = container
            index += 1
        else:
            if _skip(text, index) != len(text):
                message = "Extra data"
                raise json.JSONDecodeError(message, text, index)
            return value
