"""Records that come fast are told of a moment later, and nothing else about them changes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.sdk.trace import SpanProcessor
from prometheus_client import CollectorRegistry, generate_latest

from raxol_otel import signals
from raxol_otel.journal import open_journal
from raxol_otel.live import JournalInstrumentor, use_turn, waiting
from raxol_otel.live.waiting import Waiting
from tests.conftest import ROOT
from tests.live_sdk import Logs, Traces, instrumented, replayed
from tests.prometheus_agent import event, turn
from tests.test_live_parity import by_id, check, source
from tests.test_trees import STREAMS

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

LATE: Final = 30.0


@pytest.fixture
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the agent had written many records in this second: all wait, and for longer than any test."""
    monkeypatch.setattr(waiting, "AT_ONCE_MAX", 0)
    monkeypatch.setattr(waiting, "WAITING_SECONDS", LATE)


def lost() -> int:
    """The failures counted so far."""
    return signals.handler_errors().get("raxol_otel.tracing", 0)


def soon(is_so: Callable[[], bool]) -> bool:
    """Whether it is so within ten seconds."""
    end = time.monotonic() + 10
    while not is_so() and time.monotonic() < end:
        time.sleep(0.005)
    return is_so()


class Told:
    """What a `Waiting` has told, a list each time, while it may."""

    def __init__(self) -> None:
        self.calls: list[list[int]] = []
        self.may = threading.Event()
        self.may.set()
        self.waiting = Waiting(self._tell)

    def _tell(self, records: list[dict[str, Any]]) -> None:
        self.calls.append([record["id"] for record in records])
        assert self.may.wait(10)

    def put(self, *offsets: int) -> None:
        """Put records of these offsets."""
        self.waiting.put([{"id": offset, "type": "item_started"} for offset in offsets])


# -- what is seen is the same


@pytest.mark.usefixtures("fast")
@pytest.mark.parametrize("name", [*STREAMS, "tour"])
def test_a_stream_that_waits_is_traced_as_it_is_replayed(name: str, tmp_path: Path) -> None:
    """Told of when the journal is closed, all at once: the spans of a replay."""
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        for one in source(name):
            journal.append(one)
    assert check(tmp_path, traces)


@pytest.mark.usefixtures("fast")
def test_turns_that_wait_follow_each_other(tmp_path: Path) -> None:
    """Processors see a turn end before the next one starts, and at its start only what was known then."""
    order: list[Any] = []

    class Order(SpanProcessor):
        def on_start(self, span: Any, parent_context: Any = None) -> None:
            del parent_context
            order.append((span.name, sorted(span.attributes)))

        def on_end(self, span: Any) -> None:
            order.append(span.name)

    traces = Traces()
    traces.provider.add_span_processor(Order())
    with instrumented(traces=traces), open_journal("s", base_dir=tmp_path) as journal:
        for number in (1, 2):
            journal.append(event(number, "turn_started"))
            journal.append(event(number, "item_completed", item_type="message", item_id="i"))
            journal.append(event(number, "turn_completed", final=True, model="m-1"))
    known = ["gen_ai.conversation.id", "gen_ai.operation.name", "raxol.journal.first_offset"]
    begins = ("invoke_agent", [*known, "raxol.session.id", "raxol.turn.id"])
    says = ("message", ["raxol.item.id", "raxol.item.type"])
    assert order == [begins, says, "message", "invoke_agent"] * 2


@pytest.mark.usefixtures("fast")
def test_what_the_agent_changes_afterwards_is_not_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One payload used again and again, lists and objects inside it too: each record as it was written."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        journal.append(event(1, "turn_started"))
        called = event(1, "item_completed", item_type="tool_use", name="sh", arguments={"argv": ["ls", {"n": 0}]})
        payload, arguments = called["payload"], called["payload"]["arguments"]
        for number in range(3):
            payload.update(item_id=f"i{number}", call_id=f"c{number}")
            arguments["argv"][1]["n"] = number
            journal.append(called)
        usage = {"input_tokens": 7}
        journal.append(event(1, "turn_completed", usage=usage))
        usage["input_tokens"] = 1_000
        journal.append(event(1, "turn_completed", final=True))
    calls = [span["attributes"] for span in traces.own() if span["name"] == "execute_tool sh"]
    assert [(said["gen_ai.tool.call.id"], said["gen_ai.tool.call.arguments"]) for said in calls] == [
        (f"c{number}", f'{{"argv":["ls",{{"n":{number}}}]}}') for number in range(3)
    ]
    (whole,) = (span for span in traces.own() if span["name"] == "invoke_agent")
    assert whole["attributes"]["gen_ai.usage.input_tokens"] == 7


