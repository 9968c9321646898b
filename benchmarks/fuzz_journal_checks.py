"""What must be true of the reader, the writer and of checkpoints, whatever stands on disk.

A check raises when something is not; the judges are the naive reader and a restore written from the format.
"""

from __future__ import annotations

import hashlib
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import patch

from benchmarks.fuzz_inputs import Case, Dice, dice, same, value
from benchmarks.fuzz_journals import LOCK, photograph, place, plan_of
from raxol_otel import signals
from raxol_otel.errors import (
    CheckpointError,
    FloatRefused,
    JournalDamaged,
    JournalLocked,
    JournalUnreadable,
    NotChained,
    RaxolError,
    Unencodable,
    WriteFailed,
)
from raxol_otel.journal import blocks, checkpoint, iter_records, last_offset, open_journal, resume_scan, scan, verify
from raxol_otel.journal.files import Files
from tests import naive_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

    from raxol_otel.journal import Journal, Scan

__all__ = ["check_checkpoint", "check_reader", "check_writer"]

_CAUSES: Final = {
    *("unparsable", "nul_run", "spliced", "invalid_utf8", "not_object", "id_missing", "id_gap", "id_repeated"),
    *("chain_link", "chain_hash", "chain_bytes", "below_head", "head_hash"),
}
_CONVERSATIONAL: Final = {
    *("turn_started", "item_started", "item_completed", "turn_completed", "turn_canceled", "error"),
    "approval_requested",
}
_SESSION: Final = "session"


class _Fast(Files):
    """Without durability, which is not what is looked at here."""

    def sync(self, descriptor: int) -> None:
        """Nothing."""

    def sync_directory(self, path: Path) -> None:
        """Nothing."""


@contextmanager
def _heard() -> Generator[list[signals.Signal]]:
    """The signals that are published inside."""
    found: list[signals.Signal] = []
    signals.attach("benchmarks.fuzz", found.append)
    try:
        yield found
    finally:
        signals.detach("benchmarks.fuzz")


def _set_up(case: Case, folder: Path) -> Path:
    session = folder / _SESSION
    place(case, session)
    return session


# --- the reader


def check_reader(case: Case, folder: Path) -> None:
    """Every way of reading says what the naive reader says, in blocks of any size, and touches nothing."""
    session = _set_up(case, folder)
    before = photograph(session)
    reading = naive_reader.read(session)
    if reading.verdict == "unreadable":
        _check_unreadable(session)
        assert photograph(session) == before
        return
    with _heard() as heard:
        found = scan(session)
    assert [signal.name for signal in heard] == ([] if found.ok else ["raxol.agent.journal.damaged"])
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
    assert len(damage.detail) < 300
    str(damage).encode()


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
    before = {name: content for name, (_, content) in photograph(session).items()}
    _check_same(resume_scan(session), found)
    after = {name: content for name, (_, content) in photograph(session).items()}
    changed = [name for name in before if before[name] != after[name]]
    assert before.keys() == after.keys()
    if not found.torn:
        assert not changed
        return
    assert len(changed) == 1
    old, new = before[changed[0]], after[changed[0]]
    assert old.startswith(new)
    assert new[-1:] in {b"", b"\n"}
    assert b"\n" not in old[len(new) :].rstrip(b"\n")
    again = naive_reader.read(session)
    assert again.verdict == "ok"
    assert same(again.records, reading.records), "the cut has made another tail torn"
    assert not again.torn


# --- the writer


def check_writer(case: Case, folder: Path) -> None:
    """A journal that cannot be appended to stays as it is; any other keeps its records and takes new ones."""
    session = _set_up(case, folder)
    plan = plan_of(case)
    before = photograph(session)
    reading = naive_reader.read(session)
    is_evidence = _is_to_be_refused(session, reading)
    try:
        journal = _open(folder, plan)
    except (JournalLocked, JournalUnreadable, NotChained, WriteFailed) as error:
        _check_refused(session, before, reading, plan, error)
        return
    with journal:
        if is_evidence:
            _check_read_only(journal, reading)
        else:
            if plan["reopen"]:
                journal.close()
                journal = _open(folder, plan)
            _check_appends(journal, session, reading, plan)
    if is_evidence:
        assert _without_lock(photograph(session)) == _without_lock(before), "evidence was touched"
    _check_no_bytes_lost(before, photograph(session), reading)


