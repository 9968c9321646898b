"""Checkpoints: what is refused and in which order, what is written, and what is restored."""

from __future__ import annotations

import errno
import json
import os
import time
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel import signals
from raxol_otel.errors import (
    BackendUnbound,
    CheckpointError,
    InvalidTip,
    JournalUnreadable,
    MalformedCheckpoint,
    MalformedPointer,
    MidReserve,
    MidTurn,
    NoCheckpoint,
    NoTip,
    SnapshotCorrupt,
    SnapshotMissing,
    Unencodable,
    UnknownReason,
    WriteFailed,
)
from raxol_otel.journal import checkpoint, open_journal
from raxol_otel.journal.files import Files

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raxol_otel.journal import Journal

LOOP = {"family": "loop", "type": "item_completed"}
MIB = 2**20


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An open, empty journal."""
    with open_journal("s", base_dir=tmp_path) as opened:
        yield opened


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_checkpoint", found.append)
    yield found
    signals.detach("test_checkpoint")


def types(*names: str) -> list[dict[str, Any]]:
    """Events of these types, of no family: they count for the boundary and are no tips."""
    return [{"type": name} for name in names]


def stored(journal: Journal) -> list[str]:
    """The names of the snapshots."""
    folder = journal.path / "snapshots"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def put(journal: Journal, snapshot: bytes, **more: Any) -> Path:
    """A snapshot of these bytes under its right name, and a checkpoint that points to it; the snapshot's path."""
    name = sha256(snapshot).hexdigest()
    path = journal.path / "snapshots" / f"{name}.json"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(snapshot)
    pointer = {"tip_offset": 1, "snapshot_ref": f"snapshots/{name}.json", "snapshot_hash": name}
    journal.append({"kind": "checkpoint", **pointer, **more})
    return path


# --- The boundary -----------------------------------------------------------------------------------------------------

TURN_ENDS = ["turn_completed", "turn_canceled", "error"]


@pytest.mark.parametrize("end", TURN_ENDS)
def test_each_turn_needs_an_end_of_its_own(journal: Journal, end: str) -> None:
    """Two turns and one end leave one open; the second end closes it. An end too many opens nothing."""
    journal.append(LOOP)
    journal.append_many(types("error", "turn_started", "turn_started", end))
    with pytest.raises(MidTurn, match="a turn is open"):
        checkpoint.write(journal, None)
    journal.append_many(types(end))
    assert checkpoint.write(journal, None) == 7


@pytest.mark.parametrize("end", ["settle", "release"])
def test_each_reserve_needs_an_end_of_its_own(journal: Journal, end: str) -> None:
    """Two reserves and one end leave one open; the second end closes it."""
    journal.append(LOOP)
    journal.append_many(types("reserve", "reserve", end))
    with pytest.raises(MidReserve, match="a reserve is open"):
        checkpoint.write(journal, None)
    journal.append_many(types(end))
    assert checkpoint.write(journal, None) == 6


def test_an_end_too_many_pays_for_no_later_turn_but_for_a_later_reserve(journal: Journal) -> None:
    """Turns are counted not below nought; reserves are."""
    journal.append(LOOP)
    journal.append_many(types("turn_completed", "turn_completed", "turn_started"))
    with pytest.raises(MidTurn):
        checkpoint.write(journal, None)
    journal.append_many(types("turn_completed", "settle", "reserve"))
    assert checkpoint.write(journal, None) == 8


def test_the_first_of_several_faults_is_told(journal: Journal, heard: list[signals.Signal]) -> None:
    """No tip, a wrong tip, an open turn, an open reserve, the reason, the model: in this order, nothing appended."""
    journal.append_many(types("reserve", "turn_started"))
    refusals: list[tuple[type[CheckpointError], int | None]] = [(NoTip, None), (InvalidTip, 1)]
    for refusal, tip in refusals:
        with pytest.raises(refusal):
            checkpoint.write(journal, 7, "never", tip)
    journal.append(LOOP)
    with pytest.raises(InvalidTip):
        checkpoint.write(journal, 7, "never", 2)
    for refusal, end in ((MidTurn, "turn_completed"), (MidReserve, "settle"), (UnknownReason, "note")):
        with pytest.raises(refusal):
            checkpoint.write(journal, 7, "never", 3)
        journal.append_many(types(end))
    with pytest.raises(BackendUnbound):
        checkpoint.write(journal, 7, "auto", 3)
    assert (len(journal.read()), stored(journal), heard) == (6, [], [])


