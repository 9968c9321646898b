"""Many threads, forked children, event loops and endings: one writer, every offset given once, nothing lost."""

from __future__ import annotations

import asyncio
import errno
import itertools
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.errors import JournalDamaged, WriteFailed, WriterClosed
from raxol_otel.journal import open_journal, scan, verify
from raxol_otel.journal.files import Files
from raxol_otel.journal.layout import read_head

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raxol_otel.journal import Journal
    from raxol_otel.journal.records import Records
    from raxol_otel.signals import Signal

THREADS: Final = 8
SECONDS_MAX: Final = 60


def event(thread: int, number: int) -> dict[str, Any]:
    """The event `number` of a thread."""
    return {"type": "x", "payload": {"thread": thread, "n": number, "text": "é" * 20}}


class FailingFiles(Files):
    """Once armed, every so many record writes, or syncs, fail: a write after half its bytes."""

    def __init__(self, write_every: int, sync_every: int) -> None:
        self.write_every, self.sync_every, self.is_armed = write_every, sync_every, False
        self._writes, self._syncs = itertools.count(1), itertools.count(1)

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """As the real one; a record's, now and then only half."""
        if self.is_armed and self.write_every and data.endswith(b"\n") and next(self._writes) % self.write_every == 0:
            super().write(descriptor, data[: len(data) // 2], position)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        """As the real one, now and then not."""
        if self.is_armed and self.sync_every and next(self._syncs) % self.sync_every == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


class Crowd:
    """Threads that append in every way, and what each was told."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.said: list[list[tuple[int, int]]] = [[] for _ in range(THREADS)]
        self.newest = 0

    def run(self, thread: int, count: int) -> None:
        """Append so many times, in each sync mode, one by one and several at once, checked and not."""
        number = 0
        for turn in range(count):
            sync = (None, True, False)[(turn + thread) % 3]
            events = [event(thread, number + index) for index in range(1 + (turn % 5 == 4))]
            number += len(events)
            try:
                offsets = self._append(events, sync=sync, is_checked=turn % 7 == 6)
            except WriteFailed as error:
                offsets = list(error.offsets)
            self.said[thread] += [(offset, item["payload"]["n"]) for offset, item in zip(offsets, events, strict=False)]
            self.newest = max(self.newest, *offsets, 0)

    def _append(self, events: list[dict[str, Any]], *, sync: bool | None, is_checked: bool) -> list[int]:
        if len(events) > 1:
            return self.journal.append_many(events, sync=sync)
        if is_checked:
            return [self.journal.append_checked(events[0], len, sync=sync)]
        return [self.journal.append(events[0], sync=sync)]

    def check(self, *, is_whole: bool) -> None:
        """Every offset was given once, none is missing, and each thread's records stand in its own order."""
        offsets = sorted(offset for one in self.said for offset, _ in one)
        found = scan(self.journal.path)
        assert found.ok, found.damage
        assert offsets == [record["id"] for record in found.records] == list(range(1, len(offsets) + 1))
        for thread, one in enumerate(self.said):
            mine = [record for record in found.records if record["payload"]["thread"] == thread]
            assert [(record["id"], record["payload"]["n"]) for record in mine] == one
            numbers = [number for _, number in one]
            assert numbers == (list(range(len(one))) if is_whole else sorted(set(numbers)))


def watch(crowd: Crowd, done: threading.Event) -> int:
    """Read meanwhile, until it is done: everything told before is there, and it is never called damaged."""
    turns = 0
    while not done.is_set():
        before = crowd.newest
        records = crowd.journal.read()
        assert len(records) >= before
        assert [record["id"] for record in records] == list(range(1, len(records) + 1))
        assert crowd.journal.status() == "ok"
        turns += 1
    return turns


@pytest.fixture
def damages() -> Iterator[list[Signal]]:
    """The `damaged` signals that are published meanwhile."""
    seen: list[Signal] = []
    signals.attach("test", lambda signal: seen.append(signal) if signal.name == signals.SIGNAL_DAMAGED else None)
    yield seen
    signals.detach("test")


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize(
    ("write_every", "sync_every"),
    [(0, 0), (7, 0), (0, 5), (5, 3)],
    ids=["sound", "writes", "syncs", "both"],
)
def test_many_threads_append_and_read(
    tmp_path: Path, write_every: int, sync_every: int, damages: list[Signal], *, chain: bool
) -> None:
    """Offsets are unique and without gaps, also while writes and syncs fail; readers see all of it and no damage."""
    files = FailingFiles(write_every, sync_every)
    journal = open_journal("s", base_dir=tmp_path, chain=chain, segment_cap=6_000, sync_ceiling_ms=5, files=files)
    crowd, done = Crowd(journal), threading.Event()
    files.is_armed = True
    with ThreadPoolExecutor(THREADS + 2) as pool:
        watchers = [pool.submit(watch, crowd, done) for _ in range(2)]
        try:
            for future in [pool.submit(crowd.run, thread, 40) for thread in range(THREADS)]:
                future.result(SECONDS_MAX)
        finally:
            done.set()
        assert all(watcher.result(SECONDS_MAX) for watcher in watchers)
    files.is_armed = False
    journal.close()
    crowd.check(is_whole=not write_every)
    assert not chain or verify(journal.path) is None
    assert damages == []
    assert (read_head(journal.path) or {})["offset"] == len(scan(journal.path).records)


def test_nothing_slips_between_a_check_and_its_append(tmp_path: Path) -> None:
    """What a check saw as the last record is the one just before its own, whatever other threads append."""
    with open_journal("s", base_dir=tmp_path) as journal:
        seen: list[tuple[int, int]] = []

        def checked(turn: int) -> None:
            noted: list[int] = []

            def check(records: Records) -> None:
                noted.append([record["id"] for record in records][-1])
                time.sleep(0.0005)
                assert records.last_offset == noted[-1]

            seen.append((journal.append_checked(event(1, turn), check), noted[0]))

        def plain(turn: int) -> None:
            journal.append(event(0, turn), sync=(None, True, False)[turn % 3])

        journal.append(event(0, 0))
        with ThreadPoolExecutor(6) as pool:
            futures = [pool.submit(work, turn) for turn in range(60) for work in (checked, plain)]
            for future in futures:
                future.result(SECONDS_MAX)
    assert len(seen) == 60
    assert all(offset == last + 1 for offset, last in seen)


@pytest.mark.parametrize("is_main", [True, False])
@pytest.mark.parametrize("name", ["append", "append_many", "append_checked", "flush"])
def test_a_check_that_uses_its_own_journal_is_told_so(tmp_path: Path, name: str, *, is_main: bool) -> None:
    """It would wait for itself: a clear error instead, which refuses the append; the journal lives on."""
    with open_journal("s", base_dir=tmp_path) as journal:
        calls: dict[str, Callable[[], object]] = {
            "append": lambda: journal.append(event(0, 0), sync=True),
            "append_many": lambda: journal.append_many([event(0, 0)]),
            "append_checked": lambda: journal.append_checked(event(0, 0), len),
            "flush": journal.flush,
        }

        def attempt() -> None:
            with pytest.raises(WriteFailed, match="in the middle of an append"):
                journal.append_checked(event(0, 0), lambda _: calls[name]())

        if is_main:
            attempt()
        else:
            with ThreadPoolExecutor(1) as pool:
                pool.submit(attempt).result(SECONDS_MAX)
        assert journal.append(event(0, 1), sync=True) == 1
        assert journal.append_checked(event(0, 2), lambda records: records.last_offset == 1) == 2


def test_a_check_that_closes_closes_when_the_append_is_over(tmp_path: Path) -> None:
    """Closing in the middle is put off, not forgotten: the record is durable, and the lock is given back."""
    journal = open_journal("s", base_dir=tmp_path, sync_ceiling_ms=1e9)
    journal.append_checked(event(0, 0), lambda _: journal.close(), sync=False)
    assert not (journal.path / "writer.lock").exists()
    assert len(scan(journal.path).records) == (read_head(journal.path) or {})["offset"] == 1
    with pytest.raises(WriterClosed):
        journal.append(event(0, 1))


class Trap(Mapping[str, Any]):
    """An event that does something when it is looked at."""

    def __init__(self, do: Callable[[], object]) -> None:
        self._do = do

    def __iter__(self) -> Iterator[str]:
        """Its keys, after doing it."""
        self._do()
        return iter(["type"])

    def __len__(self) -> int:
        return 1

    def __getitem__(self, key: str) -> Any:
        return "x"


class Gate(Files):
    """A sync waits at the gate while it is shut."""

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self.arrived = threading.Event()

    def sync(self, descriptor: int) -> None:
        """As the real one, later."""
        self.arrived.set()
        assert self.gate.wait(SECONDS_MAX)
        super().sync(descriptor)


def test_an_event_that_raises_is_its_own_thread_s_trouble(tmp_path: Path) -> None:
    """Of appends that are written together, the ones beside it succeed."""
    files = Gate()

    def boom() -> None:
        raise LookupError("an odd mapping")

    with open_journal("s", base_dir=tmp_path, files=files) as journal, ThreadPoolExecutor(8) as pool:
        files.arrived.clear()
        files.gate.clear()
        first = pool.submit(journal.append, event(0, 0), sync=True)
        assert files.arrived.wait(SECONDS_MAX)
        good = [pool.submit(journal.append, event(1, number), sync=True) for number in range(3)]
        bad = pool.submit(journal.append, Trap(boom), sync=True)
        good.append(pool.submit(journal.append, event(1, 3), sync=True))
        time.sleep(0.1)  # all of them wait behind the first one
        files.gate.set()
        assert first.result(SECONDS_MAX) == 1
        with pytest.raises(LookupError):
            bad.result(SECONDS_MAX)
        assert sorted(one.result(SECONDS_MAX) for one in good) == [2, 3, 4, 5]
        assert [record["id"] for record in journal.read()] == [1, 2, 3, 4, 5]


def test_an_event_loop_hands_its_appends_to_threads(tmp_path: Path) -> None:
    """`asyncio.to_thread` from many tasks at once; one task's appends stand in its order."""
    journal = open_journal("s", base_dir=tmp_path)
    crowd = Crowd(journal)

    async def task(number: int) -> None:
        for turn in range(20):
            sync = (None, True, False)[turn % 3]
            crowd.said[number].append((await asyncio.to_thread(journal.append, event(number, turn), sync=sync), turn))

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(THREADS)))
        await asyncio.to_thread(journal.close)

    asyncio.run(main())
    crowd.check(is_whole=True)


def test_damage_beside_a_writer_is_told_by_readers_and_stops_the_appends(tmp_path: Path) -> None:
    """Looking twice hides no real damage: it stays, so it is reported, and nothing is written behind it."""
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append_many([event(0, number) for number in range(3)], sync=True)
        segment = journal.path / "journal" / "000001.jsonl"
        content = segment.read_bytes()
        segment.write_bytes(content.replace(b'"id":2', b'"id":7'))
        assert journal.status() == "damaged"
        with pytest.raises(JournalDamaged):
            journal.read()
        with pytest.raises(JournalDamaged):
            journal.append(event(0, 3))
