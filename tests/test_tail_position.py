"""Where following stands: as plain data, and what it costs to go on from there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest

from raxol_otel.journal.chain import GENESIS
from raxol_otel.journal.codec import encode
from raxol_otel.journal.tail import Tail
from tests.tail_follow import Follower, append, bytes_read, line, put, seg, settle

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Bend = Callable[[dict[str, Any]], Any]


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    """Whoever follows a session that has an empty segment."""
    return Follower(put(tmp_path / "session", {"journal/000001.jsonl": b""}))


def test_nothing_is_read_where_nothing_changed(follower: Follower) -> None:
    """Idle looks read nothing; what is new costs what is new, also for one that was started again."""
    append(seg(follower.directory), b"".join(line(offset, "x" * 500) for offset in range(1, 1_001)))
    settle()
    assert len(follower.look()) == 1_000
    tail, before = follower.tail, bytes_read()
    overhead = bytes_read() - before
    assert not any(tail.has_changed() for _ in range(20))
    follower.save()
    assert not follower.tail.has_changed()
    assert bytes_read() - before == 2 * overhead
    append(seg(follower.directory), line(1_001))
    assert follower.ids() == [1_001]
    assert bytes_read() - before < 10_000


def test_a_change_within_one_tick_of_the_clock_is_looked_for(follower: Follower) -> None:
    """Right after a change nothing can be said for sure: so it is looked at again, and soon no more."""
    append(seg(follower.directory), line(1))
    follower.look()
    assert follower.tail.has_changed()
    settle()
    follower.look()
    assert not follower.tail.has_changed()


def test_a_position_may_hold_anything_that_a_journal_may(tmp_path: Path) -> None:
    """Offsets of hundreds of digits and a meta.json of odd values survive any JSON library."""
    first = 10**300
    meta = b'{"created_at":1' + b"0" * 400 + b"}"
    head = b'{"offset":1' + b"0" * 500 + b"}"
    files = {"meta.json": meta, "HEAD": head, "journal/000001.jsonl": line(first) + b"x\n"}
    follower = Follower(put(tmp_path / "session", files))
    assert follower.ids() == [first]
    follower.save()
    assert follower.tail.last_offset == first
    assert follower.tail.damage is not None
    assert follower.tail.damage.last_offset == first
    seg(follower.directory).write_bytes(line(first) + line(first + 1))
    assert follower.ids() == [first + 1]
    assert follower.verdict.is_behind_head
    follower.save()
    follower.check()


# A position, and what there is in its place.
BENDS: Final[list[Bend]] = [
    lambda _: [0],
    lambda _: "position",
    lambda _: {"v": 1},
    lambda saved: saved | {"v": 2},
    lambda saved: saved | {"v": True},
    lambda saved: {key: value for key, value in saved.items() if key != "anchor"},
    lambda saved: saved | {"parts": "abc"},
    lambda saved: saved | {"parts": [["000001.jsonl"]]},
    lambda saved: saved | {"parts": [5]},
    lambda saved: saved | {"parts": [[*saved["parts"][0][:6], -1, *saved["parts"][0][7:]]]},
    lambda saved: saved | {"parts": [[*saved["parts"][0][:6], 0, *saved["parts"][0][7:]]]},
    lambda saved: saved | {"parts": [[5, *saved["parts"][0][1:]]]},
    lambda saved: saved | {"parts": [[*saved["parts"][0][:-1], 1]]},
    lambda saved: saved | {"parts": [[*saved["parts"][0][:3], 1.5, *saved["parts"][0][4:]]]},
    lambda saved: saved | {"seen": [0]},
    lambda saved: saved | {"seen": [(), ["000001.jsonl"], (), True, 0]},
    lambda saved: saved | {"seen": [[[1, 2, 3]], (), (), True, 0]},
    lambda saved: saved | {"seen": [(), (), (), 1, 0]},
    lambda saved: saved | {"anchor": ["1"]},
    lambda saved: saved | {"anchor": [1, None]},
    lambda saved: saved | {"anchor": ["one", None]},
    lambda saved: saved | {"head": ["1", 5]},
    lambda saved: saved | {"last_id": 5},
    lambda saved: saved | {"last_id": "5" * 5_000},
    lambda saved: saved | {"last_hash": None},
    lambda saved: saved | {"chained": "yes"},
    lambda saved: saved | {"records": -1},
    lambda saved: saved | {"torn": [None, 0]},
    lambda saved: saved | {"torn": 5},
    lambda saved: saved | {"more": None},
    lambda saved: saved | {"damage": {"line": 1}},
    lambda saved: saved | {"damage": "yes"},
    lambda saved: saved | {"damage": saved["damage"] | {"line": "1"}},
]


@pytest.mark.parametrize("bend", BENDS)
def test_what_is_no_position_is_refused(follower: Follower, bend: Bend) -> None:
    """One message for whatever is wrong with it."""
    append(seg(follower.directory), line(1) + b"x\n")
    follower.look()
    saved: dict[str, Any] = orjson.loads(orjson.dumps(follower.tail.position()))
    Tail(follower.directory, saved)
    with pytest.raises(ValueError, match=r"^not a position of a tail, or of another version$"):
        Tail(follower.directory, bend(saved))


def test_a_position_holds_nothing_of_the_records(follower: Follower) -> None:
    """It may be kept by whoever may not read the journal."""
    append(seg(follower.directory), encode({"id": 1, "text": "confidential", "prev_hash": GENESIS}) + b"\n" + b"secret")
    follower.look()
    saved = orjson.dumps(follower.tail.position())
    assert b"confidential" not in saved
    assert b"secret" not in saved
