"""The fold beside the tree: traces joined, links, models, span events, observations. Values are worked out by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

import pytest

from raxol_otel.turns import FoldConfig, TurnFold, fold
from raxol_otel.turns import observed as observed_fold
from tests.test_fold import (
    ASK,
    BEGIN,
    CANCEL,
    DAY,
    DONE,
    END,
    ERROR,
    LIST,
    OBJECT,
    START,
    Folded,
    Record,
    item,
    on,
    record,
    repeated,
)

TRACE_ID, PARENT_ID = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
JOINED: Final = f"00-{TRACE_ID}-{PARENT_ID}-01"


def observed(offset: int, step: Any, **payload: Any) -> Record:
    """An observation."""
    return record(offset, "observed", None, {"family": "meta"}, step=step, **payload)


@pytest.mark.parametrize(
    ("traceparent", "joins"),
    [
        *((text, True) for text in (JOINED, JOINED[:-2] + "00", "cc" + JOINED[2:], "01" + JOINED[2:] + "-what-comes")),
        *((text, False) for text in (JOINED.upper(), "ff" + JOINED[2:], JOINED + "-more", "01" + JOINED[2:] + "more")),
        *((text, False) for text in (JOINED.replace(TRACE_ID, "0" * 32), JOINED.replace(PARENT_ID, "0" * 16))),
        *((text, False) for text in (JOINED[:-3], JOINED[1:], JOINED[:-1], JOINED + "\n", " " + JOINED, "", "00")),
        *(
            (text, False)
            for text in (JOINED.replace("a", "g"), JOINED.replace("-", "_"), JOINED.replace("1", "\u0661"))
        ),
        *((odd, False) for odd in (None, 0, True, [JOINED], {"traceparent": JOINED})),
    ],
)
def test_a_valid_traceparent_is_joined(traceparent: Any, *, joins: bool) -> None:
    """The turn and its children join that trace, the turn under that parent; its own id stays. Else it is ignored."""
    alone = Folded(record(1, START), item(2, "message"), record(3, START, "t2"))
    joined = {"traceparent": traceparent}
    folded = Folded(record(1, START, "t1", joined), item(2, "message"), record(3, START, "t2"))
    if not joins:
        assert folded.spans == alone.spans
        return
    assert [(span.trace_id, span.span_id) for span in folded.spans] == [
        *((TRACE_ID, span.span_id) for span in alone.spans[:2]),
        (alone.spans[2].trace_id, alone.spans[2].span_id),
    ]
    assert [turn.parent_id for turn in folded.turns] == [PARENT_ID, ""]
    assert [(link.trace_id, link.span_id) for link in folded.turns[1].links] == [(TRACE_ID, alone.turns[0].span_id)]


def test_only_a_turns_start_joins_a_trace() -> None:
    """A traceparent on any other record changes nothing, not even where it opens the turn."""
    for kind in (BEGIN, END, DONE, ERROR, CANCEL, ASK):
        assert Folded(record(1, kind, "t1", {"traceparent": JOINED})).spans == Folded(record(1, kind)).spans


def test_a_turn_links_to_the_one_opened_before_it() -> None:
    """Each turn has one link, to the turn opened before it on its branch; a branch's first turn has none."""
    records = [record(1, START), record(2, DONE, "t2"), record(3, START, "t1", on("b")), record(4, START, "t3")]
    turns = Folded(*records, record(5, START, "t2", on("b"))).turns
    own = [(turn.trace_id, turn.span_id) for turn in turns]
    links = [[own.index((link.trace_id, link.span_id)) for link in turn.links] for turn in turns]
    assert links == [[], [0], [], [1], [2]]


def test_a_turns_model_is_the_first_that_is_named() -> None:
    """A boundary's first text counts, then the configuration; without either there is no attribute."""
    keys = ("gen_ai.request.model", "gen_ai.provider.name", "gen_ai.agent.name")
    config = FoldConfig(model="m", provider_name="p", agent_name="coder")
    records = [record(1, START, model=5), record(2, DONE, model="first"), record(3, DONE, model="x", provider="q")]
    item_only = item(2, "message", model="no", provider="no")
    for folded, expected in (
        (Folded(*records), ["first", "q", None]),
        (Folded(record(1, START, model="named"), *records[1:], config=config), ["named", "q", "coder"]),
        (Folded(record(1, START), item_only, config=config), ["m", "p", "coder"]),
        (Folded(record(1, START), item_only), [None, None, None]),
    ):
        assert [folded.turns[0].attributes.get(key) for key in keys] == expected
        assert folded.turns[0].name == ("invoke_agent coder" if expected[2] else "invoke_agent")


