"""What else may stand where the writer's lock file should: replaced, respected, and never written through."""

from __future__ import annotations

import errno
import logging
import os
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, NoReturn

import pytest

from raxol_otel import signals
from raxol_otel.journal import open_journal
from raxol_otel.journal.lock import Writer, probe
from tests.exporter_contract import held_lock
from tests.lock_processes import EVENT, SESSION, lock_of, make_base, started
from tests.test_lock import running
from tests.test_writer_lock import assert_opens, assert_refused, leave_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A base directory with a journal of two records, closed."""
    return make_base(tmp_path)


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_lock_files", found.append)
    yield found
    signals.detach("test_lock_files")


def test_a_directory_in_its_place(base: Path, heard: list[signals.Signal], caplog: pytest.LogCaptureFixture) -> None:
    """Somebody's way to do without a lock: a warning in the log, no signal, and the journal is written."""
    lock_of(base).mkdir()
    with caplog.at_level(logging.WARNING, "raxol_otel.journal"), open_journal(SESSION, base_dir=base) as journal:
        assert journal.append(EVENT) == 3
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "without a lock" in caplog.text
    assert heard == []
    assert list(lock_of(base).iterdir()) == []


@pytest.mark.parametrize("target", ["nothing", "nothing/at/all", "", ".."], ids=["", "deep", "loop", "directory"])
def test_a_link_to_no_file_is_replaced(base: Path, heard: list[signals.Signal], target: str) -> None:
    """A file of our own stands in its place while the journal is open; where it pointed nothing appears."""
    lock_of(base).symlink_to(target or "writer.lock")
    assert_opens(base)
    assert heard == []
    assert sorted(path.name for path in (base / SESSION).iterdir()) == ["HEAD", "journal", "meta.json", "snapshots"]


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_link_to_a_file_is_never_written_through(base: Path, tmp_path: Path, link: Callable[..., None]) -> None:
    """What it points to keeps its bytes, its time and its name."""
    victim = tmp_path / "victim"
    victim.write_bytes(b"do not touch")
    os.utime(victim, (1, 1))
    link(victim, lock_of(base))
    assert_opens(base)
    assert (victim.read_bytes(), victim.stat().st_mtime, victim.stat().st_nlink) == (b"do not touch", 1, 1)


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_a_link_to_a_live_writers_file_is_refused(base: Path, tmp_path: Path, link: Callable[..., None]) -> None:
    """By its pid, and by its lock (a copy of the folder made of hard links, say)."""
    with running() as pid:
        elsewhere = tmp_path / "elsewhere"
        elsewhere.write_text(str(pid))
        link(elsewhere, lock_of(base))
        assert_refused(base, pid)
    elsewhere.write_text("garbage")
    with held_lock(elsewhere):
        assert_refused(base, None)
    assert_opens(base)


def test_a_hard_link_to_our_lock_does_not_let_a_second_in(base: Path, tmp_path: Path) -> None:
    """A backup made of hard links, taken while the journal is open."""
    with started("write", base, SESSION) as holder:
        assert holder.hear()["has_lock"]
        os.link(lock_of(base), tmp_path / "backup")
        assert_refused(base, holder.pid)
        assert holder.ask("close") == {"closed": True}
    assert not lock_of(base).exists()


@contextmanager
def held_open(pipe: Path) -> Generator[None]:
    """Both ends of the pipe are open, and nothing is in it."""
    descriptor = os.open(pipe, os.O_RDWR)
    try:
        yield
    finally:
        os.close(descriptor)


@pytest.mark.parametrize("is_open", [False, True], ids=["", "that somebody has open"])
def test_a_pipe_is_replaced_and_not_waited_for(base: Path, heard: list[signals.Signal], is_open: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """It would be read for ever."""
    os.mkfifo(lock_of(base))
    with ExitStack() as stack:
        if is_open:
            stack.enter_context(held_open(lock_of(base)))
        assert_opens(base)
    assert heard == []


# --- Where there are no file locks ------------------------------------------------------------------------------------


@pytest.fixture
def _lockless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks, as some network ones are."""

    def refuse(*_: object) -> NoReturn:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("raxol_otel.journal.lock.fcntl.fcntl", refuse)


@pytest.mark.usefixtures("_lockless")
def test_without_file_locks_the_pid_guards(base: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A live pid is refused, a stale lock reclaimed and given back, and a warning says what is missing."""
    with running() as pid:
        leave_lock(base, pid)
        assert_refused(base, pid)
        leave_lock(base, pid, age=3600)
    caplog.clear()
    with caplog.at_level(logging.WARNING, "raxol_otel.journal"), open_journal(SESSION, base_dir=base) as journal:
        assert lock_of(base).read_text() == str(os.getpid())
        assert journal.append(EVENT) == 3
    assert "locks" in caplog.text
    assert not lock_of(base).exists()


@pytest.mark.usefixtures("_lockless")
def test_without_file_locks_a_link_is_replaced_all_the_same(base: Path, tmp_path: Path) -> None:
    """By its pid, if it has one: a live one is refused."""
    elsewhere = tmp_path / "elsewhere"
    lock_of(base).symlink_to(elsewhere)
    with running() as pid:
        elsewhere.write_text(str(pid))
        assert_refused(base, pid)
    elsewhere.write_text("garbage")
    with open_journal(SESSION, base_dir=base):
        assert not lock_of(base).is_symlink()
        assert lock_of(base).read_text() == str(os.getpid())
    assert elsewhere.read_text() == "garbage"


@pytest.mark.usefixtures("_lockless")
def test_without_file_locks_a_writer_is_seen_by_its_pid(base: Path) -> None:
    """Asking who writes falls back to the pid, too."""
    with running() as pid:
        leave_lock(base, pid)
        assert probe(base / SESSION) == Writer("live", pid)
    leave_lock(base, "garbage")
    assert probe(base / SESSION) == Writer("stale", None)


def test_another_way_to_the_same_journal_is_the_same_writer(base: Path, tmp_path: Path) -> None:
    """Within one process a link to the base is joined, not refused; another process is refused there, too."""
    (tmp_path / "link").symlink_to(base)
    with open_journal(SESSION, base_dir=base) as journal, open_journal(SESSION, base_dir=tmp_path / "link") as joined:
        assert [journal.append(EVENT), joined.append(EVENT), journal.append(EVENT)] == [3, 4, 5]
        with started("write", tmp_path / "link", SESSION) as child:
            assert child.hear()["pid"] == os.getpid()
