"""The fleet exporter among writers that are killed, disks that lie and people who move things about.

    python -m tests.fleet_soak --seconds 600 --seed 1 [--poll]

A real `raxol-otel serve` watches a folder that real writers write to. All that is done is noted in the soak's own log,
and after every few steps the exporter has to say what the log comes to (`tests/fleet_soak_log.py`: turns, records,
damage, errors of looking) and what is on the disk (a reading of each session from its beginning: states, damaged
sessions by name and cause, writers, open turns, bytes, segments, HEAD's lag). It is waited for before a state is
destroyed again, so that the recount is exact: what nobody had time to see counts nowhere.

What a journal counts that is no longer what it was: one that lost its end, or was damaged in place, counts nothing
anew, then or when it is mended; its past was counted when it was read first. One that another journal stands in for is
counted from its beginning. See `Followed.catch_up`. What was lost has to be named by HEAD, for that: a killed writer's
HEAD may be behind, and what comes back beyond it is taken for new.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Final
from urllib.error import URLError
from urllib.request import urlopen

from raxol_otel.journal.health import Health, inspect
from tests.alerting import free_address
from tests.exporter_contract import environment
from tests.fleet_processes import bound
from tests.fleet_soak_harm import Session, facts_of, harm, mend, place, segments
from tests.fleet_soak_log import Log, open_turn, recount
from tests.metrics_scrape import families

__all__ = ["Soak", "main"]

SESSIONS_MAX: Final = 40
SETTLE_SECONDS: Final = 60
CAPS: Final = (900, 4_000, 8 * 2**20)
# Longer than what is known may wait to be written to the state.
KEPT_SECONDS: Final = 6.5
COUNTERS: Final = {
    "raxol_turns_total": "outcome",
    "raxol_journal_records_total": "type",
    "raxol_journal_damaged_total": "cause",
    "raxol_exporter_scan_errors_total": "",
}
GAUGES: Final = {
    "raxol_journal_sessions": "state",
    "raxol_journal_sessions_behind_head": "",
    "raxol_journal_session_damaged": "",
    "raxol_journal_writers": "state",
    "raxol_journal_bytes": "",
    "raxol_journal_segments": "",
    "raxol_journal_open_turns": "",
    "raxol_journal_head_lag_records": "",
}

Numbers = Counter[tuple[str, ...]]


class Exporter:
    """A `raxol-otel serve`, started again and again over one state; its counters go on over that."""

    def __init__(self, folder: Path, root: Path, *, poll: bool) -> None:
        self.address = free_address()
        self._folder = folder
        self._command = [
            *(bound() or []),
            sys.executable,
            "-m",
            "raxol_otel",
            "serve",
            "--sessions-dir",
            str(root),
            "--interval",
            "0.2",
        ]
        self._command += ["--state", str(folder / "state" / "fleet.db"), *(["--poll"] if poll else [])]
        self._before: Numbers = Counter()
        self._process: subprocess.Popen[str] | None = None
        (folder / "state").mkdir()

    def start(self) -> None:
        """Start it, and wait until it is ready."""
        with (self._folder / "exporter.txt").open("ab") as said:
            process = self._process = subprocess.Popen(
                [*self._command, "--listen", self.address],
                stderr=said,
                text=True,
                env=environment(measured=False),
            )
        deadline = time.monotonic() + SETTLE_SECONDS
        while True:
            assert process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            try:
                with urlopen(f"http://{self.address}/readyz", timeout=10):
                    return
            except (URLError, ConnectionError):
                time.sleep(0.05)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> None:
        """End it. What it counted is counted, if it was settled."""
        if self._process is None:
            return
        if self._process.poll() is None:
            self._before = self.counters()
        self._process.send_signal(number)
        code = self._process.wait(20)
        self._process = None
        assert code == (0 if number == signal.SIGTERM else -number), (code, self.said())

    def counters(self) -> Numbers:
        """What was counted since the very beginning."""
        return self._before + self.numbers(COUNTERS)

    def numbers(self, wanted: dict[str, str]) -> Numbers:
        """A scrape's samples of these that are not 0."""
        with urlopen(f"http://{self.address}/metrics", timeout=30) as answer:
            text = answer.read().decode()
        found: Numbers = Counter()
        for family in families(text, strict=False):
            for sample in family.samples:
                if sample.name in wanted and sample.value:
                    label = wanted[sample.name]
                    others: tuple[str, ...] = (sample.labels[label],) if label else ()
                    if sample.name == "raxol_journal_session_damaged":
                        others = (sample.labels["session_id"], sample.labels["cause"])
                    found[(sample.name, *others)] += int(sample.value)
        return found

    def said(self) -> str:
        """The last of what it said on standard error."""
        return (self._folder / "exporter.txt").read_text(encoding="utf-8", errors="replace")[-4000:]


