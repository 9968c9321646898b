"""Journal health: from what is lost, over who writes and how, to whether the exporter can be believed."""

from __future__ import annotations

from typing import Final

from raxol_otel import catalogue as names
from raxol_otel import catalogue_fleet as fleet
from raxol_otel.dashboards.boards.fields import column, link
from raxol_otel.dashboards.boards.health_fleet import exporter, fleet_state
from raxol_otel.dashboards.boards.layout import JOURNAL_HEALTH, SESSION, Board, Row
from raxol_otel.dashboards.boards.panels import Panel, Query, bars, heatmap, lines, stat, table
from raxol_otel.dashboards.boards.queries import buckets, happened, quantile, series, total
from raxol_otel.dashboards.boards.words import NO_AGENT, NO_EXPORTER, NONE_REPORTED, STATE_COLORS, by_source
from raxol_otel.dashboards.links import runbook_url

__all__ = ["board", "damaged_now"]

_RED_FROM_ONE: Final = ((1, "red"),)


def board() -> Board:
    """The board of who is called when a journal is damaged."""
    rows = (
        Row("Is anything lost?", _lost()),
        Row("Which sessions, and how?", (_sessions(), _causes(), *_states())),
        Row("Can agents write?", _writing()),
        Row("Do they sync in time?", _syncing()),
        Row("Do HEAD, locks and turns keep up?", fleet_state()),
        Row("Can the exporter be believed?", exporter()),
    )
    description = "Journals of agents: damage, lost tails, writers in trouble, and the exporter that tells of them."
    return Board(JOURNAL_HEALTH, description, ("journal",), rows, scraped=names.METRIC_RECORDS)


def damaged_now() -> str:
    """How many sessions are damaged and not acknowledged: those with a name and those omitted, 0 where there is none.

    Nothing at all without an exporter: no data is not a zero.
    """
    omitted = total(fleet.METRIC_DAMAGED_OMITTED)
    return f"(count({series(fleet.METRIC_SESSION_DAMAGED)}) or 0 * {omitted}) + {omitted}"


def _lost() -> tuple[Panel, ...]:
    failing = "Agents' processes in which the last operation of a writer failed. What they do is not recorded."
    return (
        stat(
            "Damaged sessions",
            "Sessions with a damaged journal that no operator has acknowledged. One is one too many.",
            damaged_now(),
            unit="none",
            no_value=NO_EXPORTER,
            steps=_RED_FROM_ONE,
            runbook="RaxolJournalDamaged",
        ),
        stat(
            "Lost tails",
            "Sessions whose HEAD names more records than there are. They read as healthy, but their end is gone.",
            total(fleet.METRIC_BEHIND_HEAD),
            unit="none",
            no_value=NO_EXPORTER,
            steps=_RED_FROM_ONE,
            runbook="RaxolJournalTailLost",
        ),
        stat(
            "Unreadable sessions",
            "Sessions that the exporter cannot read: of them nothing is known. Mostly a matter of permissions.",
            total(fleet.METRIC_SESSIONS, state="unreadable"),
            unit="none",
            no_value=NO_EXPORTER,
            steps=((1, "orange"),),
            runbook="RaxolJournalUnreadable",
        ),
        stat(
            "Writers failing",
            failing,
            total(names.METRIC_WRITER_FAILING),
            unit="none",
            no_value=NO_AGENT,
            steps=_RED_FROM_ONE,
            runbook="RaxolJournalWriterStillFailing",
        ),
        stat(
            "Exporters",
            "Fleet exporters that answer. Without one, nothing on this board that is about sessions is known.",
            f"count({series(fleet.METRIC_BUILD_INFO)}) or vector(0)",
            unit="none",
            no_value=NO_EXPORTER,
            base="red",
            steps=((1, "green"),),
            runbook="RaxolExporterDown",
        ),
        stat(
            "Age of the last scan",
            "How old the oldest of what the exporters say is: time since the last look at all sessions ended.",
            f"max(time() - {series(fleet.METRIC_LAST_SCAN)})",
            unit="s",
            decimals=0,
            no_value=NO_EXPORTER,
            steps=((120, "orange"), (600, "red")),
            runbook="RaxolExporterStale",
        ),
    )


def _sessions() -> Panel:
    to_session = (
        f"/d/{SESSION.uid}?var-session_id=${{__data.fields.Session:percentencode}}"
        "&${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${instance:queryparam}&${source:queryparam}"
        "&${__url_time_range}"
    )
    overrides = [
        column("Session", links=[link("Show this session", to_session, is_elsewhere=False)]),
        column("Cause", links=[link("Runbook: a journal is damaged", runbook_url("RaxolJournalDamaged"))]),
    ]
    return table(
        "Damaged sessions by name",
        "The newest damaged sessions that nobody has acknowledged. A session leads to its traces, a cause to the "
        "runbook. At most 100 are named for each exporter; the rest is counted in the panel on omitted sessions.",
        Query(total(fleet.METRIC_SESSION_DAMAGED, "session_id", "cause", "instance", how="max")),
        unit="none",
        no_value=NONE_REPORTED,
        columns={"session_id": "Session", "cause": "Cause", "instance": "Exporter"},
        overrides=overrides,
        runbook="RaxolJournalDamaged",
    )


