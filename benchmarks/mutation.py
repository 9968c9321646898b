"""A mutation run over the journal: `python -m benchmarks.mutation [--module NAME ...] [--share 0.3] [--seed N]`.

Each mutant is a module with one change, tried in a copy of the checkout by the tests that reach the changed line. What
was found stays in `--work`, so a run that was stopped goes on where it was. Ends with 1 when a mutant survived that
`mutation_explained.json` does not explain.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from benchmarks.mutation_sites import Mutant, mutants
from benchmarks.mutation_tests import Reach, files_in, measure

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["main"]

ROOT: Final = Path(__file__).resolve().parent.parent
JOURNAL: Final = Path("raxol_otel", "journal")
EXPLAINED: Final = Path(__file__).with_name("mutation_explained.json")
_COLUMNS: Final = ("mutants", "tried", "killed", "timeout", "explained", "survived")
_LEFT: Final = (".git", ".venv", ".hypothesis", ".mypy_cache", ".ruff_cache", ".pytest_cache")
_SECONDS_LEAST: Final = 10.0
# How much slower than measured a run may be before it counts as one that does not end.
_PATIENCE: Final = 2.0


def copy_of_checkout(folder: Path, source: Path = ROOT) -> Path:
    """A copy to change, with the corpora beside it, as the tests want them."""
    place = folder / "checkout"
    if not place.exists():
        shutil.copytree(source, place, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT))
        if (ROOT.parent / "shared").exists():
            (folder / "shared").symlink_to(ROOT.parent / "shared")
    # A run that was killed has left a mutant there; and tests may have come since.
    for part in (JOURNAL, "tests", "benchmarks"):
        shutil.copytree(ROOT / part, place / part, dirs_exist_ok=True)
    return place


class Worker:
    """A process that tries mutants in a copy of its own."""

    def __init__(self, folder: Path, measured: Path) -> None:
        temporary = folder / "temporary"
        temporary.mkdir(parents=True, exist_ok=True)
        self.checkout = copy_of_checkout(folder, measured)
        self._sound: set[str] = set()
        environment = {**os.environ, "PYTHONPATH": str(self.checkout), "TMPDIR": str(temporary)}
        self._process: Final = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.mutation_worker", *files_in(self.checkout)],
            cwd=self.checkout,
            env=environment,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )

    def ask(self, reach: Reach, module: str, code: str, tests: Sequence[str]) -> dict[str, Any]:
        """Try a mutant with some tests."""
        seconds = _SECONDS_LEAST + _PATIENCE * sum(reach.seconds[name] for name in tests)
        job = {"path": str(JOURNAL / module), "code": code, "tests": list(tests), "seconds": seconds}
        _pipe(self._process.stdin).write(json.dumps(job) + "\n")
        _pipe(self._process.stdin).flush()
        answer: dict[str, Any] = json.loads(_pipe(self._process.stdout).readline())
        return answer

    def judge(self, reach: Reach, module: str, mutant: Mutant) -> dict[str, Any]:
        """A mutant's verdict. Who kills must pass without a mutant."""
        while True:
            tests = reach.tests(module, mutant)
            assert tests, f"no test reaches {module}, or none passes here without a mutant"
            verdict = self.ask(reach, module, mutant.code(), tests)
            by = verdict["by"]
            if verdict["verdict"] == "killed":
                accused = [by] if by in reach.seconds else tests
                if not self._are_sound(reach, module, accused, is_import=by == "import"):
                    reach.unfit.update(accused)
                    continue
            if by in reach.seconds:
                reach.kills[module][by] += 1
            return {**verdict, "tests": len(tests)}

    def _are_sound(self, reach: Reach, module: str, tests: Sequence[str], *, is_import: bool) -> bool:
        """Whether tests pass without a mutant too, in the same way; asked once of each."""
        asked = {f"{module} {name}" for name in tests} if is_import else set(tests)
        if not self._sound.issuperset(asked):
            text = (ROOT / JOURNAL / module).read_text(encoding="utf-8")
            code = f"{text}\n_NOTHING = 0\n" if is_import else ""
            if self.ask(reach, module, code, tests)["verdict"] != "survived":
                return False
            self._sound.update(asked)
        return True

    def close(self) -> None:
        """No more jobs."""
        _pipe(self._process.stdin).close()
        self._process.wait()


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream


def chosen(module: str, share: float, seed: int) -> tuple[list[Mutant], int]:
    """The mutants of a module that are tried, and how many there are. A larger share holds a smaller one."""
    found = mutants((ROOT / JOURNAL / module).read_text(encoding="utf-8"))
    dice = random.Random(f"{seed} {module}")  # noqa: S311 - a choice to make again, no secret
    picked = dice.sample(found, len(found))[: math.ceil(share * len(found))]
    return sorted(picked, key=lambda mutant: mutant.line), len(found)


