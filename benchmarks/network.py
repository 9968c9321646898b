"""Replay into an OTLP receiver, beside the SDK and another program: `python -m benchmarks.network [--records N]`.

Whole processes, on the clock, in turns, into `tests.otlp_receiver` on this machine over HTTP. The records lie in eight
sessions, so that jobs can divide them. Then
* ours: `raxol-otel replay FOLDER --to otlp`, by one job and by two;
* the SDK's: our reader and fold in front, reading once, then the spans are made again as in `benchmarks.spans` and go
  through a `BatchSpanProcessor`, whose queue loses none, and the official exporter. Each is counted at the exporter.

Of several processes the peak is that of the largest, the processor's time that of all. The receiver's is in neither,
but it wants a core as well: two jobs at full speed keep more than two busy.

The other program, `agent-session-otel`, reads the logs of Claude Code. It is given the turns of a shorter journal in
that format, about 20 MB, and made to send all that it sends by default; the receiver counts its spans and ours. It is
left out where it is not installed (`pip install agent-session-otel[otlp]`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import orjson
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult

from benchmarks.common import Row, command_line, note
from benchmarks.journals import RECORDS_PER_TURN, make
from benchmarks.memory import _LAUNCHER, _SCRIPT, _Child  # pyright: ignore[reportPrivateUsage]
from benchmarks.spans import _QUEUE_SPANS, _Sdk, _turns  # pyright: ignore[reportPrivateUsage]
from raxol_otel import __version__
from raxol_otel import catalogue as names
from raxol_otel.exporters.resource import replay_resource
from raxol_otel.journal.reader import Walk, read_batches
from raxol_otel.turns import TurnFold
from tests.otlp_receiver import read_counts

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from benchmarks.journals import Journal
    from raxol_otel.turns import Span

__all__ = ["run"]

_ROOT: Final = Path(__file__).resolve().parent.parent
_SESSIONS: Final = 8
_ROUNDS: Final = 3
_MIB: Final = 1024  # ru_maxrss is in KiB on Linux
_PEER: Final = "agent-session-otel"
_PEER_SCRIPT: Final = "import sys; from agent_session_otel.cli import main; sys.exit(main())"
# What is 20 MB in the other program's format.
_PEER_RECORDS: Final = 64_000


@dataclass(slots=True)
class _Runs:
    """What repeated runs of one command took, and how many spans each sent."""

    spans: int = 0
    children: list[_Child] = field(default_factory=list[_Child])

    @property
    def peak(self) -> float:
        """MiB of the largest process at its peak, in any run."""
        return max(child.peak for child in self.children) / _MIB

    @property
    def walls(self) -> list[float]:
        """Seconds on the clock."""
        return [child.wall for child in self.children]

    @property
    def seconds(self) -> list[float]:
        """Seconds of the processor, of all processes of the command."""
        return [child.seconds for child in self.children]

    @property
    def rate(self) -> str:
        """Spans a second on the clock, best and median."""
        return f"{self.spans / min(self.walls):,.0f}/s ({self.spans / median(self.walls):,.0f}/s)"

    @property
    def work(self) -> str:
        """Seconds of the processor, best and median."""
        return f"{min(self.seconds):.1f} s ({median(self.seconds):.1f} s)"


def run(folder: Path, records: int) -> list[Row]:
    """Measure beside the SDK, then beside the other program if it is there."""
    note(f"network: {_SESSIONS} sessions, {records} records in all")
    journals = _sessions(folder / "network", records)
    rows = _beside_sdk(folder / "network", sum(journal.spans for journal in journals))
    try:
        found = version(_PEER)
    except PackageNotFoundError:
        note(f"network: {_PEER} is not installed, and left out")
        return rows
    note(f"network: {_PEER} {found}")
    return [*rows, *_beside_peer(folder, min(records, _PEER_RECORDS), found)]


def _sessions(folder: Path, records: int) -> list[Journal]:
    """Journals of so many records together, as near as whole turns and equal sessions come to it."""
    each = max(records // _SESSIONS // RECORDS_PER_TURN, 1) * RECORDS_PER_TURN
    return [make(folder / f"session-{number}", each) for number in range(1, _SESSIONS + 1)]


def _beside_sdk(folder: Path, spans: int) -> list[Row]:
    with _receiver("--raw") as endpoint:
        one, two, sdk = _alternate(
            [
                partial(_replay, folder, endpoint, 1),
                partial(_replay, folder, endpoint, 2),
                partial(_by_sdk, folder, endpoint),
            ]
        )
    assert one.spans == two.spans == sdk.spans == spans
    return [
        Row(
            "`replay --to otlp` over HTTP, on the clock",
            f"{one.rate} spans",
            f"read once, SDK and its exporter: {sdk.rate}",
            _ratio(sdk.walls, one.walls),
            "at least 3",
        ),
        Row(
            "`replay --to otlp --jobs 2`, on the clock",
            f"{two.rate} spans",
            f"one job: {one.rate}",
            _ratio(one.walls, two.walls),
            "at least 1.7",
        ),
        Row(
            "`replay --to otlp`, processor",
            one.work,
            f"SDK and its exporter: {sdk.work}",
            _ratio(sdk.seconds, one.seconds),
        ),
        Row(
            "`replay --to otlp --jobs 2`, processor, all processes",
            two.work,
            f"one job: {one.work}",
            _ratio(one.seconds, two.seconds),
        ),
        Row(
            "peak memory of `replay --to otlp`",
            f"{one.peak:.1f} MiB",
            f"SDK and its exporter: {sdk.peak:.1f} MiB",
            f"{one.peak / sdk.peak:.2f}",
            "under 160 MiB",
        ),
        Row(
            "peak memory of `replay --to otlp --jobs 2`, the largest process",
            f"{two.peak:.1f} MiB",
            f"one job: {one.peak:.1f} MiB",
            f"{two.peak / one.peak:.2f}",
            "under 160 MiB",
        ),
    ]


def _beside_peer(folder: Path, records: int, found: str) -> list[Row]:
    turns, logs, counts = folder / "turns", folder / "logs", folder / "counts"
    size = sum(_write_log(journal, logs) for journal in _sessions(turns, records)) / 10**6
    with _receiver("--count-file", str(counts)) as endpoint:
        ours, peer = _alternate(
            [
                partial(_counted, counts, partial(_replay, turns, endpoint, 1)),
                partial(_counted, counts, partial(_by_peer, logs, endpoint)),
            ]
        )
    name = f"{_PEER} {found}"
    return [
        Row(
            f"`replay --to otlp`, the turns of {size:.0f} MB of Claude Code's logs, on the clock",
            f"{ours.rate} spans",
            f"{name}: {peer.rate}",
            f"{(ours.spans / min(ours.walls)) / (peer.spans / min(peer.walls)):.1f}"
            f" ({(ours.spans / median(ours.walls)) / (peer.spans / median(peer.walls)):.1f})",
        ),
        Row(
            "the same by the time of all of it",
            f"{min(ours.walls):.1f} s ({median(ours.walls):.1f} s), {ours.spans:,} spans",
            f"{name}: {min(peer.walls):.1f} s ({median(peer.walls):.1f} s), {peer.spans:,} spans",
            _ratio(peer.walls, ours.walls),
        ),
        Row("the same, processor", ours.work, f"{name}: {peer.work}", _ratio(peer.seconds, ours.seconds)),
        Row(
            "the same, peak memory",
            f"{ours.peak:.1f} MiB",
            f"{name}: {peer.peak:.1f} MiB",
            f"{ours.peak / peer.peak:.2f}",
        ),
    ]


def _ratio(theirs: Sequence[float], ours: Sequence[float]) -> str:
    """How many times as fast ours is, by best and by median."""
    return f"{min(theirs) / min(ours):.2f} ({median(theirs) / median(ours):.2f})"


def _alternate(contenders: Sequence[Callable[[], tuple[int, _Child]]]) -> list[_Runs]:
    """The runs of each, in turns, each round beginning with another. All runs of one send as many spans."""
    runs = [_Runs() for _ in contenders]
    for number in range(_ROUNDS):
        for step in range(len(contenders)):
            index = (number + step) % len(contenders)
            spans, child = contenders[index]()
            note(f"network: {spans} spans, {child.wall:.2f} s, processor {child.seconds:.2f} s, {child.peak} KiB")
            assert runs[index].spans in {0, spans}
            runs[index].spans = spans
            runs[index].children.append(child)
    return runs


def _replay(folder: Path, endpoint: str, jobs: int) -> tuple[int, _Child]:
    arguments = ["replay", str(folder), "--to", "otlp", "--endpoint", endpoint, "--jobs", str(jobs), "--json"]
    said, child = _child(["-c", _SCRIPT, *arguments])
    return json.loads(said)["spans"]["accepted"], child


def _by_sdk(folder: Path, endpoint: str) -> tuple[int, _Child]:
    said, child = _child(["-m", "benchmarks.network", "--sdk", str(folder), f"{endpoint}/v1/traces"])
    return int(said), child


def _by_peer(folder: Path, endpoint: str) -> tuple[int, _Child]:
    where = ["--vendor", "claude-code", "--claude-code-root", str(folder), "--endpoint", f"{endpoint}/v1/traces"]
    said, child = _child(["-c", _PEER_SCRIPT, "export", "--format", "otlp", *where])
    return int(said.split(" span(s)")[0].split()[-1]), child


def _counted(counts: Path, sent: Callable[[], tuple[int, _Child]]) -> tuple[int, _Child]:
    """The same with the spans that the receiver counted, and not what the program says."""
    before = read_counts(counts).spans
    said, child = sent()
    spans = read_counts(counts).spans - before
    if spans != said:
        note(f"network: {said} spans were said to be sent, {spans} came")
    return spans, child


def _child(arguments: Sequence[str]) -> tuple[str, _Child]:
    """Run Python with the arguments: what it printed, and what it took. Its children count with it."""
    command = [sys.executable, "-I", "-S", "-c", _LAUNCHER, sys.executable, *arguments]
    done = subprocess.run(command, cwd=_ROOT, env=_environment(), capture_output=True, text=True, check=True)
    said = done.stderr.splitlines()
    code, peak, seconds, wall = said[-1].split()
    assert code == "0", said
    return done.stdout, _Child(int(peak), float(seconds), float(wall))


def _environment() -> dict[str, str]:
    """Ours without settings of OpenTelemetry's and without proxies."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("OTEL_") and not name.lower().endswith("_proxy")
    }


