"""Where a salvaged journal goes: to a new place, there whole or not at all, whatever goes wrong."""

from __future__ import annotations

import os
import sys
import tracemalloc
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import InvalidSessionId, JournalUnreadable, RaxolError, WriteFailed
from raxol_otel.journal import open_journal, salvage, scan
from raxol_otel.journal.codec import decode, encode
from tests.conftest import make_journal, on_disk, unprivileged
from tests.exporter_contract import in_own_mounts
from tests.lock_processes import EVENT, started
from tests.test_private import portrait, umask
from tests.test_salvage import CHAINED, PAYLOADS, checkpoint, damaged, put, salvaged

if TYPE_CHECKING:
    from pathlib import Path

# --- The target -------------------------------------------------------------------------------------------------------


def assert_refused(old: Path, new: Path, error: type[RaxolError] = WriteFailed) -> None:
    """Nothing happens, to nothing."""
    before = portrait(old.parent)
    with pytest.raises(error) as caught:
        salvage(old, new)
    assert error is not WriteFailed or str(new) in str(caught.value)
    assert portrait(old.parent) == before


@pytest.mark.parametrize("kind", ["not empty", "file", "link to nothing", "link to a folder", "journal", "pipe"])
def test_a_target_that_is_there_is_refused(tmp_path: Path, kind: str) -> None:
    """And it is left as it was."""
    old, new = damaged(tmp_path), tmp_path / "new"
    (tmp_path / "empty").mkdir()
    if kind == "file":
        new.write_bytes(b"")
    elif kind == "pipe":
        os.mkfifo(new)
    elif kind.startswith("link"):
        new.symlink_to("nowhere" if kind == "link to nothing" else "empty")
    else:
        put(new, {"HEAD" if kind == "journal" else ".hidden": b"{}"})
    assert_refused(old, new)


def test_an_empty_folder_may_be_the_target(tmp_path: Path) -> None:
    """It was made for this."""
    (tmp_path / "new").mkdir(mode=0o755)
    assert len(salvaged(damaged(tmp_path), tmp_path / "new")) == 7


@pytest.mark.parametrize("name", ["a b", "ä", "a:b", "..", "new\n"])
def test_a_name_that_is_no_session_id_is_refused(tmp_path: Path, name: str) -> None:
    """The new journal must be one that can be opened."""
    assert_refused(damaged(tmp_path), tmp_path / "x" / name, InvalidSessionId)


def test_a_missing_parent_is_refused(tmp_path: Path) -> None:
    """Directories above are not made up."""
    assert_refused(damaged(tmp_path), tmp_path / "missing" / "new")


@pytest.mark.parametrize("where", [".", "new", "journal/new", "snapshots"])
def test_a_target_within_the_old_journal_is_refused(tmp_path: Path, where: str) -> None:
    """It would change the evidence."""
    old = damaged(tmp_path)
    (old / "snapshots").mkdir()
    assert_refused(old, old / where)


def test_an_empty_journal_is_not_its_own_target(tmp_path: Path) -> None:
    """The old directory is never touched, even where there is nothing in it."""
    (tmp_path / "old").mkdir()
    assert_refused(tmp_path / "old", tmp_path / "old")


@pytest.mark.parametrize("mask", [0, 0o077, 0o277, 0o777], ids=oct)
def test_it_is_private_under_any_umask(tmp_path: Path, mask: int) -> None:
    """Directories 0700, files 0600, snapshots too; as a private journal is."""
    old = damaged(tmp_path)
    snapshot = encode({"applied": []})
    record: dict[str, Any] = {"id": 1, **checkpoint(snapshot)}
    put(old, {"journal/000001.jsonl": encode(record) + b"\ngarbage\n", record["snapshot_ref"]: snapshot})
    with umask(mask):
        assert salvaged(old, tmp_path / "new") == [record]
    assert len(list((tmp_path / "new" / "snapshots").iterdir())) == 1


# --- What may go wrong ------------------------------------------------------------------------------------------------


def test_an_unreadable_segment_leaves_nothing(tmp_path: Path) -> None:
    """The records before it are not passed off as all there are."""
    old = damaged(tmp_path)
    (old / "journal" / "000002.jsonl").unlink()
    (old / "journal" / "000002.jsonl").mkdir()
    before = portrait(old)
    with pytest.raises(JournalUnreadable):
        salvage(old, tmp_path / "new")
    assert portrait(old) == before
    assert [path.name for path in tmp_path.iterdir()] == ["old"]


