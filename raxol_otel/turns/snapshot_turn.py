"""An open turn as JSON values, and back. What no later record can make use of is left out."""

from __future__ import annotations

import math
import re
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, TypeGuard, cast

from raxol_otel import catalogue as names
from raxol_otel.canonical import is_object
from raxol_otel.contract import evidence_status
from raxol_otel.turns import values
from raxol_otel.turns.calls import Call
from raxol_otel.turns.content import Content
from raxol_otel.turns.span import AttributeValue, Link, SpanEvent
from raxol_otel.turns.turn import Turn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raxol_otel.turns.config import FoldConfig
    from raxol_otel.turns.span import Span

__all__ = [
    "count",
    "hexadecimal",
    "integer",
    "link_from",
    "links",
    "listed",
    "members",
    "packed",
    "text",
    "turn_from",
    "turn_parts",
]

_INT64: Final = 2**63
_DIGITS: Final = re.compile(r"-?[0-9]{1,1100}", re.ASCII)
_HEX: Final = re.compile(r"(?:[0-9a-f]{16})*", re.ASCII)
_USAGE: Final = ("input", "output", "cache_read", "cache_write", "reasoning")


# -- checked values: each raises ValueError or TypeError for what a snapshot does not hold there


def text(value: Any) -> str:
    """A text."""
    if type(value) is not str:
        raise TypeError
    return value


def hexadecimal(value: Any) -> str:
    """Span and trace ids, one behind the other."""
    if not _HEX.fullmatch(text(value)):
        raise ValueError
    return cast("str", value)


def listed(value: Any, length: int | None = None) -> list[Any]:
    """A list, of that length where one is given."""
    if not _is_list(value):
        raise TypeError
    if length is not None and len(value) != length:
        raise ValueError
    return value


def _is_list(value: object) -> TypeGuard[list[Any]]:
    return type(value) is list


def members(value: Any) -> dict[str, Any]:
    """An object."""
    if not is_object(value):
        raise TypeError
    return value


def integer(value: Any) -> int:
    """An integer, as `packed` writes it."""
    if type(value) is str and _DIGITS.fullmatch(value):
        return int(value)
    if type(value) is not int:
        raise TypeError
    return value


def count(value: Any) -> int:
    """An integer not below 0."""
    if integer(value) < 0:
        raise ValueError
    return integer(value)


def packed(value: int) -> int | str:
    """An integer; as text beyond 64 bits."""
    return value if -_INT64 <= value < _INT64 else str(value)


