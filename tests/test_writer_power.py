"""Power loss: whatever the disk drops of what was not synced, a promise is kept, and at most a torn tail is cut."""

from __future__ import annotations

import contextlib
import errno
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raxol_otel.errors import WriteFailed
from raxol_otel.journal import open_journal, scan, verify
from raxol_otel.journal.layout import read_head
from tests.power_loss import Crash, Killed, RecordingFiles

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    from raxol_otel.journal import Journal
    from raxol_otel.journal.writer import Writer
    from tests.power_loss import Pick

SESSION: Final = "s"
BASE: Final = "base"
# The ceiling's thread never comes by itself: the steps call it.
NEVER: Final = 1e9
# A handful of records fill a segment.
SMALL: Final = 400
SCRIPT: Final = (
    *("append", "later", "later", "later", "later", "durable", "later", "many", "later", "tool", "later"),
    *("flush", "many", "later", "ceiling", "later", "later", "reopen", "later", "durable", "many"),
)
STEPS: Final = ("append", "later", "later", "many", "durable", "tool", "flush", "ceiling", "reopen", "die")


def event(number: int, kind: str = "x") -> dict[str, Any]:
    """An event that knows which offset it is going to have; chained, a segment holds two or three."""
    return {"type": kind, "payload": {"n": number, "text": "é" * 20}}


def writer_of(journal: Journal) -> Writer:
    """What only the ceiling's thread calls."""
    return journal._writer  # pyright: ignore[reportPrivateUsage]


class Run:
    """A writer at work on recorded files, and what it promised."""

    def __init__(self, root: Path, files: RecordingFiles, *, chain: bool, base: str = BASE) -> None:
        self.root, self.files, self.chain, self.base = root, files, chain, root / base
        self._journal: Journal | None = None

    def journal(self) -> Journal:
        """The journal, opened where it is not."""
        if self._journal is None:
            self._journal = open_journal(
                SESSION,
                base_dir=self.base,
                chain=self.chain,
                segment_cap=SMALL,
                sync_ceiling_ms=NEVER,
                files=self.files,
            )
            # An opener makes everything durable that it finds.
            self.files.promise(self._journal.last_offset)
        return self._journal

    def step(self, name: str) -> None:
        """Do one thing, and note what was promised; what fails promises nothing."""
        if name == "die":
            self.die()
            return
        with contextlib.suppress(WriteFailed):
            journal = self.journal()
            following = journal.last_offset + 1
            if name == "append":
                journal.append(event(following))
            elif name == "later":
                journal.append(event(following), sync=False)
            elif name == "many":
                journal.append_many([event(following + index) for index in range(5)], sync=False)
            elif name == "durable":
                self.files.promise(journal.append(event(following), sync=True))
            elif name == "tool":
                # Always synced, but not known to have succeeded: so no promise.
                journal.append(event(following, "tool_result"), sync=False)
            elif name == "flush":
                journal.flush()
                self.files.promise(journal.last_offset)
            elif name == "ceiling":
                writer_of(journal).due()
            else:
                journal.close()
                self._journal = None

    def die(self) -> None:
        """The process is gone without a word; its files stay as they are in the page cache."""
        if self._journal is not None:
            before, self.files.stop_at = self.files.stop_at, 0
            with contextlib.suppress(Killed):
                self._journal.close()
            self._journal, self.files.stop_at = None, before


@contextlib.contextmanager
def recorded(
    root: Path, *, chain: bool, base: str = BASE, faults: Mapping[tuple[str, int], int] | None = None
) -> Generator[Run]:
    """A run in a directory, which ends with it."""
    run = Run(root, RecordingFiles(root, faults=faults), chain=chain, base=base)
    try:
        yield run
    finally:
        run.die()


