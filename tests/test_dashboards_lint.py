"""The rules of Grafana's dashboard-linter as tests of our own: the linter itself is a Go program.

They are listed in its docs/index.md. Each test bears the name of its rule. Where we do otherwise, the reason is said.
"""

from __future__ import annotations

import re
from typing import Any, Final

import pytest

from tests.boards import BOARDS, PANELS, QUERIES, SESSION, Panel, Query, named
from tests.promql import RATE_WINDOW, taken

# The units that the linter takes, as far as we use them.
UNITS: Final = frozenset({"none", "short", "locale", "percentunit", "s", "bytes", "currencyUSD"})
WITH_UNITS: Final = frozenset({"stat", "table", "timeseries", "heatmap"})


def variables(uid: str, kind: str) -> list[dict[str, Any]]:
    """A board's variables of a kind."""
    return [variable for variable in BOARDS[uid]["templating"]["list"] if variable["type"] == kind]


@pytest.mark.parametrize("uid", BOARDS)
def test_template_datasource_rule(uid: str) -> None:
    """The data source is a variable, named and labelled as the linter wants it.

    With two of them it wants `prometheus_datasource`. Here it is `datasource` on the board of a session as well, or a
    link from another board could not take the choice along.
    """
    found = {variable["name"]: variable["label"] for variable in variables(uid, "datasource")}
    expected = {"datasource": "Data source"}
    if uid == SESSION:
        expected["tempo_datasource"] = "Tempo data source"
    assert found == expected


@pytest.mark.parametrize("name", ["job", "instance"])
@pytest.mark.parametrize("uid", BOARDS)
def test_template_job_rule_and_template_instance_rule(uid: str, name: str) -> None:
    """Each is a multiple choice of the chosen data source, and "All" demands that the label is there."""
    (found,) = (variable for variable in variables(uid, "query") if variable["name"] == name)
    assert found["datasource"]["uid"] == "${datasource}"
    assert (found["label"], found["multi"], found["allValue"]) == (name.capitalize(), True, ".+")


@pytest.mark.parametrize("uid", BOARDS)
def test_template_label_promql_rule(uid: str) -> None:
    """What fills a variable is a function that the data source knows, of a selector that parses."""
    for variable in variables(uid, "query"):
        match = re.fullmatch(r"(label_names|label_values|metrics|query_result)\((.+), \w+\)", variable["definition"])
        assert match is not None
        taken(match[2])


@pytest.mark.parametrize("uid", BOARDS)
def test_template_on_time_change_reload_rule(uid: str) -> None:
    """Variables are filled anew when another time is chosen."""
    assert {variable["refresh"] for variable in variables(uid, "query")} == {2}


@pytest.mark.parametrize("uid", BOARDS)
def test_template_unused_rule(uid: str) -> None:
    """No variable is there for nothing."""
    asked = " ".join(
        str(target.get("expr") or target.get("query"))
        for panel in BOARDS[uid]["panels"]
        for target in panel.get("targets", [])
    )
    used = {*re.findall(r"\$(\w+)", asked)}
    sources = {
        name for panel in PANELS if panel.board == uid for name in re.findall(r"\w+", str(panel.json["datasource"]))
    }
    names = {variable["name"] for variable in BOARDS[uid]["templating"]["list"]}
    assert names <= used | sources


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_panel_datasource_rule(case: Panel) -> None:
    """Every panel asks a data source that can be chosen on its board."""
    choices = {f"${{{variable['name']}}}" for variable in variables(case.board, "datasource")}
    assert case.json["datasource"]["uid"] in choices
    assert {target["datasource"]["uid"] for target in case.json["targets"]} <= choices


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_panel_title_description_rule(case: Panel) -> None:
    """Every panel has both."""
    assert case.json["title"]
    assert case.json["description"]


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_panel_units_rule(case: Panel) -> None:
    """Every panel has a unit that Grafana knows."""
    assert case.json["type"] in WITH_UNITS
    assert case.defaults["unit"] in UNITS


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_panel_no_targets_rule(case: Panel) -> None:
    """Every panel asks something, and names its questions differently."""
    letters = [target["refId"] for target in case.json["targets"]]
    assert letters
    assert len({*letters}) == len(letters)


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_target_promql_rule(query: Query) -> None:
    """Every query is PromQL."""
    assert taken(query.expr).selectors


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_target_rate_interval_rule(query: Query) -> None:
    """A rate is over $__rate_interval, which fits the step and the scrapes at any zoom."""
    for selector in taken(query.expr).selectors:
        if {"rate", "irate"} & {*selector.functions}:
            assert selector.window == RATE_WINDOW


@pytest.mark.parametrize("name", ["job", "instance"])
@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_target_job_rule_and_target_instance_rule(query: Query, name: str) -> None:
    """Every selector is filtered by both, and takes several values."""
    assert {selector.matchers[name] for selector in taken(query.expr).selectors} == {("=~", f"${name}")}


@pytest.mark.parametrize("query", QUERIES, ids=named)
def test_target_counter_agg_rule(query: Query) -> None:
    """A counter is wrapped in rate, irate or increase, and nothing else is between."""
    for selector in taken(query.expr).selectors:
        if selector.name.endswith("_total"):
            assert selector.functions[:1] in {("rate",), ("irate",), ("increase",)}


@pytest.mark.parametrize("uid", BOARDS)
def test_uneditable_dashboard_rule(uid: str) -> None:
    """A change belongs into the program; on the board it would be lost with the next version."""
    assert BOARDS[uid]["editable"] is False
