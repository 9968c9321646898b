"""What must be true of reading, whatever stands on disk; the judge is the naive reader."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from benchmarks.fuzz_journals import place, plan_of
from benchmarks.fuzz_judge import heard, is_clean, photograph, same
from raxol_otel.errors import JournalDamaged, JournalUnreadable, NotChained
from raxol_otel.journal import blocks, iter_records, last_offset, resume_scan, scan, verify
from tests import naive_reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from benchmarks.fuzz_inputs import Case
    from raxol_otel.journal import Scan

__all__ = ["check_reader"]

_CAUSES: Final = {
    *("unparsable", "nul_run", "spliced", "invalid_utf8", "not_object", "id_missing", "id_gap", "id_repeated"),
    *("chain_link", "chain_hash", "chain_bytes", "below_head", "head_hash"),
}


def check_reader(case: Case, folder: Path) -> None:
    """Every way of reading says what the naive reader says, in blocks of any size, and touches nothing."""
    session = folder / "session"
    place(case, session)
    before = photograph(session)
    reading = naive_reader.read(session)
    if reading.verdict == "unreadable":
        _check_unreadable(session)
        assert photograph(session) == before
        return
    with heard() as signals:
        found = scan(session)
    assert [signal.name for signal in signals] == ([] if found.ok else ["raxol.agent.journal.damaged"])
    _check_scan(session, found, reading)
    for size in (plan_of(case)["block"], 2**20):
        with patch.object(blocks, "READ_BYTES", size):
            _check_same(scan(session), found)
    _check_other_reads(session, found)
    assert photograph(session) == before, "a reader has written"
    _check_resume(session, found, reading)


def _check_unreadable(session: Path) -> None:
    """What cannot be read is told, unless damage comes before it."""
    reads: tuple[Callable[[Path], object], ...] = (
        scan,
        last_offset,
        resume_scan,
        lambda path: list(iter_records(path)),
    )
    said: set[str] = set()
    for read in reads:
        try:
            found = read(session)
        except JournalUnreadable:
            said.add("unreadable")
        except JournalDamaged:
            said.add("damaged")
        else:
            assert found == 0 or not getattr(found, "ok", True), f"{read.__name__} says {found!r:.200}"
            said.add("damaged")
    assert len(said) == 1, said


def _check_scan(session: Path, found: Scan, reading: naive_reader.Reading) -> None:
    assert found.ok == (reading.verdict == "ok"), (found.damage, reading.verdict)
    assert same(found.records, reading.records)
    assert found.torn == reading.torn
    damage = found.damage
    if reading.segment is None:
        assert damage is None
        return
    assert damage is not None
    assert damage.segment == session / reading.segment
    assert damage.byte == reading.byte
    assert damage.cause in _CAUSES
    assert damage.last_offset == (found.records[-1]["id"] if found.records else 0)
    before = damage.segment.read_bytes()[: damage.byte] if damage.byte else b""
    assert before[-1:] in {b"", b"\n"}
    assert damage.line == before.count(b"\n") + 1
    assert is_clean(JournalDamaged(damage), 4000)
    assert len(damage.detail) < 300


def _check_same(one: Scan, other: Scan) -> None:
    assert (one.ok, one.torn, one.damage) == (other.ok, other.torn, other.damage)
    assert same(one.records, other.records)


def _check_other_reads(session: Path, found: Scan) -> None:
    one_by_one: list[dict[str, Any]] = []
    damage = None
    try:
        one_by_one.extend(iter_records(session))  # keeps those before the error
    except JournalDamaged as error:
        damage = error.damage
    assert damage == found.damage
    assert same(one_by_one, found.records)
    last = found.records[-1]["id"] if found.records else 0
    assert last_offset(session) == (last if found.ok else 0)
    try:
        link: int | str | None = verify(session)
    except NotChained:
        link = "not chained"
    expected = None if found.ok else last + 1
    assert link == (expected if naive_reader.is_chained(session) else "not chained")


def _check_resume(session: Path, found: Scan, reading: naive_reader.Reading) -> None:
    """A torn tail is cut, nothing else; what was healthy stays so, with the same records."""
    before = photograph(session)
    _check_same(resume_scan(session), found)
    after = photograph(session)
    assert before.keys() == after.keys()
    changed = sorted(name for name in before if before[name][1] != after[name][1])
    if not found.torn:
        assert not changed
        return
    for name in changed:
        old, new = before[name][1], after[name][1]
        if name == changed[-1]:
            assert old.startswith(new)
            assert new[-1:] in {b"", b"\n"}
            assert b"\n" not in old[len(new) :].rstrip(b"\n")
        else:  # the end of a record that is not torn, and must not be after the cut
            assert new == old + b"\n"
    assert 1 <= len(changed) <= 2
    again = naive_reader.read(session)
    assert again.verdict == "ok"
    assert same(again.records, reading.records), "the cut has made another tail torn"
    assert not again.torn
