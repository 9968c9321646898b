"""The fold of turns: opening and closing, times, ids, links, bounds. Values are worked out by hand from the rules."""

from __future__ import annotations

import json
from collections import Counter
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.turns import TurnFold

if TYPE_CHECKING:
    from raxol_otel.turns import Span

START, DONE, BEGIN, END = "turn_started", "turn_completed", "item_started", "item_completed"
ERROR, CANCEL, ASK = "error", "turn_canceled", "approval_requested"
# The seconds of 2026-08-04T00:00:00Z. Record number n is written n seconds later, unless it says otherwise.
DAY: Final = 1_785_801_600

Record = dict[str, Any]
# Odd values, of any type.
LIST: Final[Any] = []
OBJECT: Final[Any] = {}


def record(offset: int, kind: Any, turn: Any = "t1", fields: Record | None = None, /, **payload: Any) -> Record:
    """A record of a turn; `fields` add to its own or replace them."""
    own = {"id": offset, "ts": (DAY + offset) * 10**6, "family": "loop", "tier": "durable", "type": kind}
    return {**own, "turn_id": turn, "payload": payload, **(fields or {})}


def item(offset: int, item_type: Any, item_id: Any = None, kind: str = END, /, **payload: Any) -> Record:
    """A record of an item of the turn t1."""
    named = {} if item_id is None else {"item_id": item_id}
    return record(offset, kind, item_type=item_type, **named, **payload)


class Folded:
    """What records fold into: one by one and all at once, which must make no difference."""

    def __init__(self, *records: Record, session_id: str = "s", hold_open: bool = False, **options: Any) -> None:
        single, many = TurnFold(session_id, **options), TurnFold(session_id, **options)
        each = [span for one in records for span in single.feed(one)] + single.close(hold_open=hold_open)
        self.spans = many.feed_many(records) + many.close(hold_open=hold_open)
        self.counts = many.counts
        assert each == self.spans
        assert single.counts == self.counts
        assert self.counts.records == len(records)
        self.turns = self.of("turn")

    def of(self, role: str) -> list[Span]:
        """The spans of a role by their first offset."""
        return sorted((span for span in self.spans if span.role == role), key=lambda span: span.offset)

    def lines(self, role: str = "turn") -> list[str]:
        """Each span of a role as a line, see `line`."""
        return [line(span) for span in self.of(role)]


def line(span: Span) -> str:
    """What a span is and when, in seconds: `t1 completed 1-3`, `execute_tool sh ok 2-3`, `message i1 2-3`."""
    said = span.attributes
    if span.role == "turn":
        words = [said.get("raxol.turn.id", "-"), said["raxol.turn.outcome"]]
    else:
        words = [span.name, said["raxol.tool.outcome"] if span.role == "tool" else said.get("raxol.item.id", "-")]
    words.append("-".join(f"{(ns - DAY * 10**9) / 10**9:g}" for ns in (span.start_ns, span.end_ns)))
    marks = {"raxol.turn.final": "final", "raxol.turn.synthesized": "synthesized", "raxol.clock_skew": "skewed"}
    words += [word if said[name] is True else f"not {word}" for name, word in marks.items() if name in said]
    return " ".join(map(str, words))


def repeated(spans: list[Span]) -> list[str]:
    """The span ids that come more than once."""
    return [span_id for span_id, count in Counter(span.span_id for span in spans).items() if count > 1]


def on(branch: Any) -> Record:
    """The field that puts a record on a branch."""
    return {"branch_id": branch}


