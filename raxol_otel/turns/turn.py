"""One open turn: what its records have said so far, and the spans that come of it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from raxol_otel import catalogue as names
from raxol_otel.canonical import encode
from raxol_otel.contract import Evidence, evidence_status
from raxol_otel.errors import EncodeError
from raxol_otel.turns import values
from raxol_otel.turns.calls import Call, OpenCalls, call_id_of, failure_name, is_failure, name_of, result_of
from raxol_otel.turns.content import Content
from raxol_otel.turns.span import EVENTS_MAX, Attributes, Link, Role, Span, SpanEvent
from raxol_otel.turns.usage import Usage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raxol_otel.turns.config import FoldConfig

__all__ = ["OPEN_ITEMS_MAX", "Turn", "TurnIds", "turn_ids"]

# More calls or items open at once in one turn, and the oldest is given up on.
OPEN_ITEMS_MAX: Final = 10_000


@dataclass(slots=True)
class Turn:
    """An open turn. `last_*` are those of the last record folded into it."""

    config: FoldConfig
    session_id: str
    branch: str
    # None for an observed turn whose record has none.
    turn_id: str | None
    offset: int
    start_ns: int
    trace_id: str
    span_id: str
    parent_id: str
    id_prefix: bytes
    # Where the spans go; None: none are made, since nobody asked for the turn or the fold is quiet.
    out: list[Span] | None
    wanted: bool = True
    synthesized: bool = False
    observed: bool = False
    ended_because: str | None = None
    link: Link | None = None
    tainted: bool = False
    last_type: str = ""
    # When the approval was asked for that nothing has followed but words.
    waits_ns: int | None = None
    last_ns: int = 0
    last_offset: int = 0
    iterations: int = 0
    tool_calls: int = 0
    cost: float | None = None
    model: str | None = None
    provider: str | None = None
    closing: Mapping[str, Any] | None = None
    usage: Usage = field(default_factory=Usage)
    content: Content | None = None
    events: list[SpanEvent] = field(default_factory=list[SpanEvent])
    dropped_events: int = 0
    # Items that have started and not completed: offset, start and payload by item.
    started: dict[str, _Started] = field(default_factory=dict[str, "_Started"])
    calls: OpenCalls = field(default_factory=OpenCalls)
    child_offsets: set[int] = field(default_factory=set[int])

    # -- what records say

    def note_model(self, payload: Mapping[str, Any]) -> None:
        """Take the first model and provider that a boundary record names."""
        if self.model is None and type(payload.get("model")) is str:
            self.model = payload["model"]
        if self.provider is None and type(payload.get("provider")) is str:
            self.provider = payload["provider"]

    def note_completed(self, payload: Mapping[str, Any]) -> None:
        """One provider call ended: count it and add its usage and cost."""
        self.waits_ns = None
        self.iterations += 1
        self.closing = payload
        self.usage.add(payload.get("usage"))
        cost = values.as_cost(payload.get("cost"))
        if cost is not None:
            total = cost if self.cost is None else self.cost + cost
            # A sum that no float can hold is no cost that anybody paid.
            self.cost = total if math.isfinite(total) else self.cost
        self.note_model(payload)

    def event(self, name: str, time_ns: int, attributes: Attributes) -> None:
        """Add a span event, up to the bound."""
        if len(self.events) < EVENTS_MAX:
            self.events.append(SpanEvent(name, time_ns, attributes))
        else:
            self.dropped_events += 1

    def item_started(self, offset: int, time_ns: int, payload: Mapping[str, Any]) -> None:
        """Remember an item's start."""
        started = self.started
        item_id = payload.get("item_id")
        key = item_id if type(item_id) is str else _item_key(payload)
        started.setdefault(key, (offset, time_ns, payload))
        if len(started) > OPEN_ITEMS_MAX:
            oldest = next(iter(started))
            self._unfinished(started.pop(oldest), time_ns)

    def item_completed(
        self, offset: int, time_ns: int, payload: Mapping[str, Any]
    ) -> Literal["item_type", "user"] | None:
        """The spans of an item that completed; says what to count when it makes none."""
        item_id = payload.get("item_id")
        begun = self.started.pop(item_id if type(item_id) is str else _item_key(payload), None)
        start_ns, completed = time_ns, offset
        if begun is not None:
            if begun[0] not in self.child_offsets:
                offset = begun[0]
            start_ns = begun[1]
        item_type = payload.get("item_type")
        if item_type == "tool_use":
            self.called(offset, time_ns, payload)
        elif item_type == "tool_result":
            self.answered(offset, time_ns, payload)
        elif item_type == "message" and (payload.get("role") == "user" or (begun and begun[2].get("role") == "user")):
            return "user"
        elif item_type in _TEXT_ITEMS:
            self.item(item_type, offset, start_ns, time_ns, payload)
        else:
            return "item_type"
        if completed != offset:
            self._seen(completed)
        return None

    def called(self, offset: int, time_ns: int, payload: Mapping[str, Any]) -> None:
        """The model asked for a tool."""
        self.waits_ns = None
        call = Call(offset, time_ns, name_of(payload), call_id_of(payload))
        if self.config.capture_content:
            call.arguments = Content.shown(payload.get("arguments"), self.config.content_chars_max)
        self._seen(offset)
        self.tool_calls += 1
        self.calls.add(call)
        if len(self.calls) > OPEN_ITEMS_MAX:
            self._tool(self.calls.take(next(iter(self.calls))), time_ns, "unanswered", {})

    def answered(self, offset: int, time_ns: int, payload: Mapping[str, Any]) -> None:
        """A tool's result came: the span of its call, or of an orphan."""
        self.waits_ns = None
        call = self.calls.match(payload)
        if call is not None:
            outcome = "error" if is_failure(payload) else "ok"
            self._tool(self.calls.take(call), time_ns, outcome, payload)
            return
        self._seen(offset)
        self._tool(Call(offset, time_ns, name_of(payload), call_id_of(payload)), time_ns, "orphan", payload)

    def _seen(self, offset: int) -> None:
        if len(self.child_offsets) >= OPEN_ITEMS_MAX:
            self.child_offsets.clear()
        self.child_offsets.add(offset)

    def item(self, item_type: str, offset: int, start_ns: int, end_ns: int, payload: Mapping[str, Any]) -> None:
        """The span of a message or of reasoning."""
        self._seen(offset)
        if self.content is not None:
            self.content.say(item_type, payload.get("content"), self.config.content_chars_max)
        if self.out is None:
            return
        attributes: Attributes = {names.ITEM_TYPE: item_type}
        item_id = payload.get("item_id")
        if item_id is not None:
            attributes[names.ITEM_ID] = values.clean(values.text_of(item_id))
        self.out.append(self._child(item_type, "item", offset, start_ns, end_ns, attributes))

    # -- the end

    def close(self, outcome: str, end_ns: int, error_type: str | None = None) -> int:
        """The turn's remaining spans, its own last; how many of its open items were of an unknown type."""
        # Children end with the turn, and no turn ends before it starts.
        last_ns = max(end_ns, self.start_ns)
        for call in self.calls:
            self._tool(call, last_ns, "unanswered", {})
        unknown = 0
        for begun in self.started.values():
            self._unfinished(begun, last_ns)
            unknown += not _is_known(begun[2].get("item_type"))
        if self.out is not None:
            self.out.append(self._span(outcome, end_ns, error_type))
        return unknown

    def _unfinished(self, begun: _Started, end_ns: int) -> None:
        offset, start_ns, payload = begun
        item_type = payload.get("item_type")
        if item_type in _TEXT_ITEMS and payload.get("role") != "user" and offset not in self.child_offsets:
            self.item(item_type, offset, start_ns, end_ns, {"item_id": payload.get("item_id")})

    def beginning(self) -> Span:
        """The turn's span as far as it is known while the turn is open; it ends where it starts."""
        attributes = self._attributes("", None)
        for key in (names.TURN_OUTCOME, names.LAST_OFFSET, names.PROVENANCE_TRUST):
            attributes.pop(key, None)
        if self.observed:
            attributes[names.OBSERVED] = True
        return self._whole(self.start_ns, attributes)

    def _attributes(self, outcome: str, error_type: str | None) -> Attributes:
        config = self.config
        session = values.clean(self.session_id)
        attributes: Attributes = {
            names.OPERATION_NAME: names.SPAN_TURN,
            names.CONVERSATION_ID: session,
            names.SESSION_ID: session,
            names.TURN_OUTCOME: outcome,
            names.FIRST_OFFSET: values.integer(self.offset),
            names.LAST_OFFSET: values.integer(self.last_offset),
        }
        for key, text in (
            (names.TURN_ID, self.turn_id),
            (names.AGENT_NAME, config.agent_name or None),
            (names.REQUEST_MODEL, self.model or config.model),
            (names.PROVIDER_NAME, self.provider or config.provider_name),
            (names.ERROR_TYPE, error_type),
            (names.BRANCH_ID, self.branch if self.branch != "main" else None),
        ):
            if text is not None:
                attributes[key] = values.clean(text)
        if self.synthesized:
            attributes[names.TURN_SYNTHESIZED] = True
        if self.tainted:
            attributes[names.PROVENANCE_TRUST] = "tainted"
        return attributes

    def _span(self, outcome: str, end_ns: int, error_type: str | None) -> Span:
        attributes = self._attributes(outcome, error_type)
        if self.observed:
            attributes[names.OBSERVED] = True
            if self.ended_because is not None:
                attributes[names.OBSERVED_REASON] = self.ended_because
        elif outcome == "completed":
            self._describe_completion(attributes)
        if self.iterations:
            attributes[names.TURN_ITERATIONS] = self.iterations
            self.usage.describe(attributes)
        if self.cost is not None:
            attributes[names.TURN_COST] = round(self.cost, 12)
        if self.content is not None:
            self.content.describe(attributes, outcome, self.config.content_chars_max)
        return self._whole(end_ns, attributes, error=outcome == "error")

    def _whole(self, end_ns: int, attributes: Attributes, *, error: bool = False) -> Span:
        agent = values.clean(self.config.agent_name or "")
        return Span(
            f"{names.SPAN_TURN} {agent}" if agent else names.SPAN_TURN,
            "turn",
            self.session_id,
            self.offset,
            self.trace_id,
            self.span_id,
            self.parent_id,
            self.start_ns,
            _not_before(self.start_ns, end_ns, attributes),
            attributes,
            error,
            self.events,
            () if self.link is None else (self.link,),
            self.dropped_events,
            self.tool_calls,
        )

    def _describe_completion(self, attributes: Attributes) -> None:
        closing = self.closing or {}
        attributes[names.TURN_FINAL] = closing.get("final") is True
        status = evidence_status(closing)
        attributes[names.TURN_EVIDENCE] = status.value
        if status is Evidence.REJECTED:
            rejected = values.as_mapping(closing.get("evidence_rejected"))
            attributes[names.TURN_EVIDENCE_REASON] = values.member(rejected.get("reason"), names.EVIDENCE_REASONS)

    def _tool(self, call: Call, end_ns: int, outcome: str, result: Mapping[str, Any]) -> None:
        if self.out is None:
            return
        attributes: Attributes = {names.OPERATION_NAME: names.SPAN_TOOL, names.TOOL_OUTCOME: outcome}
        span_name: str = names.SPAN_TOOL
        if call.name is not None:
            shown = values.tool_name(call.name)
            span_name = f"{names.SPAN_TOOL} {shown}"
            attributes[names.TOOL_NAME] = values.clean(call.name) if self.config.capture_content else shown
        if call.call_id is not None:
            attributes[names.TOOL_CALL_ID] = values.clean(call.call_id)
        if not self.observed:
            attributes[names.TOOL_TYPE] = "function"
        if outcome == "error":
            attributes[names.ERROR_TYPE] = failure_name(result)
        if self.config.capture_content:
            Content.describe_call(attributes, call.arguments, result_of(result), self.config.content_chars_max)
        span = self._child(span_name, "tool", call.offset, call.start_ns, end_ns, attributes)
        span.error = outcome == "error"
        if call.events:
            span.events, span.dropped_events = call.events, call.dropped_events
        self.out.append(span)

    def _child(  # noqa: PLR0917 - once a span, and keywords cost
        self, name: str, role: Role, offset: int, start_ns: int, end_ns: int, attributes: Attributes
    ) -> Span:
        span_id = sha256(b"%b,%d]" % (self.id_prefix, offset)).hexdigest()[32:48]
        if end_ns < start_ns:
            end_ns = _not_before(start_ns, end_ns, attributes)
        return Span(
            name, role, self.session_id, offset, self.trace_id, span_id, self.span_id, start_ns, end_ns, attributes
        )


