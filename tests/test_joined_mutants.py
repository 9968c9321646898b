"""Appends of several threads in one round, made for sure: the first is held in its sync until the others wait."""

from __future__ import annotations

import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.errors import JournalDamaged
from raxol_otel.journal import open_journal
from raxol_otel.journal.files import Files
from raxol_otel.journal.store import follow, is_failing, unfollow

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from raxol_otel.journal import Journal

NEVER = 600_000


class Gate(Files):
    """A disk whose next sync of a file waits, once it is told to."""

    def __init__(self) -> None:
        self.is_shut = False
        self.entered = threading.Event()
        self.opened = threading.Event()

    def sync(self, descriptor: int) -> None:
        """Wait, then sync."""
        if self.is_shut:
            self.is_shut = False
            self.entered.set()
            assert self.opened.wait(30)
        super().sync(descriptor)


class Told:
    """A tap that keeps the ids it is told of."""

    def __init__(self) -> None:
        self.ids: list[int] = []

    def seen(self, records: Sequence[dict[str, Any]]) -> None:
        """Nothing is there before."""
        assert not records

    def context(self, events: Sequence[Any]) -> None:
        """Nothing is needed."""

    def stamp(self, record: dict[str, Any], context: None) -> None:  # noqa: ARG002 - a tap's
        """Mark it."""
        record["is_followed"] = True

    def appended(self, records: Sequence[dict[str, Any]]) -> None:
        """Keep the ids."""
        self.ids += [record["id"] for record in records]

    def closed(self) -> None:
        """The end."""


@contextmanager
def round_of_three(journal: Journal, disk: Gate, ends: list[object]) -> Generator[None]:
    """Four threads append: one is in its sync, three wait for it while what is inside is done; then they go on.

    `ends` gets each one's offset, or the error.
    """

    def append() -> None:
        try:
            ends.append(journal.append({"type": "note"}, sync=True))
        except JournalDamaged as error:
            ends.append(error)

    threads = [threading.Thread(target=append) for _ in range(4)]
    disk.is_shut = True
    threads[0].start()
    assert disk.entered.wait(30)
    for thread in threads[1:]:
        thread.start()
    time.sleep(0.2)  # until they wait
    yield
    disk.opened.set()
    for thread in threads:
        thread.join(30)


def test_a_round_is_written_whole_and_each_is_told_its_own(tmp_path: Path) -> None:
    """Four records, each offset once, followed in order; and a writer that has appended is not failing."""
    disk, told, ends = Gate(), Told(), list[object]()

    def factory(_directory: Path, _meta: Mapping[str, Any]) -> Told:
        return told

    follow(factory)
    try:
        with open_journal("s", base_dir=tmp_path, files=disk, sync_ceiling_ms=NEVER) as journal:
            with round_of_three(journal, disk, ends):
                pass
            assert is_failing() is False
            records = journal.read()
    finally:
        unfollow(factory)
    assert (sorted(map(str, ends)), told.ids) == (["1", "2", "3", "4"], [1, 2, 3, 4])
    assert [(record["id"], record["is_followed"]) for record in records] == [(number, True) for number in range(1, 5)]


def test_a_round_appends_nothing_to_a_damaged_journal(tmp_path: Path) -> None:
    """Damage that was found while they waited is each one's error, and the file stays as it was found."""
    disk, ends = Gate(), list[object]()
    with open_journal("s", base_dir=tmp_path, files=disk, sync_ceiling_ms=NEVER) as journal:
        path = journal.path / "journal" / "000001.jsonl"
        with round_of_three(journal, disk, ends):
            text = path.read_bytes()
            path.write_bytes(text.replace(b'"note"', b'"note}'))
            with pytest.raises(JournalDamaged):
                journal.read()
            found = path.read_bytes()
        assert path.read_bytes() == found
    assert [type(end) for end in ends].count(JournalDamaged) == 3
