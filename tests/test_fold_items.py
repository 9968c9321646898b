"""The fold within a turn: tools, items, errors, usage, costs. Values are worked out by hand from the rules."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any, Final

import pytest

from tests.test_fold import BEGIN, CANCEL, DONE, END, ERROR, LIST, OBJECT, START, Folded, Record, item, on, record

# Every turn of these tests runs from second 1 to second 9.
FIRST: Final = record(1, START)
LAST: Final = record(9, CANCEL)


def call(offset: int, name: Any, call_id: Any = None, **payload: Any) -> Record:
    """A completed `tool_use`."""
    return item(offset, "tool_use", **_named(name, call_id), **payload)


def result(offset: int, name: Any, call_id: Any = None, **payload: Any) -> Record:
    """A completed `tool_result`."""
    return item(offset, "tool_result", **_named(name, call_id), **payload)


def _named(name: Any, call_id: Any) -> Record:
    return {key: value for key, value in (("name", name), ("call_id", call_id)) if value is not None}


def in_turn(*records: Record, **options: Any) -> Folded:
    """The records within a turn that is canceled."""
    return Folded(FIRST, *records, LAST, **options)


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        pytest.param([call(2, "sh", "a"), result(4, "sh", "a")], ["sh ok 2-4"], id="by id"),
        pytest.param([call(2, "sh"), result(4, "sh")], ["sh ok 2-4"], id="by name"),
        pytest.param([call(2, "sh", "a"), result(4, "sh")], ["sh ok 2-4"], id="by name, only the call has an id"),
        pytest.param([call(2, "sh", 7), result(4, "sh", 7)], ["sh ok 2-4"], id="an id that is no text"),
        pytest.param([call(2, "sh", "a"), result(4, "cat", "a")], ["sh ok 2-4"], id="the id counts, not the name"),
        pytest.param(
            [
                *(call(2, "sh", "a"), call(3, "sh", "b"), call(4, "sh", "c")),
                *(result(5, "sh", "c"), result(6, "sh", "a"), result(7, "sh", "b")),
            ],
            ["sh ok 2-6", "sh ok 3-7", "sh ok 4-5"],
            id="parallel, answered out of order",
        ),
        pytest.param(
            [
                call(2, "sh", "a"),
                call(3, "cat"),
                call(4, "sh", "b"),
                result(5, "sh"),
                result(6, "sh"),
                result(7, "cat"),
            ],
            ["sh ok 2-5", "cat ok 3-7", "sh ok 4-6"],
            id="the oldest of the name",
        ),
        pytest.param(
            [call(2, "sh", "a"), call(3, "sh", "b"), result(4, "sh", "a"), result(5, "sh")],
            ["sh ok 2-4", "sh ok 3-5"],
            id="the oldest unanswered of the name",
        ),
        pytest.param(
            [call(2, "sh", "a"), result(3, "sh", "b"), call(4, "sh"), result(5, "sh", "c")],
            ["sh unanswered 2-9", "sh orphan 3-3", "sh unanswered 4-9", "sh orphan 5-5"],
            id="another id is an orphan though the name fits",
        ),
        pytest.param(
            [call(2, "sh", "a"), result(3, "cat"), result(4, None)],
            ["sh unanswered 2-9", "cat orphan 3-3", "orphan 4-4"],
            id="another name is an orphan",
        ),
        pytest.param(
            [call(2, "sh", "a"), result(3, "sh", "a"), call(4, "sh", "a"), result(5, "sh", "a"), result(6, "sh", "a")],
            ["sh ok 2-3", "sh ok 4-5", "sh orphan 6-6"],
            id="an id that is used again",
        ),
        pytest.param(
            [result(2, "sh"), call(3, "sh"), result(4, "sh"), result(5, "sh", "a"), call(6, "sh", "a")],
            ["sh orphan 2-2", "sh ok 3-4", "sh orphan 5-5", "sh unanswered 6-9"],
            id="the result comes first",
        ),
        pytest.param(
            [
                *(item(2, "tool_use", "i1", BEGIN), item(5, "tool_use", "i1", name="sh", call_id="a")),
                *(item(6, "tool_result", "i2", BEGIN), item(8, "tool_result", "i2", call_id="a")),
            ],
            ["sh ok 5-8"],
            id="from completion to completion",
        ),
        pytest.param(
            [item(2, "tool_use", "i1", BEGIN, name="sh", call_id="a"), result(3, "sh", "a")],
            ["sh orphan 3-3"],
            id="never completed was never called",
        ),
        pytest.param([call(2, None, "a"), result(3, None, "a")], ["ok 2-3"], id="without a name"),
        pytest.param([call(2, 5, "a"), result(3, "sh", "a")], ["ok 2-3"], id="a name that is no text"),
    ],
)
def test_a_result_finds_its_call(records: list[Record], lines: list[str]) -> None:
    """By call id, else by name; what finds none is an orphan, what is not found ends unanswered with the turn."""
    assert in_turn(*records).lines("tool") == [f"execute_tool {line}" for line in lines]


def test_calls_of_other_turns_are_not_answered() -> None:
    """A result that cites an older turn's call, or another branch's, is an orphan of its own turn."""
    records = [call(2, "sh", "a"), record(3, CANCEL), record(4, START, "t2"), {**result(5, "sh", "a"), "turn_id": "t2"}]
    elsewhere = [{**result(6, "sh", "a"), **on("b")}, {**result(7, "sh"), "turn_id": "t2"}]
    folded = Folded(FIRST, *records, *elsewhere)
    assert [line.split()[2:] for line in folded.lines("tool")] == [
        *(["unanswered", "2-3"], ["orphan", "5-5"], ["orphan", "6-6"], ["orphan", "7-7"])
    ]
    first, second, other = folded.turns
    assert [tool.parent_id for tool in folded.of("tool")] == [
        *(first.span_id, second.span_id, other.span_id, second.span_id)
    ]


def test_a_tool_says_what_the_journal_says() -> None:
    """The attributes of a tool's span are those of the contract: the call's, for an orphan the result's, no others."""
    folded = in_turn(
        call(2, "sh", 7, arguments="x"), result(3, "cat", 7), result(4, "cat", "c", status="failed"), call(5, None)
    )
    common = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.type": "function"}
    assert [span.attributes for span in folded.of("tool")] == [
        {**common, "gen_ai.tool.name": "sh", "gen_ai.tool.call.id": "7", "raxol.tool.outcome": "ok"},
        {**common, "gen_ai.tool.name": "cat", "gen_ai.tool.call.id": "c", "raxol.tool.outcome": "orphan"},
        {**common, "raxol.tool.outcome": "unanswered"},
    ]
    assert [span.error for span in folded.of("tool")] == [False, False, False]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        *((name, name) for name in ("sh", "_", "Read-File", "mcp:files/read.all", "a" * 64)),
        *((name, "_OTHER") for name in ("rm -rf /", "a" * 65, "9lives", "", "\u00e9t\u00e9", "a\n", ".", "a\ud800")),
    ],
)
def test_a_tools_name_is_a_name(name: str, shown: str) -> None:
    """Some producers put a whole command line where the name belongs: it never leaves."""
    for span in in_turn(call(2, name, "a"), result(3, name, "b")).of("tool"):
        assert (span.name, span.attributes["gen_ai.tool.name"]) == (f"execute_tool {shown}", shown)


