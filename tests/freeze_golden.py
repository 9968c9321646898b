"""Freezes a corpus: one journal as today's writer writes it under one schema version, kept for ever.

    python -m tests.freeze_golden golden 1.2.0

writes `golden/v1.2.0` and names it in `golden/MANIFEST.json`. A corpus that is there is never touched: journals of old
versions cannot be made again once the writer moves on, and a reader of today must read them all.

Times, turn ids and `created_at` are fixed, so that the bytes are reproducible.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.journal import open_journal
from tests.make_tour import manifest

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["CORPORA", "freeze", "write_corpus"]

# The session of each schema version.
CORPORA: Final = {"1.0.0": "golden-v1", "1.1.0": "golden-v11", "1.2.0": "golden-v12"}
CREATED_AT: Final = "2026-09-21T06:00:00.000000Z"
_FIRST_US: Final = 1_789_970_400_000_000

Payload = dict[str, Any]


def events(version: str) -> Iterator[dict[str, Any]]:
    """What the version's agent told: 1.0.0 knew no item ids in results and no evidence; 1.2.0 writes checkpoints."""
    told = list(_told(has_items=version != "1.0.0"))
    for number, (turn, kind, payload) in enumerate(told):
        yield {
            "v": 0,
            "session_id": CORPORA[version],
            "turn_id": turn,
            "ts": _FIRST_US + number * 250_000,
            "family": "loop",
            "type": kind,
            "tier": "durable",
            "payload": payload,
        }
    if version == "1.2.0":
        pointer = {"tip_offset": len(told), "snapshot_ref": None, "snapshot_hash": None, "reason": "manual"}
        stamp = _FIRST_US + len(told) * 250_000
        yield {"kind": "checkpoint", "branch_id": "main", "session_id": CORPORA[version], "ts": stamp, **pointer}


def _told(*, has_items: bool) -> Iterator[tuple[str, str, Payload]]:
    for turn, prompt, evidence in (
        ("turn-1", "rename the flag --colour to --color, keep the old one working", {"evidence": "accepted"}),
        ("turn-2", "is the \u201cold\u201d flag documented? \U0001f50d", {"evidence": "absent"}),
        ("turn-3", "release it", {"evidence": "rejected", "evidence_rejected": _rejected()}),
    ):
        yield turn, "turn_started", {"prompt": prompt}
        yield from _call(turn, "call-1", "search", "flag\t--colour\u0000\n", has_items=has_items)
        yield turn, "turn_completed", {"usage": {"input_tokens": 412, "output_tokens": 37}, "final": False}
        yield from _call(turn, "call-2", "run_tests", "{:error, 1 failed}", has_items=has_items)
        text = {"item_type": "message", "content": f"done: {prompt}"}
        yield turn, "item_completed", {**text, "item_id": "i5"} if has_items else text
        usage = {"input_tokens": 588, "output_tokens": 61, "cache_read_input_tokens": 2_048}
        refs = {"refs": [4]} if evidence["evidence"] == "accepted" else {}
        marker = evidence if has_items else {}
        yield turn, "turn_completed", {"usage": usage, "final": True, **refs, **marker}
    yield "turn-4", "turn_started", {"prompt": "and announce it"}
    yield "turn-4", "error", {"reason": '%RuntimeError{message: "mail is down"}'}
    yield "turn-5", "turn_started", {"prompt": "later then"}
    yield "turn-5", "turn_canceled", {}


def _rejected() -> Payload:
    return {"refs": [2], "reason": "not_evidence", "ref": 2}


def _call(turn: str, call: str, name: str, result: str, *, has_items: bool) -> Iterator[tuple[str, str, Payload]]:
    use = {"item_type": "tool_use", "call_id": call, "name": name, "arguments": {"path": "src/", "size": 2**64}}
    answer = {"item_type": "tool_result", "call_id": call, "name": name, "result": result}
    if has_items:
        yield turn, "item_started", {"item_id": f"{call}-use", "item_type": "tool_use"}
        use["item_id"], answer["item_id"] = f"{call}-use", f"{call}-result"
    yield turn, "item_completed", use
    yield turn, "item_completed", answer


def write_corpus(base: Path, version: str) -> Path:
    """Write the version's journal below a directory, with today's writer; the session's directory."""
    title = f"golden corpus, schema {version}"
    chained = version == "1.2.0"
    with open_journal(
        CORPORA[version], base_dir=base, schema_version=version, chain=chained, segment_cap=2048, title=title
    ) as journal:
        for event in events(version):
            journal.append(event)
    meta = journal.path / "meta.json"
    described = json.loads(meta.read_bytes()) | {"created_at": CREATED_AT}
    meta.write_text(json.dumps(described, sort_keys=True, separators=(",", ":")), "utf-8")
    (journal.path / "snapshots").rmdir()  # empty, and a checkout would lose it
    return journal.path


def freeze(folder: Path, version: str) -> Path:
    """Freeze a corpus below the folder. Raises `FileExistsError` when it is there."""
    target = folder / f"v{version}"
    if target.exists():
        message = f"{target} is frozen: a corpus is never written again"
        raise FileExistsError(message)
    with tempfile.TemporaryDirectory() as base:
        session = write_corpus(Path(base), version)
        shutil.copytree(session, target / session.name)
    (folder / "MANIFEST.json").write_bytes(manifest(folder))
    return target


def main(arguments: list[str]) -> int:
    """The command."""
    if len(arguments) != 2 or arguments[1] not in CORPORA:
        sys.stderr.write(f"usage: python -m tests.freeze_golden FOLDER {{{','.join(CORPORA)}}}\n")
        return 2
    try:
        sys.stdout.write(f"froze {freeze(Path(arguments[0]), arguments[1])}\n")
    except FileExistsError as error:
        sys.stderr.write(f"Error: {error}\n")
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
