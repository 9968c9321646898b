"""What a mutation run found that no test of opening, and of failures while writing, said."""

from __future__ import annotations

import errno
import functools
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raxol_otel import signals
from raxol_otel.errors import WriteFailed
from raxol_otel.journal import open_journal
from raxol_otel.journal.files import Files
from raxol_otel.journal.lock import acquire
from tests.conftest import ROOT, make_journal, on_disk, unprivileged

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NEVER = 600_000


class Disk(Files):
    """A disk that is full, and cuts nothing either, while it is broken."""

    is_broken = False
    failures = 0

    def _fail(self) -> None:
        if self.is_broken:
            self.failures += 1
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """Write, or fail."""
        self._fail()
        return super().write(descriptor, data, position)

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut, or fail."""
        self._fail()
        super().truncate(descriptor, size)


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_opening_mutants", found.append)
    yield found
    signals.detach("test_opening_mutants")


def test_an_earlier_segment_that_may_only_be_read_is_synced_all_the_same() -> None:
    """What a dead writer left in it cannot be written again; the journal goes on in the last one."""
    files = {"journal/000001.jsonl": b'{"id":1}\n', "journal/000002.jsonl": b'{"id":2}\n'}
    with on_disk({**files, "HEAD": b'{"offset":1,"segment":1}', "meta.json": b"{}"}) as session:
        for path in (session, session / "journal", session / "journal" / "000002.jsonl", session / "HEAD"):
            path.chmod(0o777)
        (session / "journal" / "000001.jsonl").chmod(0o444)
        with unprivileged(session), open_journal("session", base_dir=session.parent) as journal:
            assert journal.append({"type": "note"}) == 3


def test_a_folder_on_the_way_that_cannot_be_looked_into_is_passed() -> None:
    """One may be made in it all the same; its name cannot be made durable, which is no reason to refuse."""
    with on_disk({}) as folder:
        closed = folder / "closed"
        closed.mkdir()
        closed.chmod(0o733)
        with unprivileged(closed):
            open_journal("s", base_dir=closed / "a" / "b").close()
            open_journal("s", base_dir=closed / "c").close()
        assert (closed / "a" / "b" / "s" / "HEAD").exists()


def test_a_disk_that_fails_while_a_dead_writers_records_are_written_again(tmp_path: Path) -> None:
    """The opening fails with its stage and reason, and leaves no descriptor."""
    folder = tmp_path / "s" / "journal"
    folder.mkdir(parents=True)
    (folder / "000001.jsonl").write_bytes(b'{"id":1}\n')
    disk = Disk()
    disk.is_broken = True
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(WriteFailed, match=r"^s: cannot sync ") as caught:
        open_journal("s", base_dir=tmp_path, files=disk)
    assert (caught.value.stage, caught.value.reason) == ("datasync", "enospc")
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_damaged_chained_journal_is_joined_as_what_it_is() -> None:
    """It is open for reading, and whoever asks for a chain is not told that there is none."""
    files, _ = make_journal([1, 2], chained=True)
    files["journal/000001.jsonl"] += b"{}\n"
    with on_disk(files) as session, open_journal("session", base_dir=session.parent) as journal:
        joined = open_journal("session", base_dir=session.parent, chain=True)
        assert joined.last_offset == journal.last_offset == 2


def test_there_is_no_name_after_segment_999999(tmp_path: Path, heard: list[signals.Signal]) -> None:
    """Full, it takes nothing any more, and says so."""
    folder = tmp_path / "s" / "journal"
    folder.mkdir(parents=True)
    (folder / "999999.jsonl").write_bytes(b'{"id":1}\n')
    with open_journal("s", base_dir=tmp_path, segment_cap=5) as journal:
        with pytest.raises(WriteFailed, match=r"^s: nothing was appended: segment 999999 is full") as caught:
            journal.append({"type": "note"})
        assert (caught.value.stage, caught.value.reason, caught.value.offsets) == ("append", "other", ())
        assert [dict(one.metadata)["stage"] for one in heard] == ["append"]
    assert [path.name for path in folder.iterdir()] == ["999999.jsonl"]


def test_what_cannot_be_cut_is_told_at_every_flush_until_it_can(tmp_path: Path, heard: list[signals.Signal]) -> None:
    """A failed append names its session; what it left is a failure of stage `append`, and no record is lost by it."""
    disk = Disk()
    with open_journal("s", base_dir=tmp_path, files=disk, sync_ceiling_ms=NEVER) as journal:
        journal.append({"type": "note"})
        disk.is_broken = True
        with pytest.raises(WriteFailed, match=r"^s: nothing was appended: No space left on device$"):
            journal.append({"type": "note"})
        heard.clear()
        journal.flush()
        told = [dict(one.metadata) for one in heard if dict(one.metadata)["stage"] == "append"]
        assert told == [{"stage": "append", "reason": "enospc", "session_id": "s"}]
        disk.is_broken = False
        heard.clear()
        journal.flush()
        assert (journal.append({"type": "note"}), heard) == (2, [])


def test_a_session_where_no_lock_can_be_made_is_written_without(
    heard: list[signals.Signal], caplog: pytest.LogCaptureFixture
) -> None:
    """Its segments may be written, its folder not: a signal of stage `lock` says so, and a line of the log."""
    with on_disk({"journal/000001.jsonl": b'{"id":1}\n', "meta.json": b"{}", "HEAD": b'{"offset":1}'}) as session:
        (session / "snapshots").mkdir()
        (session / "journal" / "000001.jsonl").chmod(0o666)
        session.chmod(0o555)
        with unprivileged(session), open_journal("session", base_dir=session.parent) as journal:
            assert journal.append({"type": "note"}) == 2
        session.chmod(0o755)  # so that it can be removed
        said = f"{session} is written without a lock: Permission denied"
    told = [dict(one.metadata) for one in heard]
    assert told[0] == {"stage": "lock", "reason": "eacces", "session_id": "session"}
    assert {one["stage"] for one in told[1:]} == {"head"}
    assert caplog.record_tuples[0] == ("raxol_otel.journal", 30, said)


FORK = """
import os, sys, time
from raxol_otel.journal import open_journal

