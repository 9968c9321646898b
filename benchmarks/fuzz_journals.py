"""Session directories that the fuzzer makes, what happens to them, and how they get on disk.

The journals are written by the naive reader's writing rules, so nothing of the package is needed to make one.
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import NUMBERS, TOKENS, Case, Dice, bent, spelled, value
from tests import naive_reader

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["HEAD", "META", "PLAN", "bend_journal", "make_journal", "photograph", "place", "plan_of", "segment_names"]

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
_ODD_NAMES: Final = (
    *("0000001.jsonl", "00001.jsonl", "\u0660" * 6 + ".jsonl", "000001.jsonl~", "000001.jsonl\n", "000001.JSONL"),
    *("x000001.jsonl", ".000002.jsonl", "000003.jsonl.tmp.1", "000000.jsonl", "999999.jsonl", "000010.jsonl"),
)
_ODD_HEADS: Final = (
    *(b"", b" ", b"[]", b"null", b"{}", b'{"offset":null}', b'{"offset":true}', b'{"offset":"3"}', b"\0" * 80),
    *(b'{"offset":3,"offset":99}', b'{"offset":1,"tip_hash":7}', b'\xef\xbb\xbf{"offset":99}', b'{"offset":1,"segment":[]}'),
)
_ODD_METAS: Final = (
    *(b"", b"{}", b"[]", b'{"chain":false}', b'{"chain":true}', b'{"chain":1}', b'{"chain":"true"}', b'{"chain":true}x'),
    *(b'{"chain":true,"chain":false}', b'{"chain":false,"chain":true}', b' {"chain" : true}\r\n', b'{"chain":true'),
)
_ODD_LOCKS: Final = (b"", b"0", b"-1", b"1", b" 1\0", b"+1\n", b"garbage", b"999999999", b"9" * 40, b"1 x", b"\xff")


def _hash(record: dict[str, Any]) -> str:
    return hashlib.sha256(naive_reader.dump(record).encode()).hexdigest()


# --- making


def make_journal(d: Dice) -> Case:
    """The files of a healthy journal."""
    chained = d.random() < 0.5
    case: Case = {PLAN: _plan(d)}
    count = d.choice((0, 1, 2, 3, 4, 6, 9, 12))
    first = 1 if chained or d.random() < 0.8 else d.choice((0, -3, 5, 2**63 - 2, 10**22))
    records = [_record(d, first + number, floats=not chained) for number in range(count)]
    if d.random() < 0.4:
        records += _checkpoints(d, case, first + count)
    _write(d, case, records, chained=chained)
    if d.random() < 0.2:
        case[LOCK] = d.choice(_ODD_LOCKS)
    return case


def _plan(d: Dice) -> bytes:
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
        record |= {"kind": d.choice(("event", "event", "checkpoint", None, 5)), "branch_id": d.choice(("main", "b", None))}
    if d.random() < 0.04:
        record["payload"] = "y" * d.choice((5000, 16_300, 16_384, 40_000))
    elif d.random() < 0.8:
        record["payload"] = value(d, 3, floats=floats)
    return record


def _checkpoints(d: Dice, case: Case, offset: int) -> list[dict[str, Any]]:
    """A checkpoint record with its snapshot, and a record or two after it."""
    reference = digest = None
    if d.random() < 0.8:
        model = value(d, 2)
        if type(model) is not dict or d.random() < 0.5:
            model = {"applied": d.choice(([], [1, 2], 5, None)), "rest": model}
        text = spelled(d, model)
        if d.random() < 0.3:
            text = bent(d, text)
        digest = hashlib.sha256(text).hexdigest()
        reference = f"snapshots/{digest}.json"
        case[reference] = text
    record: dict[str, Any] = {
        **{"id": offset, "kind": "checkpoint", "branch_id": "main", "session_id": "session", "ts": 1},
        **{"tip_offset": max(1, offset - d.randrange(1, 4)), "snapshot_ref": reference, "snapshot_hash": digest},
        "reason": "manual",
    }
    if d.random() < 0.3:
        key = d.choice(("tip_offset", "snapshot_ref", "snapshot_hash", "kind"))
        if d.random() < 0.3:
            del record[key]
        else:
            odd = (None, 0, -1, True, "1", [], 10**30, digest, f"{reference}\n", f"../{reference}", f"snapshots/{digest}")
            record[key] = d.choice(odd)
    return [record, *(_record(d, offset + 1 + more, floats=False) for more in range(d.randrange(3)))]


def _write(d: Dice, case: Case, records: list[dict[str, Any]], *, chained: bool, odd: bool = False) -> None:
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
    head = {"offset": records[-1].get("id") if records else 0, "segment": number, "segment_cap": 2**23}
    case[HEAD] = naive_reader.dump(head | ({"tip_hash": before} if chained else {})).encode()
    case[META] = naive_reader.dump({"schema_version": "1.2.0"} | ({"chain": True} if chained else {})).encode()


# --- bending


def segment_names(case: Case) -> list[str]:
    """The segments, in order."""
    return sorted(name for name in case if _SEGMENT.fullmatch(name))


def _bend_file(d: Dice, case: Case) -> None:
    names = [name for name in sorted(case) if name not in {PLAN, LOCK} and not name.endswith("/")]
    if names:
        name = d.choice(names)
        case[name] = bent(d, case[name])


def _bend_segment(d: Dice, case: Case) -> None:
    names = segment_names(case)
    if names:
        name = d.choice(names)
        case[name] = bent(d, case[name])


def _bend_lines(d: Dice, case: Case) -> None:
    names = segment_names(case)
    if not names:
        return
    name, other = d.choice(names), d.choice(names)
    lines, others = case[name].split(b"\n"), case[other].split(b"\n")
    at, there = d.randrange(len(lines)), d.randrange(len(others))
    here = lines[at]
    half = here[: d.randrange(len(here) + 1)]
    put = {
        **{"drop": [], "repeat": [here, here], "foreign": [others[there]], "blank": [here, b"", b""]},
        **{"join": [here + others[there]], "comma": [here + b"," + others[there]], "splice": [half + others[there]]},
        **{"crlf": [here + b"\r"], "space": [b" " + here + b"\t"], "bom": [b"\xef\xbb\xbf" + here], "stub": [half]},
        **{"nul": [b"\0" * 64], "number": [d.choice(NUMBERS)], "token": [d.choice(TOKENS)], "glue": [half + here]},
    }
    lines[at : at + 1] = put[d.choice(list(put))]
    case[name] = b"\n".join(lines)


def _bend_end(d: Dice, case: Case) -> None:
    """The end of the last segment, or of another one, as a crash leaves it."""
    names = segment_names(case)
    if names:
        name = names[-1] if d.random() < 0.6 else d.choice(names)
        data = case[name]
        torn = b'{"id":%d' % d.randrange(9)
        case[name] = d.choice((data.rstrip(b"\n"), data[: -d.randrange(1, 60)], data + torn, data + b"\0" * 9, data + b"\n"))


def _bend_names(d: Dice, case: Case) -> None:
    names = segment_names(case)
    if not names:
        case["journal/000001.jsonl"] = b""
        return
    name, other = d.choice(names), d.choice(names)
    fate = d.randrange(8)
    if fate == 0:
        del case[name]
    elif fate == 1:
        case[f"journal/{d.choice(_ODD_NAMES)}"] = case[name]
    elif fate == 2:
        case[f"journal/{d.choice(_ODD_NAMES)}"] = case.pop(name)
    elif fate == 3:
        case[name], case[other] = case[other], case[name]
    elif fate == 4:
        case[f"journal/{d.randrange(1, 12):06}.jsonl"] = d.choice((b"", b"\n\n", case[name], b"\0", b" "))
    elif fate == 5:
        at = d.randrange(len(case[name]) + 1)
        case[f"journal/{int(name[8:14]) + 1:06}.jsonl"] = case[name][at:]
        case[name] = case[name][:at]
    elif fate == 6:
        case[name] = case[name].replace(b"\n", b"\r\n")
    else:
        case[f"{d.choice((name, 'journal/junk', 'snapshots', 'HEAD', 'meta.json'))}/"] = b""


def _bend_head(d: Dice, case: Case) -> None:
    lines = sum(case[name].count(b"\n") for name in segment_names(case))
    offset = lines + d.choice((-2, -1, 0, 0, 1, 2))
    tips = re.findall(rb'"hash":"([0-9a-f]{64})"', b"".join(case[name] for name in segment_names(case)))
    tip = d.choice([*tips[-3:], b"0" * 64])
    made = (b'{"offset":%d}' % offset, b'{"offset":%d,"tip_hash":"%b"}' % (offset, tip), d.choice(_ODD_HEADS))
    case[HEAD] = d.choice((*made, bent(d, case.get(HEAD, b""))))
    if d.random() < 0.15:
        del case[HEAD]


def _bend_meta(d: Dice, case: Case) -> None:
    case[META] = d.choice((d.choice(_ODD_METAS), bent(d, case.get(META, b""))))
    if d.random() < 0.2:
        del case[META]


def _bend_others(d: Dice, case: Case) -> None:
    name = d.choice((LOCK, "HEAD.tmp.1.1", "meta.json.tmp.9", "x.tmp.1/", "stray", PLAN))
    case[name] = _plan(d) if name == PLAN else d.choice(_ODD_LOCKS)


def _reseal(d: Dice, case: Case) -> None:
    """Records with other members, in one chain again."""
    records: list[dict[str, Any]] = []
    for name in segment_names(case):
        for line in case.pop(name).split(b"\n"):
            try:
                record: Any = naive_reader.parse(line)
            except naive_reader.Refused:
                continue
            if type(record) is dict:
                records.append(record)
    if records:
        record = d.choice(records)
        key = d.choice([*record, "new", "hash", "prev_hash", "id", "kind", "payload"])
        record[key] = value(d, 2)
    if d.random() < 0.7:
        for number, record in enumerate(records, 1):
            record["id"] = number
    _write(d, case, records, chained=d.random() < 0.7, odd=d.random() < 0.5)


_FATES: Final[tuple[Callable[[Dice, Case], None], ...]] = (
    *(_bend_file, _bend_segment, _bend_segment, _bend_segment, _bend_lines, _bend_lines, _bend_lines, _bend_end),
    *(_bend_end, _bend_names, _bend_head, _bend_meta, _bend_others, _reseal),
)


def bend_journal(d: Dice, case: Case) -> Case:
    """The journal after something happened to it."""
    case = dict(case)
    d.choice(_FATES)(d, case)
    return case


# --- disk


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


def photograph(session: Path) -> dict[str, tuple[int, bytes]]:
    """Every file and folder: when it was last changed, and its bytes."""
    found: dict[str, tuple[int, bytes]] = {}
    for path in (session, *session.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found[path.relative_to(session).as_posix()] = (path.stat().st_mtime_ns, content)
    return found
