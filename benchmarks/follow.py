"""What following a fleet for its traces takes: `python -m benchmarks.follow [--sessions N] [--turns N] [--seconds N]`.

1,000 live sessions whose turns of 20 records each go on all the time, a record every quarter of a second, so that 200
turns a second close altogether; real writers, in processes of their own that are not counted. The follower is the
command itself. Its share of a core, its largest resident set, and from a turn's last record to its arrival.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, cast

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from benchmarks.common import Row, facts, note, table, workplace
from raxol_otel.journal import open_journal

if TYPE_CHECKING:
    from collections.abc import Generator

    from raxol_otel.journal import Journal

__all__ = ["run"]

SESSIONS: Final = 1_000
TURNS_PER_SECOND: Final = 200
SECONDS: Final = 60.0
_TURN: Final = 20
_WRITERS: Final = 2
_WARM_SECONDS: Final = 15.0
_LINE_CHARS: Final = 120
_ROOT: Final = Path(__file__).resolve().parent.parent
_SCRIPT: Final = "import sys; from raxol_otel.cli import main; sys.argv[0] = 'raxol-otel'; sys.exit(main())"


class _Receiver(ThreadingHTTPServer):
    """Takes spans, and notes how long ago each turn had ended."""

    daemon_threads = True

    def __init__(self) -> None:
        self.delays: list[float] = []
        self.spans = 0
        super().__init__(("127.0.0.1", 0), _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Take a request."""
        body = self.rfile.read(int(self.headers["content-length"]))
        arrived = time.time_ns()
        receiver = cast("_Receiver", self.server)
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            for scope in resource.scope_spans:
                receiver.spans += len(scope.spans)
                receiver.delays += [
                    (arrived - span.end_time_unix_nano) / 1e9 for span in scope.spans if not span.parent_span_id
                ]
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class' name
        """Nothing."""


@contextmanager
def _receiving() -> Generator[_Receiver]:
    receiver = _Receiver()
    thread = threading.Thread(target=receiver.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()


@contextmanager
def _process(*command: str) -> Generator[subprocess.Popen[bytes]]:
    process = subprocess.Popen([sys.executable, *command], cwd=_ROOT)
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def _write(folder: Path, first: int, count: int, turns_per_second: float, seconds: float) -> None:
    """A writer process: one record of each session after the other, evenly, for so long."""
    with ExitStack() as stack:
        journals = [stack.enter_context(open_journal(f"s{first + n:04}", base_dir=folder)) for n in range(count)]
        begun = time.monotonic()
        records_per_second = turns_per_second * _TURN
        for number in range(int(records_per_second * seconds)):
            ahead = begun + number / records_per_second - time.monotonic()
            if ahead > 0.002:
                time.sleep(ahead)
            round_, session = divmod(number, count)
            # Each session is at another place of its turn.
            _append(journals[session], *divmod(round_ + session, _TURN))


def _append(journal: Journal, turn: int, step: int) -> None:
    event: dict[str, Any] = {"v": 0, "family": "loop", "tier": "durable", "turn_id": f"turn-{turn}"}
    if step == 0:
        kind, payload = "turn_started", {}
    elif step == _TURN - 1:
        kind, payload = "turn_completed", {"final": True, "usage": {"input_tokens": 1_000, "output_tokens": 100}}
    else:
        kind = "item_started" if step % 2 else "item_completed"
        payload = {"item_id": f"i{(step - 1) // 2}", "item_type": "message", "role": "assistant"}
        payload["content"] = "x" * _LINE_CHARS
    journal.append({**event, "type": kind, "ts": time.time_ns() // 1000, "payload": payload}, sync=False)


def _seconds_of(pid: int) -> float:
    """The processor's time of a process, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _mib(pid: int, what: Literal["VmHWM", "VmRSS"]) -> float:
    found = re.search(rf"{what}:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) / 1024


def _share(ordered: list[float], share: float) -> float:
    return ordered[min(int(len(ordered) * share), len(ordered) - 1)]


def run(
    folder: Path,
    _records: int = 0,
    *,
    sessions: int = SESSIONS,
    turns: int = TURNS_PER_SECOND,
    seconds: float = SECONDS,
    options: tuple[str, ...] = (),
) -> list[Row]:
    """Measure it."""
    note(f"follow: {sessions} sessions, {turns} turns a second, for {seconds:.0f} s")
    root = folder / "sessions"
    root.mkdir()
    with ExitStack() as stack:
        receiver = stack.enter_context(_receiving())
        endpoint = f"http://127.0.0.1:{receiver.server_address[1]}"
        each, total = sessions // _WRITERS, _WARM_SECONDS + seconds + 10.0
        for number in range(_WRITERS):
            numbers = (number * each, each, turns / _WRITERS, total)
            stack.enter_context(_process("-m", "benchmarks.follow", "--write", str(root), *map(str, numbers)))
        state = str(folder / "state")
        command = ("replay", "--follow", str(root), "--to", "otlp", "--endpoint", endpoint, "--state", state)
        follower = stack.enter_context(_process("-c", _SCRIPT, *command, *options))
        time.sleep(_WARM_SECONDS)
        receiver.delays.clear()
        spans, begun, used = receiver.spans, time.monotonic(), _seconds_of(follower.pid)
        time.sleep(seconds)
        took, used = time.monotonic() - begun, _seconds_of(follower.pid) - used
        delays, spans = sorted(receiver.delays), receiver.spans - spans
        peak, now = _mib(follower.pid, "VmHWM"), _mib(follower.pid, "VmRSS")
    rate = len(delays) / took
    assert rate > 0.9 * turns, f"only {rate:.0f} turns a second arrived: the machine is too busy"
    what = f"following {sessions:,} sessions, {rate:.0f} turns ({spans / took:,.0f} spans) a second"
    delay = f"p50 {_share(delays, 0.5):.2f} s, p99 {_share(delays, 0.99):.2f} s, longest {delays[-1]:.2f} s"
    return [
        Row(f"{what}: share of a core", f"{used / took:.1%}", required="under 30 %"),
        Row(f"{what}: resident set", f"{peak:.0f} MiB at its peak, {now:.0f} MiB then", required="under 200 MiB"),
        Row(f"{what}: from closing to arrival", delay, required="p99 under 3 s"),
    ]


def main() -> None:
    """Run it, or one of its writers."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.follow")
    parser.add_argument("--sessions", type=int, default=SESSIONS)
    parser.add_argument("--turns", type=int, default=TURNS_PER_SECOND, help="a second, altogether")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--option", action="append", default=[], help="of the command, such as --poll")
    parser.add_argument("--write", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.write:
        folder, first, count, turns, seconds = options.write
        _write(Path(folder), int(first), int(count), float(turns), float(seconds))
        return
    with workplace() as folder:
        rows = run(
            folder,
            sessions=options.sessions,
            turns=options.turns,
            seconds=options.seconds,
            options=tuple(options.option),
        )
    print(f"{table(rows)}\n\n{facts()}")


if __name__ == "__main__":
    main()
