"""The reference implementation's verdict on each journal of ../shared/oracle, and ours.

A difference is a fault here, except for what `ALLOWED` names.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from typing import TYPE_CHECKING, Any, Final, cast

import pytest

from raxol_otel import signals
from raxol_otel.contract import evidence_status
from raxol_otel.errors import JournalUnreadable, NotChained
from raxol_otel.journal import last_offset, resume_scan, scan, tip, verify
from tests import naive_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from raxol_otel.journal import Scan
    from tests.naive_reader import Json, Record

    Verdict = dict[str, Any]

# Cases whose verdict differs from the reference's on purpose, and why.
ALLOWED: Final = {
    "segment_is_directory": "the reference lets the bare file error out; here it is JournalUnreadable, naming it",
}


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_oracle", found.append)
    yield found
    signals.detach("test_oracle")


def place(verdict: Verdict, session: Path, stored: Path) -> Path:
    """A fresh writable copy of the case's journal, with the folders that a checkout may lose."""
    source = stored / "cases" / verdict["case"] / "session"
    if verdict["session_dir_exists"]:
        session.mkdir(parents=True)
        for path in sorted(source.rglob("*")):
            if path.is_file():
                target = session / path.relative_to(source)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        for name in verdict["dirs"]:
            (session / name).mkdir(parents=True, exist_ok=True)
    return session


def tree(session: Path) -> dict[str, dict[str, Any]]:
    """Every file as the verdicts list it: its size and the SHA-256 of its bytes."""
    files: dict[str, dict[str, Any]] = {}
    for path in session.rglob("*"):
        if path.is_file():
            name, data = path.relative_to(session).as_posix(), path.read_bytes()
            files[name] = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    return files


def digest(records: list[Record]) -> str:
    """The hash of the records' canonical text, made without recursion (`json.dumps` stops at some depth)."""
    text = naive_reader.dump(cast("Json", records), lambda s: json.dumps(s, ensure_ascii=False), repr)
    return hashlib.sha256(text.encode()).hexdigest()


def relative(heard: list[signals.Signal], session: Path) -> list[dict[str, Any]]:
    """What was heard, in the form of the verdicts: paths relative to the journal directory."""
    return [
        {
            "event": signal.name,
            "metadata": {
                "dir": os.path.relpath(signal.metadata["dir"], session),
                "segment": os.path.relpath(signal.metadata["segment"], session),
            },
        }
        for signal in heard
    ]


def events(told: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The reference's events without their measurements, which our signals do not carry."""
    return [{"event": event["event"], "metadata": event["metadata"]} for event in told]


def evidence(records: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The evidence status of each final `turn_completed`, as the verdicts list it."""
    found: list[dict[str, Any]] = []
    for record in records:
        payload: Json = record.get("payload")
        if record.get("type") == "turn_completed" and isinstance(payload, dict) and payload.get("final") is True:
            found.append({"id": record["id"], "status": evidence_status(payload).value})
    return found


def judged(verdict: Verdict, session: Path, read: Callable[[Path], Scan]) -> Scan | None:
    """The scan, its verdict being the reference's; None when both refused to read."""
    part = verdict["resume_scan" if read is resume_scan else "scan"]
    if part["verdict"] == "raised":
        assert verdict["case"] in ALLOWED
        with pytest.raises(JournalUnreadable) as unreadable:
            read(session)
        assert unreadable.value.path == session / "journal" / "000002.jsonl"
        return None
    outcome = read(session)
    assert outcome.ok == (part["verdict"] == "ok")
    assert (outcome.damage is None) == outcome.ok
    assert len(outcome.records) == part["records_returned"]
    return outcome


def check_last_offset(verdict: Verdict, session: Path) -> None:
    """`last_offset` gives the reference's number, and refuses to read where the reference raised."""
    if isinstance(verdict["last_offset"], int):
        assert last_offset(session) == verdict["last_offset"]
    else:
        assert verdict["case"] in ALLOWED
        with pytest.raises(JournalUnreadable):
            last_offset(session)


def check_verify(verdict: Verdict, session: Path) -> None:
    """`verify` gives the reference's result: linked, broken at an offset, or not chained at all."""
    if verdict["verify"] == ["error", "unchained"]:
        with pytest.raises(NotChained):
            verify(session)
    else:
        expected = None if verdict["verify"] == "ok" else verdict["verify"][1]
        assert verify(session) == expected


def check_resume_scan(verdict: Verdict, session: Path, heard: list[signals.Signal]) -> None:
    """`resume_scan` gives the reference's verdict and leaves the very same files."""
    heard.clear()
    judged(verdict, session, resume_scan)
    assert relative(heard, session) == events(verdict["resume_scan"]["telemetry"])
    assert tree(session) == verdict["resume_scan"]["files_after"]


def test_agrees_with_the_reference(
    oracle_verdict: Verdict, shared: Path, tmp_path: Path, heard: list[signals.Signal]
) -> None:
    """Verdict, records, signals, offsets, chain, tips, evidence and repaired bytes are the reference's."""
    session = place(oracle_verdict, tmp_path / "plain" / "session", shared / "oracle")
    before = tree(session)
    assert before == oracle_verdict["tree"], "the stored case is not what the verdict was made on"

    expected = oracle_verdict["scan"]
    outcome = judged(oracle_verdict, session, scan)
    assert relative(heard, session) == events(expected["telemetry"])
    if outcome is not None:
        ids = [record["id"] for record in outcome.records]
        assert (ids[:1], ids[-1:]) == ([expected["first_id"]] * bool(ids), [expected["last_id"]] * bool(ids))
        assert digest(outcome.records) == expected["records_sha256"]
        assert {name: tip(outcome.records, name) for name in oracle_verdict["tips"]} == oracle_verdict["tips"]
        assert tip(outcome.records) == oracle_verdict["tips"]["main"]
        assert evidence(outcome.records) == oracle_verdict["evidence"]
    check_last_offset(oracle_verdict, session)
    check_verify(oracle_verdict, session)
    assert tree(session) == before, "a read has written"

    again = place(oracle_verdict, tmp_path / "resumed" / "session", shared / "oracle")
    check_resume_scan(oracle_verdict, again, heard)


def test_the_naive_reader_agrees_with_the_reference(oracle_verdict: Verdict, shared: Path, tmp_path: Path) -> None:
    """The second reader, which other tests compare with, gives the reference's verdict and records."""
    session = place(oracle_verdict, tmp_path / "session", shared / "oracle")
    expected = oracle_verdict["scan"]
    reading = naive_reader.read(session)
    assert reading.verdict == ("unreadable" if expected["verdict"] == "raised" else expected["verdict"])
    assert len(reading.records) == expected["records_returned"]
    assert digest(reading.records) == expected["records_sha256"]
    damaged = [event["metadata"]["segment"] for event in expected["telemetry"]]
    assert ([] if reading.segment is None else [reading.segment]) == damaged
