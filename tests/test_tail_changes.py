"""Files that change other than by growing: what goes on, what is read anew and why, what is damage."""

from __future__ import annotations

import os
import shutil
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.conftest import make_journal
from tests.tail_follow import PAYLOADS, Follower, append, followed, grow_by_one, lines_of, seg, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    Change = Callable[[Path], object]

OTHERS = [f"another {number} " + "x" * 1_000 for number in range(1, 11)]


@pytest.fixture(params=[False, True], ids=["plain", "chained"])
def chained(request: pytest.FixtureRequest) -> bool:
    """Both kinds of journal."""
    return bool(request.param)


@pytest.fixture
def follower(chained: bool) -> Generator[Follower]:  # noqa: FBT001 - a fixture
    """Whoever has read a journal of ten records in three segments; see `followed`."""
    with followed(chained=chained) as follower:
        yield follower


def each(directory: Path, change: Change) -> None:
    """Change all segments."""
    for path in sorted((directory / "journal").iterdir()):
        change(path)


def copied(path: Path) -> None:
    """Another file, with the same bytes and times, in the place of this one."""
    copy = path.with_suffix(".copy")
    shutil.copy2(path, copy)
    copy.rename(path)


def written_again(path: Path) -> None:
    """The same bytes once more, in the same file."""
    data = path.read_bytes()
    with path.open("r+b") as file:
        file.write(data)


CHANGES: Final[dict[str, Change]] = {
    "touched": lambda path: os.utime(path, (1, 1)),
    "chmod": lambda path: path.chmod(0o600),
    "copied": copied,
    "written again": written_again,
}


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_the_same_bytes_go_on(follower: Follower, chained: bool, change: Change, is_restarted: bool) -> None:  # noqa: FBT001 - pytest's
    """Other times, modes, inodes: nothing is given twice, and what comes then is given."""
    settle()
    each(follower.directory, change)
    if is_restarted:
        follower.save()
    assert follower.tail.has_changed()
    assert follower.look() == []
    follower.check()
    assert grow_by_one(follower, chained=chained) == [11]
    each(follower.directory, change)
    assert follower.look() == []
    assert follower.restarts == []


def test_a_moved_session_goes_on(follower: Follower, chained: bool) -> None:  # noqa: FBT001 - a fixture
    """A copy of the whole directory in its place is the same journal."""
    copy = follower.directory.with_name("copy")
    shutil.copytree(follower.directory, copy)
    shutil.rmtree(follower.directory)
    copy.rename(follower.directory)
    assert follower.look() == []
    assert grow_by_one(follower, chained=chained) == [11]
    assert follower.restarts == []


@pytest.mark.parametrize(
    ("segment", "left", "why"),
    [
        pytest.param(3, 1, "rewritten", id="the last one"),
        pytest.param(3, 0, "rewritten", id="the last one to nothing"),
        pytest.param(2, 3, "rewritten", id="the middle one"),
        pytest.param(1, 1, "rewritten", id="the first one to its first record"),
        pytest.param(1, 0.5, "replaced", id="within the first record"),
    ],
)
def test_truncated(follower: Follower, segment: int, left: float, why: str) -> None:
    """Everything is read anew: the journal is the same as long as its first line is."""
    path = seg(follower.directory, segment)
    lines = lines_of(path)
    os.truncate(path, int(left * len(lines[0])))
    follower.check()
    assert follower.restarts == [why]


def test_truncated_to_nothing_and_written_again(follower: Follower, chained: bool) -> None:  # noqa: FBT001 - a fixture
    """A journal that has lost everything is gone; whatever comes then is new."""
    each(follower.directory, lambda path: os.truncate(path, 0))
    (follower.directory / "HEAD").unlink()
    follower.check()
    assert (follower.restarts, follower.tail.last_offset) == (["replaced"], 0)
    files, records = make_journal(OTHERS, chained=chained)
    seg(follower.directory).write_bytes(files["journal/000001.jsonl"])
    assert follower.look() == records
    assert follower.restarts == ["replaced"]