LATE: Final = item(8, "message")


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        pytest.param([record(1, START), record(3, DONE, final=True), LATE], ["t1 completed 1-3 final"], id="final"),
        pytest.param([record(1, START), record(2, ERROR, reason="boom"), LATE], ["t1 error 1-2"], id="error"),
        pytest.param([record(1, START), record(2, CANCEL), LATE], ["t1 canceled 1-2"], id="canceled"),
        pytest.param([record(1, START)], ["t1 incomplete 1-1"], id="only a start"),
        pytest.param([record(1, START), record(2, DONE)], ["t1 completed 1-2 not final"], id="ends at a boundary"),
        pytest.param(
            [record(1, START), record(2, DONE), item(5, "message")],
            ["t1 incomplete 1-5"],
            id="ends after a boundary",
        ),
        # An idle hour between two prompts is nobody's work.
        pytest.param(
            [record(1, START), record(2, DONE), record(3600, START, "t2"), record(3601, DONE, "t2", final=True)],
            ["t1 completed 1-2 not final", "t2 completed 3600-3601 final"],
            id="completed by the next start",
        ),
        pytest.param(
            [record(1, START), item(4, "message"), record(3600, START, "t2")],
            ["t1 incomplete 1-4", "t2 incomplete 3600-3600"],
            id="left by the next start",
        ),
        pytest.param(
            [record(1, START), item(2, "message"), record(3, ASK, "t2"), record(4, DONE, "t3"), record(9, START, "t4")],
            [
                *("t1 incomplete 1-2", "t2 incomplete 3-3 synthesized"),
                *("t3 completed 4-4 not final synthesized", "t4 incomplete 9-9"),
            ],
            id="several open on a branch",
        ),
        pytest.param(
            [record(1, START), record(2, BEGIN, "t2"), record(3, DONE, final=True), record(4, CANCEL, "t2")],
            ["t1 completed 1-3 final", "t2 canceled 2-4 synthesized"],
            id="a synthesized one closes nothing",
        ),
        pytest.param(
            [record(1, START), record(2, START), record(3, DONE, final=True)],
            ["t1 incomplete 1-1", "t1 completed 2-3 final"],
            id="the id of an open turn starts again",
        ),
        pytest.param(
            [record(1, START), record(2, CANCEL), record(3, START), item(4, "message"), record(5, DONE, final=True)],
            ["t1 canceled 1-2", "t1 completed 3-5 final"],
            id="the id of a closed turn starts again",
        ),
        pytest.param(
            [
                *(record(1, START), record(2, START, "t1", on("b")), record(3, START, "t2", on("b"))),
                *(record(4, DONE, "t2", on("b"), final=True), record(5, ERROR, "t1", on("main"))),
            ],
            ["t1 error 1-5", "t1 incomplete 2-2", "t2 completed 3-4 final"],
            id="branches apart",
        ),
        pytest.param(
            [record(1, START, "t1", on(5)), record(2, START, "t2", on("5")), record(3, CANCEL, "t2", on(5))],
            ["t1 incomplete 1-1", "t2 canceled 2-3"],
            id="a branch that is a number",
        ),
    ],
)
def test_a_turn_opens_and_closes_as_its_records_say(records: list[Record], lines: list[str]) -> None:
    """Every way of opening and closing a turn gives its outcome, and its end at its closing or own last record."""
    assert Folded(*records).lines() == lines


@pytest.mark.parametrize("kind", [BEGIN, END, DONE, ERROR, CANCEL, ASK])
def test_a_record_of_an_unknown_turn_opens_one(kind: str) -> None:
    """A turn whose start is lost is there all the same, from its first record on, and says that it was synthesized."""
    assert [span.attributes["raxol.turn.synthesized"] for span in Folded(record(7, kind)).turns] == [True]
    assert "raxol.turn.synthesized" not in Folded(record(7, START), record(8, kind)).turns[0].attributes


@pytest.mark.parametrize("final", [False, None, 1, 1.0, "true", [True], OBJECT])
def test_final_must_be_exactly_true(final: Any) -> None:
    """Nothing that is merely like true closes a turn."""
    folded = Folded(record(1, START), record(2, DONE, final=final), item(3, "message"), record(4, DONE))
    assert folded.lines() == ["t1 completed 1-4 not final"]


@pytest.mark.parametrize("payload", [{"reason": "unmapped_acp_update"}, {"error": ":unmapped_acp_update"}])
def test_an_unmapped_update_closes_nothing(payload: Record) -> None:
    """This one error leaves the turn open and without ERROR; it is seen as an exception event."""
    folded = Folded(record(1, START), record(2, ERROR, **payload), record(3, DONE, final=True))
    assert folded.lines() == ["t1 completed 1-3 final"]
    assert folded.turns[0].error is False
    assert [event.attributes for event in folded.turns[0].events] == [{"exception.type": "unmapped_acp_update"}]
    assert Folded(record(1, START), record(2, DONE), record(3, ERROR, **payload)).lines() == ["t1 incomplete 1-3"]


