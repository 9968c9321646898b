"""What a mutation run found that no test of the writer said: each notices a change of one line that none did before."""

from __future__ import annotations

import errno
import json
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel import signals
from raxol_otel.errors import CheckRefused, JournalDamaged, WriteFailed
from raxol_otel.journal import open_journal
from raxol_otel.journal.chain import GENESIS
from raxol_otel.journal.failure import reason_of
from raxol_otel.journal.files import OS_FILES, Files
from raxol_otel.journal.layout import is_session_directory, segments
from raxol_otel.journal.output import Output
from raxol_otel.journal.request import Append, joined
from raxol_otel.journal.segment import End, Segment, open_segment
from raxol_otel.journal.store import is_failing, unsynced_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NEVER = 600_000


class Disk(Files):
    """A disk that remembers where was written, in the segments, and that syncs nothing while it is broken."""

    def __init__(self) -> None:
        self.written: list[tuple[int, bytes]] = []
        self.is_broken = False

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """Write, and remember."""
        self.written.append((position, data))
        return super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        """Sync, or fail."""
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_writer_mutants", found.append)
    yield found
    signals.detach("test_writer_mutants")


def segment_on(files: Files, folder: Path) -> Segment:
    """A new segment."""
    return open_segment(files, folder, 1, End(0, 0, None), mode=0o666, is_new=True)


# --- A segment --------------------------------------------------------------------------------------------------------


def test_what_a_failed_sync_left_is_written_again_once_and_before_anything_follows(tmp_path: Path) -> None:
    """The kernel may have dropped it; after that an append is one write again."""
    disk = Disk()
    segment = segment_on(disk, tmp_path)
    segment.append(b"one\n", 1, None)
    disk.is_broken = True
    with pytest.raises(OSError, match="Input/output error"):
        segment.sync()
    segment.append(b"two\n", 2, None)
    segment.append(b"three\n", 3, None)
    segment.close()
    assert disk.written == [(0, b"one\n"), (0, b"one\n"), (4, b"two\n"), (8, b"three\n")]


def test_what_is_durable_is_not_kept_and_what_is_not_is(tmp_path: Path) -> None:
    """Forgetting some of the unsynced writes leaves the others, and counts their bytes; forgetting all leaves none."""
    segment = segment_on(OS_FILES, tmp_path)
    for number, data in enumerate((b"one\n", b"three\n", b"seven\n"), 1):
        segment.append(data, number, None)
    segment.forget(2)
    assert (segment.unsynced, segment.unsynced_bytes) == ([(10, b"seven\n")], 6)
    segment.forget(1)
    assert (segment.unsynced, segment.unsynced_bytes) == ([], 0)
    segment.close()


def test_the_next_segment_takes_no_name_that_has_content(tmp_path: Path) -> None:
    """An empty file's name may be taken; another's is told with its path."""
    path = tmp_path / "000001.jsonl"
    path.touch()
    segment_on(OS_FILES, tmp_path).close()
    path.write_bytes(b"x")
    with pytest.raises(FileExistsError, match="there already, and not empty") as caught:
        segment_on(OS_FILES, tmp_path)
    assert (caught.value.errno, caught.value.filename) == (errno.EEXIST, str(path))


# --- A writer ---------------------------------------------------------------------------------------------------------


def test_a_new_writer_is_not_failing_until_it_fails(tmp_path: Path) -> None:
    """It says so from its first moment, and again once what failed has been made up for."""
    disk = Disk()
    with open_journal("s", base_dir=tmp_path, files=disk, sync_ceiling_ms=NEVER) as journal:
        assert is_failing() is False
        disk.is_broken = True
        with pytest.raises(WriteFailed):
            journal.append({"type": "note"}, sync=True)
        assert is_failing() is True
        disk.is_broken = False
        journal.flush()
        assert is_failing() is False


def test_a_writer_that_may_not_cut_says_why(tmp_path: Path) -> None:
    """The torn tail of a segment that may not be written is no damage; nothing can be appended behind it."""
    folder = tmp_path / "s" / "journal"
    folder.mkdir(parents=True)
    path = folder / "000001.jsonl"
    path.write_bytes(b'{"id":1}\n{"id":')
    (folder / "away").mkdir()

    class Grown(Files):
        """Somebody appends to the segment between its reading and its repair."""

        def unlink(self, path: Path) -> None:
            """Remove what a crash left, which is done in between."""
            super().unlink(path)
            with (folder / "000001.jsonl").open("ab") as segment:
                segment.write(b"2}\n")

    (tmp_path / "s" / "HEAD.tmp.1.1").touch()
    with pytest.raises(WriteFailed, match=r"^s: cannot cut the torn tail: its segment may not be written$") as caught:
        open_journal("s", base_dir=tmp_path, files=Grown())
    assert (caught.value.stage, caught.value.reason) == ("append", "eacces")
    assert path.read_bytes() == b'{"id":1}\n{"id":2}\n'