healthy = open_journal("s", base_dir=sys.argv[1])
damaged = open_journal("damaged", base_dir=sys.argv[1])
healthy.append({"type": "note"})
child = os.fork()
if not child:
    links = {os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if name.isdigit()
             if os.path.lexists(f"/proc/self/fd/{name}")}
    open_ones = sorted(os.path.basename(link) for link in links if link.startswith(sys.argv[1]))
    healthy.close()
    own = open_journal("own", base_dir=sys.argv[1], sync_ceiling_ms=20)
    own.append({"type": "note"}, sync=False)
    end = time.monotonic() + 10
    while b'"offset":1' not in (own.path / "HEAD").read_bytes() and time.monotonic() < end:
        time.sleep(0.01)
    print(open_ones, repr(healthy)[-7:], time.monotonic() < end, flush=True)
    os._exit(0)
os.waitpid(child, 0)
healthy.append({"type": "note"})
print(len(healthy.read()), repr(healthy)[-5:])
"""


def test_a_forked_child_holds_nothing_of_the_journal(tmp_path: Path) -> None:
    """No segment and no lock, also of a damaged one; it may close what it has, and write what is its own."""
    (tmp_path / "damaged" / "journal").mkdir(parents=True)
    (tmp_path / "damaged" / "journal" / "000001.jsonl").write_bytes(b"{}\n")
    command = [sys.executable, "-W", "ignore", "-c", FORK, os.path.realpath(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.stdout.splitlines() == ["[] closed> True", "2 open>"]
    assert "Traceback" not in done.stderr


def says(head: Path, offset: int) -> bool:
    """Whether HEAD names an offset."""
    return b'"offset":%d,' % offset in head.read_bytes()


def within(seconds: float, is_so: Callable[[], bool]) -> bool:
    """Whether it comes to be so in time."""
    end = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > end:
            return False
        time.sleep(0.005)
    return True


def test_a_lock_is_given_back_once(tmp_path: Path) -> None:
    """A second time closes nothing, neither what has the descriptor's number by then nor standard output."""
    lock = acquire(tmp_path)
    number = lock.descriptor
    lock.release()
    other = os.open(os.devnull, os.O_RDONLY)
    try:
        assert other == number
        lock.release()
        lock.abandon()
        assert os.fstat(other).st_rdev == Path(os.devnull).stat().st_rdev
        os.fstat(1)
    finally:
        os.close(other)


def test_the_ceiling_comes_again_and_again(tmp_path: Path) -> None:
    """Also after there was nothing to do."""
    with open_journal("s", base_dir=tmp_path, sync_ceiling_ms=10) as journal:
        for number in (1, 2, 3):
            journal.append({"type": "note"}, sync=False)
            assert within(10, functools.partial(says, journal.path / "HEAD", number))
            time.sleep(0.05)


def test_what_failed_at_the_ceiling_is_tried_again_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As often as it takes, and nobody has to call."""
    monkeypatch.setattr("raxol_otel.journal.writer.RETRY_SECONDS", 0.02)
    disk = Disk()
    with open_journal("s", base_dir=tmp_path, files=disk, sync_ceiling_ms=200) as journal:
        journal.append({"type": "note"}, sync=False)
        disk.is_broken = True  # HEAD cannot be written
        assert within(10, lambda: disk.failures > 2)
        disk.is_broken = False
        assert within(10, functools.partial(says, journal.path / "HEAD", 1))
