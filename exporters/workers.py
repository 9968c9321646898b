"""Sessions replayed by several processes, one state: `--jobs N`.

Each worker is a process of its own with its own connection; sessions are handed to them one by one over pipes as JSON
lines, the largest first. What is delivered is remembered by each worker as it goes, so stopping them at any time
leaves the state right.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.errors import ExportError, RaxolError, UsageError
from raxol_otel.exporters.limits import Limits
from raxol_otel.exporters.otlp import OtlpExporter, RetryPolicy
from raxol_otel.exporters.otlp_config import OtlpConfig
from raxol_otel.exporters.replay import ReplayOptions, ReplayReport, SessionReport, replay_found
from raxol_otel.exporters.resource import replay_proto_envelope
from raxol_otel.exporters.sources import Found
from raxol_otel.exporters.state import DeliveryState
from raxol_otel.journal.damage import Damage
from raxol_otel.journal.health import measure
from raxol_otel.turns import Counts, FoldConfig

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Iterator

__all__ = ["JOBS_MAX", "main", "replay_with_workers"]

JOBS_MAX: Final = 64
_STOP_SECONDS: Final = 1.0


def replay_with_workers(
    found: Found,
    options: ReplayOptions,
    config: OtlpConfig,
    *,
    jobs: int,
    policy: RetryPolicy,
    state_path: str | None = None,
    progress: Callable[[int], None] | None = None,
) -> ReplayReport:
    """Replay the sessions over OTLP by `jobs` processes. Raises the first `ExportError` or `UsageError` of any."""
    report = ReplayReport()
    for path, reason in found.unreadable:
        report.sessions.append(SessionReport(str(path), "unreadable", error=f"cannot read {path}: {reason}"))
    sizes = {session: measure(session)[1] for session in found.sessions}
    tasks: queue.SimpleQueue[Path] = queue.SimpleQueue()
    for session in sorted(found.sessions, key=lambda session: -sizes[session]):
        tasks.put(session)
    setup = {
        "config": asdict(options.config),
        "limits": asdict(options.limits),
        "since": options.since,
        "until": options.until,
        "turn": options.turn,
        "settle_seconds": options.settle_seconds,
        "otlp": {**asdict(config), "headers": dict(config.headers)},
        "policy": asdict(policy),
        "state": state_path,
    }
    answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
    with _workers(min(jobs, max(len(found.sessions), 1)), setup) as processes:
        for process in processes:
            threading.Thread(target=_feed, args=(process, tasks, found, answers), daemon=True).start()
        running = len(processes)
        while running:
            answer = answers.get()
            if answer.get("ended"):
                running -= 1
            else:
                _add(report, answer)
                if progress is not None:
                    progress(sizes[Path(answer["directory"])])
    report.sessions.sort(key=lambda session: session.name)
    return report


@contextlib.contextmanager
def _workers(count: int, setup: dict[str, Any]) -> Generator[list[subprocess.Popen[str]]]:
    """The processes; whatever happens, none of them outlives this."""
    processes: list[subprocess.Popen[str]] = []
    # An interrupt of the terminal's is the parent's to handle: workers are born with it blocked.
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    try:
        for _ in range(count):
            process = subprocess.Popen(
                [sys.executable, "-m", "raxol_otel.exporters.workers"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                encoding="utf-8",
                errors="surrogateescape",
            )
            processes.append(process)
            _write(process, setup)
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        yield processes
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        for process in processes:
            process.terminate()
        deadline = time.monotonic() + _STOP_SECONDS
        for process in processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(max(deadline - time.monotonic(), 0.0))
            process.kill()
            process.wait()
            for stream in (process.stdin, process.stdout):
                if stream is not None:
                    with contextlib.suppress(OSError):
                        stream.close()


def _write(process: subprocess.Popen[str], message: dict[str, Any]) -> None:
    assert process.stdin is not None  # noqa: S101 - it was made with a pipe
    with contextlib.suppress(BrokenPipeError):
        process.stdin.write(json.dumps(message) + "\n")
        process.stdin.flush()


def _feed(
    process: subprocess.Popen[str],
    tasks: queue.SimpleQueue[Path],
    found: Found,
    answers: queue.SimpleQueue[dict[str, Any]],
) -> None:
    """Hand sessions to one worker until there are none, and pass its answers on."""
    assert process.stdout is not None  # noqa: S101 - it was made with a pipe
    try:
        while True:
            directory = tasks.get_nowait()
            _write(process, {"directory": str(directory), "shown": found.shown.get(directory)})
            line = process.stdout.readline()
            if not line:
                answers.put({"failed": f"a worker ended with code {process.wait()} while it replayed {directory}"})
                return
            answers.put({**json.loads(line), "directory": str(directory)})
    except queue.Empty:
        answers.put({"ended": True})
    except (ValueError, OSError) as error:
        answers.put({"failed": f"a worker's answer cannot be read: {error}"})


def _add(report: ReplayReport, answer: dict[str, Any]) -> None:
    if "failed" in answer:
        kind = UsageError if answer.get("usage") else ExportError
        raise kind(answer["failed"], answer.get("hint"))
    session = dict(answer["session"])
    damage: dict[str, Any] | None = session["damage"]
    if damage is not None:
        damage["segment"] = Path(damage["segment"])
        session["damage"] = Damage(**damage)
    if session["counts"] is not None:
        session["counts"] = Counts(**session["counts"])
    report.sessions.append(SessionReport(**session))
    report.accepted += answer["accepted"]
    report.rejected += answer["rejected"]
    for message, count in answer["words"].items():
        report.say(message, count)


# -- the worker's side


def main() -> int:
    """Be a worker: a setup line, then a session a line on standard input; an answer a line on standard output."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    # Whatever a library prints must not get between the answers.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    lines = _lines()
    setup = json.loads(next(lines))
    for answer in _answers(setup, lines):
        answers.write(json.dumps(answer) + "\n")
        answers.flush()
    return 0


