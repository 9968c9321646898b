"""A pytest plugin for the measured run: how long each test takes, and whose coverage a started command's is.

`-p benchmarks.mutation_plugin`; the times are written as JSON to the path in `RAXOL_MUTATION_SECONDS`.
"""

from __future__ import annotations

import base64
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

# How coverage's `patch = subprocess` tells a started command what to measure.
_CONFIG: Final = "COVERAGE_PROCESS_CONFIG"
_seconds: dict[str, float] = {}
_unfit: set[str] = set()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    """Give the lines of what the test starts to the test."""
    if text := os.environ.get(_CONFIG):
        config: dict[str, Any] = json.loads(base64.b64decode(text))
        config["context"] = item.nodeid
        os.environ[_CONFIG] = base64.b64encode(json.dumps(config).encode()).decode()
    return (yield)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Add up a test's phases; one that did not pass is of no use."""
    _seconds[report.nodeid] = _seconds.get(report.nodeid, 0.0) + report.duration
    if not report.passed:
        _unfit.add(report.nodeid)


def pytest_sessionfinish() -> None:
    """Write the times down."""
    fit = {name: seconds for name, seconds in _seconds.items() if name not in _unfit}
    Path(os.environ["RAXOL_MUTATION_SECONDS"]).write_text(json.dumps(fit), encoding="utf-8")
