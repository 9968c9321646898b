"""Telemetry that fails leaves the agent alone: nothing is raised into it, nothing keeps it waiting or goes round."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider, sampling
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from prometheus_client import CollectorRegistry, generate_latest

from raxol_otel import signals
from raxol_otel.journal import open_journal
from raxol_otel.live import JournalInstrumentor
from raxol_otel.live.ending import Ending
from tests.live_sdk import Logs, Traces, instrumented, replayed
from tests.prometheus_agent import event, turn
from tests.test_live_parity import by_id

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

WORDS = "what a journal says"


class Raises(SpanProcessor):
    """A processor of the user's that raises."""

    def __init__(self, *where: str) -> None:
        self._where = where

    def on_start(self, span: Any, parent_context: Any = None) -> None:
        """Raise, or not."""
        del span, parent_context
        if "start" in self._where:
            raise ValueError(WORDS)

    def on_end(self, span: ReadableSpan) -> None:
        """Raise, or not."""
        del span
        if "end" in self._where:
            raise ValueError(WORDS)


class Stuck(SpanExporter):
    """An exporter that hangs until it is let go."""

    def __init__(self) -> None:
        self.go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Hang."""
        del spans
        self.go.wait(30)
        return SpanExportResult.FAILURE


@pytest.mark.parametrize("where", [("start",), ("end",), ("start", "end")])
def test_a_processor_that_raises(where: tuple[str, ...], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Every append works, metrics count, the loss is logged once, counted each time, and says nothing of a journal."""
    caplog.set_level(logging.WARNING)
    before = signals.handler_errors().get("raxol_otel.tracing", 0)
    traces, registry = Traces(), CollectorRegistry()
    traces.provider.add_span_processor(Raises(*where))
    with instrumented(traces=traces, registry=registry), open_journal("s", base_dir=tmp_path) as journal:
        for one in (*turn(1), *turn(2)):
            journal.append(one)
        text = generate_latest(registry).decode()
    assert len(replayed(tmp_path)) == 4
    assert 'raxol_turns_total{outcome="completed",source="agent"} 2.0' in text
    lost = signals.handler_errors()["raxol_otel.tracing"] - before
    assert lost >= 4
    assert (
        f'raxol_telemetry_handler_errors_total{{handler="raxol_otel.tracing",source="agent"}} {before + lost}' in text
    )
    assert len([record for record in caplog.records if record.name == "raxol_otel.live.tracing"]) <= 1
    assert WORDS not in caplog.text
    if where == ("end",):  # the processor before it has them
        assert len(traces.own()) == 4


def test_a_sampler_that_raises(tmp_path: Path) -> None:
    """As a processor that does."""

    class Sampler(sampling.Sampler):
        def should_sample(self, *_arguments: Any, **_more: Any) -> Any:
            raise ValueError(WORDS)

        def get_description(self) -> str:
            return "raises"

    with instrumented(traces=Traces(sampler=Sampler())), open_journal("s", base_dir=tmp_path) as journal:
        journal.append_many(turn(1))
        assert journal.last_offset == 5


def test_an_exporter_that_hangs(tmp_path: Path) -> None:
    """Appends go on at their speed while it does: 500 turns of five records wait in the queue or are dropped."""
    stuck = Stuck()
    provider = TracerProvider(shutdown_on_exit=False)
    provider.add_span_processor(BatchSpanProcessor(stuck, schedule_delay_millis=1))
    instrumentor = JournalInstrumentor()
    instrumentor.instrument(tracer_provider=provider, registry=CollectorRegistry())
    try:
        with open_journal("s", base_dir=tmp_path) as journal:
            began = time.monotonic()
            for number in range(500):
                journal.append_many(turn(number), sync=False)
            assert time.monotonic() - began < 10
    finally:
        instrumentor.uninstrument()
        stuck.go.set()
        provider.shutdown()


def test_the_end_of_a_provider_is_bounded() -> None:
    """One that hangs is left behind; one that does not shut itself down at exit is not ours to shut down."""
    stuck, other = Stuck(), Stuck()
    hangs, kept = TracerProvider(), TracerProvider(shutdown_on_exit=False)
    hangs.add_span_processor(BatchSpanProcessor(stuck))
    kept.add_span_processor(BatchSpanProcessor(other))
    hangs.get_tracer("t").start_span("a").end()
    began = time.monotonic()
    Ending(lambda: (hangs, kept, object()), seconds=0.3).run()
    assert 0.2 < time.monotonic() - began < 2
    stuck.go.set()
    hangs.shutdown()
    span = kept.get_tracer("t").start_span("a")
    assert span.is_recording()
    other.go.set()
    kept.shutdown()


def test_a_provider_that_cannot_be_shut_down(caplog: pytest.LogCaptureFixture) -> None:
    """What it raises ends in the log."""

    class Broken:
        _atexit_handler = object()

        def shutdown(self) -> None:
            raise ValueError(WORDS)

    Ending(lambda: (Broken(),)).run()
    assert [record.message for record in caplog.records] == ["a provider was not shut down (ValueError)"]


def test_a_logging_handler_that_feeds_back(tmp_path: Path) -> None:
    """A handler that appends every log record to the journal, while tracing fails and says so: it comes to an end."""
    traces = Traces()
    traces.provider.add_span_processor(Raises("start", "end"))
    logger = logging.getLogger("raxol_otel")
    with instrumented(traces=traces), open_journal("s", base_dir=tmp_path) as journal:

        class Feeds(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                journal.append(
                    event(9, "item_completed", item_type="message", item_id="log", content=record.getMessage())
                )

        handler = Feeds()
        logger.addHandler(handler)
        try:
            for one in turn(1):
                journal.append(one)
                logger.warning("something")
        finally:
            logger.removeHandler(handler)
        assert journal.last_offset < 20


def test_a_processor_that_appends(tmp_path: Path) -> None:
    """A processor of the user's that keeps a journal of spans in the journal itself: all of it is traced, in order."""
    traces = Traces()
    with instrumented(traces=traces), open_journal("s", base_dir=tmp_path) as journal:

        class Keeps(SpanProcessor):
            def on_end(self, span: ReadableSpan) -> None:
                if span.name.startswith("execute_tool"):
                    journal.append(event(1, "item_completed", item_type="message", item_id="kept"))

        traces.provider.add_span_processor(Keeps())
        for one in turn(1):
            journal.append(one)
    assert [span["name"] for span in traces.own()] == ["execute_tool sh", "message", "invoke_agent"]
    assert by_id(traces.own()) == by_id(replayed(tmp_path))


def test_a_logger_that_raises(tmp_path: Path) -> None:
    """An approval's event is lost, and nothing else."""
    logs = Logs()

    class Broken:
        def on_emit(self, *_: Any) -> None:
            raise ValueError(WORDS)

        emit = on_emit

        def shutdown(self) -> None:
            pass

        def force_flush(self, *_: Any) -> bool:
            return True

    logs.provider.add_log_record_processor(Broken())  # type: ignore[arg-type]  # it has what is called
    before = signals.handler_errors().get("raxol_otel.tracing", 0)
    with instrumented(logger_provider=logs.provider) as traces, open_journal("s", base_dir=tmp_path) as journal:
        for one in turn(1):
            journal.append(one)
    assert len(traces.own()) == 2
    assert signals.handler_errors()["raxol_otel.tracing"] == before + 1
