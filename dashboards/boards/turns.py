"""Agent turns: do they succeed, how fast, is a tool at fault, what do they cost, can they be trusted."""

from __future__ import annotations

from typing import Final

from raxol_otel import catalogue as names
from raxol_otel.dashboards.boards.layout import AGENT_TURNS, Board, Row
from raxol_otel.dashboards.boards.panels import Panel, Query, bars, heatmap, lines, stat
from raxol_otel.dashboards.boards.queries import buckets, happened, increase, per_minute, quantile, rate, ratio
from raxol_otel.dashboards.boards.turns_tools import tools
from raxol_otel.dashboards.boards.words import NO_TURN, NONE_REPORTED, OUTCOME_COLORS, by_source

__all__ = ["board"]

_RANGE: Final = "$__range"
_SHARES: Final = (0.5, 0.9, 0.99)
# The error budget of the alerts is 5 %; at six times its pace somebody is called.
_ERRORS: Final = ((0.05, "orange"), (0.3, "red"))
_TOOL_ERRORS: Final = ((0.1, "orange"), (0.5, "red"))
_AN_HOUR: Final = 3600


def board() -> Board:
    """The board of who writes agents."""
    rows = (
        Row("How are turns?", _overview()),
        Row("Do they succeed?", _success()),
        Row("Are they slow?", _speed()),
        Row("Is a tool at fault?", tools()),
        Row("What do they cost?", _cost()),
        Row("Can they be trusted?", _trust()),
        Row("What do the journals hold?", _records()),
    )
    description = "Turns of agents: how many, how fast, with which tools, for how much, and how sure."
    # Agents and the exporter count the same turns: to start with one of them is shown.
    return Board(
        AGENT_TURNS, description, ("turns",), rows, scraped=names.METRIC_TURNS, sources=(names.METRIC_TURNS.sources[0],)
    )


def _failed(over: str) -> str:
    """As the alert counts: a turn that was canceled says nothing of the agent."""
    turns = names.METRIC_TURNS
    told = increase(turns, over=over, outcome=("completed", "error", "incomplete"))
    return ratio(increase(turns, over=over, outcome="error"), told)


def _overview() -> tuple[Panel, ...]:
    calls = names.METRIC_TOOL_CALLS
    answered = increase(calls, over=_RANGE, outcome=("ok", "error"))
    return (
        stat(
            "Turns",
            "Turns that ended in the time shown.",
            increase(names.METRIC_TURNS, over=_RANGE),
            unit="locale",
            decimals=0,
            no_value=NO_TURN,
            legend="{{source}}",
        ),
        stat(
            "Turns that failed",
            "Share of the turns of the time shown that ended in an error, those that were canceled apart.",
            _failed(_RANGE),
            unit="percentunit",
            decimals=1,
            no_value=NO_TURN,
            steps=_ERRORS,
            legend="{{source}}",
            runbook="RaxolTurnErrorBudgetBurn",
        ),
        stat(
            "Nine of ten turns within",
            "The 90th percentile of the duration of turns in the time shown.",
            quantile(0.9, names.METRIC_TURN_DURATION, over=_RANGE),
            unit="s",
            no_value=NO_TURN,
            legend="{{source}}",
        ),
        stat(
            "Tool calls that failed",
            "Share of the tool calls of the time shown that got an error for a result, of those that got any.",
            ratio(increase(calls, over=_RANGE, outcome="error"), answered),
            unit="percentunit",
            decimals=1,
            no_value="No tool call",
            steps=_TOOL_ERRORS,
            legend="{{source}}",
            runbook="RaxolToolFailing",
        ),
        stat(
            "Cost",
            "What the turns of the time shown cost, as their journals say; 0 where they say nothing.",
            increase(names.METRIC_COST, over=_RANGE),
            unit="currencyUSD",
            no_value=NO_TURN,
            legend="{{source}}",
        ),
        stat(
            "Tokens out",
            "Output tokens of the turns of the time shown, those of reasoning included.",
            increase(names.METRIC_OUTPUT_TOKENS, over=_RANGE),
            unit="short",
            no_value=NO_TURN,
            legend="{{source}}",
        ),
    )


def _success() -> tuple[Panel, ...]:
    return (
        lines(
            "Turns a minute, by outcome",
            "Turns that ended. Incomplete ones were cut off: the next turn came before their end.",
            Query(per_minute(names.METRIC_TURNS, "outcome"), by_source("outcome")),
            unit="short",
            no_value=NO_TURN,
            stacked=True,
            colors=OUTCOME_COLORS,
            runbook="RaxolTurnErrorBudgetBurn",
        ),
        lines(
            "Share of turns that failed",
            "Turns that ended in an error, of all that ended and were not canceled. A gap means that none did.",
            Query(_failed("$__rate_interval"), "{{source}}"),
            unit="percentunit",
            no_value=NO_TURN,
            steps=_ERRORS,
            limits=(0, 1),
            runbook="RaxolTurnErrorBudgetBurn",
        ),
        bars(
            "Errors by type",
            "Error records by the error's name. A tool that failed is none of them.",
            Query(happened(names.METRIC_ERRORS, "error_type"), by_source("error_type")),
            unit="short",
            no_value=NONE_REPORTED,
        ),
    )


