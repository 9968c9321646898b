"""Signal handlers and Ctrl-C in the middle of the writer: never damage, never a deadlock, nothing forgotten."""

from __future__ import annotations

import signal
import time
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import WriteFailed, WriterClosed
from raxol_otel.journal import open_journal, scan
from raxol_otel.journal.layout import read_head
from tests.crash_kill import in_child
from tests.crash_points import Point, UnsyncedFiles, within

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from raxol_otel.journal import Journal
    from tests.crash_kill import Said

    Call = Callable[[Journal], object]

# What an interruption between opening a file and taking hold of it leaves to the garbage collector.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
]
NEVER: Final = 1e9
# Enough points for any call here; each test stops where there are no more.
POINTS_MAX: Final = 3_000


def event(number: int = 0) -> dict[str, Any]:
    """An event of about 110 bytes on disk."""
    return {"type": "x", "payload": {"n": number, "text": "y" * 40}}


CALLS: Final[dict[str, Call]] = {
    "append": lambda journal: journal.append(event()),
    "later": lambda journal: journal.append(event(), sync=False),
    "durable": lambda journal: journal.append(event(), sync=True),
    "many": lambda journal: journal.append_many([event(), event()]),
    "checked": lambda journal: journal.append_checked(event(), len),
    "flush": lambda journal: journal.flush(),
    "read": lambda journal: journal.read(),
    "status": lambda journal: journal.status(),
}


def opened(base: Path, name: int | str, *, cap: int, ceiling: float = NEVER, chain: bool = False) -> Journal:
    """A journal with two records that are not durable; with a cap of 300 bytes the next one fills its segment."""
    journal = open_journal(
        f"s{name}", base_dir=base, segment_cap=cap, sync_ceiling_ms=ceiling, chain=chain, files=UnsyncedFiles()
    )
    journal.append(event(), sync=False)
    journal.append(event(), sync=False)
    return journal


def files_of(journal: Journal) -> UnsyncedFiles:
    """The files that `opened` gave it."""
    files = journal._writer.files  # pyright: ignore[reportPrivateUsage]
    assert isinstance(files, UnsyncedFiles)
    return files


def settled(journal: Journal, said: list[int]) -> None:
    """The journal is whole, holds all that was acknowledged, and can make everything durable."""
    said.append(journal.append(event(), sync=True))
    journal.flush()
    files = files_of(journal)
    assert [path for path, _, _ in files.unsynced if path.endswith(".jsonl")] == []
    found = scan(journal.path)
    assert found.ok, found.damage
    ids = [record["id"] for record in found.records]
    assert ids == list(range(1, len(ids) + 1))
    assert set(said) <= set(ids)
    assert len(said) == len(set(said))
    head = read_head(journal.path)
    assert head is not None
    assert head["offset"] == len(ids)


class Handler:
    """A signal handler that appends to the journal, and notes what it was told."""

    def __init__(self, journal: Journal, said: list[int]) -> None:
        self.journal, self.said = journal, said
        self.refusals: list[Exception] = []

    def __call__(self, *_: object) -> None:
        """Append one event."""
        try:
            self.said.append(self.journal.append(event(), sync=False))
        except (WriteFailed, WriterClosed) as error:
            self.refusals.append(error)


@pytest.mark.parametrize("cap", [10_000, 300, 200])
@pytest.mark.parametrize("name", CALLS)
def test_a_handler_may_append_at_any_point(tmp_path: Path, name: str, cap: int) -> None:
    """Whatever the main thread was doing: the handler's record is there and made durable like any, or it was told."""
    number = 0
    for number in range(1, POINTS_MAX):
        journal = opened(tmp_path, number, cap=cap, chain=number % 2 == 0)
        said = [1, 2]
        handler = Handler(journal, said)
        point = Point(number, handler)
        point.run(lambda: CALLS[name](journal))  # noqa: B023 - called at once
        assert all("in the middle of" in str(error) for error in handler.refusals)
        check(point, lambda: settled(journal, said))  # noqa: B023 - called at once
        journal.close()
        if not point.where:
            break
        assert (len(said) == 4) != bool(handler.refusals)
    assert number > 5


def check(point: Point, call: Callable[[], object]) -> None:
    """Another thread finds nothing amiss, and nothing to wait for."""
    try:
        within(40, call)
    except BaseException as error:
        error.add_note(f"it happened at {point.where}")
        raise


def reaches(journal: Journal, offset: int) -> None:
    """The ceiling comes, all by itself."""
    # A disk that others keep busy may take its time for a rename.
    deadline = time.monotonic() + 30
    while (read_head(journal.path) or {}).get("offset", 0) < offset:
        assert time.monotonic() < deadline, "the ceiling never came"
        time.sleep(0.001)


def interrupt(*_: object) -> None:
    """What Python's own handler of SIGINT does."""
    raise KeyboardInterrupt


def interrupted(journal: Journal, number: int, call: Call) -> Point:
    """Make the call, interrupted at that point."""
    point = Point(number, interrupt)
    with suppress(KeyboardInterrupt):
        point.run(lambda: call(journal))
    return point


@pytest.mark.parametrize("cap", [10_000, 300])
@pytest.mark.parametrize("name", CALLS)
def test_ctrl_c_at_any_point_leaves_the_journal_usable(tmp_path: Path, name: str, cap: int) -> None:
    """The interrupted call may have appended or not; other threads, later calls and the ceiling go on."""
    number = 0
    for number in range(1, POINTS_MAX):
        journal = opened(tmp_path, number, cap=cap, ceiling=2)
        reaches(journal, 2)  # so that the interrupted call has to ask for the ceiling itself
        point = interrupted(journal, number, CALLS[name])
        check(point, lambda: reaches(journal, journal.append(event(), sync=False)))  # noqa: B023 - called at once
        check(point, lambda: settled(journal, [1, 2]))  # noqa: B023 - called at once
        journal.close()
        assert not (journal.path / "writer.lock").exists()
        if not point.where:
            break
    assert number > 5


