"""Every error of the package, one tree.

    RaxolError
    ├── JournalError                  something about one journal
    │   ├── JournalDamaged            interior damage; carries .damage
    │   ├── JournalUnreadable         a file or folder that cannot be read; carries .path
    │   ├── JournalLocked             another writer holds it
    │   ├── UntrustedDirectory        private mode refuses the directory
    │   ├── WriteFailed               an operation of the writer failed
    │   ├── WriterClosed              the handle's writer is gone
    │   ├── CheckRefused              append_checked's check said no
    │   └── NotChained                verify() of an unchained journal
    ├── InvalidSessionId
    ├── InvalidStep                   no step of the observations' vocabulary; carries .path and .reason
    ├── EncodeError                   a value that JSON, or a chain, cannot carry; carries .path
    │   ├── Unencodable
    │   └── FloatRefused
    ├── CheckpointError
    │   ├── InvalidTip, NoTip, MidTurn, MidReserve, UnknownReason, BackendUnbound    refused writes
    │   └── NoCheckpoint, MalformedCheckpoint, MalformedPointer, SnapshotMissing, SnapshotCorrupt
    └── UsageError                    what was asked cannot be done; carries .hint
        └── ExportError               spans could not be delivered

A message names the thing and the place; `hint`, where there is one, names the way out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from raxol_otel.journal.reader import Damage

__all__ = [
    "BackendUnbound",
    "CheckRefused",
    "CheckpointError",
    "EncodeError",
    "ExportError",
    "FloatRefused",
    "InvalidSessionId",
    "InvalidStep",
    "InvalidTip",
    "JournalDamaged",
    "JournalError",
    "JournalLocked",
    "JournalUnreadable",
    "MalformedCheckpoint",
    "MalformedPointer",
    "MidReserve",
    "MidTurn",
    "NoCheckpoint",
    "NoTip",
    "NotChained",
    "RaxolError",
    "SnapshotCorrupt",
    "SnapshotMissing",
    "Unencodable",
    "UnknownReason",
    "UntrustedDirectory",
    "UsageError",
    "WriteFailed",
    "WriterClosed",
]


class RaxolError(Exception):
    """Root of all errors this package raises on purpose."""

    hint: str | None = None


class JournalError(RaxolError):
    """Something about one journal."""


class JournalDamaged(JournalError):
    """A journal is damaged inside; nothing at or after the damage is ever returned."""

    def __init__(self, damage: Damage) -> None:
        super().__init__(str(damage))
        self.damage = damage
        self.hint = "keep the journal as it is; `raxol-otel salvage PATH NEW` writes what is before the damage anew"


class JournalUnreadable(JournalError):
    """A file or folder of a journal cannot be read (and is not simply absent)."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"cannot read {path}: {reason}")
        self.path = path
        self.reason = reason


class JournalLocked(JournalError):
    """Another writer holds the journal; `pid` is its process, None where the lock does not tell."""

    def __init__(self, message: str, pid: int | None = None) -> None:
        super().__init__(message)
        self.pid = pid
        self.hint = "one writer a journal: close the other, or wait for it"


class UntrustedDirectory(JournalError):
    """Private mode refuses a directory that others could have touched."""


class WriteFailed(JournalError):
    """An operation of the writer failed; the record was not made durable.

    `stage` and `reason` are those of the `write_failed` signal. `offsets` are of records that were appended all the
    same, though not durably: they stand in the journal, and are synced again at the next append, flush and close.
    Empty where nothing was appended.
    """

    def __init__(
        self, message: str, *, stage: str = "append", reason: str = "other", offsets: Sequence[int] = ()
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.reason = reason
        self.offsets = tuple(offsets)


class WriterClosed(JournalError):
    """The handle's writer is closed, or belongs to another process."""


class NotChained(JournalError):
    """`verify` was asked of a journal without a hash chain."""


class CheckRefused(JournalError):
    """`append_checked`'s check returned False; nothing was appended."""


class InvalidSessionId(RaxolError):
    """A session id that is not `[A-Za-z0-9._-]+`, or is `.` or `..`."""


class InvalidStep(RaxolError):
    """An observation that is none of the vocabulary.

    `path` says where in the step (`outcome.kind`; empty for the whole), `offset` which record, where it came from one.
    """

    def __init__(self, path: str, reason: str, offset: int | None = None) -> None:
        where = "" if offset is None else f"the observation at offset {offset}: "
        super().__init__(f"{where}{path or 'the step'}: {reason}")
        self.path = path
        self.reason = reason
        self.offset = offset


class EncodeError(RaxolError):
    """A value that cannot be written; `path` says where it stands (`payload.items[3]`)."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{path or 'the value'}: {reason}")
        self.path = path
        self.reason = reason


class Unencodable(EncodeError):
    """What JSON cannot carry: NaN, a lone surrogate, a key that is not text, an object, ..."""


class FloatRefused(EncodeError):
    """A float in a record of a chained journal."""


class CheckpointError(RaxolError):
    """A checkpoint could not be written or restored."""


class InvalidTip(CheckpointError):
    """The given tip is not a conversational record of the main branch."""


class NoTip(CheckpointError):
    """There is no conversational record to point at."""


class MidTurn(CheckpointError):
    """A turn is open."""


class MidReserve(CheckpointError):
    """A reserve is neither settled nor released."""


class UnknownReason(CheckpointError):
    """The reason is not one of the closed set."""


class BackendUnbound(CheckpointError):
    """The model is not an object and no backend is registered."""


class NoCheckpoint(CheckpointError):
    """The journal has no checkpoint record."""


class MalformedCheckpoint(CheckpointError):
    """The newest checkpoint record lacks a key or has a wrong type."""


class MalformedPointer(CheckpointError):
    """`snapshot_ref` is not `snapshots/<64 lower-case hex>.json`."""


class SnapshotMissing(CheckpointError):
    """The snapshot file is not there."""


class SnapshotCorrupt(CheckpointError):
    """The snapshot file is not what the record says."""


class UsageError(RaxolError):
    """What was asked cannot be done; exit code 2 at the command line."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(message)
        self.hint = hint


class ExportError(UsageError):
    """Spans could not be delivered; exit code 3 at the command line."""