def test_long_names_are_not_kept() -> None:
    """A command line in a name's place is forgotten with its turn, however many there were."""
    tracemalloc.start()
    try:
        for number in range(20):
            assert in_turn(call(2, f"echo {number} {'x' * 2**20}")).of("tool")[0].name == "execute_tool _OTHER"
        assert tracemalloc.get_traced_memory()[0] < 2**22
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    ("payload", "error_type"),
    [
        ({"status": "failed"}, "_OTHER"),
        ({"is_error": True, "error": ":timeout"}, "timeout"),
        ({"exit_code": 2, "reason": "{:http_error, 503}"}, "http_error"),
        ({"exit_code": -9, "reason": "killed by the system"}, "_OTHER"),
        ({"exit_code": 10**30, "result": "boom"}, "_OTHER"),
        ({"status": "failed", "reason": "first", "error": "second"}, "first"),
        ({"result": "{:error, :enoent}"}, "enoent"),
        ({"content": "{:error, %File.Error{}}"}, "File.Error"),
        ({"result": "{:error"}, "_OTHER"),
        *(({"status": status}, None) for status in ("ok", "Failed", None, ["failed"])),
        *(({"is_error": flag}, None) for flag in (False, 1, "true", None, [True])),
        *(({"exit_code": code}, None) for code in (0, "1", True, 1.5, None, [1])),
        *(({"result": text}, None) for text in (" {:error, :x}", "{:ok, {:error, :x}}", ["{:error"], None)),
        ({"result": "fine", "content": "{:error, :x}"}, None),
        ({"error": "boom", "reason": "boom"}, None),
    ],
)
def test_four_signs_say_that_a_tool_failed(payload: Record, error_type: str | None) -> None:
    """A failed status, is_error, a nonzero exit code or an error as text; anything merely like them is no failure."""
    span = in_turn(call(2, "sh", "a"), result(3, "sh", "a", **payload)).of("tool")[0]
    assert span.attributes["raxol.tool.outcome"] == ("ok" if error_type is None else "error")
    assert span.attributes.get("error.type") == error_type
    assert span.error is (error_type is not None)


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        *((word, word.lstrip(":")) for word in ("timeout", ":timeout", "Some_Error", "_", "a" * 40, ":" + "b" * 40)),
        *((text, "_OTHER") for text in ("a" * 41, "two words", "h2_error", "", ":", "::a", "a\n", " a", "\u00e9")),
        ('%RuntimeError{message: "my secret"}', "RuntimeError"),
        ("%Ecto.Query.CastError{}", "Ecto.Query.CastError"),
        ("%{message: 1}", "_OTHER"),
        ("{:http_error, 503}", "http_error"),
        ("{:shutdown}", "shutdown"),
        ('{"http_error", 503}', "_OTHER"),
        ("{:error, :enoent}", "enoent"),
        ("{:error, {:http_error, 503, []}}", "http_error"),
        ("{:error, %KeyError{key: 1}}", "KeyError"),
        ('{:error, "my secret"}', "_OTHER"),
        pytest.param(f'{{:error, %KeyError{{key: "{"k" * 9000}"}}}}', "KeyError", id="a long one"),
        ("ValueError: my secret", "ValueError"),
        ("my.package.OddException: secret", "my.package.OddException"),
        ("ConnectTimeout: 3 s", "ConnectTimeout"),
        ("password: secret", "_OTHER"),
        ("ValueError:secret", "_OTHER"),
        ("see ValueError: secret", "_OTHER"),
        ({"type": "overloaded_error", "message": "secret"}, "overloaded_error"),
        ({"kind": ":timeout"}, "timeout"),
        ({"type": "first", "kind": "second"}, "first"),
        *((odd, "_OTHER") for odd in ({"type": "my secret"}, {"message": "x"}, {}, None, 5, True, ["boom"], 1.5)),
    ],
)  # fmt: skip
def test_an_errors_name_is_a_name(reason: Any, name: str) -> None:
    """The name that a reason carries, never its message; in the turn's attribute and in its event alike."""
    for payload in ({"reason": reason, "error": "unused"}, {"error": reason}):
        turn = Folded(FIRST, record(2, ERROR, **payload)).turns[0]
        assert turn.attributes["error.type"] == name
        assert [(event.name, event.attributes) for event in turn.events] == [("exception", {"exception.type": name})]


