"""What is counted once stays so: whatever cannot be read, is lost, comes back, or cannot be kept meanwhile."""

from __future__ import annotations

import json
import os
import sqlite3
import sys
import threading
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.errors import JournalUnreadable
from raxol_otel.fleet import followed as followed_module
from raxol_otel.fleet import kept as kept_module
from raxol_otel.fleet import state as state_module
from raxol_otel.fleet.entry import Entry
from raxol_otel.fleet.followed import Followed
from raxol_otel.fleet.workers import read_sessions
from raxol_otel.journal import open_journal
from raxol_otel.journal.tail import Tail
from tests import test_fleet
from tests.exporter_contract import in_own_mounts
from tests.fleet_processes import raw_session
from tests.test_fleet import World, damage, record, segment, session, turn

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.fleet.followed import Observer
    from raxol_otel.turns import TurnFold

root = test_fleet.root
world = test_fleet.world


def turns_of(count: int) -> list[dict[str, Any]]:
    """So many whole turns."""
    return [event for number in range(count) for event in turn(f"t{number}")]


def test_a_session_that_cannot_be_read_for_a_while_counts_once(
    root: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A line without end behind turns that were counted: told once, and when it is gone, what follows is counted."""
    monkeypatch.setattr(followed_module, "LINE_BYTES_MAX", 10_000)
    world.begin()
    directory = session(root, "s", turns_of(3))
    assert world.look().turns() == 3
    whole = segment(directory).read_bytes()
    segment(directory).write_bytes(whole + b"x" * 20_000)
    for _ in range(3):
        assert world.look().states() == {"unreadable": 1}
    os.truncate(segment(directory), len(whole))
    assert world.look().states() == {"healthy": 1}
    with open_journal("s", base_dir=root) as journal:
        journal.append_many(turn("t9"))
    assert world.look().turns() == 4
    assert world.value("raxol_exporter_scan_errors_total") == 1


def test_what_cannot_be_read_is_not_read_at_every_look(
    root: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An enormous line is looked through when it changes, and every ten seconds; not by each look."""
    monkeypatch.setattr(followed_module, "LINE_BYTES_MAX", 10_000)
    world.begin()
    session(root, "s", [record("item_started", text="x" * 20_000)])
    assert world.look().look().states() == {"unreadable": 1}
    tried: list[Path] = []

    def begin(tail: Tail) -> None:
        tried.append(tail.directory)

    monkeypatch.setattr(Tail, "begin", begin)
    for _ in range(5):
        world.look()
    assert tried == []
    monkeypatch.setattr(world.fleet, "_retry_at", 0.0)
    world.look()
    assert len(tried) == 1


def test_turns_before_a_refused_line_are_known_when_it_is_read_on(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A baseline that ends at a line that is too long: the turn that was open there ends as one that began before."""
    directory = session(root, "s", [*turns_of(5), record("turn_started", "open")])
    whole = segment(directory).read_bytes()
    segment(directory).write_bytes(whole + b"x" * 20_000 + b"\n")
    monkeypatch.setattr(followed_module, "LINE_BYTES_MAX", 10_000)
    ended: list[tuple[int, Any]] = []
    followed = Followed(
        directory,
        is_baseline=True,
        listen=lambda _fold: (
            lambda _records, spans: ended.extend(
                (span.offset, span.attributes["raxol.turn.id"]) for span in spans if span.role == "turn"
            )
        ),
    )
    with pytest.raises(JournalUnreadable):
        followed.catch_up()
    os.truncate(segment(directory), len(whole))
    followed.catch_up()
    with open_journal("s", base_dir=root) as journal:
        journal.append(record("turn_completed", "open", final=True))
    followed.catch_up()
    assert ended == [(11, "open")]


def test_a_lost_tail_that_is_put_back_is_counted_once(root: Path, world: World) -> None:
    """While HEAD says that there was more, it may come back; what is written after HEAD was removed counts."""
    world.begin()
    directory = session(root, "s", turns_of(4))
    assert world.look().turns() == 4
    whole = segment(directory).read_bytes()
    segment(directory).write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    assert world.look().value("raxol_journal_sessions_behind_head") == 1
    segment(directory).write_bytes(whole)
    assert world.look().turns() == 4
    assert world.value("raxol_journal_sessions_behind_head") == 0
    segment(directory).write_bytes(b"".join(whole.splitlines(keepends=True)[:4]))
    world.look()
    (directory / "HEAD").unlink()
    world.look()
    with open_journal("s", base_dir=root) as journal:
        journal.append_many(turn("t9"))
    assert world.look().turns() == 5


def test_a_rewritten_past_that_is_rewritten_again_while_it_is_read(
    root: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read in steps, and known to as far as it ever was: no step back makes a part of it new."""
    world.begin()
    directory = session(root, "s", turns_of(300))
    world.look()
    assert world.turns() == 300
    monkeypatch.setattr("raxol_otel.fleet.fleet.SESSION_BYTES", 10_000)
    lines = segment(directory).read_bytes().splitlines(keepends=True)
    for change in (b"179000000000001", b"179000000000002"):
        lines[5] = lines[5].replace(b"179000000000000", change)
        segment(directory).write_bytes(b"".join(lines))
        world.look()
        assert vars(world.fleet)["_entries"]["s"].has_more
    for _ in range(20):
        world.look()
    assert (world.states(), world.turns()) == ({"healthy": 1}, 300)
    assert not vars(world.fleet)["_entries"]["s"].has_more


def test_a_known_past_is_remembered_in_the_middle_of_reading_it(root: Path) -> None:
    """Saved and taken up again there, it is silent to where it was known, and heard from there on."""
    directory = session(root, "s", turns_of(300))
    heard: list[int] = []

    def listen(_fold: TurnFold) -> Observer:
        return lambda records, _spans: heard.extend(one["id"] for one in records)

    first = Followed(directory, listen=listen)
    first.catch_up()
    assert heard == list(range(1, 601))
    lines = segment(directory).read_bytes().splitlines(keepends=True)
    lines[3] = lines[3].replace(b"1790000000000000", b"1790000000000001")
    segment(directory).write_bytes(b"".join(lines))
    assert first.catch_up(10_000) == "rewritten"
    assert first.tail.has_more
    with open_journal("s", base_dir=root) as journal:
        journal.append_many(turn("new"))
    heard.clear()
    second = Followed(directory, saved=first.save(), listen=listen)
    while second.catch_up(10_000) or second.tail.has_more:
        pass
    assert heard == [601, 602]


def test_a_state_that_another_process_holds(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Looks go on, and one line tells; what is known is written when the other lets go, and no restart counts it."""
    monkeypatch.setattr(state_module, "_BUSY_SECONDS", 0.05)
    monkeypatch.setattr(kept_module, "RETRY_SECONDS", 0.0)
    monkeypatch.setattr("raxol_otel.fleet.fleet.KEEP_SECONDS", 0.0)
    state = tmp_path / "state.db"
    world = World(root, state).begin()
    other = sqlite3.connect(state, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    session(root, "s", turns_of(3))
    session(root, "gone", turns_of(2))
    assert world.look().turns() == 5
    (root / "gone").rename(tmp_path / "gone")
    assert world.look().look().states() == {"healthy": 1}
    assert caplog.text.count("cannot use the state file") == 1
    other.execute("ROLLBACK")
    other.close()
    world.close()
    again = World(root, state).begin()
    assert (again.turns(), again.states()) == (0, {"healthy": 1})
    again.close()


def test_sessions_that_are_let_go_of_while_the_state_cannot_be_written(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More sessions than are kept hot: none is unreadable for it, and none is counted twice."""
    monkeypatch.setattr(state_module, "_BUSY_SECONDS", 0.05)
    monkeypatch.setattr("raxol_otel.fleet.fleet.HOT_MAX", 3)
    state = tmp_path / "state.db"
    world = World(root, state).begin()
    other = sqlite3.connect(state, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for number in range(10):
        session(root, f"s{number}", turns_of(2))
    assert world.look().turns() == 20
    for number in range(10):
        with open_journal(f"s{number}", base_dir=root) as journal:
            journal.append_many(turn("more"))
    assert world.look().turns() == 30
    assert world.states() == {"healthy": 10}
    other.execute("ROLLBACK")
    other.close()
    world.close()


def test_a_folder_that_cannot_be_listed_begins_no_baseline(tmp_path: Path) -> None:
    """A file in its place: that is an error, and not a fleet without sessions."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    world = World(tmp_path / "file")
    with pytest.raises(NotADirectoryError):
        world.fleet.first_look(threading.Event())
    assert world.state.began_at is None
    (tmp_path / "file").unlink()
    raw_session(tmp_path / "file" / "s", 2)
    assert world.begin().turns() == 0
    world.close()


def test_a_session_that_was_damaged_while_nobody_looked(root: Path, tmp_path: Path) -> None:
    """Between two runs of an exporter: it is new damage, counted once."""
    state = tmp_path / "state.db"
    directory = session(root, "s", turns_of(3))
    World(root, state).begin().close()
    damage(directory)
    world = World(root, state).begin()
    assert world.value("raxol_journal_damaged_total", cause="nul_run", source="fleet") == 1
    assert (world.states(), world.turns()) == ({"damaged": 1}, 0)
    world.close()


def test_an_acknowledged_lost_tail_is_no_longer_counted(root: Path, tmp_path: Path) -> None:
    """It stays on the page, as known."""
    names = tmp_path / "acknowledged"
    for name in ("one", "two"):
        path = segment(session(root, name, turns_of(2)))
        path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:3]))
    world = World(root, acknowledged=names).begin()
    assert world.value("raxol_journal_sessions_behind_head") == 2
    names.write_text("two\n", encoding="utf-8")
    assert world.look().value("raxol_journal_sessions_behind_head") == 1
    assert {facts.name: facts.is_acknowledged for facts in world.fleet.facts().troubles} == {"one": False, "two": True}
    assert world.value("raxol_journal_damaged_acknowledged") == 0
    world.close()


def test_a_file_system_that_is_not_mounted_for_a_while(tmp_path: Path) -> None:
    """An empty folder on another device is no fleet without sessions: it is waited for; nothing is counted again."""
    done = in_own_mounts(f"exec {sys.executable} -m tests.fleet_mounts $1", tmp_path)
    assert done.returncode == 0, done.stderr
    missing, there = "a file system is not mounted there", [{"healthy": 2}, 0]
    assert json.loads(done.stdout) == [there, missing, missing, missing, there, [{}, 0]]


@pytest.mark.parametrize("program", ["#!/bin/sh\necho 100 100\necho half of it\n", "#!/bin/sh\nexit 3\n", None])
def test_workers_that_die_amid_their_answers(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, program: str | None
) -> None:
    """Or cannot be started at all: the sessions are unreadable for now, then read, and were there before."""
    executable = tmp_path / "python"
    if program is not None:
        executable.write_text(program, encoding="ascii")
        executable.chmod(0o755)
    for number in range(3):
        raw_session(root / f"s{number}", 2)
    monkeypatch.setattr(sys, "executable", str(executable))
    answers = list(read_sessions(root, dict.fromkeys(("s0", "s1", "s2"), 1), 2, threading.Event(), time.time()))
    assert sorted(answer.where for answer in answers) == ["s0", "s1", "s2"]
    assert {Entry.restored(answer.where, answer.facts).error for answer in answers} == {"the process that read it died"}
    world = World(root).begin()
    assert (world.states(), world.turns()) == ({"healthy": 3}, 0)
    world.close()


def test_a_first_look_shows_signs_of_life(root: Path) -> None:
    """Also while one long journal is read: whoever asks for the health of the exporter is not told that it hangs."""
    raw_session(root / "long", 20_000, padding=500)
    beats: list[float] = []
    answers = list(
        read_sessions(root, {"long": 1}, 1, threading.Event(), time.time(), beat=lambda: beats.append(time.monotonic()))
    )
    assert len(answers) == 1
    assert max(later - earlier for earlier, later in pairwise(beats)) < 2
    assert len(beats) >= 2
