"""What HEAD and meta.json say of a journal that is followed, and files that cannot be read for a while."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.journal.codec import encode
from tests.conftest import make_journal, unprivileged
from tests.tail_follow import PAYLOADS, Follower, append, followed, grow_by_one, lines_of, seg, settle

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    Change = Callable[[Path], object]


@pytest.fixture(params=[False, True], ids=["plain", "chained"])
def chained(request: pytest.FixtureRequest) -> bool:
    """Both kinds of journal."""
    return bool(request.param)


@pytest.fixture
def follower(chained: bool) -> Generator[Follower]:  # noqa: FBT001 - a fixture
    """Whoever has read a journal of ten records in three segments; see `followed`."""
    with followed(chained=chained) as follower:
        yield follower


def test_meta_appears_and_changes(tmp_path: Path) -> None:
    """One that comes later is taken over; one that says otherwise about the chain has everything read anew."""
    files, records = make_journal(PAYLOADS, chained=True)
    (tmp_path / "journal").mkdir()
    seg(tmp_path).write_bytes(files["journal/000001.jsonl"])
    follower = Follower(tmp_path)
    assert follower.look() == records
    assert follower.tail.created_at is None
    meta = tmp_path / "meta.json"
    meta.write_bytes(b'{"created_at":"2026-01-01T00:00:00Z"}')
    assert follower.look() == []
    assert follower.tail.created_at == "2026-01-01T00:00:00Z"
    for text in (b'{"chain":true}', b'{"chain":1}'):
        meta.write_bytes(text)
        assert follower.look() == records
        follower.check()
    assert follower.restarts == ["rewritten"] * 2


def head_of(directory: Path, offset: int, tip_hash: str | None = None) -> None:
    """HEAD names this offset, and the record's own hash or another."""
    lines = [line for number in (1, 2, 3) for line in lines_of(seg(directory, number))]
    there: dict[str, Any] = json.loads(lines[offset - 1]) if 1 <= offset <= len(lines) else {}
    (directory / "HEAD").write_bytes(encode({"offset": offset, "tip_hash": tip_hash or there.get("hash", "?")}))


@pytest.mark.parametrize("is_restarted", [False, True], ids=["", "restarted"])
@pytest.mark.parametrize(
    ("offset", "tip_hash", "sealed", "plain"),
    [
        pytest.param(10, None, ("healthy", ""), "healthy", id="exact"),
        pytest.param(4, None, ("healthy", ""), "healthy", id="behind"),
        pytest.param(1, None, ("healthy", ""), "healthy", id="far behind"),
        pytest.param(0, None, ("healthy", ""), "healthy", id="before all"),
        pytest.param(-3, "f" * 64, ("healthy", ""), "healthy", id="nonsense"),
        pytest.param(11, None, ("damaged", ""), "behind", id="ahead"),
        pytest.param(10, "f" * 64, ("damaged", "rewritten"), "healthy", id="another hash"),
        pytest.param(4, "f" * 64, ("damaged", "rewritten"), "healthy", id="another hash behind"),
        pytest.param(1, "f" * 64, ("damaged", "rewritten"), "healthy", id="another hash at the first"),
    ],
)
def test_head(  # noqa: PLR0917 - two fixtures, and a table
    follower: Follower,
    chained: bool,  # noqa: FBT001 - a fixture
    is_restarted: bool,  # noqa: FBT001 - pytest's
    offset: int,
    tip_hash: str | None,
    sealed: tuple[str, str],
    plain: str,
) -> None:
    """What HEAD says is held against what was read, however long ago; once it is right again so is the verdict."""
    if is_restarted:
        follower.save()
    head_of(follower.directory, offset, tip_hash)
    follower.check()
    if chained:
        assert (follower.tail.state, " ".join(follower.restarts)) == sealed
    else:
        assert (follower.tail.state, " ".join(follower.restarts)) == ("healthy", "")
    assert follower.tail.is_behind_head is (plain == "behind" and not chained)
    head_of(follower.directory, 10)
    follower.check()
    assert (follower.tail.state, follower.tail.last_offset) == ("healthy", 10)
    assert len(follower.records) == 10


@pytest.mark.parametrize("text", [None, b"", b"{", b"[]", b'{"offset":"9"}', b'{"offset":9.0,"tip_hash":"x"}'])
def test_without_a_usable_head(follower: Follower, text: bytes | None) -> None:
    """There is no anchor, and nothing to complain of."""
    head = follower.directory / "HEAD"
    head.unlink()
    if text is not None:
        head.write_bytes(text)
    follower.check()
    assert (follower.tail.state, follower.tail.head_offset, follower.restarts) == ("healthy", None, [])
    head_of(follower.directory, 7)
    follower.check()
    assert follower.restarts == []