@pytest.mark.parametrize(
    ("payload", "attributes"),
    [
        ({"request_id": "r", "risk": "low"}, {"raxol.approval.request_id": "r", "raxol.approval.risk": "low"}),
        *(({"risk": word}, {"raxol.approval.risk": word}) for word in ("safe", "medium", "high")),
        *(({"risk": word}, {"raxol.approval.risk": word}) for word in ("critical", "destructive")),
        ({"request_id": 5}, {"raxol.approval.request_id": "5"}),
        *(({"risk": odd}, {"raxol.approval.risk": "other"}) for odd in ("LOW", "my secret", 5, ["low"])),
        ({"request_id": None, "action": "rm", "command": "rm -rf"}, {}),
    ],
)  # fmt: skip
def test_an_approval_is_an_event_of_its_turn(payload: Record, attributes: Record) -> None:
    """It says its id and its risk, one of a closed set, and nothing of what was to be approved."""
    turn = Folded(record(1, START), record(2, ASK, **payload)).turns[0]
    assert [asdict(event) for event in turn.events] == [
        {"name": "raxol.approval.requested", "time_ns": turn.start_ns + 10**9, "attributes": attributes}
    ]


def test_a_checkpoint_is_an_event_of_the_open_turn() -> None:
    """It falls to the turn that is open on its branch, and nowhere when there is none."""
    keys = ("raxol.checkpoint.tip_offset", "raxol.checkpoint.reason")

    def checkpoint(offset: int, tip: Any, reason: Any, branch: str = "main") -> Record:
        own = {"id": offset, "ts": record(offset, START)["ts"], "kind": "checkpoint", "branch_id": branch}
        return {**own, "tip_offset": tip, "reason": reason, "snapshot_ref": None, "snapshot_hash": None}

    records = [checkpoint(1, 1, "auto"), record(2, START), checkpoint(3, 2, "manual"), checkpoint(4, 9, "auto", "b")]
    records += [
        checkpoint(5, 2**63, "my secret"),
        checkpoint(6, "2", None),
        record(7, CANCEL),
        checkpoint(8, 1, "auto"),
    ]
    folded = Folded(*records)
    said = [[event.attributes.get(key) for key in keys] for event in folded.turns[0].events]
    assert said == [[2, "manual"], ["9223372036854775808", "other"], [None, "other"]]
    assert {event.name for event in folded.turns[0].events} == {"raxol.journal.checkpoint"}
    assert folded.counts.unfolded == 6


def test_a_span_carries_128_events() -> None:
    """The first ones stay and the rest is counted as dropped: on a turn, and on an observed call."""
    asked = Folded(record(1, START), *(record(number, ASK, request_id=number) for number in range(2, 132))).turns[0]
    assert [event.attributes["raxol.approval.request_id"] for event in asked.events] == list(map(str, range(2, 130)))
    assert asked.dropped_events == 2
    decided = [observed(number, "decision", call="c", outcome={"outcome": "cancelled"}) for number in range(3, 134)]
    tools = Folded(PROMPTED, called(2, "pending"), *decided).of("tool")
    assert [(len(span.events), span.dropped_events) for span in tools] == [(128, 3)]


def called(offset: int, status: Any, call: Any = "c") -> Record:
    """An observed tool call at a status."""
    return observed(offset, "tool_call", call=call, status=status)


SELECTED: Final = {"outcome": "selected", "option": "opt", "kind": "allow_once"}
PROMPTED: Final = observed(1, "prompted")
ENDED: Final = observed(9, "turn_ended", reason="end_turn")