def _lines() -> Iterator[str]:
    """The lines of standard input. Its end is the parent's end: the worker stops at once, whatever it does."""
    lines: queue.SimpleQueue[str] = queue.SimpleQueue()

    def read() -> None:
        with open(sys.stdin.fileno(), encoding="utf-8", errors="surrogateescape", closefd=False) as source:
            for line in source:
                lines.put(line)
        os._exit(1)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield lines.get()


def _answers(setup: dict[str, Any], lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    config = OtlpConfig(**setup["otlp"])
    with contextlib.ExitStack() as stack:
        try:
            state = None
            if setup["state"] is not None:
                state = stack.enter_context(DeliveryState(setup["state"], config.endpoint))
            exporter = OtlpExporter(
                config, replay_proto_envelope(), policy=RetryPolicy(**setup["policy"]), notice=_notice
            )
            stack.callback(exporter.abort)
            options = ReplayOptions(
                config=FoldConfig(**setup["config"]),
                limits=Limits(**setup["limits"]),
                since=setup["since"],
                until=setup["until"],
                turn=setup["turn"],
                settle_seconds=setup["settle_seconds"],
                state=state,
            )
            for line in lines:
                yield _replayed(json.loads(line), exporter, options)
        except RaxolError as error:
            yield {"failed": str(error), "hint": error.hint, "usage": not isinstance(error, ExportError)}


def _notice(message: str) -> None:
    """One line, whatever a receiver has put into it."""
    sys.stderr.write("".join(letter if letter.isprintable() else " " for letter in message) + "\n")
    sys.stderr.flush()


def _replayed(task: dict[str, Any], exporter: OtlpExporter, options: ReplayOptions) -> dict[str, Any]:
    directory = Path(task["directory"])
    shown = {} if task["shown"] is None else {directory: task["shown"]}
    report = replay_found(Found(sessions=[directory], shown=shown), exporter, options)
    session = asdict(report.sessions[0])
    if session["damage"] is not None:
        session["damage"]["segment"] = str(session["damage"]["segment"])
    return {
        "session": session,
        "accepted": report.accepted,
        "rejected": report.rejected,
        "words": report.words,
    }


if __name__ == "__main__":
    sys.exit(main())
