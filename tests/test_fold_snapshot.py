"""A fold kept as bytes and taken up again: at any record, with any values, it goes on as if it had never stopped."""

from __future__ import annotations

import json
import re
import sys
import zlib
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raxol_otel.canonical import is_array, is_object
from raxol_otel.journal import iter_records
from raxol_otel.turns import FoldConfig, TurnFold
from tests.conftest import SHARED, require_shared
from tests.test_fold import ASK, BEGIN, CANCEL, DAY, DONE, END, ERROR, START, Record, item, on, record
from tests.test_fold_events import JOINED, observed
from tests.test_fold_safety import CAPTURED, STREAMS, stream
from tests.test_trees import CORPORA, TREES
from tests.test_trees import STREAMS as SESSIONS

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLD: Final = sys.modules["raxol_otel.turns.fold"]
TURN: Final = sys.modules["raxol_otel.turns.turn"]


def session(name: str) -> list[Record]:
    """The records of a frozen event stream, a frozen journal or the tour, by the name of its tree."""
    if name == "tour":
        return list(iter_records(TREES.parent.parent / "golden" / "tour"))
    require_shared()
    if name in CORPORA:
        return list(iter_records(SHARED / "golden" / CORPORA[name] / name))
    lines = [orjson.loads(line) for line in (SHARED / "sessions" / f"{name}.jsonl").read_bytes().splitlines()]
    return [line["body"] for line in lines if line["record"] == "envelope"]