@pytest.mark.parametrize(
    ("records", "turns", "tools"),
    [
        pytest.param(
            [PROMPTED, called(2, "pending"), called(3, "in_progress"), called(5, "completed"), ENDED],
            ["- completed 1-9"],
            ["ok 2-5"],
            id="whole",
        ),
        pytest.param(
            [PROMPTED, called(2, "failed"), called(3, "pending"), called(4, "completed"), observed(5, "prompted")],
            ["- incomplete 1-4", "- incomplete 5-5"],
            ["error 2-2"],
            id="failed at once and for good, prompted again",
        ),
        pytest.param(
            [PROMPTED, called(2, "pending", "a"), called(3, "pending", "b"), called(4, "failed", "a"), ENDED],
            ["- completed 1-9"],
            ["error 2-4", "unanswered 3-9"],
            id="two at once",
        ),
        pytest.param(
            [called(2, "in_progress"), ENDED], ["- completed 2-9 synthesized"], ["unanswered 2-9"], id="a call alone"
        ),
        pytest.param(
            [observed(2, "decision", call="c", outcome=SELECTED)],
            ["- incomplete 2-2 synthesized"],
            [],
            id="a decision alone",
        ),
        pytest.param(
            [
                *(record(1, START), observed(2, "prompted"), record(3, START, "t2")),
                *({**observed(4, "prompted"), **on("b")}, ENDED),
            ],
            ["t1 incomplete 1-1", "- completed 2-9", "t2 incomplete 3-3", "- incomplete 4-4"],
            [],
            id="apart from turns of the loop and of other branches",
        ),
        pytest.param([{**PROMPTED, "turn_id": "o1"}], ["o1 incomplete 1-1"], [], id="with a turn id"),
    ],
)
def test_observations_make_turns_of_their_own(records: list[Record], turns: list[str], tools: list[str]) -> None:
    """What another agent reported is a turn from its prompt to its end, with the calls at their reported status."""
    folded = Folded(*records)
    assert folded.lines() == turns
    assert folded.lines("tool") == [f"execute_tool {tool}" for tool in tools]
    looped = [line for line in turns if line.startswith("t")]
    assert sum(turn.attributes.get("raxol.observed") is True for turn in folded.turns) == len(turns) - len(looped)
    assert folded.counts.unfolded == 0