def test_refusals_name_the_session_and_the_fault(journal: Journal) -> None:
    """One line each, that says what to look at."""
    with pytest.raises(NoTip, match=r"^s has no conversational record to point at$"):
        checkpoint.write(journal, {})
    journal.append(LOOP)
    with pytest.raises(InvalidTip, match=r"^s: offset 2 is no conversational record of the main branch$"):
        checkpoint.write(journal, {}, tip_offset=2)
    with pytest.raises(UnknownReason, match=r"^reason 'x' is none of auto, compaction, manual$"):
        checkpoint.write(journal, {}, "x")
    with pytest.raises(BackendUnbound, match=r"^a model of type list needs a backend; "):
        checkpoint.write(journal, [])
    with pytest.raises(NoCheckpoint, match=r"^s has no checkpoint$"):
        checkpoint.restore(journal)


@pytest.mark.parametrize("record", [{**LOOP, "branch_id": "other"}, {**LOOP, "kind": "x"}, {**LOOP, "family": "meta"}])
def test_only_what_is_said_on_main_is_a_tip(journal: Journal, record: dict[str, Any]) -> None:
    """Another branch, kind or family is none, neither by itself nor when it is given."""
    journal.append(record)
    with pytest.raises(NoTip):
        checkpoint.write(journal, None)
    with pytest.raises(InvalidTip):
        checkpoint.write(journal, None, tip_offset=1)


# --- What is written --------------------------------------------------------------------------------------------------


def test_the_record_and_its_snapshot(journal: Journal, heard: list[signals.Signal]) -> None:
    """The record says all that the format asks for; the snapshot is the canonical text under its hash."""
    journal.append(LOOP)
    journal.append({**LOOP, "branch_id": "other"})
    before = time.time_ns() // 1000
    assert checkpoint.write(journal, {"b": 1.5, "a": [1]}) == 3
    text = b'{"a":[1],"b":1.5}'
    name = sha256(text).hexdigest()
    record = journal.read(3)[0]
    assert before <= record.pop("ts") <= time.time_ns() // 1000
    assert record == {
        "id": 3,
        "kind": "checkpoint",
        "branch_id": "main",
        "session_id": "s",
        "schema_version": "1.2.0",
        "tip_offset": 1,
        "snapshot_ref": f"snapshots/{name}.json",
        "snapshot_hash": name,
        "reason": "manual",
    }
    assert (stored(journal), (journal.path / "snapshots" / f"{name}.json").read_bytes()) == ([f"{name}.json"], text)
    told = [(one.name, dict(one.metadata)) for one in heard]
    assert told == [(signals.SIGNAL_SURROGATE, {"op": "write", "session_id": "s", "tip_offset": None})]


def test_a_pointer_without_snapshot(journal: Journal, heard: list[signals.Signal]) -> None:
    """Both keys are null, the given tip and reason are kept, no file is made and nobody is told."""
    journal.append_many([LOOP, LOOP])
    checkpoint.write(journal, None, "compaction", 1)
    record = journal.read(3)[0]
    kept = {"tip_offset": 1, "snapshot_ref": None, "snapshot_hash": None, "reason": "compaction"}
    assert {key: record[key] for key in kept} == kept
    assert (stored(journal), heard) == ([], [])


class Disk(Files):
    """A disk that syncs nothing while it is broken."""

    is_broken = False

    def sync(self, descriptor: int) -> None:
        """Sync, or fail."""
        if self.is_broken:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().sync(descriptor)


def test_a_checkpoint_that_is_not_durable_is_told(tmp_path: Path) -> None:
    """`write` waits for the sync of its record, however seldom syncs come otherwise, and says how it went."""
    files = Disk()
    with open_journal("slow", base_dir=tmp_path, sync_ceiling_ms=600_000, files=files) as journal:
        journal.append(LOOP, sync=False)
        files.is_broken = True
        with pytest.raises(WriteFailed) as caught:
            checkpoint.write(journal, None)
        files.is_broken = False
        assert list(caught.value.offsets) == [2]