def test_a_journal_that_has_lost_its_tail_is_told_in_full(tmp_path: Path, heard: list[signals.Signal]) -> None:
    """HEAD's place, the cause and the last good offset, in the signal and in the error of an append."""
    folder = tmp_path / "s" / "journal"
    folder.mkdir(parents=True)
    (folder / "000001.jsonl").write_bytes(b'{"id":1}\n')
    (tmp_path / "s" / "HEAD").write_bytes(b'{"offset":3,"segment":1}')
    with open_journal("s", base_dir=tmp_path) as journal, pytest.raises(JournalDamaged) as caught:
        journal.append({"type": "note"})
    said = "below_head (HEAD names offset 3, the last record is 1: the journal has lost its tail); last good offset 1"
    assert str(caught.value) == f"damaged at HEAD line 1, byte 0: {said}"
    (told,) = [one for one in heard if one.name == signals.SIGNAL_DAMAGED]
    assert (told.metadata["cause"], told.metadata["last_offset"]) == ("below_head", 1)


def test_the_way_to_a_new_base_has_the_usual_modes(tmp_path: Path) -> None:
    """Folders that are made on the way are like any that a program makes: less the process's mask."""
    before = os.umask(0o022)
    try:
        open_journal("s", base_dir=tmp_path / "a" / "b").close()
    finally:
        os.umask(before)
    assert [(tmp_path / name).stat().st_mode & 0o7777 for name in ("a", "a/b", "a/b/s")] == [0o755] * 3


def test_all_that_a_dead_writer_may_have_left_is_written_again(tmp_path: Path) -> None:
    """From the segment that HEAD names on, all of it: also what is larger than one chunk."""
    folder = tmp_path / "s" / "journal"
    folder.mkdir(parents=True)
    lines = [b'{"id":%d,"text":"%b"}\n' % (number, b"x" * 1000) for number in range(1, 3001)]
    (folder / "000001.jsonl").write_bytes(b"".join(lines[:1]))
    (folder / "000002.jsonl").write_bytes(b"".join(lines[1:]))
    (tmp_path / "s" / "HEAD").write_bytes(b'{"offset":1,"segment":2}')
    disk = Disk()
    open_journal("s", base_dir=tmp_path, files=disk).close()
    content = b"".join(lines[1:])
    again = [(position, data) for position, data in disk.written if content[position : position + len(data)] == data]
    assert [position for position, _ in again] == [0, 2**20, 2 * 2**20]
    assert b"".join(data for _, data in again) == content == (folder / "000002.jsonl").read_bytes()
    assert lines[0] not in [data for _, data in disk.written]


# --- A handle ---------------------------------------------------------------------------------------------------------


def test_a_handle_shows_whether_it_can_be_written_to(tmp_path: Path) -> None:
    """Open until it is closed, or until the one that opened the journal is."""
    journal = open_journal("s", base_dir=tmp_path)
    joined = open_journal("s", base_dir=tmp_path)
    path = str(tmp_path / "s")
    assert repr(journal) == repr(joined) == f"<Journal {path!r} open>"
    joined.close()
    assert (repr(journal), repr(joined)) == (f"<Journal {path!r} open>", f"<Journal {path!r} closed>")
    again = open_journal("s", base_dir=tmp_path)
    journal.close()
    assert (repr(journal), repr(again)) == (f"<Journal {path!r} closed>", f"<Journal {path!r} closed>")


def test_the_title_goes_into_a_new_journals_meta(tmp_path: Path) -> None:
    """With the working directory and the branch, as given."""
    open_journal("s", base_dir=tmp_path, title="a title", cwd="/somewhere", git_branch="a-branch").close()
    meta = json.loads((tmp_path / "s" / "meta.json").read_bytes())
    assert (meta["title"], meta["cwd"], meta["git_branch"]) == ("a title", "/somewhere", "a-branch")


