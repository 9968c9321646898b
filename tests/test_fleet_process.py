"""`raxol-otel serve` as a process: folders that come and go, restarts, kills, and a machine that is short of things."""

from __future__ import annotations

import os
import re
import shutil
import signal
import sqlite3
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.fleet.watch import Notified
from tests.fleet_processes import Serving, bound, raw_session, serve

if TYPE_CHECKING:
    from collections.abc import Iterator

TURNS: Final = ("raxol_turns_total", "completed")
READS: Final = "rchar: "


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An empty sessions directory."""
    folder = tmp_path / "sessions"
    folder.mkdir()
    return folder


@pytest.fixture
def large(root: Path) -> Path:
    """A sessions directory whose first look takes some seconds: 80 MB, and small sessions beside them."""
    for number in range(4):
        raw_session(root / f"large-{number}", 10_000, padding=800)
    for number in range(20):
        raw_session(root / f"small-{number}")
    return root


def damage(directory: Path) -> None:
    """Put NULs in the place of the first record's beginning."""
    with (directory / "journal" / "000001.jsonl").open("r+b") as file:
        file.write(b"\0" * 8)


def test_a_folder_that_comes_later_goes_and_comes_back(tmp_path: Path) -> None:
    """It is waited for and told, not ready; what is in it when it comes is the baseline, and followed after a gap."""
    root, gone = tmp_path / "sessions", tmp_path / "gone"
    with serve(tmp_path, root) as serving:
        serving.until(lambda: f"{root}, which does not exist yet" in serving.get("/readyz")[1])
        assert serving.get("/readyz")[0] == 503
        assert serving.get("/healthz")[0] == 200
        raw_session(tmp_path / "made" / "s", 3)
        (tmp_path / "made").rename(root)
        assert serving.ready().states() == {"healthy": 1}
        assert serving.values()[TURNS] == 0
        root.rename(gone)
        serving.until(lambda: "no longer there" in serving.get("/readyz")[1])
        assert serving.get("/readyz")[0] == 503
        gone.rename(root)
        serving.ready()
        # Another folder, and its name, mean another watch: changes in place are seen at once all the same.
        time.sleep(1)
        damage(root / "s")
        serving.until(lambda: serving.states() == {"damaged": 1}, 10)
        raw_session(root / "t", 2)
        serving.until(lambda: serving.values()[TURNS] == 2, 10)
        assert serving.end() == 0
        said = serving.said()
        assert said.count("which does not exist yet") == said.count("no longer there") == 1


def test_another_folder_in_its_place(tmp_path: Path, root: Path) -> None:
    """A folder that is swapped for another is watched as the first one was."""
    raw_session(root / "s")
    raw_session(tmp_path / "other" / "s", 5)
    with serve(tmp_path, root) as serving:
        serving.ready()
        root.rename(tmp_path / "old")
        (tmp_path / "other").rename(root)
        # Its session has the same beginning: it has grown.
        serving.until(lambda: serving.values().get(TURNS) == 4, 10)
        time.sleep(1)
        damage(root / "s")
        serving.until(lambda: serving.states() == {"damaged": 1}, 10)


def test_a_folder_that_may_not_be_listed(tmp_path: Path, root: Path) -> None:
    """Waited for and told; what is in it then is the baseline, as if it had been there at the beginning: it was."""
    prefix = bound()
    if prefix is None:
        pytest.skip("permissions bind nobody here")
    raw_session(root / "s")
    root.chmod(0)
    try:
        with serve(tmp_path, root, command=(*prefix, sys.executable, "-m", "raxol_otel")) as serving:
            serving.until(lambda: "Permission denied" in serving.get("/readyz")[1])
            root.chmod(0o755)
            serving.ready()
            assert (serving.states(), serving.values()[TURNS]) == ({"healthy": 1}, 0)
            root.chmod(0)
            serving.until(lambda: "cannot read" in serving.said())
            time.sleep(1)
            assert serving.said().count("cannot read") <= 2
            root.chmod(0o755)
            serving.until(lambda: serving.states() == {"healthy": 1})
            assert serving.values()[TURNS] == 0
    finally:
        root.chmod(0o755)


