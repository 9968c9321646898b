"""Values from a record, made safe to export: times, names, numbers, text. Total: nothing here raises on odd input."""

from __future__ import annotations

import math
import re
from datetime import UTC, datetime
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.canonical import is_mapping, text_of, without_surrogates

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raxol_otel.turns.span import AttributeValue

__all__ = [
    "IDENTIFIER_CHARS_MAX",
    "MICROSECONDS_MAX",
    "MICROSECONDS_MIN",
    "OTHER",
    "as_cost",
    "as_count",
    "as_mapping",
    "bare_word",
    "clean",
    "error_name",
    "integer",
    "member",
    "parse_traceparent",
    "text_of",
    "time_ns",
    "tool_name",
]

OTHER: Final = "_OTHER"
# Session ids, call ids and the like are short; a longer one is cut, so that one bad value stays small.
IDENTIFIER_CHARS_MAX: Final = 1024

_INT64: Final = 2**63
_TIME_NS_MAX: Final = 2**63 - 1
# A stored time in this range is in microseconds, as the contract has it, and a time that nanoseconds can say.
MICROSECONDS_MIN: Final = 10**14
MICROSECONDS_MAX: Final = 2**63 // 1000
_BARE: Final = re.compile(r":?([A-Za-z_]{1,40})", re.ASCII)
_STRUCT: Final = re.compile(r"%([A-Za-z_][A-Za-z0-9_.]{0,63})\{", re.ASCII)
_TUPLE: Final = re.compile(r"\{:([A-Za-z_][A-Za-z0-9_]{0,63})[,}]", re.ASCII)
_IN_ERROR: Final = re.compile(r"\{:error,\s*", re.ASCII)
_PREFIX: Final = re.compile(r"([A-Za-z_][A-Za-z0-9_.]{0,63}): ", re.ASCII)
_PREFIX_ENDINGS: Final = ("Error", "Exception", "Timeout")
_TOOL_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.:/-]{0,63}", re.ASCII)
_TOOL_NAME_CHARS_MAX: Final = 64
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?", re.ASCII)
_DIGITS: Final = re.compile(r"[0-9]{1,15}", re.ASCII)
# An error's text is only looked at this far.
_ERROR_TEXT_CHARS: Final = 4096


def time_ns(value: Any) -> int | None:
    """A stored `ts` in nanoseconds since the epoch; None when it is absent, not above zero or no time at all.

    Microseconds by contract; seconds, milliseconds and nanoseconds are told by their magnitude, and ISO 8601 text is
    read (without a zone it is UTC).
    """
    if type(value) is int:
        if MICROSECONDS_MIN <= value < MICROSECONDS_MAX:
            return value * 1000
        return _by_magnitude(value)
    if type(value) is float:
        return _by_magnitude(value) if math.isfinite(value) else None
    if type(value) is str:
        return _iso_ns(value)
    return None


def _by_magnitude(value: float) -> int | None:
    if value <= 0:
        return None
    if value < 10**11:
        scaled = value * 10**9
    elif value < 10**14:
        scaled = value * 10**6
    elif value < 10**17:
        scaled = value * 1000
    else:
        scaled = value
    result = int(scaled)
    return result if 0 < result <= _TIME_NS_MAX else None


def _iso_ns(text: str) -> int | None:
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    since = moment - datetime(1970, 1, 1, tzinfo=UTC)
    result = ((since.days * 86400 + since.seconds) * 10**6 + since.microseconds) * 1000
    return result if 0 < result <= _TIME_NS_MAX else None


def clean(text: str, limit: int = IDENTIFIER_CHARS_MAX) -> str:
    """The text with lone surrogates replaced and at most `limit` characters long."""
    if len(text) > limit:
        text = text[:limit]
    return without_surrogates(text)


def integer(value: int) -> AttributeValue:
    """An integer as an attribute value: as text beyond 64 bits."""
    return value if -_INT64 <= value < _INT64 else str(value)


def as_mapping(value: Any) -> Mapping[str, Any]:
    """The value when it is an object, else an empty one."""
    return value if is_mapping(value) else {}


def as_count(value: Any) -> int | None:
    """A token count: an integer not below 0, a float without a fraction, a text of up to 15 digits; else unknown."""
    if type(value) is int:
        return value if 0 <= value < _INT64 else None
    if type(value) is float:
        return int(value) if 0 <= value < 2**53 and value.is_integer() else None
    if type(value) is str and _DIGITS.fullmatch(value):
        return int(value)
    return None


def as_cost(value: Any) -> float | None:
    """A cost in US dollars: a finite number not below 0; else unknown."""
    if type(value) is int:
        return float(value) if 0 <= value < 2**53 else None
    if type(value) is float:
        return value if 0 <= value < math.inf else None
    return None


def tool_name(name: str) -> str:
    """The name when it may be a tool's, else `_OTHER`: some producers put a whole command line there."""
    return _tool_name(name) if len(name) <= _TOOL_NAME_CHARS_MAX else OTHER


@lru_cache(4096)
def _tool_name(name: str) -> str:
    return name if _TOOL_NAME.fullmatch(name) else OTHER


def bare_word(value: Any) -> str:
    """A single word, a leading colon taken off; else `_OTHER`."""
    match = _BARE.fullmatch(value) if type(value) is str else None
    return match[1] if match else OTHER


def error_name(reason: Any) -> str:
    """The name of an error, never its message; `_OTHER` when it has none."""
    if is_mapping(reason):
        return bare_word(reason.get("type", reason.get("kind")))
    if type(reason) is not str:
        return OTHER
    text = reason[:_ERROR_TEXT_CHARS]
    outside = _IN_ERROR.match(text)
    if outside:
        text = text[outside.end() :].rstrip().removesuffix("}")
    match = _BARE.fullmatch(text) or _STRUCT.match(text) or _TUPLE.match(text)
    if match:
        return match[1]
    prefix = _PREFIX.match(text)
    return prefix[1] if prefix and prefix[1].endswith(_PREFIX_ENDINGS) else OTHER


def member(value: Any, known: frozenset[str], other: str = "other") -> str:
    """The value when it is in a closed set, else `other`."""
    return value if type(value) is str and value in known else other


def parse_traceparent(value: Any) -> tuple[str, str] | None:
    """The (trace id, span id) of a W3C traceparent; None when it is absent or invalid."""
    match = _TRACEPARENT.fullmatch(value) if type(value) is str else None
    if match is None:
        return None
    version, trace_id, span_id, _flags, more = match.groups()
    if version == "ff" or (version == "00" and more) or trace_id == "0" * 32 or span_id == "0" * 16:
        return None
    return trace_id, span_id
