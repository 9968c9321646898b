"""When a record is durable: sync by sync, the ceiling, flush and close, and many threads at once."""

from __future__ import annotations

import errno
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.errors import NotChained, WriteFailed, WriterClosed
from raxol_otel.journal import open_journal, scan
from raxol_otel.journal.store import is_failing
from tests.writer_files import Bench, event, head_of, segment_sizes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SEGMENT = "journal/000001.jsonl"
THREADS = 8
# How long a loaded machine may take for what is due at once, in seconds.
PATIENCE = 10.0


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A journal with a file layer that says what was done."""
    with Bench(tmp_path) as bench:
        yield bench


def until(condition: Callable[[], bool]) -> float:
    """How long it took until the condition was met, in seconds."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < PATIENCE
        time.sleep(0.002)
    return time.monotonic() - began


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run `work(1)`, `work(2)`... all at once; what one raises is raised."""
    failed: list[BaseException] = []
    ready = threading.Barrier(count)

    def run(number: int) -> None:
        ready.wait()
        try:
            work(number)
        except BaseException as error:  # noqa: BLE001 - raised in the test's thread
            failed.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(1, count + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failed:
        raise failed[0]


# --- One append -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [None, True])
def test_an_append_alone_is_durable_when_it_returns(bench: Bench, *, sync: bool | None) -> None:
    """One write, one sync of the segment; HEAD comes later."""
    bench.open()
    bench.files.log.clear()
    assert bench.append(1, sync=sync) == [1]
    assert bench.files.operations() == [("write", SEGMENT), ("sync", SEGMENT)]
    assert bench.files.durable_offset(bench.session) == 1
    assert head_of(bench.session)["offset"] == 0, "a lower bound, which may lag"
    bench.finish()


def test_an_append_that_does_not_wait_is_written_and_no_more(bench: Bench) -> None:
    """`sync=False` returns after the write; every reader sees the record, nothing says it is durable."""
    journal = bench.open()
    bench.files.log.clear()
    assert bench.append(1, sync=False) == [1]
    assert bench.files.operations() == [("write", SEGMENT)]
    assert [record["id"] for record in scan(bench.session).records] == [1]
    assert [record["id"] for record in journal.read()] == [1]
    assert (bench.files.durable_offset(bench.session), head_of(bench.session)["offset"]) == (0, 0)
    bench.finish()


def test_one_sync_covers_all_that_was_written_before_it(bench: Bench) -> None:
    """Five appends that did not wait and one that does: one sync."""
    bench.open()
    bench.files.log.clear()
    bench.append(1, 2, 3, 4, 5, sync=False)
    bench.append(6, sync=True)
    assert bench.files.operations("sync") == [("sync", SEGMENT)]
    assert bench.files.durable_offset(bench.session) == 6
    bench.finish()


@pytest.mark.parametrize("kind", ["tool_result", "approval"])
@pytest.mark.parametrize("sync", [None, False])
def test_some_types_are_durable_when_their_append_returns(bench: Bench, kind: str, *, sync: bool | None) -> None:
    """What was done outside, and who allowed it, must not be lost: synced even where `sync=False` was said."""
    journal = bench.open()
    bench.append(1, sync=False)
    journal.append(event(2, type=kind), sync=sync)
    assert bench.files.durable_offset(bench.session) == 2
    bench.acknowledged[2] = 2
    bench.finish()


def test_one_such_type_makes_its_batch_durable(bench: Bench) -> None:
    """Wherever in the batch it stands."""
    journal = bench.open()
    journal.append_many([event(1, type="approval"), event(2)], sync=False)
    assert bench.files.durable_offset(bench.session) == 2
    bench.acknowledged |= {1: 1, 2: 2}
    bench.finish()


def test_which_types_they_are_can_be_said(bench: Bench) -> None:
    """The given ones take the place of the default."""
    journal = bench.open(immediate_sync_types=["payment"])
    journal.append(event(1, type="tool_result"), sync=False)
    assert bench.files.durable_offset(bench.session) == 0
    journal.append(event(2, type="payment"), sync=False)
    assert bench.files.durable_offset(bench.session) == 2
    bench.acknowledged |= {1: 1, 2: 2}
    bench.finish()


@pytest.mark.parametrize("events", [[], iter(())])
def test_an_empty_batch_is_nothing(bench: Bench, events: Any) -> None:
    """No offsets, no write."""
    journal = bench.open()
    bench.files.log.clear()
    assert journal.append_many(events) == []
    assert bench.files.operations("write") == []
    bench.finish()


def test_a_batch_is_one_write_and_one_sync(bench: Bench) -> None:
    """However many events."""
    journal = bench.open()
    bench.files.log.clear()
    assert journal.append_many(event(number) for number in range(1, 101)) == list(range(1, 101))
    assert bench.files.operations() == [("write", SEGMENT), ("sync", SEGMENT)]
    bench.acknowledged |= {number: number for number in range(1, 101)}
    bench.finish()


# --- The ceiling, flush and close -------------------------------------------------------------------------------------


def test_what_was_not_synced_is_within_the_ceiling(bench: Bench) -> None:
    """Neither before, nor never: the sync comes by itself, and HEAD catches up."""
    bench.open(sync_ceiling_ms=100)
    began = time.monotonic()
    bench.append(1, sync=False)
    until(lambda: bench.files.durable_offset(bench.session) == 1)
    assert time.monotonic() - began >= 0.1
    until(lambda: head_of(bench.session)["offset"] == 1)
    bench.append(2, sync=False)
    until(lambda: head_of(bench.session)["offset"] == 2)
    bench.finish()


def test_head_catches_up_with_what_is_durable_already(bench: Bench) -> None:
    """Every append was synced; HEAD is written once for all of them, not once for each."""
    bench.open(sync_ceiling_ms=400)
    bench.files.log.clear()
    bench.append(*range(1, 6))
    until(lambda: head_of(bench.session)["offset"] == 5)
    assert bench.files.operations("rename") == [("rename", "s/HEAD")]
    bench.finish()


def test_the_ceiling_counts_from_the_first_that_waits(bench: Bench) -> None:
    """Appends that keep coming do not put it off."""
    bench.open(sync_ceiling_ms=50)
    began, number = time.monotonic(), 0
    while bench.files.durable_offset(bench.session) == 0:
        number += 1
        bench.append(number, sync=False)
        time.sleep(0.002)
        assert time.monotonic() - began < PATIENCE
    bench.finish()


def test_flush_makes_all_durable_and_head_exact(bench: Bench) -> None:
    """And a second one has nothing to do."""
    journal = bench.open()
    bench.append(1, 2, sync=False)
    journal.flush()
    assert (bench.files.durable_offset(bench.session), head_of(bench.session)["offset"]) == (2, 2)
    bench.files.log.clear()
    journal.flush()
    assert bench.files.log == []
    bench.finish()


def test_close_makes_all_durable_and_gives_the_lock_back(bench: Bench) -> None:
    """Twice is once; afterwards every call says that the writer is closed."""
    journal = bench.open()
    bench.append(1, 2, sync=False)
    assert (bench.session / "writer.lock").exists()
    bench.finish()
    journal.close()
    calls: list[Callable[[], object]] = [
        *(journal.flush, journal.read, journal.status, journal.verify),
        *(lambda: journal.append(event(3)), lambda: journal.append_many([])),
        lambda: journal.append_checked(event(3), lambda _: True),
    ]
    for call in calls:
        with pytest.raises(WriterClosed):
            call()
    assert (journal.session_id, journal.path, journal.last_offset) == ("s", bench.session, 2)


def test_a_close_that_cannot_sync_says_so_and_gives_the_lock_back(bench: Bench) -> None:
    """It does not raise: what fails is told as a signal, and the journal can be opened again."""
    journal = bench.open()
    bench.append(1, sync=False)
    bench.files.fail("sync", "journal/", errno.EIO)
    bench.files.fail("close", "journal/", errno.EIO)
    journal.close()
    assert bench.told() == [("datasync", "eio")]
    assert head_of(bench.session)["offset"] == 0
    assert not (bench.session / "writer.lock").exists()
    bench.files.repair()


# --- Handles ----------------------------------------------------------------------------------------------------------


def test_a_second_handle_joins_the_writer(bench: Bench) -> None:
    """By whatever path: one order of ids, and the joiner's close stops nothing."""
    first = bench.open()
    (bench.base / "link").symlink_to(bench.base)
    second = open_journal("s", base_dir=bench.base / "link", segment_cap=1)
    assert bench.append(1) == [1]
    assert second.append(event(2)) == 2
    assert (first.last_offset, second.last_offset) == (2, 2)
    assert segment_sizes(bench.session)[1:] == [], "the options of the one that opened it count"
    second.close()
    with pytest.raises(WriterClosed):
        second.append(event(3))
    bench.acknowledged[2] = 2
    assert bench.append(3) == [3]
    bench.finish()


