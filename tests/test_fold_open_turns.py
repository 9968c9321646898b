"""What is said of the turns that are open. Values are worked out by hand."""

from __future__ import annotations

from dataclasses import asdict
from typing import Final

import pytest

from raxol_otel.turns import OpenTurn, TurnFold
from tests.test_fold import ASK, CANCEL, DAY, DONE, ERROR, START, Record, item, on, record
from tests.test_fold_events import observed


def seconds(facts: list[OpenTurn]) -> list[tuple[float, float | None]]:
    """When open turns began and since when they wait, in seconds of the day."""
    day = DAY * 10**9
    return [
        ((one.start_ns - day) / 10**9, None if one.waits_since_ns is None else (one.waits_since_ns - day) / 10**9)
        for one in facts
    ]


OPEN: Final[list[tuple[list[Record], list[tuple[float, float | None]]]]] = [
    ([], []),
    ([record(1, START)], [(1, None)]),
    ([record(1, START), record(2, ASK)], [(1, 2)]),
    # Asked twice: the latest request is what is waited for.
    ([record(1, START), record(2, ASK), record(5, ASK)], [(1, 5)]),
    ([record(1, START), record(2, ASK), item(3, "tool_result", call_id="a")], [(1, None)]),
    # Words are no answer: an agent may say that it waits.
    ([record(1, START), record(2, ASK), item(3, "message"), item(4, "reasoning")], [(1, 2)]),
    ([record(1, START), record(2, ASK), item(3, "tool_use", call_id="a")], [(1, None)]),
    ([record(1, START), record(2, ASK), record(3, DONE)], [(1, None)]),
    ([record(1, START), record(2, ASK), record(3, ERROR, reason="unmapped_acp_update")], [(1, None)]),
    ([record(1, START), record(2, ASK), record(3, CANCEL)], []),
    ([record(1, START), record(2, ASK), record(3, DONE, final=True)], []),
    # What is no record of the turn, or makes no step of it, answers nothing.
    (
        [record(1, START), record(2, ASK), record(3, "idle"), record(4, "item_delta", "t1", {"tier": "ephemeral"})],
        [(1, 2)],
    ),
    ([record(1, START), record(2, ASK), record(3, "x", "t1", {"kind": "checkpoint"})], [(1, 2)]),
    ([record(1, START), record(2, ASK), record(3, DONE, "t2")], [(1, 2), (3, None)]),
    ([record(1, START), record(2, ASK), record(3, ASK, "t2", on("b"))], [(1, 2), (3, 3)]),
    ([record(1, ASK)], [(1, 1)]),
    ([record(1, START), record(2, ASK), record(3, START, "t2")], [(3, None)]),
    # What an observed agent waits for is not in the journal.
    ([observed(1, "prompted"), observed(2, "tool_call", call="c", status="pending")], [(1, None)]),
    ([observed(1, "prompted"), record(2, START), record(3, ASK)], [(2, 3), (1, None)]),
    ([observed(1, "prompted"), observed(2, "turn_ended")], []),
]


@pytest.mark.parametrize(("records", "expected"), OPEN)
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("quiet", [False, True])
def test_what_is_said_of_open_turns(
    records: list[Record], expected: list[tuple[float, float | None]], *, kept: bool, quiet: bool
) -> None:
    """Their start, and the approval that they wait for: one that nothing but words has followed."""
    fold = TurnFold("s", quiet=quiet)
    fold.feed_many(records)
    if kept:
        fold = TurnFold.restore(fold.snapshot(), session_id="s", quiet=quiet)
    assert seconds(fold.open_turn_facts()) == expected


def test_open_turns_that_are_not_wanted_are_not_said() -> None:
    """As with the number of open turns: those whose spans were asked for."""
    fold = TurnFold("s", select=lambda turn_id, _: turn_id == "t2")
    fold.feed_many([record(1, ASK, "t1"), record(2, ASK, "t2")])
    assert seconds(fold.open_turn_facts()) == [(2, 2)]
    assert [asdict(one) for one in fold.open_turn_facts()] == [
        {"start_ns": (DAY + 2) * 10**9, "waits_since_ns": (DAY + 2) * 10**9}
    ]
