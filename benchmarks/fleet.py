"""The fleet exporter as a whole process: first look, idle cycles, growth, scrapes, restart.

    python -m benchmarks.fleet --sessions 10000          # and 1000, 3000

Beside the first look stands a bare loop of `orjson.loads` over the lines of the same files, in a process of its own.
Scrapes are wrk's, 50 connections over the loopback, while the first look goes on. Needs the extra `serve`, and Debian's
`wrk` for the scrapes.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final

from benchmarks.common import Row, facts, note, table, workplace
from benchmarks.fleet_journals import FleetMade, make_fleet
from raxol_otel.journal import open_journal

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

_READY_SECONDS: Final = 600.0
_IDLE_SECONDS: Final = 20.0
_GROWING: Final = 100
_RECORDS_A_SECOND: Final = 10
_GROWTH_SECONDS: Final = 20
_SAMPLE_SECONDS: Final = 0.1
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_MIB: Final = 2**20


@dataclass(slots=True)
class Serving:
    """A running exporter. `peak` is the largest sum of resident bytes of its processes, as far as it was seen."""

    process: subprocess.Popen[bytes]
    port: int
    peak: int = 0
    stop: threading.Event = field(default_factory=threading.Event)

    def get(self, path: str) -> str:
        """A body, empty when there is none yet."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as answer:
                text: str = answer.read().decode()
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return ""
        return text

    def wait(self) -> float:
        """Wait until it is ready; when that was, on the clock."""
        deadline = time.perf_counter() + _READY_SECONDS
        while not self.get("/readyz"):
            assert self.process.poll() is None, "the exporter has ended"
            assert time.perf_counter() < deadline, "the exporter is not ready"
            time.sleep(0.02)
        return time.perf_counter()

    @property
    def cpu(self) -> float:
        """Seconds of the processor, of its ended children too."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_bytes().rpartition(b")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS

    def watch(self) -> None:
        """Sample the memory until told to stop."""
        while not self.stop.wait(_SAMPLE_SECONDS):
            self.peak = max(self.peak, sum(map(_resident, self._tree())))

    def _tree(self) -> Iterator[int]:
        yield self.process.pid
        with contextlib.suppress(OSError):
            path = Path(f"/proc/{self.process.pid}/task")
            for task in path.iterdir():
                yield from map(int, (task / "children").read_text().split())


def _resident(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()
    except (OSError, IndexError):
        return 0


@contextlib.contextmanager
def serving(root: Path, *more: str) -> Generator[Serving]:
    """An exporter of these sessions, stopped at the end."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "raxol_otel",
        "serve",
        "--sessions-dir",
        str(root),
        "--listen",
        f"127.0.0.1:{port}",
    ]
    process = subprocess.Popen([*command, *more], stderr=subprocess.DEVNULL)
    found = Serving(process, port)
    sampler = threading.Thread(target=found.watch, daemon=True)
    sampler.start()
    try:
        yield found
    finally:
        found.stop.set()
        sampler.join()
        process.terminate()
        process.wait(10)


_BARE: Final = """
import sys, orjson, time
loads = orjson.loads
begun = time.perf_counter()
for path in sys.stdin.read().splitlines():
    with open(path, "rb") as file:
        for line in file:
            try:
                loads(line)
            except ValueError:
                pass
print(time.perf_counter() - begun, time.process_time())
"""


def _bare(made: FleetMade) -> tuple[float, float]:
    """Seconds on the clock and of the processor of the loop that does nothing else."""
    paths = "\n".join(map(str, made.paths()))
    done = subprocess.run([sys.executable, "-c", _BARE], input=paths, capture_output=True, text=True, check=True)
    wall, cpu = map(float, done.stdout.split())
    return wall, cpu


def first_look(made: FleetMade, rounds: int) -> list[Row]:
    """The first look beside the bare loop, by one job and by two."""
    bare: list[tuple[float, float]] = []
    ours: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
    peaks: dict[int, int] = {}
    for number in range(rounds):
        note(f"first look, round {number + 1}")
        bare.append(_bare(made))
        for jobs in (1, 2):
            begun = time.perf_counter()
            with serving(made.root, "--jobs", str(jobs)) as exporter:
                ours[jobs].append((exporter.wait() - begun, exporter.cpu))
                text = exporter.get("/metrics")
            assert f'raxol_journal_sessions{{state="damaged"}} {len(made.damaged)}.0' in text
            assert f'raxol_journal_sessions{{state="torn"}} {len(made.torn)}.0' in text
            peaks[jobs] = max(peaks.get(jobs, 0), exporter.peak)
    wall, cpu = (min(column) for column in zip(*bare, strict=True))
    one, two = ((min(wall for wall, _ in times), min(cpu for _, cpu in times)) for times in (ours[1], ours[2]))
    return [
        Row(
            "first look, on the clock",
            f"{one[0]:.1f} s",
            f"bare loop: {wall:.1f} s",
            f"{wall / one[0]:.2f}",
            "at least 0.5",
        ),
        Row("first look, processor", f"{one[1]:.1f} s", f"bare loop: {cpu:.1f} s", f"{cpu / one[1]:.2f}"),
        Row(
            "first look, `--jobs 2`, on the clock",
            f"{two[0]:.1f} s",
            f"one job: {one[0]:.1f} s",
            f"{one[0] / two[0]:.2f}",
            "at least 1.7",
        ),
        Row(
            "memory, all processes",
            f"{peaks[1] / _MIB:.0f} MiB",
            f"two jobs: {peaks[2] / _MIB:.0f} MiB",
            "",
            "under 300 MiB",
        ),
    ]


