"""Session directories that the fuzzer makes, and how they get on disk.

The journals are written by the naive reader's writing rules, so nothing of the package is needed to make one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import Case, Dice, bent, spelled, value
from benchmarks.fuzz_judge import is_dict
from tests import naive_reader

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "HEAD",
    "LOCK",
    "META",
    "ODD_LOCKS",
    "PLAN",
    "make_checkpoint",
    "make_journal",
    "make_plan",
    "place",
    "plan_of",
    "segment_names",
    "write_journal",
]

HEAD: Final = "HEAD"
META: Final = "meta.json"
LOCK: Final = "writer.lock"
# What the check does with the journal; it is not put on disk.
PLAN: Final = "plan"
_SEGMENT: Final = re.compile(r"journal/[0-9]{6}\.jsonl", re.ASCII)
_TYPES: Final = (
    *("turn_started", "turn_completed", "item_started", "item_completed", "turn_canceled", "error", "reserve"),
    *("settle", "release", "observed", "tool_result", "x", "approval_requested"),
)
ODD_LOCKS: Final = (b"", b"0", b"-1", b"1", b" 1\0", b"+1\n", b"garbage", b"999999999", b"9" * 40, b"1 x", b"\xff")


def _hash(record: dict[str, Any]) -> str:
    return hashlib.sha256(naive_reader.dump(record).encode()).hexdigest()


def make_journal(d: Dice) -> Case:
    """The files of a healthy journal."""
    chained = d.random() < 0.5
    case: Case = {PLAN: make_plan(d)}
    count = d.choice((0, 1, 2, 3, 4, 6, 9, 12))
    first = 1 if chained or d.random() < 0.8 else d.choice((0, -3, 5, 2**63 - 2, 10**22))
    records = [_record(d, first + number, floats=not chained) for number in range(count)]
    if d.random() < 0.4:
        records += _checkpoints(d, case, first + count)
    write_journal(d, case, records, chained=chained)
    if d.random() < 0.2:
        case[LOCK] = d.choice(ODD_LOCKS)
    return case


def make_plan(d: Dice) -> bytes:
    """What a check will do with a journal."""
    plan = {
        "chain": d.random() < 0.3,
        "cap": d.choice((1, 200, 600, 2**23)),
        "block": d.choice((2, 7, 64, 300, 4096)),
        "reopen": d.random() < 0.4,
        "sync": d.choice((None, False, True)),
        "seed": d.getrandbits(32),
    }
    return json.dumps(plan).encode()


def plan_of(case: Case) -> dict[str, Any]:
    """What to do with the journal."""
    usual = {"chain": False, "cap": 2**23, "block": 64, "reopen": False, "sync": None, "seed": 0}
    try:
        return {**usual, **json.loads(case.get(PLAN, b"{}"))}
    except (ValueError, TypeError):
        return usual


def _record(d: Dice, offset: int, *, floats: bool) -> dict[str, Any]:
    record: dict[str, Any] = {"id": offset}
    if d.random() < 0.2:
        record |= {f"{number}": value(d, 1, floats=floats) for number in range(d.randrange(4))}
    if d.random() < 0.8:
        record |= {"type": d.choice(_TYPES), "family": "loop" if d.random() < 0.8 else "meta"}
    if d.random() < 0.3:
        record |= {
            "kind": d.choice(("event", "event", "checkpoint", None, 5)),
            "branch_id": d.choice(("main", "b", None)),
        }
    if d.random() < 0.015:
        record["payload"] = "y" * d.choice((3000, 16_300, 16_384))
    elif d.random() < 0.8:
        record["payload"] = value(d, 3, floats=floats)
    return record


def _checkpoints(d: Dice, case: Case, offset: int) -> list[dict[str, Any]]:
    """A checkpoint record with its snapshot, and a record or two after it."""
    reference = digest = None
    if d.random() < 0.8:
        model = value(d, 2)
        if not is_dict(model) or d.random() < 0.5:
            model = {"applied": d.choice(([], [1, 2], 5, None)), "rest": model}
        text = spelled(d, model)
        if d.random() < 0.3:
            text = bent(d, text)
        digest = hashlib.sha256(text).hexdigest()
        reference = f"snapshots/{digest}.json"
        case[reference] = text
    record: dict[str, Any] = {
        "id": offset,
        "kind": "checkpoint",
        "branch_id": "main",
        "session_id": "session",
        "tip_offset": max(1, offset - d.randrange(1, 4)),
        "snapshot_ref": reference,
        "snapshot_hash": digest,
        "reason": "manual",
        "ts": 1,
    }
    if d.random() < 0.3:
        key = d.choice(("tip_offset", "snapshot_ref", "snapshot_hash", "kind"))
        if d.random() < 0.3:
            del record[key]
        else:
            pointers = (digest, f"{reference}\n", f"../{reference}", f"snapshots/{digest}")
            odd: tuple[Any, ...] = (None, 0, -1, True, "1", [], 10**30, *pointers)
            record[key] = d.choice(odd)
    return [record, *(_record(d, offset + 1 + more, floats=False) for more in range(d.randrange(3)))]


def make_checkpoint(d: Dice) -> Case:
    """The files of a journal with a checkpoint or two, and records after them."""
    case: Case = {PLAN: make_plan(d)}
    records = [_record(d, number, floats=False) for number in range(1, d.choice((1, 2, 4, 8)))]
    for _ in range(d.choice((1, 1, 2))):
        records += _checkpoints(d, case, len(records) + 1)
    write_journal(d, case, records, chained=d.random() < 0.4)
    return case


def write_journal(d: Dice, case: Case, records: list[dict[str, Any]], *, chained: bool, odd: bool = False) -> None:
    """Put the records into segments, with a HEAD and a meta.json to them."""
    before = naive_reader.GENESIS
    lines: list[bytes] = []
    for record in records:
        if chained:
            record.pop("hash", None)
            record["prev_hash"] = before
            before = record["hash"] = _hash(record)
        usual = chained and not (odd and d.random() < 0.2)
        lines.append((naive_reader.dump(record).encode() if usual else spelled(d, record)) + b"\n")
    number = 1
    case[f"journal/{number:06}.jsonl"] = b""
    for line in lines:
        if d.random() < 0.15:
            number += 1
        name = f"journal/{number:06}.jsonl"
        case[name] = case.get(name, b"") + line
    head: dict[str, Any] = {"offset": records[-1].get("id") if records else 0, "segment": number, "segment_cap": 2**23}
    meta: dict[str, Any] = {"schema_version": "1.2.0"}
    if chained:
        head["tip_hash"], meta["chain"] = before, True
    case[HEAD], case[META] = naive_reader.dump(head).encode(), naive_reader.dump(meta).encode()


def segment_names(case: Case) -> list[str]:
    """The segments, in order."""
    return sorted(name for name in case if _SEGMENT.fullmatch(name))


def place(case: Case, session: Path) -> None:
    """Put the files on disk; what stands in the way of another one is left out."""
    (session / "journal").mkdir(parents=True)
    for name in sorted(case, key=lambda one: (not one.endswith("/"), one)):
        path = session / name
        if name == PLAN or path.exists() or not path.parent.is_dir():
            if name != PLAN and "/" in name and not path.exists():
                path.parent.mkdir(parents=True)
            else:
                continue
        if name.endswith("/"):
            path.mkdir()
        else:
            path.write_bytes(case[name])