def test_what_may_not_be_read_hides_nothing_else(tmp_path: Path, root: Path) -> None:
    """A session and a folder without permissions are unreadable until they have some, and count nothing twice."""
    prefix = bound()
    if prefix is None:
        pytest.skip("permissions bind nobody here")
    closed, team = raw_session(root / "closed"), root / "team"
    raw_session(team / "inside")
    raw_session(root / "good")
    closed.chmod(0)
    try:
        with serve(tmp_path, root, command=(*prefix, sys.executable, "-m", "raxol_otel")) as serving:
            assert serving.ready().states() == {"healthy": 2, "unreadable": 1}
            closed.chmod(0o755)
            serving.until(lambda: serving.states() == {"healthy": 3}, 15)
            team.chmod(0)
            # The folder, which might be a session, and the session that is known to be in it.
            serving.until(lambda: serving.states() == {"healthy": 2, "unreadable": 2}, 15)
            team.chmod(0o755)
            serving.until(lambda: serving.states() == {"healthy": 3}, 15)
            assert serving.values()[TURNS] == 0
    finally:
        closed.chmod(0o755)
        team.chmod(0o755)


def test_a_state_that_cannot_be_used(tmp_path: Path, root: Path) -> None:
    """A newer one and another program's are refused, untouched; a corrupt one is set aside, told, and begun anew."""
    state = tmp_path / "fleet.db"
    raw_session(root / "s")
    with serve(tmp_path, root, "--state", str(state)) as serving:
        serving.ready()
        assert serving.end() == 0
    with sqlite3.connect(state) as database:
        database.execute("PRAGMA user_version = 99")
    database.close()
    before = state.read_bytes()
    with serve(tmp_path, root, "--state", str(state)) as serving:
        assert serving.process.wait(20) == 2
        assert "of version 99" in serving.said()
        # Not by us: coverage cannot write its data either.
        assert not re.search(r'File "[^"]*/raxol_otel/', serving.said())
    assert state.read_bytes() == before
    state.write_bytes(before[:4096] + b"\xff" * 8192)
    with serve(tmp_path, root, "--state", str(state)) as serving:
        assert serving.ready().states() == {"healthy": 1}
        assert "is corrupt" in serving.said()
        assert serving.end() == 0
    assert len(list(tmp_path.glob("fleet.db.corrupt-*"))) == 1


def test_a_signal_during_the_first_look(tmp_path: Path, large: Path) -> None:
    """It ends within 5 seconds, with exit code 0 and its workers; afterwards too. What was read is not read again."""
    state = ("--state", str(tmp_path / "fleet.db"))
    with serve(tmp_path, large, "--jobs", "2", *state) as serving:
        workers = serving.until(lambda: len(serving.children()) == 2 and serving.children())
        assert serving.get("/readyz")[0] != 200
        assert serving.end() == 0
        assert not [pid for pid in workers if Path(f"/proc/{pid}").exists()]
        # Not by us: coverage cannot write its data either.
        assert not re.search(r'File "[^"]*/raxol_otel/', serving.said())
    with serve(tmp_path, large, *state) as serving:
        assert serving.ready().states() == {"healthy": 24}
        assert serving.values()[TURNS] == 0
        assert serving.end() == 0


def test_a_worker_that_is_killed_costs_one_session_for_a_while(tmp_path: Path, large: Path) -> None:
    """The others are read, nothing hangs, and it is read later: as the baseline that it is."""
    with serve(tmp_path, large, "--jobs", "2") as serving:
        workers = serving.until(lambda: len(serving.children()) == 2 and serving.children())
        os.kill(workers[0], signal.SIGKILL)
        serving.ready()
        states = serving.states()
        assert states.get("healthy", 0) >= 23
        assert sum(states.values()) == 24
        serving.until(lambda: serving.states() == {"healthy": 24}, 20)
        assert serving.values()[TURNS] == 0


def test_an_exporter_that_is_killed_leaves_no_worker(tmp_path: Path, large: Path) -> None:
    """None lives on, and the next start is as any other."""
    state = ("--state", str(tmp_path / "fleet.db"))
    with serve(tmp_path, large, "--jobs", "2", *state) as serving:
        workers = serving.until(lambda: len(serving.children()) == 2 and serving.children())
        assert serving.end(signal.SIGKILL) == -signal.SIGKILL
        deadline = time.monotonic() + 10
        while [pid for pid in workers if Path(f"/proc/{pid}").exists()]:
            assert time.monotonic() < deadline
            time.sleep(0.1)
    with serve(tmp_path, large, *state) as serving:
        assert serving.ready().states() == {"healthy": 24}
        raw_session(large / "new")
        serving.until(lambda: serving.values()[TURNS] == 1, 10)


