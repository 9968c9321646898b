"""Following journals: who is followed, what a tap is given and in which order, and that it disturbs nobody."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.journal import open_journal
from raxol_otel.journal.store import follow, unfollow
from raxol_otel.journal.tap import WAITING_RECORDS_MAX, Feed

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path


class Notes:
    """A tap that writes down what it is told; told `"fail"`, it raises."""

    def __init__(self, title: object = None) -> None:
        self.title = title
        self.told: list[tuple[str, Any]] = []
        self.feed: Feed | None = None

    def seen(self, records: Sequence[dict[str, Any]]) -> None:
        """Note the ids."""
        self.told += [("seen", [record["id"] for record in records])] if records else []

    def context(self, events: Sequence[Any]) -> int:
        """How many events there are."""
        return len(events)

    def stamp(self, record: dict[str, Any], context: int) -> None:
        """Mark the record."""
        record["of"] = context

    def appended(self, records: Sequence[dict[str, Any]]) -> None:
        """Note the ids, where there are any; what is put meanwhile comes later, not in between."""
        self.told += [("appended", [record["id"] for record in records])] if records else []
        if self.feed is not None:
            feed, self.feed = self.feed, None
            feed.put([{"id": 100}])
            feed.drain()
            self.told.append(("still", 1))
        if any(record.get("type") == "fail" for record in records):
            raise ValueError("told to")

    def closed(self) -> None:
        """Note it."""
        self.told.append(("closed", None))


class Taps:
    """A factory: one tap a journal, none for those named `skip`."""

    def __init__(self) -> None:
        self.made: dict[str, Notes] = {}

    def __call__(self, directory: Path, meta: Mapping[str, Any]) -> Notes | None:
        """Make one."""
        if directory.name == "fail":
            raise ValueError("told to")
        if directory.name.startswith("skip"):
            return None
        self.made[directory.name] = Notes(meta.get("title"))
        return self.made[directory.name]


@pytest.fixture
def taps() -> Iterator[Taps]:
    """A factory, not followed by yet."""
    found = Taps()
    yield found
    unfollow(found)


def test_open_journals_and_later_ones_are_followed_until_they_are_not(tmp_path: Path, taps: Taps) -> None:
    """What is there is seen, what comes is appended; one that nobody wants leaves the next alone."""
    names = ("skip1", "a", "skip2", "b")
    opened = [open_journal(name, base_dir=tmp_path, title=f"t-{name}") for name in names]
    for journal in opened:
        journal.append_many([{"type": "note"}] * 2)
    follow(taps)
    later = open_journal("c", base_dir=tmp_path)
    for journal in (*opened, later):
        journal.append({"type": "note"})
    assert (sorted(taps.made), taps.made["a"].title, taps.made["b"].title) == (["a", "b", "c"], "t-a", "t-b")
    assert taps.made["a"].told == taps.made["b"].told == [("seen", [1, 2]), ("appended", [3])]
    assert [record.get("of") for record in opened[1].read()] == [None, None, 1]
    opened[1].close()
    unfollow(Taps())  # another's, and nothing to this one
    again = open_journal("d", base_dir=tmp_path)
    assert "d" in taps.made
    unfollow(taps)
    open_journal("e", base_dir=tmp_path).close()
    for journal in (*opened[2:], later, again):
        journal.append({"type": "note"})
        journal.close()
    opened[0].close()
    assert "e" not in taps.made
    assert taps.made["a"].told[-1] == taps.made["b"].told[-1] == taps.made["d"].told[-1] == ("closed", None)
    assert [what for what, _ in taps.made["b"].told] == ["seen", "appended", "closed"]


def test_a_journal_that_is_opened_again_is_seen(tmp_path: Path, taps: Taps) -> None:
    """All its records, before anything is appended."""
    with open_journal("a", base_dir=tmp_path, title="t-a") as journal:
        journal.append_many([{"type": "note"}] * 3)
    follow(taps)
    with open_journal("a", base_dir=tmp_path) as journal:
        journal.append({"type": "note"})
    assert taps.made["a"].told == [("seen", [1, 2, 3]), ("appended", [4]), ("closed", None)]
    assert taps.made["a"].title == "t-a"


def test_a_tap_that_raises_disturbs_nobody_and_is_logged_once(
    tmp_path: Path, taps: Taps, caplog: pytest.LogCaptureFixture
) -> None:
    """The appends go on, the tap is told what follows, and the first failure's traceback is in the log."""
    follow(taps)
    with open_journal("fail", base_dir=tmp_path) as journal:
        journal.append({"type": "note"})
    with open_journal("a", base_dir=tmp_path) as journal:
        for kind in ("fail", "fail", "note"):
            journal.append({"type": kind})
    assert taps.made["a"].told == [("appended", [1]), ("appended", [2]), ("appended", [3]), ("closed", None)]
    said = [(one.name, one.levelno, one.getMessage(), one.exc_info is not None) for one in caplog.records]
    assert said == [
        ("raxol_otel.journal", logging.WARNING, "journal fail is not followed", True),
        ("raxol_otel.journal", logging.WARNING, "following a journal failed; further failures are not logged", True),
    ]


def test_what_waits_for_a_tap_is_bounded() -> None:
    """The oldest records are dropped, and counted."""
    notes = Notes()
    feed = Feed(notes)
    feed.put([{"id": number} for number in range(WAITING_RECORDS_MAX)])
    assert feed.dropped == 0
    feed.put([{"id": -1}, {"id": -2}])
    feed.drain()
    assert feed.dropped == 2
    assert notes.told == [("appended", [*range(2, WAITING_RECORDS_MAX), -1, -2])]


def test_a_tap_is_told_one_thing_after_the_other() -> None:
    """What is put while it is told something comes when that is over."""
    notes = Notes()
    notes.feed = feed = Feed(notes)
    feed.put([{"id": 1}])
    feed.drain()
    assert notes.told == [("appended", [1]), ("still", 1), ("appended", [100])]
