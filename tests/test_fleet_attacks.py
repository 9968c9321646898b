"""Sessions and files beside them that nobody meant: each costs at most itself, and a scrape always comes."""

from __future__ import annotations

import json
import os
import shutil
import time
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from raxol_otel.fleet.acknowledged import Acknowledged
from raxol_otel.fleet.discovery import Discovery
from raxol_otel.fleet.entry import Entry
from raxol_otel.fleet.page import render_page
from raxol_otel.journal import open_journal
from tests import test_fleet
from tests.fleet_processes import raw_session
from tests.metrics_scrape import families, openmetrics
from tests.test_fleet import World, damage, record, segment, session, turn

GOOD = "good"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A sessions directory with one good session."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    session(folder, GOOD, turn())
    return folder


world = test_fleet.world


def told(world: World) -> str:
    """A scrape in both formats, and the page; the first one's text."""
    assert families(openmetrics(world.registry))
    assert render_page(world.fleet.facts())
    return generate_latest(world.registry).decode()


def entry(world: World, where: str) -> Entry:
    """What is known of a session."""
    found: Entry = vars(world.fleet)["_entries"][where]
    return found


def restarted(world: World) -> None:
    """What is known can be kept, and read again."""
    world.fleet.keep()
    for where, facts in world.state.sessions():
        assert Entry.restored(where, facts).saved() == facts == entry(world, where).saved()


def lines(directory: Path, *texts: bytes, head: bytes | None = None, meta: bytes = b"{}") -> Path:
    """A session of these lines."""
    (directory / "journal").mkdir(parents=True)
    segment(directory).write_bytes(b"".join(text + b"\n" for text in texts))
    (directory / "meta.json").write_bytes(meta)
    if head is not None:
        (directory / "HEAD").write_bytes(head)
    return directory


@pytest.mark.parametrize("head", [1, -(10**1000), 10**1000])
def test_offsets_of_a_thousand_digits(root: Path, world: World, head: int) -> None:
    """They are followed and kept; a lag that no metric can say is a large one, and costs no scrape."""
    first = 10**999
    event = '{"id":%d,"family":"loop","type":"turn_started","turn_id":"t%d","ts":1790000000000000,"payload":{}}'
    texts = [(event % (first + number, number)).encode() for number in range(3)]
    directory = lines(root / "s", *texts, head=b'{"offset":%d}' % head)
    (directory / "writer.lock").write_text(str(os.getppid()), encoding="ascii")
    world.begin().look()
    assert entry(world, "s").last_offset == first + 2
    assert world.fleet.facts().writers["live"] == 1
    assert world.value("raxol_journal_head_lag_records") == (0 if head > first else 2.0**53)
    assert "raxol_journal_head_lag_records" in told(world)
    restarted(world)


def test_turn_ids_that_are_no_text(root: Path, world: World) -> None:
    """Half a surrogate pair is no text, so its line is damage; letters beyond that are followed."""
    event = b'{"id":1,"family":"loop","type":"turn_started","turn_id":"%b","ts":1790000000000000,"payload":{}}'
    lines(root / "half", event % rb"\ud800")
    lines(root / "whole", event % rb"\ud83d\ude00\u0000\u202e\"\\")
    world.begin().look()
    assert world.states() == {"healthy": 2, "damaged": 1}
    told(world)
    restarted(world)


def test_a_great_many_branches(root: Path, world: World) -> None:
    """Each may have an open turn: what is kept of them in memory is bounded, and they do not stop a scrape."""
    world.begin()
    events = [record("turn_started", f"t{number}") | {"branch": f"b{number}"} for number in range(5_000)]
    with open_journal("s", base_dir=root) as journal:
        journal.append_many(events)
        world.look()
        assert world.states() == {"healthy": 2}
        assert 1 <= len(entry(world, "s").open_turns) <= 2_000
        assert len(entry(world, "s").saved()) < 200_000
    told(world)
    restarted(world)


