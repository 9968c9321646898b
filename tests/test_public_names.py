"""The names that programs outside key on: where each can be imported from."""

from __future__ import annotations

from importlib import import_module
from typing import Final

import pytest

ERRORS: Final = [
    "RaxolError",
    "JournalDamaged",
    "JournalUnreadable",
    "JournalLocked",
    "InvalidSessionId",
    "UntrustedDirectory",
    "WriteFailed",
    "FloatRefused",
    "Unencodable",
    "WriterClosed",
    "NotChained",
    "InvalidTip",
    "NoTip",
    "MidTurn",
    "MidReserve",
    "UnknownReason",
    "BackendUnbound",
    "NoCheckpoint",
    "MalformedCheckpoint",
    "SnapshotMissing",
    "SnapshotCorrupt",
    "MalformedPointer",
]
CONTRACT: Final = ["Event", "Evidence", "encode_line", "sanitize_payload", "evidence_status"]
CHAIN: Final = ["GENESIS", "canonical", "seal", "check"]
JOURNAL: Final = [
    "open_journal",
    "iter_records",
    "scan",
    "resume_scan",
    "last_offset",
    "verify",
    "salvage",
    "tip",
    "is_conversational",
    "CONVERSATIONAL_TYPES",
    "Scan",
    "Damage",
    "Journal",
    "JournalStore",
    "checkpoint",
]
NAMES: Final = {
    "raxol_otel.errors": ERRORS,
    "raxol_otel.contract": CONTRACT,
    "raxol_otel.journal.chain": CHAIN,
    # The whole core can be reached from its one package.
    "raxol_otel.journal": [*JOURNAL, *CHAIN, *CONTRACT, *ERRORS, "chain", "contract", "errors", "signals"],
    "raxol_otel.journal.checkpoint": ["write", "restore", "set_backend"],
    "raxol_otel.signals": ["attach", "detach", "publish"],
    "raxol_otel.turns": ["TurnFold", "fold"],
    "raxol_otel.live": ["JournalInstrumentor", "use_turn"],
    "raxol_otel.exporters.replay": ["replay"],
    "raxol_otel.observed": ["parse", "render", "record", "replay"],
    "raxol_otel.testing": ["FaultJournal", "ForeignWriter", "MutationAnchor"],
}


@pytest.mark.parametrize(("module", "name"), [(module, name) for module, names in NAMES.items() for name in names])
def test_a_public_name_is_there_and_listed(module: str, name: str) -> None:
    """It can be imported, and the module's own list says that it may be."""
    found = import_module(module)
    assert getattr(found, name) is not None
    assert name in found.__all__


@pytest.mark.parametrize("name", [*CONTRACT, *CHAIN, *ERRORS])
def test_an_alias_is_the_thing_itself(name: str) -> None:
    """What is reachable in two places is one object."""
    home = "contract" if name in CONTRACT else "journal.chain" if name in CHAIN else "errors"
    assert getattr(import_module("raxol_otel.journal"), name) is getattr(import_module(f"raxol_otel.{home}"), name)
