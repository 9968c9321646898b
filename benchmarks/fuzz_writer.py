"""What must be true of writing, whatever stands on disk; the judge is the naive reader."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import Case, Dice, dice, value
from benchmarks.fuzz_journals import LOCK, place, plan_of
from benchmarks.fuzz_judge import Photo, attempt, is_clean, is_dict, photograph, same
from raxol_otel.errors import (
    FloatRefused,
    JournalDamaged,
    JournalError,
    JournalLocked,
    JournalUnreadable,
    NotChained,
    Unencodable,
    WriteFailed,
)
from raxol_otel.journal import open_journal, salvage, scan, verify
from raxol_otel.journal.files import Files
from tests import naive_reader

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.journal import Journal
    from raxol_otel.journal.records import Records

__all__ = ["NOT_OPENED", "SESSION", "check_writer", "is_evidence", "open_fast"]

SESSION: Final = "session"
# How a journal says that it cannot be opened for writing.
NOT_OPENED: Final = (JournalLocked, JournalUnreadable, NotChained, WriteFailed)


class _Fast(Files):
    """Without durability, which is not what is looked at here."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""


def check_writer(case: Case, folder: Path) -> None:
    """A journal that cannot be appended to stays as it is; any other keeps its records and takes new ones."""
    session = folder / SESSION
    place(case, session)
    plan = plan_of(case)
    before = photograph(session)
    reading = naive_reader.read(session)
    refused = is_evidence(session, reading)
    journal, error = attempt(partial(open_fast, folder, plan, chain=plan["chain"]), *NOT_OPENED)
    if journal is None:
        assert error is not None
        _check_refused(session, before, reading, error)
        assert plan["chain"] or not isinstance(error, NotChained)
        return
    if plan["reopen"]:
        journal.close()
        journal = open_fast(folder, plan, chain=plan["chain"])
    with journal:
        if refused:
            _check_read_only(journal, reading)
        else:
            _check_reads(journal, _check_appends(journal, session, reading, plan), plan)
    if refused or plan["seed"] % 4 == 0:
        _check_salvage(session, folder / "salvaged")
    if refused:
        assert _without_lock(photograph(session)) == _without_lock(before), "evidence was touched"
    _check_no_bytes_lost(before, photograph(session), reading)


def open_fast(folder: Path, plan: dict[str, Any], *, chain: bool) -> Journal:
    """Open the session as the plan says."""
    return open_journal(SESSION, base_dir=folder, chain=chain, segment_cap=plan["cap"], files=_Fast())


def _without_lock(photo: Photo) -> Photo:
    # The lock comes and goes, and with it the time of the folder.
    return {name: what for name, what in photo.items() if name not in {LOCK, "."}}


def is_evidence(session: Path, reading: naive_reader.Reading) -> bool:
    """Damaged, or HEAD names more than there is."""
    if reading.verdict != "ok":
        return True
    try:
        head: Any = naive_reader.parse((session / "HEAD").read_bytes())
    except (OSError, naive_reader.Refused):
        return False
    offset = head.get("offset") if is_dict(head) else None
    last: Any = reading.records[-1]["id"] if reading.records else 0
    return type(offset) is int and offset > last


def _check_refused(session: Path, before: Photo, reading: naive_reader.Reading, error: JournalError) -> None:
    if isinstance(error, WriteFailed):
        folders = any(path.is_dir() for path in session.rglob("*") if path.name not in {"journal", "snapshots"})
        odd = folders or (session / "journal").is_file() or (session / "snapshots").is_file()
        assert odd or (session / "journal" / "999999.jsonl").exists(), f"not opened: {error}"
    else:
        assert _without_lock(photograph(session)) == _without_lock(before), "touched and refused"
    if isinstance(error, NotChained):
        assert not naive_reader.is_chained(session)
    if isinstance(error, JournalLocked):
        assert LOCK in before
    if isinstance(error, JournalUnreadable):
        assert reading.verdict == "unreadable"
    again = naive_reader.read(session)
    assert same(again.records, reading.records)


def _check_read_only(journal: Journal, reading: naive_reader.Reading) -> None:
    assert journal.status() == "damaged"
    for event in ({"type": "x"}, {"type": "x", "payload": 1}):
        _, refusal = attempt(partial(journal.append, event), JournalDamaged)
        assert refusal is not None, "a damaged journal was appended to"
        assert is_clean(refusal, 4000)
    seen: list[Any] = []
    # Keeps those before the error.
    _, error = attempt(partial(seen.extend, journal.records()), JournalDamaged, JournalUnreadable)
    assert (error is None) == (reading.verdict == "ok"), error
    # Damage may come before what cannot be read; the naive reader reads everything first.
    assert reading.verdict == "unreadable" or same(seen, reading.records)


