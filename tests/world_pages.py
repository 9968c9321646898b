"""Whom the generated world pages: all that is wrong in it, as the alerts that must come, and those that must not."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from raxol_otel.catalogue import LOG_EVENTS_HANDLER, METRICS_HANDLER, TRACING_HANDLER
from tests.world import AGENTS, CLUSTER, FLEET
from tests.world_sessions import KNOWN
from tests.world_turns import FAILING_TOOL

__all__ = ["PAGES", "SILENT", "SILENT_SERIES", "Page"]


@dataclass(frozen=True, slots=True)
class Page:
    """An alert that must come: its labels, and its description as a pattern.

    In a label `{backend}` and `{dead_backend}` stand for the endpoints, whose ports nobody knows before.
    """

    alert: str
    severity: str
    description: str
    labels: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def name(self) -> str:
        """What a failing test says."""
        return " ".join((self.alert, self.severity, *self.labels.values()))


NUMBER: Final = r"[0-9.]+"
SOME: Final = rf"({NUMBER}|[0-9.]+k)"
TIME: Final = r"([0-9]+h )?[0-9]+m [0-9]+(\.[0-9]+)?s"
SECONDS: Final = rf"({TIME}|{NUMBER}s)"
PERCENT: Final = rf"{NUMBER}%"
PLACE: Final = r"127\.0\.0\.1:[0-9]+"
SEEN: Final = rf"{FLEET} on {PLACE}, cluster {CLUSTER}"
AGENT: Final = rf"{AGENTS} on {PLACE}, cluster {CLUSTER}"
# Turns are counted by those that have them, and by the exporter.
SOURCES: Final = {"agent": AGENTS, "fleet": FLEET}
BACKEND: Final = r"http://127\.0\.0\.1:[0-9]+/v1/traces"


def burns(severity: str, long: str, short: str) -> list[Page]:
    """The pages of one window of the error budget."""
    return [
        Page(
            "RaxolTurnErrorBudgetBurn",
            severity,
            rf"{PERCENT} of the turns of {job}, cluster {CLUSTER} \(source {source}\) ended in an error over {long}, "
            rf"and the last {short} are no better\.",
            {"source": source, "long": long, "short": short},
        )
        for source, job in SOURCES.items()
    ]


# All that is wrong in this world, in the order in which it is found out.
PAGES: Final = (
    *(
        Page(
            "RaxolJournalDamaged",
            "critical",
            rf"Session {session} is damaged: {cause} \(seen by {SEEN}\)\. It opens for reading only, and nothing at or "
            r"after the damage is ever shown\.",
            {"source": "fleet", "session_id": session, "cause": cause},
        )
        for session, cause in (
            ("found-1", "spliced"),
            ("batch-found-1", "spliced"),
            ("batch-found-2", "nul_run"),
            ("batch-found-3", "id_gap"),
            ("batch-found-4", "chain_hash"),
            ("batch-found-5", "invalid_utf8"),
        )
    ),
    *(
        Page(
            "RaxolJournalDamaged",
            "critical",
            rf"An agent met damage in a journal: {cause} \({AGENT}\), {NUMBER} of this cause since it started\. Its "
            r"log event raxol\.agent\.journal\.damaged names the session\.",
            {"source": "agent", "cause": cause},
        )
        for cause in ("spliced", "nul_run", "id_gap", "chain_hash", "invalid_utf8")
    ),
    Page(
        "RaxolJournalTailLost",
        "critical",
        rf"Sessions with fewer records than their HEAD names, seen by {SEEN}: 1\. What was durable is gone\.",
    ),
    Page(
        "RaxolJournalUnreadable",
        "warning",
        rf"Sessions that cannot be read by {SEEN}: 1\. Whether they are damaged is not known\.",
    ),
    *(
        Page(
            "RaxolJournalWriteFailing",
            severity,
            rf"A writer of {AGENT} fails at {stage} with {reason} \({SOME} since it started\)\.",
            {"stage": stage, "reason": reason},
        )
        for severity, stage, reason in (
            ("critical", "append", "enospc"),
            ("critical", "datasync", "eio"),
            ("warning", "rotate", "enospc"),
        )
    ),
    Page(
        "RaxolJournalWriterStillFailing",
        "critical",
        rf"The last operation of an open writer of {AGENT} failed, for more than 5 minutes now\.",
    ),
    Page(
        "RaxolJournalNotDurable",
        "critical",
        rf"The oldest record of {AGENT} that is not durable is {TIME} old\. A power loss would lose it\.",
    ),
    *(
        Page(
            "RaxolJournalSurrogateCheckpoint",
            "warning",
            rf"Checkpoints of {AGENT} that were made without a backend \({op}\) since it started: {NUMBER}\.",
            {"op": op},
        )
        for op in ("write", "restore")
    ),
    Page(
        "RaxolJournalStaleLock",
        "warning",
        rf"Sessions seen by {SEEN} that have had the lock of a dead writer for more than 15 minutes: 1\.",
    ),
    Page(
        "RaxolJournalHeadLag",
        "warning",
        rf"HEAD of a live session seen by {SEEN} is {NUMBER} records behind\. The loss of a tail would go unnoticed\.",
    ),
    *burns("critical", "1h", "5m"),
    *burns("critical", "6h", "30m"),
    *burns("warning", "1d", "2h"),
    *burns("warning", "3d", "6h"),
    Page(
        "RaxolTurnStuck",
        "warning",
        rf"The oldest open turn seen by {SEEN} has been open for 2h {TIME}; it waits for no approval\.",
    ),
    Page("RaxolApprovalWaiting", "warning", rf"An approval in a session seen by {SEEN} has been pending for {TIME}\."),
    *(
        Page(
            "RaxolToolFailing",
            "warning",
            rf"{PERCENT} of the calls of {FAILING_TOOL} by {job}, cluster {CLUSTER} \(source {source}\) failed "
            r"over 30m\.",
            {"source": source, "tool": FAILING_TOOL},
        )
        for source, job in SOURCES.items()
    ),
    *(
        Page(
            "RaxolEvidenceRejected",
            "warning",
            rf"{PERCENT} of the judged turns of {job}, cluster {CLUSTER} \(source {source}\) had their evidence "
            r"rejected over 1h\.",
            {"source": source},
        )
        for source, job in SOURCES.items()
    ),
    Page(
        "RaxolExporterScanErrors",
        "warning",
        rf"Looks of {SEEN} at a session or the sessions directory that failed since it started: {NUMBER}\.",
    ),
    Page(
        "RaxolTelemetryHandlerErrors",
        "warning",
        rf"Failures of the handler pager in {AGENT} \(source agent\) since it started: {SOME}\. What it should have "
        r"told is missing\.",
        {"handler": "pager"},
    ),
    Page(
        "RaxolExporterSpansRejected",
        "warning",
        rf"Spans of {SEEN} that {BACKEND} has refused for good since it started: {NUMBER}\. They are in the journals "
        r"only\.",
        {"endpoint": "{backend}"},
    ),
    Page(
        "RaxolExporterExportFailing",
        "warning",
        rf"Batches of spans from {SEEN} to {BACKEND} have been failing for more than 10 minutes\. They are sent "
        r"again\.",
        {"endpoint": "{dead_backend}"},
    ),
    Page(
        "RaxolExporterBacklog",
        "warning",
        rf"Finished spans of {SEEN} have waited for {BACKEND} for {SECONDS}\.",
        {"endpoint": "{dead_backend}"},
    ),
)
# What must not come, and why.
SILENT: Final = {
    "RaxolJournalDamagedOmitted": "fewer than a hundred sessions are damaged",
    "RaxolExporterDown": "it answers, until it is stopped",
    "RaxolExporterStale": "it looks every second",
}
# Of alerts that do come, the series that must not be among them.
SILENT_SERIES: Final[dict[str, dict[str, str]]] = {
    "a session that an operator has acknowledged": {"session_id": KNOWN},
    "a tool that works": {"alertname": "RaxolToolFailing", "tool": "read_file"},
    "our own handlers": {"alertname": "RaxolTelemetryHandlerErrors", "handler": METRICS_HANDLER},
    "our own log events": {"alertname": "RaxolTelemetryHandlerErrors", "handler": LOG_EVENTS_HANDLER},
    "our own spans": {"alertname": "RaxolTelemetryHandlerErrors", "handler": TRACING_HANDLER},
}
