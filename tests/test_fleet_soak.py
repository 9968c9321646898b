"""The soak of `tests/fleet_soak.py`, for a minute; and that its own reckoning is right."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from tests.fleet_soak import soak
from tests.fleet_soak_log import Counts, recount

if TYPE_CHECKING:
    from pathlib import Path

# A longer or another one: `python -m tests.fleet_soak --seconds 600 --seed N`.
SECONDS: Final = float(os.environ.get("SOAK_SECONDS", "30"))


@pytest.mark.parametrize(("seed", "poll"), [(1, False), (2, True)], ids=["watching", "polling"])
def test_the_exporter_says_what_was_done(
    tmp_path_factory: pytest.TempPathFactory, caplog: pytest.LogCaptureFixture, seed: int, *, poll: bool
) -> None:
    """Counters equal a recount of the soak's own log, gauges one from the disk, after each few steps and at the end."""
    caplog.set_level(logging.CRITICAL, "raxol_otel.journal")
    done = soak(tmp_path_factory.mktemp("soak"), seed, SECONDS, poll=poll)
    assert done["wrote"] >= 2


def test_the_recount() -> None:
    """A turn counts once, when it ends; what was lost counts nothing anew; what was placed counts whole."""
    first = [("turn_started", "a", False), ("turn_completed", "a", True), ("turn_started", "b", False)]
    entries: list[dict[str, Any]] = [
        {"op": "wrote", "session": "s", "records": first},
        {"op": "lost", "session": "s", "kept": 1},
        {"op": "restored", "session": "s"},
        {"op": "wrote", "session": "s", "records": [("turn_started", "c", False), ("error", "c", False)]},
        {"op": "placed", "session": "s", "records": first},
        {"op": "lost", "session": "s", "kept": 1},
        {"op": "wrote", "session": "s", "records": [("turn_started", "d", False)]},
        {"op": "refused", "session": "s"},
    ]
    counts = recount(entries)
    assert counts.turns == {"completed": 2, "incomplete": 2, "error": 1}
    assert counts.records == {"turn_started": 6, "turn_completed": 2, "error": 1}
    assert (counts.damaged, counts.refused) == ({}, 1)


def test_the_recount_of_what_is_accepted_as_lost() -> None:
    """It does not come back with what is restored later: the turn that is open where the journal ends now goes on."""
    records = [("turn_started", "a", False), ("turn_completed", "a", True)]
    entries: list[dict[str, Any]] = [
        {"op": "wrote", "session": "s", "records": records},
        {"op": "lost", "session": "s", "kept": 1},
        {"op": "accepted", "session": "s"},
        {"op": "restored", "session": "s"},
        {"op": "wrote", "session": "s", "records": [("turn_started", "b", False)]},
    ]
    assert recount(entries).turns == {"completed": 1, "incomplete": 1}


def test_the_recount_of_damage() -> None:
    """Once a place; known over a restart as long as it stands; found again by the next exporter once it was mended."""

    def damaged(last: int, cause: str = "nul_run") -> dict[str, Any]:
        return {"op": "damaged", "session": "s", "segment": "journal/000001.jsonl", "last_offset": last, "cause": cause}

    healed, restart = {"op": "healed", "session": "s"}, {"op": "restart", "session": ""}
    assert recount([damaged(3), healed, damaged(3), damaged(4), damaged(3, "id_gap")]).damaged == {
        "nul_run": 2,
        "id_gap": 1,
    }
    assert recount([damaged(3), restart, damaged(3)]).damaged == {"nul_run": 1}
    assert recount([damaged(3), healed, restart, damaged(3)]).damaged == {"nul_run": 2}
    assert recount([]) == Counts()


def test_the_log_can_be_read_by_whoever_looks_for_a_fault(tmp_path: Path) -> None:
    """A line of JSON for each thing that was done."""
    import json  # noqa: PLC0415 - only here

    soak(tmp_path / "soak", 3, 0.0, poll=False)
    entries = [json.loads(line) for line in (tmp_path / "soak" / "soak.log").read_text(encoding="utf-8").splitlines()]
    assert entries[0] == {"op": "begun", "session": "", "seed": 3, "poll": False}