def test_ctrl_c_before_a_sync_in_which_another_append_falls(tmp_path: Path) -> None:
    """What the interrupted one left is replaced while a sync is under way: the new bytes wait for the next sync."""
    number = 0
    for number in range(1, POINTS_MAX):
        journal = opened(tmp_path, number, cap=10_000)
        point = interrupted(journal, number, CALLS["later"])
        files_of(journal).during_sync = lambda: within(5, lambda: journal.append(event(), sync=False))  # noqa: B023
        journal.flush()
        journal.flush()
        waiting = [path for path, _, _ in files_of(journal).unsynced if path.endswith(".jsonl")]
        assert waiting == [], point.where
        check(point, lambda: settled(journal, [1, 2]))  # noqa: B023 - called at once
        journal.close()
        if not point.where:
            break
    assert number > 20


def test_ctrl_c_while_the_ceiling_s_thread_begins(tmp_path: Path) -> None:
    """The first append of a process starts a thread; interrupted there, the next append has a ceiling all the same."""

    def run(number: int) -> Callable[[Said], None]:
        def inside(say: Said) -> None:
            journal = open_journal(f"s{number}", base_dir=tmp_path, sync_ceiling_ms=2, files=UnsyncedFiles())
            point = interrupted(journal, number, CALLS["later"])
            reaches(journal, journal.append(event(), sync=False))
            say(bool(point.where))

        return inside

    number = 0
    for number in range(30, POINTS_MAX):  # what comes before is tried above
        ended = in_child(run(number))
        if ended.said == [False]:
            break
    assert number > 80


def test_ctrl_c_at_any_point_of_closing_can_be_made_up_for(tmp_path: Path) -> None:
    """Closing again closes; then everything is durable, the lock is gone and the journal can be opened anew."""
    number = 0
    for number in range(1, POINTS_MAX):
        journal = opened(tmp_path, number, cap=300)
        journal.append(event(), sync=False)
        point = interrupted(journal, number, lambda journal: journal.close())
        check(point, journal.close)
        assert not (journal.path / "writer.lock").exists(), point.where
        assert len(scan(journal.path).records) == 3
        with open_journal(journal.session_id, base_dir=tmp_path, files=UnsyncedFiles()) as again:
            assert again.append(event(), sync=True) == 4
        if not point.where:
            break
    assert number > 20


def test_a_handler_may_close_at_any_point(tmp_path: Path) -> None:
    """As one of SIGTERM does: once the interrupted call is over the journal is closed, and all of it durable."""
    number = 0
    for number in range(1, POINTS_MAX):
        journal = opened(tmp_path, number, cap=300)
        point = Point(number, journal.close)
        with suppress(WriterClosed):
            point.run(lambda: journal.append(event()))  # noqa: B023 - called at once
        journal.close()
        assert not (journal.path / "writer.lock").exists(), point.where
        found = scan(journal.path)
        assert found.ok
        assert len(found.records) in (2, 3)
        assert (read_head(journal.path) or {})["offset"] == len(found.records)
        if not point.where:
            break
    assert number > 20


@contextmanager
def handled(handler: Callable[..., None]) -> Generator[Callable[[float], object]]:
    """Inside, SIGALRM is handled so, once for each call of what is given: after so many seconds.

    Once: one that came while it is handled would be handled within, and so on for ever on a busy machine.
    """
    before = signal.signal(signal.SIGALRM, handler)
    try:
        yield lambda seconds: signal.setitimer(signal.ITIMER_REAL, seconds)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_real_signal_s_handler_appends_beside_the_main_thread(tmp_path: Path) -> None:
    """A timer's handler appends to the journal that the main thread appends to; both get every offset they are told."""
    with open_journal("s", base_dir=tmp_path, segment_cap=2_000, chain=True, files=UnsyncedFiles()) as journal:
        said: list[int] = []
        handler = Handler(journal, said)
        deadline = time.monotonic() + 1.5
        mine: list[int] = []
        with handled(handler) as alarm:
            while time.monotonic() < deadline:
                alarm(0.00001 * (1 + len(mine) % 50))
                mine.append(journal.append(event(), sync=(None, False, True)[len(mine) % 3]))
        assert len(said) > 10
        assert all("in the middle of" in str(error) for error in handler.refusals)
    ids = [record["id"] for record in scan(journal.path).records]
    assert sorted(mine + said) == ids == list(range(1, len(ids) + 1))


def test_real_interruptions_at_random_moments(tmp_path: Path) -> None:
    """Ctrl-C over and over in the middle of appends: what was acknowledged is there, and appending goes on."""
    said: list[int] = []
    with (
        open_journal(
            "s", base_dir=tmp_path, segment_cap=2_000, chain=True, sync_ceiling_ms=1, files=UnsyncedFiles()
        ) as journal,
        handled(interrupt) as alarm,
    ):
        for number in range(300):
            try:
                alarm(0.0001 * (1 + number % 40))
                while True:
                    said.append(journal.append(event(), sync=(None, False, True)[(number + len(said)) % 3]))
            except KeyboardInterrupt:
                pass
        assert journal.status() == "ok"
        within(10, lambda: journal.append(event(), sync=True))
    found = scan(journal.path)
    assert found.ok
    assert len(said) > 50
    assert set(said) <= {record["id"] for record in found.records}
