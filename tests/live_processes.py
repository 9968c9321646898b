"""A program that forks with log events and instruments attached, for tests: `python -m tests.live_processes forks`.

It writes a line of JSON: what went wrong.
"""

from __future__ import annotations

import json
import sys
import threading
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.sdk import _logs as sdk_logs

from raxol_otel import signals
from raxol_otel.live import LogEvents, TurnInstruments
from tests.live_sdk import Meters
from tests.metrics_processes import CHILD_SECONDS, FORKS, ended, in_child
from tests.metrics_scrape import damaged
from tests.test_instruments import DURATION, TURN, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable


class Sink:
    """A processor of log records that needs no lock; the names of those that it was given."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def on_emit(self, data: Any) -> None:
        """Take a record; the name of this method since 1.35."""
        self.names.append(data.log_record.event_name)

    emit = on_emit

    def shutdown(self) -> None:
        """End."""

    def force_flush(self, timeout_millis: int = 30000) -> bool:
        """Nothing waits."""
        del timeout_millis
        return True


def child(meters: Meters, instruments: TurnInstruments, sink: Sink) -> None:
    """Both record still, and no damage was met before."""
    before = len(sink.names)
    damaged(last_offset=-1)
    damaged(last_offset=-1)
    assert len(sink.names) == before + 1
    counted = sum(point.count for point in meters.points(DURATION))
    instruments.observe_spans(spans_of(*TURN), exemplar=True)
    assert sum(point.count for point in meters.points(DURATION)) == counted + 1
    assert signals.handler_errors() == {}


def forks() -> list[str]:
    """Fork while every lock of ours and of the instruments is in use, and now and then a child forks too."""
    sys.setswitchinterval(1e-5)
    sink: Final = Sink()
    provider = sdk_logs.LoggerProvider(shutdown_on_exit=False)
    provider.add_log_record_processor(sink)  # type: ignore[arg-type]  # it has what is called
    meters = Meters()
    LogEvents(provider).attach()
    instruments = TurnInstruments(meters.provider, legacy=True)
    stop = threading.Event()
    numbers = iter(range(10**9))

    def forever(work: Callable[[], object]) -> None:
        while not stop.is_set():
            work()

    def new_tool() -> None:
        tool = {"family": "loop", "turn_id": "t", "ts": 1_785_801_600_000_000, "type": "item_completed"}
        named = {"name": f"tool_{next(numbers) % 200}", "call_id": "1"}
        records = [
            {**tool, "id": 1, "payload": {"item_type": "tool_use", "item_id": "a", **named}},
            {**tool, "id": 2, "payload": {"item_type": "tool_result", "item_id": "b", **named}},
        ]
        instruments.observe_spans(spans_of(*records))

    works: list[Callable[[], object]] = [
        lambda: instruments.observe_spans(spans_of(*TURN), exemplar=True),
        new_tool,
        lambda: damaged(last_offset=next(numbers)),
    ]
    threads = [threading.Thread(target=forever, args=(work,), daemon=True) for work in works]
    for thread in threads:
        thread.start()

    def generations() -> None:
        child(meters, instruments, sink)
        assert ended(in_child(partial(child, meters, instruments, sink))) is None

    wrong: list[str] = []
    for number in range(FORKS):
        work = generations if number % 10 == 0 else partial(child, meters, instruments, sink)
        problem = ended(in_child(work))
        if problem is not None:
            wrong.append(problem)
            if len(wrong) == 3:
                break
    stop.set()
    for thread in threads:
        thread.join(CHILD_SECONDS)
    return wrong


if __name__ == "__main__":
    sys.stdout.write(json.dumps({"forks": forks}[sys.argv[1]]()) + "\n")
