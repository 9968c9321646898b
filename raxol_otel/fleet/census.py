"""What all sessions together come to."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raxol_otel.catalogue_fleet import FLEET_SESSION_STATES, FLEET_WRITER_STATES, SESSIONS_NAMED_MAX
from raxol_otel.fleet.facts import FleetFacts, FleetState, SessionFacts

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from raxol_otel.fleet.entry import Entry

__all__ = ["census"]

# So many sessions in trouble are listed.
TROUBLES_MAX: Final = 1_000
# Offsets may have a thousand digits, and a metric is a float.
_LAG_MAX: Final = 2**53


def census(
    root: Path,
    entries: Iterable[Entry],
    refused: Mapping[str, str],
    acknowledged: frozenset[str],
    *,
    now: float,
    duration_seconds: float,
    scan_errors: int,
) -> FleetFacts:
    """Count the sessions; `refused` are folders that could not be listed, which may be sessions."""
    states: dict[FleetState, int] = dict.fromkeys(FLEET_SESSION_STATES, 0)
    writers: dict[str, int] = dict.fromkeys(FLEET_WRITER_STATES, 0)
    behind = size = segments = lag = open_turns = 0
    turns: list[int] = []
    approvals: list[int] = []
    troubles: list[SessionFacts] = [
        SessionFacts(where.rpartition("/")[2], where, "unreadable", error=reason, since=now)
        for where, reason in refused.items()
    ]
    states["unreadable"] += len(refused)
    for entry in entries:
        states[entry.state] += 1
        size += entry.size_bytes
        segments += entry.segments
        if entry.writer in writers:
            writers[entry.writer] += 1
        if entry.writer == "live":
            if entry.head_offset is not None:
                lag = max(lag, min(entry.last_offset - entry.head_offset, _LAG_MAX))
            open_turns += len(entry.open_turns)
            for start_ns, waits_since_ns in entry.open_turns:
                if waits_since_ns is None:
                    turns.append(start_ns)
                else:
                    approvals.append(waits_since_ns)
        if entry.is_trouble:
            is_known = entry.where in acknowledged or entry.where.rpartition("/")[2] in acknowledged
            behind += entry.is_behind_head and not is_known
            troubles.append(entry.facts(is_acknowledged=is_known))
    troubles.sort(key=lambda facts: (-facts.since, facts.where))
    damaged = [facts for facts in troubles if facts.state == "damaged"]
    paging = [(facts.where, facts.cause) for facts in damaged if not facts.is_acknowledged]
    return FleetFacts(
        str(root),
        is_ready=True,
        looked_at=now,
        duration_seconds=duration_seconds,
        states=states,
        writers=writers,
        behind_head=behind,
        size_bytes=size,
        segments=segments,
        head_lag_records=lag,
        open_turns=open_turns,
        oldest_turn_at=min(turns) / 1e9 if turns else None,
        oldest_approval_at=min(approvals) / 1e9 if approvals else None,
        scan_errors=scan_errors,
        named=tuple(paging[:SESSIONS_NAMED_MAX]),
        omitted=max(len(paging) - SESSIONS_NAMED_MAX, 0),
        acknowledged=len(damaged) - len(paging),
        troubles=tuple(troubles[:TROUBLES_MAX]),
        troubles_omitted=max(len(troubles) - TROUBLES_MAX, 0),
    )