def test_a_decision_is_an_event_of_the_call_it_names() -> None:
    """On the call while it is open, else on the turn; option and kind are the other party's words as given."""
    records = [PROMPTED, called(2, "pending"), observed(3, "decision", call="c", outcome=SELECTED)]
    records += [observed(4, "decision", call="x", outcome=SELECTED), called(5, "failed")]
    records += [observed(6, "decision", call="c", outcome={"outcome": "cancelled", "option": 5}), ENDED]
    folded = Folded(*records)
    selected = {f"raxol.decision.{key}": value for key, value in SELECTED.items()}
    tool, turn = folded.spans
    assert [event.attributes for event in tool.events] == [selected]
    assert [event.attributes for event in turn.events] == [selected, {"raxol.decision.outcome": "cancelled"}]
    assert (tool.error, tool.attributes) == (
        True,
        {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.call.id": "c"}
        | {"raxol.tool.outcome": "error", "error.type": "_OTHER"},
    )


@pytest.mark.parametrize(
    ("reason", "said"), [("end_turn", "end_turn"), ("I am done", "_OTHER"), (None, "_OTHER"), (LIST, "_OTHER")]
)
def test_why_an_observed_turn_ended_is_a_word(reason: Any, said: str) -> None:
    """A bare word is kept, anything else is not. The turn says neither final nor evidence: its agent did not."""
    turn = Folded(observed(1, "prompted"), observed(2, "turn_ended", reason=reason)).turns[0]
    assert {key: value for key, value in turn.attributes.items() if "observed" in key or "turn." in key} == {
        "raxol.observed": True,
        "raxol.observed.reason": said,
        "raxol.turn.outcome": "completed",
    }


@pytest.mark.parametrize(
    "payload",
    [
        *({"step": odd} for odd in ("sneezed", None, 5, LIST, OBJECT, "tool_call", "decision")),
        *({"step": "tool_call", "call": odd, "status": "pending"} for odd in (None, 5, LIST, OBJECT)),
        *({"step": "tool_call", "call": "c", "status": odd} for odd in ("done", None, 5, LIST, OBJECT)),
    ],
)
def test_an_odd_observation_is_counted(payload: Record) -> None:
    """A step that is not understood makes no span and counts as an unknown type."""
    folded = Folded(record(1, "observed", None, {"family": "meta", "payload": payload}))
    assert (folded.spans, folded.counts.unfolded, folded.counts.unknown["type"]) == ([], 1, 1)


def test_an_odd_decision_harms_nobody() -> None:
    """Whatever the outcome is, it is an event; what is no text of its own is left out."""
    for outcome in (None, 5, LIST, "selected", {"outcome": LIST}, {"outcome": OBJECT, "option": LIST, "kind": 5}):
        turn = Folded(observed(1, "decision", call="c", outcome=outcome)).turns[0]
        assert [sorted(event.attributes) for event in turn.events] == [["raxol.decision.outcome"]]


def test_repeated_observations_give_no_span_id_twice() -> None:
    """Of an observed turn too, an offset makes one span."""
    for records in ([PROMPTED, called(2, "completed", "a"), called(2, "completed", "b")], [PROMPTED, PROMPTED, ENDED]):
        folded = Folded(*records)
        assert repeated(folded.spans) == []
        assert folded.counts.duplicate == 1


def test_observed_turns_have_links_of_their_own() -> None:
    """An observed turn links to the observed turn before it on its branch, whatever turns of the loop there are."""
    records = [
        record(1, START),
        observed(2, "prompted"),
        record(3, START, "t2"),
        {**observed(4, "prompted"), **on("b")},
    ]
    first, second, third, _, fifth = Folded(*records, observed(5, "prompted")).turns
    links = [[(link.trace_id, link.span_id) for link in turn.links] for turn in (second, third, fifth)]
    assert links == [[], [(first.trace_id, first.span_id)], [(second.trace_id, second.span_id)]]


def test_open_observed_turns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many, and the oldest is incomplete; of a branch not seen for long no link is left."""
    monkeypatch.setattr(observed_fold, "_OPEN_MAX", 1)
    folded = Folded(*({**observed(n, "prompted"), **on(branch)} for n, branch in enumerate(("a", "b", "b", "a"), 1)))
    assert folded.lines() == [f"- incomplete {n}-{n}" for n in range(1, 5)]
    assert [turn.offset for turn in folded.spans] == [1, 2, 3, 4]
    assert [len(turn.links) for turn in folded.turns] == [0, 0, 1, 0]


def test_fold_gives_what_feeding_gives() -> None:
    """The generator is the same fold; it asks for no record before the last one's spans are taken."""
    records = [record(1, START), item(2, "message"), record(3, CANCEL), record(4, START, "t2")]
    config = FoldConfig(agent_name="a")
    assert list(fold(records, "s", config=config)) == Folded(*records, config=config).spans
    assert next(fold(iter([item(1, "message"), record(2, START), "no record"]), "s")).name == "message"  # type: ignore[arg-type]


def test_held_turns_leave_no_span() -> None:
    """Turns that may still be written to are dropped at the end, observed ones too; closed ones have left."""
    records = [record(1, START), record(2, CANCEL), record(3, START, "t2"), record(4, BEGIN, "t2", item_type="message")]
    records += [observed(5, "prompted"), observed(6, "tool_call", call="c", status="pending")]
    assert Folded(*records, hold_open=True).lines() == ["t1 canceled 1-2"]
    assert len(Folded(*records, hold_open=True).spans) == 1
    fold = TurnFold("s")
    fold.feed_many(records)
    assert (fold.open_turns, fold.last_ns) == (2, (DAY + 6) * 10**9)
    assert len(fold.close()) == 4
    assert (fold.open_turns, fold.close()) == (0, [])


def test_select_chooses_whose_spans_are_wanted() -> None:
    """It is asked once for each turn that opens, with its id and start; of the others no span leaves."""
    asked: list[Any] = []

    def select(turn_id: str, start_ns: int) -> bool:
        asked.append((turn_id, start_ns // 10**9 - DAY))
        return turn_id in {"t2", "o2"}

    records = [record(1, START), item(2, "message"), record(3, START, "t2"), item(4, "message") | {"turn_id": "t2"}]
    records += [{**observed(n, "prompted"), "turn_id": f"o{n - 4}"} for n in (5, 6)]
    fold = TurnFold("s", select=select)
    spans = fold.feed_many(records) + fold.close()
    assert spans == [span for span in Folded(*records).spans if span.offset in {3, 4, 6}]
    assert asked == [("t1", 1), ("t2", 3), ("o1", 5), ("o2", 6)]