def test_a_snapshot_that_cannot_be_written_is_told(tmp_path: Path, heard: list[signals.Signal]) -> None:
    """By the error and by a signal, with the stage and the reason; the folder is made where it is missing."""
    with open_journal("s", base_dir=tmp_path) as journal:
        (journal.path / "snapshots").rmdir()
        journal.write_snapshot("a.json", b"{}")
        assert (journal.path / "snapshots" / "a.json").read_bytes() == b"{}"
        (journal.path / "snapshots" / "b.json").mkdir()
        with pytest.raises(WriteFailed, match=r"^s: the snapshot was not written: ") as caught:
            journal.write_snapshot("b.json", b"{}")
    assert (caught.value.stage, caught.value.reason) == ("snapshot", "eisdir")
    told = [dict(one.metadata) for one in heard if one.name == signals.SIGNAL_WRITE_FAILED]
    assert told == [{"stage": "snapshot", "reason": "eisdir", "session_id": "s"}]


# --- Reading through a handle -----------------------------------------------------------------------------------------


def test_records_are_those_of_the_moment_they_were_asked_for(tmp_path: Path) -> None:
    """What is appended later is left out, be it one record or more; another reading has it."""
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append_many([{"type": "note"}] * 3)
        for _ in range(2):
            records = journal.records()
            before = len(records)
            journal.append({"type": "note"})
            assert [record["id"] for record in records] == list(range(1, before + 1))
        assert [record["id"] for record in journal.records().after(2)] == [3, 4, 5]


def test_damage_behind_an_open_handle_is_told_once_after_the_last_good_record(
    tmp_path: Path, heard: list[signals.Signal]
) -> None:
    """Each record comes once, then the error; one signal; and nothing can be appended from then on."""
    found: list[int] = []
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append_many([{"type": "note"}] * 3)
        with (journal.path / "journal" / "000001.jsonl").open("ab") as segment:
            segment.write(b'{"id":5}\n')
        with pytest.raises(JournalDamaged, match="id_gap"):
            found.extend(record["id"] for record in journal.records())
        assert (found, [one.name for one in heard]) == ([1, 2, 3], [signals.SIGNAL_DAMAGED])
        with pytest.raises(JournalDamaged):
            journal.append({"type": "note"})


@pytest.mark.parametrize("index", [0, 2])
def test_damage_that_was_a_write_in_progress_is_none(tmp_path: Path, heard: list[signals.Signal], index: int) -> None:
    """What looks damaged is looked at again when nobody writes; the records go on where they were."""
    found: list[int] = []
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append_many([{"type": "note"}] * 3)
        path = journal.path / "journal" / "000001.jsonl"
        whole = path.read_bytes()
        lines = whole.splitlines(keepends=True)
        path.write_bytes(b"".join([*lines[:index], b"?" * (len(lines[index]) - 1) + b"\n", *lines[index + 1 :]]))
        reader = threading.Thread(target=lambda: found.extend(record["id"] for record in journal.records()))

        def check(_records: object) -> bool:
            # The writer is held: the reader has the records before it, sees the damage, and waits.
            reader.start()
            while len(found) < index:
                time.sleep(0.001)
            reader.join(0.1)
            path.write_bytes(whole)
            return False

        with pytest.raises(CheckRefused):
            journal.append_checked({"type": "note"}, check)
        reader.join()
        assert (found, heard) == ([1, 2, 3], [])
        assert journal.append({"type": "note"}) == 4


# --- What is told while it writes -------------------------------------------------------------------------------------


def test_the_age_of_what_is_not_durable(tmp_path: Path) -> None:
    """Nought when all is; else the seconds since the oldest such record was written, whatever came after it."""
    with open_journal("s", base_dir=tmp_path, sync_ceiling_ms=NEVER) as journal:
        assert unsynced_seconds() == 0
        journal.append({"type": "note"}, sync=False)
        time.sleep(0.05)
        journal.append({"type": "note"}, sync=False)
        assert 0.05 <= unsynced_seconds() < 60
        journal.flush()
        assert unsynced_seconds() == 0


def test_a_failure_is_one_line_of_the_journals_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """With the session, the stage and the reason in words."""
    disk = Disk()
    with open_journal("s", base_dir=tmp_path, files=disk, sync_ceiling_ms=NEVER) as journal:
        disk.is_broken = True
        with pytest.raises(WriteFailed):
            journal.append({"type": "note"}, sync=True)
        disk.is_broken = False
    said = ("raxol_otel.journal", 30, "journal s: datasync failed: Input/output error")
    assert caplog.record_tuples == [said]