def test_a_read_only_target_leaves_nothing() -> None:
    """A folder that may not be written to."""
    with on_disk(make_journal(PAYLOADS)[0]) as old:
        target = old.parent / "target"
        target.mkdir()
        target.chmod(0o555)
        with unprivileged(old), pytest.raises(WriteFailed) as caught:
            salvage(old, target / "new")
        assert (caught.value.reason, list(target.iterdir())) == ("eacces", [])


PYTHON: Final = f"'{sys.executable}' -m tests.lock_processes"


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ('mount -t tmpfs -o size=64k none "$2"', "enospc"),
        ('mount -t tmpfs none "$2" && mount -o remount,ro "$2"', "erofs"),
        ("ulimit -f 40", "efbig"),
    ],
)
def test_a_full_or_read_only_disk_leaves_nothing(tmp_path: Path, before: str, reason: str) -> None:
    """No part of a journal, no temporary folder; the error says why."""
    with open_journal("old", base_dir=tmp_path) as journal:
        journal.append_many([{**EVENT, "payload": {"text": "x" * 1000}}] * 200)
    (tmp_path / "target").mkdir()
    portrayed = portrait(tmp_path / "old")
    run = f'{PYTHON} salvage "$1" "$2/new"; ls -A "$2"; echo listed'
    done = in_own_mounts(f"{{ {before}; }} || exit 99; {run}", tmp_path / "old", tmp_path / "target")
    lines = done.stdout.splitlines()
    reply = decode(lines[-2].encode())
    assert (reply["error"], reply["reason"], lines[-1]) == ("WriteFailed", reason, "listed")
    assert portrait(tmp_path / "old") == portrayed


@CHAINED
def test_killed_at_any_sync_it_leaves_no_target(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - as above
    """There is no journal until it is whole; whoever tries again is not hindered by what is left."""
    old = damaged(tmp_path, chained=chained)
    (old / "HEAD").write_bytes(encode({"segment_cap": 300}))
    before, new = portrait(old), tmp_path / "new"
    for count in range(1, 50):
        with started("salvage_killed", old, new, str(count)) as program:
            program.process.wait()
            if program.process.returncode == 0:
                break
        if new.exists():
            assert salvaged_whole(new, 7)  # killed at the last sync, of the folder above
            for path in sorted(new.rglob("*"), reverse=True):
                path.rmdir() if path.is_dir() else path.unlink()
            new.rmdir()
    else:
        pytest.fail("it syncs without end")
    assert count > 5
    assert salvaged_whole(new, 7)
    assert portrait(old) == before


def salvaged_whole(new: Path, count: int) -> bool:
    """Whether the journal is there with so many records, and can be opened for writing."""
    return scan(new).ok and len(scan(new).records) == count and (new / "HEAD").exists()


def test_there_is_no_segment_after_999999(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it there is no name that is read: what was counted is there, or nothing is."""
    module = sys.modules["raxol_otel.journal.salvage"]
    real = module.open_segment

    def late(files: Any, folder: Path, number: int, end: Any, **options: Any) -> Any:
        return real(files, folder, 999_998 if number == 1 else number, end, **options)

    monkeypatch.setattr(module, "open_segment", late)
    old, new = damaged(tmp_path), tmp_path / "new"
    (old / "HEAD").write_bytes(encode({"segment_cap": 1}))
    try:
        count = salvage(old, new)
    except WriteFailed:
        assert not new.exists()
    else:
        assert len(scan(new).records) == count


def test_what_a_killed_run_left_does_not_stop_the_next(tmp_path: Path) -> None:
    """In a container a process has the same pid each time: its leftover is in its own way."""
    old = damaged(tmp_path)
    leftover = tmp_path / f"new.tmp.{os.getpid()}"
    put(leftover, {"journal/000001.jsonl": b"half a rec"})
    assert salvage(old, tmp_path / "new") == 7
    assert scan(tmp_path / "new").ok


def test_a_long_journal_in_bounded_memory(tmp_path: Path) -> None:
    """Ten thousand records of a kilobyte take no more than one thousand, give or take a batch."""
    peaks: list[int] = []
    for thousands in (1, 10):
        name = f"old{thousands}"
        with open_journal(name, base_dir=tmp_path, segment_cap=2**20) as journal:
            for _ in range(2 * thousands):
                journal.append_many([{**EVENT, "payload": {"text": "x" * 1000}}] * 500, sync=False)
        with max((tmp_path / name / "journal").iterdir()).open("ab") as file:
            file.write(b"garbage\n")
        tracemalloc.start()
        try:
            assert salvage(tmp_path / name, tmp_path / f"new{thousands}") == thousands * 1000
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < peaks[0] + 2**20
    assert len(list((tmp_path / "new10" / "journal").iterdir())) > 10
    assert scan(tmp_path / "new10").records[-1]["id"] == 10_000
