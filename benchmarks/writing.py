"""Appending durably, beside a bare loop of write(2) and fdatasync: `python -m benchmarks.writing`.

Everything lies on one disk and is on the clock, in turns: a round of each contender after the other, each round
beginning with another, and a bare loop just before each. A ratio is to that one, the best and the median. The lines are
of 400 bytes, the bare loop's made beforehand; ours are encoded, stamped and, in a chained journal, hashed from events
that are made anew for each append. SQLite commits one row of the same text at a time (WAL, `synchronous=FULL`). Threads
append to one journal, each its share, `sync=True`.

`append_many` takes 1,000 events a call; one in 20 has an escape and, unless chained, a float.

Opening is of a journal of a gibibyte, beside one streaming scan of it, each in a process of its own.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from itertools import count
from statistics import median
from typing import TYPE_CHECKING, Any, Final

from benchmarks.common import Row, command_line, note
from benchmarks.journals import RECORDS_PER_TURN, make
from raxol_otel.canonical import encode
from raxol_otel.journal import open_journal

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["run"]

_ROUNDS: Final = 7
_APPENDS: Final = 1_500
_THREADS: Final = (8, 32)
_THREAD_APPENDS: Final = 6_400
_BATCHES: Final = 8
_BATCH_EVENTS: Final = 1_000
_LINE_BYTES: Final = 400
_GIBIBYTE: Final = 2**30
_MIB: Final = 1024  # VmHWM is in KiB
_names: Final = count(1)

_OPEN: Final = """
import sys, time
from raxol_otel.journal import iter_records, open_journal
began = time.perf_counter()
if sys.argv[1] == "open":
    open_journal(sys.argv[3], base_dir=sys.argv[2]).close()
else:
    for record in iter_records(sys.argv[2] + "/" + sys.argv[3]):
        pass
