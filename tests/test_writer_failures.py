"""What the writer does when the system fails it: which id is used, what is said, and that the journal stays whole."""

from __future__ import annotations

import errno
import json
import os
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import JournalUnreadable, WriteFailed
from raxol_otel.journal import scan
from tests.writer_files import Bench, event, head_of, segment_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

# The length of the line of `event(1)` with an id of one digit.
LINE: Final = len('{"id":1,"payload":{"number":1},"schema_version":"1.2.0","type":"note"}\n')
REASONS: Final = [
    *((errno.ENOSPC, "enospc"), (errno.EDQUOT, "edquot"), (errno.EIO, "eio"), (errno.EFBIG, "efbig")),
    *((errno.EACCES, "eacces"), (errno.EPERM, "eperm"), (errno.EROFS, "erofs"), (errno.EMFILE, "emfile")),
    *((errno.ESTALE, "estale"), (errno.EINVAL, "other"), (errno.ENXIO, "other")),
]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A journal with a file layer that can fail."""
    with Bench(tmp_path) as bench:
        yield bench


# --- Writes -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("number", "reason"), REASONS)
def test_a_failed_write_uses_no_id(bench: Bench, number: int, reason: str) -> None:
    """It raises, with the reason in the signal; the next append takes the id, at the same place."""
    bench.open()
    bench.append(1)
    bench.files.fail("write", "journal/", number, times=1)
    bench.refused(2, "append", reason)
    assert segment_sizes(bench.session) == [LINE]
    assert bench.append(3) == [2]
    bench.finish()
    assert bench.told() == []


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("count", [0, 1, LINE - 1])
def test_a_short_write_is_cut_back(bench: Bench, count: int, *, chain: bool) -> None:
    """Part of a line is there, then the disk is full: it is gone before the error is raised."""
    bench.open(chain=chain)
    bench.append(1)
    before = segment_sizes(bench.session)
    bench.files.shorten("journal/", count)
    bench.files.fail("write", "journal/", errno.ENOSPC, times=1)
    bench.refused(2, "append", "enospc")
    assert segment_sizes(bench.session) == before
    assert bench.append(3, 4) == [2, 3]
    bench.finish()


def test_a_short_write_without_a_reason_is_a_failure_too(bench: Bench) -> None:
    """What was left out could be written by a second write, but nothing said why the first was short."""
    bench.open()
    bench.files.shorten("journal/", LINE // 2)
    bench.refused(1, "append", "other")
    assert segment_sizes(bench.session) == [0]
    assert bench.append(2) == [1]
    bench.finish()


def test_a_batch_that_does_not_fit_leaves_nothing(bench: Bench) -> None:
    """Two of three lines were written whole: none of them stays, none of the three ids is used."""
    journal = bench.open()
    bench.append(1)
    bench.files.shorten("journal/", 2 * LINE)
    bench.files.fail("write", "journal/", errno.ENOSPC, times=1)
    with pytest.raises(WriteFailed) as failed:
        journal.append_many([event(2), event(3), event(4)])
    assert (failed.value.stage, failed.value.reason, failed.value.offsets) == ("append", "enospc", ())
    assert bench.told() == [("append", "enospc")]
    assert segment_sizes(bench.session) == [LINE]
    assert len(scan(bench.session).records) == 1
    assert bench.append(5) == [2]
    bench.finish()


def half_written(bench: Bench) -> None:
    """A batch of three, two lines of which are written; and they cannot be cut off."""
    journal = bench.open()
    bench.append(1)
    bench.files.shorten("journal/", 2 * LINE)
    bench.files.fail("write", "journal/", errno.EIO, times=1)
    bench.files.fail("truncate", "journal/", errno.EIO)
    with pytest.raises(WriteFailed):
        journal.append_many([event(2), event(3), event(4)])
    assert bench.told() == [("append", "eio")]
    assert segment_sizes(bench.session) == [3 * LINE]


def test_what_cannot_be_cut_off_is_cut_before_the_next_append(bench: Bench) -> None:
    """As long as it cannot be, nothing is appended; then nothing is glued to it, and its ids are given anew."""
    half_written(bench)
    bench.refused(5, "append", "eio")
    assert segment_sizes(bench.session) == [3 * LINE]
    bench.files.repair()
    assert bench.append(6) == [2]
    bench.finish()


def test_a_line_that_could_not_be_cut_off_is_not_seen_by_the_writers_readers(bench: Bench) -> None:
    """`read` shows what was acknowledged, whatever lies beyond in the file."""
    half_written(bench)
    assert bench.journal is not None
    assert [record["id"] for record in bench.journal.read()] == [1]
    assert bench.journal.status() == "ok"


@pytest.mark.parametrize("call", ["flush", "close"])
def test_what_could_not_be_cut_off_is_cut_at_the_latest_by(bench: Bench, call: str) -> None:
    """The refused lines must not come back to life as records when the journal is opened again."""
    half_written(bench)
    bench.files.repair()
    getattr(bench.journal, call)()
    assert segment_sizes(bench.session) == [LINE]
    bench.finish()


# --- Syncs ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [{}, {"sync": None}])
def test_a_failed_sync_keeps_the_id_and_is_told(bench: Bench, options: dict[str, Any]) -> None:
    """The record stands and is read; HEAD does not name it; the next append makes up for it."""
    journal = bench.open()
    bench.append(1)
    journal.flush()
    bench.files.fail("sync", "journal/", errno.EIO, times=1)
    assert bench.append(2, **options) == [2]
    assert bench.told() == [("datasync", "eio")]
    assert (head_of(bench.session)["offset"], bench.files.durable_offset(bench.session)) == (1, 1)
    assert [record["id"] for record in journal.read()] == [1, 2]
    bench.append(3)
    assert bench.files.durable_offset(bench.session) == 3
    bench.finish()
    assert bench.told() == []


def test_a_failed_sync_raises_where_durability_was_asked_for(bench: Bench) -> None:
    """With `sync=True` the error names the offset, which stays: the record is in the journal once, not twice."""
    journal = bench.open()
    bench.files.fail("sync", "journal/", errno.EIO, times=1)
    with pytest.raises(WriteFailed) as failed:
        journal.append(event(1), sync=True)
    assert (failed.value.stage, failed.value.reason, failed.value.offsets) == ("datasync", "eio", (1,))
    bench.acknowledged[1] = 1
    assert bench.told() == [("datasync", "eio")]
    assert bench.append(2, sync=True) == [2]
    bench.finish()


def test_a_batch_that_could_not_be_synced_names_all_its_offsets(bench: Bench) -> None:
    """All of its records stay."""
    journal = bench.open()
    bench.append(1)
    bench.files.fail("sync", "journal/", errno.ENOSPC, times=1)
    with pytest.raises(WriteFailed) as failed:
        journal.append_many([event(2), event(3)], sync=True)
    assert (failed.value.reason, failed.value.offsets) == ("enospc", (2, 3))
    bench.acknowledged |= {2: 2, 3: 3}
    bench.finish()


def test_unsynced_bytes_are_written_again_where_they_were(bench: Bench) -> None:
    """After a failed sync the kernel may have dropped them: the same bytes, the same places, then the sync."""
    bench.open()
    bench.append(1)
    bench.files.fail("sync", "journal/", errno.EIO, times=2)
    bench.append(2, 3)
    bench.files.log.clear()
    bench.append(4)
    lines = (bench.session / "journal" / "000001.jsonl").read_bytes().splitlines(keepends=True)
    done = [(name, at, data) for name, path, at, data in bench.files.log if path.startswith("journal/")]
    assert done.count(("sync", 0, b"")) == 1
    assert done[-1] == ("sync", 0, b"")
    assert {(at, data) for _, at, data in done[:-1]} == {(number * LINE, lines[number]) for number in (1, 2, 3)}
    assert bench.files.durable_offset(bench.session) == 4
    bench.finish()


def test_a_sync_that_keeps_failing_is_told_each_time_and_never_forgotten(bench: Bench) -> None:
    """Every append, flush and close tries it again; HEAD stays where the last good sync was."""
    journal = bench.open()
    bench.append(1)
    journal.flush()
    bench.files.fail("sync", "journal/", errno.EIO)
    assert bench.append(2, 3) == [2, 3]
    assert bench.append(4, sync=False) == [4]
    assert bench.told() == [("datasync", "eio")] * 3
    with pytest.raises(WriteFailed) as failed:
        journal.flush()
    assert (failed.value.stage, failed.value.reason) == ("datasync", "eio")
    assert bench.told() == [("datasync", "eio")]
    journal.close()
    assert bench.told() == [("datasync", "eio")]
    assert head_of(bench.session)["offset"] == 1
    assert [record["id"] for record in scan(bench.session).records] == [1, 2, 3, 4]
    assert bench.files.wrong == []


def test_what_a_failed_sync_left_is_written_again_when_the_journal_is_opened(bench: Bench) -> None:
    """The writer that saw the failure is gone: what lies beyond HEAD may be in the page cache only, and clean there."""
    journal = bench.open()
    bench.append(1)
    journal.flush()
    bench.files.fail("sync", "journal/", errno.EIO)
    bench.append(2, 3)
    journal.close()
    bench.files.repair()
    bench.told()
    bench.open()
    assert bench.files.wrong == []
    bench.append(4)
    bench.finish()


@pytest.mark.parametrize("call", ["append", "flush", "close"])
def test_a_failed_sync_is_made_up_for_by(bench: Bench, call: str) -> None:
    """The next append, flush or close; afterwards everything is durable."""
    journal = bench.open()
    bench.files.fail("sync", "journal/", errno.EIO, times=1)
    bench.append(1)
    if call == "append":
        bench.append(2, sync=False)
    else:
        getattr(journal, call)()
    assert bench.files.durable_offset(bench.session) == len(bench.acknowledged)
    bench.finish()
    assert bench.told() == [("datasync", "eio")]


def test_a_failed_sync_is_tried_again_by_itself(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that appends nothing more still gets its record made durable."""
    monkeypatch.setattr("raxol_otel.journal.writer.RETRY_SECONDS", 0.05)
    bench.open()
    bench.files.fail("sync", "journal/", errno.EIO, times=2)
    bench.append(1)
    deadline = time.monotonic() + 10
    while head_of(bench.session)["offset"] < 1 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert bench.told() == [("datasync", "eio")] * 2
    bench.finish()