def nested(depth: int, *, is_list: bool) -> dict[str, Any]:
    """An object with so many containers in one another, itself the first."""
    inner: Any = [] if is_list else {}
    for _ in range(depth - 2):
        inner = [inner] if is_list else {"a": inner}
    return {"a": inner}


@pytest.mark.parametrize("is_list", [False, True])
def test_a_snapshot_is_at_most_64_levels_deep(journal: Journal, *, is_list: bool) -> None:
    """The 65th is refused before anything is written, and when a snapshot on the disk has it."""
    journal.append(LOOP)
    checkpoint.write(journal, nested(64, is_list=is_list))
    assert checkpoint.restore(journal) == nested(64, is_list=is_list)
    with pytest.raises(Unencodable, match="it is more than 64 levels deep") as caught:
        checkpoint.write(journal, nested(65, is_list=is_list))
    assert (caught.value.path, len(journal.read()), len(stored(journal))) == ("model", 2, 1)
    put(journal, json.dumps(nested(65, is_list=is_list)).encode())
    with pytest.raises(SnapshotCorrupt, match=r"^s: snapshots/[0-9a-f]{64}\.json: it is more than 64 levels deep$"):
        checkpoint.restore(journal)


def test_a_snapshot_is_at_most_64_mib_large(journal: Journal) -> None:
    """One byte more is refused before anything is written, and when a snapshot on the disk has it."""
    journal.append(LOOP)
    text = "x" * (64 * MIB - len('{"a":""}'))
    checkpoint.write(journal, {"a": text})
    assert checkpoint.restore(journal)["a"] == text
    with pytest.raises(Unencodable, match="a snapshot of 67108865 bytes; at most 67108864 are restored"):
        checkpoint.write(journal, {"a": text + "x"})
    assert (len(journal.read()), len(stored(journal))) == (2, 1)
    put(journal, f'{{"a":"{text}x"}}'.encode())
    with pytest.raises(SnapshotCorrupt, match="it is larger than 67108864 bytes"):
        checkpoint.restore(journal)


@pytest.mark.parametrize(
    "model",
    [
        {"$s": 1},
        {"a": {"$s": None}},
        {"a": [0, [{"$s": 1}]]},
        {"b": 1, "a": [{}, {"$s": 1}]},
        {"a": {"a": {"$s": 1}}, "b": {}},
        {"a": [{"$s": 1}], "b": []},
    ],
)
def test_the_reserved_key_is_refused_anywhere(journal: Journal, model: dict[str, Any]) -> None:
    """When a snapshot is written, and when one on the disk has it."""
    journal.append(LOOP)
    with pytest.raises(Unencodable, match=r"it has a key '\$s'"):
        checkpoint.write(journal, model)
    put(journal, json.dumps(model).encode())
    with pytest.raises(SnapshotCorrupt, match=r"it has a key '\$s'"):
        checkpoint.restore(journal)


# --- What is restored -------------------------------------------------------------------------------------------------


def test_what_came_after_the_tip_is_folded_in(journal: Journal, heard: list[signals.Signal]) -> None:
    """The newest checkpoint counts; ids of main's conversational records after its tip are appended, no others."""
    journal.append_many([LOOP, LOOP])
    checkpoint.write(journal, {"applied": ["old"]})
    checkpoint.write(journal, {"applied": [1], "more": True}, tip_offset=1)
    journal.append_many([{**LOOP, "branch_id": "other"}, {"type": "note"}, LOOP])
    heard.clear()
    assert checkpoint.restore(journal) == {"applied": [1, 2, 7], "more": True}
    told = [(one.name, dict(one.metadata)) for one in heard]
    assert told == [(signals.SIGNAL_SURROGATE, {"op": "restore", "session_id": "s", "tip_offset": 1})]


