"""Agents of the generated world: `python -m tests.world_agent FOLDER NAME` keeps journals in FOLDER, all instrumented.

It writes a line of JSON, the port of its /metrics, and ends with its standard input. NAME is `shop`, whose turns are
had in real time, or `batch`, for which much goes wrong: a disk that fills up, a disk that does not sync, crashes, a
handler that raises, journals that somebody has damaged. When that is follows a clock that `--stretch` slows down;
`--pace` makes everything that turns do take longer.
"""

from __future__ import annotations

import argparse
import json
import sys
import threading
import time
from contextlib import suppress
from itertools import count, cycle
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk.trace import TracerProvider
from prometheus_client import CollectorRegistry, start_http_server

from raxol_otel import signals
from raxol_otel.errors import WriteFailed
from raxol_otel.journal import checkpoint, open_journal, scan
from raxol_otel.live import JournalInstrumentor
from raxol_otel.testing import FaultJournal
from tests.world_sessions import DAMAGES, damaged_session, tear
from tests.world_turns import Conversation, event, observe

if TYPE_CHECKING:
    from collections.abc import Callable

# When it is, in seconds of the world: a provider refuses, a disk is full, a disk does not sync.
OUTAGE: Final = (30, 62)
DISK_FULL: Final = (10, 50)
NO_SYNC: Final = (6, 100)
# Seconds of the world from one damaged journal to the next.
DAMAGE_SECONDS: Final = 9
TURNS_A_SESSION: Final = 12
# A record of no turn.
NOTE: Final = {"kind": "event", "family": "loop", "tier": "durable", "type": "idle"}
# More than HEAD may be behind.
UNSYNCED_RECORDS: Final = 150


class OverError(Exception):
    """The world has ended."""