def _time(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _INT64:
        raise ValueError
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise TypeError
    return value


def _cost(value: Any) -> float:
    if type(value) is not float or not 0 <= value < math.inf:
        raise TypeError
    return value


def _maybe_text(value: Any) -> str | None:
    return None if value is None else text(value)


# Fields of a turn that are plain values. Those of the second table are left out where they are as in a new turn.
_ALWAYS: Final[dict[str, Callable[[Any], Any]]] = {
    **dict.fromkeys(("branch", "last_type"), text),
    **dict.fromkeys(("trace_id", "span_id", "parent_id"), hexadecimal),
    **dict.fromkeys(("offset", "last_offset"), integer),
    **dict.fromkeys(("start_ns", "last_ns"), _time),
}
_DEFAULTS: Final[dict[str, tuple[Callable[[Any], Any], Any]]] = {
    **dict.fromkeys(("turn_id", "ended_because", "model", "provider"), (text, None)),
    **dict.fromkeys(("synthesized", "observed", "tainted"), (_flag, False)),
    **dict.fromkeys(("iterations", "tool_calls", "dropped_events"), (count, 0)),
    "wanted": (_flag, True),
    "cost": (_cost, None),
    "waits_ns": (_time, None),
}


# -- a turn


def turn_parts(turn: Turn, session_id: str) -> dict[str, Any]:
    """The turn as JSON values; `session_id` is the fold's."""
    parts: dict[str, Any] = {name: getattr(turn, name) for name in _ALWAYS}
    parts |= {"offset": packed(turn.offset), "last_offset": packed(turn.last_offset)}
    parts["prefix"] = turn.id_prefix.decode()
    for name, (_, default) in _DEFAULTS.items():
        value = getattr(turn, name)
        if value != default:
            parts[name] = value
    if turn.session_id != session_id:
        parts["session_id"] = turn.session_id
    if turn.link is not None:
        parts["link"] = [turn.link.trace_id, turn.link.span_id]
    if turn.closing is not None:
        rejected = values.as_mapping(turn.closing.get("evidence_rejected"))
        reason = values.member(rejected.get("reason"), names.EVIDENCE_REASONS)
        parts["closing"] = [evidence_status(turn.closing).value, reason]
        sums = [getattr(turn.usage, name) for name in _USAGE]
        parts["usage"] = [None if total is None else packed(total) for total in sums]
    if turn.content is not None:
        said = turn.content
        pieces = [[part["type"], part["content"]] for part in said.parts]
        parts["content"] = [said.prompt, said.asked, said.said, pieces]
    if turn.events:
        parts["events"] = _event_parts(turn.events)
    if turn.started:
        parts["started"] = [_started_parts(key, *begun) for key, begun in turn.started.items()]
    if len(turn.calls):
        parts["calls"] = [_call_parts(call) for call in turn.calls]
    if turn.child_offsets:
        # In order, each as what is to be added to the one before.
        parts["children"] = [packed(after - before) for before, after in pairwise((0, *sorted(turn.child_offsets)))]
    return parts


def _event_parts(events: list[SpanEvent]) -> list[Any]:
    return [[event.name, event.time_ns, event.attributes] for event in events]


def _started_parts(key: str, offset: int, start_ns: int, payload: Mapping[str, Any]) -> list[Any]:
    item_type, item_id = payload.get("item_type"), payload.get("item_id")
    return [
        key,
        packed(offset),
        start_ns,
        item_type if type(item_type) is str and item_type in names.ITEM_TYPES else None,
        payload.get("role") == "user",
        None if item_id is None else values.clean(values.text_of(item_id)),
    ]


def _call_parts(call: Call) -> list[Any]:
    return [
        *(packed(call.offset), call.start_ns, call.name, call.call_id, call.arguments),
        *(_event_parts(call.events or []), call.dropped_events),
    ]


def turn_from(given: Any, config: FoldConfig, session_id: str, out: list[Span] | None) -> Turn:
    """The turn of these JSON values."""
    parts = members(given)
    fields: dict[str, Any] = {name: check(parts.pop(name)) for name, check in _ALWAYS.items()}
    fields |= {name: _DEFAULTS[name][0](parts.pop(name)) for name in _DEFAULTS if name in parts}
    turn = Turn(
        config=config,
        session_id=text(parts.pop("session_id", session_id)),
        turn_id=fields.pop("turn_id", None),
        id_prefix=text(parts.pop("prefix")).encode(),
        out=out if fields.get("wanted", True) else None,
        **fields,
    )
    if "link" in parts:
        turn.link = link_from(parts.pop("link"))
    if "closing" in parts:
        status, reason = map(text, listed(parts.pop("closing"), 2))
        turn.closing = {"evidence": status, "evidence_rejected": {"reason": reason}}
        for name, total in zip(_USAGE, listed(parts.pop("usage"), len(_USAGE)), strict=True):
            setattr(turn.usage, name, None if total is None else count(total))
    if "content" in parts:
        turn.content = _content_from(parts.pop("content"))
    turn.events = _events_from(parts.pop("events", []))
    for key, offset, start_ns, item_type, user, item_id in (listed(one, 6) for one in listed(parts.pop("started", []))):
        payload = {"item_type": _maybe_text(item_type), "item_id": _maybe_text(item_id)}
        if _flag(user):
            payload["role"] = "user"
        turn.started[text(key)] = (integer(offset), _time(start_ns), payload)
    for one in listed(parts.pop("calls", [])):
        turn.calls.add(_call_from(one))
    turn.child_offsets.update(accumulate(map(integer, listed(parts.pop("children", [])))))
    if parts:
        raise ValueError
    return turn


def _events_from(given: Any) -> list[SpanEvent]:
    events: list[SpanEvent] = []
    for name, time_ns, attributes in (listed(one, 3) for one in listed(given)):
        if not {type(value) for value in members(attributes).values()} <= {str, bool, int, float}:
            raise TypeError
        events.append(SpanEvent(text(name), _time(time_ns), cast("dict[str, AttributeValue]", attributes)))
    return events


def _content_from(given: Any) -> Content:
    content = Content()
    prompt, asked, said, parts = listed(given, 4)
    content.prompt, content.asked, content.said = _maybe_text(prompt), count(asked), count(said)
    content.parts = [{"type": text(kind), "content": text(part)} for kind, part in (listed(one, 2) for one in parts)]
    return content


def _call_from(given: Any) -> Call:
    offset, start_ns, name, call_id, arguments, events, dropped = listed(given, 7)
    call = Call(integer(offset), _time(start_ns), _maybe_text(name), _maybe_text(call_id), _maybe_text(arguments))
    call.events, call.dropped_events = _events_from(events) or None, count(dropped)
    return call


# -- links


def links(last: Mapping[str, Link]) -> list[list[str]]:
    """The last turns of branches, in order."""
    return [[branch, link.trace_id, link.span_id] for branch, link in last.items()]


def link_from(given: Any) -> Link:
    """A link of its two ids."""
    return Link(*map(hexadecimal, listed(given, 2)))
