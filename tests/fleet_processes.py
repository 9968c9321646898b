"""`raxol-otel serve` as a process, for tests; and sessions to show it, made without a writer."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tests.alerting import free_address
from tests.conftest import ROOT
from tests.exporter_contract import environment
from tests.metrics_scrape import families

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

__all__ = ["Serving", "bound", "raw_session", "serve"]

SECONDS_MAX: Final = 30.0
# Root without what lets it read everything: a file of mode 0 is closed to its owner.
_WITHOUT: Final = "--bounding-set=-dac_override,-dac_read_search"


@cache
def bound() -> list[str] | None:
    """What to put before a command so that permissions bind it; None where that cannot be."""
    if os.geteuid() != 0:
        return []
    setpriv = shutil.which("setpriv")
    if setpriv is None or subprocess.run([setpriv, _WITHOUT, "true"], check=False, capture_output=True).returncode:
        return None
    return [setpriv, _WITHOUT]


class Serving:
    """A process, and what it answers."""

    def __init__(self, process: subprocess.Popen[bytes], address: str, errors: Path) -> None:
        self.process = process
        self.address = address
        self._errors = errors

    def said(self) -> str:
        """What it said on standard error."""
        return self._errors.read_text(encoding="utf-8", errors="replace")

    def get(self, path: str) -> tuple[int, str]:
        """Status and text of an answer; (0, "") while nobody answers."""
        connection = http.client.HTTPConnection(self.address, timeout=SECONDS_MAX)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except ConnectionError:
            return 0, ""
        finally:
            connection.close()

    def values(self) -> dict[tuple[str, ...], float]:
        """A scrape's samples, by their names and the values of their labels, those in order; but for `source`."""
        return {
            (sample.name, *(value for label, value in sorted(sample.labels.items()) if label != "source")): sample.value
            for family in families(self.get("/metrics")[1], strict=False)
            for sample in family.samples
        }

    def states(self) -> dict[str, int]:
        """Sessions by state, as the metrics say."""
        return {
            key[1]: int(value) for key, value in self.values().items() if key[0] == "raxol_journal_sessions" and value
        }

    def until(self, what: Callable[[], Any], seconds: float = SECONDS_MAX) -> Any:
        """The first answer that is true; fails with what the process said when none comes."""
        deadline = time.monotonic() + seconds
        while not (answer := what()):
            assert self.process.poll() is None, self.said()
            assert time.monotonic() < deadline, self.said()
            time.sleep(0.05)
        return answer

    def ready(self, seconds: float = SECONDS_MAX) -> Serving:
        """Once /readyz says so."""
        self.until(lambda: self.get("/readyz")[0] == 200, seconds)
        return self

    def children(self) -> list[int]:
        """The processes that it has started."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == self.process.pid and fields[0] != "Z":
                found.append(int(path.parent.name))
        return found

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Its exit code, or minus the signal's number, within 5 seconds."""
        self.process.send_signal(number)
        return self.process.wait(5)


@contextmanager
def serve(folder: Path, root: Path, *options: str, command: tuple[str, ...] = ()) -> Generator[Serving]:
    """The command, for a while; `command` is for `python -m raxol_otel`. What it says goes to a file in `folder`."""
    address = free_address()
    started = [*(command or (sys.executable, "-m", "raxol_otel")), "serve", "--sessions-dir", str(root)]
    errors = folder / f"errors-{address.rpartition(':')[2]}.txt"
    with (
        errors.open("wb") as said,
        subprocess.Popen(
            [*started, "--listen", address, "--interval", "0.2", *options], cwd=ROOT, stderr=said, env=environment()
        ) as process,
    ):
        try:
            yield Serving(process, address, errors)
        finally:
            process.kill()


def raw_session(directory: Path, turns: int = 1, *, padding: int = 0) -> Path:
    """A healthy session of so many whole turns of two records, each with so many letters more."""
    (directory / "journal").mkdir(parents=True)
    event = {"family": "loop", "ts": 1_790_000_000_000_000, "text": "x" * padding}
    with (directory / "journal" / "000001.jsonl").open("wb") as file:
        for number in range(turns):
            for offset, kind in enumerate(("turn_started", "turn_completed"), 2 * number + 1):
                record = {"id": offset, "type": kind, "turn_id": f"t{number}", "payload": {"final": True}, **event}
                file.write(json.dumps(record, separators=(",", ":")).encode() + b"\n")
    (directory / "HEAD").write_text(json.dumps({"offset": 2 * turns, "segment": 1}), encoding="ascii")
    (directory / "meta.json").write_text('{"schema_version": "1.2.0"}', encoding="ascii")
    return directory
