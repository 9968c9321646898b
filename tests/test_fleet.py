"""A fleet of real journals, looked at again and again: what is counted, what is shown, and what costs nothing."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client import CollectorRegistry

from raxol_otel.errors import UsageError
from raxol_otel.exporters.prometheus import FleetCollector
from raxol_otel.fleet import followed as followed_module
from raxol_otel.fleet.fleet import Fleet
from raxol_otel.fleet.state import FleetState
from raxol_otel.journal import open_journal
from raxol_otel.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raxol_otel.fleet.followed import Observer
    from raxol_otel.turns import TurnFold

SECOND: Final = 1_000_000
START: Final = 1_790_000_000 * SECOND


def record(kind: str, turn: str = "t1", **payload: Any) -> dict[str, Any]:
    """An event of a turn."""
    return {"family": "loop", "tier": "durable", "type": kind, "turn_id": turn, "ts": START, "payload": payload}


def turn(name: str = "t1") -> list[dict[str, Any]]:
    """A whole turn of one provider call."""
    return [record("turn_started", name), record("turn_completed", name, final=True)]


class World:
    """A folder of sessions and what looks at it."""

    def __init__(self, root: Path, state: Path | None = None, acknowledged: Path | None = None) -> None:
        self.root = root
        self.state = FleetState(state)
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, source="fleet")
        self.metrics.attach()
        self.fleet = Fleet(root, self.state, metrics=self.metrics, acknowledged=acknowledged)
        self.registry.register(FleetCollector(self.fleet.facts))

    def begin(self) -> World:
        """Take the first look."""
        assert self.fleet.first_look(threading.Event())
        return self

    def look(self) -> World:
        """Look at everything."""
        # What changed within one tick of the kernel's clock is looked at again by the next look.
        time.sleep(0.03)
        self.fleet.look(None)
        return self

    def value(self, name: str, **labels: str) -> float | None:
        """A sample of the registry."""
        return self.registry.get_sample_value(name, labels)

    def turns(self, outcome: str = "completed") -> float | None:
        """How many turns ended so."""
        return self.value("raxol_turns_total", outcome=outcome, source="fleet")

    def states(self) -> dict[str, int]:
        """Sessions by state."""
        return {state: count for state, count in self.fleet.facts().states.items() if count}

    def close(self) -> None:
        """Keep what is known, and end."""
        self.fleet.keep()
        self.metrics.detach()
        self.state.close()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty sessions directory."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    return folder


@pytest.fixture
def world(root: Path) -> Iterator[World]:
    """A world without a state file."""
    made = World(root)
    yield made
    made.close()


def session(root: Path, name: str, events: list[dict[str, Any]], **options: Any) -> Path:
    """Write a session and close it."""
    with open_journal(name, base_dir=root, **options) as journal:
        journal.append_many(events)
    return root / name


def segment(directory: Path) -> Path:
    """The first segment."""
    return directory / "journal" / "000001.jsonl"


def damage(directory: Path) -> None:
    """Put NULs in the place of the last line, in place: the size stays."""
    path = segment(directory)
    text = path.read_bytes()
    begin = text.rstrip(b"\n").rfind(b"\n") + 1
    with path.open("r+b") as file:
        file.seek(begin)
        file.write(b"\0" * (len(text) - begin - 1))


def test_what_was_there_before_is_the_baseline(root: Path, world: World) -> None:
    """Old turns and old damage are in gauges and in no counter; an old open turn that ends is counted once, whole."""
    session(root, "old", [*turn(), *turn("t2")])
    damage(session(root, "broken", turn()))
    with open_journal("going", base_dir=root) as journal:
        journal.append_many([record("turn_started"), record("turn_completed", final=False)])
        world.begin()
        assert world.states() == {"healthy": 2, "damaged": 1}
        assert world.turns() == 0
        assert world.value("raxol_journal_damaged_total", cause="nul_run", source="fleet") == 0
        assert world.value("raxol_journal_session_damaged", session_id="broken", cause="nul_run") == 1
        assert world.value("raxol_journal_open_turns") == 1
        journal.append(record("turn_completed", final=True))
        world.look()
        assert world.turns() == 1
        # Two provider calls: the one before the baseline belongs to the turn.
        assert world.value("raxol_turn_iterations_sum", source="fleet") == 2
        assert world.value("raxol_journal_open_turns") == 0
        assert world.look().turns() == 1


def test_a_session_that_comes_later_is_counted_from_its_beginning(root: Path, world: World) -> None:
    """It was not there when the state began, so all it holds happened since."""
    world.begin()
    session(root, "new", [*turn(), *turn("t2")])
    assert world.look().turns() == 2
    assert world.value("raxol_journal_records_total", type="turn_started", source="fleet") == 2
    assert world.look().turns() == 2


def test_damage_shows_with_its_name_and_cause_and_is_counted_once(root: Path, world: World) -> None:
    """A file that is damaged in place while it is watched."""
    directory = session(root, "s", [*turn(), *turn("t2")])
    world.begin()
    damage(directory)
    for _ in range(3):
        world.look()
        assert world.states() == {"damaged": 1}
        assert world.value("raxol_journal_session_damaged", session_id="s", cause="nul_run") == 1
        assert world.value("raxol_journal_damaged_total", cause="nul_run", source="fleet") == 1
    (trouble,) = world.fleet.facts().troubles
    lines = segment(directory).read_bytes().split(b"\n")
    assert trouble.place == f"journal/000001.jsonl line 4, byte {sum(map(len, lines[:3])) + 3}"
    assert (trouble.cause, trouble.last_offset) == ("nul_run", 3)


def test_a_mended_journal_is_healthy_again_and_nothing_is_counted_twice(root: Path, world: World) -> None:
    """A backup that is put back."""
    directory = session(root, "s", [*turn(), *turn("t2")])
    world.begin()
    text = segment(directory).read_bytes()
    damage(directory)
    assert world.look().states() == {"damaged": 1}
    segment(directory).write_bytes(text)
    world.look()
    assert world.states() == {"healthy": 1}
    assert world.turns() == 0


def test_acknowledged_damage_pages_nobody_and_stays_visible(root: Path, tmp_path: Path) -> None:
    """By name, in a file that is read again when it changes."""
    names = tmp_path / "acknowledged"
    damage(session(root, "one", turn()))
    damage(session(root, "two", turn()))
    world = World(root, acknowledged=names).begin()
    assert world.value("raxol_journal_damaged_acknowledged") == 0
    names.write_text("# known since Monday\none   # the disk of host 7\n\n", encoding="utf-8")
    world.look()
    assert world.value("raxol_journal_session_damaged", session_id="one", cause="nul_run") is None
    assert world.value("raxol_journal_session_damaged", session_id="two", cause="nul_run") == 1
    assert world.value("raxol_journal_damaged_acknowledged") == 1
    assert world.states() == {"damaged": 2}
    assert {facts.name: facts.is_acknowledged for facts in world.fleet.facts().troubles} == {"one": True, "two": False}
    names.unlink()
    assert world.look().value("raxol_journal_damaged_acknowledged") == 0
    world.close()


def test_only_so_many_damaged_sessions_are_named(root: Path, world: World) -> None:
    """100, and how many more there are."""
    for number in range(103):
        damage(session(root, f"s{number}", turn()))
    world.begin()
    assert len(world.fleet.facts().named) == 100
    assert world.value("raxol_journal_damaged_omitted") == 3


def test_a_lost_tail_and_a_torn_one(root: Path, world: World) -> None:
    """HEAD that names more than there is has a gauge of its own; a torn line is no damage."""
    lost = segment(session(root, "lost", [*turn(), *turn("t2")]))
    lost.write_bytes(b"".join(lost.read_bytes().splitlines(keepends=True)[:3]))
    torn = segment(session(root, "torn", turn()))
    torn.write_bytes(torn.read_bytes() + b'{"id":3,"fam')
    world.begin()
    assert world.states() == {"healthy": 1, "torn": 1}
    assert world.value("raxol_journal_sessions_behind_head") == 1
    (trouble,) = world.fleet.facts().troubles
    assert (trouble.name, trouble.is_behind_head, trouble.last_offset, trouble.head_offset) == ("lost", True, 3, 4)


def test_one_bad_session_never_hides_the_others(root: Path, world: World) -> None:
    """A file in the place of a folder, a link to itself, names that are no text, a line without end."""
    session(root, "good", turn())
    (root / "file").mkdir()
    (root / "file" / "journal").write_text("no folder", encoding="utf-8")
    (root / "file" / "meta.json").write_text("{}", encoding="utf-8")
    (root / "loop").symlink_to(root / "loop")
    (root / "up").symlink_to(root)
    Path(os.fsdecode(os.fsencode(root) + b"/\xff\xfe")).mkdir()
    odd = session(root, "odd", turn())
    odd.rename(os.fsdecode(os.fsencode(root) + b"/\xff\xfe/\xc3("))
    world.begin()
    assert world.states() == {"healthy": 2, "unreadable": 1}
    (trouble,) = world.fleet.facts().troubles
    assert (trouble.name, trouble.error) == ("file", "Not a directory")
    assert world.value("raxol_exporter_scan_errors_total") == 1
    world.look().look()
    assert world.states() == {"healthy": 2, "unreadable": 1}
    assert world.value("raxol_exporter_scan_errors_total") == 1


def test_an_unreadable_session_comes_back(root: Path, world: World) -> None:
    """What was in the way is gone: it is read, and counted from its beginning."""
    world.begin()
    directory = root / "s"
    directory.mkdir()
    (directory / "meta.json").write_text("{}", encoding="utf-8")
    (directory / "HEAD").write_text("{}", encoding="utf-8")
    (directory / "journal").write_text("in the way", encoding="utf-8")
    assert world.look().states() == {"unreadable": 1}
    (directory / "journal").unlink()
    session(root, "s", turn())
    assert world.look().states() == {"healthy": 1}
    assert world.turns() == 1


def test_an_enormous_line_is_told_and_not_read(root: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond a bound a session is unreadable: whoever watches thousands must stay small."""
    monkeypatch.setattr(followed_module, "LINE_BYTES_MAX", 10_000)
    world.begin()
    session(root, "big", [record("item_started", text="x" * 20_000)])
    session(root, "good", turn())
    world.look()
    assert world.states() == {"healthy": 1, "unreadable": 1}
    assert "line 1" in world.fleet.facts().troubles[0].error