def test_a_head_that_lags_far_behind(tmp_path: Path) -> None:
    """Thousands of records were read before HEAD names one: it is held against the file, and nothing restarts."""
    files, records = make_journal([0] * 6_000, chained=True)
    lines = files["journal/000001.jsonl"].splitlines(keepends=True)
    (tmp_path / "journal").mkdir()
    (tmp_path / "meta.json").write_bytes(files["meta.json"])
    follower = Follower(tmp_path)
    seg(tmp_path).write_bytes(b"".join(lines[:100]))
    follower.look()
    append(seg(tmp_path), b"".join(lines[100:]))
    assert len(follower.look()) == 5_900
    for offset in (50, 1_500, 3_000, 5_999, 6_000, 200):
        (tmp_path / "HEAD").write_bytes(encode({"offset": offset, "tip_hash": records[offset - 1]["hash"]}))
        follower.check()
        assert follower.restarts == []
    (tmp_path / "HEAD").write_bytes(encode({"offset": 1_600, "tip_hash": records[0]["hash"]}))
    follower.check()
    assert follower.restarts == ["rewritten"]
    assert follower.tail.damage is not None
    assert (follower.tail.damage.cause, follower.tail.last_offset) == ("head_hash", 1_599)


def test_a_torn_line_that_head_names_is_damage(follower: Follower, chained: bool) -> None:  # noqa: FBT001 - a fixture
    """HEAD names what is durable: its record must be whole."""
    head_of(follower.directory, 11)
    append(seg(follower.directory, 3), b'{"id":11')
    follower.check()
    assert follower.tail.state == ("damaged" if chained else "torn")
    assert follower.tail.is_behind_head is not chained


# --- What cannot be read


def in_its_place(path: Path, what: str) -> Change:
    """Put something else in a file's place; gives what takes it away again."""
    kept = path.with_name("kept")
    if what == "no permission":
        path.chmod(0)
        return lambda _: path.chmod(0o644)
    path.rename(kept)
    if what == "folder":
        path.mkdir()
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "broken link":
        path.symlink_to("nowhere")
    else:
        path.symlink_to(path)

    def back(_: Path) -> None:
        if what == "folder":
            path.rmdir()
        else:
            path.unlink()
        kept.rename(path)

    return back


@pytest.mark.parametrize("what", ["no permission", "folder", "pipe", "broken link", "endless link"])
@pytest.mark.parametrize("name", ["journal/000001.jsonl", "journal/000003.jsonl", "journal/000004.jsonl", "meta.json"])
def test_unreadable_and_back_again(follower: Follower, chained: bool, what: str, name: str) -> None:  # noqa: FBT001 - a fixture
    """It is refused as long as it is so, by its name, as a scan does; then reading goes on with what is new."""
    seg(follower.directory, 4).write_bytes(b"")
    path = follower.directory / name
    if name == "meta.json" and what == "broken link":
        pytest.skip("a meta.json that is not there is none")
    follower.look()
    back = in_its_place(path, what)
    with unprivileged(follower.directory):
        follower.check()
        assert follower.error is not None
        assert str(path) in follower.error
        assert follower.tail.has_changed()
        follower.check()
    back(path)
    assert grow_by_one(follower, chained=chained) == [11]
    assert follower.error is None
    assert follower.restarts == []
    follower.check()


def test_a_folder_that_may_not_be_looked_into(follower: Follower) -> None:
    """It has changed, for all that can be seen, and cannot be read; then it goes on."""
    settle()
    follower.look()
    folder = follower.directory / "journal"
    for mode in (0, 0o600):
        folder.chmod(mode)
        with unprivileged(follower.directory):
            assert follower.tail.has_changed()
            follower.check()
            assert follower.error is not None
    folder.chmod(0o755)
    assert follower.look() == []
    assert (follower.error, follower.restarts) == (None, [])


@pytest.mark.parametrize("what", ["folder", "pipe", "broken link"])
def test_damage_comes_before_what_cannot_be_read(follower: Follower, what: str) -> None:
    """A scan stops at the damage, and says that; so does a tail."""
    lines = lines_of(seg(follower.directory))
    seg(follower.directory).write_bytes(lines[0] + b"x\n" + lines[2])
    in_its_place(seg(follower.directory, 3), what)
    follower.check()
    assert (follower.error, follower.tail.state) == (None, "damaged")


def test_what_cannot_be_read_behind_a_torn_line(follower: Follower) -> None:
    """It might be the line's continuation: a scan does not say that all is well, and neither does a tail."""
    append(seg(follower.directory, 3), b"{")
    seg(follower.directory, 4).symlink_to("nowhere")
    follower.check()
    assert follower.error is not None
    seg(follower.directory, 4).unlink()
    follower.check()
    assert follower.error is None
    assert (follower.tail.state, follower.restarts) == ("torn", [])
