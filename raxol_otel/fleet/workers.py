"""The first look's processes: sessions are handed out in small parts, the largest first, so that all end together."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import orjson

from raxol_otel.fleet.entry import Entry
from raxol_otel.fleet.followed import KNOWN_PAST
from raxol_otel.journal.layout import JOURNAL

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

__all__ = ["JOBS_MAX", "Answer", "read_sessions", "size_of"]

JOBS_MAX: Final = 64
# A part handed out has about so many bytes of journal, or so many sessions.
_PART_BYTES: Final = 8 * 2**20
_PART_SESSIONS: Final = 64
_STOP_SECONDS: Final = 1.0


class Answer(NamedTuple):
    """A session, what `Entry.saved` gave of it, and where following it stands."""

    where: str
    facts: bytes
    saved: bytes

    @classmethod
    def refused(cls, where: str, reason: str, now: float) -> Self:
        """Of a session that could not be read."""
        entry = Entry(where)
        entry.refuse(reason, now)
        return cls(where, entry.saved(), KNOWN_PAST)


def read_sessions(
    root: Path,
    sizes: Mapping[str, int],
    jobs: int,
    stop: threading.Event,
    now: float,
    *,
    beat: Callable[[], object] = lambda: None,
) -> Iterator[Answer]:
    """What `jobs` processes read of the sessions, as it comes; ends early when `stop` is set.

    `sizes` has their size in bytes; `beat` is called while one is waited for. A process that dies over a session costs
    that session alone: it is unreadable.
    """
    tasks: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    for part in _parts(sizes):
        tasks.put(part)
    answers: queue.SimpleQueue[Answer | None] = queue.SimpleQueue()
    count = max(1, min(jobs, JOBS_MAX, len(sizes)))
    feeders = [_Feeder(root, tasks, answers, now) for _ in range(count)]
    for feeder in feeders:
        feeder.start()
    running = count
    unread = dict.fromkeys(sizes)
    try:
        while running and not stop.is_set():
            beat()
            with contextlib.suppress(queue.Empty):
                answer = answers.get(timeout=0.2)
                if answer is None:
                    running -= 1
                else:
                    unread.pop(answer.where, None)
                    yield answer
        for where in unread if not stop.is_set() else ():
            yield Answer.refused(where, "no process could be started to read it", now)
    finally:
        for feeder in feeders:
            feeder.end()


def size_of(directory: Path) -> int:
    """About how many bytes a journal has; what cannot be looked at has none."""
    size = 0
    with contextlib.suppress(OSError), os.scandir(f"{directory}/{JOURNAL}") as entries:
        for entry in entries:
            size += entry.stat().st_size
    return size


def _parts(sizes: Mapping[str, int]) -> Iterator[list[str]]:
    part: list[str] = []
    size = 0
    for where in sorted(sizes, key=lambda name: (-sizes[name], name)):
        part.append(where)
        size += sizes[where]
        if size >= _PART_BYTES or len(part) >= _PART_SESSIONS:
            yield part
            part, size = [], 0
    if part:
        yield part


class _Feeder(threading.Thread):
    """Hands parts to one process and takes its answers; a process that dies is replaced."""

    def __init__(
        self,
        root: Path,
        tasks: queue.SimpleQueue[list[str]],
        answers: queue.SimpleQueue[Answer | None],
        now: float,
    ) -> None:
        super().__init__(name="raxol-otel-first-look", daemon=True)
        self._root = root
        self._tasks = tasks
        self._answers = answers
        self._now = now
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_over = False

    def run(self) -> None:
        """Until no part is left."""
        try:
            while not self._is_over:
                try:
                    part = self._tasks.get_nowait()
                except queue.Empty:
                    break
                while part and not self._is_over:
                    part = self._ask(part)
        finally:
            self.end()
            self._answers.put(None)

    def _ask(self, part: list[str]) -> list[str]:
        """Have a part read; what is still to be read when the process died over one of them."""
        answered = 0
        try:
            process = self._running()
            if process is not None and process.stdin is not None and process.stdout is not None:
                process.stdin.write(orjson.dumps([os.fsencode(where).hex() for where in part]) + b"\n")
                process.stdin.flush()
                for where in part:
                    line = process.stdout.readline()
                    if not line.endswith(b"\n"):
                        break
                    facts_size, saved_size = map(int, line.split())
                    facts, saved = process.stdout.read(facts_size), process.stdout.read(saved_size)
                    if len(saved) != saved_size:
                        break
                    self._answers.put(Answer(where, facts, saved))
                    answered += 1
        except (OSError, ValueError):
            pass  # it died: told below
        if answered == len(part) or self._is_over:
            return []
        with self._lock:
            self._kill()
        self._answers.put(Answer.refused(part[answered], "the process that read it died", self._now))
        return part[answered + 1 :]

    def _running(self) -> subprocess.Popen[bytes] | None:
        with self._lock:
            if self._process is None and not self._is_over:
                blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
                try:
                    self._process = subprocess.Popen(
                        [sys.executable, "-m", "raxol_otel.fleet.worker"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
                    )
                finally:
                    signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
                if self._process.stdin is not None:
                    self._process.stdin.write(orjson.dumps({"root": os.fsencode(self._root).hex()}) + b"\n")
            return self._process

    def end(self) -> None:
        """Stop the process, whatever it does."""
        with self._lock:
            self._is_over = True
            self._kill()

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        # One that waits for a disk ends when that answers.
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