@pytest.mark.parametrize(
    ("records", "lines"),
    [
        pytest.param([item(2, "message", "i1", BEGIN), item(5, "message", "i1")], ["message i1 2-5"], id="whole"),
        pytest.param([item(5, "reasoning", "i1")], ["reasoning i1 5-5"], id="never started"),
        pytest.param([item(2, "reasoning", "i1", BEGIN)], ["reasoning i1 2-9"], id="never completed"),
        pytest.param([item(2, "message", None, BEGIN), item(5, "message")], ["message - 2-5"], id="without an id"),
        pytest.param([item(5, "message")], ["message - 5-5"], id="never started, without an id"),
        pytest.param([item(2, "message", 5, BEGIN), item(3, "message", 5)], ["message 5 2-3"], id="id is a number"),
        pytest.param(
            [
                *(item(2, "message", "i1", BEGIN), item(3, "message", "i2", BEGIN)),
                *(item(4, "message", "i1"), item(5, "message", "i2")),
            ],
            ["message i1 2-4", "message i2 3-5"],
            id="at the same time",
        ),
        pytest.param(
            [
                *(item(2, "message", "i1", BEGIN), item(3, "message", "i1")),
                *(item(4, "message", "i1", BEGIN), item(5, "message", "i1")),
            ],
            ["message i1 2-3", "message i1 4-5"],
            id="an id that is used again",
        ),
        pytest.param(
            [item(2, "message", "i1", BEGIN), {**item(3, "message", "i1"), **on("b")}, item(4, "message", "i1")],
            ["message i1 2-4", "message i1 3-3"],
            id="another turn has an item of that id",
        ),
        pytest.param([item(2, "message", "i1", role="user")], [], id="the user, on completion"),
        pytest.param([item(2, "message", "i1", BEGIN, role="user"), item(3, "message", "i1")], [], id="on start"),
        pytest.param([item(2, "message", "i1", BEGIN, role="user")], [], id="the user, never completed"),
        pytest.param(
            [item(2, "reasoning", "i1", role="user")], ["reasoning i1 2-2"], id="only messages are the user's"
        ),
        pytest.param([item(2, "tool_result", "i1", BEGIN)], [], id="a result that never completed"),
    ],
)
def test_an_item_lasts_from_its_start_to_its_completion(records: list[Record], lines: list[str]) -> None:
    """Messages and reasoning are spans, the user's own words are not; what is missing of one is made up for."""
    folded = in_turn(*records)
    assert folded.lines("item") == lines
    assert folded.counts.unknown["item_type"] == 0


