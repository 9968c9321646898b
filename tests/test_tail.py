"""A journal that grows is followed: every record once and in order, however its bytes come."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.errors import JournalUnreadable
from raxol_otel.journal import layout, open_journal, resume_scan
from raxol_otel.journal.codec import encode
from raxol_otel.journal.tail import Tail
from tests.conftest import make_journal
from tests.tail_follow import Follower, append, bytes_read, line, lines_of, put, seg, settle

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


@pytest.fixture
def follower(tmp_path: Path) -> Follower:
    """Whoever follows a session that has an empty segment."""
    return Follower(put(tmp_path / "session", {"journal/000001.jsonl": b""}))


def test_a_session_that_is_not_there_yet_is_empty(tmp_path: Path) -> None:
    """Nothing there reads as empty and healthy; what comes is given, without a restart."""
    follower = Follower(tmp_path / "session")
    assert follower.ids() == []
    assert follower.verdict.state == "healthy"
    put(tmp_path / "session", {"journal/000001.jsonl": line(1) + line(2)})
    assert follower.ids() == [1, 2]
    assert follower.restarts == []


@pytest.mark.parametrize("chained", [False, True])
def test_records_come_once_and_in_order(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - pytest's
    """One by one, none, some at once: each look gives what is new since the last one."""
    files, records = make_journal([*range(40)], chained=chained)
    lines = files.pop("journal/000001.jsonl").splitlines(keepends=True)
    del files["HEAD"]
    follower = Follower(put(tmp_path / "session", files))
    given = 0
    for count in (1, 1, 0, 3, 1, 30, 4):
        append(seg(follower.directory), b"".join(lines[given : given + count]))
        assert follower.look() == records[given : given + count]
        given += count
    assert given == 40
    assert (follower.tail.records, follower.tail.last_offset, follower.restarts) == (40, 40, [])


def test_a_line_comes_byte_by_byte(follower: Follower) -> None:
    """A line waits for its newline, torn meanwhile, also in the middle of a letter of four bytes."""
    data = encode({"id": 1, "text": "a\U0001f600\u2028é"}) + b"\n"
    for place in range(len(data) - 1):
        append(seg(follower.directory), data[place : place + 1])
        assert follower.look() == []
        assert (follower.tail.state, follower.tail.torn_bytes) == ("torn", place + 1)
    append(seg(follower.directory), b"\n")
    assert follower.look() == [{"id": 1, "text": "a\U0001f600\u2028é"}]
    assert (follower.tail.state, follower.tail.torn_bytes) == ("healthy", 0)


def test_rotations(follower: Follower) -> None:
    """The next segment, an empty one, several at once, and an empty one that is passed over."""
    append(seg(follower.directory), line(1))
    assert follower.ids() == [1]
    seg(follower.directory, 2).touch()
    append(seg(follower.directory), line(2))
    assert follower.ids() == [2]
    append(seg(follower.directory, 2), line(3))
    assert follower.ids() == [3]
    for number in (3, 4, 6):
        append(seg(follower.directory, number), line(number + 1) if number < 6 else line(6) + line(7))
    assert follower.ids() == [4, 5, 6, 7]
    assert (follower.tail.segments, follower.restarts) == (5, [])
    follower.check()


def test_an_unterminated_line_before_content_is_a_record(follower: Follower) -> None:
    """It waits until the next segment has content; when that goes it is torn again, and everything is read anew."""
    append(seg(follower.directory), line(1) + line(2)[:-1])
    seg(follower.directory, 2).write_bytes(b"\n\n")
    assert follower.ids() == [1]
    assert follower.tail.state == "torn"
    append(seg(follower.directory, 2), line(3))
    assert follower.ids() == [2, 3]
    follower.check()
    seg(follower.directory, 2).write_bytes(b"\n")
    assert follower.ids() == [1]
    assert (follower.tail.state, follower.restarts) == ("torn", ["rewritten"])
    follower.check()


def test_an_unterminated_record_that_grows_is_read_anew(follower: Follower) -> None:
    """What is added to its line makes another line of it: here two records in one, which is damage."""
    append(seg(follower.directory), line(1) + line(2)[:-1])
    seg(follower.directory, 2).write_bytes(line(3)[:-1])
    assert follower.ids() == [1, 2]
    append(seg(follower.directory), line(3))
    follower.check()
    assert follower.tail.damage is not None
    assert (follower.tail.damage.cause, follower.tail.damage.line, follower.restarts) == ("spliced", 2, ["rewritten"])


def test_its_owner_terminates_it(follower: Follower) -> None:
    """The repair of a torn line behind it ends it with a newline; the verdict and the records stay right."""
    append(seg(follower.directory), line(1) + line(2)[:-1])
    seg(follower.directory, 2).write_bytes(b"\n" + line(3)[:5])
    assert follower.ids() == [1, 2]
    resume_scan(follower.directory)
    follower.check()
    assert [record["id"] for record in follower.records] == [1, 2]
    append(seg(follower.directory, 2), line(3))
    assert follower.ids() == [3]
    follower.check()


def test_the_numbers_of_lines_go_on(follower: Follower) -> None:
    """Damage is found at the line of its file, empty lines included, however often it was looked at before."""
    for offset in range(1, 5):
        append(seg(follower.directory), b"\n" + line(offset))
        assert follower.ids() == [offset]
    append(seg(follower.directory), b"\n\nnothing\n")
    follower.check()
    damage = follower.tail.damage
    assert damage is not None
    size = sum(len(line(offset)) + 1 for offset in range(1, 5)) + 2
    found = (damage.cause, damage.place, damage.line, damage.byte, damage.last_offset)
    assert found == ("unparsable", "journal/000001.jsonl", 11, size, 4)


def test_what_is_behind_damage_is_never_given(follower: Follower) -> None:
    """A damaged journal may grow; when the damage is mended reading goes on, nothing twice."""
    append(seg(follower.directory), line(1) + b"x" * 16 + b"\n" + line(3))
    assert follower.ids() == [1]
    append(seg(follower.directory), line(4))
    assert follower.ids() == []
    assert (follower.tail.state, follower.tail.last_offset) == ("damaged", 1)
    lines = lines_of(seg(follower.directory))
    seg(follower.directory).write_bytes(lines[0] + line(2) + b"".join(lines[2:]))
    assert follower.ids() == [2, 3, 4]
    assert follower.restarts == []


def test_a_limit(follower: Follower) -> None:
    """A look stops after so many bytes, says that there is more, and the next ones go on there."""
    append(seg(follower.directory), b"".join(line(offset, "x" * 1_000) for offset in range(1, 101)))
    tail = follower.tail
    sizes: list[int] = []
    while tail.has_changed() and (tail.has_more or not sizes):
        assert tail.begin() is None
        sizes.append(sum(len(batch) for batch in tail.batches(20_000)))
        assert not tail.is_behind_head
    # Pieces of 16 KiB, of 16 records each: two of them are 20,000 bytes.
    assert sizes == [32, 32, 32, 4]
    assert (tail.last_offset, tail.has_more) == (100, False)


def test_more_than_one_huge_line(follower: Follower) -> None:
    """A line of many pieces is one record, and so are those around it; little more than twice its bytes are read."""
    sizes = (10, 16_384 * 3, 300_000, 16_384, 5, 1_000_000, 16_383, 16_385, 1)
    data = b"".join(line(number, "é" * size) for number, size in enumerate(sizes, 1))
    append(seg(follower.directory), data)
    before = bytes_read()
    assert [len(record["text"]) for record in follower.look()] == list(sizes)
    assert bytes_read() - before < 2.5 * len(data)
    follower.check()


@pytest.mark.parametrize("is_saved", [False, True])
def test_a_huge_line_that_comes_in_pieces_is_not_read_again_and_again(
    follower: Follower,
    is_saved: bool,  # noqa: FBT001 - pytest's
) -> None:
    """4 MB in 200 pieces: what is read stays a small multiple of that, where all of it each time would be 400 MB."""
    data = line(1, "x" * 4_000_000)
    before = bytes_read()
    for begin in range(0, len(data) - 1, 20_000):
        append(seg(follower.directory), data[begin : min(begin + 20_000, len(data) - 1)])
        assert follower.look() == []
        assert follower.tail.torn_bytes == min(begin + 20_000, len(data) - 1)
        if is_saved:
            follower.save()
    append(seg(follower.directory), b"\n")
    assert len(follower.look()) == 1
    assert bytes_read() - before < 5 * len(data)


@pytest.mark.parametrize("size", [10, 10_000, 200_000])
@pytest.mark.parametrize("then", ["a record", "another", "records and another", "nothing"])
def test_a_torn_tail_is_cut_and_overwritten(follower: Follower, size: int, then: str) -> None:
    """Its owner cuts a torn tail off and goes on: what stands there then counts, be it shorter or longer."""
    path = seg(follower.directory)
    append(path, line(1) + line(2, "x" * size)[:-1])
    assert follower.ids() == [1]
    assert follower.tail.state == "torn"
    assert resume_scan(follower.directory).torn
    assert path.read_bytes() == line(1)
    added, ids, torn = {
        "a record": (line(2), [2], 0),
        "another": (line(2, "y" * 2 * size)[:-1], [], len(line(2, "y" * 2 * size)) - 1),
        "records and another": (line(2) + line(3) + b"z" * 2 * size, [2, 3], 2 * size),
        "nothing": (b"", [], 0),
    }[then]
    append(path, added)
    assert follower.ids() == ids
    assert follower.tail.torn_bytes == torn
    assert follower.restarts == []
    follower.check()


def test_a_writer_repairs_what_a_killed_one_left(tmp_path: Path) -> None:
    """`open_journal` cuts the torn tail and appends: nothing twice, no restart."""
    with open_journal("session", base_dir=tmp_path) as journal:
        journal.append_many([{"type": "note"}] * 3)
    follower = Follower(tmp_path / "session")
    append(seg(follower.directory), b'{"id":4,"type":"no')
    assert follower.ids() == [1, 2, 3]
    assert follower.tail.state == "torn"
    with open_journal("session", base_dir=tmp_path) as journal:
        journal.append({"type": "note"})
    assert follower.ids() == [4]
    assert (follower.tail.state, follower.restarts) == ("healthy", [])
    follower.check()


@pytest.mark.parametrize("is_torn", [False, True])
def test_a_line_that_is_too_long(follower: Follower, is_torn: bool) -> None:  # noqa: FBT001 - pytest's
    """It is refused by the name of its segment and its line; the records before it are given, and what is left waits.

    One that is as long as may be is read. Once the long one is gone, reading goes on.
    """
    follower.tail = Tail(follower.directory, line_bytes_max=50_000)
    longest = line(2, "x" * (50_000 - len(line(2)) + 1))
    assert len(longest) == 50_001
    path = seg(follower.directory)
    append(path, line(1) + longest + b"\n" + line(3) + (b"x" * 50_001 if is_torn else b"x" * 50_001 + b"\n"))
    given: list[int] = []
    assert follower.tail.begin() is None
    with pytest.raises(JournalUnreadable) as caught:
        given += [record["id"] for batch in follower.tail.batches() for record in batch]
    assert str(caught.value) == f"cannot read {path}: line 5 has more than 50000 bytes"
    assert follower.tail.last_offset == 3
    assert follower.tail.has_more
    os.truncate(path, len(line(1) + longest + b"\n" + line(3)))
    append(path, line(4))
    assert follower.ids() == [4]


def test_a_large_file_of_short_lines_is_read_once(follower: Follower) -> None:
    """The bound on lines costs nothing where they are short, also when the file is read in many parts."""
    follower.tail = Tail(follower.directory, line_bytes_max=10_000)
    data = b"".join(line(offset, "x" * 500) for offset in range(1, 4_001))
    append(seg(follower.directory), data)
    settle()
    before = bytes_read()
    assert len(follower.look(bytes_max=50_000)) == 4_000
    assert bytes_read() - before < 1.5 * len(data)


def test_head_is_read_before_the_segments_are_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer that is faster than the look does not make HEAD name more than there seems to be."""
    files, _ = make_journal([1, 2], chained=True)
    lines = files["journal/000001.jsonl"].splitlines(keepends=True)
    head = {"offset": 1, "tip_hash": json.loads(lines[0])["hash"]}
    files |= {"journal/000001.jsonl": lines[0], "HEAD": encode(head)}
    follower = Follower(put(tmp_path / "session", files))
    assert follower.ids() == [1]
    read_head = layout.read_head

    def meanwhile(directory: Path) -> Mapping[str, Any] | None:
        monkeypatch.undo()
        append(seg(directory), lines[1])
        (directory / "HEAD").write_bytes(encode({"offset": 2, "tip_hash": json.loads(lines[1])["hash"]}))
        return read_head(directory)

    monkeypatch.setattr(layout, "read_head", meanwhile)
    assert follower.tail.begin() is None
    assert [record["id"] for batch in follower.tail.batches() for record in batch] == [2]
    assert (follower.tail.state, follower.tail.head_offset) == ("healthy", 2)


def test_a_rotation_during_the_look(follower: Follower, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that come to both segments while they are looked at are no gap."""
    append(seg(follower.directory), line(1))
    seg(follower.directory, 2).touch()
    assert follower.ids() == [1]
    looked: list[str] = []
    stat = os.stat

    def meanwhile(path: str | Path, **options: Any) -> os.stat_result:
        found = stat(path, **options)
        if str(path).endswith(".jsonl"):
            looked.append(str(path))
            if len(looked) == 1:
                append(seg(follower.directory), line(2))
                append(seg(follower.directory, 2), line(3))
        return found

    monkeypatch.setattr(os, "stat", meanwhile)
    assert follower.tail.begin() is None
    given = [record["id"] for batch in follower.tail.batches() for record in batch]
    monkeypatch.undo()
    assert len(looked) == 2
    assert (given, follower.tail.state) == ([2], "healthy")
    assert follower.ids() == [3]
