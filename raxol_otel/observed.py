"""Observations: the account of an agent that runs elsewhere, as it reported it, with the answers that people gave it.

A closed vocabulary of four steps. Each is hearsay: the agent's calls did not pass through here, and whether they ever
took place nobody here can tell. Unknown steps, statuses, outcomes and fields are refused, both when a step is made and
when one is read.

    record(journal, Prompted(), turn_id="review-1")
    record(journal, Decision("call-7", Selected("opt-1", "allow_once")))
    for observed, step in replay(iter_records(directory)): ...

Messages and thoughts have no step; who wants to read along needs another place for them.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from enum import StrEnum
from hashlib import sha256
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeAlias

from raxol_otel.canonical import is_array, is_mapping, without_surrogates
from raxol_otel.errors import InvalidStep, Unencodable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

__all__ = [
    "Cancelled",
    "Decision",
    "EventSink",
    "Outcome",
    "Prompted",
    "Selected",
    "Status",
    "Step",
    "ToolCall",
    "TurnEnded",
    "is_observation",
    "parse",
    "record",
    "render",
    "replay",
]

# The fields of each variant beside the tag that names it.
_STEPS: Final[dict[str, tuple[str, ...]]] = {
    "prompted": (),
    "tool_call": ("call", "status"),
    "decision": ("call", "outcome"),
    "turn_ended": ("reason",),
}
_OUTCOMES: Final[dict[str, tuple[str, ...]]] = {"selected": ("option", "kind"), "cancelled": ()}
# An error shows this much of a tag or a field's name that it refuses, and nothing of any other value.
_SHOWN_CHARS_MAX: Final = 40
# An integer that no journal can hold is no offset, and would have no digits in an error.
_OFFSET_BITS_MAX: Final = 3_400


class Status(StrEnum):
    """How far a tool call has come, by the agent's own report."""

    PENDING = "pending"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Prompted:
    """Somebody asked the agent for something: its turn begins."""

    step: ClassVar[str] = "prompted"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """News of a tool call, known by the id that the agent gave it. Raises `InvalidStep`."""

    call: str
    status: Status
    step: ClassVar[str] = "tool_call"

    def __post_init__(self) -> None:
        _set(self, "call", _text(self.call, "call"))
        name = _text(self.status, "status")
        if name not in _STATUSES:
            raise InvalidStep("status", _none_of(name, _STATUSES))
        _set(self, "status", _STATUSES[name])


@dataclass(frozen=True, slots=True)
class Selected:
    """The person picked this option from those on offer.

    Option and kind are in the agent's words, whatever they may mean to it. Raises `InvalidStep`.
    """

    option: str
    kind: str
    outcome: ClassVar[str] = "selected"

    def __post_init__(self) -> None:
        _set(self, "option", _text(self.option, "option"))
        _set(self, "kind", _text(self.kind, "kind"))


@dataclass(frozen=True, slots=True)
class Cancelled:
    """The person picked nothing and ended the turn.

    Not to be counted as a refusal: perhaps no option to refuse was on offer, and this was the one way out.
    """

    outcome: ClassVar[str] = "cancelled"


Outcome: TypeAlias = Selected | Cancelled


@dataclass(frozen=True, slots=True)
class Decision:
    """How a person answered the question about this call. Raises `InvalidStep`."""

    call: str
    outcome: Outcome
    step: ClassVar[str] = "decision"

    def __post_init__(self) -> None:
        _set(self, "call", _text(self.call, "call"))
        _one_of(self.outcome, (Selected, Cancelled), "outcome")


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """The turn is over; why, the agent says in words of its choice. Raises `InvalidStep`."""

    reason: str
    step: ClassVar[str] = "turn_ended"

    def __post_init__(self) -> None:
        _set(self, "reason", _text(self.reason, "reason"))


Step: TypeAlias = Prompted | ToolCall | Decision | TurnEnded

_STATUSES: Final[dict[str, Status]] = {status.value: status for status in Status}


class EventSink(Protocol):
    """What observations are appended to: a journal, or whatever stands for one."""

    def append(self, event: dict[str, Any], /) -> int:
        """Append the event; its offset."""
        ...


def parse(value: Any) -> Step:
    """The step that a decoded JSON value spells. Raises `InvalidStep`, naming the path of the culprit."""
    name, members = _variant(value, "step", _STEPS)
    match name:
        case "prompted":
            return Prompted()
        case "tool_call":
            return ToolCall(members["call"], members["status"])
        case "decision":
            return Decision(members["call"], _parse_outcome(members["outcome"]))
        case _:
            return TurnEnded(members["reason"])


def _parse_outcome(value: Any) -> Outcome:
    try:
        name, members = _variant(value, "outcome", _OUTCOMES)
        return Selected(members["option"], members["kind"]) if name == "selected" else Cancelled()
    except InvalidStep as error:
        raise InvalidStep(f"outcome.{error.path}" if error.path else "outcome", error.reason) from None


def render(step: Step) -> dict[str, Any]:
    """The step as a JSON object; `parse` gives the step back. Raises `InvalidStep` for what is no step."""
    match step:
        case Prompted():
            return {"step": step.step}
        case ToolCall():
            return {"step": step.step, "call": step.call, "status": step.status.value}
        case Decision():
            return {"step": step.step, "call": step.call, "outcome": _render_outcome(step.outcome)}
        case TurnEnded():
            return {"step": step.step, "reason": step.reason}
        case _:  # whatever an untyped caller gave
            raise InvalidStep("", f"a step is expected, not {_kind_of(step)}")


