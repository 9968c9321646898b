"""How long a scrape takes while others scrape and the exporter works: `python -m benchmarks.scraping`.

wrk with 50 connections, each asking again as soon as it was answered, against the server with a body of some 190 KB.
Beside it: nothing; a process that is never idle, as those of a first look are (nice 10); that, and a thread in the
server's process that works a tenth of the time and posts a view a second, as the engine does; that, and a thread that
is never idle.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

from prometheus_client import CollectorRegistry, Histogram, exposition
from prometheus_client.openmetrics import exposition as openmetrics

from benchmarks.common import Row, facts, note, table
from raxol_otel.fleet.board import Board, View
from raxol_otel.fleet.server import Server

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

__all__ = ["run"]

_CONNECTIONS: Final = 50
_SECONDS: Final = 8
_ROUNDS: Final = 3
_UNITS: Final = {"us": 1e-3, "ms": 1.0, "s": 1e3}
# As `raxol-otel serve` has it.
_SWITCH_SECONDS: Final = 0.0005
# The library gives them no types.
_TEXT: Final[Callable[[CollectorRegistry], bytes]] = exposition.generate_latest
_OPEN: Final[Callable[[CollectorRegistry], bytes]] = cast("Any", openmetrics).generate_latest
_BUSY: Final = "import os\nos.nice(10)\nwhile True:\n    sum(range(1000))\n"


def _view() -> View:
    """As large as a fleet's metrics are with every series there can be."""
    registry = CollectorRegistry()
    buckets = [0.01 * 1.7**number for number in range(20)]
    for number in range(8):
        histogram = Histogram(
            f"raxol_bench_{number}_seconds", "Some seconds.", ["source", "name"], buckets=buckets, registry=registry
        )
        for name in range(12):
            for value in range(30):
                histogram.labels("fleet", f"name-{name}").observe(0.01 * value * (name + 1))
    return View(_TEXT(registry), _OPEN(registry), b"<p>", is_ready=True)


@contextmanager
def _process() -> Generator[None]:
    with subprocess.Popen([sys.executable, "-c", _BUSY]) as busy:
        try:
            yield
        finally:
            busy.kill()


@contextmanager
def _thread(board: Board, view: View, share: float) -> Generator[None]:
    """A thread that works this share of the time, and posts a view a second."""
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            began = time.monotonic()
            while time.monotonic() - began < share and not stop.is_set():
                sum(range(1000))
            board.post(View(view.text, view.openmetrics, view.page, is_ready=True))
            stop.wait(1 - share)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def _wrk(port: int, encoding: str) -> tuple[float, float, float]:
    """Median and 99th percentile in milliseconds, and answers a second."""
    command = ["wrk", "-t1", f"-c{_CONNECTIONS}", f"-d{_SECONDS}", "--latency", "-H", f"Accept-Encoding: {encoding}"]
    done = subprocess.run(
        [*command, f"http://127.0.0.1:{port}/metrics"], capture_output=True, text=True, check=True, timeout=60
    )
    assert "Non-2xx" not in done.stdout, done.stdout
    assert "Socket errors" not in done.stdout, done.stdout
    found = dict(re.findall(r"^ +(50|99)% +([0-9.]+[a-z]+)$", done.stdout, re.MULTILINE))
    milliseconds = [float(text.rstrip("mus")) * _UNITS[text.lstrip("0123456789.")] for text in found.values()]
    rate = re.search(r"Requests/sec: +([0-9.]+)", done.stdout)
    assert rate is not None, done.stdout
    return milliseconds[0], milliseconds[1], float(rate[1])


def _measured(view: View, *, process: bool, share: float, encoding: str) -> tuple[str, float]:
    """The figures, of the best round and of the middle one, and the processor's time of an answer in microseconds."""
    board = Board()
    board.post(view)
    server = Server(board, listen="127.0.0.1:0", web_config=None)
    server.start()
    with ExitStack() as stack:
        stack.callback(server.stop)
        if process:
            stack.enter_context(_process())
        if share:
            stack.enter_context(_thread(board, view, share))
        before = time.process_time()
        rounds = sorted((_wrk(server.port, encoding) for _ in range(_ROUNDS)), key=lambda one: one[1])
        spent = time.process_time() - before
    best, middle = rounds[0], rounds[_ROUNDS // 2]
    answers = sum(one[2] for one in rounds) * _SECONDS
    text = f"{best[0]:.0f} ms, {best[1]:.0f} ms ({middle[0]:.0f} ms, {middle[1]:.0f} ms); {best[2]:,.0f}/s"
    return text, spent / answers * 1e6


def run(_folder: Path | None = None, _records: int = 0) -> list[Row]:
    """Measure, with and without compression."""
    view = _view()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    rows: list[Row] = []
    cases = (
        ("alone", False, 0.0, ""),
        ("a busy process beside it", True, 0.0, "p99 under 50 ms"),
        ("and a thread that works a tenth of the time", True, 0.1, "p99 under 50 ms"),
        ("and a thread that is never idle", True, 1.0, ""),
    )
    try:
        for encoding in ("gzip", "identity"):
            for what, process, share, required in cases:
                note(f"scraping: {encoding}, {what}; load average {os.getloadavg()[0]:.1f}")
                text, each = _measured(view, process=process, share=share, encoding=encoding)
                measured = f"/metrics, {len(view.text) // 1000} KB, {encoding}, {_CONNECTIONS} scrapers: {what}"
                rows.append(
                    Row(measured, f"p50, p99: {text}", "" if share else f"{each:.0f} µs CPU each", "", required)
                )
    finally:
        sys.setswitchinterval(interval)
    return rows


if __name__ == "__main__":
    argparse.ArgumentParser(prog="python -m benchmarks.scraping").parse_args()
    print(table(run()))
    print(f"\n{facts()}")