def test_only_an_error_makes_a_turns_status_error() -> None:
    """Status ERROR and error.type come with the outcome error and with no other."""
    ends = [record(2, kind, reason="boom", final=True) for kind in (ERROR, CANCEL, DONE, ASK)]
    turns = [Folded(record(1, START), end).turns[0] for end in ends]
    assert [turn.error for turn in turns] == [True, False, False, False]
    assert [turn.attributes.get("error.type") for turn in turns] == ["boom", None, None, None]


@pytest.mark.parametrize("kind", [BEGIN, END, DONE, ERROR, CANCEL, ASK])
def test_records_of_a_closed_turn_are_late(kind: str) -> None:
    """What comes after the closing makes no span and changes none; on another branch it is no late record."""
    closed = [record(1, START), record(2, CANCEL)]
    folded = Folded(*closed, record(3, kind, item_type="message"), record(4, kind, item_type="message"))
    assert folded.spans == Folded(*closed).spans
    assert folded.counts.late == 2
    assert Folded(*closed, record(3, kind, "t1", on("b"))).counts.late == 0


def test_a_turn_that_the_next_start_closed_has_late_records() -> None:
    """An old turn's record neither joins the new turn nor opens the old one again."""
    folded = Folded(record(1, START), record(2, START, "t2"), record(3, DONE, final=True))
    assert folded.lines() == ["t1 incomplete 1-1", "t2 incomplete 2-2"]
    assert folded.counts.late == 1


def test_an_offset_that_made_a_span_is_a_duplicate() -> None:
    """A repeated record is dropped and counted, in the middle of its turn and at once; no span id comes twice."""
    said, called = item(2, "message", "i1"), item(3, "tool_use", name="sh")
    folded = Folded(record(1, START), said, said, called, item(4, "message", "i2"), called, said, record(5, CANCEL))
    assert folded.lines("item") == ["message i1 2-2", "message i2 4-4"]
    assert folded.lines("tool") == ["execute_tool sh unanswered 3-5"]
    assert folded.counts.duplicate == 3
    assert Folded(said, said).counts.duplicate == 1


def test_a_repeated_start_gives_no_span_id_twice() -> None:
    """The very same turn_started once more is no second turn: its ids would be those of the first."""
    assert repeated(Folded(record(1, START), record(1, START), record(2, DONE, final=True)).spans) == []


@pytest.mark.parametrize(
    ("fields", "unknown"),
    [
        ({"turn_id": None}, None),
        ({"tier": "ephemeral"}, None),
        ({"tier": None}, None),
        ({"type": "item_delta"}, None),
        ({"type": "idle"}, None),
        ({"type": "plan_updated"}, "type"),
        ({"type": None}, "type"),
        ({"type": ["error"]}, "type"),
        ({"family": "meta", "type": "note"}, None),
        ({"family": "editor"}, "family"),
        ({"family": None}, "family"),
        ({"kind": "bookmark"}, "kind"),
        ({"kind": None}, "kind"),
        ({"kind": "checkpoint"}, None),
    ],
)
def test_what_does_not_fold_is_counted(fields: Record, unknown: str | None) -> None:
    """Another kind or family, an ephemeral tier, no turn id: no span, and the counter says what was unknown."""
    folded = Folded(record(1, ERROR, "t1", fields))
    assert folded.spans == []
    assert folded.counts.unfolded == 1
    assert {what for what, count in folded.counts.unknown.items() if count} == ({unknown} if unknown else set())


def test_absent_kind_tier_and_branch_read_as_the_usual() -> None:
    """A record folds without `kind`, `tier` and `branch_id`, and with the words that stand for them."""
    bare = {key: record(1, START)[key] for key in ("id", "ts", "family", "type", "turn_id", "payload")}
    assert Folded(bare).spans == Folded(record(1, START, "t1", {"kind": "event", **on("main")})).spans
    assert len(Folded(bare).turns) == 1


@pytest.mark.parametrize(("turn_id", "text"), [(5, "5"), (1.5, "1.5"), ({"b": 1, "a": [True]}, '{"a":[true],"b":1}')])
def test_a_turn_id_that_is_no_text_reads_as_its_json(turn_id: Any, text: str) -> None:
    """Any turn id but null names a turn."""
    assert Folded(record(1, START, turn_id), record(2, CANCEL, text)).lines() == [f"{text} canceled 1-2"]


