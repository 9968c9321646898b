"""Checkpoints as the reference wrote and restored them: replies, signals, bytes, models and refusals."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.errors import (
    BackendUnbound,
    FloatRefused,
    InvalidTip,
    MalformedCheckpoint,
    MalformedPointer,
    MidReserve,
    MidTurn,
    NoCheckpoint,
    NoTip,
    RaxolError,
    SnapshotCorrupt,
    SnapshotMissing,
    UnknownReason,
)
from raxol_otel.journal import checkpoint, open_journal
from tests.conftest import SHARED, SHARED_ABSENT
from tests.test_oracle import place

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raxol_otel.journal import Journal

NAMES: Final[dict[type[RaxolError], str]] = {
    BackendUnbound: "surrogate_backend_unbound",
    FloatRefused: "float_refused",
    InvalidTip: "invalid_tip",
    MalformedCheckpoint: "malformed_checkpoint",
    MalformedPointer: "malformed_pointer",
    MidReserve: "mid_reserve",
    MidTurn: "mid_turn",
    NoCheckpoint: "no_checkpoint",
    NoTip: "no_tip",
    SnapshotCorrupt: "snapshot_corrupt",
    SnapshotMissing: "snapshot_missing",
    UnknownReason: "unknown_reason",
}
# Replies that differ from the reference's on purpose, and why.
ALLOWED: Final = {
    "checkpoint_applied_not_list": "the reference crashes on an `applied` that is no list; here it is SnapshotCorrupt",
}


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_checkpoint_oracle", found.append)
    yield found
    signals.detach("test_checkpoint_oracle")


def cases(has: str) -> list[Any]:
    """The verdicts on checkpoints that have such a member; where the corpora are absent, one skip."""
    path = SHARED / "oracle" / "verdicts.json"
    if not path.exists():
        return [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=SHARED_ABSENT))]
    found = json.loads(path.read_bytes())
    return [
        pytest.param(one, id=one["case"]) for one in found if one["case"].startswith("checkpoint_") and one.get(has)
    ]


def refused(error: RaxolError) -> list[Any]:
    """An error as the verdicts write it."""
    name = NAMES[type(error)]
    return ["error", name]


def recorded(reply: Any) -> Any:
    """A recorded reply without what the reference adds to a refusal."""
    if reply[0] == "error" and isinstance(reply[1], list):
        return ["error", reply[1][0]]
    return reply


def spoken(heard: list[signals.Signal]) -> list[dict[str, Any]]:
    """What was heard, in the form of the verdicts."""
    found = [{"event": one.name, "measurements": {}, "metadata": dict(one.metadata)} for one in heard]
    heard.clear()
    return found


def do(journal: Journal, step: dict[str, Any]) -> list[Any]:
    """One step, and its reply as the verdicts write it."""
    try:
        if "append" in step:
            return ["ok", journal.append(step["append"])]
        if "restore" in step:
            return ["ok", checkpoint.restore(journal)]
        return ["ok", checkpoint.write(journal, step["checkpoint"], **step["opts"])]
    except RaxolError as error:
        return refused(error)


@pytest.mark.parametrize("verdict", cases("writer"))
def test_steps_with_checkpoints_give_the_recorded_replies_signals_and_bytes(
    verdict: dict[str, Any],
    shared: Path,
    tmp_path: Path,
    heard: list[signals.Signal],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The steps that were given to the reference's writer give the same replies, signals, journal and snapshots."""
    stored = shared / "oracle" / "cases" / verdict["case"]
    steps = json.loads((stored / "steps.json").read_bytes())
    texts = [path.read_bytes() for path in sorted((stored / "session" / "journal").iterdir())]
    records = [json.loads(line) for text in texts for line in text.split(b"\n") if line]
    stamps = iter([record["ts"] for record in records if record.get("kind") == "checkpoint"])
    # The time of a checkpoint is the only thing the steps do not give.
    monkeypatch.setattr("raxol_otel.journal.checkpoint.time.time_ns", lambda: next(stamps, 0) * 1000)
    options = verdict["writer"]["options"]
    with open_journal("session", base_dir=tmp_path, **options) as journal:
        for step, expected in zip(steps, verdict["writer"]["replies"], strict=True):
            reply = do(journal, step)
            assert reply == recorded(expected["reply"]), step
            assert spoken(heard) == expected["telemetry"], step
    for path in sorted((stored / "session").rglob("*")):
        if path.is_file() and path.name != "meta.json":
            assert (tmp_path / "session" / path.relative_to(stored / "session")).read_bytes() == path.read_bytes()


@pytest.mark.parametrize("verdict", cases("restore"))
def test_restoring_gives_the_recorded_model_or_refusal(
    verdict: dict[str, Any], shared: Path, tmp_path: Path, heard: list[signals.Signal]
) -> None:
    """The newest checkpoint of each journal restores to the reference's model, with its signal, or is refused alike."""
    expected = verdict["restore"]
    session = place(verdict, tmp_path / "session", shared / "oracle")
    with open_journal("session", base_dir=tmp_path) as journal:
        heard.clear()
        reply = do(journal, {"restore": 1})
    assert session.is_dir()
    if verdict["case"] in ALLOWED:
        assert (expected["result"][0], reply) == ("raised", ["error", "snapshot_corrupt"])
    else:
        assert reply == recorded(expected["result"])
        assert spoken(heard) == expected["telemetry"]