def idle(made: FleetMade, scratch: Path) -> list[Row]:
    """A cycle in which nothing has changed, and a restart."""
    rows: list[Row] = []
    state = str(scratch / "state.db")
    for name, more, limit in (("watching", (), 60), ("polling", ("--poll",), 400)):
        with serving(made.root, "--jobs", "2", "--state", state, *more) as exporter:
            exporter.wait()
            time.sleep(7)
            before, begun = exporter.cpu, time.perf_counter()
            time.sleep(_IDLE_SECONDS)
            share = (exporter.cpu - before) / (time.perf_counter() - begun)
        rows.append(Row(f"a cycle with nothing new, {name}", f"{share * 1000:.0f} ms", "", "", f"under {limit} ms"))
    begun = time.perf_counter()
    with serving(made.root, "--state", state) as exporter:
        ready = exporter.wait() - begun
    rows.append(Row("restart with its state, until ready", f"{ready:.1f} s", "", "", "under 3 s"))
    return rows


def growing(made: FleetMade) -> list[Row]:
    """100 sessions that grow by 10 records a second: what that costs, and when it shows."""
    with serving(made.root, "--jobs", "2") as exporter:
        exporter.wait()
        time.sleep(7)
        journals = [open_journal(f"growing-{number:03d}", base_dir=made.root) for number in range(_GROWING)]
        delays: list[float] = []
        before, begun = exporter.cpu, time.perf_counter()
        for second in range(_GROWTH_SECONDS):
            ended = time.perf_counter()
            for journal in journals:
                journal.append_many(_turn(second))
            wanted = f'raxol_turns_total{{outcome="completed",source="fleet"}} {_GROWING * (second + 1)}.0'
            while wanted not in exporter.get("/metrics") and time.perf_counter() - ended < 10:
                time.sleep(0.05)
            delays.append(time.perf_counter() - ended)
            time.sleep(max(0.0, begun + second + 1 - time.perf_counter()))
        share = (exporter.cpu - before) / (time.perf_counter() - begun)
        for journal in journals:
            journal.close()
    for number in range(_GROWING):
        shutil.rmtree(made.root / f"growing-{number:03d}")
    delays.sort()
    return [
        Row("100 sessions growing by 10 records a second", f"{share * 100:.0f} % of a core", "", "", "under 10 %"),
        Row(
            "until that shows in /metrics, the median and the longest",
            f"{delays[len(delays) // 2]:.2f} s, {delays[-1]:.2f} s",
            "",
            "",
            "within 2 s",
        ),
    ]


def _turn(number: int) -> list[dict[str, object]]:
    stamp = time.time_ns() // 1000
    kinds = ["turn_started", *("item_started", "item_completed") * 4, "turn_completed"]
    common = {"family": "loop", "tier": "durable", "turn_id": f"turn-{number}", "ts": stamp}
    return [
        {**common, "type": kind, "payload": {"item_id": f"i{index // 2}", "item_type": "message", "final": True}}
        for index, kind in enumerate(kinds, 1)
    ]


def scrapes(made: FleetMade) -> list[Row]:
    """Scrapes by 50 at once while the first look goes on."""
    if shutil.which("wrk") is None:
        note("no wrk: scrapes are not measured (Debian's package `wrk`)")
        return []
    with serving(made.root) as exporter:
        while not exporter.get("/metrics"):
            time.sleep(0.02)
        url = f"http://127.0.0.1:{exporter.port}/metrics"
        command = ["wrk", "-t1", "-c50", "-d8s", "--latency", url]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert not exporter.get("/readyz"), "the first look was over before the scrapes were"
    ninety_nine = re.search(r"99%\s+(\S+)", done.stdout)
    rate = re.search(r"Requests/sec:\s+(\S+)", done.stdout)
    assert ninety_nine
    assert rate
    return [Row("a scrape during the first look, 50 at once, p99", ninety_nine[1], f"{rate[1]}/s", "", "under 50 ms")]


def main() -> None:
    """Measure one fleet and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet")
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("first", "idle", "growing", "scrapes"))
    options = parser.parse_args()
    rows: list[Row] = []
    with workplace() as scratch:
        note("making the fleet")
        made = make_fleet(scratch / "fleet", options.sessions, scratch)
        measures: dict[str, Callable[[], list[Row]]] = {
            "first": lambda: first_look(made, options.rounds),
            "idle": lambda: idle(made, scratch),
            "growing": lambda: growing(made),
            "scrapes": lambda: scrapes(made),
        }
        for name, measure in measures.items():
            if options.only in {None, name}:
                rows += measure()
        print(f"{facts()}; {options.sessions:,} sessions, {made.size / 2**30:.2f} GiB\n\n{table(rows)}")


if __name__ == "__main__":
    main()
