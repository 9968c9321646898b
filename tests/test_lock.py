"""Who writes a journal: what the lock file and the lock on it say, and that asking changes nothing."""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.journal.lock import Writer, parse_pid, probe
from tests.conftest import photograph, unprivileged
from tests.exporter_contract import environment, held_lock, turn_records, write_session

if TYPE_CHECKING:
    from collections.abc import Generator

HOUR: Final = 3600.0
TAKE_LOCK: Final = struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)


@contextmanager
def running() -> Generator[int]:
    """The pid of a process that lives for a while."""
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment(measured=False)
    ) as process:
        try:
            yield process.pid
        finally:
            process.kill()


@pytest.fixture(scope="module")
def dead() -> int:
    """The pid of a process that has ended."""
    with subprocess.Popen([sys.executable, "-c", ""], env=environment(measured=False)) as process:
        process.wait()
        return process.pid


def locked(folder: Path, text: bytes | str | int, *, age: float = 0) -> Path:
    """A session whose lock file has this text, written `age` seconds ago."""
    session = write_session(folder / "session", turn_records())
    data = text if isinstance(text, bytes) else str(text).encode()
    (session / "writer.lock").write_bytes(data)
    then = time.time() - age
    os.utime(session / "writer.lock", (then, then))
    return session


def test_no_lock_file_is_no_writer(tmp_path: Path) -> None:
    """A writer takes its lock file away when it closes."""
    assert probe(write_session(tmp_path / "s", [])) == Writer("none", None)


def test_a_directory_that_is_not_there_has_no_writer(tmp_path: Path) -> None:
    """Asking never raises."""
    assert probe(tmp_path / "missing") == Writer("none", None)


@pytest.mark.parametrize(
    "text",
    [
        *(b"", b"\0", b"\n", b" \0\n\t\r"),
        *(b"0", b"00", b"+0", b"-0", b"-1", b"-12"),
        *(b"garbage", b"12x", b"0x10", b"1.0", b"1e3", b"1 2", b"1\n2", b"1\x002", b"++1", b"+-1", b"+ 1", b"1_000"),
        *(b"\xff\xfe1", "१२".encode(), "\u0661".encode(), "\u00a01".encode(), b'{"pid":1}', b"\x0b1"),
        *(b"9" * 11, b"1" + b"0" * 100, b"9" * 10_000),
    ],
)
def test_what_is_no_pid_is_stale(tmp_path: Path, text: bytes) -> None:
    """Empty, zero, negative, garbage, too large to be a pid: whoever wrote it is gone."""
    assert parse_pid(text) is None
    assert probe(locked(tmp_path, text)) == Writer("stale", None)


@pytest.mark.parametrize("form", ["{}", "{}\n", "+00{}\n\0\0", " {} \r\n", "\0\0{}", "+{}", "000{}\t"])
def test_a_pid_may_be_written_in_many_ways(tmp_path: Path, form: str) -> None:
    """Blanks and NULs around it are stripped; a plus and leading zeros are allowed."""
    assert parse_pid(form.format(12).encode()) == 12
    with running() as pid:
        assert probe(locked(tmp_path, form.format(pid))) == Writer("live", pid)


def test_a_dead_pid_is_stale(tmp_path: Path, dead: int) -> None:
    """Its process has ended."""
    assert probe(locked(tmp_path, dead)) == Writer("stale", dead)


@pytest.mark.parametrize("pid", [2**22 + 1, 2**31 - 1, 2**31, 9_999_999_999])
def test_a_pid_that_no_process_can_have_is_stale(tmp_path: Path, pid: int) -> None:
    """Beyond what the system gives out, also beyond what it can be asked about."""
    assert probe(locked(tmp_path, pid)) == Writer("stale", pid)


def test_a_process_that_was_there_when_the_lock_was_written_is_live(tmp_path: Path) -> None:
    """The pid of the lock file lives, and lived then."""
    with running() as pid:
        assert probe(locked(tmp_path, pid)) == Writer("live", pid)


def test_a_process_that_began_after_the_lock_was_written_is_another(tmp_path: Path) -> None:
    """The pid was given out again: a restarted container begins at 1 every time."""
    with running() as pid:
        assert probe(locked(tmp_path, pid, age=HOUR)) == Writer("stale", pid)


@pytest.mark.parametrize("age", [0, HOUR * 24 * 365 * 20])
def test_our_own_pid_without_the_lock_is_stale(tmp_path: Path, age: float) -> None:
    """This process would hold the lock if it were the writer; so a writer of before had the same pid."""
    assert probe(locked(tmp_path, os.getpid(), age=age)) == Writer("stale", os.getpid())


@pytest.mark.parametrize("text", ["dead", "empty", "garbage", "reused"])
def test_a_held_lock_is_a_live_writer_whatever_the_file_says(tmp_path: Path, dead: int, text: str) -> None:
    """A writer in another container has a pid that means nothing here; its lock does."""
    pid = {"dead": dead, "reused": os.getpid()}.get(text)
    session = locked(tmp_path, {"empty": ""}.get(text, text) if pid is None else pid, age=HOUR * 24 * 3650)
    with held_lock(session / "writer.lock"):
        assert probe(session) == Writer("live", pid)
    assert probe(session).state == "stale"


def test_a_lock_that_this_process_holds_is_live(tmp_path: Path) -> None:
    """A program may look at the journal that it writes itself."""
    session = locked(tmp_path, os.getpid())
    descriptor = os.open(session / "writer.lock", os.O_RDWR)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, TAKE_LOCK)
        assert probe(session) == Writer("live", os.getpid())
        assert probe(session) == Writer("live", os.getpid()), "asking did not release it"
    finally:
        os.close(descriptor)


def test_a_lock_that_cannot_be_read_is_unknown() -> None:
    """Without permission for the file, or for the folder, nothing can be told."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        session = locked(Path(name), 1)
        (session / "writer.lock").chmod(0)
        with unprivileged(Path(name)):
            assert probe(session) == Writer("unknown", None)
        session.chmod(0)
        with unprivileged(Path(name)):
            assert probe(session) == Writer("unknown", None)
        session.chmod(0o755)


@pytest.mark.parametrize("kind", ["folder", "loop", "link to nothing", "pipe"])
def test_a_lock_that_is_no_file(tmp_path: Path, kind: str) -> None:
    """It cannot be told who writes, and asking neither raises nor waits."""
    session = write_session(tmp_path / "s", turn_records())
    lock = session / "writer.lock"
    if kind == "folder":
        lock.mkdir()
    elif kind == "pipe":
        os.mkfifo(lock)
    else:
        lock.symlink_to("writer.lock" if kind == "loop" else "nothing")
    expected = {"folder": "unknown", "loop": "unknown", "link to nothing": "none", "pipe": "stale"}[kind]
    assert probe(session).state == expected


@pytest.mark.parametrize("text", ["", "garbage", "1", "own", "dead"])
def test_asking_changes_nothing(tmp_path: Path, dead: int, text: str) -> None:
    """No byte, no time, no new file; and a writer can take the lock right afterwards."""
    session = locked(tmp_path, {"own": os.getpid(), "dead": dead}.get(text, text), age=HOUR)
    before = photograph(session)
    assert probe(session) == probe(session)
    assert photograph(session) == before
    with held_lock(session / "writer.lock"):
        assert probe(session).state == "live"
    assert photograph(session) == before


def test_asking_leaves_no_file_open(tmp_path: Path) -> None:
    """Ten thousand sessions are asked about without running out of descriptors."""
    session = locked(tmp_path, "garbage")
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(100):
        probe(session)
    assert len(os.listdir("/proc/self/fd")) == before
