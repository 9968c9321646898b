"""The quiet fold: no spans until it is woken, and then what a fold gives that was never quiet."""

from __future__ import annotations

import sys
import weakref
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raxol_otel.turns import Counts, FoldConfig, TurnFold
from tests.test_fold import ASK, BEGIN, CANCEL, DONE, END, ERROR, START, Folded, Record, item, line, on, record
from tests.test_fold_events import JOINED, PARENT_ID, TRACE_ID, observed
from tests.test_fold_safety import CAPTURED, RECORDS, stream
from tests.test_fold_snapshot import FULL, session, some
from tests.test_trees import CORPORA
from tests.test_trees import STREAMS as SESSIONS

TURN: Final = sys.modules["raxol_otel.turns.turn"]
QUIET: Final = sys.modules["raxol_otel.turns.quiet"]
FOLD: Final = sys.modules["raxol_otel.turns.fold"]


def without_loose(counts: Counts) -> Counts:
    """The counts, without those that a quiet fold need not count."""
    counts.user = counts.unfolded = 0
    counts.unknown.update(dict.fromkeys(counts.unknown, 0))
    return counts


def same(one: TurnFold, other: TurnFold) -> bool:
    """Whether two folds keep the same."""
    # What a quiet fold holds back is folded first; only then are the counts those of the snapshot.
    for fold in (one, other):
        fold.snapshot()
    return without_loose(one.counts) == without_loose(other.counts) and one.snapshot() == other.snapshot()


def assert_wakes(records: list[Record], first: int, second: int, **options: Any) -> None:
    """Quiet for two batches and then awake, a fold gives what one gives that was fed the same and was awake."""
    batches, rest = (records[:first], records[first:second]), records[second:]
    usual, quiet, single, restored = (TurnFold("s", quiet=number > 0, **options) for number in range(4))
    for batch in batches:
        usual.feed_many(batch)
        assert quiet.feed_many(batch) == []
        assert restored.feed_many(batch) == []
        assert all(single.feed(one) == [] for one in batch)
        assert quiet.last_ns == single.last_ns == restored.last_ns == usual.last_ns
        options.pop("closed_turns_max", None)
        restored = TurnFold.restore(restored.snapshot(), session_id="s", quiet=True, **options)
    assert single.open_turn_facts() == usual.open_turn_facts()
    assert single.open_span_ids() == usual.open_span_ids()
    for fold in (single, restored, quiet):
        assert same(fold, usual)
        fold.wake()
    spans, ends = usual.feed_many(rest), usual.close()
    for fold in (single, restored, quiet):
        assert fold.feed_many(rest) == spans
        assert fold.close() == ends
        assert same(fold, usual)


# Records as journals have them, and now and then an odd one.
PLAIN: Final = st.tuples(
    st.sampled_from((START, BEGIN, END, END, DONE, DONE, ERROR, CANCEL, ASK, "idle", "item_delta")),
    st.sampled_from(("t1", "t1", "t1", "t2")),
    st.sampled_from(
        [
            *({}, {"final": True}, {"final": True}, {"reason": "unmapped_acp_update"}),
            *({"item_type": "message", "item_id": "i"}, {"item_type": "tool_use", "call_id": "a"}),
            {"usage": {"input_tokens": 1}, "cost": 0.5},
        ]
    ),
    st.sampled_from(
        [
            *([Record()] * 20),
            *({"id": None}, {"id": 2.0}, {"id": True}, {"id": 5}, {"ts": None}, {"ts": 1}, on("b"), on("main")),
            *({"traceparent": JOINED}, {"session_id": "other"}, {"session_id": ""}, {"tier": "ephemeral"}),
            *({"kind": "checkpoint"}, {"kind": "event"}, {"family": "meta"}, {"turn_id": None}),
        ]
    ),
)