def test_a_turn_says_what_it_always_says() -> None:
    """The attributes of every turn are there, whatever little its records hold; and nothing else is."""
    assert Folded(record(4, START), record(6, CANCEL), session_id="night").turns[0].attributes == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.conversation.id": "night",
        "raxol.session.id": "night",
        "raxol.turn.id": "t1",
        "raxol.turn.outcome": "canceled",
        "raxol.journal.first_offset": 4,
        "raxol.journal.last_offset": 6,
    }


def test_a_turn_says_its_branch() -> None:
    """Any branch but main is named; one that is null reads as an empty text, as for a tip, and is not main."""
    turns = [Folded(record(1, START, "t1", on(branch))).turns[0] for branch in ("main", "b", 5, None)]
    assert [turn.attributes.get("raxol.branch.id") for turn in turns] == [None, "b", "5", ""]


def test_an_empty_turn_id_is_said_too() -> None:
    """Every turn of the loop says its id, even one that is an empty text."""
    assert Folded(record(1, START, "")).turns[0].attributes.get("raxol.turn.id") == ""


def test_taint_of_any_record_marks_the_turn() -> None:
    """One tainted record taints its own turn and no other; trust of any other word does not."""
    tainted, odd = {"provenance": {"trust": "tainted"}}, {"provenance": "tainted"}
    trusted = {"provenance": {"trust": "trusted"}}
    records = [record(1, START, "t1", trusted), record(2, END, "t1", tainted), record(3, DONE, "t1", final=True)]
    turns = Folded(*records, record(4, START, "t2", odd), record(5, END, "t2", trusted)).turns
    assert [turn.attributes.get("raxol.provenance.trust") for turn in turns] == ["tainted", None]


