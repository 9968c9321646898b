"""A generated world of real parts, for dashboards and alerts: `python -m tests.world --minutes 12` runs one to look at.

Sessions in every state, two instrumented agents that go on having turns, a fleet exporter of all of them that sends
traces to one backend that works and to one that is down. What goes wrong, and when, is in `tests.world_agent` and in
`World`; the content is drawn from a seed.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final

from raxol_otel.testing import ForeignWriter
from tests.alerting import alerting, fleet_exporter, free_address
from tests.conftest import ROOT
from tests.exporter_contract import environment
from tests.otlp_receiver import Partial, Receiver
from tests.test_prometheus import program
from tests.world_sessions import DAMAGES, KNOWN, damaged_session, old_sessions, write_session
from tests.world_turns import event

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.otlp_receiver import Request

__all__ = ["AGENTS", "CLUSTER", "FLEET", "UNREADABLE", "World", "world"]

# Jobs of Prometheus, and the label of all targets.
FLEET: Final = "raxol-fleet"
AGENTS: Final = "raxol-agents"
CLUSTER: Final = "eu"
SHIPPED: Final = ROOT / "dashboards" / "prometheus"
# In seconds of the world: when a session cannot be read.
UNREADABLE: Final = ((15, 50), (60, 95))
UNREADABLE_NAME: Final = "old-unreadable"
# What the backend that works refuses for good, of each so many requests one.
REFUSES: Final = 5
HOUR: Final = 3_600


class World:
    """Its parts: the addresses of the fleet exporter and of agents, the backend that works, the one that does not."""

    def __init__(self, sessions: Path, *, seed: int, stretch: float, pace: float) -> None:
        self.sessions = sessions
        self.exporter = ""
        self.agents: dict[str, str] = {}
        self.backend = Receiver(script=_refuse_some, others=True)
        self.dead_endpoint = f"http://{free_address()}/v1/traces"
        self._stop_exporter: Callable[[], None] = lambda: None
        self._seed = seed
        self._stretch = stretch
        self._pace = pace
        self._began = time.monotonic()
        self._over = threading.Event()

    @property
    def targets(self) -> dict[str, list[str]]:
        """What Prometheus is to scrape, by job."""
        return {FLEET: [self.exporter], AGENTS: list(self.agents.values())}

    @property
    def names(self) -> dict[str, str]:
        """What to call the targets where they are read by people."""
        agents = {address: f"{name}:8000" for name, address in self.agents.items()}
        return {self.exporter: "fleet-1:9464", **agents}

    def stop_exporter(self) -> None:
        """End the fleet exporter, before everything else."""
        self._stop_exporter()

    def start(self, stack: ExitStack, folder: Path) -> None:
        """Begin with everything; `stack` ends it."""
        random = Random(self._seed)  # noqa: S311 - the same again for the same seed
        old_sessions(self.sessions, random)
        acknowledged = folder / "acknowledged"
        acknowledged.write_text(f"{KNOWN}\n", encoding="utf-8")
        stack.enter_context(self.backend)
        options = ("--otlp-endpoint", self.backend.http_endpoint, "--otlp-endpoint", self.dead_endpoint)
        exporter = stack.enter_context(ExitStack())
        self.exporter = exporter.enter_context(fleet_exporter(folder, self.sessions, acknowledged, *options))
        self._stop_exporter = exporter.close
        self._hold_open(stack)
        for name in ("shop", "batch"):
            self.agents[name] = self._agent(stack, folder, name)
        mishaps = threading.Thread(target=self._mishaps, args=(random,), name="mishaps")
        mishaps.start()
        stack.callback(mishaps.join)
        stack.callback(self._over.set)

    def _hold_open(self, stack: ExitStack) -> None:
        """A turn that never ends, one that waits for an approval, and a writer that is killed in the middle of one."""
        stuck, waiting, killed = (
            stack.enter_context(ForeignWriter(self.sessions, name)) for name in ("stuck", "waiting", "killed")
        )
        now = time.time()
        stuck.append(event("turn-1", "turn_started", at=now - 2 * HOUR, prompt="the nightly report"))
        waiting.append(event("turn-1", "turn_started", at=now - HOUR, prompt="release it"))
        waiting.append(event("turn-1", "approval_requested", at=now - HOUR + 60, request_id="ask", risk="high"))
        killed.append(event("turn-1", "turn_started", prompt="import the customers"))
        killed.kill()

    def _agent(self, stack: ExitStack, folder: Path, name: str) -> str:
        """The address of an agent's /metrics."""
        command = [sys.executable, "-m", "tests.world_agent", str(self.sessions), name]
        command += ["--seed", str(self._seed), "--stretch", str(self._stretch), "--pace", str(self._pace)]
        process = stack.enter_context(
            program(*command, folder=folder, cwd=ROOT, env=environment(), stdin=subprocess.PIPE)
        )
        assert process.stdout
        assert process.stdin
        stack.callback(process.wait, 20)
        stack.callback(process.stdin.close)
        said = process.stdout.readline()
        assert said, (folder / "stderr.txt").read_text(encoding="utf-8")[-2000:]
        return f"127.0.0.1:{json.loads(said)['port']}"

    def _mishaps(self, random: Random) -> None:
        """What happens to sessions that no agent has open, by the world's clock."""
        damaged_session(self.sessions, "found-1", next(iter(DAMAGES)), random)
        session = write_session(self.sessions, UNREADABLE_NAME, random)
        segment, aside = session / "journal" / "000001.jsonl", session / "aside"
        for first, last in UNREADABLE:
            if self._waits_until(first):
                return
            # Not even root can read a folder as a file.
            segment.rename(aside)
            segment.mkdir()
            if self._waits_until(last):
                return
            segment.rmdir()
            aside.rename(segment)

    def _waits_until(self, second: float) -> bool:
        """Wait until it is so late in the world; true when the world ends before."""
        return self._over.wait(max(0.0, self._began + second * self._stretch - time.monotonic()))