@settings(report_multiple_bugs=False)
@given(
    st.lists(st.one_of(PLAIN, PLAIN, PLAIN, RECORDS), max_size=50),
    st.tuples(st.integers(0, 50), st.integers(0, 50)),
    st.integers(0, 50),
    st.tuples(st.sampled_from((1, 1000)), st.sampled_from((3, 8_192)), st.integers(1, 4)),
)
def test_any_stream_is_as_if_it_had_never_been_quiet(
    drawn: list[tuple[str, Any, Record, Record]], cuts: tuple[int, int], again: int, bounds: tuple[int, int, int]
) -> None:
    """Whatever the records are: with gaps between offsets and without, some repeated, and whatever is remembered."""
    records = stream(drawn)
    step, held, closed = bounds
    for own in records:
        if type(own.get("id")) is int and own["id"] % 1000 == 0:
            own["id"] = own["id"] // 1000 * step
    records[again:again] = records[again // 2 : again // 2 + 2] if again % 3 == 0 else []
    first, second = cuts[0], sum(cuts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(QUIET, "HELD_RECORDS_MAX", held)
        assert_wakes(records, first, second, closed_turns_max=closed, config=CAPTURED if closed == 1 else None)
        assert_wakes(records, first, second, select=some)


@pytest.mark.parametrize("name", [*SESSIONS, *CORPORA, "tour"])
def test_a_session_can_be_woken_at_every_record(name: str) -> None:
    """Each frozen stream and journal, woken before and after every record."""
    records = session(name)
    for at in range(len(records) + 1):
        assert_wakes(records, at // 2, at, config=CAPTURED if at % 2 else None)


@pytest.mark.parametrize(
    "odd",
    [
        *(on("b"), on("main"), {"family": "meta"}, {"tier": "ephemeral"}, {"kind": "event"}, {"kind": "checkpoint"}),
        *({"turn_id": "t9"}, {"turn_id": 5}, {"turn_id": None}, {"ts": None}, {"ts": 1.5}, {"id": None}, {"id": "x"}),
        *({"id": 1}, {"id": 2}, {"id": 3.0}, {"id": True}, {"id": 2**63}, {"id": 10**1023}, {"payload": None}),
        *({"type": "x"}, {"type": "idle"}, {"type": None}, {"type": []}, {"session_id": "other"}, {"id": 0}, {"id": 9}),
    ],
)
def test_one_odd_record_is_as_if_it_had_never_been_quiet(odd: Record) -> None:
    """At any place of a plain turn: what begins it, what it holds, what ends it and what comes next."""
    usual = [record(1, START), record(2, BEGIN, item_type="message"), record(3, END, item_type="message")]
    usual += [record(4, DONE), record(5, DONE, final=True), record(6, START, "t2"), record(7, END, "t2")]
    usual += [record(8, CANCEL, "t2"), item(9, "message"), record(10, START, "t3")]
    for place in range(len(usual)):
        records = [*usual[:place], {**usual[place], **odd}, *usual[place + 1 :]]
        for at in range(len(records) + 1):
            assert_wakes(records, at // 2, at)
            assert_wakes(records, at - 1, at)


@pytest.mark.parametrize("config", [None, CAPTURED])
def test_all_that_an_open_turn_holds_is_there_when_it_is_woken(config: FoldConfig | None) -> None:
    """Items, calls, sums, events, other branches and observations."""
    rest = [item(20, "tool_result", call_id="a"), observed(24, "turn_ended"), record(28, CANCEL), record(29, START)]
    for at in range(len(FULL) + 1):
        assert_wakes([*FULL, *rest], at // 2, at, config=config)


TURNS: Final = [
    *(
        record(1, START, prompt="one"),
        item(2, "message", "i1", BEGIN),
        item(3, "message", "i1"),
        record(4, DONE, final=True),
    ),
    *(record(5, START, "t2", prompt="two"), record(6, DONE, "t2", usage={"input_tokens": 5}, cost=0.5)),
    *(record(7, ASK, "t2", request_id="r", risk="low"), record(8, DONE, "t2", usage={"input_tokens": 2}, cost=0.25)),
    *(record(9, END, "t2", item_type="message", item_id="i2", content="hello"),),
    *(record(10, END, "t2", item_type="tool_use", call_id="a", name="sh"),),
    *(record(11, END, "t2", item_type="tool_use", call_id="b", name="cat"),),
    *(record(12, END, "t2", item_type="tool_result", call_id="a"),),
]


def test_what_comes_after_waking() -> None:
    """The open turn is whole; what of it had finished is not given again, and nothing of the turns before is."""
    fold = TurnFold("s", config=CAPTURED, quiet=True)
    assert fold.feed_many(TURNS) == []
    fold.wake()
    spans = fold.feed_many(
        [record(13, END, "t2", item_type="tool_result", call_id="b"), record(14, DONE, "t2", final=True)]
    )
    assert [line(span) for span in spans] == ["execute_tool cat ok 11-13", "t2 completed 5-14 final"]
    turn = spans[1]
    assert turn.attributes["raxol.turn.iterations"] == 3
    assert turn.attributes["gen_ai.usage.input_tokens"] == 7
    assert turn.attributes["raxol.turn.cost_usd"] == 0.75
    assert "hello" in str(turn.attributes["gen_ai.output.messages"])
    assert "two" in str(turn.attributes["gen_ai.input.messages"])
    assert [event.name for event in turn.events] == ["raxol.approval.requested"]
    assert turn.tool_calls == 2
    # To the turn that was passed over.
    assert [link.span_id for link in turn.links] == [Folded(*TURNS[:4]).turns[0].span_id]
    assert fold.counts.turns == 2
    assert fold.counts.records == 14


def test_no_span_is_made_while_it_is_quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not of plain turns, nor of odd ones, nor where it is closed; nobody is told of a turn before it is woken."""
    told: list[str | None] = []
    usual = TurnFold("s")
    assert len(usual.feed_many([*FULL, *TURNS])) > 5

    def made(*_: object, **__: object) -> None:
        raise AssertionError

    fold = TurnFold("s", quiet=True, on_open=lambda turn, _: told.append(turn.turn_id))
    with monkeypatch.context() as patch:
        patch.setattr(TURN, "Span", made)
        fold.feed_many([*FULL, *TURNS, observed(20, "prompted"), observed(21, "turn_ended")])
        assert fold.close() == []
    fold.wake()
    fold.feed_many([record(30, START, "t9"), observed(31, "prompted") | {"turn_id": "o"}])
    assert told == ["t9", "o"]


def test_plain_turns_are_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not even the turn itself is made, whatever batches its records come in; with `select` neither."""
    plain: list[Record] = []
    for turn in range(50):
        at, own = turn * 10, f"t{turn}"
        plain += [record(at + 1, START, own), record(at + 2, "state_change", own), record(at + 3, DONE, own)]
        plain += [record(at + n, BEGIN if n % 2 else END, own, item_type="message") for n in (5, 6, 7)]
        plain += [record(at + 8, [DONE, ERROR, CANCEL, ASK][turn % 4], own, final=True), record(at + 9, "idle", None)]

    def made(*_: object, **__: object) -> None:
        raise AssertionError

    for size in (1, 3, 48, len(plain)):
        usual, quiet = TurnFold("s"), TurnFold("s", quiet=True, select=lambda turn_id, _: turn_id != "t0")
        usual.feed_many(plain)
        with monkeypatch.context() as patch:
            patch.setattr(FOLD, "Turn", made)
            for at in range(0, len(plain), size):
                quiet.feed_many(plain[at : at + size])
        assert (usual.counts.turns, quiet.counts.turns) == (50, 49)
        assert quiet.counts.unfolded == usual.counts.unfolded == 100
        assert quiet.last_ns == usual.last_ns
        late = [item(900, "message") | {"turn_id": f"t{turn}"} for turn in range(50)]
        quiet.feed_many(late)
        usual.feed_many(late)
        assert quiet.counts.late == usual.counts.late


def test_turns_passed_over_are_not_opened_again() -> None:
    """A start that comes a second time is a duplicate, a record of a closed turn is late."""
    again = [record(0, "idle"), *TURNS[:4], item(30, "message")]
    woken, quiet = TurnFold("s", quiet=True), TurnFold("s", quiet=True)
    for fold in (woken, quiet):
        fold.feed_many(TURNS[:4])
    woken.wake()
    for fold in (woken, quiet):
        assert fold.feed_many(again) == []
        assert (fold.counts.turns, fold.counts.duplicate, fold.counts.late) == (1, 1, 4)


def test_a_turn_links_to_one_that_was_passed_over_in_another_trace() -> None:
    """A link names the trace that the turn before had joined."""
    fold = TurnFold("s", quiet=True)
    fold.feed_many([record(1, START, "t1", {"traceparent": JOINED}), record(2, CANCEL)])
    fold.wake()
    (turn,) = fold.feed_many([record(3, START, "t2"), record(4, CANCEL, "t2")])
    assert PARENT_ID not in {turn.parent_id, turn.links[0].span_id}
    assert [link.trace_id for link in turn.links] == [TRACE_ID]


def test_open_turns_of_other_branches_do_not_stop_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns of the main branch are passed over beside them, and close none of them; the bound of open turns holds."""
    records = [record(1, START, "b1", on("b")), record(2, START, "b2", on("c"))]
    records += [record(n, START if n % 2 else DONE, f"t{n // 2}") for n in range(3, 20)]
    for most in (1_024, 3, 2, 1):
        monkeypatch.setattr(FOLD, "OPEN_TURNS_MAX", most)
        for at in range(len(records) + 1):
            assert_wakes(records, at // 2, at)


def test_branches_are_forgotten_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn that is passed over is its branch's last one; where there are too many, the oldest branch is forgotten."""
    monkeypatch.setattr(FOLD, "BRANCHES_MAX", 2)
    branches = ("b", "c", None, None, "c", None, "b", None, "d", "c")
    records: list[Record] = []
    for number, branch in enumerate(branches):
        fields = on(branch) if branch else {}
        records += [
            record(number * 2 + 1, START, f"t{number}", fields),
            record(number * 2 + 2, CANCEL, f"t{number}", fields),
        ]
    for at in range(len(records) + 1):
        assert_wakes(records, at // 2, at)
    quiet = TurnFold("s", quiet=True)
    quiet.feed_many(records[:6])
    quiet.wake()
    turns = quiet.feed_many([record(30, CANCEL, "x", on("c")), record(31, CANCEL, "y", on("b"))])
    assert [len(turn.links) for turn in turns] == [1, 0]


def test_a_fold_that_is_awake_can_be_woken() -> None:
    """It changes nothing."""
    fold, usual = TurnFold("s"), TurnFold("s")
    fold.feed_many(TURNS)
    usual.feed_many(TURNS)
    fold.wake()
    assert same(fold, usual)
    assert fold.close() == usual.close()


class Counted(dict[str, Any]):
    """A record of which one can know whether it is still there."""


def test_what_is_held_back_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn of very many records is folded as it comes, and is whole when it ends; its records are let go."""
    monkeypatch.setattr(QUIET, "HELD_RECORDS_MAX", 10)
    records = [record(1, START), *(item(n, "tool_use", call_id=n) for n in range(2, 102))]
    fold = TurnFold("s", quiet=True)
    held: list[weakref.ref[Counted]] = []
    for one in records:
        counted = Counted(one)
        held.append(weakref.ref(counted))
        assert fold.feed(counted) == []
        del counted
        assert sum(one() is not None for one in held) <= 10
    fold.wake()
    spans = fold.feed(record(200, CANCEL))
    assert len(spans) == 101
    assert spans[-1].tool_calls == 100
