"""A journal is followed while it is written: every record once, and never a false verdict."""

from __future__ import annotations

import random
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING

import pytest

from raxol_otel.testing import FaultJournal
from tests.conftest import ROOT
from tests.tail_follow import Follower
from tests.tail_processes import write_short

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.parametrize("chained", [False, True], ids=["plain", "chained"])


def look(follower: Follower, rng: random.Random) -> None:
    """One look of someone who is often started again; the verdict in between is right, too."""
    follower.look(rng.choice((None, 5_000)), rounds=1)
    assert follower.error is None
    assert follower.tail.damage is None
    if rng.random() < 0.1 and not follower.tail.has_more:
        follower.save()
    time.sleep(rng.choice((0, 0, 0.001, 0.01)))


def complete(follower: Follower, records: int) -> None:
    """In the end everything was given once, in order, without a restart."""
    while follower.tail.has_more:
        follower.look()
    follower.check()
    assert [record["id"] for record in follower.records] == list(range(1, len(follower.records) + 1))
    assert len(follower.records) >= records
    assert (follower.restarts, follower.tail.state) == ([], "healthy")


@pytest.mark.parametrize("seed", range(2))
def test_a_writer_that_is_killed_again_and_again(tmp_path: Path, chained: bool, seed: int) -> None:  # noqa: FBT001 - pytest's
    """Threads, rotations, kill -9 at any time, and a next writer that repairs what is torn."""
    rng = random.Random(seed)  # noqa: S311 - to be repeatable is the point
    follower = Follower(tmp_path / "session")
    command = [sys.executable, "-m", "tests.tail_processes", str(tmp_path), "0.6", *(["--chained"] * chained)]
    for is_killed in (True, True, True, False):
        with subprocess.Popen(command, cwd=ROOT) as writer:
            before, until = len(follower.records), time.monotonic() + 30
            while writer.poll() is None and time.monotonic() < until:
                look(follower, rng)
                if is_killed and len(follower.records) > before + rng.randrange(20, 400):
                    writer.kill()
            assert writer.wait(30) == 0 or is_killed
        look(follower, rng)
    complete(follower, 200)
    assert follower.tail.segments > 2


def test_writes_that_are_cut_back(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - pytest's
    """A write that was short is there for a moment, and gone: nothing is given of it, and nothing is damaged."""
    journal = FaultJournal(tmp_path, chain=chained, segment_cap=100_000)
    follower, rng = Follower(journal.path), random.Random(1)  # noqa: S311 - as above
    ended: list[int] = []
    thread = threading.Thread(target=lambda: ended.append(journal.run_in_child(write_short, method="spawn").exit_code))
    thread.start()
    while thread.is_alive():
        look(follower, rng)
    thread.join()
    assert ended == [0]
    complete(follower, 300)
    assert journal.fired("short_write") >= 200
