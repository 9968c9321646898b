"""Agent turns, the row of tools."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel import catalogue as names
from raxol_otel.dashboards.boards.fields import column
from raxol_otel.dashboards.boards.panels import Query, lines, table
from raxol_otel.dashboards.boards.queries import increase, pace, per_minute, quantile, rate, ratio
from raxol_otel.dashboards.boards.words import by_source

if TYPE_CHECKING:
    from raxol_otel.dashboards.boards.panels import Panel

__all__ = ["tools"]

_NO_CALL = "No tool call"
_ERRORS = ((0.1, "orange"), (0.5, "red"))


def tools() -> tuple[Panel, ...]:
    """Which tools are called, fail, and take long."""
    calls = names.METRIC_TOOL_CALLS
    return (
        _table(),
        lines(
            "Calls a minute, by outcome",
            "Unanswered: the turn ended first. Orphan: a result without its call.",
            Query(per_minute(calls, "outcome"), by_source("outcome")),
            unit="short",
            no_value=_NO_CALL,
            width=12,
            stacked=True,
            colors={"ok": "green", "error": "red", "unanswered": "orange", "orphan": "purple"},
        ),
        lines(
            "Calls a minute, by tool",
            "Tool calls that ended, however they did.",
            Query(pace(calls, "tool"), by_source("tool")),
            unit="short",
            no_value=_NO_CALL,
            stacked=True,
        ),
        lines(
            "Share of calls that failed, by tool",
            "Calls that got an error for a result, of those of the tool that got any.",
            Query(
                ratio(rate(calls, "tool", outcome="error"), rate(calls, "tool", outcome=("ok", "error"))),
                by_source("tool"),
            ),
            unit="percentunit",
            no_value=_NO_CALL,
            limits=(0, 1),
            steps=_ERRORS,
            runbook="RaxolToolFailing",
        ),
        lines(
            "Duration by tool, p95",
            "From a call to its result, where it got one; waiting for an approval included. The dots lead to traces.",
            # Not of tools that nobody calls: they have no duration, which is no number.
            Query(f"{quantile(0.95, names.METRIC_TOOL_DURATION, 'tool')} >= 0", by_source("tool"), exemplar=True),
            unit="s",
            no_value=_NO_CALL,
        ),
    )


def _table() -> Panel:
    over = "$__range"
    calls = increase(names.METRIC_TOOL_CALLS, "tool", over=over)
    failed = increase(names.METRIC_TOOL_CALLS, "tool", over=over, outcome="error")
    answered = increase(names.METRIC_TOOL_CALLS, "tool", over=over, outcome=("ok", "error"))
    duration = quantile(0.95, names.METRIC_TOOL_DURATION, "tool", over=over)
    red = {"mode": "absolute", "steps": [{"color": "text", "value": None}, *_steps()]}
    return table(
        "Tools in the time shown",
        "Each tool with its calls, the share of them that failed, and the 95th percentile of its duration.",
        Query(f"{calls} > 0"),
        Query(ratio(failed, answered)),
        Query(f"{duration} >= 0"),
        unit="short",
        no_value=_NO_CALL,
        columns={
            "tool": "Tool",
            "source": "Source",
            "Value #A": "Calls",
            "Value #B": "Failed",
            "Value #C": "p95",
        },
        overrides=[
            column("Calls", unit="locale", decimals=0),
            column(
                "Failed", unit="percentunit", decimals=1, thresholds=red, custom__cellOptions={"type": "color-text"}
            ),
            column("p95", unit="s"),
        ],
        sort_by="Calls",
        width=12,
        runbook="RaxolToolFailing",
    )


def _steps() -> list[dict[str, Any]]:
    return [{"color": color, "value": value} for value, color in _ERRORS]
