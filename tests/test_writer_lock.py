"""One writer a journal: who is refused, whose lock is reclaimed, and that never two write, with real processes."""

from __future__ import annotations

import os
import shutil
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.errors import JournalLocked, NotChained
from raxol_otel.journal import lock as locks
from raxol_otel.journal import open_journal, scan
from tests.conftest import NOBODY, photograph
from tests.exporter_contract import environment, held_lock
from tests.lock_processes import EVENT, SESSION, lock_of, make_base, public_base, started
from tests.test_lock import running

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

HOUR: Final = 3600.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")


@pytest.fixture(scope="module")
def dead() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""], env=environment(measured=False)) as process:
        process.wait()
        return process.pid


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base directory with a journal of two records, closed."""
    return make_base(tmp_path)


@pytest.fixture
def public() -> Iterator[Path]:
    """The same where any user can write."""
    with public_base() as base:
        yield base


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_writer_lock", found.append)
    yield found
    signals.detach("test_writer_lock")


def leave_lock(base: Path, text: bytes | str | int, *, age: float = 0) -> Path:
    """A lock file with this text, written `age` seconds ago, that nobody holds."""
    path = lock_of(base)
    path.write_bytes(text if isinstance(text, bytes) else str(text).encode())
    then = time.time() - age
    os.utime(path, (then, then))
    return path


def ours() -> bytes:
    """What our own lock file says: the bare pid."""
    return str(os.getpid()).encode()


def assert_opens(base: Path, *, offset: int = 3) -> None:
    """The journal opens with a lock, is appended to, and gives the lock back."""
    with open_journal(SESSION, base_dir=base) as journal:
        assert stat.S_ISREG(lock_of(base).lstat().st_mode), "there is a lock"
        assert lock_of(base).read_bytes() == ours()
        assert locks.probe(base / SESSION) == locks.Writer("live", os.getpid()), "the file is locked, too"
        assert journal.append(EVENT) == offset
    assert not os.path.lexists(lock_of(base))


def assert_refused(base: Path, pid: int | None) -> None:
    """The journal is refused, the holder named, and nothing in it changed."""
    before = photograph(base / SESSION)
    with pytest.raises(JournalLocked) as caught:
        open_journal(SESSION, base_dir=base)
    assert caught.value.pid == pid
    assert SESSION in str(caught.value)
    if pid is not None:
        assert f"process {pid} " in str(caught.value)
    assert photograph(base / SESSION) == before


# --- Two processes ----------------------------------------------------------------------------------------------------


def test_a_second_process_is_refused_and_told_who_writes(base: Path) -> None:
    """The error names the holder's pid; the file holds it bare; the holder writes on."""
    with started("write", base, SESSION) as holder:
        assert holder.hear() == {"open": holder.pid, "has_lock": True, "failures": []}
        assert_refused(base, holder.pid)
        assert holder.ask("append") == {"offset": 3}
        assert holder.ask("close") == {"closed": True}
    assert_opens(base, offset=4)


def test_this_process_refuses_another(base: Path) -> None:
    """The other way round: the child is refused, and told our pid."""
    with open_journal(SESSION, base_dir=base) as journal, started("write", base, SESSION) as child:
        reply = child.hear()
        assert (reply["error"], reply["pid"]) == ("JournalLocked", os.getpid())
        assert f"process {os.getpid()} " in reply["message"]
        assert journal.append(EVENT) == 3


