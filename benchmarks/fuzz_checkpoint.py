"""What must be true of checkpoints, whatever stands on disk; the judge is a restore written from the format."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import Case, dice, value
from benchmarks.fuzz_journals import place, plan_of
from benchmarks.fuzz_judge import attempt, heard, is_clean, is_dict, is_list, naive, same
from benchmarks.fuzz_writer import NOT_OPENED, SESSION, is_evidence, open_fast
from raxol_otel.errors import CheckpointError, JournalDamaged, RaxolError, Unencodable, WriteFailed
from raxol_otel.journal import checkpoint
from tests import naive_reader

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.journal import Journal

__all__ = ["check_checkpoint"]

_CONVERSATIONAL: Final = {
    *("turn_started", "item_started", "item_completed", "turn_completed", "turn_canceled", "error"),
    "approval_requested",
}


def check_checkpoint(case: Case, folder: Path) -> None:
    """Restoring gives the model, or the error, that the format says; so does writing and restoring."""
    session = folder / SESSION
    place(case, session)
    plan = plan_of(case)
    reading = naive_reader.read(session)
    refused = is_evidence(session, reading)
    journal, _ = attempt(partial(open_fast, folder, plan, chain=False), *NOT_OPENED)
    if journal is None:
        return
    with journal:
        _check_restore(journal, session)
        if refused:
            return
        d = dice(plan["seed"], "checkpoint", 0)
        model = d.choice((None, value(d, 3), {"applied": [1]}, {"a": value(d, 3)}))
        tip = d.choice((None, None, 1, 2, 10**30, 0))
        write = partial(checkpoint.write, journal, model, d.choice(("manual", "auto", "odd")), tip)
        offset, error = attempt(write, CheckpointError, Unencodable, WriteFailed)
        if error is not None:
            assert is_clean(error)
            assert same(naive_reader.read(session).records, reading.records)
            return
        records = naive_reader.read(session).records
        assert records[-1]["id"] == offset
        assert same(records[:-1], reading.records)
        _check_restore(journal, session)


def _check_restore(journal: Journal, session: Path) -> None:
    expected: Any = _restored(session)
    with heard() as signals:
        found, error = attempt(partial(checkpoint.restore, journal), RaxolError)
    said = [signal.metadata.get("op") for signal in signals]
    if error is not None:
        # Damage may come before what cannot be read; the naive reader reads everything first.
        is_first = expected == "JournalUnreadable" and isinstance(error, JournalDamaged)
        assert is_first or type(error).__name__ == expected, f"{error!r} and not {expected!r:.200}"
        assert is_clean(error, 4000)
        assert "restore" not in said
    else:
        assert same(found, expected)
        assert said == ["restore"]


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
    good, model = naive(text)
    return model if good and is_dict(model) and _is_sound(model) else "SnapshotCorrupt"


def _is_sound(model: Any) -> bool:
    """At most 64 levels, and no reserved key."""
    todo = [(model, 1)]
    while todo:
        item, depth = todo.pop()
        if is_dict(item) or is_list(item):
            if depth > 64 or (is_dict(item) and "$s" in item):
                return False
            todo += [(one, depth + 1) for one in (item.values() if is_dict(item) else item)]
    return True
