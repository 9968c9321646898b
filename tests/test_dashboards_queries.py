"""What the boards ask Prometheus: only metrics and labels of the catalogue, filtered, and never two sources in one."""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from raxol_otel import catalogue, catalogue_fleet
from raxol_otel.catalogue import METRICS
from raxol_otel.dashboards.boards import queries
from tests.boards import BOARDS, QUERIES, Query, named
from tests.promql import OUTSIDE, RANGE, RATE_WINDOW, filled, labels_of, metric_of, taken
from tests.rules_files import ALERT_RULES, RECORDS, check_expression

# Aggregations whose result is a sum of what went in. The larger of two counts of the same thing is none.
ADDING: Final = frozenset({"sum", "count", "avg"})
# What Grafana puts in for variables: a choice, "All", and "All" where no such label is.
CHOSEN: Final = {
    "cluster": ".*",
    "job": "raxol-fleet|raxol-agent",
    "instance": ".+",
    "source": ".+",
    "session_id": "s-1",
}
# Metrics that no panel and no rule shows, and why that is right.
UNUSED: Final[dict[str, str]] = {}


def metrics_of(expressions: list[str]) -> set[str]:
    """The catalogue's metrics that expressions read."""
    names = {selector.name for expression in expressions for selector in taken(expression).selectors}
    return {metric.name for metric in map(metric_of, names) if metric is not None}


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_a_query_names_what_the_catalogue_has(query: Query) -> None:
    """It parses, before and after variables are put in; metrics, and labels matched or grouped by, are there."""
    check_expression(query.expr)
    check_expression(filled(query.expr, CHOSEN))
    assert "$" not in filled(query.expr, CHOSEN)
    assert all(metric_of(selector.name) for selector in taken(query.expr).selectors)


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_a_query_is_filtered_by_all_variables(query: Query) -> None:
    """By cluster, job and instance always; by source where the metric has that label, and only there."""
    for selector in taken(query.expr).selectors:
        metric = metric_of(selector.name)
        assert metric is not None
        expected = {name: ("=~", f"${name}") for name in OUTSIDE}
        if not metric.is_bare:
            expected["source"] = ("=~", "$source")
        found = {name: matcher for name, matcher in selector.matchers.items() if name in {*OUTSIDE, "source"}}
        assert found == expected


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_a_label_is_matched_with_values_that_it_can_have(query: Query) -> None:
    """A value that was renamed would match nothing, and nothing looks like health."""
    for selector in taken(query.expr).selectors:
        metric = metric_of(selector.name)
        assert metric is not None
        for label in metric.labels:
            if label.name in selector.matchers and not label.limit:
                assert {*selector.matchers[label.name][1].split("|")} <= {*label.values}


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_agents_and_the_exporter_are_never_added_up(query: Query) -> None:
    """Both may count the same turn: where a metric can come from both, every sum keeps them apart."""
    for aggregation in taken(query.expr).aggregations:
        for name in aggregation.metrics:
            metric = metric_of(name)
            assert metric is not None
            if aggregation.how in ADDING and not metric.is_bare and len(metric.sources) > 1:
                assert "source" in aggregation.by, f"{aggregation.how} of {name}"


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_a_counter_is_shown_by_what_it_grew(query: Query) -> None:
    """Counters and histograms through rate or increase, gauges never: a gauge's fall is no restart."""
    for selector in taken(query.expr).selectors:
        metric = metric_of(selector.name)
        assert metric is not None
        is_grown = selector.functions[:1] in {("rate",), ("increase",)}
        assert is_grown == (metric.kind != "gauge"), selector.name
        windows = {RATE_WINDOW, RANGE} if "increase" in selector.functions else {RATE_WINDOW}
        assert selector.window in windows or metric.kind == "gauge", "say $__rate_interval, or $__range of an increase"


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_buckets_become_percentiles_or_a_heatmap(query: Query) -> None:
    """Percentiles of added buckets, by their bound; never an average of percentiles."""
    found = taken(query.expr)
    buckets = [selector for selector in found.selectors if selector.name.endswith("_bucket")]
    if query.panel.json["type"] == "heatmap":
        assert len(buckets) == 1
        assert query.json["format"] == "heatmap"
        return
    for selector in buckets:
        assert "histogram_quantile" in selector.functions
    for aggregation in found.aggregations:
        if any(name.endswith("_bucket") for name in aggregation.metrics):
            assert aggregation.how == "sum"
            assert "le" in aggregation.by


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_durations_over_time_show_exemplars(query: Query) -> None:
    """From a slow point to its trace; no other query asks for them, it would show the same points twice."""
    names = [selector.name for selector in taken(query.expr).selectors]
    is_duration = any(name.endswith("_seconds_bucket") for name in names)
    is_over_time = not query.json.get("instant", False)
    assert query.json.get("exemplar", False) == (is_duration and is_over_time)


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_a_legend_names_labels_that_are_left(query: Query) -> None:
    """A label that was summed away would leave a hole in the name."""
    used = {*re.findall(r"\{\{(\w+)\}\}", query.json.get("legendFormat", ""))}
    outer = taken(query.expr).aggregations
    assert used <= {label for aggregation in outer for label in aggregation.by}


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_a_unit_is_that_of_the_metric(query: Query) -> None:
    """Seconds, bytes and dollars are shown as such, by the panel or by the column or the series."""
    units = {"seconds": "s", "bytes": "bytes", "usd": "currencyUSD"}
    names = [selector.name for selector in taken(query.expr).selectors]
    wanted = {units[metric.unit] for metric in map(metric_of, names) if metric is not None and metric.unit in units}
    if any(name.endswith("_count") for name in names) or query.panel.json["type"] == "heatmap":
        return
    shown = {query.panel.defaults["unit"]} | {
        prop["value"]
        for override in query.panel.json["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if prop["id"] == "unit"
    }
    assert wanted <= shown


def variables() -> list[Any]:
    """Every variable of a board that asks Prometheus."""
    return [
        pytest.param(board, variable, id=f"{uid} {variable['name']}")
        for uid, board in BOARDS.items()
        for variable in board["templating"]["list"]
        if variable["type"] == "query"
    ]


@pytest.mark.parametrize(("board", "variable"), variables())
def test_a_variable_lists_values_of_a_label_that_is_there(board: dict[str, Any], variable: dict[str, Any]) -> None:
    """`label_values(selector, label)`, narrowed by the variables before it and by no other."""
    query = variable["query"]["query"]
    assert variable["definition"] == query
    match = re.fullmatch(r"label_values\((?P<selector>.+), (?P<label>\w+)\)", query)
    assert match is not None
    assert match["label"] == variable["name"]
    (selector,) = check_expression(match["selector"]).selectors
    assert match["label"] in labels_of(selector.name)
    before = [name for name in ("cluster", "job", "instance", "source") if name != variable["name"]]
    before = before[: ("cluster", "job", "instance", "source").index(variable["name"])]
    assert selector.matchers == {name: ("=~", f"${name}") for name in before}
    assert board["templating"]["list"][0]["name"] == "datasource"


def test_every_metric_of_the_catalogue_is_used() -> None:
    """By a panel or a rule; what is used by none is said to be so, with the reason."""
    rules = [rule["expr"] for rule in (*ALERT_RULES, *RECORDS)]
    used = metrics_of([query.expr for query in QUERIES]) | metrics_of(rules)
    assert {metric.name for metric in METRICS} - used == UNUSED.keys()
    assert all(UNUSED.values())


def test_a_selector_is_made_of_the_catalogue_and_the_variables() -> None:
    """A metric of the exporter alone has no source; several values of a label are alternatives."""
    assert queries.series(catalogue_fleet.METRIC_SESSIONS, state="torn") == (
        'raxol_journal_sessions{cluster=~"$cluster", job=~"$job", instance=~"$instance", state="torn"}'
    )
    assert queries.series(catalogue.METRIC_TURNS, outcome=("completed", "error")) == (
        'raxol_turns_total{cluster=~"$cluster", job=~"$job", instance=~"$instance", source=~"$source", '
        'outcome=~"completed|error"}'
    )


def test_a_sum_keeps_the_source_where_there_are_two() -> None:
    """Of what only agents measure there is one, and no more labels than were asked for."""
    filters = 'cluster=~"$cluster", job=~"$job", instance=~"$instance", source=~"$source"'
    assert queries.rate(catalogue.METRIC_COST) == (
        f"sum by (source) (rate(raxol_cost_usd_total{{{filters}}}[$__rate_interval]))"
    )
    assert queries.quantile(0.9, catalogue.METRIC_SYNC_DURATION) == (
        "histogram_quantile(0.9, sum by (le) "
        f"(rate(raxol_journal_sync_duration_seconds_bucket{{{filters}}}[$__rate_interval])))"
    )


def test_what_the_catalogue_has_not_cannot_be_asked() -> None:
    """A label or a value that was renamed stops the program that writes the boards."""
    with pytest.raises(ValueError, match="raxol_turns_total has no label tool"):
        queries.series(catalogue.METRIC_TURNS, tool="sh")
    with pytest.raises(ValueError, match="raxol_turns_total has no outcome failed"):
        queries.series(catalogue.METRIC_TURNS, outcome="failed")
    with pytest.raises(ValueError, match="raxol_turns_total has no label tool"):
        queries.rate(catalogue.METRIC_TURNS, "tool")
    with pytest.raises(ValueError, match="raxol_turn_iterations is a histogram"):
        queries.series(catalogue.METRIC_ITERATIONS)
    with pytest.raises(ValueError, match="raxol_turns_total is a counter"):
        queries.series(catalogue.METRIC_TURNS, ending="_bucket")