def test_a_damaged_journal_is_locked_as_well(base: Path) -> None:
    """It opens for reading only, and still one process at a time; the lock is given back."""
    with (base / SESSION / "journal" / "000001.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    with started("write", base, SESSION) as holder:
        assert holder.hear()["has_lock"]
        assert_refused(base, holder.pid)
        holder.ask("close")
    assert not lock_of(base).exists()


def test_an_opening_that_fails_gives_the_lock_back(base: Path) -> None:
    """A chain cannot begin in the middle of a journal; another opens it right afterwards."""
    with pytest.raises(NotChained):
        open_journal(SESSION, base_dir=base, chain=True)
    assert not lock_of(base).exists()
    assert_opens(base)


def test_a_killed_holders_lock_is_reclaimed(base: Path) -> None:
    """`kill -9` leaves the file with its pid; whoever comes next takes it over, and the ids continue."""
    with started("write", base, SESSION) as holder:
        assert holder.hear()["has_lock"]
        assert holder.ask("append") == {"offset": 3}
        holder.kill()
        assert lock_of(base).read_bytes() == str(holder.pid).encode()
        assert_opens(base, offset=4)


def test_a_zombie_is_dead(base: Path) -> None:
    """A killed writer that nobody has reaped still has its pid, and does not write any more."""
    with started("write", base, SESSION) as holder:
        assert holder.hear()["has_lock"]
        holder.kill(reap=False)
        assert_opens(base)


# --- What the pid says ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["{}", "{}\n", " {} \r\n", "\0{}\0\0", "+{}", "000{}", "+00{}\n\0"])
def test_a_live_pid_is_refused_however_it_is_written(base: Path, form: str) -> None:
    """A writer without our kind of lock, Raxol's, holds its journal by its pid alone."""
    with running() as pid:
        leave_lock(base, form.format(pid))
        assert_refused(base, pid)


def test_a_reused_pid_is_reclaimed(base: Path) -> None:
    """The process began after the file was written, so it is another with the same pid."""
    with running() as pid:
        leave_lock(base, pid, age=HOUR)
        assert_opens(base)


def test_a_process_as_old_as_its_lock_is_refused_for_years(base: Path) -> None:
    """Process 1 began before the file was written: a file that is old is not stale for that."""
    uptime = float(Path("/proc/uptime").read_text().split()[0])
    leave_lock(base, 1, age=uptime / 2)
    assert_refused(base, 1)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b" ", b"\n", b"\0\0", b" \t\r\n\0"),
        *(b"0", b"00", b"+0", b"-0", b"-1"),
        *(b"garbage", b"12x", b"0x10", b"1.0", b"1e0", b"++1", b"+-1", b"- 1", b"1 2", b"1\nhost", b'{"pid":1}'),
        *(b"\xff\xfe", "\u0661".encode(), b"1" * 11, b"9" * 10_000, b"\0" * 10_000),
    ],
)
def test_what_is_no_pid_is_reclaimed(base: Path, text: bytes) -> None:
    """Empty, blank, zero, negative, garbage, a number beyond all pids, anything after it."""
    leave_lock(base, text)
    assert_opens(base)


@pytest.mark.parametrize("sign", ["-{}", "{}x", "{}\nhost", "{} 1"])
def test_a_live_pid_with_more_than_a_pid_is_garbage(base: Path, sign: str) -> None:
    """What the reference would take for garbage is garbage here."""
    with running() as pid:
        leave_lock(base, sign.format(pid))
        assert_opens(base)


@pytest.mark.parametrize("form", ["{}", "+0{}\n", "{}\0"])
def test_our_own_pid_is_reclaimed(base: Path, form: str) -> None:
    """In a container that restarts, the writer before had the same pid."""
    leave_lock(base, form.format(os.getpid()))
    assert_opens(base)


def test_a_dead_pid_is_reclaimed(base: Path, dead: int) -> None:
    """Its process has ended; what is left of a longer text does not stay."""
    leave_lock(base, f"  {dead}{' ' * 100}")
    assert_opens(base)


def test_a_held_lock_counts_whatever_the_file_says(base: Path, dead: int) -> None:
    """The open-file-description lock is asked first: a dead pid, or none, does not matter."""
    for text, pid in ((str(dead), dead), ("", None), ("garbage", None), (str(os.getpid()), os.getpid())):
        with held_lock(leave_lock(base, text, age=HOUR)):
            assert_refused(base, pid)
    assert_opens(base)


# --- Other users, other namespaces ------------------------------------------------------------------------------------


@needs_root
@pytest.mark.parametrize("mode", [0o666, 0o644], ids=["that may be written", "that may only be read"])
def test_another_users_process_lives(public: Path, mode: int) -> None:
    """A process that we may not signal (EPERM) is alive: refused, named, the file as it was."""
    path = leave_lock(public, 1)
    path.chmod(mode)
    before = photograph(public / SESSION)
    with started(f"--as={NOBODY}", "write", public, SESSION) as child:
        reply = child.hear()
    assert (reply["error"], reply["pid"]) == ("JournalLocked", 1)
    assert photograph(public / SESSION) == before


@needs_root
def test_another_users_writer_is_refused_and_refuses(public: Path) -> None:
    """A child of another user writes; root is refused, and takes over once it is killed."""
    for path in [public / SESSION, *(public / SESSION).rglob("*")]:
        os.chown(path, NOBODY, NOBODY)
    with started(f"--as={NOBODY}", "write", public, SESSION) as holder:
        assert holder.hear()["has_lock"]
        assert_refused(public, holder.pid)
        holder.kill()
        assert_opens(public)


@needs_root
def test_another_users_dead_lock_is_replaced(public: Path, dead: int) -> None:
    """It cannot be written, but read and removed: the writer has a lock of its own after that."""
    leave_lock(public, dead).chmod(0o644)
    with started(f"--as={NOBODY}", "write", public, SESSION) as child:
        assert child.hear() == {"open": child.pid, "has_lock": True, "failures": []}
        assert_refused(public, child.pid)
        assert child.ask("close") == {"closed": True}
    assert not lock_of(public).exists()


@needs_root
def test_a_lock_that_may_not_even_be_read_is_respected(public: Path, dead: int) -> None:
    """Whose it is cannot be told, so it may be a live writer's: refused, and the file is as it was."""
    path = leave_lock(public, dead)
    path.chmod(0o600)
    before = photograph(public / SESSION)
    with started(f"--as={NOBODY}", "write", public, SESSION) as child:
        reply = child.hear()
    assert (reply["error"], reply["pid"]) == ("JournalLocked", None)
    assert photograph(public / SESSION) == before


