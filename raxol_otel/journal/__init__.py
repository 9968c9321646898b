"""The journal core: standard library and orjson only.

Reading never writes, `resume_scan` apart; writing is `open_journal`'s. Every public name of the core is reachable from
here, also those that live beside it: the contract, the errors, the signals.
"""

from __future__ import annotations

from raxol_otel import contract, errors, signals
from raxol_otel.contract import Event, Evidence, encode_line, evidence_status, sanitize_payload
from raxol_otel.errors import (
    BackendUnbound,
    CheckRefused,
    FloatRefused,
    InvalidSessionId,
    InvalidTip,
    JournalDamaged,
    JournalLocked,
    JournalUnreadable,
    MalformedCheckpoint,
    MalformedPointer,
    MidReserve,
    MidTurn,
    NoCheckpoint,
    NotChained,
    NoTip,
    RaxolError,
    SnapshotCorrupt,
    SnapshotMissing,
    Unencodable,
    UnknownReason,
    UntrustedDirectory,
    WriteFailed,
    WriterClosed,
)
from raxol_otel.journal import chain, checkpoint
from raxol_otel.journal.chain import GENESIS, canonical, check, seal
from raxol_otel.journal.reader import Damage, Scan, iter_records, last_offset, resume_scan, scan, verify
from raxol_otel.journal.salvage import salvage
from raxol_otel.journal.store import Journal, JournalStore, open_journal
from raxol_otel.journal.tip import CONVERSATIONAL_TYPES, is_conversational, tip

__all__ = [
    "CONVERSATIONAL_TYPES",
    "GENESIS",
    "BackendUnbound",
    "CheckRefused",
    "Damage",
    "Event",
    "Evidence",
    "FloatRefused",
    "InvalidSessionId",
    "InvalidTip",
    "Journal",
    "JournalDamaged",
    "JournalLocked",
    "JournalStore",
    "JournalUnreadable",
    "MalformedCheckpoint",
    "MalformedPointer",
    "MidReserve",
    "MidTurn",
    "NoCheckpoint",
    "NoTip",
    "NotChained",
    "RaxolError",
    "Scan",
    "SnapshotCorrupt",
    "SnapshotMissing",
    "Unencodable",
    "UnknownReason",
    "UntrustedDirectory",
    "WriteFailed",
    "WriterClosed",
    "canonical",
    "chain",
    "check",
    "checkpoint",
    "contract",
    "encode_line",
    "errors",
    "evidence_status",
    "is_conversational",
    "iter_records",
    "last_offset",
    "open_journal",
    "resume_scan",
    "salvage",
    "sanitize_payload",
    "scan",
    "seal",
    "signals",
    "tip",
    "verify",
]
