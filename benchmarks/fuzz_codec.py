"""What must be true of the codec, whatever it is given; the judge is the naive reader."""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import NUMBERS, TOKENS, Case, Dice, bent, dice, odd_value, spelled, value
from benchmarks.fuzz_judge import attempt, is_clean, naive, same
from raxol_otel.canonical import encode, is_array, is_mapping
from raxol_otel.errors import EncodeError, Unencodable
from raxol_otel.journal import codec
from tests import naive_reader

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["bend_text", "check_codec", "make_text"]

TEXT: Final = "text"
ODD: Final = "odd"
_HEX: Final = re.compile(rb"\\(?:u00[0-9a-f]{2}|.)")
_FRACTION: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?(?=[\],}]|$)")


def make_text(d: Dice) -> Case:
    """Some lines of JSON, and a seed for a value of Python's."""
    lines = [spelled(d, value(d, d.randrange(5))) for _ in range(d.choice((1, 1, 1, 2, 5)))]
    if d.random() < 0.05:
        lines.append(b"".join(d.choice(d.choice((TOKENS, NUMBERS))) for _ in range(d.randrange(9))))
    return {TEXT: b"\n".join(lines), ODD: b"%d" % d.getrandbits(32)}


def bend_text(d: Dice, case: Case) -> Case:
    """The case with something done to its text."""
    return {**case, TEXT: bent(d, case.get(TEXT, b"")), ODD: b"%d" % d.getrandbits(32)}


def check_codec(case: Case, _folder: Path) -> None:
    """Reading and writing agree with the naive reader's, and give the same thing there and back."""
    text = case.get(TEXT, b"")
    lines = [line for line in text.split(b"\n") if line]
    for one in {text, *lines}:
        _check_text(one)
    if lines:
        _check_lines(lines)
    _check_odd(odd_value(dice(int(case.get(ODD, b"0")), ODD, 0)))


def _check_text(text: bytes) -> None:
    good, expected = naive(text)
    for read in (codec.decode, codec.decode_exact):
        found, error = attempt(partial(read, text), codec.DecodeError)
        assert (error is None) == good, f"{read.__name__} differs from the naive reader: {error}"
        if error is None:
            assert same(found, expected)
        else:
            assert is_clean(error)
            assert error.invalid_utf8 == (not _is_utf8(text))
    if good:
        written = encode(expected)
        assert written == naive_reader.dump(expected).encode()
        back = codec.decode(written)
        assert same(back, expected)
        assert encode(back) == written


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_lines(lines: list[bytes]) -> None:
    """Many at once are read as one by one."""
    expected: list[Any] = []
    for line in lines:
        good, item = naive(line)
        if not good:
            break
        expected.append(item)
    for sort_keys in (False, True):
        found, proven, error = codec.decode_lines([line + b"\n" for line in lines], sort_keys=sort_keys)
        assert (error is None) == (len(expected) == len(lines))
        assert same(found, expected)
        assert len(proven) == len(expected)
        for line, item, is_proven in zip(lines, expected, proven, strict=False):
            if sort_keys and is_proven:
                # Canonical but for the spelling of floats and the case of escapes.
                assert _HEX.sub(_upper, _FRACTION.sub(b"0.0", line)) == _FRACTION.sub(b"0.0", encode(item))


def _upper(match: re.Match[bytes]) -> bytes:
    return match[0][:4] + match[0][4:].upper() if match[0].startswith(b"\\u") else match[0]


def _check_odd(item: Any) -> None:
    """A value of Python's is written by the rules, or refused with its path; a record without floats as well."""
    try:
        expected: bytes | None = naive_reader.dump(_plain(item)).encode()
    except (_NotJson, UnicodeEncodeError):
        expected = None
    for floats in (True, False):
        written, error = attempt(partial(encode, item, floats=floats), EncodeError)
        assert written == (None if error else expected), error
        may_refuse = expected is None or (not floats and _has_float(item))
        assert (error is not None) == may_refuse, error
        assert error is None or type(error) is Unencodable or not floats


class _NotJson(Exception):
    """A value that JSON cannot carry."""


def _plain(item: Any) -> Any:
    if is_mapping(item):
        keys: list[object] = list(item)
        if not all(isinstance(key, str) for key in keys):
            raise _NotJson
        return {str.__str__(key): _plain(one) for key, one in item.items()}
    if is_array(item):
        return [_plain(one) for one in item]
    if item is None or isinstance(item, bool):
        return item
    if isinstance(item, str):
        item.encode()
        return str.__str__(item)
    if isinstance(item, int):
        if abs(item) >= 10**1024 or len(str(int(item))) > 1024:
            raise _NotJson
        return int(item)
    if isinstance(item, float) and item - item == 0:
        return float(item)
    raise _NotJson


def _has_float(item: Any) -> bool:
    if is_mapping(item):
        return any(map(_has_float, item.values()))
    if is_array(item):
        return any(map(_has_float, item))
    return isinstance(item, float)
