"""A finished span as plain data: what the fold gives and every exporter takes.

Ids are lower-case hex text, times are nanoseconds since the epoch, attribute values are text, booleans, 64-bit
integers or finite floats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["EVENTS_MAX", "AttributeValue", "Attributes", "Link", "Role", "Span", "SpanEvent"]

AttributeValue = str | bool | int | float
Attributes = dict[str, AttributeValue]
# A span carries at most this many events (the SDK's default); the first ones stay, the rest is counted as dropped.
EVENTS_MAX: Final = 128
Role = Literal["turn", "tool", "item"]


@dataclass(slots=True)
class SpanEvent:
    """Something that happened within a span, at `time_ns`."""

    name: str
    time_ns: int
    attributes: Attributes


@dataclass(slots=True, frozen=True)
class Link:
    """Another span that this one points to."""

    trace_id: str
    span_id: str


@dataclass(slots=True)
class Span:
    """One span. `parent_id` is empty for the root of a trace; `error` is status ERROR, else UNSET.

    `role` says what the span stands for, `offset` is that of its first record; `tool_calls` is how many tools a turn
    called. None of them is exported.
    """

    name: str
    role: Role
    session_id: str
    offset: int
    trace_id: str
    span_id: str
    parent_id: str
    start_ns: int
    end_ns: int
    attributes: Attributes
    error: bool = False
    events: Sequence[SpanEvent] = ()
    links: tuple[Link, ...] = ()
    dropped_events: int = 0
    tool_calls: int = 0