def _open(folder: Path, plan: dict[str, Any], *, chain: bool | None = None) -> Journal:
    chain = plan["chain"] if chain is None else chain
    return open_journal(_SESSION, base_dir=folder, chain=chain, segment_cap=plan["cap"], files=_Fast())


def _without_lock(photo: dict[str, tuple[int, bytes]]) -> dict[str, tuple[int, bytes]]:
    # The lock comes and goes, and with it the time of the folder.
    return {name: what for name, what in photo.items() if name not in {LOCK, "."}}


def _is_to_be_refused(session: Path, reading: naive_reader.Reading) -> bool:
    """Damaged, or HEAD names more than there is."""
    if reading.verdict != "ok":
        return True
    try:
        head: Any = naive_reader.parse((session / "HEAD").read_bytes())
    except (OSError, naive_reader.Refused):
        return False
    offset = head.get("offset") if type(head) is dict else None
    last: Any = reading.records[-1]["id"] if reading.records else 0
    return type(offset) is int and offset > last


def _check_refused(
    session: Path,
    before: dict[str, tuple[int, bytes]],
    reading: naive_reader.Reading,
    plan: dict[str, Any],
    error: RaxolError,
) -> None:
    if isinstance(error, WriteFailed):
        folders = any(path.is_dir() for path in session.rglob("*") if path.name not in {"journal", "snapshots"})
        odd = folders or (session / "journal").is_file() or (session / "snapshots").is_file()
        assert odd or len(list((session / "journal").glob("999999.jsonl"))), f"not opened: {error}"
    else:
        assert _without_lock(photograph(session)) == _without_lock(before), "touched and refused"
    if isinstance(error, NotChained):
        assert plan["chain"]
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
        try:
            journal.append(event)
        except JournalDamaged as error:
            str(error).encode()
        else:
            raise AssertionError("a damaged journal was appended to")
    seen: list[Any] = []
    try:
        for record in journal.records():
            seen.append(record)  # noqa: PERF402 - keeps those before the error
    except (JournalDamaged, JournalUnreadable):
        assert reading.verdict != "ok"
    else:
        assert len(list(journal.records())) == len(seen)
    assert same(seen, reading.records)


def _check_appends(journal: Journal, session: Path, reading: naive_reader.Reading, plan: dict[str, Any]) -> None:
    d = dice(plan["seed"], "events", 0)
    last: Any = reading.records[-1]["id"] if reading.records else 0
    assert journal.status() == "ok"
    assert journal.last_offset == last
    chained = naive_reader.is_chained(session)
    written: list[dict[str, Any]] = []
    for _ in range(d.randrange(4)):
        events = [_event(d) for _ in range(d.choice((1, 1, 2, 3)))]
        try:
            offsets = journal.append_many(events, sync=plan["sync"])
        except FloatRefused:
            assert chained
            continue
        except (Unencodable, WriteFailed) as error:
            assert isinstance(error, WriteFailed) or last > 10**1000, error  # no id has more digits
            assert len(list((session / "journal").glob("999999.jsonl"))) or last > 10**1000, error
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


def _event(d: Dice) -> dict[str, Any]:
    event: dict[str, Any] = {"type": d.choice(("turn_started", "tool_result", "x", "error")), "turn_id": None}
    return event | {"payload": {"v": value(d, 2, floats=d.random() < 0.3)}, "extra": value(d, 1, floats=False)}


def _check_no_bytes_lost(
    before: dict[str, tuple[int, bytes]], after: dict[str, tuple[int, bytes]], reading: naive_reader.Reading
) -> None:
    """But for the torn tail, what was there is there still."""
    for name, (_, content) in before.items():
        if name.startswith("journal/") and content:
            now = after[name][1]
            whole = content[: content.rfind(b"\n") + 1] if reading.torn and not now.startswith(content) else content
            assert now.startswith(whole.rstrip(b"\n")), f"bytes of {name} are gone"


# --- checkpoints


