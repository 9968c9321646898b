"""What happens to the fuzzer's journals: crashes, rot, slips of the hand, and forgeries that hash right."""

from __future__ import annotations

import hashlib
import re
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import NUMBERS, TOKENS, Case, Dice, bent, value
from benchmarks.fuzz_journals import HEAD, LOCK, META, ODD_LOCKS, PLAN, make_plan, segment_names, write_journal
from benchmarks.fuzz_judge import is_dict, naive

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["bend_checkpoint", "bend_journal"]

_ODD_NAMES: Final = (
    *("0000001.jsonl", "00001.jsonl", "\u0660" * 6 + ".jsonl", "000001.jsonl~", "000001.jsonl\n", "000001.JSONL"),
    *("x000001.jsonl", ".000002.jsonl", "000003.jsonl.tmp.1", "000000.jsonl", "999999.jsonl", "000010.jsonl"),
)
_ODD_HEADS: Final = (
    *(b"", b" ", b"[]", b"null", b"{}", b'{"offset":null}', b'{"offset":true}', b'{"offset":"3"}', b"\0" * 80),
    *(b'{"offset":3,"offset":99}', b'{"offset":1,"tip_hash":7}', b'\xef\xbb\xbf{"offset":99}'),
    b'{"offset":1,"segment":[]}',
)
_ODD_METAS: Final = (
    *(b"", b"{}", b"[]", b'{"chain":false}', b'{"chain":true}', b'{"chain":1}', b'{"chain":"true"}'),
    b'{"chain":true}x',
    *(b'{"chain":true,"chain":false}', b'{"chain":false,"chain":true}', b' {"chain" : true}\r\n', b'{"chain":true'),
)


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
    put: dict[str, list[bytes]] = {
        "drop": [],
        "repeat": [here, here],
        "foreign": [others[there]],
        "blank": [here, b"", b""],
        "join": [here + others[there]],
        "comma": [here + b"," + others[there]],
        "splice": [half + others[there]],
        "crlf": [here + b"\r"],
        "space": [b" " + here + b"\t"],
        "bom": [b"\xef\xbb\xbf" + here],
        "stub": [half],
        "nul": [b"\0" * 64],
        "number": [d.choice(NUMBERS)],
        "token": [d.choice(TOKENS)],
        "glue": [half + here],
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
        case[name] = d.choice(
            (data.rstrip(b"\n"), data[: -d.randrange(1, 60)], data + torn, data + b"\0" * 9, data + b"\n")
        )


def _bend_names(d: Dice, case: Case) -> None:
    names = segment_names(case)
    if not names:
        case["journal/000001.jsonl"] = b""
        return
    name, other = d.choice(names), d.choice(names)
    fate = d.choice((0, 1, 2, 3, 4, 5, 5, 5, 6, 7))
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
    case[name] = make_plan(d) if name == PLAN else d.choice(ODD_LOCKS)


def _reseal(d: Dice, case: Case, *, whole: bool = False) -> None:
    """Records with other members, in one chain again; `whole`: with the same ones."""
    records: list[dict[str, Any]] = []
    for name in segment_names(case):
        for line in case.pop(name).split(b"\n"):
            good, record = naive(line)
            if good and is_dict(record):
                records.append(record)
    if records and not whole:
        record = d.choice(records)
        key = d.choice([*record, "new", "hash", "prev_hash", "id", "kind", "payload"])
        record[key] = value(d, 2)
    if d.random() < 0.7:
        for number, record in enumerate(records, 1):
            record["id"] = number
    write_journal(d, case, records, chained=whole or d.random() < 0.7, odd=not whole and d.random() < 0.5)


_FATES: Final[tuple[Callable[[Dice, Case], None], ...]] = (
    *(_bend_file, _bend_segment, _bend_segment, _bend_segment, _bend_lines, _bend_lines, _bend_lines, _bend_end),
    *(_bend_end, _bend_names, _bend_head, _bend_meta, _bend_others, _reseal),
)


def bend_journal(d: Dice, case: Case) -> Case:
    """The journal after something happened to it."""
    case = dict(case)
    d.choice(_FATES)(d, case)
    return case


def bend_checkpoint(d: Dice, case: Case) -> Case:
    """The case after something happened to its snapshots, or to its journal."""
    names = sorted(name for name in case if name.startswith("snapshots/") and not name.endswith("/"))
    if not names or d.random() < 0.4:
        return bend_journal(d, case)
    case = dict(case)
    name = d.choice(names)
    fate = d.randrange(5)
    if fate == 0:
        del case[name]
    elif fate == 1:
        case[f"{name}/"] = case.pop(name)
    elif fate == 2:
        case[name] = bent(d, case[name])
    else:  # under its right name, and the records point there
        text = bent(d, case[name])
        digest = hashlib.sha256(text).hexdigest()
        case[f"snapshots/{digest}.json"] = text
        for segment in segment_names(case):
            case[segment] = case[segment].replace(name[10:74].encode(), digest.encode())
        if b'"chain":true' in case.get(META, b""):
            _reseal(d, case, whole=True)
    return case
