"""`ForeignWriter`: a second process holds a session, wants one, appends, lets go, dies."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from raxol_otel.errors import JournalLocked
from raxol_otel.journal import open_journal
from raxol_otel.testing import FaultJournal, ForeignWriter

if TYPE_CHECKING:
    from pathlib import Path

NOTE = {"type": "note"}


def test_it_holds_the_lock_until_it_is_closed(tmp_path: Path) -> None:
    """The session is refused here, naming the other; then it is ours, with what the other appended."""
    with ForeignWriter(tmp_path) as foreign:
        assert foreign.pid != os.getpid()
        assert foreign.append(NOTE) == 1
        with pytest.raises(JournalLocked) as locked:
            open_journal("session", base_dir=tmp_path)
        assert locked.value.pid == foreign.pid
    assert not foreign.is_running
    assert not (tmp_path / "session" / "writer.lock").exists()
    with open_journal("session", base_dir=tmp_path) as journal:
        assert journal.append(NOTE) == 2


def test_it_wants_a_session_that_is_held_here(tmp_path: Path) -> None:
    """It is refused, and says by whom; once the session is free it is the writer, until it lets go."""
    with FaultJournal(tmp_path) as journal, ForeignWriter(tmp_path, holds=False) as foreign:
        journal.append(NOTE)
        wanted = foreign.wants()
        assert (wanted.is_writer, wanted.error, wanted.holder) == (False, "JournalLocked", os.getpid())
        assert str(os.getpid()) in wanted.message
        with pytest.raises(RuntimeError, match="holds no lock"):
            foreign.append(NOTE)
        journal.close()
        assert foreign.wants().is_writer
        assert foreign.append(NOTE) == 2
        with pytest.raises(JournalLocked):
            journal.open()
        foreign.release()
        assert journal.open().append(NOTE) == 3


def test_killed_it_leaves_the_lock_file(tmp_path: Path) -> None:
    """The file names a process that is no more, and the session can be had."""
    with ForeignWriter(tmp_path) as foreign:
        foreign.append(NOTE)
        foreign.kill()
        lock = tmp_path / "session" / "writer.lock"
        assert lock.read_text() == str(foreign.pid)
        with pytest.raises(RuntimeError, match="has ended"):
            foreign.wants()
    with open_journal("session", base_dir=tmp_path) as journal:
        assert journal.append(NOTE) == 2


def test_it_does_not_begin_without_the_lock_that_it_is_to_hold(tmp_path: Path) -> None:
    """A test that relies on it must not go on; and no process is left."""
    with open_journal("session", base_dir=tmp_path), pytest.raises(RuntimeError, match="was refused"):
        ForeignWriter(tmp_path)


def test_what_it_cannot_append_is_told(tmp_path: Path) -> None:
    """It lives on."""
    with ForeignWriter(tmp_path) as foreign:
        with pytest.raises(RuntimeError, match="did not append"):
            foreign.append({"text": "\ud800"})
        assert foreign.append(NOTE) == 1
        foreign.close()
        foreign.close()


def test_a_process_that_died_by_itself_is_told(tmp_path: Path) -> None:
    """Nobody waits for an answer that does not come."""
    with ForeignWriter(tmp_path) as foreign:
        os.kill(foreign.pid, 9)
        with pytest.raises(RuntimeError, match=r"has ended|says nothing"):
            foreign.append(NOTE)
