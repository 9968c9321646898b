"""Programs that count in several processes, for tests: `python -m tests.metrics_processes forks|held|prefork`.

Each writes a line of JSON: what went wrong, or what was counted.
"""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
import threading
import time
import traceback
from functools import partial
from importlib import import_module
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest

from raxol_otel import signals
from raxol_otel.turns import fold
from tests.metrics_scrape import Agent, damaged
from tests.test_fold import DONE, ERROR, START, item, record

if TYPE_CHECKING:
    from collections.abc import Callable

FORKS: Final = 100
CHILD_SECONDS: Final = 30
WORKERS: Final = 3
TURN: Final = [
    record(1, START),
    item(2, "tool_use", "i2", name="sh", call_id="1"),
    item(4, "tool_result", "i4", name="sh", call_id="1"),
    record(5, ERROR, reason="boom"),
]


def busy(agent: Agent, stop: threading.Event) -> list[threading.Thread]:
    """Threads that keep every lock of the metrics in use: counting, new tools, signals, scrapes."""
    numbers = iter(range(10**9))

    def new_tool() -> None:
        tool = item(2, "tool_result", "i2", name=f"tool_{next(numbers) % 300}")
        agent.metrics.observe_spans(fold([record(1, START), tool], "s"), exemplar=True)

    def forever(work: Callable[[], object]) -> None:
        while not stop.is_set():
            work()

    works: list[Callable[[], object]] = [
        partial(agent.run, *TURN),
        new_tool,
        lambda: damaged(last_offset=next(numbers)),
        lambda: generate_latest(agent.registry),
    ]
    threads = [threading.Thread(target=forever, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    return threads


def fail(_signal: signals.Signal) -> None:
    """A handler that raises."""
    raise RuntimeError("trouble")


def child(agent: Agent) -> None:
    """All counts start at 0, and go on from there."""
    found = agent.counted()
    assert found == {}, found
    signals.attach("fails", fail)
    agent.run(*TURN)
    damaged(last_offset=1)
    found = agent.counted()
    assert found['raxol_telemetry_handler_errors_total{handler="fails"}'] == 1
    assert found['raxol_turns_total{outcome="error"}'] == 1
    assert found['raxol_tool_calls_total{outcome="ok",tool="sh"}'] == 1
    assert found['raxol_journal_damaged_total{cause="nul_run"}'] == 1
    assert found['raxol_journal_records_total{type="turn_started"}'] == 1


def in_child(work: Callable[[], object]) -> int:
    """Do the work in a forked child; the child's process id."""
    pid = os.fork()
    if pid == 0:
        try:
            work()
        except BaseException:  # noqa: BLE001 - told, and the child ends here whatever happened
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid


def ended(pid: int) -> str | None:
    """What went wrong in a child; one that hangs is killed."""
    deadline = time.monotonic() + CHILD_SECONDS
    while time.monotonic() < deadline:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return None if status == 0 else f"status {status}"
        time.sleep(0.002)
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return "hung"


def forks() -> list[str]:
    """Fork while every lock is in use, and now and then a child forks too."""
    sys.setswitchinterval(1e-5)
    agent = Agent()
    agent.metrics.attach()
    signals.attach("fails", fail)
    stop = threading.Event()
    threads = busy(agent, stop)

    def generations() -> None:
        child(agent)
        assert ended(in_child(partial(child, agent))) is None

    wrong: list[str] = []
    for number in range(FORKS):
        problem = ended(in_child(generations if number % 10 == 0 else partial(child, agent)))
        if problem is not None:
            wrong.append(problem)
            if len(wrong) == 3:
                break
    stop.set()
    for thread in threads:
        thread.join(CHILD_SECONDS)
    assert wrong or agent.counted()['raxol_turns_total{outcome="error"}'] > 0
    return wrong


def locks(root: object) -> list[Any]:
    """Every lock that can be reached from an object, through its attributes and what they contain."""
    found: list[Any] = []
    seen: dict[int, object] = {}
    waiting = [root]
    while waiting:
        for value in gc.get_referents(waiting.pop()):
            if id(value) in seen or isinstance(value, type | ModuleType | FunctionType):
                continue
            seen[id(value)] = value
            (found if isinstance(value, type(threading.Lock())) else waiting).append(value)
    return found


def held() -> dict[str, Any]:
    """Fork while every lock of the metrics and of their registry is held, as by a thread that is gone in the child."""
    agent = Agent()
    agent.metrics.attach()
    signals.attach("fails", fail)
    damaged()
    agent.run(*TURN)
    taken = [*locks(agent), vars(signals)["_lock"]]
    for lock in taken:
        assert lock.acquire(blocking=False)
    pid = in_child(partial(child, agent))
    for lock in taken:
        lock.release()
    return {"locks": len(taken), "wrong": ended(pid)}


def prefork() -> dict[str, float]:
    """As a server that forks its workers, in the client library's multiprocess mode; what its collector finds."""
    agent = Agent()
    agent.metrics.attach()
    agent.metrics.watch_writers(unsynced=lambda: 1.0, failing=lambda: True)

    def worker(number: int) -> None:
        agent.run(*TURN, record(6, START, "b"), record(8, DONE, "b", final=True), exemplar=True)
        damaged(last_offset=number)

    workers = [in_child(partial(worker, number)) for number in range(WORKERS)]
    assert [ended(pid) for pid in workers] == [None] * WORKERS
    agent.run(*TURN)
    together = CollectorRegistry()
    multiprocess: Any = import_module("prometheus_client.multiprocess")
    multiprocess.MultiProcessCollector(together)
    found: dict[str, float] = {}
    for line in generate_latest(together).decode().splitlines():
        name, _, value = line.rpartition(" ")
        if not line.startswith("#") and "_bucket" not in name and float(value):
            found[name] = float(value)
    return found


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"forks": forks, "held": held, "prefork": prefork}[sys.argv[1]]()) + "\n")