def test_an_item_says_its_type_and_id() -> None:
    """An item's attributes are those of the contract; a user's message is counted once."""
    folded = in_turn(item(2, "message", "i1", role="assistant"), item(3, "reasoning"), item(4, "message", role="user"))
    assert [span.attributes for span in folded.of("item")] == [
        {"raxol.item.type": "message", "raxol.item.id": "i1"},
        {"raxol.item.type": "reasoning"},
    ]
    assert folded.counts.user == 1


@pytest.mark.parametrize("item_type", ["checklist", "Message", "", None, 5, ["message"], OBJECT])
def test_an_item_of_an_unknown_type_is_counted_once(item_type: Any) -> None:
    """It makes no span, and counts as one whether both of its records are there or only one."""
    begun, ended = item(2, item_type, "i1", BEGIN), item(3, item_type, "i1")
    for records in ([begun, ended], [begun], [ended], [begun, {**begun, "id": 4}]):
        folded = in_turn(*records)
        assert folded.counts.unknown["item_type"] == 1
        assert len(folded.spans) == 1
    assert in_turn(record(2, BEGIN, item_id="i1"), record(3, END, item_id="i1")).counts.unknown["item_type"] == 1


TOKENS: Final = {
    "in": "gen_ai.usage.input_tokens",
    "out": "gen_ai.usage.output_tokens",
    "read": "gen_ai.usage.cache_read.input_tokens",
    "write": "gen_ai.usage.cache_write.input_tokens",
    "thought": "gen_ai.usage.reasoning.output_tokens",
}


