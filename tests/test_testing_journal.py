"""`FaultJournal`: each site does what its name says and is counted; a child's end is told; the raw reader is raw."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.errors import WriteFailed, WriterClosed
from raxol_otel.journal import JournalStore, checkpoint, open_journal, scan
from raxol_otel.testing import FOR_GOOD, SITES, FaultJournal
from tests.exporter_contract import environment

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from raxol_otel.testing.child import Method
    from raxol_otel.testing.faults import Site

NOTE: Final = {"type": "note"}
# A ceiling that does not come while a test runs, in milliseconds.
NEVER: Final = 600_000


@pytest.fixture
def journal(tmp_path: Path) -> Generator[FaultJournal]:
    """A journal with nothing armed."""
    with FaultJournal(tmp_path, sync_ceiling_ms=NEVER) as made:
        yield made


@pytest.fixture
def heard() -> Generator[list[Any]]:
    """The metadata of each signal."""
    found: list[Any] = []
    signals.attach("test_testing", lambda signal: found.append(dict(signal.metadata)))
    yield found
    signals.detach("test_testing")


def ids(journal: FaultJournal) -> list[int]:
    """The ids on disk."""
    return [record["id"] for record in journal.raw_records()]


# --- The sites --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", ["append_fail", "short_write"])
@pytest.mark.parametrize("error", [None, errno.EDQUOT])
def test_a_write_that_fails_appends_nothing(
    journal: FaultJournal, heard: list[Any], site: Site, error: int | None
) -> None:
    """The append raises with the errno's reason and stage, and the next one takes its offset."""
    journal.append(NOTE)
    journal.arm(site, error=error)
    with pytest.raises(WriteFailed) as failed:
        journal.append(NOTE)
    reason = "enospc" if error is None else "edquot"
    assert (failed.value.stage, failed.value.reason) == ("append", reason)
    assert heard == [{"stage": "append", "reason": reason, "session_id": "session"}]
    assert ids(journal) == [1]
    assert journal.append(NOTE) == 2
    assert (ids(journal), journal.fired(site)) == ([1, 2], 1)