def test_sessions_that_vanish_are_gone(root: Path, world: World) -> None:
    """From all gauges; one that comes again under the name is new."""
    directory = session(root, "s", turn())
    world.begin()
    gone = root.parent / "gone"
    directory.rename(gone)
    assert world.look().states() == {}
    assert world.value("raxol_journal_bytes") == 0
    session(root, "s", turn("t9"))
    assert world.look().turns() == 1


def test_sessions_in_folders_and_behind_links(root: Path, world: World, tmp_path: Path) -> None:
    """Found below folders, and through a link once."""
    team = root / "team"
    team.mkdir()
    session(team, "one", turn())
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    damage(session(elsewhere, "two", turn()))
    (root / "linked").symlink_to(elsewhere / "two")
    (root / "again").symlink_to(elsewhere / "two")
    world.begin()
    assert world.states() == {"healthy": 1, "damaged": 1}
    assert world.fleet.facts().named == (("again", "nul_run"),)


def test_writers_and_what_they_have_open(root: Path, world: World) -> None:
    """A live one, a dead one that left its lock, and ages of open turns and of one that waits for an approval."""
    script = (
        "import os, sys\nfrom raxol_otel.journal import open_journal\n"
        f"journal = open_journal('dead', base_dir={str(root)!r})\n"
        "event = {'family': 'loop', 'type': 'turn_started', 'turn_id': 't', 'ts': 1, 'payload': {}}\n"
        "journal.append(event, sync=True)\n"
        "os._exit(0)\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
    now = time.time_ns() // 1000
    with open_journal("busy", base_dir=root) as busy, open_journal("waits", base_dir=root) as waits:
        busy.append({**record("turn_started"), "ts": now - 90 * SECOND})
        waits.append({**record("turn_started"), "ts": now - 500 * SECOND})
        waits.append({**record("approval_requested", request_id="r"), "ts": now - 30 * SECOND})
        world.begin()
        assert world.fleet.facts().writers == {"live": 2, "stale": 1, "unknown": 0}
        # The dead writer's turn is not open: nobody will end it.
        assert world.value("raxol_journal_open_turns") == 2
        assert world.value("raxol_journal_oldest_open_turn_seconds") == pytest.approx(90, abs=5)
        assert world.value("raxol_journal_oldest_approval_seconds") == pytest.approx(30, abs=5)
    world.look()
    assert world.fleet.facts().writers == {"live": 0, "stale": 1, "unknown": 0}
    assert world.value("raxol_journal_oldest_open_turn_seconds") == 0


def test_head_lag_is_that_of_live_writers(root: Path, world: World) -> None:
    """Records that are appended and not yet in HEAD."""
    with open_journal("s", base_dir=root, sync_ceiling_ms=600_000, immediate_sync_types=()) as journal:
        journal.append(record("turn_started"), sync=True)
        journal.flush()
        head = (root / "s" / "HEAD").read_bytes()
        journal.append_many([record("item_started", item_id=str(number)) for number in range(5)], sync=True)
        (root / "s" / "HEAD").write_bytes(head)
        world.begin()
        assert world.value("raxol_journal_head_lag_records") == 5


def test_a_long_journal_is_read_over_several_looks(root: Path, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that no session keeps the others waiting; all of it is counted in the end."""
    monkeypatch.setattr("raxol_otel.fleet.fleet.SESSION_BYTES", 20_000)
    world.begin()
    session(root, "long", [event for number in range(500) for event in turn(f"t{number}")])
    session(root, "short", turn())
    world.look()
    first = world.turns() or 0
    assert 1 < first < 501
    for _ in range(20):
        world.look()
    assert world.turns() == 501


def test_a_restart_goes_on_where_it_stood(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is read twice, what came meanwhile is counted, known damage is not found anew, open turns go on."""
    state = tmp_path / "state.db"
    damage(session(root, "broken", turn()))
    session(root, "idle", turn())
    with open_journal("going", base_dir=root) as journal:
        journal.append_many([*turn(), record("turn_started", "t2"), record("turn_completed", "t2", final=False)])
        World(root, state).begin().close()
        journal.append_many([record("turn_completed", "t2", final=True), *turn("t3")])
        world = World(root, state)
        read: list[str] = []

        def listen(fold: TurnFold) -> Observer:
            return lambda records, _spans: read.extend(f"{fold.session_id}:{one['id']}" for one in records)

        monkeypatch.setattr(world.fleet, "_listen", listen)
        world.begin()
        assert read == ["going:5", "going:6", "going:7"]
        assert world.states() == {"healthy": 2, "damaged": 1}
        world.close()
        again = World(root, state).begin()
        assert (again.turns(), again.value("raxol_journal_damaged_total", cause="nul_run", source="fleet")) == (0, 0)
        journal.append_many(turn("t4"))
        assert again.look().turns() == 1
        again.close()


def test_a_corrupt_state_is_set_aside_and_begun_anew(root: Path, tmp_path: Path) -> None:
    """Kept under another name, told, and what there is becomes the baseline again."""
    state = tmp_path / "state.db"
    state.write_bytes(b"this was a database once" * 100)
    told: list[str] = []
    FleetState(state, notice=told.append).close()
    (aside,) = tmp_path.glob("state.db.corrupt-*")
    assert aside.read_bytes().startswith(b"this was a database once")
    assert str(state) in told[0]
    assert aside.name in told[0]
    session(root, "s", turn())
    world = World(root, state).begin()
    assert world.turns() == 0
    world.close()


def test_a_state_of_a_newer_version_or_of_another_program_is_refused(tmp_path: Path) -> None:
    """Untouched, with one error that names the file and the way out."""
    state = tmp_path / "state.db"
    made = FleetState(state)
    made.close()
    with sqlite3.connect(state) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    before = state.read_bytes()
    with pytest.raises(UsageError, match="version 99") as error:
        FleetState(state)
    assert error.value.hint
    assert state.read_bytes() == before
    other = tmp_path / "other.db"
    with sqlite3.connect(other) as database:
        database.execute("CREATE TABLE theirs (x)")
    database.close()
    with pytest.raises(UsageError, match="another program"):
        FleetState(other)


def test_a_state_is_held_by_one(tmp_path: Path) -> None:
    """A second exporter is told who to ask, and the first goes on."""
    held = FleetState(tmp_path / "state.db")
    with pytest.raises(UsageError, match="in use"):
        FleetState(tmp_path / "state.db")
    held.close()
    FleetState(tmp_path / "state.db").close()


def test_a_folder_that_is_not_there_yet(tmp_path: Path) -> None:
    """Whoever asks is told; nothing is ready."""
    world = World(tmp_path / "later")
    with pytest.raises(FileNotFoundError):
        world.fleet.first_look(threading.Event())
    assert not world.fleet.facts().is_ready
    (tmp_path / "later").mkdir()
    assert world.begin().fleet.facts().is_ready
    world.close()
