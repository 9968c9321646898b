"""A replay over OTLP that is killed or stopped at any point: nothing is missing, nothing is left running."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from typing import TYPE_CHECKING, Final

import pytest

from tests.otlp_receiver import Action, Hang, Receiver, Request, Status
from tests.test_otlp_cli import PATIENCE_SECONDS, delivered, errors, replayed, sessions, started, to, wait_for

if TYPE_CHECKING:
    from pathlib import Path

STOP_SECONDS: Final = 2.0


# -- killed


def busy(request: Request) -> None:
    """A receiver that takes its time."""
    time.sleep(0.02 + request.number % 3 * 0.01)


@pytest.mark.parametrize(("jobs", "kills"), [("1", 20), ("2", 8)])
def test_whenever_it_is_killed_the_next_run_misses_nothing(tmp_path: Path, jobs: str, kills: int) -> None:
    """Kill -9 at random points, of a worker only in every second case where there are some; then it is completed.

    Everything was delivered as by a run from scratch, and only what was on its way at a kill more than once.
    """
    drawn = random.Random(f"{jobs} jobs")  # noqa: S311 - the same points every time
    spans = sessions(tmp_path, 100)
    with Receiver(script=busy) as receiver:
        for kill in range(kills):
            with started(tmp_path, *to(receiver), "--jobs", jobs) as child:
                before = len(receiver.requests)
                if kill % 5 == 4:
                    time.sleep(drawn.uniform(0.1, 0.6))
                else:
                    receiver.wait_requests(before + 1, PATIENCE_SECONDS)
                    time.sleep(drawn.uniform(0.0, 0.12))
                workers = child.workers() if kill % 2 else []
                victim = drawn.choice(workers or [child.process.pid])
                os.kill(victim, signal.SIGKILL)
                code = child.process.wait(PATIENCE_SECONDS)
                assert code == (3 if workers else -signal.SIGKILL)
                assert not workers or len(errors(child.said)) == 1
        last = replayed(tmp_path, *to(receiver), "--jobs", jobs)
        found = delivered(receiver)
    assert (last.returncode, errors(last.stderr)) == (0, [])
    assert {*found} == spans
    again = Counter(found) - Counter(spans)
    assert len(again) <= kills * int(jobs) * 4


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    """Or else it would go on sending what the next run, to which the state is free, sends as well."""
    sessions(tmp_path, 4)
    with Receiver(script=lambda _: Hang(20.0)) as receiver, started(tmp_path, *to(receiver), "--jobs", "2") as child:
        receiver.wait_requests(2)
        assert len(child.workers()) == 2
        os.kill(child.process.pid, signal.SIGKILL)
        child.process.wait()
        assert child.gone(STOP_SECONDS)


def test_a_killed_worker_is_told(tmp_path: Path) -> None:
    """Exit code 3 and one Error line, also when it dies in the middle of its last session."""
    spans = sessions(tmp_path, 2)
    with Receiver(script=lambda _: Hang(20.0)) as receiver:
        with started(tmp_path, *to(receiver), "--jobs", "2") as child:
            receiver.wait_requests(2)
            os.kill(child.workers()[0], signal.SIGKILL)
            assert child.process.wait(PATIENCE_SECONDS) == 3
            assert child.gone(STOP_SECONDS)
        receiver.script = []
        assert replayed(tmp_path, *to(receiver), "--jobs", "2").returncode == 0
        assert delivered(receiver) == dict.fromkeys(spans, 1)
    (error,) = errors(child.said)
    assert "worker" in error


# -- stopped

ENDS: Final = {signal.SIGINT: (130, "Error: interrupted"), signal.SIGTERM: (143, "Error: terminated")}


def stop(pid: int, number: signal.Signals) -> None:
    """As a terminal does, to all of the group, or as `kill` does, to the process alone."""
    if number == signal.SIGINT:
        os.killpg(pid, number)
    else:
        os.kill(pid, number)


@pytest.mark.parametrize(
    ("what", "protocol", "jobs", "number"),
    [
        ("hang", "http", "1", signal.SIGINT),
        ("hang", "http", "2", signal.SIGTERM),
        ("hang", "grpc", "2", signal.SIGINT),
        ("hang", "grpc", "1", signal.SIGTERM),
        ("pause", "http", "2", signal.SIGINT),
        ("pause", "http", "1", signal.SIGTERM),
        ("pause", "grpc", "1", signal.SIGINT),
        ("pause", "grpc", "2", signal.SIGTERM),
    ],
)
def test_stopping_takes_two_seconds_at_most(
    tmp_path: Path, what: str, protocol: str, jobs: str, number: signal.Signals
) -> None:
    """While the endpoint hangs, or during a pause: one line, no process left, and the state says what was delivered."""
    spans = sessions(tmp_path, 5)
    code, line = ENDS[number]
    grpc = protocol == "grpc"
    action = Hang(20.0) if what == "hang" else Status(503, retry_after="30")

    def script(request: Request) -> Action | None:
        return action if request.number >= 2 else None

    with Receiver(grpc=grpc, script=script) as receiver:
        with started(tmp_path, *to(receiver, grpc=grpc), "--jobs", jobs) as child:
            receiver.wait_requests(2 + int(jobs), PATIENCE_SECONDS)
            time.sleep(0.1)
            began = time.monotonic()
            stop(child.process.pid, number)
            assert child.process.wait(PATIENCE_SECONDS) == code
            assert time.monotonic() - began < STOP_SECONDS
            assert child.alive() == []
        first = delivered(receiver)
        receiver.script = []
        last = replayed(tmp_path, *to(receiver, grpc=grpc), "--jobs", jobs)
        assert delivered(receiver) == dict.fromkeys(spans, 1)
    assert errors(child.said) == [line]
    assert child.said.endswith(f"{line}\n")
    assert len(first) == 8
    assert (last.returncode, last.stderr) == (
        0,
        "replayed 12 spans of 10 turns in 5 sessions to OTLP; 8 were delivered before\n",
    )


@pytest.mark.parametrize("number", ENDS, ids=lambda number: number.name)
def test_stopping_while_workers_start_leaves_nothing_behind(tmp_path: Path, number: signal.Signals) -> None:
    """At any moment between the first worker and the first request: one line, no traceback, no process."""
    sessions(tmp_path, 3)
    with Receiver(script=lambda _: Hang(20.0)) as receiver:
        for seconds in (0.0, 0.08, 0.2):
            with started(tmp_path, *to(receiver), "--jobs", "3") as child:
                assert wait_for(lambda: bool(child.workers()))
                time.sleep(seconds)
                began = time.monotonic()
                stop(child.process.pid, number)
                assert child.process.wait(PATIENCE_SECONDS) == ENDS[number][0]
                assert time.monotonic() - began < STOP_SECONDS
                assert child.alive() == []
                assert child.said == f"{ENDS[number][1]}\n"