class Agent:
    """A process that has conversations, each in a thread of its own."""

    def __init__(self, sessions: Path, name: str, *, seed: int, stretch: float, pace: float) -> None:
        self._sessions = sessions
        self._name = name
        self._seed = seed
        self._stretch = stretch
        self._pace = pace
        self._began = time.monotonic()
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []

    def start(self) -> None:
        """Begin with everything."""
        talks = [f"talk-{number}" for number in range(1, 6)] if self._name == "shop" else ["talk-1", "talk-2"]
        for talk in talks:
            self._begin(talk, self._talk)
        if self._name == "batch":
            self._begin("preview", self._preview)
            self._begin("review", self._review)
            self._begin("notes", self._note)
            self._begin("crash", self._crash)
            self._begin("import", self._import)
            self._begin("archive", self._archive)
            self._begin("found", self._find_damage)

    def stop(self) -> None:
        """End everything."""
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _begin(self, part: str, what: Callable[[str, Random], None]) -> None:
        random = Random(f"{self._seed} {self._name} {part}")  # noqa: S311 - the same again for the same seed

        def run() -> None:
            with suppress(OverError):
                what(f"{self._name}-{part}", random)

        thread = threading.Thread(target=run, name=part)
        self._threads.append(thread)
        thread.start()

    def _pause(self, seconds: float) -> None:
        if self._stop.wait(seconds):
            raise OverError

    def _work(self, seconds: float) -> None:
        self._pause(seconds * self._pace)

    def _is(self, when: tuple[float, float]) -> bool:
        """Whether this time has come, and has not passed."""
        first, last = when
        return first <= (time.monotonic() - self._began) / self._stretch < last

    # -- what goes well, mostly

    def _talk(self, name: str, random: Random) -> None:
        for part in count(1):
            with open_journal(f"{name}-{part}", base_dir=self._sessions, segment_cap=64 * 1024) as journal:
                conversation = Conversation(journal, random, self._work, lambda: self._is(OUTAGE))
                for number in range(1, TURNS_A_SESSION + 1):
                    conversation.have(number)
                    self._work(random.uniform(0.1, 0.8))

    def _preview(self, name: str, random: Random) -> None:
        with open_journal(name, base_dir=self._sessions) as journal:
            conversation = Conversation(journal, random, self._work, lambda: self._is(OUTAGE))
            for number in count(1):
                conversation.deploy(number)
                self._work(random.uniform(0.3, 0.9))

    def _review(self, name: str, random: Random) -> None:
        with open_journal(name, base_dir=self._sessions) as journal:
            for number in count(1):
                observe(journal, random, self._work, number)
                self._work(random.uniform(1, 3))

    # -- what does not

    def _note(self, name: str, random: Random) -> None:
        """Checkpoints without a backend."""
        with open_journal(name, base_dir=self._sessions) as journal:
            journal.append(
                event("turn-1", "item_completed", item_type="message", item_id="i", role="user", content="-")
            )
            for number in count(1):
                checkpoint.write(journal, {"todo": [number]})
                checkpoint.restore(journal)
                self._pause(random.uniform(2, 5))

    def _crash(self, name: str, random: Random) -> None:
        """A writer dies in the middle of a line, and the next one cuts it off."""
        while True:
            with open_journal(name, base_dir=self._sessions) as journal:
                journal.append(NOTE)
                session = journal.path
            tear(session)
            self._pause(random.uniform(3, 6))

    def _import(self, name: str, random: Random) -> None:
        """A disk that is full for a while: what cannot be written is refused, and tried again."""
        with FaultJournal(self._sessions, name, segment_cap=4_096) as journal:
            for number in count(1):
                if self._is(DISK_FULL):
                    site: Any = random.choice(("append_fail", "short_write", "rotate_fail"))
                    journal.arm(site)
                else:
                    journal.disarm()
                with suppress(WriteFailed):
                    journal.append({**NOTE, "payload": {"text": "x" * 300, "number": number}})
                self._pause(random.uniform(0.5, 1.5))

    def _archive(self, name: str, random: Random) -> None:
        """A disk that takes everything and makes nothing durable, for a while: HEAD stays behind."""
        with FaultJournal(self._sessions, name) as journal:
            while True:
                if self._is(NO_SYNC) and not journal.fired("sync_fail"):
                    journal.arm("sync_fail", times="for good")
                    journal.append_many([NOTE] * UNSYNCED_RECORDS, sync=False)
                elif not self._is(NO_SYNC):
                    journal.disarm()
                journal.append(NOTE, sync=False)
                self._pause(random.uniform(0.5, 1.5))

    def _find_damage(self, name: str, random: Random) -> None:
        """Journals of this agent that somebody has damaged, and that it reads again."""
        for number, cause in enumerate(cycle(DAMAGES), 1):
            scan(damaged_session(self._sessions, f"{name}-{number}", cause, random))
            self._pause(DAMAGE_SECONDS * self._stretch)


def _broken(_signal: signals.Signal) -> None:
    """A handler of signals with a fault in it."""
    raise RuntimeError("the pager is not configured")


def main() -> None:
    """Work until standard input ends."""
    parser = argparse.ArgumentParser(prog="python -m tests.world_agent", description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("name", choices=("shop", "batch"))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stretch", type=float, default=1.0)
    parser.add_argument("--pace", type=float, default=1.0)
    options = parser.parse_args()
    registry = CollectorRegistry()
    instrumentor = JournalInstrumentor()
    instrumentor.instrument(tracer_provider=TracerProvider(), registry=registry, agent_name=options.name)
    if options.name == "batch":
        signals.attach("pager", _broken)
    server, thread = start_http_server(0, "127.0.0.1", registry)
    agent = Agent(options.folder, options.name, seed=options.seed, stretch=options.stretch, pace=options.pace)
    agent.start()
    sys.stdout.write(json.dumps({"port": server.server_port}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()
    agent.stop()
    server.shutdown()
    server.server_close()
    thread.join()
    instrumentor.uninstrument()


if __name__ == "__main__":
    main()