def _refuse_some(request: Request) -> Partial | None:
    is_of_traces = request.path.endswith("/traces")
    return Partial(1, "too old") if is_of_traces and request.number % REFUSES == REFUSES - 1 else None


@contextmanager
def world(folder: Path, *, seed: int = 1, stretch: float = 1.0, pace: float = 1.0) -> Generator[World]:
    """A world at work, below this folder.

    `stretch` slows its clock down, by which things go wrong: a second of it takes so many. `pace` is how many times as
    long turns take.
    """
    sessions = folder / "sessions"
    sessions.mkdir()
    with ExitStack() as stack:
        made = World(sessions, seed=seed, stretch=stretch, pace=pace)
        made.start(stack, folder)
        yield made


def main() -> None:
    """Run a world with a Prometheus for some minutes; the addresses are told as a line of JSON."""
    parser = argparse.ArgumentParser(prog="python -m tests.world", description=__doc__)
    parser.add_argument("--minutes", type=float, default=12, help="how long (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--stretch", type=float, default=5, help="how many seconds a second of the world takes")
    parser.add_argument("--pace", type=float, default=3, help="how many times as long turns take")
    parser.add_argument("--folder", type=Path, help="where, in a new folder, and stays (default: a temporary one)")
    options = parser.parse_args()
    # Whichever comes, everything is stopped in good order.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with suppress(KeyboardInterrupt), ExitStack() as stack:
        folder: Path = options.folder or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="raxol-otel-world-"))
        )
        folder.mkdir(exist_ok=options.folder is None)
        rules = sorted(SHIPPED.glob("*.yaml"))
        with (
            world(folder, seed=options.seed, stretch=options.stretch, pace=options.pace) as made,
            alerting(folder, made.targets, rules, {"cluster": CLUSTER}, scrape="2s", names=made.names) as scraped,
        ):
            told = {"prometheus": scraped.prometheus, "exporter": f"http://{made.exporter}", "agents": made.agents}
            sys.stdout.write(json.dumps({**told, "sessions": str(made.sessions)}) + "\n")
            sys.stdout.flush()
            time.sleep(options.minutes * 60)


if __name__ == "__main__":
    main()