def own_pids() -> list[str]:
    """A command that starts another in a pid namespace of its own, as process 1; a skip where that is not allowed."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare to make a pid namespace with")
    command = [unshare, *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "--pid", "--fork"]
    done = subprocess.run([*command, "true"], capture_output=True, check=False)
    if done.returncode != 0:
        pytest.skip("a pid namespace may not be made here")
    return [*command, "--kill-child"]


def test_another_pid_namespace_sees_the_lock(base: Path) -> None:
    """The holder's pid means nothing there, but the lock on the file does: refused."""
    before = own_pids()
    with started("write", base, SESSION) as holder:
        assert holder.hear()["has_lock"]
        with started("write", base, SESSION, before=before) as child:
            reply = child.hear()
        assert (reply["error"], reply["pid"]) == ("JournalLocked", holder.pid)
        assert holder.ask("append") == {"offset": 3}


def test_two_containers_are_both_process_1(base: Path) -> None:
    """The lock names the second one's own pid, and is held: refused. It is reclaimed when the first is gone."""
    before = own_pids()
    with started("write", base, SESSION, before=before) as holder:
        assert holder.hear() == {"open": 1, "has_lock": True, "failures": []}
        with started("write", base, SESSION, before=before) as child:
            reply = child.hear()
        assert (reply["error"], reply["pid"]) == ("JournalLocked", 1)
        assert_refused(base, 1)
        holder.kill()
    with started("write", base, SESSION, before=before) as child:
        assert child.hear() == {"open": 1, "has_lock": True, "failures": []}
        assert child.ask("append") == {"offset": 3}


# --- Giving it back ---------------------------------------------------------------------------------------------------


def test_a_deleted_lock_file_is_no_trouble_at_the_end(base: Path, heard: list[signals.Signal]) -> None:
    """An operator deleted it; the writer closes cleanly."""
    journal = open_journal(SESSION, base_dir=base)
    lock_of(base).unlink()
    assert journal.append(EVENT) == 3
    journal.close()
    assert heard == []
    assert not lock_of(base).exists()


def test_a_new_owners_lock_file_stays(base: Path) -> None:
    """An operator deleted ours and another opened the journal: its file is not ours to remove."""
    journal = open_journal(SESSION, base_dir=base)
    journal.flush()
    lock_of(base).unlink()
    with started("write", base, SESSION) as other:
        assert other.hear()["has_lock"]
        journal.close()
        assert lock_of(base).read_bytes() == str(other.pid).encode()
        assert_refused(base, other.pid)
        assert other.ask("append") == {"offset": 3}
        assert other.ask("close") == {"closed": True}
    assert not lock_of(base).exists()


def test_a_file_put_in_its_place_stays(base: Path) -> None:
    """Renamed over, or a directory: what is not ours is not removed."""
    journal = open_journal(SESSION, base_dir=base)
    lock_of(base).unlink()
    lock_of(base).mkdir()
    journal.close()
    assert lock_of(base).is_dir()


@pytest.mark.parametrize("how", ["exec", "fork"])
def test_a_child_does_not_keep_the_lock(base: Path, how: str) -> None:
    """The writer is killed while its child lives on, all descriptors inherited: the lock went with the writer."""
    with started("leave", how, base, SESSION) as holder:
        child = int(holder.hear()["child"])
        try:
            assert_refused(base, holder.pid)
            holder.kill()
            # A forked child lets go of its copy in its first moments, which may take a while to come.
            deadline = time.monotonic() + 10
            while locks.probe(base / SESSION).state == "live" and time.monotonic() < deadline:
                time.sleep(0.01)
            assert_opens(base, offset=4)
            os.kill(child, 0)  # it lives still
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_that_ends_does_not_give_up_its_parents_lock(base: Path) -> None:
    """It closes the handle and exits; the parent has its lock and writes on."""
    with started("fork_and_end", base, SESSION) as holder:
        assert holder.hear() == {"has_lock": True, "offset": 4}
        assert_refused(base, holder.pid)
        assert holder.ask("close") == {"closed": True}


def test_opening_again_and_again_leaves_no_descriptor(base: Path) -> None:
    """Refused or opened, whatever was in the way: nothing stays open."""
    ways: list[Callable[[], Any]] = [
        lambda: leave_lock(base, "garbage"),
        lambda: lock_of(base).symlink_to("nothing"),
        lambda: os.mkfifo(lock_of(base)),
    ]
    for way in ways:
        way()
        assert_opens(base, offset=scan(base / SESSION).records[-1]["id"] + 1)
    before = len(os.listdir("/proc/self/fd"))
    with held_lock(leave_lock(base, "garbage")):
        for _ in range(20):
            assert_refused(base, None)
    assert len(os.listdir("/proc/self/fd")) == before
