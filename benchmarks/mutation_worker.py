"""Tries mutants in its own copy of the checkout: jobs come on standard input, verdicts go to standard output, as JSON.

It is one run of pytest that has collected everything and then waits. For each job it writes the module's new text, so
that started commands see the mutant, and forks; the child gives the functions that changed their new code and runs the
tests, and nothing outlives it. Where the change is outside of functions, a new pytest is started instead.

Started by `benchmarks.mutation`, in the copy; the arguments are the files of tests.
"""

from __future__ import annotations

import gc
import json
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any, Final, NoReturn

import pytest
from hypothesis import Phase, settings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_MEMORY_MAX: Final = 4 << 30
_FILE_MAX: Final = 1 << 29
# Where tests/conftest.py reads how hard hypothesis tries.
_PROFILE: Final = "HYPOTHESIS_PROFILE"
# A change outside of functions is tried by so many tests: each of them costs a new import of everything.
_IMPORTED_TESTS_MAX: Final = 1_000


class Jobs:
    """The plugin that takes the place of pytest's loop over the tests."""

    def __init__(self, answers: int) -> None:
        self._answers: Final = answers
        self._items: dict[str, pytest.Item] = {}
        self._functions: list[FunctionType] = []
        self._failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Remember the first test that failed."""
        if report.failed and not self._failed:
            self._failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Take jobs until there are no more."""
        self._items = {item.nodeid: item for item in session.items}
        self._functions = [one for one in gc.get_objects() if type(one) is FunctionType]
        gc.freeze()
        for line in sys.stdin:
            answer = self._tried(json.loads(line))
            os.write(self._answers, json.dumps(answer).encode() + b"\n")
        return True

    def _tried(self, job: dict[str, Any]) -> dict[str, Any]:
        path = Path(job["path"]).resolve()
        tests: list[str] = [name for name in job["tests"] if name in self._items]
        original = path.read_text(encoding="utf-8")
        code: str = job["code"] or original
        try:
            if code != original:
                _write(path, code)
            if _shell(compile(code, str(path), "exec")) == _shell(compile(original, str(path), "exec")):
                return _verdict(lambda: self._run(path, code, tests), job["seconds"])
            return _verdict(lambda: _imported(tests[:_IMPORTED_TESTS_MAX]), job["seconds"])
        finally:
            if code != original:
                _write(path, original)
            for left in Path(tempfile.gettempdir()).iterdir():
                shutil.rmtree(left, ignore_errors=True) if left.is_dir() else left.unlink()

    def _run(self, path: Path, code: str, tests: Sequence[str]) -> str:
        """Run tests, with the functions of a module as they are in its new text; the first that fails."""
        changed = {(one.co_qualname, one.co_firstlineno): one for one in _functions(compile(code, str(path), "exec"))}
        for function in self._functions:
            here = function.__code__
            if here.co_filename == str(path) and (here.co_qualname, here.co_firstlineno) in changed:
                function.__code__ = changed[here.co_qualname, here.co_firstlineno]
        items = [self._items[name] for name in tests]
        for item, following in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            if self._failed:
                return self._failed
        return ""


def _functions(code: CodeType) -> Iterator[CodeType]:
    """The functions and methods of a module or a class; not those within them, which come along."""
    for part in code.co_consts:
        if isinstance(part, CodeType):
            if part.co_flags & 0x02:  # CO_NEWLOCALS: no class
                yield part
            else:
                yield from _functions(part)


def _shell(code: CodeType) -> object:
    """What runs at a module's import: all but what its functions do."""
    parts: list[object] = [
        (None if part.co_flags & 0x02 else _shell(part)) if isinstance(part, CodeType) else (type(part), part)
        for part in code.co_consts
    ]
    return code.co_code, code.co_names, repr(parts)


def _imported(tests: Sequence[str]) -> str:
    """Run tests in a new pytest, with the module's text as it is on the disk; "import" where one fails."""
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests]
    environment = {name: value for name, value in os.environ.items() if name != _PROFILE}
    return "import" if subprocess.run(command, env=environment, check=False).returncode else ""


def _child(work: Callable[[], str], seconds: float, send: int) -> NoReturn:
    """Do the work, within bounds, and say how it ended. Nothing is shown."""
    try:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_MAX, _MEMORY_MAX))
        resource.setrlimit(resource.RLIMIT_FSIZE, (_FILE_MAX, _FILE_MAX))
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds), int(seconds) + 5))
        null = os.open(os.devnull, os.O_RDWR)
        for number in range(3):
            os.dup2(null, number)
        by = work()
        os.write(send, json.dumps({"verdict": "killed" if by else "survived", "by": by}).encode())
    finally:
        os._exit(0)


def _verdict(work: Callable[[], str], seconds: float) -> dict[str, Any]:
    """How a child ended: survived, killed by whom, or timeout."""
    receive, send = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if not child:
        os.close(receive)
        _child(work, seconds, send)
    os.close(send)
    ready, _, _ = select.select([receive], [], [], seconds)
    text = os.read(receive, 1 << 16) if ready else b""
    os.close(receive)
    for kill in (os.killpg, os.kill):
        with suppress(ProcessLookupError):
            kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    took = round(time.monotonic() - started, 2)
    if not ready or (os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU):
        return {"verdict": "timeout", "by": "", "seconds": took}
    answer: dict[str, Any] = json.loads(text) if text else {"verdict": "killed", "by": "the process ended"}
    return {**answer, "seconds": took}


def _write(path: Path, code: str) -> None:
    """Put a module's text in place; no compiled one may stand for it, were it of the same size and second."""
    path.write_text(code, encoding="utf-8")
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*"):
        compiled.unlink()


def main(files: Sequence[str]) -> None:
    """Collect the tests of the files, and take jobs."""
    phases = [Phase.explicit, Phase.generate]  # what a failure shrinks to is not asked
    settings.register_profile(
        "mutation", derandomize=True, deadline=None, max_examples=30, database=None, phases=phases
    )
    os.environ.update({_PROFILE: "mutation", "PYTHONDONTWRITEBYTECODE": "1"})
    sys.dont_write_bytecode = True
    answers = os.dup(1)
    os.dup2(2, 1)
    # What is imported already is not rewritten: that is meant.
    options = ["-q", "-s", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
    pytest.main([*options, f"--basetemp={tempfile.gettempdir()}/pytest", *files], plugins=[Jobs(answers)])


if __name__ == "__main__":
    main(sys.argv[1:])
