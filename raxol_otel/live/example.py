"""A small scripted agent, followed while it works: `python -m raxol_otel.live.example [DIR]`.

It needs no service and ends by itself. It keeps a journal in DIR, or in a folder that is gone afterwards; what is told
of it is printed as it comes: spans when they end, signals when they are published, and at last what /metrics says.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.request import urlopen

from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from prometheus_client import CollectorRegistry, start_http_server

from raxol_otel import catalogue as names
from raxol_otel import signals
from raxol_otel.journal import checkpoint, open_journal, scan
from raxol_otel.live.current import use_turn
from raxol_otel.live.instrumentor import JournalInstrumentor
from raxol_otel.observed import Prompted, Status, ToolCall, TurnEnded, record

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

    from raxol_otel.journal import Journal

__all__ = ["main"]

_HANDLER: Final = "example"
_PAUSE_SECONDS: Final = 0.05
_SHOWN: Final = (names.METRIC_TURNS, names.METRIC_TOOL_CALLS, names.METRIC_DAMAGED, names.METRIC_OBSERVED)


def say(what: str, text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{what:<8} {text}\n")
    sys.stdout.flush()


class _Prints(SpanProcessor):
    """Prints the spans that end."""

    def on_end(self, span: ReadableSpan) -> None:
        context, said = span.get_span_context(), span.attributes or {}
        outcome = said.get(names.TURN_OUTCOME) or said.get(names.TOOL_OUTCOME) or ""
        under = "" if span.parent is None else f" under {span.parent.span_id:016x}"
        millis = ((span.end_time or 0) - (span.start_time or 0)) / 1e6
        say("span", f"{context.span_id if context else 0:016x} {span.name} {outcome} {millis:.0f} ms{under}")


class _Agent:
    """Two turns and an observed one, as a script."""

    def __init__(self, journal: Journal, provider: TracerProvider) -> None:
        self._journal = journal
        self._tracer = provider.get_tracer("example")
        self._turn = ""

    def work(self) -> None:
        """All of it."""
        self._begin("turn-1", "why is the build red?")
        with use_turn(self._journal), self._tracer.start_as_current_span("ask the model"):
            time.sleep(_PAUSE_SECONDS)
        self._call("call-1", "run_tests", "{:error, 1 failed}")
        self._call("call-2", "apply_patch", "applied")
        self._event("approval_requested", request_id="push", risk="medium", action="git push")
        self._call("call-3", "run_tests", "12 passed")
        usage = {"input_tokens": 1840, "output_tokens": 210}
        self._event("turn_completed", usage=usage, cost=0.0112, final=True, evidence="accepted")
        self._begin("turn-2", "and deploy it")
        self._event("error", reason="rate_limited")
        record(self._journal, Prompted(), turn_id="review")
        record(self._journal, ToolCall("c1", Status.PENDING))
        record(self._journal, ToolCall("c1", Status.COMPLETED))
        record(self._journal, TurnEnded("end_turn"))
        checkpoint.write(self._journal, {"todo": ["deploy"]})

    def _event(self, kind: str, **payload: Any) -> None:
        event = {"kind": "event", "family": "loop", "tier": "durable", "type": kind, "turn_id": self._turn}
        self._journal.append({**event, "ts": time.time_ns() // 1000, "payload": payload})

    def _begin(self, turn: str, prompt: str) -> None:
        self._turn = turn
        self._event("turn_started", prompt=prompt)

    def _call(self, call: str, name: str, result: str) -> None:
        said = {"item_id": call, "call_id": call, "name": name}
        self._event("item_completed", item_type="tool_use", **said)
        time.sleep(_PAUSE_SECONDS)
        self._event("item_completed", item_type="tool_result", result=result, **said)


def _damage(directory: Path) -> None:
    """What a scan says of a journal that somebody has cut a record out of."""
    segment = directory / "journal" / "000001.jsonl"
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:3], *lines[4:]]))
    scan(directory)


def _metrics(registry: CollectorRegistry) -> None:
    """What a scrape of /metrics says, of what is not 0."""
    server, thread = start_http_server(0, "127.0.0.1", registry)
    with urlopen(f"http://127.0.0.1:{server.server_port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    server.shutdown()
    server.server_close()
    thread.join()
    for line in text.splitlines():
        if line.startswith(tuple(metric.name for metric in _SHOWN)) and not line.endswith(" 0.0"):
            say("metric", line)


def _play(folder: Path) -> None:
    provider, registry = TracerProvider(), CollectorRegistry()
    provider.add_span_processor(_Prints())
    instrumentor = JournalInstrumentor()
    instrumentor.instrument(tracer_provider=provider, registry=registry, agent_name="example")
    signals.attach(_HANDLER, lambda signal: say("signal", f"{signal.name} {signal.metadata.get('cause', '')}".rstrip()))
    try:
        with open_journal(f"example-{time.time_ns()}", base_dir=folder) as journal:
            _Agent(journal, provider).work()
        _damage(journal.path)
        _metrics(registry)
    finally:
        signals.detach(_HANDLER)
        instrumentor.uninstrument()


def main() -> None:
    """Run it."""
    arguments = sys.argv[1:]
    if len(arguments) > 1 or any(argument.startswith("-") for argument in arguments):
        sys.exit("usage: python -m raxol_otel.live.example [DIR]")
    if arguments:
        _play(Path(arguments[0]))
        return
    with tempfile.TemporaryDirectory(prefix="raxol-otel-example-") as folder:
        _play(Path(folder))


if __name__ == "__main__":
    main()