def read_bytes(serving: Serving) -> int:
    """How many bytes the process has read until now, of files, pipes and connections."""
    text = Path(f"/proc/{serving.process.pid}/io").read_text(encoding="ascii")
    return int(next(line for line in text.splitlines() if line.startswith(READS))[len(READS) :])


def test_a_restart_reads_no_journal_again(tmp_path: Path, root: Path) -> None:
    """Of 20 MB less than 1 MB is read by a second start, compared with one on an empty folder."""
    empty = tmp_path / "empty"
    empty.mkdir()
    for number in range(20):
        raw_session(root / f"s{number}", 500, padding=900)
    reads: dict[Path, int] = {}
    for folder in (empty, root):
        state = ("--state", str(tmp_path / f"{folder.name}.db"))
        # A change within the last tick of the clock would be looked for by reading.
        time.sleep(0.1)
        with serve(tmp_path, folder, *state) as serving:
            serving.ready()
            time.sleep(1)
            assert serving.end() == 0
        with serve(tmp_path, folder, *state) as serving:
            serving.ready()
            time.sleep(2)
            reads[folder] = read_bytes(serving)
            assert serving.states() == ({"healthy": 20} if folder == root else {})
    assert reads[root] - reads[empty] < 1_000_000


def test_without_watchfiles_everything_is_looked_at(tmp_path: Path, root: Path) -> None:
    """A library that is not there costs time, and nothing else."""
    without = "import sys; sys.modules['watchfiles'] = None; from raxol_otel.cli import main; sys.exit(main())"
    raw_session(root / "s")
    with serve(tmp_path, root, command=(sys.executable, "-c", without)) as serving:
        serving.ready()
        damage(root / "s")
        serving.until(lambda: serving.states() == {"damaged": 1}, 10)
        assert serving.end() == 0


def test_a_kernel_that_has_no_more_watches(root: Path, caplog: pytest.LogCaptureFixture) -> None:
    """It is told once, and from then on everything is looked at."""

    def watch(*_: Any, **__: Any) -> Iterator[Any]:
        message = 'OS file watch limit reached. about ["/sessions"]'
        yield set()
        raise OSError(message)

    notified = Notified(root, watch)
    deadline = time.monotonic() + 10
    while notified.take() is not None:
        assert time.monotonic() < deadline
    assert notified.take() is None
    notified.close()
    assert caplog.text.count("watch limit reached") == 1


@pytest.mark.skipif(shutil.which("prlimit") is None, reason="prlimit is not here: Debian's package `util-linux` has it")
def test_a_state_that_cannot_grow(tmp_path: Path, root: Path) -> None:
    """A full disk costs no scrape and no count: it is told once, and at the end that what is known was not kept."""
    command = ("prlimit", "--fsize=60000", sys.executable, "-m", "raxol_otel")
    with serve(tmp_path, root, "--state", str(tmp_path / "fleet.db"), command=command) as serving:
        serving.ready()
        for number in range(100):
            raw_session(root / f"s{number}")
        serving.until(lambda: "the state file" in serving.said())
        serving.until(lambda: serving.values()[TURNS] == 100)
        assert serving.states() == {"healthy": 100}
        raw_session(root / "more")
        serving.until(lambda: serving.values()[TURNS] == 101)
        assert serving.get("/healthz")[0] == serving.get("/readyz")[0] == 200
        time.sleep(6)
        assert serving.said().count("the state file") == 1
        assert serving.end() == 3
        # Not by us: coverage cannot write its data either.
        assert not re.search(r'File "[^"]*/raxol_otel/', serving.said())


def test_two_thousand_sessions(tmp_path: Path, root: Path) -> None:
    """Read, each of them followed."""
    for number in range(2_000):
        raw_session(root / f"team-{number % 7}" / f"s{number}")
    with serve(tmp_path, root, "--jobs", "2") as serving:
        assert serving.ready(60).states() == {"healthy": 2_000}
        raw_session(root / "team-3" / "new")
        damage(root / "team-3" / "s3")
        serving.until(lambda: serving.states() == {"healthy": 2_000, "damaged": 1}, 15)
        assert serving.values()[TURNS] == 1
        assert serving.values()["raxol_journal_session_damaged", "nul_run", "team-3/s3"] == 1
