"""Records in, finished spans out. Pure: no clock, no I/O, no OpenTelemetry; the rules are in docs/reference/spans.md.

    for span in fold(iter_records(directory), directory.name): ...

The same fold serves live tracing and replay, so both give the same ids, names, times and attributes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from raxol_otel import catalogue as names
from raxol_otel.journal.tip import CONVERSATIONAL_TYPES, branch_of
from raxol_otel.turns import values
from raxol_otel.turns.content import CONTENT_CHARS_MAX, Content
from raxol_otel.turns.counts import Counts
from raxol_otel.turns.observed import ObservedFold
from raxol_otel.turns.recent import Recent
from raxol_otel.turns.span import Attributes, Link, Span
from raxol_otel.turns.turn import Turn, TurnIds, turn_ids

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

__all__ = ["CLOSED_TURNS_MAX", "OPEN_TURNS_MAX", "FoldConfig", "TurnFold", "fold"]

# How many closed turns a fold remembers, to tell a late record from a new turn. Bounds the memory of a long journal.
CLOSED_TURNS_MAX: Final = 16_384
# How many turns, over all branches, may be open at once; the oldest is closed as the journal's end would.
OPEN_TURNS_MAX: Final = 1_024
# How many branches' last turns are remembered for links.
BRANCHES_MAX: Final = 4_096

_LOOP_TYPES: Final = CONVERSATIONAL_TYPES | names.QUIET_TYPES | {"item_delta"}
_ITEM_RECORDS: Final = ("item_started", "item_completed")
_OFFSET_BITS_MAX: Final = 3_400
_INT64: Final = 2**63
_MICROSECONDS_MIN: Final = values.MICROSECONDS_MIN
_MICROSECONDS_MAX: Final = values.MICROSECONDS_MAX


@dataclass(frozen=True, slots=True)
class FoldConfig:
    """What the records do not say. `content_chars_max` bounds one content attribute, in characters."""

    agent_name: str | None = None
    provider_name: str | None = None
    model: str | None = None
    capture_content: bool = False
    content_chars_max: int = CONTENT_CHARS_MAX


class TurnFold:
    """The fold of one session's records, in the order of the journal.

    `created_at` is meta.json's, for records without a usable `ts`. `select` says for each turn that opens, by its id
    and its start in nanoseconds since the epoch, whether its spans are wanted. `on_open` is told of each turn that
    opens, observed ones too, and of the record that opened it.
    """

    def __init__(
        self,
        session_id: str,
        *,
        created_at: Any = None,
        config: FoldConfig | None = None,
        select: Callable[[str, int], bool] | None = None,
        on_open: Callable[[Turn, Mapping[str, Any]], object] | None = None,
    ) -> None:
        self.session_id = session_id
        self.config = config or FoldConfig()
        self.counts = Counts()
        self._now = values.time_ns(created_at) or 0
        self._open: dict[tuple[str, str], Turn] = {}
        self._closed: Recent[tuple[str, str]] = Recent(CLOSED_TURNS_MAX)
        # Span ids of the turns that were opened: a record that comes twice must not give one id to two spans.
        self._ids: Recent[str] = Recent(CLOSED_TURNS_MAX)
        self._last: dict[str, Link] = {}
        self._current: Turn | None = None
        self._offset = 0
        self._select = select
        self._on_open = on_open
        self._out: list[Span] = []
        self._unwanted: list[Span] = []
        self._observed = ObservedFold(self.config, self._out, self.counts, self._ids, select, on_open)
        self._boundaries = {
            "turn_completed": self._turn_completed,
            "turn_canceled": self._turn_canceled,
            "error": self._error,
            "approval_requested": self._approval,
        }

    @property
    def open_turns(self) -> int:
        """How many turns are open, of those that are wanted."""
        return len(self.open_span_ids())

    def open_span_ids(self) -> set[str]:
        """The span ids of the open turns, of those that are wanted."""
        own = {turn.span_id for turn in self._open.values() if turn.out is self._out}
        return own | self._observed.open_span_ids()

    @property
    def last_ns(self) -> int:
        """The time of the last record, in nanoseconds since the epoch."""
        return self._now

    def feed(self, record: Mapping[str, Any]) -> list[Span]:
        """Fold one record; the spans that it finished, children before their turn."""
        self.counts.records += 1
        self._one(record)
        return self._taken()

    def feed_many(self, records: Sequence[Mapping[str, Any]]) -> list[Span]:
        """Fold many records; the spans that they finished."""
        self.counts.records += len(records)
        for record in records:
            turn = self._current
            if turn is None or not _is_plain_item(record, turn):
                self._one(record)
                continue
            # What _one does, for an item's record of the turn that the last record belonged to: most records are.
            turn.last_type = kind = record["type"]
            self._offset = turn.last_offset = offset = record["id"]
            self._now = turn.last_ns = now = record["ts"] * 1000
            if kind == "item_started":
                turn.item_started(offset, now, record["payload"])
            else:
                counted = turn.item_completed(offset, now, record["payload"])
                if counted is not None:
                    self._count(counted)
        return self._taken()

    def close(self, *, hold_open: bool = False) -> list[Span]:
        """The journal's end: the spans of the turns still open.

        `hold_open`: they may still be written to, so they are dropped without a span.
        """
        if hold_open:
            self._open.clear()
            self._current = None
            self._observed.drop()
        for key in list(self._open):
            self._end_unfinished(key)
        self._observed.close()
        return self._taken()

    def _taken(self) -> list[Span]:
        spans = self._out[:]
        self._out.clear()
        self._unwanted.clear()
        return spans

    def _one(self, record: Mapping[str, Any]) -> None:
        stored = record.get("ts")
        if type(stored) is int and _MICROSECONDS_MIN <= stored < _MICROSECONDS_MAX:
            self._now = now = stored * 1000
        else:
            self._now = now = values.time_ns(stored) or self._now
        offset = record.get("id")
        # An integer that no journal can hold is no offset.
        if type(offset) is not int or offset.bit_length() > _OFFSET_BITS_MAX:
            offset = self._offset + 1
        self._offset = offset
        turn_id = record.get("turn_id")
        kind = record.get("type")
        if (
            turn_id is None
            or record.get("family") != "loop"
            or ("kind" in record and record["kind"] != "event")
            or ("tier" in record and record["tier"] != "durable")
            or type(kind) is not str
            or kind not in CONVERSATIONAL_TYPES
        ):
            self._unfolded(record, offset, now)
            return
        branch = branch_of(record) if "branch_id" in record else "main"
        key = (branch, turn_id if type(turn_id) is str else values.text_of(turn_id))
        turn = self._turn_of(record, kind, key, offset, now)
        if turn is None:
            return
        turn.last_type = kind
        turn.last_ns = now
        turn.last_offset = max(turn.last_offset, offset)
        if "provenance" in record and values.as_mapping(record["provenance"]).get("trust") == "tainted":
            turn.tainted = True
        payload = record.get("payload")
        payload = values.as_mapping(payload)
        self._current = turn if branch == "main" else None
        if kind in _ITEM_RECORDS:
            self._item(turn, kind, offset, now, payload)
        elif kind != "turn_started":
            self._boundaries[kind](turn, key, now, payload)

    def _item(self, turn: Turn, kind: str, offset: int, now: int, payload: Mapping[str, Any]) -> None:
        if kind == "item_started":
            turn.item_started(offset, now, payload)
            return
        counted = turn.item_completed(offset, now, payload)
        if counted is not None:
            self._count(counted)

    def _count(self, what: str) -> None:
        if what == "user":
            self.counts.user += 1
        else:
            self.counts.unknown[what] += 1

    # -- opening and closing

    def _turn_of(
        self, record: Mapping[str, Any], kind: str, key: tuple[str, str], offset: int, now: int
    ) -> Turn | None:
        """The turn that the record belongs to, opened where it must be; None for a record that is only counted."""
        turn = None if kind == "turn_started" else self._open.get(key)
        if turn is not None:
            if offset <= turn.last_offset and offset in turn.child_offsets:
                self.counts.duplicate += 1
                return None
            return turn
        if kind != "turn_started" and key in self._closed:
            self.counts.late += 1
            return None
        stored = record.get("session_id")
        session_id = stored if type(stored) is str and stored else self.session_id
        ids = turn_ids(session_id, key[0], offset, record.get("ts"))
        if ids.span_id in self._ids:
            self.counts.duplicate += 1
            return None
        self._ids.add(ids.span_id)
        if kind == "turn_started":
            turn = self._turn_started(record, key, offset, now, session_id, ids)
        else:
            turn = self._opened(key, offset, now, session_id, ids)
            turn.synthesized = True
        if self._on_open is not None:
            self._on_open(turn, record)
        return turn

    def _turn_started(  # noqa: PLR0917 - once a turn
        self, record: Mapping[str, Any], key: tuple[str, str], offset: int, now: int, session_id: str, ids: TurnIds
    ) -> Turn:
        for other in [other for other in self._open if other[0] == key[0]]:
            self._end_unfinished(other)
        turn = self._opened(key, offset, now, session_id, ids)
        joined = values.parse_traceparent(record.get("traceparent"))
        if joined is not None:
            turn.trace_id, turn.parent_id = joined
            self._last[key[0]] = Link(turn.trace_id, turn.span_id)
        payload = values.as_mapping(record.get("payload"))
        turn.note_model(payload)
        if turn.content is not None:
            turn.content.ask(payload.get("prompt", payload.get("message")), self.config.content_chars_max)
        return turn

    def _opened(self, key: tuple[str, str], offset: int, now: int, session_id: str, ids: TurnIds) -> Turn:
        if len(self._open) >= OPEN_TURNS_MAX:
            self._end_unfinished(next(iter(self._open)))
        self._closed.discard(key)
        turn = Turn(self.config, session_id, key[0], key[1], offset, now, *ids[:2], "", ids.prefix, self._out)
        if self._select is None or self._select(key[1], now):
            self.counts.turns += 1
        else:
            turn.out = self._unwanted
        turn.link = self._last.pop(key[0], None)
        turn.last_offset = offset
        if self.config.capture_content:
            turn.content = Content()
        self._last[key[0]] = Link(ids.trace_id, ids.span_id)
        if len(self._last) > BRANCHES_MAX:
            del self._last[next(iter(self._last))]
        self._open[key] = turn
        return turn

    def _end(self, key: tuple[str, str], outcome: str, end_ns: int, error_type: str | None = None) -> None:
        turn = self._open.pop(key)
        if turn is self._current:
            self._current = None
        self.counts.unknown["item_type"] += turn.close(outcome, end_ns, error_type)
        self._closed.add(key)

    def _end_unfinished(self, key: tuple[str, str]) -> None:
        turn = self._open[key]
        self._end(key, "completed" if turn.last_type == "turn_completed" else "incomplete", turn.last_ns)

    # -- records of an open turn, items apart

    def _turn_completed(self, turn: Turn, key: tuple[str, str], now: int, payload: Mapping[str, Any]) -> None:
        turn.note_completed(payload)
        if payload.get("final") is True:
            self._end(key, "completed", now)

    def _turn_canceled(self, _turn: Turn, key: tuple[str, str], now: int, _payload: Mapping[str, Any]) -> None:
        self._end(key, "canceled", now)

    def _error(self, turn: Turn, key: tuple[str, str], now: int, payload: Mapping[str, Any]) -> None:
        name = values.error_name(payload.get("reason", payload.get("error")))
        turn.event(names.EVENT_EXCEPTION, now, {names.EXCEPTION_TYPE: name})
        if name != "unmapped_acp_update":
            self._end(key, "error", now, name)

    def _approval(self, turn: Turn, _key: tuple[str, str], now: int, payload: Mapping[str, Any]) -> None:
        attributes: Attributes = {}
        request_id = payload.get("request_id")
        if request_id is not None:
            attributes[names.APPROVAL_REQUEST_ID] = values.clean(values.text_of(request_id))
        if "risk" in payload:
            attributes[names.APPROVAL_RISK] = values.member(payload["risk"], names.APPROVAL_RISKS)
        turn.event(names.EVENT_APPROVAL, now, attributes)

    # -- everything else

    def _unfolded(self, record: Mapping[str, Any], offset: int, now: int) -> None:
        kind, family = record.get("kind", "event"), record.get("family")
        if kind == "event" and family == "meta" and record.get("type") == "observed":
            stored = record.get("session_id")
            session_id = stored if type(stored) is str and stored else self.session_id
            if not self._observed.feed(record, session_id, branch_of(record), offset, now):
                self.counts.unfolded += 1
                self.counts.unknown["type"] += 1
            return
        counts = self.counts
        counts.unfolded += 1
        if kind == "checkpoint":
            self._checkpoint(record, now)
        elif kind != "event":
            counts.unknown["kind"] += 1
        elif family == "loop":
            known = record.get("type")
            if type(known) is not str or known not in _LOOP_TYPES:
                counts.unknown["type"] += 1
        elif family != "meta":
            counts.unknown["family"] += 1

    def _checkpoint(self, record: Mapping[str, Any], now: int) -> None:
        branch = branch_of(record)
        for key in reversed(self._open):
            if key[0] == branch:
                attributes: Attributes = {}
                tip_offset = record.get("tip_offset")
                if type(tip_offset) is int:
                    attributes[names.CHECKPOINT_TIP] = values.integer(tip_offset)
                attributes[names.CHECKPOINT_REASON] = values.member(record.get("reason"), names.CHECKPOINT_REASONS)
                self._open[key].event(names.EVENT_CHECKPOINT, now, attributes)
                return


def _is_plain_item(record: Mapping[str, Any], turn: Turn) -> bool:
    """Whether an item's record needs no second look: it belongs to this turn of the main branch and has nothing odd."""
    try:
        stored, offset = record["ts"], record["id"]
        return (
            record["turn_id"] == turn.turn_id
            and record["type"] in _ITEM_RECORDS
            and record["family"] == "loop"
            and record["tier"] == "durable"
            and type(stored) is int
            and _MICROSECONDS_MIN <= stored < _MICROSECONDS_MAX
            and type(offset) is int
            and turn.last_offset < offset < _INT64
            and type(record["payload"]) is dict
            and ("provenance" not in record or _is_untainted(record["provenance"]))
            and "branch_id" not in record
            and "kind" not in record
        )
    except KeyError:
        return False


def _is_untainted(provenance: Any) -> bool:
    return type(provenance) is dict and cast("dict[str, Any]", provenance).get("trust") != "tainted"


def fold(
    records: Iterable[Mapping[str, Any]],
    session_id: str,
    *,
    created_at: Any = None,
    config: FoldConfig | None = None,
) -> Iterator[Span]:
    """The finished spans of a session's records; turns still open at the end are closed.

    `session_id` is the directory's name, for records that carry none.
    """
    state = TurnFold(session_id, created_at=created_at, config=config)
    for record in records:
        yield from state.feed(record)
    yield from state.close()
