"""Checkpoint records: a pointer to a tip, with or without a snapshot of the model that stood there.

    offset = checkpoint.write(journal, {"applied": [1, 2, 3]})
    model = checkpoint.restore(journal)

A snapshot is a JSON object in `snapshots/<sha256>.json`, written before the record that points to it. Restoring takes
the newest checkpoint's and folds the conversational records after its tip into it. An application registers a backend
for its own models; without one a stand-in is used (the surrogate), which appends the ids to `model["applied"]`, and a
signal says so.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final, Protocol

from raxol_otel import signals
from raxol_otel.canonical import is_array, is_mapping, is_object
from raxol_otel.catalogue import CHECKPOINT_REASONS
from raxol_otel.errors import (
    BackendUnbound,
    InvalidTip,
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
)
from raxol_otel.journal import codec
from raxol_otel.journal.layout import SNAPSHOTS, open_regular, unreadable
from raxol_otel.journal.tip import branch_of, is_conversational

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from raxol_otel.journal.records import Records
    from raxol_otel.journal.store import Journal

    Record = dict[str, Any]

__all__ = ["REASONS", "Backend", "restore", "set_backend", "write"]

REASONS: Final = CHECKPOINT_REASONS
SNAPSHOT_BYTES_MAX: Final = 64 * 2**20
# Containers in containers, the snapshot itself being the first.
SNAPSHOT_DEPTH_MAX: Final = 64
# A key that the format keeps for itself: a snapshot that has it anywhere is not to be trusted.
RESERVED_KEY: Final = "$s"
_BRANCH: Final = "main"
_POINTER: Final = re.compile(r"snapshots/([0-9a-f]{64})\.json", re.ASCII)
_TURNS: Final = {"turn_started": 1, "turn_completed": -1, "turn_canceled": -1, "error": -1}
_RESERVES: Final = {"reserve": 1, "settle": -1, "release": -1}


class Backend(Protocol):
    """An application's own models. What it raises passes through."""

    def dump(self, model: Any) -> Mapping[str, Any]:
        """The model as a JSON object."""
        ...

    def load(self, snapshot: Mapping[str, Any]) -> Any:
        """The model of a snapshot; of an empty object where the checkpoint has none."""
        ...

    def step(self, model: Any, record: Mapping[str, Any]) -> Any:
        """The model after one more conversational record."""
        ...


_backend: Backend | None = None


def set_backend(backend: Backend | None) -> None:
    """Use this backend from now on, in the whole process; None for the surrogate."""
    global _backend  # noqa: PLW0603 - one application a process
    _backend = backend


@dataclass(slots=True)
class _Boundary:
    """What a checkpoint must not cut: counted over all records, whatever their family, kind or branch."""

    turns: int = 0
    reserves: int = 0
    tip: int | None = None
    last: int = 0
    is_given_tip: bool = False

    def count(self, records: Iterable[Record], given: int | None = None) -> None:
        """Go on over more records."""
        for record in records:
            kind = record.get("type")
            if type(kind) is str:
                self.turns = max(self.turns + _TURNS.get(kind, 0), 0)
                self.reserves += _RESERVES.get(kind, 0)
            if _folds(record):
                self.tip = record["id"]
                self.is_given_tip |= self.tip == given
            self.last = record["id"]

    def check(self) -> None:
        """Raise `MidTurn` and `MidReserve`."""
        if self.turns > 0:
            raise MidTurn("a turn is open; a checkpoint stands between turns")
        if self.reserves > 0:
            raise MidReserve("a reserve is open; settle or release it before a checkpoint")


def write(journal: Journal, model: Any, reason: str = "manual", tip_offset: int | None = None) -> int:
    """Write a checkpoint at the conversational tip, or at an earlier one; the record's offset.

    `model` None makes a pointer without a snapshot. Nothing is appended when this raises, in this order:
    `JournalDamaged` or `JournalUnreadable`; `NoTip` where there is no tip, `InvalidTip` where `tip_offset` is none;
    `MidTurn`, `MidReserve`; `UnknownReason`; `BackendUnbound` for a model that is no object, without a backend;
    `Unencodable` for one that could not be restored; `WriteFailed`.
    """
    boundary = _Boundary()
    boundary.count(journal.records(), tip_offset)
    tip = boundary.tip if tip_offset is None else tip_offset
    if tip is None:
        message = f"{journal.session_id} has no conversational record to point at"
        raise NoTip(message)
    if tip_offset is not None and not boundary.is_given_tip:
        message = f"{journal.session_id}: offset {tip_offset} is no conversational record of the main branch"
        raise InvalidTip(message)
    boundary.check()
    if reason not in REASONS:
        message = f"reason {reason!r} is none of {', '.join(sorted(REASONS))}"
        raise UnknownReason(message)
    name = None
    if model is not None:
        name = _write_snapshot(journal, model)
        if _backend is None:
            _publish(journal, "write", None)
    record = {
        "kind": "checkpoint",
        "branch_id": _BRANCH,
        "session_id": journal.session_id,
        "ts": time.time_ns() // 1_000,
        "tip_offset": tip,
        "snapshot_ref": None if name is None else f"{SNAPSHOTS}/{name}.json",
        "snapshot_hash": name,
        "reason": reason,
    }

    def check(records: Records) -> None:
        boundary.count(records.after(boundary.last))
        boundary.check()

    return journal.append_checked(record, check, sync=True)