def flip(path: Path, place: str) -> None:
    """Another byte in the first line's first place, in the middle or in the last line's last place."""
    data = path.read_bytes()
    at = {"first": 0, "middle": len(lines_of(path)[0]) + 40, "last": len(data) - 2}[place]
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([data[at] ^ 2]))


@pytest.fixture
def coarse_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Times of change as kernels before 6.13 tell them, and some file systems still do: in steps of 10 ms."""
    stat = os.stat

    def coarse(path: str | Path, **options: Any) -> Any:
        found = stat(path, **options)
        if not str(path).endswith(".jsonl"):
            return found
        changed_ns = found.st_ctime_ns - found.st_ctime_ns % 10_000_000
        return SimpleNamespace(st_dev=found.st_dev, st_ino=found.st_ino, st_size=found.st_size, st_ctime_ns=changed_ns)

    monkeypatch.setattr(os, "stat", coarse)


@pytest.mark.parametrize("segment", [1, 2, 3])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_byte_is_another(follower: Follower, segment: int, place: str) -> None:
    """The size and the inode are the same: everything is read anew, and the verdict is a scan's."""
    settle()
    follower.look()
    flip(seg(follower.directory, segment), place)
    follower.check()
    assert follower.restarts == ["replaced" if (segment, place) == (1, "first") else "rewritten"]


@pytest.mark.usefixtures("coarse_clock")
@pytest.mark.parametrize("segment", [1, 2, 3])
@pytest.mark.parametrize("place", ["first", "middle", "last"])
def test_one_byte_is_another_within_a_tick(follower: Follower, segment: int, place: str) -> None:
    """The clock has not moved on since it was read, so that nothing shows; also when nobody looks for a while."""
    path = seg(follower.directory, segment)
    for _ in range(100):
        path.touch()
        follower.look()
        before = os.stat(path).st_ctime_ns  # noqa: PTH116 - the coarse one
        flip(path, place)
        if os.stat(path).st_ctime_ns == before:  # noqa: PTH116 - the coarse one
            break
        flip(path, place)
    else:
        pytest.skip("this machine was too slow, a hundred times")
    settle()
    follower.check()
    assert follower.restarts == ["replaced" if (segment, place) == (1, "first") else "rewritten"]


@pytest.mark.parametrize("count", [3, 10, 40], ids=["shorter", "as long", "longer"])
def test_the_same_inode_has_another_journal(follower: Follower, chained: bool, count: int) -> None:  # noqa: FBT001 - a fixture
    """One file, truncated and filled with another journal, be it shorter or longer."""
    files, records = make_journal((OTHERS * 4)[:count], chained=chained)
    for number in (2, 3):
        seg(follower.directory, number).unlink()
    inode = seg(follower.directory).stat().st_ino
    seg(follower.directory).write_bytes(files["journal/000001.jsonl"])
    (follower.directory / "HEAD").write_bytes(files["HEAD"])
    assert seg(follower.directory).stat().st_ino == inode
    assert follower.look() == records
    assert follower.restarts == ["replaced"]
    follower.check()


