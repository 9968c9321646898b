"""Several processes that want one journal at once: never two writers, in thousands of tries."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import JournalLocked
from raxol_otel.journal import lock as locks
from raxol_otel.journal import scan, verify
from tests.conftest import NOBODY
from tests.exporter_contract import environment
from tests.lock_processes import SESSION, lock_of, make_base, public_base, started

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

    from tests.lock_processes import Program

# How long before they try the contenders are told of it, for each of them.
NOTICE_SECONDS: Final = 0.0004


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


def plant(base: Path, kind: str, dead: int) -> None:
    """Leave what a writer that is gone, or anything else, may have left at the lock's place."""
    path, other = lock_of(base), base / "other"
    path.unlink(missing_ok=True)
    other.unlink(missing_ok=True)
    if kind == "file":
        path.write_text(str(dead))
    elif kind == "link to nothing":
        path.symlink_to("nothing")
    elif kind != "nothing":
        other.write_text(str(dead))
        (os.link if kind == "hard link" else os.symlink)(other, path)


@contextmanager
def contenders(count: int, what: str, base: Path) -> Generator[list[Program]]:
    """Processes that try when they are told."""
    with ExitStack() as stack:
        yield [stack.enter_context(started("race", what, base, SESSION)) for _ in range(count)]


def contend(programs: list[Program]) -> list[dict[str, Any]]:
    """One try: all at the same moment; the winners keep what they have until all have answered."""
    moment = time.monotonic() + NOTICE_SECONDS * len(programs)
    for program in programs:
        program.tell(moment)
    replies = [program.hear() for program in programs]
    for program in programs:
        program.tell("end")
    for program in programs:
        assert program.hear() == {"ended": True}
    return replies


def assert_one_winner(replies: list[dict[str, Any]]) -> None:
    """Exactly one writes, and every other was refused as it should be."""
    assert len([reply for reply in replies if "won" in reply]) == 1, replies
    assert {reply["error"] for reply in replies if "won" not in reply} <= {"JournalLocked"}, replies


@pytest.mark.parametrize(
    ("count", "kind", "tries"),
    [
        *((2, "file", 1000), (8, "file", 1000), (2, "nothing", 300), (8, "nothing", 100)),
        *(
            (2, "link", 300),
            (8, "link", 200),
            (2, "link to nothing", 300),
            (2, "hard link", 300),
            (8, "hard link", 100),
        ),
    ],
)
def test_one_of_many_reclaims_a_lock(base: Path, dead: int, count: int, kind: str, tries: int) -> None:
    """A stale file is taken over in place, a link is replaced, a missing one made: by one, the others are refused."""
    with contenders(count, "lock", base) as programs:
        for _ in range(tries):
            plant(base, kind, dead)
            assert_one_winner(contend(programs))
            assert not os.path.lexists(lock_of(base))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can start another user's process")
def test_two_users_reclaim_at_once(dead: int) -> None:
    """One may write the stale file and takes it over in place, the other may not and replaces it: one of them wins."""
    with public_base() as base, ExitStack() as stack:
        users: list[list[str]] = [[], [f"--as={NOBODY}"]] * 2
        programs = [stack.enter_context(started(*user, "race", "lock", base, SESSION)) for user in users]
        for _ in range(1000):
            plant(base, "file", dead)
            lock_of(base).chmod(0o644)
            assert_one_winner(contend(programs))


def test_the_refused_are_not_told_of_a_dead_process(base: Path, dead: int) -> None:
    """Who loses a race is told of the winner, or of nobody; of the one before hardly ever, on a busy machine."""
    wrong: list[object] = []
    with contenders(4, "lock", base) as programs:
        for _ in range(100):
            plant(base, "file", dead)
            replies = contend(programs)
            winner = next(reply["won"] for reply in replies if "won" in reply)
            wrong += [reply for reply in replies if "won" not in reply and reply["pid"] not in {winner, None}]
    assert len(wrong) <= 5


def test_one_of_two_opens_the_journal(base: Path, dead: int) -> None:
    """A thousand times two reclaim the lock of a journal and append: one record each time, the ids without a gap."""
    with contenders(2, "journal", base) as programs:
        for number in range(1000):
            plant(base, "file", dead)
            replies = contend(programs)
            assert_one_winner(replies)
            assert [reply["offset"] for reply in replies if "offset" in reply] == [number + 3]
    found = scan(base / SESSION)
    assert found.ok
    assert [record["id"] for record in found.records] == list(range(1, 1003))


def test_processes_that_open_and_close_all_the_time(tmp_path: Path) -> None:
    """Each appends two records whenever it gets the journal: every offset is given once, and the chain verifies."""
    with ExitStack() as stack:
        programs = [stack.enter_context(started("churn", tmp_path, SESSION, "4")) for _ in range(3)]
        replies = [program.hear() for program in programs]
    assert [reply["odd"] for reply in replies] == [[], [], []]
    offsets = sorted(offset for reply in replies for offset in reply["offsets"])
    assert offsets == list(range(1, len(offsets) + 1))
    assert len(offsets) > 10
    assert [record["id"] for record in scan(tmp_path / SESSION).records] == offsets
    assert verify(tmp_path / SESSION) is None


def test_a_lock_taken_over_while_it_is_looked_at_is_not_removed(
    base: Path, dead: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One replaces a stale file with two names; meanwhile the other name goes, and another takes it over in place."""
    plant(base, "hard link", dead)
    real, found = locks.parse_pid, list[locks.Lock]()
    is_first = True

    def attempt() -> None:
        with contextlib.suppress(JournalLocked):
            found.append(locks.acquire(base / SESSION))

    def parse_pid(text: bytes) -> int | None:
        nonlocal is_first
        if is_first:
            is_first = False
            (base / "other").unlink()
            attempt()
        return real(text)

    monkeypatch.setattr(locks, "parse_pid", parse_pid)
    attempt()
    for one in found:
        one.release()
    assert len(found) == 1