def some(turn_id: str, start_ns: int) -> bool:
    """A choice of about half of the turns."""
    return (len(turn_id) + start_ns // 10**9) % 2 == 0


def assert_goes_on(records: list[Record], at: int, **options: Any) -> None:
    """Stopped at that record and taken up again, a fold gives the same spans, counts and snapshots."""
    whole, stopped = (TurnFold("s", **options) for _ in range(2))
    assert stopped.feed_many(records[:at]) == whole.feed_many(records[:at])
    data = stopped.snapshot()
    assert data == whole.snapshot()
    options.pop("closed_turns_max", None)
    restored = TurnFold.restore(data, session_id="s", **options)
    assert restored.snapshot() == data
    assert restored.counts == whole.counts
    assert restored.last_ns == whole.last_ns
    assert restored.open_span_ids() == whole.open_span_ids()
    assert restored.open_turn_facts() == whole.open_turn_facts()
    assert restored.feed_many(records[at:]) == whole.feed_many(records[at:])
    assert restored.snapshot() == whole.snapshot()
    assert restored.close() == whole.close()
    assert restored.counts == whole.counts
    assert restored.snapshot() == whole.snapshot()


@settings(report_multiple_bugs=False)
@given(STREAMS, st.integers(0, 30), st.integers(0, 30), st.booleans(), st.integers(1, 4))
def test_any_stream_can_be_stopped_anywhere(
    drawn: list[tuple[str, Any, Record, Record]],
    at: int,
    again: int,
    capture: bool,  # noqa: FBT001 - drawn
    closed: int,
) -> None:
    """Whatever the records are, also where some repeat, and with a short memory of closed turns."""
    records = stream(drawn)
    records[at // 2 : at // 2] = records[again : again + 2]
    config = CAPTURED if capture else FoldConfig()
    assert_goes_on(records, at, config=config, closed_turns_max=closed)
    assert_goes_on(records, at, config=config, select=some)


@pytest.mark.parametrize("name", [*SESSIONS, *CORPORA, "tour"])
def test_a_session_can_be_stopped_at_every_record(name: str) -> None:
    """Each frozen stream and journal, cut before and after every record, with and without content."""
    records = session(name)
    for at in range(len(records) + 1):
        assert_goes_on(records, at, config=CAPTURED if at % 2 else None)


LONG: Final = 10**1023
# One of all that an open turn may hold, of each kind of turn.
FULL: Final = [
    record(1, START, "t0"),
    record(2, DONE, "t0", final=True),
    record(
        3,
        START,
        "t1",
        {"traceparent": JOINED, "session_id": "other", "provenance": {"trust": "tainted"}},
        prompt="clean",
        model="m",
    ),
    item(4, "message", "i1", BEGIN, role="user"),
    item(5, "reasoning", "i2", BEGIN),
    item(6, "message", "i3", content="said"),
    item(7, "tool_use", "i4", name="sh", call_id="a", arguments={"x": [1.5, 2**70]}),
    item(8, "tool_use", name="cat"),
    record(9, DONE, usage={"input_tokens": 2**63 - 1, "output_tokens": 3}, cost=0.1, evidence="rejected"),
    record(10, DONE, usage={"input_tokens": 2**63 - 1}, cost=0.2, evidence_rejected={"reason": "not_evidence"}),
    record(11, ERROR, reason="unmapped_acp_update"),
    record(12, ASK, "t1", request_id="r", risk="low"),
    record(13, DONE, "b1", on("b"), usage={"reasoning_tokens": 1}),
    observed(14, "prompted"),
    observed(15, "tool_call", call="c", status="pending"),
    observed(16, "decision", call="c", outcome={"outcome": "selected", "option": "o", "kind": "k"}),
    observed(17, "tool_call", call="d", status="completed"),
    record(18, BEGIN, item_type="sound"),
]


@pytest.mark.parametrize("config", [None, CAPTURED])
def test_all_that_an_open_turn_holds_is_kept(config: FoldConfig | None) -> None:
    """Open items and calls, results to come, sums, events, prompts, taint, links, other branches and observations."""
    rest = [
        *(item(20, "tool_result", call_id="a", result="fine"), item(21, "tool_result", name="cat", is_error=True)),
        *(
            item(22, "message", "i1", content="asked"),
            item(23, "reasoning", "i2", content="thought"),
            item(6, "message"),
        ),
        *(observed(24, "tool_call", call="c", status="failed"), observed(25, "tool_call", call="d", status="failed")),
        *(
            observed(26, "turn_ended", reason="done"),
            record(27, CANCEL, "t0"),
            record(28, DONE, "b1", on("b"), final=True),
        ),
        *(record(1, START, "t0"), record(29, START, "t2")),
    ]
    for at in range(len(FULL) + 1):
        assert_goes_on([*FULL, *rest], at, config=config)
    fold = TurnFold("s", config=config)
    fold.feed_many(FULL)
    fold = TurnFold.restore(fold.snapshot(), session_id="s", config=config)
    assert [span.name for span in fold.feed_many(rest)] == [
        *("execute_tool sh", "execute_tool cat", "reasoning", "execute_tool", "invoke_agent", "invoke_agent"),
        "invoke_agent",
    ]
    # A record of a closed turn; an item's offset that came before, and a start that did.
    assert (fold.counts.late, fold.counts.duplicate, fold.counts.user) == (1, 2, 1)


@pytest.mark.parametrize(
    "value",
    [
        "\ud800",
        "\ud83d\ude00",
        "\U0001f600",
        "\0",
        'a"\\\n',
        LONG,
        -LONG,
        2**64,
        1e308,
        1.0,
        True,
        [LONG],
        {"\ud800": 1},
    ],
)
def test_odd_values_are_kept(value: Any) -> None:
    """Lone surrogates, also two that look like a pair, integers of 1,024 digits and floats, wherever they stand."""
    fields = {"session_id": value, "branch_id": value}
    payload = dict.fromkeys(("model", "provider", "item_id", "call_id", "name", "request_id", "cost"), value)
    usage = {"input_tokens": value, "output_tokens": value}
    records = [
        record(1, START, value, fields, prompt=value, **payload),
        item(2, "tool_use", arguments=value, **payload),
    ]
    records += [record(3, END, value, fields, item_type="tool_use", arguments=value, **payload)]
    records += [record(4, kind, value, fields, item_type=value, **payload) for kind in (BEGIN, END, ASK)]
    records += [record(4, BEGIN, value, fields, item_type="message", **payload)]
    records += [record(5, DONE, value, {**fields, "id": value, "ts": value}, usage=usage, **payload)]
    records += [observed(6, "tool_call", call=value, status="completed"), observed(6, "tool_call", call="c")]
    records += [record(7, "x", value, {**fields, "kind": "checkpoint", "tip_offset": value}), *FULL]
    for at in range(len(records) + 1):
        assert_goes_on(records, at, config=CAPTURED)


def test_bounds_hold_across_a_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is forgotten next is the oldest, also after a stop: turns, items, calls, branches."""
    monkeypatch.setattr(FOLD, "OPEN_TURNS_MAX", 2)
    monkeypatch.setattr(FOLD, "BRANCHES_MAX", 2)
    monkeypatch.setattr(TURN, "OPEN_ITEMS_MAX", 2)
    records = [record(n, kind, f"t{n % 5}", on(f"b{n % 3}")) for n, kind in enumerate([DONE, CANCEL, START] * 8)]
    records += [item(30 + n, "message", n % 7, BEGIN) for n in range(9)]
    records += [item(40 + n, "tool_use", call_id=n % 4) for n in range(9)]
    for at in range(len(records) + 1):
        assert_goes_on(records, at, closed_turns_max=2)


def test_the_time_before_the_first_record_is_kept() -> None:
    """meta.json's time serves records without one; a snapshot that knows a time does not ask for it again."""
    fold = TurnFold("s", created_at=DAY * 10**6)
    assert TurnFold.restore(fold.snapshot(), session_id="s").last_ns == DAY * 10**9
    fold = TurnFold("s")
    assert TurnFold.restore(fold.snapshot(), session_id="s", created_at=DAY * 10**6).last_ns == DAY * 10**9


def test_who_is_told_of_a_turn_is_told_once() -> None:
    """`select` and `on_open` hear of the turns that open after the stop; those that were open stay as they were."""
    told: list[str] = []

    def ask(turn_id: str, _start_ns: int) -> bool:
        told.append(turn_id)
        return True

    fold = TurnFold("s", select=lambda turn_id, _: turn_id != "t1")
    fold.feed_many([record(1, DONE, "t1"), record(2, DONE, "t2")])
    assert fold.open_turns == 1
    fold = TurnFold.restore(
        fold.snapshot(),
        session_id="s",
        select=ask,
        on_open=lambda turn, _: told.append(f"open {turn.turn_id}"),
    )
    spans = fold.feed_many([record(3, CANCEL, "t1"), record(4, CANCEL, "t2"), record(5, CANCEL, "t3")])
    assert [span.attributes["raxol.turn.id"] for span in spans] == ["t2", "t3"]
    assert told == ["t3", "open t3"]
    assert fold.counts.turns == 2


def test_how_many_closed_turns_are_remembered() -> None:
    """As many as before, or as one says; fifty of them and an open turn are a few kilobytes."""
    records = [record(n, CANCEL, f"turn-{n}") for n in range(1, 101)]
    fold = TurnFold("s", closed_turns_max=50)
    fold.feed_many([*records, record(101, START)])
    data = fold.snapshot()
    assert len(data) < 3_000
    for limit, late in ((None, 50), (20, 20), (200, 50)):
        fold = TurnFold.restore(data, session_id="s", closed_turns_max=limit)
        fold.feed_many([item(200, "message") | {"turn_id": f"turn-{n}"} for n in range(100, 0, -1)])
        assert fold.counts.late == late
    with_default = TurnFold("s")
    with_default.feed_many(records)
    assert with_default.feed(item(300, "message") | {"turn_id": "turn-1"}) == []
    assert with_default.counts.late == 1


# -- what is no snapshot


def framed(state: bytes, version: int = 1) -> bytes:
    """A state with a frame that is right."""
    config = re.findall(rb'"config":"([0-9a-f]{16})"', TurnFold("s").snapshot())[0]
    return b'{"version":%d,"config":"%b","check":%d,"state":%b}' % (version, config, zlib.crc32(state), state)


def state_of(data: bytes) -> Record:
    """The state that a snapshot holds."""
    state: Record = json.loads(data)["state"]
    return state


@pytest.mark.parametrize(
    ("data", "why"),
    [
        *((data, "damaged") for data in (b"", b"{}", b"null", b"[]", b"\x80\x04N.", b'{"version":1}', b"\xff" * 99)),
        (b'{"version":2,"anything":"else"}', "version 2"),
        (framed(b"{}", version=7), "version 7"),
        (framed(b"{}"), "malformed"),
        (framed(b'{"a":' * 100_000 + b"1" + b"}" * 100_000), "malformed"),
        ("{}", "not bytes"),
        (None, "not bytes"),
    ],
)
def test_what_is_no_snapshot_is_refused(data: Any, why: str) -> None:
    """With one message that says what is the matter and what to do."""
    with pytest.raises(
        ValueError, match=f"a fold's snapshot cannot be used: .*{why}.*; fold the session from its start"
    ):
        TurnFold.restore(data, session_id="s")


def test_any_damage_is_noticed() -> None:
    """A byte changed, lost or added anywhere is never taken for another state."""
    fold = TurnFold("s")
    fold.feed_many(FULL)
    data = fold.snapshot()
    for at in range(len(data)):
        for damaged in (data[:at], data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :], data[:at] + b"0" + data[at:]):
            with pytest.raises(ValueError, match="cannot be used"):
                TurnFold.restore(damaged, session_id="s")


@pytest.mark.parametrize(
    "other",
    [
        *({"config": FoldConfig(agent_name="x")}, {"config": FoldConfig(provider_name="x")}),
        *({"config": FoldConfig(model="x")}, {"config": FoldConfig(capture_content=True)}),
        *({"config": FoldConfig(content_chars_max=9)}, {"config": FoldConfig(agent_name="\udcff")}),
        {"session_id": "other"},
    ],
)
def test_a_snapshot_is_of_one_session_and_configuration(other: Record) -> None:
    """What was kept under other settings would give spans that these settings do not."""
    own: Record = {"session_id": "s", **other}
    with pytest.raises(ValueError, match="of another session or configuration"):
        TurnFold.restore(TurnFold("s").snapshot(), **own)
    fold = TurnFold(own["session_id"], config=own.get("config"))
    assert TurnFold.restore(fold.snapshot(), **own).counts.records == 0


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where a value's members stand."""
    yield path
    if is_object(value):
        for name in value:
            yield from places(value[name], (*path, name))
    elif is_array(value):
        for place, member in enumerate(value):
            yield from places(member, (*path, place))


ODD: Final[tuple[Any, ...]] = (None, True, -1, 1.5, 2**63 - 1, "x", [], {}, [["x", "y", "z"]], "missing")


def test_a_state_of_wrong_values_is_refused_or_folds() -> None:
    """Any value of a state replaced by any other, or taken out: one error, or a fold that works."""
    fold = TurnFold("s")
    fold.feed_many(FULL)
    text = orjson.dumps(state_of(fold.snapshot()))
    refused, worked = set[str](), 0
    for path in list(places(orjson.loads(text)))[1:]:
        for odd in ODD:
            state = orjson.loads(text)
            parent: Any = state
            for key in path[:-1]:
                parent = parent[key]
            if odd == "missing":
                del parent[path[-1]]
            else:
                parent[path[-1]] = odd
            try:
                restored = TurnFold.restore(framed(orjson.dumps(state)), session_id="s")
            except ValueError as error:
                refused.add(str(error))
                continue
            restored.feed_many([*FULL, item(30, "tool_result", call_id="a"), record(31, CANCEL)])
            restored.snapshot()
            restored.close()
            worked += 1
    assert refused == {"a fold's snapshot cannot be used: it is malformed; fold the session from its start"}
    assert worked