def test_when_the_owner_closes_the_joiner_is_told(bench: Bench) -> None:
    """It is not given another writer behind its back; opening anew is."""
    bench.open()
    joiner = open_journal("s", base_dir=bench.base)
    bench.append(1)
    bench.finish()
    with pytest.raises(WriterClosed):
        joiner.append(event(2))
    joiner.close()
    bench.open()
    bench.append(2)
    bench.finish()


def test_a_chain_cannot_be_joined_to(bench: Bench) -> None:
    """`chain=True` on what is open without; the open handle goes on. Without it a chain is joined as it is."""
    bench.open()
    with pytest.raises(NotChained):
        open_journal("s", base_dir=bench.base, chain=True)
    bench.append(1)
    bench.finish()
    with open_journal("chained", base_dir=bench.base, chain=True) as owner:
        assert open_journal("chained", base_dir=bench.base).append(event(1)) == 1
        assert owner.verify() is None


def test_a_handle_that_is_forgotten_is_closed(bench: Bench) -> None:
    """What was appended becomes durable, and another may open the journal."""
    bench.open()
    bench.append(1, sync=False)
    bench.journal = None
    until(lambda: not (bench.session / "writer.lock").exists())
    assert bench.files.durable_offset(bench.session) == head_of(bench.session)["offset"] == 1