def test_times_before_and_beyond_all_clocks(root: Path, world: World) -> None:
    """Of open turns of a live writer: their age is a number all the same."""
    world.begin()
    with open_journal("s", base_dir=root) as journal:
        for number, ts in enumerate((-1, 0, 2**63, 10**30, -(10**30))):
            journal.append({**record("turn_started", f"t{number}"), "ts": ts, "branch": f"b{number}"})
        world.look()
        age = world.value("raxol_journal_oldest_open_turn_seconds")
        assert age is not None
        assert age >= 0
        told(world)
        restarted(world)


def test_a_clock_that_is_set_back(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a day, between two looks: states, ages and damage are told as before."""
    world = World(root)
    clock = [2_000_000_000.0]
    monkeypatch.setattr(world.fleet, "_now", lambda: clock[0])
    world.begin()
    with open_journal("s", base_dir=root) as journal:
        journal.append({**record("turn_started"), "ts": 2_000_000_000_000_000})
        world.look()
        clock[0] -= 86_400
        damage(root / GOOD)
        world.look()
        assert world.states() == {"healthy": 1, "damaged": 1}
        assert world.fleet.facts().looked_at == clock[0]
        assert world.value("raxol_journal_oldest_open_turn_seconds") == 0
        told(world)
    world.close()


@pytest.mark.parametrize("what", ["pipe", "folder", "loop", "dangling", "device"])
def test_something_else_in_a_segments_place(root: Path, world: World, what: str) -> None:
    """It is waited for by nobody; what was counted before is not counted again when the segment is back."""
    world.begin()
    directory = session(root, "s", [*turn(), *turn("t2")])
    assert world.look().turns() == 2
    path, aside = segment(directory), root.parent / "aside"
    path.rename(aside)
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to({"loop": path, "dangling": root / "nothing", "device": Path("/dev/zero")}[what])
    world.look()
    assert world.states() == {"healthy": 1, "unreadable": 1}
    told(world)
    if path.is_dir():
        path.rmdir()
    else:
        path.unlink()
    aside.rename(path)
    assert world.look().states() == {"healthy": 2}
    assert world.value("raxol_exporter_scan_errors_total") == 1


def test_a_huge_head_and_a_huge_meta(root: Path, world: World) -> None:
    """HEAD says nothing then; a meta.json that is too large cannot be read: it might say that there is a chain."""
    event = b'{"id":1,"family":"loop","type":"turn_started","turn_id":"t","payload":{}}'
    lines(root / "head", event, head=b'{"offset":1,"x":"' + b"x" * 20 * 2**20 + b'"}')
    lines(root / "meta", event, meta=b'{"x":"' + b"x" * 20 * 2**20 + b'"}')
    world.begin().look()
    assert world.states() == {"healthy": 2, "unreadable": 1}
    assert world.fleet.facts().troubles[0].where == "meta"


def test_a_meta_that_says_now_this_now_that(root: Path, world: World) -> None:
    """Chained or not, again and again: the verdict follows, and nothing is counted twice."""
    world.begin()
    directory = session(root, "s", [*turn(), *turn("t2")], chain=True)
    assert world.look().turns() == 2
    meta = json.loads((directory / "meta.json").read_bytes())
    for number in range(6):
        (directory / "meta.json").write_text(json.dumps(meta | {"chain": number % 2 == 1}), encoding="utf-8")
        assert world.look().states() == {"healthy": 2}
    assert world.turns() == 2


def test_sessions_that_are_replaced_while_they_are_read(root: Path, world: World) -> None:
    """By renaming, at every look: what is seen is one or the other."""
    world.begin()
    for number in range(8):
        made = session(root.parent / "made", "s", [event for one in range(20) for event in turn(f"n{number}-{one}")])
        if (root / "s").exists():
            (root / "s").rename(root.parent / f"old-{number}")
        made.rename(root / "s")
        world.look()
        assert world.states() == {"healthy": 2}
        assert world.turns() == 20 * (number + 1)


def test_names_that_are_no_text(root: Path, world: World) -> None:
    """Shown so that anybody can print them, told apart, and kept over a restart."""
    for name in (b"\xff", b"\xfe", b"new\nline", b'quo"te', b"back\\slash", b"\x1b[2J", b"a" * 255):
        directory = Path(os.fsdecode(os.fsencode(root) + b"/" + name))
        damage(raw_session(directory, 2))
    world.begin().look()
    assert world.states() == {"healthy": 1, "damaged": 7}
    # Two that are no text may look alike.
    assert told(world).count("raxol_journal_session_damaged{") in {6, 7}
    restarted(world)


def test_links_that_change_where_they_lead(root: Path, tmp_path: Path, world: World) -> None:
    """A link to a session that is turned to another one, and one that takes a session's place, are followed."""
    elsewhere = tmp_path / "elsewhere"
    one, two = raw_session(elsewhere / "one", 2), raw_session(elsewhere / "two", 5)
    (root / "link").symlink_to(one)
    world.begin()
    (root / "new").symlink_to(two)
    (root / "new").rename(root / "link")
    world.look().look()
    assert world.states() == {"healthy": 2}
    assert entry(world, "link").last_offset == 10
    # No change is told behind a link, so that it is looked at every time.
    assert vars(world.fleet)["_discovery"].linked == {"link"}
    damage(two)
    time.sleep(0.03)
    world.fleet.look(set())
    assert world.states() == {"healthy": 1, "damaged": 1}


def test_a_session_that_can_be_met_in_two_ways(tmp_path: Path) -> None:
    """It is one, and stays when the way that it was met by is gone."""
    root = tmp_path / "sessions"
    directory = raw_session(tmp_path / "elsewhere" / "s")
    for team in ("a", "b"):
        (root / team).mkdir(parents=True)
        (root / team / "link").symlink_to(directory)
    discovery = Discovery(root)
    discovery.look()
    assert set(discovery.sessions) == {"a/link"}
    time.sleep(0.05)
    discovery.look()
    (root / "a" / "link").unlink()
    assert discovery.look()[1] == {"a/link"}
    discovery.look()
    assert set(discovery.sessions) == {"b/link"}


def test_folders_that_lead_in_circles_come_to_an_end(root: Path, world: World) -> None:
    """Links up, to each other, and deeper than anybody looks."""
    deep = root
    for number in range(12):
        deep /= f"d{number}"
        deep.mkdir()
        (deep / "up").symlink_to(root)
        (deep / "self").symlink_to(deep)
    (root / "x").symlink_to(root / "y")
    (root / "y").symlink_to(root / "x")
    raw_session(deep / "too-deep")
    world.begin().look()
    assert world.states() == {"healthy": 1}


# -- the acknowledgements


def test_acknowledgements_that_are_no_plain_file(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A folder, a pipe: nobody waits for them, one line tells, and what was acknowledged before stays so."""
    path = tmp_path / "acknowledged"
    path.write_text("one\n", encoding="utf-8")
    known = Acknowledged(path)
    assert known.names() == {"one"}
    path.unlink()
    os.mkfifo(path)
    assert [known.names() for _ in range(3)] == [{"one"}] * 3
    assert caplog.text.count("cannot read the acknowledgements") == 1
    path.unlink()
    path.mkdir()
    assert known.names() == {"one"}
    shutil.rmtree(path)
    assert known.names() == set()


def test_acknowledgements_of_any_bytes(tmp_path: Path) -> None:
    """A name that is no text is written as its bytes; marks of an editor or of another system are no part of it."""
    path = tmp_path / "acknowledged"
    path.write_bytes(b"\xef\xbb\xbfone\r\n\xff\xfe  # odd\n\0\n" + bytes(range(11, 35)))
    names = Acknowledged(path).names()
    assert {"one", os.fsdecode(b"\xff\xfe")} <= names


def test_too_many_acknowledgements(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """What is beyond the bound is not read, also not half a name of it; that is told."""
    path = tmp_path / "acknowledged"
    line = b"session-%06d\n"
    path.write_bytes(b"".join(line % number for number in range(400_000)))
    names = Acknowledged(path).names()
    # 4 MiB, and 15 bytes a line.
    assert len(names) == 4 * 2**20 // 15
    assert all(len(name) == len("session-000000") for name in names)
    assert "the rest is not read" in caplog.text
