"""Which tests reach which lines: measured once, with coverage's contexts; and a choice of them for a mutant."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

from coverage import CoverageData

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from benchmarks.mutation_sites import Mutant

__all__ = ["Reach", "files_in", "measure"]

# The files whose tests read and write journals. Left out: those that change source lines themselves, and those that
# fork thousands of children for one test.
FILES: Final = (
    *("chain", "checkpoint", "checkpoint_backend", "checkpoint_oracle", "codec", "contract", "golden", "health"),
    *(
        "joined_mutants",
        "journal_mutants",
        "live_current",
        "live_failures",
        "live_instrumentor",
        "live_observed",
        "live_parity",
    ),
    *("lock", "lock_files", "metrics_writer", "odd_files", "opening_mutants", "oracle", "private", "reader_properties"),
    *("salvage", "salvage_mutants", "salvage_target", "signals", "sources", "store_contract", "tap", "testing_foreign"),
    *("testing_journal", "tip", "torn_after_unterminated", "writer_durability", "writer_failures"),
    *("writer_input", "writer_lock", "writer_mutants", "writer_opening", "writer_oracle", "writer_power"),
    *("writer_scenarios", "writer_segments", "writer_system", "writer_threads"),
)
_CONFIG: Final = """\
[run]
source = raxol_otel
data_file = {data}
parallel = true
patch = subprocess
disable_warnings = module-not-imported, no-data-collected
"""
# Whose tests a module's mutants meet all, however many cases these are. A module that is not here: the writer's.
_WRITER: Final = (
    *("joined_mutants", "lock_files", "opening_mutants", "tap"),
    *("writer_durability", "writer_failures", "writer_input", "writer_lock", "writer_mutants", "writer_opening"),
    *("writer_power", "writer_segments", "writer_threads"),
)
_READER: Final = ("odd_files", "oracle", "reader_properties", "torn_after_unterminated")
_OWN: Final = {
    "blocks.py": _READER,
    "chain.py": ("chain", *_READER),
    "checkpoint.py": ("checkpoint", "checkpoint_backend", "checkpoint_oracle"),
    "codec.py": ("codec",),
    "damage.py": _READER,
    "health.py": ("health",),
    "layout.py": (*_READER, "checkpoint", "sources", "writer_input", "writer_mutants", "writer_opening"),
    "lock.py": ("lock", "lock_files", "writer_lock"),
    "private.py": ("private",),
    "reader.py": _READER,
    "salvage.py": ("salvage", "salvage_mutants", "salvage_target"),
    "tap.py": ("live_failures", "live_instrumentor", "live_parity", "tap"),
    "tip.py": ("tip",),
}
# What pytest-cov puts behind a test's name.
_PHASE: Final = re.compile(r"\|(?:setup|run|teardown)$")
# For one mutant, in measured seconds: of these, and of others; and in other tests.
_OWN_SECONDS_MAX: Final = 60.0
_SECONDS_MAX: Final = 5.0
_TESTS_MAX: Final = 100
_FEW: Final = 30


@dataclass(slots=True)
class Reach:
    """What was measured.

    `lines` has the tests for each module and line of a function there; `kills` learns who kills in a module.
    """

    seconds: dict[str, float]
    lines: dict[str, dict[int, list[str]]]
    kills: dict[str, Counter[str]] = field(default_factory=dict[str, Counter[str]])
    unfit: set[str] = field(default_factory=set[str])

    def tests(self, module: str, mutant: Mutant) -> list[str]:
        """The tests for a mutant, the likeliest to notice first.

        Where few reach it (what is done once in a process, or at import, or in a process that is killed), also those
        that reach anything of the module; of one without functions, all.
        """
        lines = self.lines.get(module, {})
        found = {name for number in range(mutant.first, mutant.line + 1) for name in lines.get(number, ())}
        if len(found) >= _FEW:
            return self._best(module, found, ())
        return self._best(module, {name for names in lines.values() for name in names} or set(self.seconds), found)

    def _best(self, module: str, names: Collection[str], few: Collection[str]) -> list[str]:
        kills = self.kills.setdefault(module, Counter())
        fit = [name for name in names if name in self.seconds and name not in self.unfit]
        files = {f"tests/test_{name}.py" for name in (*_OWN.get(module, _WRITER), "journal_mutants")}
        own = [name for name in fit if name in few or name.split("::")[0] in files]
        own.sort(key=lambda name: (name not in few, self.seconds[name], name))
        # Of the others, one of each test's many cases before a second of any.
        others = sorted(set(fit).difference(own), key=lambda name: (self.seconds[name], name))
        turns: Counter[str] = Counter()
        rank: dict[str, int] = {}
        for name in others:
            function = name.split("[")[0]
            rank[name] = turns[function]
            turns[function] += 1
        others.sort(key=lambda name: rank[name])
        chosen = [*self._within(own, _OWN_SECONDS_MAX), *self._within(others[:_TESTS_MAX], _SECONDS_MAX)]
        return sorted(chosen, key=lambda name: (name not in few, -kills[name] / (self.seconds[name] + 0.05)))

    def _within(self, names: list[str], seconds: float) -> list[str]:
        """The first of them, as many as take so long together."""
        totals = accumulate(self.seconds[name] for name in names)
        return [name for name, total in zip(names, totals, strict=True) if total <= seconds]


def measure(checkout: Path, folder: Path) -> Reach:
    """Run the tests of `FILES` in a copy of the checkout, or read what an earlier run has left in the folder."""
    kept = folder / "reach.json"
    # Compiled once, whatever the shell says: a child for each mutant reads it all.
    _pytest(checkout, {"PYTHONDONTWRITEBYTECODE": ""}, "--collect-only", "-q", "-q")
    if not kept.exists():
        kept.write_text(json.dumps(_measured(checkout, folder)), encoding="utf-8")
    found: dict[str, Any] = json.loads(kept.read_text(encoding="utf-8"))
    lines = {
        module: {int(number): tests for number, tests in numbers.items()} for module, numbers in found["lines"].items()
    }
    return Reach(found["seconds"], lines)


def _measured(checkout: Path, folder: Path) -> dict[str, Any]:
    data = folder / "coverage"
    data.mkdir(exist_ok=True)
    config = folder / "coverage.ini"
    config.write_text(_CONFIG.format(data=data / "data"), encoding="utf-8")
    seconds = folder / "seconds.json"
    covered = ["--cov", f"--cov-config={config}", "--cov-context=test", "--cov-report="]
    more = {"RAXOL_MUTATION_SECONDS": str(seconds)}
    _pytest(checkout, more, "-q", "-p", "benchmarks.mutation_plugin", *covered)
    return {"seconds": json.loads(seconds.read_text(encoding="utf-8")), "lines": _lines(checkout, data)}


def files_in(checkout: Path) -> list[str]:
    """The files of tests, those that are there."""
    files = (f"tests/test_{name}.py" for name in FILES)
    return [name for name in files if (checkout / name).exists()]


def _pytest(checkout: Path, more: Mapping[str, str], *options: str) -> None:
    """Run the tests of `FILES` with these options; what is said goes to standard error. One that fails is left out."""
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, *files_in(checkout)]
    environment = {**os.environ, "PYTHONPATH": str(checkout), **more}
    subprocess.run(command, cwd=checkout, env=environment, stdout=sys.stderr, check=False)


def _lines(checkout: Path, data: Path) -> dict[str, dict[int, list[str]]]:
    found: dict[str, dict[int, list[str]]] = {}
    inside = {path: _in_functions(path) for path in sorted((checkout / "raxol_otel" / "journal").glob("*.py"))}
    for kept in sorted(data.iterdir()):
        read = CoverageData(str(kept))
        read.read()
        for module, functions in inside.items():
            numbers = found.setdefault(module.name, {})
            for number, contexts in read.contexts_by_lineno(str(module)).items():
                # Without a name: what a module of tests does at its import.
                names = {_PHASE.sub("", context) for context in contexts} - {""}
                if number in functions and names:
                    numbers[number] = sorted({*numbers.get(number, ()), *names})
    return found


def _in_functions(path: Path) -> set[int]:
    """The lines of a module's functions, which do not run at its import."""
    nodes = ast.walk(ast.parse(path.read_bytes()))
    functions = (node for node in nodes if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))
    return {number for node in functions for number in range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1)}