@pytest.mark.parametrize(
    ("usages", "tokens"),
    [
        ([{"input_tokens": 3, "output_tokens": 5}], {"in": 3, "out": 5}),
        ([{"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}], {"in": 3, "out": 5}),
        ([{"input_tokens": 3}, {"prompt_tokens": 4, "output_tokens": 2}, {}], {"in": 7, "out": 2}),
        # Counted beside input_tokens, and so added to it ...
        ([{"input_tokens": 3, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 20}],
         {"in": 123, "read": 100, "write": 20}),
        ([{"input_tokens": 3, "cache_write_input_tokens": 20}, {"input_tokens": 1}], {"in": 24, "write": 20}),
        # ... inside already.
        ([{"prompt_tokens": 50, "prompt_tokens_details": {"cached_tokens": 30}}], {"in": 50, "read": 30}),
        ([{"input_tokens": 50, "input_tokens_details": {"cached_tokens": 0}}], {"in": 50, "read": 0}),
        ([{"output_tokens": 9, "output_tokens_details": {"reasoning_tokens": 4}}], {"out": 9, "thought": 4}),
        ([{"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": "4"}}], {"out": 9, "thought": 4}),
        ([{"input_tokens": "12", "output_tokens": 12.0}], {"in": 12, "out": 12}),
        ([{"input_tokens": "0" * 13 + "15", "output_tokens": 0}], {"in": 15, "out": 0}),
        ([{"input_tokens": None, "prompt_tokens": 4}], {"in": 4}),
        ([{"input_tokens": 3, "cache_read_input_tokens": None, "cache_creation_input_tokens": "?"}], {"in": 3}),
        ([{"cache_read_input_tokens": 7}], {"read": 7}),
        ([{"input_tokens": 2**63 - 1}] * 2, {"in": "18446744073709551614"}),
        *(([{"input_tokens": odd, "output_tokens": odd, "input_tokens_details": odd}], {})
          for odd in (None, -1, 1.5, -2.0, "-1", "1e3", "", " 1", "1" * 16, "\u0663", True, [5], OBJECT, math.nan)),
        *(([odd], {}) for odd in (None, "7", 7, LIST, {"a": 1}, {"output_tokens_details": {"reasoning_tokens": None}})),
    ],
)  # fmt: skip
def test_usage_adds_up_and_unknown_is_never_zero(usages: list[Any], tokens: dict[str, Any]) -> None:
    """Every provider call of a turn counts, in either family's spelling; what is not known is left out."""
    folded = Folded(FIRST, *(record(number, DONE, usage=usage) for number, usage in enumerate(usages, 2)))
    said = folded.turns[0].attributes
    assert {name: said[key] for name, key in TOKENS.items() if key in said} == tokens
    assert said["raxol.turn.iterations"] == len(usages)
    assert not {key for key in Folded(FIRST, record(2, DONE)).turns[0].attributes if "usage" in key}


@pytest.mark.parametrize(
    ("costs", "total"),
    [
        ([0.1, 0.2], 0.3),
        ([0.1] * 10, 1.0),
        ([3, 0.5], 3.5),
        ([0.25, None, "1", LIST, math.nan], 0.25),
        ([0], 0.0),
        ([1e-13], 0.0),
        ([None, "0.5", OBJECT, math.inf], None),
        (LIST, None),
    ],
)
def test_costs_add_up(costs: list[Any], total: float | None) -> None:
    """The sum is what a person would add up, without the noise of binary fractions."""
    folded = Folded(
        FIRST, *(record(number, DONE, cost=cost) for number, cost in enumerate(costs, 2)), record(99, CANCEL)
    )
    assert folded.turns[0].attributes.get("raxol.turn.cost_usd") == total
    assert folded.turns[0].attributes.get("raxol.turn.iterations") == (len(costs) or None)


def test_a_sum_of_costs_is_a_finite_number() -> None:
    """Costs too large to add up give no infinite attribute, which JSON could not carry."""
    turn = Folded(FIRST, record(2, DONE, cost=1e308), record(3, DONE, cost=1e308)).turns[0]
    assert math.isfinite(float(turn.attributes.get("raxol.turn.cost_usd", 0)))


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        *(({"evidence": word}, [word]) for word in ("accepted", "absent")),
        *(({"evidence": odd, "refs": [1]}, ["unknown"]) for odd in ("unknown", "Accepted", "maybe", None, True, LIST)),
        *(({"refs": refs}, ["accepted"]) for refs in ([1], [], None)),
        ({}, ["unknown"]),
        *(
            ({"evidence": "rejected", "evidence_rejected": {"reason": word}}, ["rejected", word])
            for word in ("missing_ref", "not_evidence", "foreign_turn", "stale_evidence", "mutation_echo")
        ),
        *(
            ({"evidence": "rejected", "evidence_rejected": odd}, ["rejected", "other"])
            for odd in ({"reason": "my secret"}, {"reason": None}, {"reason": ["missing_ref"]}, {}, None, "missing_ref")
        ),
        ({"evidence": "accepted", "evidence_rejected": {"reason": "missing_ref"}}, ["accepted"]),
    ],
)
def test_a_completed_turn_says_its_evidence(payload: Record, said: list[str]) -> None:
    """The last boundary's marker counts, of completed turns only; a reason is one of five words, of rejected ones."""
    before = record(2, DONE, evidence="rejected")
    for end in (record(3, DONE, final=True, **payload), record(3, DONE, **payload)):
        attributes = Folded(FIRST, before, end).turns[0].attributes
        assert [attributes[key] for key in sorted(attributes) if key.startswith("raxol.turn.evidence")] == said
    for end in (LAST, record(3, ERROR), item(3, "message")):
        turn = Folded(FIRST, record(2, DONE, **payload), end).turns[0]
        assert not {key for key in turn.attributes if "evidence" in key or key.endswith(".final")}
