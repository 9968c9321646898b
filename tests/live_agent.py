"""Programs that keep a journal, for tests of what is exported of them: `python -m tests.live_agent WHAT FOLDER`."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SimpleSpanProcessor
from opentelemetry.trace import INVALID_SPAN

from raxol_otel.journal import open_journal
from raxol_otel.live import JournalInstrumentor, use_turn
from tests.live_sdk import instrumented
from tests.prometheus_agent import event, turn


def plain(folder: Path) -> None:
    """Two turns, and nothing about telemetry."""
    with open_journal("s", base_dir=folder) as journal:
        for number in (1, 2):
            for one in turn(number):
                journal.append(one)


def killed(folder: Path) -> None:
    """A turn whose process is killed in the middle: a call is answered, another is not."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter()))
    JournalInstrumentor().instrument(tracer_provider=provider)
    journal = open_journal("s", base_dir=folder)
    for one in (*turn(1), *turn(2)[:-1], event(2, "item_completed", item_type="tool_use", item_id="k", name="ls")):
        journal.append(one, sync=True)
    os.kill(os.getpid(), signal.SIGKILL)


def gone(folder: Path) -> None:
    """Many turns for a collector that is not there, then the end."""
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    JournalInstrumentor().instrument(tracer_provider=provider)
    with open_journal("s", base_dir=folder) as journal:
        for number in range(300):
            journal.append_many(turn(number))


def forked(folder: Path) -> None:
    """A child is forked in the middle of a turn: what each exports, a line of JSON, the child's first."""
    with instrumented() as traces, open_journal("parent", base_dir=folder) as journal:
        journal.append(turn(1)[0])
        with use_turn(journal):
            child = os.fork()
            if child == 0:
                with use_turn(journal) as current:
                    assert current is INVALID_SPAN
                    with open_journal("child", base_dir=folder) as own:
                        own.append_many([{**one, "ts": one["ts"] + 1} for one in turn(1)])
            else:
                assert os.waitpid(child, 0)[1] == 0
                journal.append_many(turn(1)[1:])
        sys.stdout.write(json.dumps([span["span_id"] for span in traces.own()]) + "\n")
        sys.stdout.flush()
        if child == 0:
            os._exit(0)


_ALL: Final[dict[str, Any]] = {"plain": plain, "killed": killed, "gone": gone, "forked": forked}

if __name__ == "__main__":
    _ALL[sys.argv[1]](Path(sys.argv[2]))