@pytest.mark.usefixtures("fast")
def test_what_only_an_encoder_takes_is_told_at_once(tmp_path: Path) -> None:
    """A tuple in a payload is not kept apart from what the agent has: that record does not wait, nor those before."""
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        journal.append(event(1, "turn_started"))
        journal.append(event(1, "item_completed", item_type="message", item_id="i", content="a"))
        assert traces.all() == ()
        journal.append(event(1, "item_started", item_type="message", item_id="j", parts=("a",)))
        assert [span["name"] for span in traces.own()] == ["message"]
        journal.append(event(1, "turn_canceled"))
    assert by_id(traces.own()) == by_id(replayed(tmp_path))


# -- until when


def test_an_agent_at_its_ease_is_told_of_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first records of a second do not wait, however late the clock would call."""
    monkeypatch.setattr(waiting, "WAITING_SECONDS", LATE)
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        for number in range(3):
            for one in turn(number):
                journal.append(one)
            assert len(traces.own()) == 2 * (number + 1)


def test_the_clock_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody appends any more, and nobody asks: what waits is told of a moment later."""
    monkeypatch.setattr(waiting, "AT_ONCE_MAX", 0)
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        journal.append_many([event(1, "turn_started"), event(1, "turn_canceled")])
        assert soon(lambda: len(traces.own()) == 1)
        journal.append_many([event(2, "turn_started"), event(2, "turn_canceled")])
        assert soon(lambda: len(traces.own()) == 2)


def test_the_clock_leaves_alone_who_tells_by_himself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something was told of just now: what came since waits once more, and no longer than that."""
    monkeypatch.setattr(waiting, "AT_ONCE_MAX", 0)
    told = Told()
    told.put(1)
    told.waiting.flush()
    told.put(2)
    told.waiting.due()
    assert told.calls == [[1]]
    assert soon(lambda: told.calls == [[1], [2]])


@pytest.mark.usefixtures("fast")
def test_who_asks_is_told(tmp_path: Path) -> None:
    """A scrape, `use_turn`, `flush`, an approval, and the journal's end: nothing waits any longer."""
    logs, registry = Logs(), CollectorRegistry()
    with instrumented(logger_provider=logs.provider, registry=registry) as traces:
        journal = open_journal("s", base_dir=tmp_path)

        def ended() -> int:
            journal.append(event(1, "item_completed", item_type="message", item_id=f"m{journal.last_offset}"))
            return len(traces.own())

        journal.append(event(1, "turn_started"))
        with use_turn(journal) as span:
            assert span.is_recording()
        assert ended() == 0
        with use_turn(journal):
            assert len(traces.own()) == 1
        assert ended() == 1
        assert 'raxol_journal_records_total{source="agent",type="item_completed"} 2.0' in (
            generate_latest(registry).decode()
        )
        assert len(traces.own()) == 2
        assert ended() == 2
        JournalInstrumentor().flush()
        assert len(traces.own()) == 3
        assert ended() == 3
        journal.append(event(1, "approval_requested", request_id="r", risk="low"))
        assert [one.event_name for one in logs.events()] == ["raxol.approval.requested"]
        assert len(traces.own()) == 4
        journal.append(event(1, "turn_canceled"))
        journal.close()
        assert len(traces.own()) == 5
    assert by_id(traces.own()) == by_id(replayed(tmp_path))


@pytest.mark.usefixtures("fast")
def test_syncs_that_wait_are_in_a_scrape(tmp_path: Path) -> None:
    """Each of them once."""
    registry = CollectorRegistry()
    with instrumented(registry=registry), open_journal("s", base_dir=tmp_path) as journal:
        for number in range(3):
            journal.append(event(number, "idle"), sync=True)
        text = generate_latest(registry).decode()
        assert 'raxol_journal_sync_duration_seconds_count{source="agent"} 3.0' in text
        assert 'raxol_journal_sync_duration_seconds_count{source="agent"} 3.0' in generate_latest(registry).decode()


@pytest.mark.usefixtures("fast")
def test_turning_it_off_tells_first(tmp_path: Path) -> None:
    """With the journal still open."""
    with open_journal("s", base_dir=tmp_path) as journal:
        with instrumented() as traces:
            journal.append_many([event(1, "turn_started"), event(1, "turn_canceled")])
            assert traces.all() == ()
        assert len(traces.own()) == 1