def test_a_short_write_really_writes(journal: FaultJournal, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half of the line is in the file until the writer cuts it."""
    journal.append(NOTE)
    seen: list[list[bytes]] = []
    cut = journal.files.truncate

    def truncate(descriptor: int, size: int) -> None:
        seen.append(journal.raw_lines())
        cut(descriptor, size)

    monkeypatch.setattr(journal.files, "truncate", truncate)
    journal.arm("short_write")
    with pytest.raises(WriteFailed):
        journal.append(NOTE)
    whole, half = seen[0]
    assert whole.startswith(half[:6])
    assert len(half) == len(whole) // 2
    assert journal.raw_lines() == [whole]


def test_an_open_that_fails(journal: FaultJournal) -> None:
    """The journal is not opened; the next try is."""
    journal.arm("open_fail", error=errno.EMFILE)
    with pytest.raises(WriteFailed) as failed:
        journal.open()
    assert failed.value.reason == "emfile"
    assert journal.append(NOTE) == 1


def test_a_sync_that_fails_leaves_the_record(journal: FaultJournal) -> None:
    """With `sync=True` the append raises and says which offsets stand; what is then written again is no append."""
    journal.open()
    journal.arm("sync_fail", times=2)
    with pytest.raises(WriteFailed) as failed:
        journal.append(NOTE, sync=True)
    assert (failed.value.stage, failed.value.reason, failed.value.offsets) == ("datasync", "eio", (1,))
    with pytest.raises(WriteFailed):
        journal.flush()
    journal.arm("append_fail")
    journal.flush()
    assert journal.fired("append_fail") == 0
    assert journal.raw_head() == {"offset": 1, "schema_version": "1.2.0", "segment": 1, "segment_cap": 8 * 2**20}
    with pytest.raises(WriteFailed):
        journal.append(NOTE)


def test_a_rotation_that_fails_is_no_lost_record(journal: FaultJournal, heard: list[Any]) -> None:
    """The full segment is appended to, and the next one is made when it can be."""
    journal.open(segment_cap=1)
    journal.arm("rotate_fail", times=2, error=errno.EACCES)
    assert [journal.append(NOTE) for _ in range(4)] == [1, 2, 3, 4]
    assert [one["stage"] for one in heard] == ["rotate", "rotate"]
    assert sorted(os.listdir(journal.path / "journal"))[0:2] == ["000001.jsonl", "000002.jsonl"]
    assert ids(journal) == [1, 2, 3, 4]


def test_a_writer_that_is_down(journal: FaultJournal) -> None:
    """Every call says so until the journal is opened again; nothing that was acknowledged is gone."""
    journal.append(NOTE)
    journal.arm("writer_down")
    for _ in range(2):
        with pytest.raises(WriterClosed):
            journal.append(NOTE)
    with pytest.raises(WriterClosed):
        checkpoint.write(journal.journal, None)
    assert journal.fired("writer_down") == 1
    assert journal.open().append(NOTE) == 2


def test_for_good_is_until_it_is_disarmed(journal: FaultJournal) -> None:
    """A disk that stays full, until it does not."""
    journal.arm("append_fail", times=FOR_GOOD)
    for _ in range(3):
        with pytest.raises(WriteFailed):
            journal.append(NOTE)
    assert journal.fired("append_fail") == 3
    journal.disarm("append_fail")
    assert journal.append(NOTE) == 1


# --- Dying ------------------------------------------------------------------------------------------------------------


def die_in_an_append(journal: FaultJournal) -> None:
    """Two appends, and one in the middle of which the process dies."""
    journal.append_many([NOTE, NOTE], sync=True)
    journal.arm("kill_after_write_before_head")
    journal.append(NOTE)


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_killed_after_the_write(journal: FaultJournal, method: Method) -> None:
    """The record is there, though its append never returned and HEAD does not know of it; the journal goes on."""
    ended = journal.run_in_child(die_in_an_append, method=method)
    assert (ended.was_killed, ended.acknowledged, ended.error) == (True, [1, 2], None)
    assert ended.fired == {"kill_after_write_before_head": 1}
    assert ids(journal) == [1, 2, 3]
    assert (journal.raw_head() or {})["offset"] < 3
    assert journal.append(NOTE) == 4
    assert journal.acknowledged == [1, 2, 4]


def test_killed_after_head(journal: FaultJournal) -> None:
    """HEAD names the record, though whoever waited was not told. Opening writes HEAD too, and is not meant."""
    journal.arm("kill_after_head_before_publish")

    def body(child: FaultJournal) -> None:
        child.open()
        child.append(NOTE)
        child.flush()
        child.append(NOTE)

    ended = journal.run_in_child(body)
    assert (ended.was_killed, ended.acknowledged) == (True, [1])
    assert (journal.raw_head() or {})["offset"] == 1
    assert ids(journal) == [1]
    assert journal.status() == "ok"


def test_a_child_that_lives(journal: FaultJournal) -> None:
    """It closes the journal; what it armed and what fired counts in the parent."""

    def body(child: FaultJournal) -> None:
        child.arm("append_fail")
        child.arm("sync_fail")
        child.disarm("sync_fail")
        with pytest.raises(WriteFailed):
            child.append(NOTE)
        child.append(NOTE)

    ended = journal.run_in_child(body)
    assert (ended.exit_code, ended.acknowledged, ended.fired) == (0, [1], {"append_fail": 1})
    assert journal.fired("append_fail") == 1
    assert not (journal.path / "writer.lock").exists()


def test_a_child_that_fails_tells_why(journal: FaultJournal) -> None:
    """What it raised is told, pytest's own failures too."""

    def body(_: FaultJournal) -> None:
        pytest.fail("for this reason")

    ended = journal.run_in_child(body)
    assert (ended.exit_code, ended.was_killed) == (1, False)
    assert "for this reason" in (ended.error or "")


def test_a_child_that_hangs_is_killed(journal: FaultJournal) -> None:
    """A test does not wait for ever, and the child does not live on."""

    def body(child: FaultJournal) -> None:
        child.append(NOTE)
        (child.base_dir / "pid").write_text(str(os.getpid()))
        time.sleep(600)

    with pytest.raises(TimeoutError):
        journal.run_in_child(body, seconds=2)
    pid = int((journal.base_dir / "pid").read_text())
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


def test_nobody_kills_the_process_of_the_tests(journal: FaultJournal) -> None:
    """A killing site is refused where it would end the test run."""
    journal.arm("kill_after_write_before_head")
    with pytest.raises(RuntimeError, match="run_in_child"):
        journal.append(NOTE)
    journal.disarm()
    journal.append(NOTE)
    with pytest.raises(RuntimeError, match="run_in_child"):
        journal.arm("kill_after_head_before_publish")
    with pytest.raises(RuntimeError, match="close the journal"):
        journal.run_in_child(die_in_an_append)


# --- Counting ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("site", SITES)
def test_what_never_fired_fails_the_test(tmp_path: Path, site: Site) -> None:
    """A test that armed a fault and never met it has shown nothing."""
    journal = FaultJournal(tmp_path)
    journal.assert_all_fired()
    journal.arm(site)
    with pytest.raises(AssertionError, match=rf"{site} \(fired 0, armed 1\)"):
        journal.assert_all_fired()


def test_each_time_counts(tmp_path: Path) -> None:
    """Armed twice and fired once is not all; armed for good, once is enough."""
    journal = FaultJournal(tmp_path)
    journal.arm("append_fail", times=2)
    with pytest.raises(WriteFailed):
        journal.append(NOTE)
    with pytest.raises(AssertionError, match="fired 1, armed 2"):
        journal.__exit__(None, None, None)
    with FaultJournal(tmp_path) as journal:
        journal.arm("append_fail", times="for good")
        with pytest.raises(WriteFailed):
            journal.append(NOTE)


def test_a_test_that_failed_keeps_its_own_reason(tmp_path: Path) -> None:
    """What was raised in the block is not hidden by what never fired."""
    journal = FaultJournal(tmp_path)
    journal.arm("append_fail")
    journal.__exit__(ZeroDivisionError, None, None)


@pytest.mark.parametrize(
    ("site", "options"),
    [
        ("no_such_site", {}),
        ("append_fail", {"times": 0}),
        ("append_fail", {"times": True}),
        ("append_fail", {"times": "always"}),
        ("append_fail", {"error": -1}),
        ("writer_down", {"error": errno.EIO}),
        ("kill_after_write_before_head", {"error": errno.EIO}),
    ],
)
def test_what_makes_no_sense_is_not_armed(journal: FaultJournal, site: Any, options: dict[str, Any]) -> None:
    """A slip is told at once, not taken for a fault that never fires."""
    with pytest.raises(ValueError, match=r"no fault site|times is|errno"):
        journal.arm(site, **options)


# --- As a journal -----------------------------------------------------------------------------------------------------


def test_it_is_a_store_like_any_other(journal: FaultJournal) -> None:
    """Code under test takes it for the journal that it is."""
    store: JournalStore = journal
    assert isinstance(store, JournalStore)
    assert store.append_checked(NOTE, lambda records: len(records) == 0) == 1
    assert store.append_many([NOTE, NOTE]) == [2, 3]
    store.flush()
    assert [record["id"] for record in store.read(2)] == [2, 3]
    assert store.status() == "ok"
    assert store.session_id == journal.path.name == "session"
    store.close()
    with pytest.raises(WriterClosed):
        store.append(NOTE)
    assert journal.raw_records() == scan(journal.path).records


def test_a_journal_that_is_open_elsewhere_is_refused(journal: FaultJournal) -> None:
    """Its writer knows of no faults: none would ever fire."""
    with open_journal("session", base_dir=journal.base_dir), pytest.raises(RuntimeError, match="without any faults"):
        journal.append(NOTE)
    assert journal.append(NOTE) == 1


# --- Reading raw ------------------------------------------------------------------------------------------------------


def test_raw_is_what_is_there(journal: FaultJournal) -> None:
    """Every line of every segment in order, torn or not; nothing is judged but JSON itself."""
    folder = journal.path / "journal"
    assert (journal.raw_lines(), journal.raw_records(), journal.raw_head()) == ([], [], None)
    folder.mkdir(parents=True)
    (folder / "000002.jsonl").write_bytes(b'{"id":9}\n{"id"')
    (folder / "000001.jsonl").write_bytes(b'{"id":3}\n\n{"id":1,"text":"\xe2\x80\xa8"}\n')
    (folder / "000001.jsonl.bak").write_bytes(b"no")
    assert journal.raw_lines()[3:] == [b'{"id":9}\n', b'{"id"']
    assert ids(journal) == [3, 1, 9]
    (journal.path / "HEAD").write_bytes(b"[]")
    with pytest.raises(ValueError, match="no object"):
        journal.raw_head()
    (folder / "000003.jsonl").write_bytes(b"oh\n")
    with pytest.raises(ValueError, match="no JSON"):
        journal.raw_records()


def test_raw_uses_nothing_of_the_package() -> None:
    """A reader that shares code with the one under test would err as it does."""
    script = "import sys, json, raxol_otel.testing.raw; print(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], env=environment(), capture_output=True, check=True, timeout=60
    )
    ours = {name for name in json.loads(done.stdout) if name.split(".")[0] in {"raxol_otel", "orjson"}}
    assert ours == {"raxol_otel", "raxol_otel.testing", "raxol_otel.testing.raw"}