def test_a_longer_journal_with_the_same_small_records(tmp_path: Path) -> None:
    """Where records are so small that the last few bytes are alike, the beginning tells, and the bytes before."""
    (tmp_path / "journal").mkdir()
    follower = Follower(tmp_path)
    for offset in range(1, 41):
        append(seg(tmp_path), b'{"id":%d,"n":%d}\n' % (offset, offset // 20))
        follower.look()
    seg(tmp_path).write_bytes(b"".join(b'{"id":%d,"n":%d}\n' % (offset, offset // 21) for offset in range(1, 50)))
    follower.check()
    assert follower.restarts == ["rewritten"]


def test_another_journal_stands_in_its_place(follower: Follower, chained: bool) -> None:  # noqa: FBT001 - a fixture
    """Another directory of the same name."""
    files, records = make_journal(OTHERS[:7], chained=chained, per_segment=3)
    shutil.rmtree(follower.directory)
    (follower.directory / "journal").mkdir(parents=True)
    for name, data in files.items():
        (follower.directory / name).write_bytes(data)
    assert follower.look() == records
    assert follower.restarts == ["replaced"]


# --- What goes and comes


@pytest.mark.parametrize("what", ["session", "journal"])
def test_deleted(follower: Follower, what: str) -> None:
    """What is gone is an empty journal; when it is there again, everything is read."""
    away = follower.directory.with_name("away")
    place = follower.directory if what == "session" else follower.directory / "journal"
    given = follower.records
    place.rename(away)
    follower.check()
    assert (follower.tail.last_offset, follower.tail.segments) == (0, 0)
    assert follower.restarts == ["replaced"]
    away.rename(place)
    assert follower.look() == given
    assert follower.restarts == ["replaced"]


@pytest.mark.parametrize(
    ("segments", "plain", "sealed"),
    [
        pytest.param([1], ("healthy", ""), ("damaged", "replaced"), id="first"),
        pytest.param([1, 2], ("healthy", ""), ("damaged", "replaced"), id="all but the last"),
        pytest.param([2], ("damaged", "rewritten"), ("damaged", "rewritten"), id="middle"),
        pytest.param([3], ("healthy", "rewritten"), ("damaged", "rewritten"), id="last"),
    ],
)
def test_segments_are_deleted(
    follower: Follower,
    chained: bool,  # noqa: FBT001 - a fixture
    segments: list[int],
    plain: tuple[str, str],
    sealed: tuple[str, str],
) -> None:
    """The first ones may go where there is no chain, and the rest goes on; anything else is read anew."""
    for number in segments:
        seg(follower.directory, number).unlink()
    follower.check()
    assert (follower.tail.state, " ".join(follower.restarts)) == (sealed if chained else plain)
    if segments[0] == 1 and not chained:
        assert grow_by_one(follower, chained=False) == [11]
        assert follower.tail.records == 11
        follower.save()
        follower.check()
        # What was dropped comes back: a gap, or the whole, is for a scan to tell.
        files, _ = make_journal(PAYLOADS, per_segment=4)
        seg(follower.directory, 1).write_bytes(files["journal/000001.jsonl"])
        follower.check()
        assert follower.restarts == ["replaced"]


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("data", [b"", b"\n\n", b'{"id":1}\n', b"x"])
def test_a_segment_before_or_behind(follower: Follower, number: int, data: bytes) -> None:
    """Without content it changes nothing; with some, it counts as a scan has it."""
    path = seg(follower.directory, number)
    path.write_bytes(data)
    follower.check()
    is_silent = number == 4 or not data.strip()
    assert follower.restarts == ([] if is_silent else ["replaced"])
    path.unlink()
    follower.check()


def test_a_segment_between(tmp_path: Path) -> None:
    """A number that was left out is filled."""
    (tmp_path / "journal").mkdir()
    for number in (1, 3):
        seg(tmp_path, number).write_bytes(b'{"id":%d}\n' % number)
    follower = Follower(tmp_path)
    follower.check()
    assert follower.tail.state == "damaged"
    seg(tmp_path, 2).write_bytes(b'{"id":2}\n')
    assert follower.ids() == [2, 3]
    assert (follower.tail.state, follower.restarts) == ("healthy", [])
    seg(tmp_path, 4).write_bytes(b'{"id":4}\n')
    seg(tmp_path, 6).write_bytes(b'{"id":5}\n')
    assert follower.ids() == [4, 5]
    seg(tmp_path, 5).write_bytes(b"\n")
    assert follower.ids() == []
    seg(tmp_path, 5).write_bytes(b'{"id":5}\n')
    follower.check()
    assert (follower.tail.state, follower.restarts) == ("damaged", ["rewritten"])


@pytest.mark.parametrize(
    ("data", "state"), [(b"\n", "healthy"), (b" ", "damaged"), (b'{"id":5}\n', "damaged"), (b"x\n", "damaged")]
)
def test_an_earlier_segment_grows(follower: Follower, data: bytes, state: str) -> None:
    """Its writer had left it: everything is read anew, and the verdict is a scan's."""
    append(seg(follower.directory), data)
    follower.check()
    assert (follower.tail.state, follower.restarts) == (state, ["rewritten"])