@pytest.mark.parametrize(
    ("stored", "nanoseconds"),
    [
        (DAY * 10**6, DAY * 10**9),
        (DAY * 10**6 + 1, DAY * 10**9 + 1000),
        (DAY, DAY * 10**9),
        (DAY + 0.5, DAY * 10**9 + 5 * 10**8),
        (DAY * 1000 + 1, DAY * 10**9 + 10**6),
        (DAY * 10**9 + 1, DAY * 10**9 + 1),
        (1, 10**9),
        (2**63 - 1, 2**63 - 1),
        *((boundary, 10**17) for boundary in (10**11, 10**14, 10**17, 1e11, 1e14, 1e17)),
        ("2026-08-04T00:00:00Z", DAY * 10**9),
        ("2026-08-04T00:00:00", DAY * 10**9),
        ("2026-08-04 00:00:00.000007", DAY * 10**9 + 7000),
        ("2026-08-04T02:30:00+02:30", DAY * 10**9),
        ("2026-08-03T19:00:00.250000-05:00", DAY * 10**9 + 25 * 10**7),
        # No time at all: the previous record's.
        *(
            (odd, 77 * 10**9)
            for odd in (None, 0, -1, -5.5, 0.0, True, "", "soon", "99", LIST, OBJECT, 10**30, -(10**30))
        ),
        # Beyond what 64 bits of nanoseconds hold, in any unit.
        *((odd, 77 * 10**9) for odd in (10**11 - 1, 10**14 - 1, 10**16, 10**17 - 1, 10**19, 1e16, 9.3e15)),
        *((odd, 77 * 10**9) for odd in ("9999-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "0001-01-01T00:00:00+23:59")),
        *((odd, 77 * 10**9) for odd in ("\ud800", 2**63, 1e300, float("nan"), float("inf"))),
    ],
)
def test_a_time_is_told_by_its_magnitude(stored: Any, nanoseconds: int) -> None:
    """Microseconds, or what producers store instead of them; anything else is as if absent."""
    turns = Folded(record(1, ERROR, "t0", {"ts": 77}), record(2, START, "t1", {"ts": stored})).turns
    assert turns[1].start_ns == nanoseconds


@pytest.mark.parametrize(
    ("created_at", "start_ns"),
    [("2026-08-04T00:00:00Z", DAY * 10**9), (DAY * 10**6, DAY * 10**9), (None, 0), ("?", 0), (-1, 0), (LIST, 0)],
)
def test_before_any_time_the_journals_creation_counts(created_at: Any, start_ns: int) -> None:
    """Records without a time take meta.json's created_at until a record has one, of whatever kind."""
    untimed = {"ts": None}
    records = [record(1, START, "t1", untimed), record(2, "idle"), record(3, START, "t2", untimed)]
    folded = Folded(*records, created_at=created_at)
    assert [turn.start_ns for turn in folded.turns] == [start_ns, (DAY + 2) * 10**9]


def test_a_clock_that_steps_back_is_clamped_and_marked() -> None:
    """No span ends before it starts; one that would has no length and says so, and no other is marked."""
    back = {"ts": (DAY + 5) * 10**6}
    records = [record(10, START), item(11, "tool_use", name="sh"), item(12, "message", "i1", BEGIN)]
    records += [{**item(13, "message", "i1"), **back}, {**item(14, "reasoning", "i2"), **back}]
    folded = Folded(*records, {**record(15, DONE, final=True), **back})
    assert folded.lines() == ["t1 completed 10-10 final skewed"]
    assert folded.lines("item") == ["message i1 12-12 skewed", "reasoning i2 5-5"]
    assert folded.lines("tool") == ["execute_tool sh unanswered 11-11 skewed"]
    fine = Folded(record(1, START), {**item(2, "message", "i1"), **back}, record(3, DONE, final=True))
    assert fine.lines() == ["t1 completed 1-3 final"]


def test_an_unanswered_call_ends_at_the_turns_clamped_end() -> None:
    """Where the turn's own end had to be moved, an unanswered call ends there too, not before it."""
    records = [record(10, START), {**item(11, "tool_use", name="sh"), "ts": (DAY + 4) * 10**6}]
    folded = Folded(*records, {**record(12, CANCEL), "ts": (DAY + 6) * 10**6})
    assert folded.lines() == ["t1 canceled 10-10 skewed"]
    assert folded.lines("tool") == ["execute_tool sh unanswered 4-10"]


def digest(*parts: Any) -> str:
    """The documented recipe, with the standard library's JSON."""
    return sha256(json.dumps(parts, separators=(",", ":"), ensure_ascii=False).encode()).hexdigest()


def test_ids_are_cut_from_the_documented_hash() -> None:
    """Ids can be computed from what is stored: the first 16 bytes are the trace, the next 8 the span."""
    records = [
        record(3, START, "t1", {"session_id": "night", **on("\u00e9"), "ts": "2026-08-04"}),
        record(4, BEGIN, "t1", on("\u00e9"), item_id="i1", item_type="message"),
        record(5, END, "t1", on("\u00e9"), item_id="i1", item_type="message"),
        record(6, END, "t1", on("\u00e9"), item_type="tool_use", name="sh", call_id="c"),
        record(7, END, "t1", on("\u00e9"), item_type="tool_result", name="sh", call_id="c"),
        record(8, END, "t1", on("\u00e9"), item_type="tool_result", name="sh", call_id="c"),
    ]
    folded = Folded(*records, session_id="elsewhere")
    whole = digest("night", "\u00e9", 3, "2026-08-04")
    assert [(turn.trace_id, turn.span_id, turn.parent_id) for turn in folded.turns] == [(whole[:32], whole[32:48], "")]
    children = {span.offset: span.span_id for span in folded.spans if span.role != "turn"}
    assert children == {offset: digest("night", "\u00e9", 3, "2026-08-04", offset)[32:48] for offset in (4, 6, 8)}
    assert {(span.trace_id, span.parent_id or whole[32:48]) for span in folded.spans} == {(whole[:32], whole[32:48])}
    assert Folded(*records, session_id="a-copy").spans == folded.spans


def test_an_id_changes_with_each_thing_it_stands_for() -> None:
    """Session, branch, offset and stored time each give another trace; the turn's id and payload do not."""

    def ids(fields: Record, turn: str = "t1", session_id: str = "s") -> tuple[str, str]:
        span = Folded(record(1, START, turn, fields, prompt=turn), session_id=session_id).spans[0]
        return span.trace_id, span.span_id

    changes: list[Record] = [{"session_id": "x"}, on("b"), {"id": 2}, {"ts": DAY}, {"ts": float(DAY)}, {"ts": None}]
    assert len({ids({}), ids({}, session_id="y"), *map(ids, changes)}) == 8
    assert ids({}, "t2") == ids({}) == ids({"session_id": ""}) == ids({}, session_id="s")
    whole = digest("s", "main", 1, None)
    assert ids({"ts": None}) == (whole[:32], whole[32:48])
