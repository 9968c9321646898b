"""The metrics of the fleet exporter alone: part of the catalogue, apart only because a file is read best when short."""

from __future__ import annotations

from typing import Final

from raxol_otel.catalogue_entries import Label, Metric

__all__ = ["FLEET_METRICS", "FLEET_SESSION_STATES", "FLEET_WRITER_STATES"]

_FLEET: Final = ("fleet",)
FLEET_SESSION_STATES: Final = ("healthy", "torn", "damaged", "unreadable")
FLEET_WRITER_STATES: Final = ("live", "stale", "unknown")
# So many damaged sessions are told by name; the rest is counted as omitted.
SESSIONS_NAMED_MAX: Final = 100
# So many endpoints may have numbers of their own.
ENDPOINTS_MAX: Final = 20
EXPORT_RESULTS: Final = ("accepted", "rejected")


def _gauge(name: str, sentence: str, *labels: Label, unit: str = "") -> Metric:
    return Metric(name, "gauge", sentence, unit=unit, labels=labels, sources=_FLEET, is_bare=True)


def _counter(name: str, sentence: str, *labels: Label) -> Metric:
    return Metric(name, "counter", sentence, labels=labels, sources=_FLEET, is_bare=True)


_ENDPOINT: Final = Label("endpoint", (), ENDPOINTS_MAX)

METRIC_SESSIONS: Final = _gauge(
    "raxol_journal_sessions", "Sessions by the state of their journal.", Label("state", FLEET_SESSION_STATES)
)
METRIC_BEHIND_HEAD: Final = _gauge(
    "raxol_journal_sessions_behind_head",
    "Sessions, not acknowledged, whose HEAD names more records than there are: they read as healthy, but have lost "
    "their tail.",
)
METRIC_SESSION_DAMAGED: Final = _gauge(
    "raxol_journal_session_damaged",
    "1 for each of the newest damaged sessions that no operator has acknowledged.",
    Label("session_id", (), SESSIONS_NAMED_MAX),
    Label("cause", (), SESSIONS_NAMED_MAX),
)
METRIC_DAMAGED_OMITTED: Final = _gauge(
    "raxol_journal_damaged_omitted", "Damaged sessions, not acknowledged, that are too many to be named."
)
METRIC_DAMAGED_ACKNOWLEDGED: Final = _gauge(
    "raxol_journal_damaged_acknowledged", "Damaged sessions that an operator has acknowledged."
)
METRIC_WRITERS: Final = _gauge(
    "raxol_journal_writers",
    "Writers of journals: live, stale (dead, but its lock is there), or not to be told.",
    Label("state", FLEET_WRITER_STATES),
)
METRIC_BYTES: Final = _gauge("raxol_journal_bytes", "Bytes of all segments of all sessions.", unit="bytes")
METRIC_SEGMENTS: Final = _gauge("raxol_journal_segments", "Segment files of all sessions.")
METRIC_HEAD_LAG: Final = _gauge(
    "raxol_journal_head_lag_records", "Records that are not yet in HEAD, of the live session that has most of them."
)
METRIC_OPEN_TURNS: Final = _gauge("raxol_journal_open_turns", "Turns that are open, of sessions with a live writer.")
METRIC_OLDEST_TURN: Final = _gauge(
    "raxol_journal_oldest_open_turn_seconds",
    "Age of the oldest open turn of a live writer, those that wait for an approval apart; 0 when none is open.",
    unit="seconds",
)
METRIC_OLDEST_APPROVAL: Final = _gauge(
    "raxol_journal_oldest_approval_seconds",
    "How long the oldest approval has been waited for, of live writers; 0 when none is.",
    unit="seconds",
)
METRIC_SCAN_DURATION: Final = _gauge(
    "raxol_exporter_scan_duration_seconds", "How long the last look at all sessions took.", unit="seconds"
)
METRIC_LAST_SCAN: Final = _gauge(
    "raxol_exporter_last_scan_timestamp_seconds",
    "When the last look at all sessions ended, since the epoch.",
    unit="seconds",
)
METRIC_SCAN_ERRORS: Final = _counter(
    "raxol_exporter_scan_errors_total", "Looks at a session, or at the sessions directory, that failed."
)
METRIC_EXPORT_FAILURES: Final = _counter(
    "raxol_exporter_export_failures_total",
    "Batches of spans that an endpoint did not take; they are sent again.",
    _ENDPOINT,
)
METRIC_BACKLOG: Final = _gauge(
    "raxol_exporter_backlog_spans", "Finished spans that an endpoint has not been given yet.", _ENDPOINT
)
METRIC_BACKLOG_AGE: Final = _gauge(
    "raxol_exporter_backlog_seconds",
    "Since when finished spans wait for an endpoint; 0 when none does.",
    _ENDPOINT,
    unit="seconds",
)
METRIC_EXPORTED: Final = _counter(
    "raxol_exporter_spans_total",
    "Spans that an endpoint took, or refused for good.",
    _ENDPOINT,
    Label("result", EXPORT_RESULTS),
)
METRIC_BUILD_INFO: Final = _gauge(
    "raxol_build_info", "1, with the versions of this exporter.", Label("version", (), 1), Label("python", (), 1)
)

FLEET_METRICS: Final = (
    *(METRIC_SESSIONS, METRIC_BEHIND_HEAD, METRIC_SESSION_DAMAGED, METRIC_DAMAGED_OMITTED),
    *(METRIC_DAMAGED_ACKNOWLEDGED, METRIC_WRITERS, METRIC_BYTES, METRIC_SEGMENTS, METRIC_HEAD_LAG),
    *(METRIC_OPEN_TURNS, METRIC_OLDEST_TURN, METRIC_OLDEST_APPROVAL),
    *(METRIC_SCAN_DURATION, METRIC_LAST_SCAN, METRIC_SCAN_ERRORS),
    *(METRIC_EXPORT_FAILURES, METRIC_BACKLOG, METRIC_BACKLOG_AGE, METRIC_EXPORTED, METRIC_BUILD_INFO),
)
