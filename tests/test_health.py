"""The health of a journal, in full: the state, what was counted, who writes, and what cannot be known."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from raxol_otel.journal import open_journal
from raxol_otel.journal.health import Health, inspect
from raxol_otel.journal.lock import Writer
from tests.conftest import make_journal, on_disk

if TYPE_CHECKING:
    from pathlib import Path

FIRST = "journal/000001.jsonl"
NOBODY_WRITES = Writer("none")
NO_HEAD = "there is no HEAD: a lost tail would not show"


def counted(health: Health) -> tuple[object, ...]:
    """What was counted."""
    return (health.records, health.last_offset, health.head_offset, health.segments, health.size_bytes)


@pytest.mark.parametrize("chained", [False, True])
def test_a_healthy_journal(*, chained: bool) -> None:
    """Three records from offset 5 on in two segments, closed: everything is told as it is, and nothing is warned of."""
    files, _ = make_journal([1, 2, 3], per_segment=2, first=1 if chained else 5, chained=chained)
    size = sum(len(data) for name, data in files.items() if name.startswith("journal/"))
    with on_disk(files) as session:
        health = inspect(session)
        last = 3 if chained else 7
        expected = Health(session, "healthy", chained, 3, last, last, 2, size, NOBODY_WRITES)
    assert health == expected
    assert health.is_intact


def test_an_empty_journal() -> None:
    """No records, no segments, and no HEAD to miss."""
    with on_disk({}) as session:
        health = inspect(session)
    assert (health.state, counted(health), health.warning) == ("healthy", (0, 0, None, 0, 0), None)


def test_a_torn_journal() -> None:
    """What is torn counts in bytes, and not as a record; it is whole all the same."""
    with on_disk({FIRST: b'{"id":1}\n{"id"', "HEAD": b'{"offset":1}'}) as session:
        health = inspect(session)
    assert (health.state, counted(health), health.warning) == ("torn", (1, 1, 1, 1, 14), None)
    assert health.is_intact


def test_a_truncated_journal() -> None:
    """HEAD names more than there is: also of a journal without any record, and of one with a torn tail."""
    for text, records in ((b'{"id":1}\n', 1), (b"", 0), (b'{"id":1}\n{"id"', 1)):
        with on_disk({FIRST: text, "HEAD": b'{"offset":2}'}) as session:
            health = inspect(session)
        assert (health.state, counted(health)) == ("truncated", (records, records, 2, 1, len(text)))
        assert not health.is_intact


def test_a_damaged_journal(caplog: pytest.LogCaptureFixture) -> None:
    """The records before the damage are counted, all segments are, and the damage is told, in one line of the log."""
    with on_disk({FIRST: b'{"id":1}\n{"id":3}\n', "journal/000002.jsonl": b'{"id":4}\n'}) as session:
        health = inspect(session)
    assert (health.state, counted(health), health.warning) == ("damaged", (1, 1, None, 2, 27), NO_HEAD)
    assert health.damage is not None
    assert (health.damage.cause, health.error, health.is_intact) == ("id_gap", None, False)
    said = "damaged at journal/000001.jsonl line 2, byte 9: id_gap (expected offset 2, found 3); last good offset 1"
    assert caplog.record_tuples == [("raxol_otel.journal", 40, f"journal session is {said}")]


def test_an_unreadable_journal() -> None:
    """The error says which file; what can be looked at is counted, and nothing is warned of."""
    with on_disk({FIRST: b'{"id":1}\n', "journal/000003.jsonl": b"xx"}) as session:
        (session / "journal" / "000002.jsonl").symlink_to("nothing")
        health = inspect(session)
        error = f"cannot read {session / 'journal' / '000002.jsonl'}: No such file or directory"
    assert (health.state, health.error, health.warning) == ("unreadable", error, None)
    assert (counted(health), health.is_intact) == ((1, 1, None, 3, 11), False)


def test_a_folder_that_cannot_be_listed() -> None:
    """Nothing is counted then."""
    with on_disk({}) as session:
        (session / "journal").rmdir()
        (session / "journal").touch()
        health = inspect(session)
    assert (health.state, counted(health)) == ("unreadable", (0, 0, None, 0, 0))


@pytest.mark.parametrize(("head", "warning"), [(None, NO_HEAD), (b"{", f"HEAD is unusable{NO_HEAD[16:]}")])
def test_what_a_missing_or_an_unusable_head_leaves_unknown(head: bytes | None, warning: str) -> None:
    """Either is said, and which."""
    with on_disk({FIRST: b'{"id":1}\n'} | ({} if head is None else {"HEAD": head})) as session:
        health = inspect(session)
    assert (health.state, health.warning) == ("healthy", warning)


def test_who_writes(tmp_path: Path) -> None:
    """This process, while the journal is open; of a journal from elsewhere nobody knows."""
    with open_journal("s", base_dir=tmp_path) as journal:
        assert inspect(journal.path).writer == Writer("live", os.getpid())
        assert inspect(journal.path, is_foreign=True).writer == Writer("unknown")
    assert inspect(journal.path).writer == NOBODY_WRITES
    assert inspect(journal.path, is_foreign=True).writer == NOBODY_WRITES
