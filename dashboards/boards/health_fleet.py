"""Journal health, the rows of what the fleet exporter sees and of how it fares itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raxol_otel import catalogue as names
from raxol_otel import catalogue_fleet as fleet
from raxol_otel.dashboards.boards.panels import Query, bars, lines, table
from raxol_otel.dashboards.boards.queries import happened, per_minute, series, total
from raxol_otel.dashboards.boards.words import NO_EXPORTER, NONE_REPORTED, by_source

if TYPE_CHECKING:
    from raxol_otel.dashboards.boards.panels import Panel

__all__ = ["exporter", "fleet_state"]

_NO_ENDPOINT = "No endpoint"


def fleet_state() -> tuple[Panel, ...]:
    """What lags behind, is left open, or grows."""
    return (
        lines(
            "HEAD lag",
            "Records that are not yet in HEAD, of the live session that has most of them. It says how much of a tail "
            "could be lost without a trace.",
            Query(total(fleet.METRIC_HEAD_LAG, "instance", how="max"), "{{instance}}"),
            unit="locale",
            decimals=0,
            no_value=NO_EXPORTER,
            steps=((100, "orange"), (5000, "red")),
            runbook="RaxolJournalHeadLag",
        ),
        lines(
            "Writers by state",
            "Live writers, and stale ones: dead, but their lock is still there. Unknown are those of other machines.",
            Query(total(fleet.METRIC_WRITERS, "state"), "{{state}}"),
            unit="locale",
            decimals=0,
            no_value=NO_EXPORTER,
            stacked=True,
            colors={"live": "green", "stale": "orange", "unknown": "purple"},
            runbook="RaxolJournalStaleLock",
        ),
        lines(
            "Open turns",
            "Turns that are open, of sessions with a live writer.",
            Query(total(fleet.METRIC_OPEN_TURNS, "instance"), "{{instance}}"),
            unit="locale",
            decimals=0,
            no_value=NO_EXPORTER,
        ),
        lines(
            "Oldest open turn",
            "Age of the oldest turn of a live writer, those that wait for an approval apart; 0 when none is open.",
            Query(total(fleet.METRIC_OLDEST_TURN, "instance", how="max"), "{{instance}}"),
            unit="s",
            no_value=NO_EXPORTER,
            steps=((3600, "orange"),),
            runbook="RaxolTurnStuck",
        ),
        lines(
            "Oldest approval",
            "How long the oldest approval has been waited for, of live writers; 0 when none is.",
            Query(total(fleet.METRIC_OLDEST_APPROVAL, "instance", how="max"), "{{instance}}"),
            unit="s",
            no_value=NO_EXPORTER,
            steps=((1800, "orange"),),
            runbook="RaxolApprovalWaiting",
        ),
        lines(
            "Size of all journals",
            "Bytes of all segments of all sessions, and how many segment files there are (axis on the right).",
            Query(total(fleet.METRIC_BYTES), "bytes"),
            Query(total(fleet.METRIC_SEGMENTS), "segments"),
            unit="bytes",
            no_value=NO_EXPORTER,
            right={"segments": "short"},
        ),
    )


def exporter() -> tuple[Panel, ...]:
    """Whether what the other rows say is fresh and whole."""
    return (*_scanning(), *_delivering(), *_telemetry())


def _scanning() -> tuple[Panel, ...]:
    return (
        lines(
            "Duration of scans",
            "How long the last look at all sessions took.",
            Query(total(fleet.METRIC_SCAN_DURATION, "instance", how="max"), "{{instance}}"),
            unit="s",
            no_value=NO_EXPORTER,
            steps=((30, "orange"), (120, "red")),
        ),
        lines(
            "Age of the last scan",
            "Time since the last look at all sessions ended: how old everything above is.",
            Query(f"max by (instance) (time() - {series(fleet.METRIC_LAST_SCAN)})", "{{instance}}"),
            unit="s",
            no_value=NO_EXPORTER,
            steps=((120, "orange"), (600, "red")),
            runbook="RaxolExporterStale",
        ),
        bars(
            "Scan errors",
            "Looks at a session, or at the sessions directory, that failed.",
            Query(happened(fleet.METRIC_SCAN_ERRORS, "instance"), "{{instance}}"),
            unit="short",
            no_value=NONE_REPORTED,
            runbook="RaxolExporterScanErrors",
        ),
    )


def _delivering() -> tuple[Panel, ...]:
    return (
        lines(
            "Spans delivered a minute",
            "Spans that an endpoint took, or refused for good: those are in the journals only.",
            Query(per_minute(fleet.METRIC_EXPORTED, "endpoint", "result"), "{{endpoint}} {{result}}"),
            unit="short",
            no_value=_NO_ENDPOINT,
            runbook="RaxolExporterSpansRejected",
            width=12,
            height=6,
        ),
        bars(
            "Export failures",
            "Batches of spans that an endpoint did not take. They are sent again.",
            Query(happened(fleet.METRIC_EXPORT_FAILURES, "endpoint"), "{{endpoint}}"),
            unit="short",
            runbook="RaxolExporterExportFailing",
            no_value=NONE_REPORTED,
            width=12,
            height=6,
        ),
        lines(
            "Backlog",
            "Finished spans that an endpoint has not been given yet.",
            Query(total(fleet.METRIC_BACKLOG, "endpoint"), "{{endpoint}}"),
            unit="locale",
            decimals=0,
            no_value=_NO_ENDPOINT,
            width=12,
            height=6,
            runbook="RaxolExporterBacklog",
        ),
        lines(
            "Age of the backlog",
            "How long the oldest of these spans has been waiting; 0 when none is.",
            Query(total(fleet.METRIC_BACKLOG_AGE, "endpoint", how="max"), "{{endpoint}}"),
            unit="s",
            no_value=_NO_ENDPOINT,
            width=12,
            height=6,
            steps=((300, "orange"),),
            runbook="RaxolExporterBacklog",
        ),
    )


def _telemetry() -> tuple[Panel, ...]:
    return (
        bars(
            "Failures of the telemetry itself",
            "Handlers of signals that raised, by name. What they should have counted or traced is missing elsewhere.",
            Query(happened(names.METRIC_HANDLER_ERRORS, "handler"), by_source("handler")),
            unit="short",
            runbook="RaxolTelemetryHandlerErrors",
            no_value=NONE_REPORTED,
            width=12,
        ),
        table(
            "Versions",
            "The exporters that answer, with their versions and that of Python.",
            Query(total(fleet.METRIC_BUILD_INFO, "job", "instance", "version", "python", how="max")),
            unit="none",
            no_value=NO_EXPORTER,
            columns={"instance": "Exporter", "job": "Job", "version": "Version", "python": "Python"},
        ),
    )
