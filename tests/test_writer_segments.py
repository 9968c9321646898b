"""Segments under a writer: rotation that fails, the last number there is, and what others do to an open file."""

from __future__ import annotations

import errno
import os
import shutil
import time
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.errors import WriteFailed
from raxol_otel.journal import open_journal, scan
from tests.writer_files import Bench, event, head_of, segment_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The length of the line of `event(1)` with an id of one digit.
LINE: Final = 71
# Longer than the writer goes without looking at its segment.
UNSEEN_SECONDS: Final = 0.06


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A journal with a file layer that can fail."""
    with Bench(tmp_path) as bench:
        yield bench


# --- Rotation ---------------------------------------------------------------------------------------------------------


def test_an_append_that_reaches_the_cap_opens_the_next_segment(bench: Bench) -> None:
    """The record that takes the segment to its cap stands in it; the next segment is there, empty, at once."""
    bench.open(segment_cap=2 * LINE)
    bench.append(1)
    assert segment_sizes(bench.session) == [LINE]
    bench.append(2)
    assert segment_sizes(bench.session) == [2 * LINE, 0]
    bench.append(3)
    assert segment_sizes(bench.session) == [2 * LINE, LINE]
    bench.finish()
    assert head_of(bench.session)["segment"] == 2


def test_one_byte_below_the_cap_is_no_reason_to_rotate(bench: Bench) -> None:
    """The cap is reached when the segment is as large, not before."""
    bench.open(segment_cap=2 * LINE + 1)
    bench.append(1, 2)
    assert segment_sizes(bench.session) == [2 * LINE]
    bench.finish()


def test_a_batch_stays_in_one_segment(bench: Bench) -> None:
    """However far beyond the cap it takes it: rotation comes after."""
    journal = bench.open(segment_cap=1)
    assert journal.append_many([event(number) for number in (1, 2, 3)]) == [1, 2, 3]
    assert segment_sizes(bench.session) == [3 * LINE, 0]
    bench.acknowledged |= {1: 1, 2: 2, 3: 3}
    bench.finish()


def test_the_next_segment_is_open_before_the_old_one_is_closed(bench: Bench) -> None:
    """And the old one, and the new name, are durable before HEAD names the new segment."""
    bench.open(segment_cap=LINE)
    bench.files.log.clear()
    bench.append(1)
    assert bench.journal is not None
    bench.journal.flush()
    old, new = "journal/000001.jsonl", "journal/000002.jsonl"
    done = bench.files.operations()
    order = [("write", old), ("open", new), ("sync", old), ("sync_directory", "s/journal"), ("rename", "s/HEAD")]
    assert [step for step in done if step in order] == order
    assert done.index(("open", new)) < done.index(("close", old))
    bench.finish()


@pytest.mark.parametrize(("number", "reason"), [(errno.EMFILE, "emfile"), (errno.ENOSPC, "enospc")])
def test_a_segment_that_cannot_be_opened_lets_the_old_one_grow(bench: Bench, number: int, reason: str) -> None:
    """The record stands, `rotate` is told, each append tries again, and succeeds when the cause is gone."""
    bench.open(segment_cap=LINE)
    bench.files.fail("open", "000002", number)
    assert bench.append(1, 2) == [1, 2]
    assert bench.told() == [("rotate", reason)] * 2
    assert segment_sizes(bench.session) == [2 * LINE]
    assert bench.journal is not None
    bench.journal.flush()
    assert bench.told() == [("rotate", reason)]
    assert (head_of(bench.session)["offset"], head_of(bench.session)["segment"]) == (2, 1)
    bench.files.repair()
    bench.append(3, 4)
    assert segment_sizes(bench.session) == [3 * LINE, LINE, 0]
    bench.finish()
    assert bench.told() == []


@pytest.mark.parametrize("chain", [False, True])
def test_a_name_taken_by_a_directory_or_a_full_file_is_not_written_over(bench: Bench, *, chain: bool) -> None:
    """What is there stays there; an empty file is taken."""
    bench.open(segment_cap=LINE, chain=chain)
    following = bench.session / "journal" / "000002.jsonl"
    following.mkdir()
    bench.append(1)
    assert bench.told() == [("rotate", "eisdir")]
    following.rmdir()
    following.write_bytes(b"whose is this?")
    bench.append(2)
    assert [stage for stage, _ in bench.told()] == ["rotate"]
    assert following.read_bytes() == b"whose is this?"
    following.write_bytes(b"")
    bench.append(3)
    assert bench.told() == []
    bench.append(4)
    assert following.stat().st_size > 0
    bench.finish()


def test_a_failed_sync_of_the_full_segment_is_not_forgotten(bench: Bench) -> None:
    """HEAD never passes it, whatever follows, until its bytes are written again and synced."""
    journal = bench.open(segment_cap=2 * LINE)
    bench.append(1)
    journal.flush()
    bench.files.fail("sync", "000001", errno.EIO)
    assert bench.append(2, 3, 4) == [2, 3, 4]
    assert set(bench.told()) == {("datasync", "eio")}
    assert sum(segment_sizes(bench.session)) == 4 * LINE
    assert (head_of(bench.session)["offset"], bench.files.durable_offset(bench.session)) == (1, 1)
    bench.files.repair()
    journal.flush()
    assert bench.files.durable_offset(bench.session) == 4
    assert (head_of(bench.session)["offset"], head_of(bench.session)["segment"]) == (4, 2)
    bench.finish()
    assert bench.told() == []


def test_a_new_name_that_is_not_durable_holds_head_back(bench: Bench) -> None:
    """A segment whose name a power loss takes away holds nothing."""
    journal = bench.open(segment_cap=LINE)
    bench.files.fail("sync_directory", "journal", errno.EIO, times=2)
    bench.append(1)
    assert bench.told() == [("datasync", "eio")]
    assert head_of(bench.session)["offset"] == 0
    bench.append(2)
    bench.told()
    journal.flush()
    assert head_of(bench.session)["offset"] == 2
    bench.finish()


# --- The last number --------------------------------------------------------------------------------------------------


def last_segment(bench: Bench, number: int) -> None:
    """A journal whose only segment has this number, and one record."""
    bench.open()
    bench.append(1)
    bench.finish()
    folder = bench.session / "journal"
    (folder / "000001.jsonl").rename(folder / f"{number:06}.jsonl")


def test_after_segment_999999_appends_are_refused(bench: Bench) -> None:
    """There is no name for another segment. It says so, nothing is written, and what there is stays readable."""
    last_segment(bench, 999_998)
    journal = bench.open(segment_cap=2 * LINE)
    assert bench.append(2, 3, 4) == [2, 3, 4]
    assert segment_sizes(bench.session) == [2 * LINE, 2 * LINE]
    assert "999999" in str(bench.refused(5, "append", "other"))
    with pytest.raises(WriteFailed, match="999999"):
        journal.append_many([event(5), event(6)])
    bench.told()
    journal.flush()
    assert (head_of(bench.session)["offset"], head_of(bench.session)["segment"]) == (4, 999_999)
    assert journal.status() == "ok"
    bench.finish()


def test_a_full_last_segment_can_be_opened_and_not_appended_to(bench: Bench) -> None:
    """With a larger cap there is room again."""
    last_segment(bench, 999_999)
    bench.open(segment_cap=LINE)
    bench.refused(2, "append", "other")
    bench.finish()
    bench.open(segment_cap=LINE + 1)
    assert bench.append(2) == [2]
    bench.finish()


# --- What others do ---------------------------------------------------------------------------------------------------


def changed_by_another(bench: Bench, change: str) -> Path:
    """A journal of two records whose open segment something has happened to; a copy of the segment as it was."""
    bench.open()
    bench.append(1, 2)
    segment = bench.session / "journal" / "000001.jsonl"
    copy = bench.base / "copy"
    shutil.copyfile(segment, copy)
    if change == "deleted":
        segment.unlink()
    elif change == "truncated":
        os.truncate(segment, LINE)
    else:
        with segment.open("ab") as file:
            file.write(b'{"id":3,"from":"another"}\n')
    time.sleep(UNSEEN_SECONDS)
    return copy


@pytest.mark.parametrize(("change", "reason"), [("truncated", "estale"), ("grown", "estale"), ("deleted", "enoent")])
def test_a_segment_that_another_has_changed_is_not_appended_to(bench: Bench, change: str, reason: str) -> None:
    """Looked at every 50 ms: nothing is glued to foreign bytes, no hole is left, nothing goes to a deleted file."""
    changed_by_another(bench, change)
    before = segment_sizes(bench.session)
    bench.refused(3, "append", reason)
    time.sleep(UNSEEN_SECONDS)
    bench.refused(4, "append", reason)
    assert segment_sizes(bench.session) == before


@pytest.mark.parametrize("change", ["truncated", "grown"])
def test_appends_go_on_when_the_segment_is_as_it_was(bench: Bench, change: str) -> None:
    """The cause is gone: the next append takes the next id."""
    copy = changed_by_another(bench, change)
    bench.refused(3, "append", "estale")
    segment = bench.session / "journal" / "000001.jsonl"
    segment.write_bytes(copy.read_bytes())
    assert bench.append(4) == [3]
    bench.finish()


def test_a_deleted_segment_is_found_again_at_the_next_opening(bench: Bench) -> None:
    """The file is put back from a copy: opened anew, the journal goes on after it."""
    copy = changed_by_another(bench, "deleted")
    bench.refused(3, "append", "enoent")
    assert bench.journal is not None
    bench.journal.close()
    shutil.copyfile(copy, bench.session / "journal" / "000001.jsonl")
    with open_journal("s", base_dir=bench.base) as journal:
        assert journal.append(event(3)) == 3
    assert [record["payload"]["number"] for record in scan(bench.session).records] == [1, 2, 3]


def test_a_journal_whose_segment_was_deleted_is_not_begun_anew(bench: Bench) -> None:
    """HEAD knows that there were records: opened again, it is refused rather than started over."""
    changed_by_another(bench, "deleted")
    assert bench.journal is not None
    bench.journal.flush()
    bench.journal.close()
    bench.heard.clear()
    journal = bench.open()
    assert journal.status() == "damaged"
    assert segment_sizes(bench.session) == []