class Soak:
    """One run."""

    def __init__(self, folder: Path, seed: int, *, poll: bool) -> None:
        self.dice = random.Random(seed)  # noqa: S311 - no secret
        self.root, self.aside = folder / "sessions", folder / "aside"
        for made in (folder, self.root, self.aside):
            made.mkdir(exist_ok=True)
            made.chmod(0o755)
        self.log = Log(folder / "soak.log")
        self.log("begun", seed=seed, poll=poll)
        self.exporter = Exporter(folder, self.root, poll=poll)
        self.sessions: dict[str, Session] = {}
        self.waiting: list[tuple[subprocess.Popen[str], list[Session]]] = []
        self._number = 0

    def run(self, seconds: float) -> None:
        """Go on for so long; the last state is a settled one."""
        deadline = time.monotonic() + seconds
        self.exporter.start()
        try:
            while time.monotonic() < deadline:
                self.write()
                self.settle()
                self.harm()
                self.settle()
                if self.dice.random() < 0.1:
                    self.restart()
            self.let_go(len(self.waiting))
            self.settle()
        finally:
            for process, _ in self.waiting:
                process.kill()
                process.communicate()
            self.exporter.stop()
            self.log.close()

    # -- writers

    def write(self) -> None:
        """Let some processes write for a while; some close, some are killed, some stay."""
        crews: list[tuple[subprocess.Popen[str], list[Session], str]] = []
        for _ in range(self.dice.randrange(1, 3)):
            crew = self._crew()
            ending = self.dice.choice(("close", "close", "exit", "kill", "wait"))
            for session in crew:
                session.condition = "busy"
            spec = {
                "sessions": {session.name: [session.chained, session.segment_cap] for session in crew},
                "count": 10**9 if ending == "kill" else self.dice.randrange(5, 400),
                "ending": ending,
            }
            self._number += 1
            command = ["-m", "tests.fleet_soak_writer", str(self.root), f"w{self._number}", json.dumps(spec)]
            process = subprocess.Popen(
                [sys.executable, *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env=environment(measured=False),
            )
            crews.append((process, crew, ending))
        for process, crew, ending in crews:
            self._note(crew, self._said(process, ending))
            if ending == "wait":
                self.waiting.append((process, crew))
            else:
                for session in crew:
                    session.condition = "fine"
        if len(self.waiting) > 2:
            self.let_go(1)

    def _crew(self) -> list[Session]:
        fine = [session for session in self.sessions.values() if session.condition == "fine"]
        crew = self.dice.sample(fine, min(len(fine), self.dice.randrange(3)))
        if not crew or len(self.sessions) < SESSIONS_MAX:
            crew.append(self._new())
        return crew

    def _new(self) -> Session:
        self._number += 1
        name = f"s{self._number}"
        session = Session(self.root / name, self.dice.random() < 0.4, self.dice.choice(CAPS))
        self.sessions[name] = session
        return session

    def _said(self, process: subprocess.Popen[str], ending: str) -> dict[str, int]:
        """The last offset of each session whose append returned."""
        assert process.stdout is not None
        lines: list[str] = []
        if ending == "kill":
            lines.append(process.stdout.readline())
            time.sleep(self.dice.random())
            process.kill()
        if ending == "wait":
            while not lines or lines[-1] not in {"waiting\n", ""}:
                lines.append(process.stdout.readline())
        else:
            lines += process.communicate()[0].splitlines(keepends=True)
        assert process.poll() in {None, 0, -signal.SIGKILL}
        whole = [line.split() for line in lines if line.endswith("\n") and " " in line]
        return {name: int(offset) for name, offset in whole}

    def _note(self, crew: list[Session], said: dict[str, int]) -> None:
        """What the writers left behind; that is at least what they said."""
        for session in crew:
            facts = facts_of(session.directory) if session.directory.exists() else []
            assert len(facts) >= said.get(session.name, 0), session.name
            self.log("wrote", session.name, records=facts[session.contents :])
            session.contents = len(facts)
            if not session.directory.exists():
                del self.sessions[session.name]

    def let_go(self, count: int) -> None:
        """Let writers that wait close their journals."""
        for process, crew in self.waiting[:count]:
            process.communicate("")
            for session in crew:
                session.condition = "fine"
        del self.waiting[:count]

    # -- harm

    def harm(self) -> None:
        """Do things to a few sessions."""
        new = [self._new() for _ in range(self.dice.randrange(2)) if len(self.sessions) < SESSIONS_MAX]
        for session in new:
            place(session, self.log, self.dice, self.aside)
        idle = [one for one in self.sessions.values() if one.condition != "busy" and one not in new]
        for session in self.dice.sample(idle, min(len(idle), 4)):
            if session.condition != "fine":
                mend(session, self.log, self.dice, self.aside)
            elif any(path.read_bytes().count(b"\n") > 3 for path in segments(session.directory)):
                harm(session, self.log, self.dice, self.aside, may_refuse=bound() is not None)
            if not session.directory.exists():
                del self.sessions[session.name]

    def restart(self) -> None:
        """End the exporter, and start it again; meanwhile there may be writing."""
        if self.dice.random() < 0.3:
            time.sleep(KEPT_SECONDS)
            self.exporter.stop(signal.SIGKILL)
        else:
            self.exporter.stop()
        self.log("restart")
        if self.dice.random() < 0.5:
            self.write()
        self.exporter.start()
        self.settle()

    # -- the reckoning

    def settle(self) -> None:
        """Wait until the exporter says what the log and the disk come to."""
        counts, gauges = self._counts(), self._gauges()
        deadline, agreed = time.monotonic() + SETTLE_SECONDS, 0
        while agreed < 2:
            time.sleep(0.25)
            found = self.exporter.counters(), self.exporter.numbers(GAUGES)
            agreed = agreed + 1 if found == (counts, gauges) else 0
            if not agreed and time.monotonic() > deadline:
                differs = {
                    key: (said[key], real[key])
                    for said, real in zip(found, (counts, gauges), strict=True)
                    for key in said.keys() | real.keys()
                    if said[key] != real[key]
                }
                message = f"the exporter says, and it is: {differs}\n{self.exporter.said()}"
                raise AssertionError(message)

    def _counts(self) -> Numbers:
        counts = recount(self.log.entries)
        found: Numbers = Counter({("raxol_exporter_scan_errors_total",): counts.refused} if counts.refused else {})
        for name, counted in zip(COUNTERS, (counts.turns, counts.records, counts.damaged), strict=False):
            found.update({(name, key): count for key, count in counted.items()})
        return found

    def _gauges(self) -> Numbers:
        found: Numbers = Counter()
        for session in self.sessions.values():
            health = inspect(session.directory)
            found[("raxol_journal_bytes",)] += health.size_bytes
            found[("raxol_journal_segments",)] += health.segments
            writer = "unknown" if session.refused == session.directory else health.writer.state
            if session.condition == "refused":
                found["raxol_journal_sessions", "unreadable"] += 1
            else:
                writer = health.writer.state
                _health(found, session, health)
            if writer != "none":
                found["raxol_journal_writers", writer] += 1
            if writer == "live":
                lag = health.last_offset - (health.head_offset or 0)
                found[("raxol_journal_head_lag_records",)] = max(found[("raxol_journal_head_lag_records",)], lag)
                found[("raxol_journal_open_turns",)] += open_turn(facts_of(session.directory)) is not None
        return +found


def _health(found: Numbers, session: Session, health: Health) -> None:
    state = health.state
    if state == "truncated":
        found[("raxol_journal_sessions_behind_head",)] += 1
        texts = [data for path in segments(session.directory) if (data := path.read_bytes())]
        state = "healthy" if not texts or texts[-1].endswith(b"\n") else "torn"
    found["raxol_journal_sessions", state] += 1
    if health.damage is not None:
        found["raxol_journal_session_damaged", session.name, health.damage.cause] = 1


def soak(folder: Path, seed: int, seconds: float, *, poll: bool) -> dict[str, int]:
    """Run one; how often each thing was done."""
    run = Soak(folder, seed, poll=poll)
    run.run(seconds)
    return dict(Counter(entry.get("kind", entry["op"]) for entry in run.log.entries))


def main() -> None:
    """Run it as the command line says."""
    parser = argparse.ArgumentParser(description="a soak of `raxol-otel serve`")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--poll", action="store_true")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    # The damage that is made is found here, too, and told by the exporter enough.
    logging.getLogger("raxol_otel.journal").setLevel(logging.CRITICAL)
    sys.stdout.write(f"{json.dumps(soak(folder, options.seed, options.seconds, poll=options.poll))}\n")
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
