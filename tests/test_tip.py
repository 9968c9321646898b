"""The conversational tip: a closed list, and the highest offset in whatever order records come."""

from __future__ import annotations

import math
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raxol_otel.journal import CONVERSATIONAL_TYPES, is_conversational, tip

# The list as it was frozen; a type that is added to it later is a new contract.
TYPES: Final = (
    *("turn_started", "item_started", "item_completed", "turn_completed", "turn_canceled", "error"),
    "approval_requested",
)
NO_TIPS: Final = ("idle", "woken", "state_change", "item_delta", "reserve", "settle", "release", "observed", "plan")

Record = dict[str, Any]


def record(offset: Any = 1, kind: Any = "error", **fields: Any) -> Record:
    """A record that may be a tip, unless its fields say otherwise."""
    return {"id": offset, "family": "loop", "type": kind, **fields}


def test_the_list_of_types_is_closed() -> None:
    """Exactly the seven frozen types may be tips; every other type of the loop may not."""
    assert frozenset(TYPES) == CONVERSATIONAL_TYPES
    assert [kind for kind in (*TYPES, *NO_TIPS) if is_conversational(record(kind=kind))] == list(TYPES)


@pytest.mark.parametrize("kind", [None, 5, "Error", "", "error ", [], {}, ["error"], True, b"error"])
def test_an_odd_type_is_no_tip(kind: Any) -> None:
    """A type must be one of the very words."""
    assert not is_conversational(record(kind=kind))
    assert tip([record(1), record(2, kind)]) == 1


@pytest.mark.parametrize("family", ["meta", "Loop", "", None, 5, [], {}])
def test_another_family_is_no_tip(family: Any) -> None:
    """Only the loop converses; a record without a family does not."""
    assert not is_conversational(record(family=family))
    assert not is_conversational({"id": 1, "type": "error"})


@pytest.mark.parametrize(
    ("kind", "conversational"),
    [
        ("event", True),
        *((odd, False) for odd in ("checkpoint", "later", "", "Event", None, 5, True, ["event"], {"a": 1})),
    ],
)
def test_only_events_are_tips(kind: Any, *, conversational: bool) -> None:
    """A kind that is null is not absent: it reads as an empty text. Absent reads as an event."""
    assert is_conversational({**record(), "kind": kind}) is conversational
    assert is_conversational(record())


@pytest.mark.parametrize(
    ("stored", "branch"), [("main", "main"), ("b", "b"), ("", ""), (None, ""), (5, "5"), (0, "0"), (True, "true")]
)
def test_a_branch_is_read_as_text(stored: Any, branch: str) -> None:
    """Null is an empty text and a number its digits; such a record is on no other branch than that."""
    records = [record(1), record(2, branch_id=stored)]
    assert tip(records, branch) == 2
    assert tip(records) == (2 if branch == "main" else 1)
    assert tip(records, "other") is None


def test_an_absent_branch_is_main() -> None:
    """Records from before there were branches are on main, and on no other."""
    assert tip([record(3)]) == 3
    assert tip([record(3)], "") is None


def test_trailing_records_that_do_not_converse_are_passed_over() -> None:
    """A checkpoint, an observation or an idle mark at the end is never where a conversation resumes."""
    after = [record(6, "idle"), record(7, "observed", family="meta"), {"id": 8, "kind": "checkpoint"}]
    assert tip([record(4, "turn_started"), record(5, "approval_requested"), *after]) == 5


def test_there_may_be_no_tip() -> None:
    """An empty journal has none, and neither has one without a conversation."""
    assert tip([]) is None
    assert tip(iter([record(1, "idle"), {}, {"id": 2}])) is None


@pytest.mark.parametrize("offset", [None, "9", 9.0, True, [], {}])
def test_an_offset_is_an_integer(offset: Any) -> None:
    """What is no offset cannot be pointed at; an integer of any size or sign can."""
    assert tip([record(1), record(offset), {"family": "loop", "type": "error"}]) == 1
    assert tip([record(0), record(-5)]) == 0
    assert tip([record(-5)]) == -5
    assert tip([record(2**70), record(1)]) == 2**70


def test_what_json_cannot_carry_is_an_odd_value_too() -> None:
    """A record that was never on disk may hold anything: it is of a branch or a kind of its own, and no error."""
    for odd in (math.nan, ["\ud800"], {1: 2}, {1}, b"main", object()):
        assert tip([record(1), record(2, branch_id=odd), {**record(3), "kind": odd}]) == 1


RECORDS: Final = st.builds(
    record,
    st.integers(),
    st.sampled_from((*TYPES, *NO_TIPS)),
    family=st.sampled_from(("loop", "loop", "loop", "meta")),
    branch_id=st.sampled_from(("main", "main", "b", None)),
)


@given(st.lists(RECORDS), st.randoms(use_true_random=False), st.sampled_from(("main", "b", "")))
def test_the_order_of_the_records_does_not_matter(records: list[Record], random: Any, branch: str) -> None:
    """The tip is the highest offset of those that qualify, found forwards, backwards and shuffled."""
    offsets = [
        one["id"]
        for one in records
        if one["type"] in TYPES and one["family"] == "loop" and (one["branch_id"] or "") == branch
    ]
    expected = max(offsets, default=None)
    assert tip(records, branch) == expected
    assert tip(reversed(records), branch) == expected
    random.shuffle(records)
    assert tip(records, branch) == expected