_TEXT_ITEMS: Final = ("message", "reasoning")
_Started = tuple[int, int, "Mapping[str, Any]"]


def _is_known(item_type: Any) -> bool:
    return type(item_type) is str and item_type in names.ITEM_TYPES


def _item_key(payload: Mapping[str, Any]) -> str:
    """What tells an item of a turn: its id, else its type."""
    item_id = payload.get("item_id")
    if type(item_id) is str:
        return item_id
    return "\0" + values.text_of(payload.get("item_type") if item_id is None else item_id)


class TurnIds(NamedTuple):
    """A turn's ids, and the text that its children's ids begin with."""

    trace_id: str
    span_id: str
    prefix: bytes


def turn_ids(session_id: str, branch: str, offset: int, stored_ts: Any) -> TurnIds:
    """The ids, from what is stored on the turn's first record."""
    try:
        text = encode([session_id, branch, offset, stored_ts])
    except EncodeError:
        text = encode([values.text_of(session_id), values.text_of(branch), offset, values.text_of(stored_ts)])
    digest = sha256(text).hexdigest()
    return TurnIds(digest[:32], digest[32:48], text[:-1])


def _not_before(start_ns: int, end_ns: int, attributes: Attributes) -> int:
    if end_ns >= start_ns:
        return end_ns
    attributes[names.CLOCK_SKEW] = True
    return start_ns
