"""The shipped rules, as data: what tests of rules, runbooks and provisioning look at."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import pytest
import yaml

from tests.conftest import ROOT
from tests.promql import OUTSIDE, Taken, labels_of, taken

if TYPE_CHECKING:
    from pathlib import Path

DASHBOARDS: Final = ROOT / "dashboards"
RULES: Final = DASHBOARDS / "prometheus" / "rules.yaml"
ALERTS: Final = DASHBOARDS / "prometheus" / "alerts.yaml"
UNIT_TESTS: Final = sorted((DASHBOARDS / "prometheus" / "tests").glob("*.yaml"))
RUNBOOKS: Final = DASHBOARDS / "runbooks"
SECONDS_MAX: Final = 120


def load(path: Path) -> Any:
    """The one document of a YAML file."""
    return yaml.safe_load(path.read_text(encoding="utf-8"))


@cache
def rules(path: Path) -> tuple[dict[str, Any], ...]:
    """All rules of a file, in order."""
    return tuple(rule for group in load(path)["groups"] for rule in group["rules"])


ALERT_RULES: Final = rules(ALERTS)
RECORDS: Final = rules(RULES)
ALERT_NAMES: Final = sorted({rule["alert"] for rule in ALERT_RULES})


def labels(series: str) -> frozenset[str]:
    """The labels of a series that an expression may name: of the catalogue, recorded, or Prometheus' own `up`."""
    if series == "up":
        return OUTSIDE
    if any(rule["record"] == series for rule in RECORDS):
        return frozenset(series.partition(":")[0].split("_"))
    return labels_of(series)


def check_expression(expression: str) -> Taken:
    """The expression taken apart; fails unless it parses, and names only series and labels that there are."""
    found = taken(expression)
    assert found.selectors, f"no series in {expression}"
    for selector in found.selectors:
        unknown = selector.matchers.keys() - labels(selector.name)
        assert not unknown, f"{selector.name} has no {unknown} in {expression}"
    for aggregation in found.aggregations:
        for metric in aggregation.metrics:
            unknown = {*aggregation.by} - labels(metric)
            assert not unknown, f"{metric} has no {unknown} in {expression}"
    assert found.matched_on <= set[str]().union(*(labels(selector.name) for selector in found.selectors))
    return found


def tool(name: str, package: str) -> str:
    """The path of a program, or a skip that says where to get it."""
    path = shutil.which(name)
    if path is None:
        pytest.skip(f"{name} is not here: Debian's package `{package}` has it")
    return path


def said(*command: str | Path, cwd: Path | None = None) -> str:
    """What a program says, on both outputs; the test fails with it unless the program ends well."""
    done = subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr
