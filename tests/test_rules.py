"""The shipped rules: Prometheus takes them, their own unit tests pass, and they speak of what there is."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from raxol_otel import catalogue
from raxol_otel.dashboards.links import runbook_url
from tests.promql import metric_of
from tests.rules_files import (
    ALERT_NAMES,
    ALERT_RULES,
    ALERTS,
    DASHBOARDS,
    RECORDS,
    RULES,
    RUNBOOKS,
    UNIT_TESTS,
    check_expression,
    load,
    said,
    tool,
)

if TYPE_CHECKING:
    from pathlib import Path

SEVERITIES: Final = {"critical", "warning"}
# What the issue asks for, in our names.
WANTED: Final = {
    *("RaxolJournalDamaged", "RaxolJournalTailLost", "RaxolJournalWriteFailing", "RaxolJournalWriterStillFailing"),
    *("RaxolJournalSurrogateCheckpoint", "RaxolJournalStaleLock", "RaxolJournalHeadLag", "RaxolTurnErrorBudgetBurn"),
    *("RaxolTurnStuck", "RaxolToolFailing", "RaxolEvidenceRejected", "RaxolExporterDown", "RaxolExporterStale"),
    *("RaxolExporterScanErrors", "RaxolExporterBacklog"),
}
CASES: Final = [case for path in UNIT_TESTS for case in load(path)["tests"]]
RULE_IDS: Final = [f"{rule['alert']}-{number}" for number, rule in enumerate(ALERT_RULES)]
each_alert = pytest.mark.parametrize("rule", ALERT_RULES, ids=RULE_IDS)
each_record = pytest.mark.parametrize("rule", RECORDS, ids=[rule["record"] for rule in RECORDS])


def checks(alert: str) -> list[dict[str, Any]]:
    """All that the unit tests say of an alert: when, and what is expected then."""
    return [check for case in CASES for check in case["alert_rule_test"] if check["alertname"] == alert]


def panels(uid: str) -> dict[int, str]:
    """The panels of the shipped board with this uid: their titles by their ids."""
    boards = [json.loads(path.read_bytes()) for path in (DASHBOARDS / "grafana").glob("*.json")]
    (board,) = [board for board in boards if board["uid"] == uid]
    return {panel["id"]: panel["title"] for panel in board["panels"] if panel["type"] != "row"}


@pytest.mark.parametrize("path", [RULES, ALERTS], ids=lambda path: path.name)
def test_promtool_finds_nothing_wrong(path: Path) -> None:
    """Neither an error, nor a duplicate, nor anything else that its lint knows of."""
    told = said(tool("promtool", "prometheus"), "check", "rules", "--lint=all", "--lint-fatal", path)
    assert "SUCCESS" in told
    assert "duplicate" not in told


@pytest.mark.parametrize("path", UNIT_TESTS, ids=lambda path: path.name)
def test_the_unit_tests_of_the_rules_pass(path: Path) -> None:
    """What they expect to fire does, with those very annotations, and what they do not expect does not."""
    assert "SUCCESS" in said(tool("promtool", "prometheus"), "test", "rules", path.name, cwd=path.parent)


def test_a_unit_test_that_expects_another_text_fails(tmp_path: Path) -> None:
    """The annotations are really compared: one word changed is a failure."""
    for path in (RULES, ALERTS):
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "tests").mkdir()
    (case,) = [case for case in CASES if case["name"].startswith("the series is born with the damage")]
    changed = {"rule_files": ["../rules.yaml", "../alerts.yaml"], "evaluation_interval": "15s", "tests": [case]}
    text = json.dumps(changed)
    assert "A journal is damaged." in text
    for number, (words, is_right) in enumerate((("A journal is damaged.", True), ("A journal is fine.", False))):
        path = tmp_path / "tests" / f"{number}.yaml"
        path.write_text(text.replace("A journal is damaged.", words), encoding="utf-8")
        if is_right:
            said(tool("promtool", "prometheus"), "test", "rules", path)
        else:
            with pytest.raises(AssertionError, match="FAILED"):
                said(tool("promtool", "prometheus"), "test", "rules", path)


def test_every_alert_that_is_asked_for_is_there() -> None:
    """By its name."""
    assert set(ALERT_NAMES) >= WANTED


@each_alert
def test_an_alert_says_all_that_its_reader_needs(rule: dict[str, Any]) -> None:
    """Severity, how long it takes, a fixed sentence, labels and what they are about, its own runbook."""
    assert rule["labels"]["severity"] in SEVERITIES
    assert "for" in rule
    said_there = rule["annotations"]
    assert said_there.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
    assert re.fullmatch(r"[A-Z][^{}]+\.", said_there["summary"])
    assert "{{ $labels.job }}" in said_there["description"]
    assert "\n" not in said_there["description"]
    assert said_there["runbook_url"] == runbook_url(rule["alert"])
    assert (RUNBOOKS / f"{rule['alert']}.md").is_file()


@each_alert
def test_an_alert_leads_to_a_panel_of_a_shipped_board_that_shows_it(rule: dict[str, Any]) -> None:
    """The board and the panel are there, and the board has the variables that are set."""
    url = urlsplit(re.sub(r"\{\{.*?\}\}", "x", rule["annotations"]["dashboard_url"]))
    query = parse_qs(url.query, strict_parsing=True)
    assert re.fullmatch(r"/d/[a-z-]+", url.path)
    assert int(query.pop("viewPanel")[0]) in panels(url.path.removeprefix("/d/"))
    assert {"var-cluster", "var-job"} <= query.keys() <= {"var-cluster", "var-job", "var-instance", "var-source"}


@each_alert
def test_an_alert_speaks_of_the_catalogues_metrics_and_their_labels(rule: dict[str, Any]) -> None:
    """Its expression parses; its texts name labels that its series have."""
    found = check_expression(rule["expr"])
    assert all(
        selector.name == "up" or ":" in selector.name or metric_of(selector.name) for selector in found.selectors
    )


@each_record
def test_a_recorded_series_is_called_by_its_level_metric_and_operation(rule: dict[str, Any]) -> None:
    """The level is what is kept: cluster and job always, and whose numbers they are; alerts use it."""
    level, metric, operation = rule["record"].split(":")
    found = check_expression(rule["expr"])
    kept = {tuple(sorted(aggregation.by)) for aggregation in found.aggregations}
    assert kept == {tuple(sorted(level.split("_")))}
    assert {"cluster", "job", "source"} <= set(level.split("_"))
    assert metric.startswith("raxol_")
    (window,) = set(re.findall(r"\[(\w+)\]", rule["expr"]))
    assert operation in {f"ratio_rate{window}", f"increase{window}"}
    assert any(rule["record"] in alert["expr"] for alert in ALERT_RULES)


@each_alert
def test_what_agents_and_the_exporter_count_is_never_added_up(rule: dict[str, Any]) -> None:
    """No alert leaves the label out, nor cluster, job and instance."""
    assert check_expression(rule["expr"]).aggregations == []


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_an_alert_has_a_unit_test_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    """All rules of its name fire somewhere, with labels and annotations; and a whole case expects nothing of it."""
    fired = [expected for check in checks(alert) for expected in check["exp_alerts"]]
    fixed = {tuple(sorted(rule["labels"].items())) for rule in ALERT_RULES if rule["alert"] == alert}
    assert all(any(set(labels) <= set(one["exp_labels"].items()) for one in fired) for labels in fixed)
    assert all(one["exp_annotations"].keys() == ALERT_RULES[0]["annotations"].keys() for one in fired)
    quiet = [
        case
        for case in CASES
        if any(check["alertname"] == alert for check in case["alert_rule_test"])
        and not any(check["exp_alerts"] for check in case["alert_rule_test"])
    ]
    assert quiet


@each_alert
def test_an_alert_on_a_counter_is_tested_with_a_series_that_is_born_with_a_value(rule: dict[str, Any]) -> None:
    """What `increase` alone would miss is in the unit tests of each alert that has to see it."""
    if " unless increase(" not in " ".join(rule["expr"].split()):
        return
    (metric,) = {selector.name for selector in check_expression(rule["expr"]).selectors}
    born = [
        case
        for case in CASES
        for series in case["input_series"]
        if series["series"].startswith(metric + "{") and re.match(r"(_\S* )*[1-9]\d*x", series["values"])
    ]
    fired = [check for case in born for check in case["alert_rule_test"] if check["exp_alerts"]]
    assert any(check["alertname"] == rule["alert"] for check in fired)


def test_damage_is_told_within_a_minute_of_the_scrape_that_shows_it() -> None:
    """Neither the evaluation nor `for` keeps it longer."""
    groups = [
        group for group in load(ALERTS)["groups"] for rule in group["rules"] if rule["alert"] == "RaxolJournalDamaged"
    ]
    assert {group["interval"] for group in groups} == {"15s"}
    assert {rule["for"] for rule in ALERT_RULES if rule["alert"].startswith("RaxolJournalDamaged")} == {"0s"}


def test_what_cannot_be_in_any_closed_set_is_a_warning() -> None:
    """The two stages that lose records are critical; together the two rules see every stage, each once."""
    writing = [rule for rule in ALERT_RULES if rule["alert"] == "RaxolJournalWriteFailing"]
    stages = {
        rule["labels"]["severity"]: check_expression(rule["expr"]).selectors[0].matchers["stage"] for rule in writing
    }
    assert stages == {"critical": ("=~", "append|datasync"), "warning": ("!~", "append|datasync")}
    assert {"append", "datasync"} < set(catalogue.WRITE_STAGES)