def test_too_much_that_waits_for_a_sync_refuses_appends(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: beyond the limit an append that cannot be synced uses no id; and goes on when it can."""
    monkeypatch.setattr("raxol_otel.journal.writer.UNSYNCED_BYTES_MAX", 2 * LINE)
    bench.open()
    bench.files.fail("sync", "journal/", errno.EIO)
    assert bench.append(1, 2, 3) == [1, 2, 3]
    bench.told()
    assert bench.journal is not None
    with pytest.raises(WriteFailed) as failed:
        bench.journal.append(event(4))
    assert (failed.value.stage, failed.value.reason, failed.value.offsets) == ("datasync", "eio", ())
    assert set(bench.told()) == {("datasync", "eio")}
    bench.files.repair()
    assert bench.append(5) == [4]
    bench.finish()


# --- HEAD and meta.json -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("operation", "where", "number", "reason"),
    [
        ("open", "HEAD.tmp", errno.EMFILE, "emfile"),
        ("write", "HEAD.tmp", errno.ENOSPC, "enospc"),
        ("sync", "HEAD.tmp", errno.EIO, "eio"),
        ("rename", "HEAD", errno.EACCES, "eacces"),
    ],
)
def test_a_head_that_cannot_be_written_costs_no_record(
    bench: Bench, operation: str, where: str, number: int, reason: str
) -> None:
    """It is told and tried again; the old one stays, whole, and nothing is left beside it."""
    journal = bench.open()
    bench.append(1)
    bench.files.fail(operation, where, number)
    journal.flush()
    assert bench.told() == [("head", reason)]
    assert head_of(bench.session)["offset"] == 0
    assert list(bench.session.glob("HEAD.tmp.*")) == []
    assert bench.append(2, sync=True) == [2]
    assert bench.told() == [("head", reason)], "tried again at the next append"
    bench.files.repair()
    bench.append(3)
    assert head_of(bench.session)["offset"] == 3
    bench.finish()
    assert bench.told() == []


def test_a_short_head_never_takes_the_old_ones_place(bench: Bench) -> None:
    """Half of it was written: it is thrown away."""
    journal = bench.open()
    bench.append(1)
    bench.files.shorten("HEAD.tmp", 10)
    journal.flush()
    assert [stage for stage, _ in bench.told()] == ["head"]
    assert head_of(bench.session)["offset"] == 0
    bench.finish()


def test_a_head_replaced_by_a_directory(bench: Bench) -> None:
    """Appends go on, each saying that HEAD fails; when the directory is gone, HEAD is there again."""
    journal = bench.open()
    bench.append(1)
    (bench.session / "HEAD").unlink()
    (bench.session / "HEAD").mkdir()
    journal.flush()
    assert bench.append(2) == [2]
    assert bench.told() == [("head", "eisdir")] * 2
    assert scan(bench.session).ok
    (bench.session / "HEAD").rmdir()
    bench.append(3)
    bench.finish()
    assert bench.told() == []


def test_a_meta_replaced_by_a_directory_is_not_opened(bench: Bench) -> None:
    """Whether there is a chain cannot be told. Nothing is written, and the lock is given back."""
    bench.open()
    bench.append(1)
    bench.finish()
    (bench.session / "meta.json").unlink()
    (bench.session / "meta.json").mkdir()
    bench.files.log.clear()
    with pytest.raises(JournalUnreadable) as unreadable:
        bench.open()
    assert unreadable.value.path == bench.session / "meta.json"
    assert bench.files.operations("open", "write", "rename", "truncate") == []
    assert not (bench.session / "writer.lock").exists()
    (bench.session / "meta.json").rmdir()
    bench.open()
    bench.append(2)
    bench.finish()


@pytest.mark.parametrize("operation", ["open", "write", "sync"])
def test_a_meta_that_cannot_be_written(bench: Bench, operation: str) -> None:
    """An unchained journal does without one, and says so."""
    bench.files.fail(operation, "meta.json.tmp", errno.ENOSPC)
    bench.open()
    assert bench.told() == [("meta", "enospc")]
    assert not (bench.session / "meta.json").exists()
    assert bench.append(1) == [1]
    bench.finish()


@pytest.mark.parametrize("operation", ["open", "write", "sync", "rename"])
def test_a_chain_does_not_begin_without_its_meta(bench: Bench, operation: str) -> None:
    """It could never be told from an unchained journal again: not opened, no record, and the next try works."""
    bench.files.fail(operation, "meta.json", errno.EIO)
    with pytest.raises(WriteFailed) as failed:
        bench.open(chain=True)
    assert (failed.value.stage, failed.value.reason) == ("meta", "eio")
    assert bench.told() == [("meta", "eio")]
    assert not (bench.session / "writer.lock").exists()
    assert not (bench.session / "meta.json").exists()
    bench.files.repair()
    bench.open(chain=True)
    assert json.loads((bench.session / "meta.json").read_bytes())["chain"] is True
    bench.append(1, 2)
    bench.finish()
    assert os.listdir(bench.session / "journal") == ["000001.jsonl"]