def _write_snapshot(journal: Journal, model: Any) -> str:
    """Write the snapshot; its hash, which is its name."""
    if _backend is not None:
        model = _backend.dump(model)
    if not is_mapping(model):
        message = f"a model of type {type(model).__name__} needs a backend; without one it is an object or None"
        raise BackendUnbound(message)
    text = codec.encode(model)
    fault = _fault(codec.decode(text))
    if len(text) > SNAPSHOT_BYTES_MAX:
        fault = f"a snapshot of {len(text)} bytes; at most {SNAPSHOT_BYTES_MAX} are restored"
    if fault is not None:
        raise Unencodable("model", fault)
    name = sha256(text).hexdigest()
    journal.write_snapshot(f"{name}.json", text)
    return name


def _fault(snapshot: Any) -> str | None:
    """Why a decoded snapshot is not to be restored."""
    if not is_object(snapshot):
        return "it is no object"
    level: list[Any] = [snapshot]
    for _ in range(SNAPSHOT_DEPTH_MAX):
        below: list[Any] = []
        for container in level:
            if is_object(container):
                if RESERVED_KEY in container:
                    return f"it has a key {RESERVED_KEY!r}"
                below += container.values()
            else:
                below += container
        level = [one for one in below if is_object(one) or is_array(one)]
        if not level:
            return None
    return f"it is more than {SNAPSHOT_DEPTH_MAX} levels deep"


def restore(journal: Journal) -> Any:
    """The model of the newest checkpoint, with the conversational records of the main branch after its tip folded in.

    Raises `NoCheckpoint`, `MalformedCheckpoint`, `MalformedPointer`, `SnapshotMissing`, `SnapshotCorrupt`,
    `JournalDamaged`, `JournalUnreadable`.
    """
    newest = None
    for record in journal.records():
        if record.get("kind") == "checkpoint":
            newest = record
    if newest is None:
        message = f"{journal.session_id} has no checkpoint"
        raise NoCheckpoint(message)
    tip = newest.get("tip_offset")
    if "snapshot_ref" not in newest or type(tip) is not int or tip < 1:
        message = f"{journal.session_id}: the checkpoint at offset {newest['id']} lacks a tip or a pointer"
        raise MalformedCheckpoint(message)
    pointer = newest["snapshot_ref"]
    is_tip_only = pointer is None
    snapshot: dict[str, Any] = {} if is_tip_only else _read_snapshot(journal, newest, pointer)
    records = (one for one in journal.records() if _folds(one) and (one["id"] <= tip) == is_tip_only)
    model = _folded(journal, snapshot, records)
    if _backend is None:
        _publish(journal, "restore", tip)
    return model


def _folds(record: Record) -> bool:
    return is_conversational(record) and branch_of(record) == _BRANCH


def _folded(journal: Journal, snapshot: dict[str, Any], records: Iterator[Record]) -> Any:
    if _backend is not None:
        model = _backend.load(snapshot)
        for record in records:
            model = _backend.step(model, record)
        return model
    ids = [record["id"] for record in records]
    if ids:
        applied = snapshot.get("applied", [])
        if not is_array(applied):
            message = f"{journal.session_id}: the snapshot's `applied` is no list"
            raise SnapshotCorrupt(message)
        snapshot["applied"] = [*applied, *ids]
    return snapshot


def _read_snapshot(journal: Journal, record: Record, pointer: object) -> dict[str, Any]:
    match = _POINTER.fullmatch(pointer) if type(pointer) is str else None
    if match is None:
        message = f"{journal.session_id}: the checkpoint at offset {record['id']} points to no snapshot's name"
        raise MalformedPointer(message)
    name = f"{match[1]}.json"
    path = journal.path / SNAPSHOTS / name
    try:
        with open_regular(path) as file:
            text = file.read(SNAPSHOT_BYTES_MAX + 1)
    except FileNotFoundError:
        message = f"{journal.session_id}: {SNAPSHOTS}/{name} is not there"
        raise SnapshotMissing(message) from None
    except OSError as error:
        raise unreadable(path, error) from error
    fault = _text_fault(text, match[1], record.get("snapshot_hash"))
    snapshot: Any = None
    if fault is None:
        try:
            snapshot = codec.decode(text)
            fault = _fault(snapshot)
        except codec.DecodeError as error:
            fault = str(error)
    if fault is not None:
        message = f"{journal.session_id}: {SNAPSHOTS}/{name}: {fault}"
        raise SnapshotCorrupt(message)
    return dict(snapshot)


def _text_fault(text: bytes, name: str, claimed: object) -> str | None:
    if len(text) > SNAPSHOT_BYTES_MAX:
        return f"it is larger than {SNAPSHOT_BYTES_MAX} bytes"
    if sha256(text).hexdigest() != name:
        return "its content has another hash than its name"
    if type(claimed) is str and claimed != name:
        return "the record names another hash"
    return None


def _publish(journal: Journal, op: str, tip_offset: int | None) -> None:
    metadata = {"op": op, "session_id": journal.session_id, "tip_offset": tip_offset}
    signals.publish(signals.Signal(signals.SIGNAL_SURROGATE, metadata))
