"""The journal core: standard library and orjson only.

Reading never writes, `resume_scan` apart; writing is `open_journal`'s. Public names:
"""

from __future__ import annotations

from raxol_otel.journal import checkpoint
from raxol_otel.journal.reader import Damage, Scan, iter_records, last_offset, resume_scan, scan, verify
from raxol_otel.journal.salvage import salvage
from raxol_otel.journal.store import Journal, JournalStore, open_journal
from raxol_otel.journal.tip import CONVERSATIONAL_TYPES, is_conversational, tip

__all__ = [
    "CONVERSATIONAL_TYPES",
    "Damage",
    "Journal",
    "JournalStore",
    "Scan",
    "checkpoint",
    "is_conversational",
    "iter_records",
    "last_offset",
    "open_journal",
    "resume_scan",
    "salvage",
    "scan",
    "tip",
    "verify",
]
