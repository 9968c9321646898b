"""What the benchmarks share: rows of the table, fair timing, the facts of the machine.

Time is the processor's, of this process and all its threads: other work on the machine disturbs it less than a clock on
the wall. What is compared runs in turns, each round beginning with another, and both the best and the median are told.
"""

from __future__ import annotations

import argparse
import gc
import os
import platform
import sys
import tempfile
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.journals import whole_turns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

__all__ = ["RECORDS", "Row", "Times", "alternate", "command_line", "facts", "note", "settled", "table", "workplace"]

RECORDS: Final = 1_000_000
_HEADINGS: Final = ("Measured", "Result", "Beside it", "Ratio", "Required")


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table, ready to print. `required` is empty where nothing is."""

    measured: str
    result: str
    beside: str = ""
    ratio: str = ""
    required: str = ""


@dataclass(slots=True)
class Times:
    """Seconds of the processor that repeated runs of the same work took; `walls` are those on the clock."""

    seconds: list[float] = field(default_factory=list[float])
    walls: list[float] = field(default_factory=list[float])

    @contextmanager
    def measured(self) -> Generator[None]:
        """Add the time of what runs inside."""
        wall, start = time.perf_counter(), time.process_time()
        yield
        self.seconds.append(time.process_time() - start)
        self.walls.append(time.perf_counter() - wall)

    def forget_last(self) -> None:
        """Leave out a run that was not of the same work."""
        self.seconds.pop()
        self.walls.pop()

    @property
    def best(self) -> float:
        """The least time."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """The time in the middle."""
        return median(self.seconds)

    def rate(self, count: int) -> str:
        """Best and median as a number of things a second."""
        return f"{count / self.best:,.0f}/s ({count / self.median:,.0f}/s)"

    def ratio(self, other: Times) -> str:
        """How many times as fast as the other, by best and by median."""
        return f"{other.best / self.best:.2f} ({other.median / self.median:.2f})"


@contextmanager
def settled() -> Generator[None]:
    """What is in memory now is not looked at by the garbage collector inside: it belongs to no contender."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def alternate(contenders: Sequence[Callable[[], object]], rounds: int) -> list[Times]:
    """The times of each, run in turns, each round beginning with another."""
    times = [Times() for _ in contenders]
    for number in range(rounds):
        for step in range(len(contenders)):
            index = (number + step) % len(contenders)
            with settled(), times[index].measured():
                contenders[index]()
    return times


def table(rows: Sequence[Row]) -> str:
    """The rows as a Markdown table."""
    cells = [_HEADINGS, *((row.measured, row.result, row.beside, row.ratio, row.required) for row in rows)]
    lines = [f"| {' | '.join(line)} |" for line in cells]
    lines.insert(1, "| --- " * len(_HEADINGS) + "|")
    return "\n".join(lines)


def facts() -> str:
    """The machine and the versions, on one line."""
    libraries = ", ".join(f"{name} {version(name)}" for name in ("orjson", "opentelemetry-sdk", "protobuf"))
    return (
        f"{os.cpu_count()} cores, {platform.machine()}, {platform.system()}, {platform.python_implementation()} "
        f"{platform.python_version()}, {libraries}, {datetime.now(UTC):%Y-%m-%d}"
    )


def note(text: str) -> None:
    """Tell on standard error what is going on."""
    print(text, file=sys.stderr, flush=True)


@contextmanager
def workplace() -> Generator[Path]:
    """A temporary folder for journals, several times as large as they are: `TMPDIR` says where."""
    with tempfile.TemporaryDirectory(prefix="raxol-otel-benchmarks-") as folder:
        yield Path(folder)


def command_line(name: str, run: Callable[[Path, int], list[Row]]) -> None:
    """Run one benchmark by itself and print its table."""
    parser = argparse.ArgumentParser(prog=f"python -m benchmarks.{name}")
    parser.add_argument("--records", type=whole_turns, default=RECORDS, help="length of the journal, in whole turns")
    options = parser.parse_args()
    with workplace() as folder:
        print(table(run(folder, options.records)))
    print(f"\n{facts()}")