def check(root: Path, crash: Crash, *, chain: bool, base: str = BASE) -> int:
    """What a reopened journal must be like after a crash; its last offset then."""
    session = root / base / SESSION
    found = scan(session)
    assert found.ok, found.damage
    assert [record["id"] for record in found.records] == list(range(1, len(found.records) + 1))
    assert [record["payload"]["n"] for record in found.records] == [record["id"] for record in found.records]
    last = len(found.records)
    assert last >= crash.promised
    head = read_head(session)
    assert head is None or head["offset"] <= last
    with open_journal(SESSION, base_dir=root / base, chain=chain, segment_cap=SMALL) as journal:
        assert journal.status() == "ok"
        assert journal.last_offset == last
        assert journal.append(event(last + 1), sync=True) == last + 1
        assert not chain or journal.verify() is None
    assert not scan(session).torn
    assert not chain or verify(session) is None
    head = read_head(session)
    assert head is not None
    assert head["offset"] == last + 1
    assert [name for name in session.iterdir() if ".tmp." in name.name] == []
    return last + 1


def survive(crash: Crash, pick: Pick, *, chain: bool, base: str = BASE) -> None:
    """Crash so, and check what is left."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "left")
        crash.disk.crash(pick, root)
        check(root, crash, chain=chain, base=base)


def nothing(low: int, high: int) -> int:
    """Nothing unsynced reached the disk."""
    return min(low, high)


def everything(low: int, high: int) -> int:
    """All that was written reached the disk."""
    return max(low, high)


class Alternating:
    """Keeps all of one thing and nothing of the next: reordered between files."""

    def __init__(self, first: int, period: int = 2) -> None:
        self.turn, self.period = first, period

    def __call__(self, low: int, high: int) -> int:
        """The least, now and then; else the most."""
        self.turn += 1
        return low if self.turn % self.period == 0 else high


def half(low: int, high: int) -> int:
    """Half of everything, writes torn in their middle."""
    return (low + high) // 2


def every_pick() -> list[Pick]:
    """A few very different crashes."""
    mixed: list[Pick] = [Alternating(first, period) for period in (2, 3) for first in range(period)]
    return [nothing, everything, half, *mixed]


@pytest.mark.parametrize("chain", [False, True])
def test_at_every_moment_of_a_run_the_power_may_go(tmp_path: Path, *, chain: bool) -> None:
    """After any operation of a long run, and whatever is lost then, the journal is whole and keeps its promises."""
    with recorded(tmp_path, chain=chain) as run:
        for name in SCRIPT:
            run.step(name)
        for moment in range(len(run.files.log) + 1):
            crash = run.files.at(moment)
            for pick in every_pick():
                survive(crash, pick, chain=chain)


@pytest.mark.parametrize("chain", [False, True])
def test_an_opener_makes_durable_what_a_killed_one_left_in_the_cache(tmp_path: Path, *, chain: bool) -> None:
    """A process is killed before each operation; the next one opens, promises, and then the power goes."""
    stop_at = 0
    for stop_at in range(500):
        root = tmp_path / str(stop_at)
        root.mkdir()
        with recorded(root, chain=chain) as run:
            run.files.stop_at = stop_at
            try:
                for name in (*SCRIPT[:6], "many", "later"):
                    run.step(name)
            except Killed:
                pass
            else:
                break
            finally:
                run.die()
            run.files.stop_at = -1
            run.step("durable")
            crash = run.files.at(len(run.files.log))
            assert crash.promised
            for pick in (nothing, half, everything):
                survive(crash, pick, chain=chain)
        shutil.rmtree(root)
    assert stop_at > 30


def test_the_way_to_a_new_base_is_durable_too(tmp_path: Path) -> None:
    """Whoever keeps a first journal in `.raxol/sessions` finds it after the power went, and not an empty home."""
    base = "home/.raxol/sessions"
    with recorded(tmp_path, chain=False, base=base) as run:
        for name in ("durable", "later", "flush"):
            run.step(name)
        for moment in range(len(run.files.log) + 1):
            for pick in every_pick():
                survive(run.files.at(moment), pick, chain=False, base=base)


@pytest.mark.parametrize("chain", [False, True])
def test_a_reordering_between_segments_leaves_no_gap(tmp_path: Path, *, chain: bool) -> None:
    """A new segment may reach the disk before the old one: the journal must not go on behind what is missing."""
    with recorded(tmp_path, chain=chain) as run:
        for _ in range(9):
            run.step("later")
        crash = run.files.at(len(run.files.log))
        for pick in every_pick():
            survive(crash, pick, chain=chain)


@pytest.mark.parametrize("zeros", [1, 7, 4096])
@pytest.mark.parametrize("tail", [b"", b'{"id":3,"pay'])
@pytest.mark.parametrize("chain", [False, True])
def test_a_tail_of_zeros_is_a_torn_tail(tmp_path: Path, zeros: int, tail: bytes, *, chain: bool) -> None:
    """A size that reached the disk before its data leaves NULs without a newline: cut like any torn line."""
    with open_journal(SESSION, base_dir=tmp_path / "base", chain=chain) as journal:
        journal.append_many([event(1), event(2)], sync=True)
    segment = journal.path / "journal" / "000001.jsonl"
    whole = segment.read_bytes()
    segment.write_bytes(whole + tail + bytes(zeros))
    assert scan(journal.path).torn
    with open_journal(SESSION, base_dir=tmp_path / "base") as again:
        assert segment.read_bytes() == whole
        assert again.append(event(3), sync=True) == 3
    assert scan(journal.path).ok


def test_a_hole_among_unsynced_pages_costs_nothing_that_was_synced(tmp_path: Path) -> None:
    """Later pages that reach the disk before earlier ones leave NULs within: damage, behind all that was promised."""
    with open_journal(SESSION, base_dir=tmp_path / "base") as journal:
        promised = journal.append_many([event(number) for number in range(1, 4)], sync=True)
        segment = journal.path / "journal" / "000001.jsonl"
        durable = segment.stat().st_size
        journal.append_many([event(number) for number in range(4, 200)])
    content = segment.read_bytes()
    segment.write_bytes(content[:durable] + bytes(4096) + content[durable + 4096 :])
    found = scan(journal.path)
    assert not found.ok
    assert [record["id"] for record in found.records] == promised


def test_a_failed_sync_is_not_taken_for_a_later_success(tmp_path: Path) -> None:
    """The kernel drops what it could not write and then reports success: only writing it again makes it durable."""
    with recorded(tmp_path, chain=True, faults={("sync", 5): errno.EIO, ("sync", 6): errno.EIO}) as run:
        for name in ("later", "later", "durable", "later", "durable", "flush", "durable"):
            run.step(name)
        assert any(done.what == "failed_sync" for done in run.files.log)
        for moment in range(len(run.files.log) + 1):
            crash = run.files.at(moment)
            for pick in (nothing, half, everything):
                survive(crash, pick, chain=True)


FAULTS: Final = st.dictionaries(
    st.tuples(st.sampled_from(["write", "sync", "sync_directory", "rename", "open", "truncate"]), st.integers(1, 25)),
    st.sampled_from([errno.EIO, errno.ENOSPC]),
    max_size=4,
)


@settings(max_examples=settings().max_examples * 2 // 3)
@given(
    data=st.data(),
    chain=st.booleans(),
    schedules=st.lists(st.lists(st.sampled_from(STEPS), max_size=14), min_size=1, max_size=3),
    faults=FAULTS,
)
def test_any_schedule_survives_any_crash(
    data: st.DataObject, schedules: Sequence[Sequence[str]], faults: dict[tuple[str, int], int], *, chain: bool
) -> None:
    """Appends, syncs, failures, deaths, reopenings in any order, then a crash; and again on what is left."""

    def pick(low: int, high: int) -> int:
        return data.draw(st.integers(low, high)) if high > low else low

    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "0")
        root.mkdir()
        promised = 0
        for number, steps in enumerate(schedules, 1):
            with recorded(root, chain=chain, faults=faults) as run:
                run.files.promise(promised)
                for name in steps:
                    run.step(name)
                log = run.files.log
                crash = run.files.at(data.draw(st.integers(1, len(log))) if log else 0)
            root = Path(folder, str(number))
            crash.disk.crash(pick, root)
            promised = check(root, crash, chain=chain)
