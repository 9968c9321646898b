"""A fold as bytes, and back: the rest of the records then gives what it would have given.

`{"version":1,"config":FINGERPRINT,"check":CRC-32,"state":{...}}`, compact JSON. Texts with lone surrogates, which UTF-8
cannot hold, are written as Python's `surrogatepass` does; integers beyond 64 bits are texts.
"""

from __future__ import annotations

import json
import re
import zlib
from dataclasses import fields
from hashlib import sha256
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel.turns.counts import Counts
from raxol_otel.turns.snapshot_turn import (
    count,
    hexadecimal,
    integer,
    link_from,
    links,
    listed,
    members,
    packed,
    text,
    turn_from,
    turn_parts,
)

if TYPE_CHECKING:
    from raxol_otel.turns.config import FoldConfig
    from raxol_otel.turns.span import Span
    from raxol_otel.turns.state import FoldState

__all__ = ["dump", "load"]

_VERSION: Final = 1
_FRAME: Final = re.compile(
    rb'\{"version":([1-9][0-9]{0,8}),'
    rb'"config":"([0-9a-f]{16})","check":(0|[1-9][0-9]{0,9}),"state":(\{.*\})\}',
    re.DOTALL,
)
_ANY_VERSION: Final = re.compile(rb'\{"version":([1-9][0-9]{0,8})[,}]')
_SPAN_ID_CHARS: Final = 16
_COUNTS: Final = tuple(field.name for field in fields(Counts) if field.name != "unknown")


def dump(state: FoldState, config: FoldConfig, session_id: str) -> bytes:
    """The fold's state as bytes. The same state gives the same bytes."""
    observed = state.observed
    parts = {
        "now": state.now,
        "offset": packed(state.offset),
        "top": packed(state.top),
        "limit": state.closed.limit,
        "counts": [getattr(state.counts, name) for name in _COUNTS],
        "unknown": state.counts.unknown,
        # Turn ids, and before those of one branch its name.
        "closed": [
            [branch, [turn_id for _, turn_id in keys]] for branch, keys in groupby(state.closed, lambda key: key[0])
        ],
        "ids": "".join(state.ids),
        "last": links(state.last),
        "open": [turn_parts(turn, session_id) for turn in state.open.values()],
        "observed": [
            [turn_parts(turn, session_id), sorted(observed.finished[branch])] for branch, turn in observed.open.items()
        ],
        "observed_last": links(observed.last),
    }
    try:
        body = orjson.dumps(parts)
    except orjson.JSONEncodeError:
        body = json.dumps(parts, ensure_ascii=False, separators=(",", ":")).encode(errors="surrogatepass")
    frame = b'{"version":%d,"config":"%b","check":%d,"state":%b}'
    return frame % (_VERSION, _fingerprint(config, session_id), zlib.crc32(body), body)


def load(  # noqa: PLR0917 - called in one place
    data: bytes, state: FoldState, config: FoldConfig, session_id: str, out: list[Span] | None, limit: int | None
) -> None:
    """Fill the state of a new fold. `limit`: how many closed turns to remember, None: as many as before.

    Raises `ValueError` for anything that `dump` of this version, with this configuration, did not write.
    """
    try:
        frame = _FRAME.fullmatch(data)
        version = frame or _ANY_VERSION.match(data)
        body = b"" if frame is None else frame[4]
        intact = frame is not None and int(frame[3]) == zlib.crc32(body)
        if version is not None and int(version[1]) != _VERSION:
            raise _unusable(f"it is of version {int(version[1])}, this is version {_VERSION}")
        if not intact or frame is None:
            raise _unusable("it is damaged")
    except TypeError:
        raise _unusable("it is not bytes") from None
    if frame[2] != _fingerprint(config, session_id):
        raise _unusable("it is of another session or configuration")
    try:
        _fill(_parsed(body), state, config, session_id, out, limit)
    except (AttributeError, LookupError, TypeError, ValueError, RecursionError):
        raise _unusable("it is malformed") from None


def _unusable(why: str) -> ValueError:
    return ValueError(f"a fold's snapshot cannot be used: {why}; fold the session from its start")


def _fingerprint(config: FoldConfig, session_id: str) -> bytes:
    told = (config.agent_name, config.provider_name, config.model, config.capture_content, config.content_chars_max)
    # A name may have lone surrogates, which repr writes as escapes.
    return sha256(repr((session_id, *told)).encode(errors="backslashreplace")).hexdigest()[:16].encode()


def _parsed(body: bytes) -> dict[str, Any]:
    try:
        return members(orjson.loads(body))
    except orjson.JSONDecodeError:
        return members(json.loads(body.decode(errors="surrogatepass")))


def _fill(  # noqa: PLR0917 - called in one place
    parts: dict[str, Any],
    state: FoldState,
    config: FoldConfig,
    session_id: str,
    out: list[Span] | None,
    limit: int | None,
) -> None:
    state.now = count(parts["now"]) or state.now
    state.offset, state.top = integer(parts["offset"]), integer(parts["top"])
    state.closed.limit = state.ids.limit = limit or max(1, count(parts["limit"]))
    for name, seen in zip(_COUNTS, listed(parts["counts"]), strict=True):
        setattr(state.counts, name, count(seen))
    unknown = members(parts["unknown"])
    if unknown.keys() != state.counts.unknown.keys():
        raise ValueError
    state.counts.unknown.update({what: count(seen) for what, seen in unknown.items()})
    for branch, turn_ids in (listed(one, 2) for one in listed(parts["closed"])):
        for turn_id in listed(turn_ids):
            state.closed.add((text(branch), text(turn_id)))
    ids = hexadecimal(parts["ids"])
    for at in range(0, len(ids), _SPAN_ID_CHARS):
        state.ids.add(ids[at : at + _SPAN_ID_CHARS])
    for last, given in ((state.last, parts["last"]), (state.observed.last, parts["observed_last"])):
        for branch, *link in listed(given):
            last[text(branch)] = link_from(link)
    for one in listed(parts["open"]):
        turn = turn_from(one, config, session_id, out)
        state.open[turn.branch, text(turn.turn_id)] = turn
    for one, finished in (listed(pair, 2) for pair in listed(parts["observed"])):
        turn = turn_from(one, config, session_id, out)
        state.observed.open[turn.branch] = turn
        state.observed.finished[turn.branch] = set(map(text, listed(finished)))
