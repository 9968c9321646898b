"""Observations folded into spans: what an agent that is not run here reported doing.

The steps are read leniently here; the closed vocabulary is enforced where they are written.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raxol_otel import catalogue as names
from raxol_otel.turns import values
from raxol_otel.turns.span import Attributes, Link, Span
from raxol_otel.turns.state import ObservedState
from raxol_otel.turns.turn import Turn, turn_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from raxol_otel.turns.config import FoldConfig
    from raxol_otel.turns.counts import Counts
    from raxol_otel.turns.recent import Recent
    from raxol_otel.turns.turn import TurnIds

__all__ = ["ObservedFold"]

# Branches with an open observed turn at once; the oldest is closed beyond it.
_OPEN_MAX: Final = 1_024
# Calls of one observed turn that are remembered as finished, so that a repeated status opens no second span.
_FINISHED_MAX: Final = 10_000
_DECISIONS: Final = frozenset({"selected", "cancelled"})
_STATUSES: Final = {"pending": None, "in_progress": None, "completed": "ok", "failed": "error"}


class ObservedFold:
    """One session's observations. Finished spans are appended to `out`; None: none are made, until it is set."""

    def __init__(  # noqa: PLR0917 - once a session
        self,
        config: FoldConfig,
        out: list[Span] | None,
        counts: Counts,
        ids: Recent[str],
        select: Callable[[str, int], bool] | None = None,
        on_open: Callable[[Turn, Mapping[str, Any]], object] | None = None,
    ) -> None:
        self._config = config
        self._out = out
        self._counts = counts
        self._ids = ids
        self._select = select
        self._on_open = on_open
        self._open: dict[str, Turn] = {}
        self._finished: dict[str, set[str]] = {}
        self._last: dict[str, Link] = {}
        # The highest offset that opened a turn.
        self.top = 0

    @property
    def state(self) -> ObservedState:
        """What is kept between two observations."""
        return ObservedState(self._open, self._finished, self._last)

    def wake(self, out: list[Span], on_open: Callable[[Turn, Mapping[str, Any]], object] | None) -> None:
        """From now on spans are made."""
        self._out, self._on_open = out, on_open
        for turn in self._open.values():
            turn.out = out if turn.wanted else None

    def feed(self, record: Mapping[str, Any], session_id: str, branch: str, offset: int, now: int) -> bool:
        """Fold one observation; says whether its step was understood."""
        payload = values.as_mapping(record.get("payload"))
        step, call, status = payload.get("step"), payload.get("call"), payload.get("status")
        if not _is_known(step, call, status):
            return False
        turn = None if step == "prompted" else self._open.get(branch)
        if turn is None:
            ids = turn_ids(session_id, branch, offset, record.get("ts"))
            if ids.span_id in self._ids:
                self._counts.duplicate += 1
                return True
            self._ids.add(ids.span_id)
            self.top = max(self.top, offset)
            self._end(branch, "incomplete")
            turn = self._opened(record, session_id, branch, offset, now, ids)
            turn.synthesized = step != "prompted"
            if self._on_open is not None:
                self._on_open(turn, record)
        elif offset <= turn.last_offset and offset in turn.child_offsets:
            self._counts.duplicate += 1
            return True
        turn.last_ns, turn.last_offset = now, max(turn.last_offset, offset)
        if step == "turn_ended":
            turn.ended_because = values.bare_word(payload.get("reason"))
            self._end(branch, "completed")
        elif type(call) is str and step == "tool_call":
            self._tool_call(turn, call, str(status), offset, now)
        elif type(call) is str:
            self._decision(turn, call, values.as_mapping(payload.get("outcome")), now)
        return True

    def close(self) -> None:
        """The journal's end: what is open is incomplete."""
        for branch in list(self._open):
            self._end(branch, "incomplete")

    def drop(self) -> None:
        """Forget what is open, without a span."""
        self._open.clear()
        self._finished.clear()

    def _opened(  # noqa: PLR0917 - once a turn
        self, record: Mapping[str, Any], session_id: str, branch: str, offset: int, now: int, ids: TurnIds
    ) -> Turn:
        if len(self._open) >= _OPEN_MAX:
            self._end(next(iter(self._open)), "incomplete")
        stored_id = record.get("turn_id")
        turn_id = None if stored_id is None else values.text_of(stored_id)
        turn = Turn(self._config, session_id, branch, turn_id, offset, now, *ids[:2], "", ids.prefix, self._out)
        if self._select is None or self._select(turn_id or "", now):
            self._counts.turns += 1
        else:
            turn.wanted, turn.out = False, None
        turn.observed = True
        turn.link = self._last.pop(branch, None)
        self._last[branch] = Link(ids.trace_id, ids.span_id)
        if len(self._last) > _OPEN_MAX:
            del self._last[next(iter(self._last))]
        self._open[branch] = turn
        self._finished[branch] = set()
        return turn

    def _end(self, branch: str, outcome: str) -> None:
        turn = self._open.pop(branch, None)
        if turn is not None:
            del self._finished[branch]
            turn.close(outcome, turn.last_ns)

    def _tool_call(self, turn: Turn, call: str, status: str, offset: int, now: int) -> None:
        finished = self._finished[turn.branch]
        if call in finished:
            return
        if turn.calls.oldest(call) is None:
            turn.called(offset, now, {"call_id": call})
        outcome = _STATUSES[status]
        if outcome is not None:
            turn.answered(offset, now, {"call_id": call, "is_error": outcome == "error"})
            if len(finished) < _FINISHED_MAX:
                finished.add(call)

    @staticmethod
    def _decision(turn: Turn, call: str, outcome: Mapping[str, Any], now: int) -> None:
        attributes: Attributes = {}
        decided = outcome.get("outcome")
        attributes[names.DECISION_OUTCOME] = values.member(decided, _DECISIONS)
        for key, field in ((names.DECISION_OPTION, "option"), (names.DECISION_KIND, "kind")):
            if type(outcome.get(field)) is str:
                attributes[key] = values.clean(outcome[field])
        (turn.calls.oldest(call) or turn).event(names.EVENT_DECISION, now, attributes)


def _is_known(step: Any, call: Any, status: Any) -> bool:
    """Whether a step is one of the vocabulary and names what it is about."""
    if step in ("prompted", "turn_ended"):
        return True
    if type(call) is not str:
        return False
    return step == "decision" or (step == "tool_call" and type(status) is str and status in _STATUSES)