# --- Threads ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [None, True, False])
@pytest.mark.parametrize("chain", [False, True])
def test_many_threads_append_without_gap_or_twin(bench: Bench, *, sync: bool | None, chain: bool) -> None:
    """Each gets offsets of its own, in its own order; all is durable where that was asked for."""
    journal = bench.open(chain=chain, segment_cap=2000)
    taken: list[tuple[int, int]] = []

    def work(number: int) -> None:
        before = 0
        for count in range(20):
            offset = journal.append(event(100 * number + count), sync=sync)
            assert offset > before
            assert sync is not True or bench.files.durable_offset(bench.session) >= offset
            taken.append((offset, 100 * number + count))
            before = offset

    in_threads(work)
    bench.acknowledged = dict(taken)
    assert sorted(bench.acknowledged) == list(range(1, 20 * THREADS + 1))
    bench.finish()


def test_a_failed_sync_is_told_to_each_that_waited_for_it(bench: Bench) -> None:
    """Every thread's error names its own offset; each record stays, once."""
    journal = bench.open()
    bench.files.fail("sync", "journal/", errno.EIO)
    offsets: list[int] = []

    def work(number: int) -> None:
        with pytest.raises(WriteFailed) as failed:
            journal.append(event(number), sync=True)
        assert (failed.value.stage, failed.value.reason, len(failed.value.offsets)) == ("datasync", "eio", 1)
        bench.acknowledged[failed.value.offsets[0]] = number
        offsets.extend(failed.value.offsets)

    in_threads(work)
    assert sorted(offsets) == list(range(1, THREADS + 1))
    assert set(bench.told()) == {("datasync", "eio")}
    bench.files.repair()
    bench.append(THREADS + 1)
    bench.finish()


def test_the_writer_is_known_to_fail_while_it_does(bench: Bench) -> None:
    """Whichever thread of a round returns last: no gauge says that all is well while syncs fail."""
    journal = bench.open()
    bench.files.fail("sync", "journal/", errno.EIO)

    def work(number: int) -> None:
        with pytest.raises(WriteFailed):
            journal.append(event(number), sync=True)

    for _ in range(20):
        in_threads(work)
        assert is_failing()
    bench.files.repair()
    journal.flush()
    assert not is_failing()


def test_a_failed_write_in_a_crowd_costs_only_those_it_hit(bench: Bench) -> None:
    """A full disk: whoever is refused used no id, and the others' ids have no gap."""
    journal = bench.open()
    bench.files.fail("write", "journal/", errno.ENOSPC, times=12)
    refused: list[tuple[str, str, tuple[int, ...]]] = []

    def work(number: int) -> None:
        for count in range(10):
            try:
                bench.acknowledged[journal.append(event(100 * number + count), sync=True)] = 100 * number + count
            except WriteFailed as error:
                refused.append((error.stage, error.reason, error.offsets))

    in_threads(work)
    assert len(bench.acknowledged) + len(refused) == 10 * THREADS
    assert set(refused) == {("append", "enospc", ())}
    assert bench.told() == [("append", "enospc")] * len(refused)
    bench.finish()


def test_one_threads_bad_event_is_not_the_others_trouble(bench: Bench) -> None:
    """Appended together, only the one that cannot be written is refused."""
    journal = bench.open(chain=True)

    def work(number: int) -> None:
        for count in range(10):
            if number == 1:
                with pytest.raises(Exception, match=r"payload\.number"):
                    journal.append(event(0, payload={"number": 0.5}), sync=True)
            else:
                bench.acknowledged[journal.append(event(100 * number + count), sync=True)] = 100 * number + count

    in_threads(work)
    assert sorted(bench.acknowledged) == list(range(1, 10 * (THREADS - 1) + 1))
    bench.finish()
