"""Metrics in threads, in forked children and in the client library's multiprocess mode."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest

from raxol_otel import signals
from tests.conftest import ROOT
from tests.metrics_processes import FORKS, TURN, WORKERS
from tests.metrics_scrape import Agent, damaged
from tests.test_fold import START, item, record

if TYPE_CHECKING:
    from pathlib import Path


def program(name: str, **environment: str) -> Any:
    """What a program of tests/metrics_processes.py says."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.metrics_processes", name],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=os.environ | environment,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_a_forked_child_starts_at_0_and_never_hangs() -> None:
    """A hundred forks while other threads count, make new label sets, publish signals and scrape."""
    wrong, said = program("forks")
    assert wrong == [], f"of {FORKS} forks: {said}"


def test_no_lock_that_a_child_inherits_is_ever_waited_for() -> None:
    """Not those of the values, of the metrics, nor of the registry they stand in: each might be held at the fork."""
    said, errors = program("held")
    assert said["wrong"] is None, errors
    assert said["locks"] > 200


def test_multiprocess_mode_adds_the_counters_of_all_workers(tmp_path: Path) -> None:
    """Counters and histograms of the parent and its workers; what is asked for at a scrape is not in it."""
    found, said = program("prefork", PROMETHEUS_MULTIPROC_DIR=str(tmp_path))
    assert said == ""
    source = 'source="agent"'
    assert found[f'raxol_turns_total{{outcome="error",{source}}}'] == WORKERS + 1
    assert found[f'raxol_turns_total{{outcome="completed",{source}}}'] == WORKERS
    assert found[f'raxol_turn_duration_seconds_sum{{outcome="completed",{source}}}'] == 2 * WORKERS
    assert found[f'raxol_tool_calls_total{{outcome="ok",{source},tool="sh"}}'] == WORKERS + 1
    assert found[f'raxol_journal_damaged_total{{cause="nul_run",{source}}}'] == WORKERS
    assert found[f'raxol_journal_records_total{{{source},type="turn_started"}}'] == 2 * WORKERS + 1
    assert not any(name.startswith(("raxol_journal_unsynced", "raxol_telemetry")) for name in found)


def test_sessions_in_threads_are_all_counted() -> None:
    """Several sessions at once, with names that are new to all of them: the totals are exact, and scrapes go on."""
    threads_count, rounds = 8, 60
    agent = Agent()
    agent.metrics.attach()
    failed: list[BaseException] = []

    def session(who: int) -> None:
        try:
            for number in range(rounds):
                agent.run(*TURN, session_id=f"s{who}", exemplar=True)
                agent.run(record(1, START), item(2, "tool_result", "i", name=f"tool_{number}"), session_id=f"s{who}")
                damaged(last_offset=number)
                if number % 20 == 0:
                    generate_latest(agent.registry)
        except BaseException as error:  # noqa: BLE001 - shown below
            failed.append(error)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        threads = [threading.Thread(target=session, args=(who,)) for who in range(threads_count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
    finally:
        sys.setswitchinterval(before)
        for name in signals.handlers():
            signals.detach(name)
    assert failed == []
    series = agent.series()
    times = threads_count * rounds
    assert series['raxol_turns_total{outcome="error"}'] == times
    assert series['raxol_turn_duration_seconds_count{outcome="error"}'] == times
    assert series['raxol_tool_calls_total{outcome="ok",tool="sh"}'] == times
    assert series['raxol_tool_calls_total{outcome="orphan",tool="tool_7"}'] == threads_count
    assert series['raxol_journal_records_total{type="turn_started"}'] == 2 * times
    assert series['raxol_journal_damaged_total{cause="nul_run"}'] == rounds
    assert series['raxol_telemetry_handler_errors_total{handler="raxol_otel.metrics"}'] == 0
