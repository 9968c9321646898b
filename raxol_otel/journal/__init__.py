"""The journal core: standard library and orjson only.

Reading never writes, `resume_scan` apart. Public names:
"""

from __future__ import annotations

from raxol_otel.journal.reader import Damage, Scan, iter_records, last_offset, resume_scan, scan, verify
from raxol_otel.journal.tip import CONVERSATIONAL_TYPES, is_conversational, tip

__all__ = [
    "CONVERSATIONAL_TYPES",
    "Damage",
    "Scan",
    "is_conversational",
    "iter_records",
    "last_offset",
    "resume_scan",
    "scan",
    "tip",
    "verify",
]