def test_without_a_snapshot_all_up_to_the_tip_is_folded(journal: Journal) -> None:
    """Into an empty model; what came after the tip is not."""
    journal.append_many([LOOP, {"type": "note"}, LOOP, LOOP])
    checkpoint.write(journal, None, tip_offset=3)
    assert checkpoint.restore(journal) == {"applied": [1, 3]}


def test_a_snapshot_to_which_nothing_is_added_stays_as_it_is(journal: Journal) -> None:
    """Even an odd `applied` is nobody's business then; with something to fold it is corrupt."""
    journal.append(LOOP)
    checkpoint.write(journal, {"applied": "odd"})
    assert checkpoint.restore(journal) == {"applied": "odd"}
    journal.append(LOOP)
    with pytest.raises(SnapshotCorrupt, match=r"^s: the snapshot's `applied` is no list$"):
        checkpoint.restore(journal)


@pytest.mark.parametrize(
    "record",
    [
        *({"tip_offset": tip, "snapshot_ref": None} for tip in (0, -1, "1", 1.0, True, None)),
        *({"snapshot_ref": None}, {"tip_offset": 1}),
    ],
)
def test_a_checkpoint_without_tip_or_pointer_is_malformed(journal: Journal, record: dict[str, Any]) -> None:
    """The tip is an integer from 1, and the pointer's key is there; the error names the record."""
    journal.append_many([LOOP, {"kind": "checkpoint", **record}])
    with pytest.raises(MalformedCheckpoint, match=r"^s: the checkpoint at offset 2 lacks a tip or a pointer$"):
        checkpoint.restore(journal)


HASH = sha256(b"{}").hexdigest()


@pytest.mark.parametrize(
    "pointer",
    [
        *(7, True, [], {}, "", HASH, f"{HASH}.json", f"snapshots/{HASH}", f"snapshots/{HASH.upper()}.json"),
        *(
            f"./snapshots/{HASH}.json",
            f"snapshots/../{HASH}.json",
            f"snapshots/{HASH}.json\n",
            f"snapshots/{HASH}0.json",
        ),
    ],
)
def test_a_pointer_is_a_snapshots_name_and_nothing_else(journal: Journal, pointer: object) -> None:
    """No other path is ever opened; the error names the record."""
    journal.append(LOOP)
    put(journal, b"{}", snapshot_ref=pointer)
    with pytest.raises(MalformedPointer, match=r"^s: the checkpoint at offset 2 points to no snapshot's name$"):
        checkpoint.restore(journal)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"[]", "it is no object"),
        (b"null", "it is no object"),
        (b"{", "Expecting property name enclosed in double quotes at character 1"),
        (b"\xff", "invalid UTF-8 at byte 0"),
    ],
)
def test_a_snapshot_that_is_no_json_object_is_corrupt(journal: Journal, text: bytes, said: str) -> None:
    """Its hash being right does not help."""
    journal.append(LOOP)
    put(journal, text)
    with pytest.raises(SnapshotCorrupt, match=rf"^s: snapshots/[0-9a-f]{{64}}\.json: {said}$"):
        checkpoint.restore(journal)


def test_a_snapshot_is_proven_by_its_name_and_by_the_record(journal: Journal, heard: list[signals.Signal]) -> None:
    """Other content, another hash in the record: corrupt, and nobody is told of a restore. A missing hash is let be."""
    journal.append(LOOP)
    path = put(journal, b"{}", snapshot_hash="0" * 64)
    with pytest.raises(SnapshotCorrupt, match="the record names another hash"):
        checkpoint.restore(journal)
    put(journal, b"{}", snapshot_hash=None)
    assert checkpoint.restore(journal) == {}
    heard.clear()
    path.write_bytes(b"{ }")
    with pytest.raises(SnapshotCorrupt, match="its content has another hash than its name"):
        checkpoint.restore(journal)
    path.unlink()
    with pytest.raises(SnapshotMissing, match=rf"^s: snapshots/{path.name} is not there$"):
        checkpoint.restore(journal)
    path.mkdir()
    with pytest.raises(JournalUnreadable, match="Is a directory") as caught:
        checkpoint.restore(journal)
    assert (caught.value.path, heard) == (path, [])