def is_open(row: dict[str, Any]) -> bool:
    """Whether a mutant has survived that nothing explains."""
    reasons: dict[str, list[str]] = explained().get(row["module"], {})
    return row["verdict"] == "survived" and not any(row["key"] in keys for keys in reasons.values())


@cache
def explained() -> dict[str, dict[str, list[str]]]:
    """For each module and reason the keys of survivors that change nothing that a test could or should see."""
    found: dict[str, dict[str, list[str]]] = json.loads(EXPLAINED.read_text(encoding="utf-8"))
    return found


class Results:
    """The verdicts so far, one JSON object a line."""

    def __init__(self, path: Path, *, again: bool) -> None:
        """`again`: leave out what has survived without an explanation."""
        self._path: Final = path
        self._lock: Final = threading.Lock()
        lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
        known = {(row["module"], row["key"]): row for row in map(json.loads, lines)}
        self.found: Final = {key: row for key, row in known.items() if not (again and is_open(row))}

    def add(self, module: str, mutant: Mutant, verdict: dict[str, Any]) -> None:
        """Keep one."""
        where = {"module": module, "key": mutant.key, "line": mutant.line}
        row = {**where, "before": mutant.before, "after": mutant.after, **verdict}
        with self._lock, self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
            self.found[module, mutant.key] = row


def try_all(jobs: Iterable[tuple[str, Mutant]], folder: Path, results: Results, workers: int) -> None:
    """Try mutants, each where it was not tried before."""
    waiting: queue.SimpleQueue[tuple[str, Mutant]] = queue.SimpleQueue()
    for module, mutant in jobs:
        if (module, mutant.key) not in results.found:
            waiting.put((module, mutant))
    measured = copy_of_checkout(folder / "1")
    reach = measure(measured, folder)
    for row in results.found.values():
        if row["by"] in reach.seconds:
            reach.kills.setdefault(row["module"], Counter())[row["by"]] += 1

    def work(number: int) -> None:
        worker = Worker(folder / str(number), measured)
        while not waiting.empty():
            module, mutant = waiting.get()
            results.add(module, mutant, worker.judge(reach, module, mutant))
        worker.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(1, workers + 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def report(modules: Sequence[str], results: Results, share: float, seed: int) -> int:
    """Print the table and the survivors that nothing explains; how many these are."""
    print(f"| {' | '.join(('module', *_COLUMNS))} |\n{'| --- ' * (len(_COLUMNS) + 1)}|")
    survivors: list[dict[str, Any]] = []
    total: Counter[str] = Counter()
    for module in modules:
        picked, count = chosen(module, share, seed)
        rows = [results.found[module, mutant.key] for mutant in picked if (module, mutant.key) in results.found]
        left = [row for row in rows if is_open(row)]
        verdicts = Counter(row["verdict"] for row in rows)
        verdicts.update(mutants=count, tried=len(rows), explained=verdicts["survived"] - len(left))
        verdicts["survived"] = len(left)
        total += verdicts
        survivors += left
        _line(module, verdicts)
    _line("all", total)
    for row in survivors:
        print(f"\n{row['module']}:{row['line']} {row['key']}\n- {row['before']}\n+ {row['after']}")
    return len(survivors)


def _line(name: str, verdicts: Counter[str]) -> None:
    print(f"| {name} | {' | '.join(f'{verdicts[key]:,}' for key in _COLUMNS)} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; 1 when a mutant survived that nothing explains."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.mutation", description="Changes the code; who notices?")
    names = sorted(path.name for path in (ROOT / JOURNAL).glob("*.py"))
    parser.add_argument("--module", action="append", help="a module of the journal, as reader.py (default: all)")
    parser.add_argument("--share", type=float, default=1.0, help="the part of a module's mutants to try (default 1.0)")
    parser.add_argument("--seed", type=int, default=1, help="what the choice of a part follows from (default 1)")
    parser.add_argument("--workers", type=int, default=1, help="processes that try mutants (default 1)")
    work = Path(tempfile.gettempdir(), "raxol-otel-mutation")
    parser.add_argument("--work", type=Path, default=work, help="where copies and verdicts are kept")
    parser.add_argument(
        "--again", action="store_true", help="try also what has survived unexplained, with the tests of now"
    )
    parser.add_argument("--report", action="store_true", help="only tell what is known")
    options = parser.parse_args(arguments)
    modules: list[str] = options.module or names
    if unknown := set(modules) - set(names):
        parser.error(f"no such module: {', '.join(sorted(unknown))}")
    options.work.mkdir(parents=True, exist_ok=True)
    results = Results(options.work / "verdicts.jsonl", again=options.again)
    if not options.report:
        jobs = ((module, mutant) for module in modules for mutant in chosen(module, options.share, options.seed)[0])
        try_all(jobs, options.work, results, options.workers)
    return report(modules, results, options.share, options.seed) > 0


if __name__ == "__main__":
    sys.exit(main())