def _check_salvage(session: Path, new: Path) -> None:
    """What is before the damage makes a healthy journal, and the old one stays as it is."""
    before = photograph(session)
    reading = naive_reader.read(session)
    count, error = attempt(partial(salvage, session, new), JournalUnreadable)
    assert photograph(session) == before, "salvage has changed what it was to save"
    assert error is None or reading.verdict == "unreadable"
    if error is None:
        again = naive_reader.read(new)
        assert (again.verdict, again.torn, len(again.records)) == ("ok", False, count)
        assert reading.verdict == "unreadable" or same(again.records, reading.records)
        assert naive_reader.is_chained(new) == naive_reader.is_chained(session)


def _check_appends(
    journal: Journal, session: Path, reading: naive_reader.Reading, plan: dict[str, Any]
) -> list[dict[str, Any]]:
    """Append a few; all records that are there then."""
    d = dice(plan["seed"], "events", 0)
    last: Any = reading.records[-1]["id"] if reading.records else 0
    assert journal.status() == "ok"
    assert journal.last_offset == last
    chained = naive_reader.is_chained(session)
    written: list[dict[str, Any]] = []
    for _ in range(d.randrange(4)):
        events = [_event(d) for _ in range(d.choice((1, 1, 2, 3)))]
        append = partial(journal.append_many, events, sync=plan["sync"])
        offsets, error = attempt(append, FloatRefused, Unencodable, WriteFailed)
        if isinstance(error, FloatRefused):
            assert chained
            continue
        if error is not None:  # no name for a segment is left, or no offset
            is_last = (session / "journal" / "999999.jsonl").exists()
            assert last > 10**1000 or (isinstance(error, WriteFailed) and is_last), error
            break
        last += len(events)
        assert offsets == list(range(last - len(events) + 1, last + 1))
        written += events
    journal.flush()
    expected = [*reading.records, *written]
    after = naive_reader.read(session)
    assert (after.verdict, after.torn) == ("ok", False)
    for seen in (journal.read(), after.records):
        assert same(seen[: len(reading.records)], reading.records), "earlier records have changed"
        assert len(seen) == len(expected)
        for record, event in zip(seen[len(reading.records) :], written, strict=True):
            assert same({**record, **event, "id": 0}, {**record, "id": 0})
    assert scan(session).ok
    assert len(list(journal.records())) == len(expected)
    assert not chained or verify(session) is None
    return after.records


def _check_reads(journal: Journal, records: list[dict[str, Any]], plan: dict[str, Any]) -> None:
    """Reading from an offset, and what a check sees that is made while appending."""
    d = dice(plan["seed"], "reads", 0)
    offsets: list[int] = [record["id"] for record in records]
    near = [offset + d.choice((-2, -1, 0, 1)) for offset in [d.choice(offsets or [0]), *offsets[-1:]]]
    for offset in (*near, -5, 10**30):
        assert same(journal.read(offset), [record for record in records if record["id"] >= offset])
    seen: dict[int, list[dict[str, Any]]] = {}

    def check(found: Records) -> None:
        for offset in {*offsets[:1], *offsets[-2:], *(d.sample(offsets, 1) if offsets else ())}:
            seen[offset] = list(found.after(offset))

    last = offsets[-1] if offsets else 0
    if last < 10**1000 and not (journal.path / "journal" / "999999.jsonl").exists():
        assert journal.append_checked({"type": "x"}, check) == last + 1
    for offset, found in seen.items():
        assert same(found, [record for record in records if record["id"] > offset])


def _event(d: Dice) -> dict[str, Any]:
    event: dict[str, Any] = {"type": d.choice(("turn_started", "tool_result", "x", "error")), "turn_id": None}
    return event | {"payload": {"v": value(d, 2, floats=d.random() < 0.3)}, "extra": value(d, 1, floats=False)}


def _check_no_bytes_lost(before: Photo, after: Photo, reading: naive_reader.Reading) -> None:
    """But for the torn tail, what was there is there still."""
    for name, (_, content) in before.items():
        if name.startswith("journal/") and content:
            now = after[name][1]
            whole = content[: content.rfind(b"\n") + 1] if reading.torn and not now.startswith(content) else content
            assert now.startswith(whole.rstrip(b"\n")), f"bytes of {name} are gone"