def _render_outcome(outcome: Outcome) -> dict[str, Any]:
    if isinstance(outcome, Selected):
        return {"outcome": outcome.outcome, "option": outcome.option, "kind": outcome.kind}
    return {"outcome": outcome.outcome}


def record(
    journal: EventSink,
    step: Step,
    detail: str | None = None,
    *,
    keep_digest: bool = False,
    session_id: str | None = None,
    turn_id: str | None = None,
    branch_id: str | None = None,
    actor: str | None = None,
    clock: Callable[[], int] = time.time_ns,
) -> int:
    """Append an observation to the journal; its offset.

    `detail`, the words that the step is about (a prompt's text, say), is never written. With `keep_digest` the
    record's `detail_sha256` is the SHA-256 of its UTF-8 in lower-case hex, so that whoever has the words can show that
    these were the ones. `actor` names the agent that is observed; `clock` is in nanoseconds since the epoch. Raises
    `InvalidStep`, `Unencodable` for a detail without UTF-8, and what the journal raises; nothing is appended then.
    """
    event: dict[str, Any] = {
        "v": 0,
        "kind": "event",
        "family": "meta",
        "type": "observed",
        "tier": "durable",
        "ts": clock() // 1000,
        "turn_id": turn_id,
        "payload": render(step),
    }
    optional = {
        "session_id": session_id,
        "branch_id": branch_id,
        "actor": actor,
        "detail_sha256": _digest(detail) if keep_digest and detail is not None else None,
    }
    return journal.append(event | {key: value for key, value in optional.items() if value is not None})


def _digest(detail: str) -> str:
    # Asked beforehand: a UnicodeEncodeError would carry the whole text into whatever reports it.
    if without_surrogates(detail) != detail:
        raise Unencodable("detail", "a lone surrogate")
    return sha256(detail.encode()).hexdigest()


def is_observation(record: Mapping[str, Any]) -> bool:
    """Whether the record is an observation: kind `event` (absent reads as that), family `meta`, type `observed`."""
    return (
        record.get("type") == "observed" and record.get("family") == "meta" and record.get("kind", "event") == "event"
    )


def replay(records: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Mapping[str, Any], Step]]:
    """The observations among the records, each with its step; lazy, in the order in which they come.

    Raises `InvalidStep`, with the `offset`, at the first one that is not understood, after those before it: an account
    with a step left out would look whole. To go on past it, use `is_observation` and `parse`.
    """
    for item in records:
        if not is_observation(item):
            continue
        try:
            step = parse(item.get("payload"))
        except InvalidStep as error:
            raise InvalidStep(error.path, error.reason, _offset(item.get("id"))) from None
        yield item, step


def _offset(value: Any) -> int | None:
    return value if type(value) is int and value.bit_length() <= _OFFSET_BITS_MAX else None


# -- checks


def _variant(value: Any, tag: str, variants: Mapping[str, tuple[str, ...]]) -> tuple[str, dict[str, Any]]:
    """The name of the variant that the value's tag says, and the value's members, which are exactly that variant's."""
    if not is_mapping(value):
        raise InvalidStep("", f"an object is expected, not {_kind_of(value)}")
    members: dict[str, Any] = dict(value)
    if tag not in members:
        raise InvalidStep(tag, "is missing")
    name = _text(members[tag], tag)
    if name not in variants:
        raise InvalidStep(tag, _none_of(name, variants))
    fields = (tag, *variants[name])
    for key in members:
        if key not in fields:
            raise InvalidStep(_field_name(key), f"{name} has no such field")
    for field in fields:
        if field not in members:
            raise InvalidStep(field, "is missing")
    return name, members


def _text(value: object, path: str) -> str:
    """The value when it is text, as an exact `str`."""
    if not isinstance(value, str):
        raise InvalidStep(path, f"text is expected, not {_kind_of(value)}")
    return str.__str__(value)


def _one_of(value: object, classes: tuple[type, ...], path: str) -> None:
    if not isinstance(value, classes):
        names = " or ".join(each.__name__ for each in classes)
        raise InvalidStep(path, f"{names} is expected, not {_kind_of(value)}")


def _set(step: object, name: str, value: object) -> None:
    """Set a field of a frozen instance that is being made."""
    object.__setattr__(step, name, value)


def _none_of(name: str, known: Iterable[str]) -> str:
    more = "..." if len(name) > _SHOWN_CHARS_MAX else ""
    return f"{name[:_SHOWN_CHARS_MAX]!r}{more} is none of {', '.join(known)}"


def _field_name(key: object) -> str:
    """An unknown field's name as it may stand in an error: short, and escaped where it is not printable."""
    return repr(str.__str__(key)[:_SHOWN_CHARS_MAX])[1:-1] if isinstance(key, str) else f"<{type(key).__name__}>"


def _kind_of(value: object) -> str:
    """What a value is, without saying anything of what is in it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    if isinstance(value, (int, float)):
        return "a number"
    if isinstance(value, str):
        return "text"
    if is_array(value):
        return "an array"
    return "an object" if is_mapping(value) else f"a value of type {type(value).__name__}"
