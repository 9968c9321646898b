"""The `--json` outputs: a documented contract that only grows (docs/reference/cli.md)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import orjson

if TYPE_CHECKING:
    from raxol_otel.exporters.replay import ReplayReport
    from raxol_otel.journal.damage import Damage
    from raxol_otel.journal.health import Health

__all__ = ["damage_object", "health_json", "replay_json"]


def damage_object(damage: Damage | None) -> dict[str, Any] | None:
    """A damage as a JSON object."""
    if damage is None:
        return None
    return {
        "cause": damage.cause,
        "segment": damage.place,
        "line": damage.line,
        "byte": damage.byte,
        "last_offset": _exact(damage.last_offset),
        "detail": damage.detail,
    }


def replay_json(report: ReplayReport) -> str:
    """The report of a replay as one JSON object and a newline."""
    sessions = [
        {
            "session": session.name,
            "state": session.state,
            "records": session.records,
            "turns": session.turns,
            "spans": session.spans,
            "held": session.held,
            "already": session.already,
            "last_offset": _exact(session.last_offset),
            "head_offset": _exact(session.head_offset),
            "damage": damage_object(session.damage),
            "error": session.error,
            "warning": session.warning,
            "counts": None
            if session.counts is None
            else {
                "unfolded": session.counts.unfolded,
                "late": session.counts.late,
                "duplicate": session.counts.duplicate,
                "user": session.counts.user,
                "unknown": session.counts.unknown,
            },
        }
        for session in report.sessions
    ]
    return _line(
        {
            "sessions": sessions,
            "records": report.total("records"),
            "turns": report.total("turns"),
            "held": report.total("held"),
            "already": report.total("already"),
            "spans": {"accepted": report.accepted, "rejected": report.rejected},
            "messages": report.messages,
            "intact": report.is_intact,
        }
    )


def health_json(name: str, health: Health) -> str:
    """One session's health as one JSON object and a newline."""
    return _line(
        {
            "session": name,
            "state": health.state,
            "chained": health.chained,
            "records": health.records,
            "last_offset": _exact(health.last_offset),
            "head_offset": _exact(health.head_offset),
            "segments": health.segments,
            "bytes": health.size_bytes,
            "writer": health.writer.state,
            "pid": health.writer.pid,
            "damage": damage_object(health.damage),
            "error": health.error,
            "warning": health.warning,
        }
    )


def _exact(offset: int | None) -> int | str | None:
    """An offset; as text beyond 64 bits, where JSON readers lose digits."""
    return offset if offset is None or abs(offset) < 2**63 else str(offset)


def _line(value: dict[str, Any]) -> str:
    # Paths may hold bytes that are no text; they come as lone surrogates.
    try:
        return orjson.dumps(value).decode() + "\n"
    except orjson.JSONEncodeError:
        import json  # noqa: PLC0415 - only for such paths

        return json.dumps(value, separators=(",", ":")) + "\n"