def check_checkpoint(case: Case, folder: Path) -> None:
    """Restoring gives the model, or the error, that the format says; so does writing and restoring."""
    session = _set_up(case, folder)
    plan = plan_of(case)
    reading = naive_reader.read(session)
    try:
        journal = _open(folder, plan, chain=False)
    except (JournalLocked, JournalUnreadable, NotChained, WriteFailed):
        return
    is_evidence = _is_to_be_refused(session, reading)
    with journal:
        _check_restore(journal, session)
        if is_evidence:
            return
        d = dice(plan["seed"], "checkpoint", 0)
        model = d.choice((None, value(d, 3), {"applied": [1]}, {"a": value(d, 3)}))
        tip = d.choice((None, None, 1, 2, 10**30, 0))
        try:
            offset = checkpoint.write(journal, model, d.choice(("manual", "auto", "odd")), tip)
        except (CheckpointError, Unencodable, WriteFailed) as error:
            str(error).encode()
            assert same(naive_reader.read(session).records, reading.records)
            return
        records = naive_reader.read(session).records
        assert records[-1]["id"] == offset
        assert same(records[:-1], reading.records)
        _check_restore(journal, session)


def _check_restore(journal: Journal, session: Path) -> None:
    expected: Any = _restored(session)
    with _heard() as heard:
        try:
            found: Any = checkpoint.restore(journal)
        except RaxolError as error:
            assert type(error).__name__ == expected, f"{error!r} and not {expected!r:.200}"
            str(error).encode()
            found = None
    surrogates = [signal for signal in heard if signal.name == "raxol.agent.checkpoint.surrogate"]
    if type(expected) is str:
        assert found is None, "restored what is not to be restored"
        assert not surrogates
    else:
        assert same(found, expected)
        assert [signal.metadata["op"] for signal in heard] == ["restore"]


def _restored(session: Path) -> dict[str, Any] | str:
    """What restoring gives, by the format: the model, or the name of the error."""
    reading = naive_reader.read(session)
    if reading.verdict != "ok":
        return {"damaged": "JournalDamaged", "unreadable": "JournalUnreadable"}[reading.verdict]
    newest: Any = next((one for one in reversed(reading.records) if one.get("kind") == "checkpoint"), None)
    if newest is None:
        return "NoCheckpoint"
    tip = newest.get("tip_offset")
    if "snapshot_ref" not in newest or type(tip) is not int or tip <= 0:
        return "MalformedCheckpoint"
    model: Any = {}
    if newest["snapshot_ref"] is not None:
        model = _snapshot(session, newest["snapshot_ref"], newest.get("snapshot_hash"))
        if type(model) is str:
            return model
    tip_only = newest["snapshot_ref"] is None
    ids = [one["id"] for one in reading.records if _is_folded(one) and (_number(one) <= tip) == tip_only]
    if ids:
        if type(model.get("applied", [])) is not list:
            return "SnapshotCorrupt"
        model["applied"] = [*model.get("applied", []), *ids]
    return dict(model)


def _number(record: dict[str, Any]) -> int:
    return int(record["id"])


def _is_folded(record: dict[str, Any]) -> bool:
    is_event = record.get("kind", "event") == "event" and record.get("family") == "loop"
    kind = record.get("type")
    return is_event and type(kind) is str and kind in _CONVERSATIONAL and record.get("branch_id", "main") == "main"


def _snapshot(session: Path, pointer: Any, claimed: Any) -> Any:
    """The snapshot, or the name of the error."""
    digest = pointer[10:74] if type(pointer) is str else ""
    if pointer != f"snapshots/{digest}.json" or len(digest) != 64 or set(digest) - set("0123456789abcdef"):
        return "MalformedPointer"
    try:
        text = (session / pointer).read_bytes()
    except FileNotFoundError:
        return "SnapshotMissing"
    except OSError:
        return "JournalUnreadable"
    if hashlib.sha256(text).hexdigest() != digest or (type(claimed) is str and claimed != digest):
        return "SnapshotCorrupt"
    try:
        model = naive_reader.parse(text)
    except naive_reader.Refused:
        return "SnapshotCorrupt"
    return model if type(model) is dict and _is_sound(model) else "SnapshotCorrupt"


def _is_sound(model: Any) -> bool:
    """At most 64 levels, and no reserved key."""
    todo = [(model, 1)]
    while todo:
        item, depth = todo.pop()
        if type(item) is dict or type(item) is list:
            if depth > 64 or (type(item) is dict and "$s" in item):
                return False
            todo += [(one, depth + 1) for one in (item.values() if type(item) is dict else item)]
    return True