@contextmanager
def _receiver(*options: str) -> Generator[str]:
    """The tests' receiver as a process; its address."""
    command = [sys.executable, "-m", "tests.otlp_receiver", "--port", "0", *options]
    with subprocess.Popen(command, cwd=_ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        finally:
            process.terminate()
    assert process.returncode == 0


class _Counting(SpanExporter):
    """The official exporter, and how many spans it took."""

    def __init__(self, url: str) -> None:
        self.spans = 0
        self._sender = OTLPSpanExporter(endpoint=url)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send and count."""
        result = self._sender.export(spans)
        self.spans += len(spans) * (result is SpanExportResult.SUCCESS)
        return result

    def shutdown(self) -> None:
        """Close the connection."""
        self._sender.shutdown()  # type: ignore[no-untyped-call]


class _SdkOverHttp(_Sdk):
    """The SDK's way, with the official exporter at its end instead of a file."""

    def __init__(self, url: str) -> None:  # all that the other sets is set here
        self.sender = _Counting(url)
        self._processor = BatchSpanProcessor(self.sender, max_queue_size=_QUEUE_SPANS)
        self._provider = TracerProvider(resource=Resource(replay_resource()), shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer(names.SCOPE_NAME, __version__, schema_url=names.SCHEMA_URL)
        self._previous = None
        self._unflushed = 0


def _sdk_main(folder: Path, url: str) -> None:
    """The process that does it the SDK's way; prints how many spans were sent."""
    sdk = _SdkOverHttp(url)
    for directory in sorted(folder.iterdir()):
        fold = TurnFold(directory.name)
        waiting: dict[str, list[Span]] = {}
        for batch in read_batches(Walk(directory)):
            sdk.make(_turns(fold.feed_many(batch), waiting))
        sdk.make_all(_turns(fold.close(), waiting))
    sdk.close()
    print(sdk.sender.spans)


def _write_log(journal: Journal, folder: Path) -> int:
    """The journal's turns as a log of Claude Code; its size in bytes."""
    folder.mkdir(exist_ok=True)
    log = _Log(journal.directory.name)
    path = folder / f"{log.session}.jsonl"
    with path.open("wb") as file:
        for batch in read_batches(Walk(journal.directory)):
            for record in batch:
                for line in log.lines(record):
                    file.write(orjson.dumps(line) + b"\n")
    return path.stat().st_size


class _Log:
    """Records of one session as the lines that Claude Code would have written: one for each finished item.

    The usage of a turn stands in its message, so that the other program makes a span of it once a turn.
    """

    def __init__(self, name: str) -> None:
        self.session = str(UUID(bytes=name.encode().ljust(16, b"-")[:16]))
        self._parent: str | None = None
        self._model = ""
        self._message: dict[str, Any] = {}

    def lines(self, record: dict[str, Any]) -> Generator[dict[str, Any]]:
        """What the record adds to the log."""
        payload, kind = record["payload"], record["type"]
        if kind == "turn_started":
            self._model = payload["model"]
            yield self._line(record, {"role": "user", "content": payload["prompt"]})
        elif kind == "turn_completed":
            # The message was held back until its usage is known.
            self._message["message"]["usage"] = {"cache_creation_input_tokens": 0, **payload["usage"]}
            yield self._message
        elif kind == "item_completed":
            line = self._line(record, self._finished(record["id"], payload))
            if payload["item_type"] == "message":
                self._message = line
            else:
                yield line

    def _finished(self, number: int, item: dict[str, Any]) -> dict[str, Any]:
        """The message of a finished item."""
        match item["item_type"]:
            case "tool_result":
                failed = {"is_error": True} if item.get("is_error") else {}
                output = {"type": "tool_result", "tool_use_id": item["call_id"], "content": item["result"], **failed}
                return {"role": "user", "content": [output]}
            case "tool_use":
                call = {"id": item["call_id"], "name": item["name"], "input": item["arguments"]}
                return self._said(number, {"type": "tool_use", **call}, "tool_use")
            case "reasoning":
                return self._said(number, {"type": "thinking", "thinking": item["content"], "signature": ""}, None)
            case _:
                return self._said(number, {"type": "text", "text": item["content"]}, "end_turn")

    def _said(self, number: int, block: dict[str, Any], stop: str | None) -> dict[str, Any]:
        says: dict[str, Any] = {"id": f"msg_{number:024}", "type": "message", "role": "assistant", "model": self._model}
        return {**says, "content": [block], "stop_reason": stop, "stop_sequence": None}

    def _line(self, record: dict[str, Any], message: dict[str, Any]) -> dict[str, Any]:
        own = str(UUID(int=record["id"]))
        line = {
            "parentUuid": self._parent,
            "isSidechain": False,
            "userType": "external",
            "cwd": "/home/user/cart",
            "sessionId": self.session,
            "version": "2.0.14",
            "gitBranch": "main",
            "type": message["role"],
            "message": message,
            "uuid": own,
            "timestamp": f"{datetime.fromtimestamp(record['ts'] / 10**6, UTC):%Y-%m-%dT%H:%M:%S.%f}Z",
        }
        self._parent = own
        return line


if __name__ == "__main__":
    if sys.argv[1:2] == ["--sdk"]:
        _sdk_main(Path(sys.argv[2]), sys.argv[3])
    else:
        command_line("network", run)