def _causes() -> Panel:
    return bars(
        "Damage found, by cause",
        "Distinct damage met for the first time: by agents that read their own journal, and by exporters. What was "
        "there before a process began is not in it.",
        Query(happened(names.METRIC_DAMAGED, "cause"), by_source("cause")),
        unit="short",
        no_value=NONE_REPORTED,
        width=12,
        runbook="RaxolJournalDamaged",
    )


def _states() -> tuple[Panel, ...]:
    return (
        lines(
            "Sessions by state",
            "All sessions by the state of their journal. Of a torn one the last line was never finished: its writer "
            "cuts it off, and nothing is lost. Damaged ones are all of them, acknowledged or not. "
            "Healthy ones have the axis on the right.",
            Query(total(fleet.METRIC_SESSIONS, "state"), "{{state}}"),
            unit="locale",
            decimals=0,
            no_value=NO_EXPORTER,
            colors=STATE_COLORS,
            right={"healthy": "short"},
            runbook="RaxolJournalUnreadable",
        ),
        lines(
            "Lost tails",
            "Sessions whose HEAD names more records than there are.",
            Query(total(fleet.METRIC_BEHIND_HEAD, "instance"), "{{instance}}"),
            unit="locale",
            decimals=0,
            no_value=NO_EXPORTER,
            steps=_RED_FROM_ONE,
            runbook="RaxolJournalTailLost",
        ),
        lines(
            "Damaged: omitted and acknowledged",
            "Damaged sessions that are too many to be named one by one, and those that an operator has acknowledged.",
            Query(total(fleet.METRIC_DAMAGED_OMITTED), "omitted"),
            Query(total(fleet.METRIC_DAMAGED_ACKNOWLEDGED), "acknowledged"),
            unit="locale",
            decimals=0,
            no_value=NO_EXPORTER,
            colors={"omitted": "red", "acknowledged": "blue"},
            runbook="RaxolJournalDamagedOmitted",
        ),
    )


def _writing() -> tuple[Panel, ...]:
    return (
        bars(
            "Write failures, by stage and reason",
            "Operations of writers that failed. With append and datasync records are in danger, with the others not.",
            Query(happened(names.METRIC_WRITE_FAILED, "stage", "reason"), "{{stage}}: {{reason}}"),
            unit="short",
            no_value=NONE_REPORTED,
            runbook="RaxolJournalWriteFailing",
        ),
        lines(
            "Writers failing",
            "1 while the last operation of any writer of the process failed.",
            Query(total(names.METRIC_WRITER_FAILING, "instance", how="max"), "{{instance}}"),
            unit="locale",
            decimals=0,
            no_value=NO_AGENT,
            limits=(0, 1),
            steps=_RED_FROM_ONE,
            runbook="RaxolJournalWriterStillFailing",
        ),
        bars(
            "Checkpoints by the built-in fold",
            "Checkpoints written or restored for want of a backend. In production there should be none.",
            Query(happened(names.METRIC_SURROGATE, "op"), "{{op}}"),
            unit="short",
            no_value=NONE_REPORTED,
            runbook="RaxolJournalSurrogateCheckpoint",
        ),
    )


def _syncing() -> tuple[Panel, ...]:
    return (
        lines(
            "Oldest record not yet durable",
            "Age of the oldest record that a crash of the machine would lose; 0 when all are on disk.",
            Query(total(names.METRIC_UNSYNCED, "instance", how="max"), "{{instance}}"),
            unit="s",
            no_value=NO_AGENT,
            steps=((5, "orange"), (60, "red")),
            width=6,
            runbook="RaxolJournalNotDurable",
        ),
        lines(
            "Duration of syncs",
            "How long it takes to make records durable. An agent waits as long for each answer that must not be lost.",
            *(
                Query(quantile(share, names.METRIC_SYNC_DURATION), f"p{share * 100:g}", exemplar=True)
                for share in (0.5, 0.9, 0.99)
            ),
            unit="s",
            no_value="No sync in this time",
            steps=((0.25, "orange"), (1, "red")),
            width=6,
        ),
        heatmap(
            "Duration of syncs, all of them",
            "The same as a picture: two bands are two kinds of disk, or one that is shared with a loud neighbour.",
            buckets(names.METRIC_SYNC_DURATION),
            unit="s",
            width=6,
            no_value="No sync in this time",
        ),
        bars(
            "Torn tails cut off",
            "Unfinished last lines that writers cut off when they opened: agents that died while they wrote.",
            Query(happened(names.METRIC_TORN_REPAIRS, "instance"), "{{instance}}"),
            unit="short",
            width=6,
            no_value=NONE_REPORTED,
        ),
    )