def test_an_errno_without_a_name_is_another_reason() -> None:
    """Known names in lower case, `other` for the rest."""
    found = [reason_of(OSError(number, "")) for number in (errno.ENOSPC, errno.EIO, errno.ENOTEMPTY, 0, 9999)]
    assert [*found, reason_of(OSError())] == ["enospc", "eio", "other", "other", "other", "other"]


# --- Rounds and rotation ----------------------------------------------------------------------------------------------


class Marks:
    """Stands for whoever follows a journal: each record is stamped with how many events its call had."""

    def context(self, events: list[dict[str, Any]]) -> int:
        """What the appending thread knows."""
        return len(events)

    def stamp(self, record: dict[str, Any], context: int) -> None:
        """Mark one."""
        record["of"] = context


@pytest.mark.parametrize("followed", [(False, False), (True, True), (True, False), (False, True)])
def test_requests_of_one_round_are_lines_in_their_order(followed: tuple[bool, bool]) -> None:
    """Ids and links run through them all; each knows its own; what follows one marks its records only."""
    events: list[list[dict[str, Any]]] = [[{"n": 1}, {"n": 2}], [{"n": 3}]]
    feeds: list[Any] = [Marks() if is_followed else None for is_followed in followed]
    requests = [Append(some, feed, is_wanted=True) for some, feed in zip(events, feeds, strict=True)]
    data, last, tip = joined(requests, End(100, 6, GENESIS), "1.2.0")
    assert [list(request.offsets) for request in requests] == [[7, 8], [9]]
    records = [json.loads(line) for line in data.splitlines()]
    assert [(one["id"], one["n"], one["schema_version"], one.get("of")) for one in records] == [
        (7, 1, "1.2.0", 2 if followed[0] else None),
        (8, 2, "1.2.0", 2 if followed[0] else None),
        (9, 3, "1.2.0", 1 if followed[1] else None),
    ]
    assert (last, tip, data[-1:]) == (9, records[-1]["hash"], b"\n")
    assert [one["prev_hash"] for one in records] == [GENESIS, *(one["hash"] for one in records[:-1])]


def test_a_full_segment_is_left_at_the_next_append(tmp_path: Path) -> None:
    """Also where nobody ever asks for a sync: it is made durable first."""
    with open_journal("s", base_dir=tmp_path, segment_cap=10, sync_ceiling_ms=NEVER) as journal:
        for _ in range(3):
            journal.append({"type": "note"}, sync=False)
        assert [path.name[:6] for path in segments(journal.path)] == ["000001", "000002", "000003", "000004"]


def test_a_round_does_not_reach_a_segments_end(tmp_path: Path) -> None:
    """What would fill the segment is not written with the others; it takes the way of single appends."""
    segment = segment_on(OS_FILES, tmp_path)
    output = Output(OS_FILES, tmp_path, segment, cap=10, mode=0o666)
    assert output.append_within(b"12345\n", 1, None)
    assert not output.append_within(b"789\n", 2, None)
    assert (output.end, segment.path.read_bytes()) == (End(6, 1, None), b"12345\n")
    assert output.append_within(b"78\n", 2, None)
    output.close()


def test_what_looks_like_a_session(tmp_path: Path) -> None:
    """A folder of segments, or meta.json or HEAD beside what stands in its place, or both without it; nothing less."""
    found: dict[tuple[str, ...], bool] = {}
    for names in ((), ("journal",), ("journal", "HEAD"), ("journal", "meta.json"), ("HEAD",), ("HEAD", "meta.json")):
        folder = tmp_path / "-".join(["s", *names])
        folder.mkdir()
        for name in names:
            (folder / name).touch()
        found[names] = is_session_directory(folder)
    assert [names for names, is_one in found.items() if is_one] == [
        ("journal", "HEAD"),
        ("journal", "meta.json"),
        ("HEAD", "meta.json"),
    ]
    (tmp_path / "whole" / "journal").mkdir(parents=True)
    assert is_session_directory(tmp_path / "whole")


def test_what_a_new_journals_head_says(tmp_path: Path) -> None:
    """The cap of 8 MiB and the schema that the format names."""
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append({"type": "note"}, sync=True)
    head = json.loads((tmp_path / "s" / "HEAD").read_bytes())
    assert head == {"offset": 1, "segment": 1, "segment_cap": 8388608, "schema_version": "1.2.0"}