def _speed() -> tuple[Panel, ...]:
    durations = names.METRIC_TURN_DURATION
    provider_calls = names.METRIC_ITERATIONS
    mean = ratio(rate(provider_calls, ending="_sum"), rate(provider_calls, ending="_count"))
    return (
        lines(
            "Duration of turns",
            "From a turn's first record to its closing. The dots are single turns, and lead to their traces.",
            *(
                Query(quantile(share, durations), f"p{share * 100:g} ({{{{source}}}})", exemplar=True)
                for share in _SHARES
            ),
            unit="s",
            no_value=NO_TURN,
        ),
        heatmap(
            "Duration of turns, all of them",
            "The same as a picture. Where both agents and the exporter are shown, the larger count of each bucket is.",
            buckets(durations),
            unit="s",
            no_value=NO_TURN,
        ),
        lines(
            "Provider calls a turn",
            "How often a turn asked its model, of the turns that did. More and more calls are an agent that circles.",
            Query(mean, "mean ({{source}})"),
            Query(quantile(0.9, provider_calls), "p90 ({{source}})"),
            unit="short",
            decimals=1,
            no_value=NO_TURN,
        ),
    )


def _cost() -> tuple[Panel, ...]:
    tokens_in = names.METRIC_INPUT_TOKENS
    cached = ratio(rate(tokens_in, cache="read"), rate(tokens_in))
    return (
        lines(
            "Tokens in a minute, by cache",
            "Input tokens: read from the provider's cache, written to it, or neither.",
            Query(per_minute(tokens_in, "cache"), by_source("cache")),
            unit="short",
            no_value=NO_TURN,
            width=6,
            stacked=True,
            colors={"none": "orange", "read": "green", "write": "blue"},
        ),
        lines(
            "Share read from the cache",
            "Input tokens that came from the provider's cache, of all. A fall makes the same turns dearer.",
            Query(cached, "{{source}}"),
            unit="percentunit",
            no_value=NO_TURN,
            width=6,
            limits=(0, 1),
        ),
        lines(
            "Tokens out a minute, by kind",
            "Output tokens: spent on reasoning, or the rest.",
            Query(per_minute(names.METRIC_OUTPUT_TOKENS, "kind"), by_source("kind")),
            unit="short",
            no_value=NO_TURN,
            width=6,
            stacked=True,
            colors={"text": "blue", "reasoning": "purple"},
        ),
        lines(
            "Cost an hour",
            "What an hour costs at the pace of the moment, as the journals say.",
            Query(f"{_AN_HOUR} * {rate(names.METRIC_COST)}", "{{source}}"),
            unit="currencyUSD",
            no_value=NO_TURN,
            width=6,
        ),
    )


def _trust() -> tuple[Panel, ...]:
    evidence = names.METRIC_EVIDENCE
    rejected = ratio(rate(evidence, status="rejected"), rate(evidence, status=("accepted", "rejected")))
    return (
        lines(
            "Evidence a minute, by status",
            "Completed turns by what they say of their evidence. Absent: they bring none.",
            Query(per_minute(evidence, "status"), by_source("status")),
            unit="short",
            no_value=NO_TURN,
            width=8,
            stacked=True,
            colors={"accepted": "green", "rejected": "red", "absent": "blue", "unknown": "orange"},
            runbook="RaxolEvidenceRejected",
        ),
        lines(
            "Share of evidence rejected",
            "Completed turns whose evidence was rejected, of those whose evidence was judged.",
            Query(rejected, "{{source}}"),
            unit="percentunit",
            no_value=NO_TURN,
            width=6,
            limits=(0, 1),
            steps=((0.1, "orange"), (0.3, "red")),
            runbook="RaxolEvidenceRejected",
        ),
        bars(
            "Approvals asked for",
            "How often an agent asked a human before it went on.",
            Query(happened(names.METRIC_APPROVALS), "{{source}}"),
            unit="short",
            no_value=NONE_REPORTED,
            width=5,
        ),
        bars(
            "Tainted items",
            "Completed items that hold what came from outside and is not trusted.",
            Query(happened(names.METRIC_TAINTED), "{{source}}"),
            unit="short",
            no_value=NONE_REPORTED,
            width=5,
        ),
    )


def _records() -> tuple[Panel, ...]:
    return (
        lines(
            "Records a minute, by type",
            "Records of journals, by their type.",
            Query(per_minute(names.METRIC_RECORDS, "type"), by_source("type")),
            unit="short",
            no_value="No record",
            stacked=True,
            width=24,
        ),
        bars(
            "Observed steps",
            "What agents that are not run here reported doing, by step and outcome.",
            Query(happened(names.METRIC_OBSERVED, "step", "outcome"), "{{step}} {{outcome}} ({{source}})"),
            unit="short",
            no_value=NONE_REPORTED,
            width=14,
            height=10,
        ),
        bars(
            "Records not understood",
            "Records and items skipped, by what of them was unknown. A newer agent may write what this version has not "
            "heard of.",
            Query(happened(names.METRIC_UNKNOWN, "what"), by_source("what")),
            unit="short",
            no_value=NONE_REPORTED,
            width=5,
            height=10,
        ),
        bars(
            "Records of turns that had ended",
            "They came too late and are in no span.",
            Query(happened(names.METRIC_LATE), "{{source}}"),
            unit="short",
            no_value=NONE_REPORTED,
            width=5,
            height=10,
        ),
    )