taken = time.perf_counter() - began
# Not ru_maxrss, which a child inherits.
peak = next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM"))
print(taken, peak)
"""


def _event(number: int, text: str) -> dict[str, Any]:
    return {
        "v": 0,
        "session_id": "bench",
        "turn_id": f"turn-{number}",
        "ts": 1_785_900_000_000_000 + number,
        "family": "loop",
        "type": "item_completed",
        "tier": "durable",
        "provenance": {"source": "primary", "trust": "trusted"},
        "payload": {"item_id": "i1", "item_type": "message", "role": "assistant", "content": text},
    }


def _text() -> str:
    """A content that makes the line 400 bytes long."""
    plain = encode({**_event(1_000, ""), "id": 1_000, "schema_version": "1.2.0"}) + b"\n"
    return "x" * (_LINE_BYTES - len(plain))


def _bare(folder: Path, line: bytes) -> float:
    descriptor = os.open(folder / "bare", os.O_RDWR | os.O_CREAT | os.O_TRUNC)
    began = time.perf_counter()
    for _ in range(_APPENDS):
        os.write(descriptor, line)
        os.fdatasync(descriptor)
    rate = _APPENDS / (time.perf_counter() - began)
    os.close(descriptor)
    return rate


def _sqlite(folder: Path, line: bytes) -> float:
    connection = sqlite3.connect(folder / f"{next(_names)}.sqlite", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("CREATE TABLE records (id INTEGER PRIMARY KEY, line TEXT)")
    text = line.decode()
    began = time.perf_counter()
    for _ in range(_APPENDS):
        connection.execute("INSERT INTO records (line) VALUES (?)", (text,))
    rate = _APPENDS / (time.perf_counter() - began)
    connection.close()
    return rate


def _alone(folder: Path, text: str, *, chain: bool) -> float:
    with open_journal(f"alone-{next(_names)}", base_dir=folder, chain=chain) as journal:
        journal.append(_event(0, text), sync=True)
        began = time.perf_counter()
        for number in range(_APPENDS):
            journal.append(_event(number, text), sync=True)
        return _APPENDS / (time.perf_counter() - began)


def _together(folder: Path, text: str, threads: int) -> float:
    with open_journal(f"together-{next(_names)}", base_dir=folder) as journal:
        start = threading.Barrier(threads + 1)

        def work() -> None:
            start.wait()
            for number in range(_THREAD_APPENDS // threads):
                journal.append(_event(number, text), sync=True)

        workers = [threading.Thread(target=work) for _ in range(threads)]
        for worker in workers:
            worker.start()
        start.wait()
        began = time.perf_counter()
        for worker in workers:
            worker.join()
        return _THREAD_APPENDS / (time.perf_counter() - began)


def _many(folder: Path, text: str, *, chain: bool) -> float:
    events = [_event(number, text) for number in range(_BATCH_EVENTS)]
    for event in events[::20]:
        event["payload"]["content"] = f"\x1b{text}"
        if not chain:
            event["payload"]["cost"] = 1.25e-7
    with open_journal(f"many-{next(_names)}", base_dir=folder, chain=chain) as journal:
        began = time.perf_counter()
        for _ in range(_BATCHES):
            journal.append_many(events, sync=True)
        return _BATCHES * _BATCH_EVENTS / (time.perf_counter() - began)


def _opening(folder: Path) -> Row:
    note("writing: a journal of 1 GiB")
    size = make(folder / "probe", 100 * RECORDS_PER_TURN).size // 100
    make(folder / "gibibyte", _GIBIBYTE // size * RECORDS_PER_TURN)
    seconds: dict[str, list[float]] = {"open": [], "scan": []}
    peak = 0.0
    for _ in range(2):
        for what, times in seconds.items():
            command = [sys.executable, "-c", _OPEN, what, str(folder), "gibibyte"]
            said = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
            times.append(float(said[0]))
            peak = max(peak, float(said[1]) / _MIB) if what == "open" else peak
    return Row(
        "opening a journal of 1 GiB for writing",
        f"{min(seconds['open']):.1f} s, {peak:.0f} MiB",
        f"one streaming scan: {min(seconds['scan']):.1f} s",
        f"{min(seconds['open']) / min(seconds['scan']):.2f}",
        "one scan's time, under 100 MiB",
    )


def run(folder: Path, _records: int) -> list[Row]:
    """Measure all of it."""
    text = _text()
    line = encode({**_event(1_000, text), "id": 1_000, "schema_version": "1.2.0"}) + b"\n"
    contenders: dict[str, tuple[Callable[[], float], str]] = {
        "write(2) and fdatasync, a bare loop": (lambda: _bare(folder, line), ""),
        "SQLite, WAL, synchronous=FULL": (lambda: _sqlite(folder, line), ""),
        "`append`, one thread": (lambda: _alone(folder, text, chain=False), "at least 0.85"),
        "`append`, one thread, chained": (lambda: _alone(folder, text, chain=True), "at least 0.75"),
        "`append`, 8 threads": (lambda: _together(folder, text, _THREADS[0]), "at least 2"),
        "`append`, 32 threads": (lambda: _together(folder, text, _THREADS[1]), "at least 4"),
        "`append_many` of 1,000": (lambda: _many(folder, text, chain=False), "at least 20"),
        "`append_many` of 1,000, chained": (lambda: _many(folder, text, chain=True), "at least 10"),
    }
    labels = list(contenders)
    rates: dict[str, list[float]] = {label: [] for label in labels}
    ratios: dict[str, list[float]] = {label: [] for label in labels}
    for number in range(_ROUNDS):
        note(f"writing: round {number + 1} of {_ROUNDS}")
        for step in range(len(labels)):
            label = labels[(number + step) % len(labels)]
            # The disk's speed changes from one second to the next: each has a bare loop of its own, just before.
            bare = _bare(folder, line)
            rates[label].append(contenders[label][0]())
            ratios[label].append(rates[label][-1] / bare)
    rows = [
        Row(
            f"{label}{', `sync=True`' if step > 1 else ''}",
            f"{max(rates[label]):,.0f}/s ({median(rates[label]):,.0f}/s)",
            "the bare loop" if step else "",
            f"{max(ratios[label]):.2f} ({median(ratios[label]):.2f})" if step else "",
            contenders[label][1],
        )
        for step, label in enumerate(labels)
    ]
    return [*rows, _opening(folder)]


if __name__ == "__main__":
    command_line("writing", run)