@pytest.mark.usefixtures("fast")
def test_so_many_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more, and all are told of, in order, in the thread that appends."""
    monkeypatch.setattr(waiting, "WAITING_MAX", 4)
    told = Told()
    for offset in range(1, 10):
        told.put(offset)
    assert told.calls == [[1, 2, 3, 4], [5, 6, 7, 8]]
    told.waiting.flush()
    assert told.calls[2:] == [[9]]


def test_without_a_thread_nothing_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As at the interpreter's end, when no thread can be started."""

    class NoClock:
        def after(self, _seconds: float, _target: object) -> None:
            raise RuntimeError("can't start new thread")

    monkeypatch.setattr(waiting, "AT_ONCE_MAX", 0)
    monkeypatch.setattr(waiting, "_clock", NoClock())
    told = Told()
    told.put(1)
    assert told.calls == [[1]]


@pytest.mark.usefixtures("fast")
def test_within_itself_it_only_waits() -> None:
    """Records put by what is told (a processor that appends) come after it, not in the middle of it."""
    order: list[Any] = []

    def tell(records: list[dict[str, Any]]) -> None:
        for record in records:
            order.append(record["id"])
            if record["id"] == 1:
                own.put([{"id": 3, "type": "error"}])
                own.flush()

    own = Waiting(tell)
    own.put([{"id": 1, "type": "idle"}, {"id": 2, "type": "error"}])
    assert order == [1, 2, 3]


# -- when telemetry fails


def test_a_thread_that_is_stuck_in_telling(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait for it once and briefly, then go on; it keeps a bounded number, and what is dropped is counted."""
    monkeypatch.setattr(waiting, "KEPT_MAX", 5)
    told, before = Told(), lost()
    told.may.clear()
    thread = threading.Thread(target=told.put, args=(1,))
    thread.start()
    assert soon(lambda: told.calls == [[1]])
    began = time.monotonic()
    for offset in range(2, 12):
        told.put(offset)
    assert time.monotonic() - began < 5 * waiting.PATIENCE_SECONDS
    told.may.set()
    thread.join()
    assert told.calls == [[1], [7, 8, 9, 10, 11]]
    assert lost() == before + 5
    told.put(12)
    assert told.calls[2:] == [[12]]


def test_what_telling_raises_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    """It is counted, says nothing of a journal, and the next records are told of."""
    words, before = "what a journal says", lost()
    told: list[int] = []

    def tell(records: list[dict[str, Any]]) -> None:
        if records[0]["id"] == 1:
            raise ValueError(words)
        told.append(records[0]["id"])

    own = Waiting(tell)
    own.put([{"id": 1}])
    own.put([{"id": 2}])
    assert (told, lost()) == ([2], before + 1)
    assert words not in caplog.text


# -- the ends of processes

_AGENT: Final = """
import os, sys
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter
from raxol_otel.journal import open_journal
from raxol_otel.live import JournalInstrumentor, waiting

waiting.AT_ONCE_MAX, waiting.WAITING_SECONDS = 0, 30.0
trace.set_tracer_provider(TracerProvider())
exporter = ConsoleSpanExporter(formatter=lambda span: f"{os.getpid() == parent} {span.name}\\n")
trace.get_tracer_provider().add_span_processor(BatchSpanProcessor(exporter))
parent = os.getpid()
JournalInstrumentor().instrument()
journal = open_journal("s", base_dir=sys.argv[1])

def play(journal, name):
    for kind, payload in (("turn_started", {}), ("turn_canceled", {})):
        journal.append({"family": "loop", "type": kind, "turn_id": name, "payload": payload})

play(journal, "t1")
if sys.argv[2] == "fork":
    child = os.fork()
    if child == 0:
        play(open_journal("c", base_dir=sys.argv[1]), "t2")
        sys.exit()
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.parametrize(
    ("what", "said"), [("exit", ["True invoke_agent"]), ("fork", ["False invoke_agent", "True invoke_agent"])]
)
def test_a_process_that_ends_leaves_nothing_untold(what: str, said: list[str], tmp_path: Path) -> None:
    """Its journal still open, its turn just over; a forked child tells of its own, and of nothing of the parent's."""
    done = subprocess.run(
        [sys.executable, "-c", _AGENT, str(tmp_path), what],
        cwd=ROOT,
        env={**os.environ, "OTEL_METRICS_EXPORTER": "none"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert sorted(done.stdout.splitlines()) == said
