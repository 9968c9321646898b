"""One session: is it damaged, what did it do, and is it alone."""

from __future__ import annotations

from typing import Final

from raxol_otel import catalogue as names
from raxol_otel import catalogue_fleet as fleet
from raxol_otel.dashboards.boards.fields import column, link
from raxol_otel.dashboards.boards.layout import SESSION, Board, Row
from raxol_otel.dashboards.boards.panels import Panel, Query, bars, lines, stat, table, traces
from raxol_otel.dashboards.boards.queries import happened, per_minute, series, total
from raxol_otel.dashboards.boards.variables import data_source, text_box
from raxol_otel.dashboards.boards.words import (
    NO_EXPORTER,
    NO_TURN,
    NONE_REPORTED,
    OUTCOME_COLORS,
    STATE_COLORS,
    by_source,
)
from raxol_otel.dashboards.links import runbook_url

__all__ = ["board"]

_ITS: Final = f'{{ span.{names.SESSION_ID} = "$session_id" }}'


def board() -> Board:
    """The board that a damaged session's row leads to."""
    rows = (
        Row("Is it damaged?", _damage()),
        Row("What did it do?", (*_turns(), _tools())),
        Row("Is it alone?", _others()),
    )
    return Board(
        SESSION,
        "One session: its damage, and its turns as traces. Its id is typed in above, or comes with a link.",
        ("session",),
        rows,
        scraped=names.METRIC_RECORDS,
        variables=(data_source("tempo", "tempo_datasource"), text_box("session_id", "Session")),
    )


def _damage() -> tuple[Panel, ...]:
    damaged = series(fleet.METRIC_SESSION_DAMAGED, session_id="$session_id")
    return (
        stat(
            "State",
            "Whether an exporter names this session as damaged. None names those that an operator has acknowledged, "
            "nor more than the newest 100: see the figure on the right.",
            f"max({damaged})",
            unit="none",
            no_value="Not named as damaged",
            steps=((1, "red"),),
            texts={"1": "Damaged"},
            width=6,
            runbook="RaxolJournalDamaged",
        ),
        table(
            "Cause",
            "What a scan met first. The cause leads to the runbook; `raxol-otel verify` names segment, line and byte.",
            Query(total(fleet.METRIC_SESSION_DAMAGED, "cause", "instance", how="max", session_id="$session_id")),
            unit="none",
            no_value="Not named as damaged",
            columns={"cause": "Cause", "instance": "Exporter"},
            overrides=[
                column("Cause", links=[link("Runbook: a journal is damaged", runbook_url("RaxolJournalDamaged"))])
            ],
            width=12,
            height=4,
        ),
        stat(
            "Damaged, but not named",
            "Damaged sessions that are too many to be named: this one may be among them.",
            total(fleet.METRIC_DAMAGED_OMITTED),
            unit="none",
            no_value=NO_EXPORTER,
            steps=((1, "orange"),),
            width=6,
        ),
    )


def _turns() -> tuple[Panel, ...]:
    said = (names.TURN_OUTCOME, names.TURN_ITERATIONS, names.TURN_EVIDENCE, names.TURN_COST, names.ERROR_TYPE)
    return (
        traces(
            "Traces",
            "A trace for each turn of the session, the newest first. Traces are found in the time that is shown.",
            _ITS,
            rows="traces",
            no_value="No trace of this session in the time shown",
        ),
        traces(
            "Turns",
            "How each turn ended: provider calls, evidence, cost, and whether the journal was known to be damaged.",
            _selected(_ITS, *said, names.JOURNAL_DAMAGED),
            rows="spans",
            no_value="No turn of this session in the time shown",
        ),
    )


def _tools() -> Panel:
    failed = f'{{ span.{names.OPERATION_NAME} = "{names.SPAN_TOOL}" && status = error }}'
    return traces(
        "Tool calls that failed",
        "Calls of the session's turns that ended in an error.",
        _selected(f"{_ITS} >> {failed}", names.TOOL_NAME, names.TOOL_OUTCOME, names.ERROR_TYPE),
        rows="spans",
        no_value="No tool call of this session has failed in the time shown",
    )


def _selected(traceql: str, *attributes: str) -> str:
    return f"{traceql} | select({', '.join(f'span.{attribute}' for attribute in attributes)})"


def _others() -> tuple[Panel, ...]:
    return (
        lines(
            "Sessions by state",
            "All sessions by the state of their journal; healthy ones have the axis on the right.",
            Query(total(fleet.METRIC_SESSIONS, "state"), "{{state}}"),
            unit="locale",
            decimals=0,
            no_value=NO_EXPORTER,
            colors=STATE_COLORS,
            right={"healthy": "short"},
            width=6,
            height=10,
        ),
        bars(
            "Damage found, by cause",
            "Distinct damage that was met for the first time, of all sessions.",
            Query(happened(names.METRIC_DAMAGED, "cause"), by_source("cause")),
            unit="short",
            no_value=NONE_REPORTED,
            width=10,
            height=10,
            runbook="RaxolJournalDamaged",
        ),
        lines(
            "Turns a minute, by outcome",
            "Turns of all sessions that ended.",
            Query(per_minute(names.METRIC_TURNS, "outcome"), by_source("outcome")),
            unit="short",
            no_value=NO_TURN,
            height=10,
            stacked=True,
            colors=OUTCOME_COLORS,
        ),
    )
