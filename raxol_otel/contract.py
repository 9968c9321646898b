"""The event envelope that a journal stores, its line encoder, and the evidence marker's decoder.

The contract only grows: a field or a type is added, never removed, renamed or made required. Producers are strict,
readers skip what they do not know.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date, datetime, time
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.canonical import encode, is_array, is_mapping, plain_repr, without_surrogates
from raxol_otel.errors import RaxolError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "FAMILIES",
    "TIERS",
    "Event",
    "Evidence",
    "InvalidEvent",
    "encode_line",
    "evidence_status",
    "sanitize_payload",
]

FAMILIES: Final = frozenset({"loop", "meta"})
TIERS: Final = frozenset({"durable", "ephemeral"})
# Containers within containers; beyond it a payload is given as text rather than followed.
_DEPTH_MAX: Final = 200


class InvalidEvent(RaxolError, ValueError):
    """A field of an event has a value the contract does not allow."""


class Evidence(StrEnum):
    """What a closing `turn_completed` says of its evidence. `UNKNOWN` is decode-only."""

    ACCEPTED = "accepted"
    REJECTED = "rejected"
    ABSENT = "absent"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One observable step of an agent's run.

    `ts` is in microseconds since the epoch. `family` is `loop` (the agent's turns) or `meta`; `tier` is `durable`
    (journaled) or `ephemeral` (`item_delta` only, never journaled). `id` is the offset that the journal's writer
    stamps. Raises `InvalidEvent` for a family or tier outside the closed sets.
    """

    type: str
    payload: Mapping[Any, Any] = field(default_factory=dict[Any, Any])
    turn_id: str | None = None
    ts: int | None = None
    family: str = "loop"
    tier: str = "durable"
    session_id: str | None = None
    id: int | None = None
    scope: str | None = None
    provenance: Mapping[str, Any] | None = None
    actor: Any = None
    branch_id: str | None = None
    v: int = 0

    def __post_init__(self) -> None:
        if self.family not in FAMILIES:
            message = f"family {self.family!r} is none of {', '.join(sorted(FAMILIES))}"
            raise InvalidEvent(message)
        if self.tier not in TIERS:
            message = f"tier {self.tier!r} is none of {', '.join(sorted(TIERS))}"
            raise InvalidEvent(message)

    def to_dict(self) -> dict[str, Any]:
        """The event as a record; fields that are not set are left out, `turn_id` apart."""
        fields = {
            "actor": self.actor,
            "branch_id": self.branch_id,
            "family": self.family,
            "id": self.id,
            "payload": sanitize_payload(self.payload),
            "provenance": self.provenance,
            "scope": self.scope,
            "session_id": self.session_id,
            "tier": self.tier,
            "ts": self.ts,
            "type": self.type,
            "v": self.v,
        }
        return {"turn_id": self.turn_id, **{key: value for key, value in fields.items() if value is not None}}


def encode_line(event: Event | Mapping[str, Any]) -> bytes:
    """The event as one JSON line, newline-terminated, its payload sanitized.

    Raises `Unencodable`, naming the path, when something outside the payload cannot be written.
    """
    record = event.to_dict() if isinstance(event, Event) else dict(event)
    payload = record.get("payload")
    if is_mapping(payload):
        record["payload"] = sanitize_payload(payload)
    return encode(record) + b"\n"


def sanitize_payload(payload: Mapping[Any, Any]) -> dict[str, Any]:
    """A copy of the payload that JSON can carry. Never raises.

    Keys become text, dates ISO 8601, lone surrogates the replacement character; what JSON has no form for, or what
    raises when it is looked at, its `repr`; so does a container that contains itself.
    """
    try:
        return _members(payload, _DEPTH_MAX, ())
    except Exception:  # noqa: BLE001 - a mapping of the caller's, which may do anything
        return {"payload": plain_repr(payload)}


def _members(mapping: Mapping[Any, Any], depth: int, inside: tuple[int, ...]) -> dict[str, Any]:
    within = (*inside, id(mapping))
    return {_key(key): _sanitized(item, depth - 1, within) for key, item in mapping.items()}


def _sanitized(value: Any, depth: int, inside: tuple[int, ...]) -> Any:
    try:
        if isinstance(value, str):
            return without_surrogates(str.__str__(value))
        if isinstance(value, (datetime, date, time)):
            return value.isoformat()
        if is_mapping(value) or is_array(value):
            return plain_repr(value) if not depth or id(value) in inside else _container(value, depth, inside)
        encode(value)
    except Exception:  # noqa: BLE001 - as above; EncodeError, too: NaN and the like
        return plain_repr(value)
    return value


def _container(value: Any, depth: int, inside: tuple[int, ...]) -> Any:
    if is_mapping(value):
        return _members(value, depth, inside)
    within = (*inside, id(value))
    return [_sanitized(item, depth - 1, within) for item in value]


def _key(key: Any) -> str:
    return without_surrogates(str.__str__(key)) if isinstance(key, str) else plain_repr(key)


def evidence_status(payload: Any) -> Evidence:
    """What a closing `turn_completed`'s payload says of its evidence. Total: never raises.

    A present `evidence` decides by its text; what is not understood is unknown, never accepted. A record from before
    the marker existed is accepted when it carries `refs`, else unknown: a rejected and a never-offered completion look
    alike there, and guessing `absent` would launder the first into the second. The status is what the producer
    stamped; it is not derived again.
    """
    try:
        if is_mapping(payload) and "evidence" in payload:
            stamped = payload["evidence"]
            return Evidence(stamped) if isinstance(stamped, str) else Evidence.UNKNOWN
        return Evidence.ACCEPTED if is_mapping(payload) and "refs" in payload else Evidence.UNKNOWN
    except Exception:  # noqa: BLE001 - total by contract, whatever the mapping does
        return Evidence.UNKNOWN
