"""Tool calls that wait for their results, and what a result says."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from raxol_otel.turns import values
from raxol_otel.turns.span import EVENTS_MAX, Attributes, SpanEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = ["Call", "OpenCalls", "call_id_of", "failure_name", "is_failure", "name_of", "result_of"]

_Key = TypeVar("_Key")


@dataclass(slots=True, eq=False)
class Call:
    """A tool call that has no result yet. `arguments` are as they will be shown, where content is captured."""

    offset: int
    start_ns: int
    name: str | None
    call_id: str | None
    arguments: str | None = None
    events: list[SpanEvent] | None = None
    dropped_events: int = 0

    def event(self, name: str, time_ns: int, attributes: Attributes) -> None:
        """Add a span event, up to the bound."""
        if self.events is None:
            self.events = []
        if len(self.events) < EVENTS_MAX:
            self.events.append(SpanEvent(name, time_ns, attributes))
        else:
            self.dropped_events += 1


class OpenCalls:
    """The calls of one turn without a result, in order, and by what a result may name."""

    __slots__ = ("_by_id", "_by_name", "_calls")

    def __init__(self) -> None:
        self._calls: dict[Call, None] = {}
        self._by_id: dict[str, list[Call]] = {}
        # Only made once a result without a call id needs it.
        self._by_name: dict[str | None, list[Call]] | None = None

    def __len__(self) -> int:
        return len(self._calls)

    def __iter__(self) -> Iterator[Call]:
        return iter(self._calls)

    def add(self, call: Call) -> None:
        """Let a call wait."""
        self._calls[call] = None
        if call.call_id is not None:
            self._by_id.setdefault(call.call_id, []).append(call)
        if self._by_name is not None:
            self._by_name.setdefault(call.name, []).append(call)

    def oldest(self, call_id: str) -> Call | None:
        """The oldest waiting call of that id."""
        same_id = self._by_id.get(call_id)
        return same_id[0] if same_id else None

    def match(self, result: Mapping[str, Any]) -> Call | None:
        """The call that a result answers: by its call id where it carries one, else the oldest of its name."""
        call_id = call_id_of(result)
        if call_id is not None:
            return self.oldest(call_id)
        if self._by_name is None:
            self._by_name = {}
            for call in self._calls:
                self._by_name.setdefault(call.name, []).append(call)
        same_name = self._by_name.get(name_of(result))
        return same_name[0] if same_name else None

    def take(self, call: Call) -> Call:
        """The call no longer waits."""
        del self._calls[call]
        if self._by_name is not None:
            _forget(self._by_name, call.name, call)
        if call.call_id is not None:
            _forget(self._by_id, call.call_id, call)
        return call


def _forget(calls: dict[_Key, list[Call]], key: _Key, call: Call) -> None:
    calls[key].remove(call)
    if not calls[key]:
        del calls[key]


def name_of(payload: Mapping[str, Any]) -> str | None:
    """The tool's name, None when there is none."""
    name = payload.get("name")
    return name if type(name) is str else None


def call_id_of(payload: Mapping[str, Any]) -> str | None:
    """The call's id as text, None when there is none."""
    call_id = payload.get("call_id")
    if type(call_id) is str:
        return call_id
    return None if call_id is None else values.text_of(call_id)


def result_of(payload: Mapping[str, Any]) -> Any:
    """What the tool gave back."""
    return payload["result"] if "result" in payload else payload.get("content")


def is_failure(payload: Mapping[str, Any]) -> bool:
    """Whether a result says that the tool failed."""
    if payload.get("status") == "failed" or payload.get("is_error") is True:
        return True
    exit_code = payload.get("exit_code")
    if type(exit_code) is int and exit_code != 0:
        return True
    result = result_of(payload)
    return type(result) is str and result.startswith("{:error")


def failure_name(payload: Mapping[str, Any]) -> str:
    """The name of a failed result's error."""
    for key in ("reason", "error"):
        if key in payload:
            return values.error_name(payload[key])
    result = result_of(payload)
    return values.error_name(result) if type(result) is str and result.startswith("{:error") else values.OTHER
