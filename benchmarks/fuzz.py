"""Fuzzing, in one process: `python -m benchmarks.fuzz --seconds N --seed S [--target NAME] [--save DIRECTORY]`.

Each iteration's input follows from the seed, the target and the iteration's number alone, so a finding is made again by
`--target NAME --seed S --iteration I`. What is to be true of a target, and who judges it, is in its module
`fuzz_NAME`. Ends with 1 when something was found.
"""

from __future__ import annotations

import argparse
import logging
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple, NoReturn
from urllib.parse import quote

from benchmarks.fuzz_bends import bend_checkpoint, bend_journal
from benchmarks.fuzz_checkpoint import check_checkpoint
from benchmarks.fuzz_codec import bend_text, check_codec, make_text
from benchmarks.fuzz_inputs import Case, Dice, dice
from benchmarks.fuzz_journals import make_checkpoint, make_journal
from benchmarks.fuzz_observed import bend_observed, check_observed, make_observed
from benchmarks.fuzz_reader import check_reader
from benchmarks.fuzz_writer import check_writer

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence
    from types import FrameType

__all__ = ["TARGETS", "Finding", "Run", "Target", "case_of", "main"]

# Processor time that one input may take; more is a finding too.
SECONDS_MAX: Final = 30.0
_SLICE_SECONDS: Final = 5.0
_SAVED_PER_KIND: Final = 3
_BENDS: Final = (0, 1, 1, 1, 2, 2, 3, 5)


class Target(NamedTuple):
    """What is fuzzed: how an input is made, how it is bent, and what must be true of it."""

    make: Callable[[Dice], Case]
    bend: Callable[[Dice, Case], Case]
    check: Callable[[Case, Path], None]


TARGETS: Final = {
    "codec": Target(make_text, bend_text, check_codec),
    "observed": Target(make_observed, bend_observed, check_observed),
    "reader": Target(make_journal, bend_journal, check_reader),
    "writer": Target(make_journal, bend_journal, check_writer),
    "checkpoint": Target(make_checkpoint, bend_checkpoint, check_checkpoint),
}


class TooSlow(BaseException):
    """One input took longer than any should. No `except Exception` on the way swallows it."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What an input has broken. `kind` is the same for inputs that break the same thing."""

    target: str
    seed: int
    iteration: int
    kind: str
    trace: str
    case: Case


@dataclass(slots=True)
class Run:
    """One target's run so far."""

    name: str
    seed: int
    iterations: int = 0
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list[Finding])
    kinds: Counter[str] = field(default_factory=Counter[str])

    def step(self, folder: Path, iteration: int | None = None) -> Finding | None:
        """Do one iteration, the next one or a given one."""
        number = self.iterations if iteration is None else iteration
        self.iterations += 1
        started = time.perf_counter()
        finding = _attempt(self.name, self.seed, number, folder)
        self.seconds += time.perf_counter() - started
        if finding is not None:
            self.kinds[finding.kind] += 1
            if self.kinds[finding.kind] <= _SAVED_PER_KIND:
                self.findings.append(finding)
        return finding

    def __str__(self) -> str:
        """One line of the report."""
        rate = self.iterations / self.seconds if self.seconds else 0.0
        return f"{self.name:<10} {self.iterations:>9,} iterations {rate:>7,.0f}/s {self.kinds.total():>5,} findings"


def case_of(name: str, seed: int, iteration: int) -> Case:
    """The input of one iteration."""
    target = TARGETS[name]
    d = dice(seed, name, iteration)
    case = target.make(d)
    for _ in range(d.choice(_BENDS)):
        case = target.bend(d, case)
    return case


def _attempt(name: str, seed: int, iteration: int, folder: Path) -> Finding | None:
    case: Case = {}
    here = Path(tempfile.mkdtemp(dir=folder))
    try:
        with _limited():
            case = case_of(name, seed, iteration)
            TARGETS[name].check(case, here)
    except (Exception, TooSlow) as error:  # noqa: BLE001 - whatever it is, it is what is looked for
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{Path(frame.filename).name}:{frame.name}" for frame in frames[-2:]]
        kind = f"{type(error).__name__} in {' > '.join(where)} ({frames[-1].line})"
        return Finding(name, seed, iteration, kind, traceback.format_exc(), case)
    finally:
        shutil.rmtree(here)
    return None


@contextmanager
def _limited() -> Generator[None]:
    """Raise `TooSlow` inside when the processor has worked too long."""

    def ring(_number: int, _frame: FrameType | None) -> NoReturn:
        raise TooSlow

    before = signal.signal(signal.SIGVTALRM, ring)
    signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS_MAX)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


@contextmanager
def quiet() -> Generator[None]:
    """Inside, the package's log is not shown: damage is what this is about."""
    before = logging.root.manager.disable
    logging.disable(logging.CRITICAL)
    try:
        yield
    finally:
        logging.disable(before)


def save(finding: Finding, directory: Path) -> Path:
    """Write down an input and what it has broken."""
    place = directory / f"{finding.target}-{finding.seed}-{finding.iteration}"
    place.mkdir(parents=True, exist_ok=True)
    (place / "why.txt").write_text(f"{finding.kind}\n\n{finding.trace}", errors="backslashreplace")
    for name, data in finding.case.items():
        (place / quote(name, safe="")).write_bytes(data)
    return place


def fuzz(names: Sequence[str], seconds: float, seed: int, directory: Path) -> list[Run]:
    """Fuzz the targets in turns, for so long in all."""
    runs = [Run(name, seed) for name in names]
    end = time.monotonic() + seconds
    next_word = time.monotonic() + 60
    with quiet(), tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        while time.monotonic() < end:
            for run in runs:
                until = min(end, time.monotonic() + _SLICE_SECONDS)
                while time.monotonic() < until:
                    finding = run.step(Path(folder))
                    if finding is not None and run.kinds[finding.kind] <= _SAVED_PER_KIND:
                        _tell(finding, save(finding, directory))
            if time.monotonic() > next_word:
                next_word = time.monotonic() + 300
                print(*runs, sep="\n", flush=True)
    return runs


def _tell(finding: Finding, place: Path) -> None:
    again = f"--target {finding.target} --seed {finding.seed} --iteration {finding.iteration}"
    print(f"FOUND {finding.kind}\n  again: {again}\n  input: {place}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 when something was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description="Looks for what breaks.")
    parser.add_argument("--seconds", type=float, default=60.0, help="how long, in all (default 60)")
    parser.add_argument("--seed", type=int, default=1, help="what all inputs follow from (default 1)")
    parser.add_argument("--target", choices=TARGETS, help="one of the targets")
    parser.add_argument("--iteration", type=int, help="only this one, of the target, and what it breaks in full")
    parser.add_argument(
        "--save",
        type=Path,
        default=Path(tempfile.gettempdir(), "raxol-otel-fuzz"),
        help="where inputs that broke something are kept",
    )
    options = parser.parse_args(arguments)
    if options.iteration is not None:
        if options.target is None:
            parser.error("--iteration needs --target")
        with quiet(), tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
            finding = Run(options.target, options.seed).step(Path(folder), options.iteration)
        if finding is not None:
            print(finding.trace)
            _tell(finding, save(finding, options.save))
        return finding is not None
    runs = fuzz([options.target] if options.target else list(TARGETS), options.seconds, options.seed, options.save)
    print(*runs, sep="\n")
    for run in runs:
        for kind, count in run.kinds.most_common():
            print(f"  {run.name}: {count:,} x {kind}")
    return any(run.kinds for run in runs)


if __name__ == "__main__":
    sys.exit(main())
