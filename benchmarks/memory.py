"""Peak memory of the commands, and how long `--help` takes: `python -m benchmarks.memory [--records N]`.

Each command runs as a process of its own, on journals of N and of 10 N records. The peak is the largest resident set
that the kernel saw (`ru_maxrss`). A process inherits that of the one it was forked from, so a small one starts it.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Final

from benchmarks.common import Row, command_line, note
from benchmarks.journals import make

if TYPE_CHECKING:
    from collections.abc import Sequence

    from benchmarks.journals import Journal

__all__ = ["run"]

_ROOT: Final = Path(__file__).resolve().parent.parent
# What the installed script `raxol-otel` does, without asking whether it is installed.
_SCRIPT: Final = "import sys; from raxol_otel.cli import main; sys.argv[0] = 'raxol-otel'; sys.exit(main())"
_LAUNCHER: Final = """
import os, sys, time
start = time.perf_counter()
_, status, usage = os.wait4(os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ), 0)
wall = time.perf_counter() - start
print(os.waitstatus_to_exitcode(status), usage.ru_maxrss, usage.ru_utime + usage.ru_stime, wall, file=sys.stderr)
"""
_LARGER: Final = 10
_STARTS: Final = 15
_MIB: Final = 1024  # ru_maxrss is in KiB on Linux


@dataclass(frozen=True, slots=True)
class _Child:
    """What a finished process took: KiB at its peak, seconds of the processor, seconds on the clock."""

    peak: int
    seconds: float
    wall: float


def run(folder: Path, records: int) -> list[Row]:
    """Measure startup, then each command on a journal and on one ten times as long."""
    rows = [_startup()]
    for chained in (False, True):
        kind = "chained" if chained else "plain"
        name = f"{kind}-memory"
        small = make(folder / name, records, chained=chained)
        note(f"memory: a {kind} journal of {_LARGER * records} records")
        large = make(folder / f"{name}-{_LARGER}", _LARGER * records, chained=chained)
        commands = ("verify",) if chained else ("replay", "verify", "show")
        for command in commands:
            note(f"memory: {command}, {kind}, {records} and {_LARGER * records} records")
            rows.append(_peaks(command, kind, small, large, folder))
        for journal in (small, large):
            for path in journal.paths:
                path.unlink()
    return rows


def _peaks(command: str, kind: str, small: Journal, large: Journal, folder: Path) -> Row:
    peaks: list[float] = []
    out = folder / "replayed.jsonl"
    where = ["--to", f"file:{out}"] if command == "replay" else []
    for journal in (small, large):
        peaks.append(_child(["-c", _SCRIPT, command, str(journal.directory), *where]).peak / _MIB)
        out.unlink(missing_ok=True)
    shown = {"replay": "replay --to file:", "show": "show >/dev/null"}.get(command, command)
    return Row(
        f"peak memory of `{shown}`, {kind}, {large.records:,} records",
        f"{peaks[1]:.1f} MiB",
        f"{small.records:,} records: {peaks[0]:.1f} MiB",
        f"{peaks[1] / peaks[0]:.2f}",
        "under 120 MiB, the same",
    )


def _startup() -> Row:
    # The first one writes the bytecode and warms the caches.
    _child(["-c", _SCRIPT, "--help"])
    helps: list[_Child] = []
    passes: list[_Child] = []
    for _ in range(_STARTS):
        helps.append(_child(["-c", _SCRIPT, "--help"]))
        passes.append(_child(["-c", "pass"]))
    return Row(
        "`raxol-otel --help`",
        _milliseconds(helps),
        f"`python -c pass`: {_milliseconds(passes)}",
        f"{min(child.wall for child in helps) / min(child.wall for child in passes):.1f}"
        f" ({median(child.wall for child in helps) / median(child.wall for child in passes):.1f})",
        "under 150 ms",
    )


def _milliseconds(children: Sequence[_Child]) -> str:
    walls = [child.wall * 1000 for child in children]
    busy = [child.seconds * 1000 for child in children]
    return (
        f"{min(walls):.0f} ms ({median(walls):.0f} ms) on the clock, "
        f"{min(busy):.0f} ms ({median(busy):.0f} ms) of the processor"
    )


def _child(arguments: Sequence[str]) -> _Child:
    """Run Python with the arguments, its output thrown away."""
    command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, sys.executable, *arguments]
    done = subprocess.run(
        command,
        cwd=_ROOT,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=True,
    )
    said = done.stderr.splitlines()
    code, peak, seconds, wall = said[-1].split()
    assert code == "0", said
    return _Child(int(peak), float(seconds), float(wall))


if __name__ == "__main__":
    command_line("memory", run)
