"""The instrumentor by hand: on once, off without a trace; whose provider, whose ids."""

from __future__ import annotations

import logging
import subprocess
import sys
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags
from prometheus_client import CollectorRegistry, generate_latest

from raxol_otel import __version__, catalogue, signals
from raxol_otel.journal import checkpoint, open_journal
from raxol_otel.live import JournalInstrumentor
from raxol_otel.live.base import PlainInstrumentor
from raxol_otel.metrics import Metrics
from tests.conftest import ROOT
from tests.live_sdk import Logs, Meters, Traces, instrumented, replayed
from tests.prometheus_agent import turn
from tests.test_live_parity import by_id

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from opentelemetry.sdk.trace import TracerProvider

    from raxol_otel.journal import Journal

SCOPE: Final = ("raxol_otel", __version__, "https://opentelemetry.io/schemas/gen-ai/0.1.0")


def play(folder: Path, session: str = "s", number: int = 1) -> None:
    """A turn of two spans."""
    with open_journal(session, base_dir=folder) as journal:
        for one in turn(number):
            journal.append(one)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """A journal that is open."""
    with open_journal("s", base_dir=tmp_path) as made:
        yield made


def test_all_of_it_by_hand(tmp_path: Path) -> None:
    """Spans, log events, instruments and Prometheus metrics of one turn, each with our scope, where it has one."""
    logs, meters, registry = Logs(), Meters(), CollectorRegistry()
    with instrumented(
        logger_provider=logs.provider, meter_provider=meters.provider, registry=registry, agent_name="Ana"
    ) as traces:
        with open_journal("s", base_dir=tmp_path) as journal:
            for one in turn(1):
                journal.append(one)
            checkpoint.write(journal, {})
        text = generate_latest(registry).decode()
    tool, whole = traces.all()
    assert (tool.name, whole.name) == ("execute_tool sh", "invoke_agent Ana")
    for span in (tool, whole):
        scope = span.instrumentation_scope
        assert scope is not None
        assert (scope.name, scope.version, scope.schema_url) == SCOPE
    approval, surrogate = logs.events()
    assert approval.event_name == "raxol.approval.requested"
    assert approval.severity_text == "INFO"
    assert approval.attributes == {
        "raxol.session.id": "s",
        "raxol.turn.id": "t1",
        "raxol.approval.request_id": "r",
        "raxol.approval.risk": "low",
    }
    context, called = whole.get_span_context(), tool.get_span_context()
    assert context is not None
    assert called is not None
    assert (approval.trace_id, approval.span_id) == (context.trace_id, context.span_id)
    assert surrogate.event_name == "raxol.agent.journal.checkpoint.surrogate"
    assert [(scope.name, scope.version, scope.schema_url) for scope in logs.scopes()] == [SCOPE, SCOPE]
    (point,) = meters.points("gen_ai.execute_tool.duration")
    assert point.attributes["gen_ai.agent.name"] == "Ana"
    assert point.exemplars[0].span_id == called.span_id
    assert 'raxol_turns_total{outcome="completed",source="agent"} 1.0' in text
    assert 'raxol_journal_records_total{source="agent",type="turn_started"} 1.0' in text


def test_twice_is_once_and_off_is_off(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A second `instrument` changes nothing; after `uninstrument` the tracer makes its own ids, and nothing is left."""
    registry, traces, others = CollectorRegistry(), Traces(), Traces()
    generator = traces.provider.get_tracer(*SCOPE[:2], schema_url=SCOPE[2]).id_generator  # type: ignore[attr-defined]
    handlers = signals.handlers()
    with instrumented(traces=traces, registry=registry):
        JournalInstrumentor().instrument(tracer_provider=others.provider)
        assert JournalInstrumentor().is_instrumented_by_opentelemetry
        play(tmp_path)
        assert len(traces.own()) == 2
    assert others.all() == ()
    JournalInstrumentor().uninstrument()
    play(tmp_path, "t")
    assert len(traces.own()) == 2
    tracer: Any = traces.provider.get_tracer(*SCOPE[:2], schema_url=SCOPE[2])
    assert tracer.id_generator is generator
    assert signals.handlers() == handlers
    assert generate_latest(registry) == b""
    assert [record.message for record in caplog.records] == [
        "Attempting to instrument while already instrumented",
        "Attempting to uninstrument while already uninstrumented",
    ]


def test_a_journal_that_is_open_already_is_followed_and_let_go(tmp_path: Path, journal: Journal) -> None:
    """What was appended before is not exported, but for the turn that is open; nothing after `uninstrument`."""
    journal.append_many(turn(1))
    journal.append_many(turn(2)[:4])
    with instrumented() as traces:
        journal.append(turn(2)[4])
        (span,) = traces.own()
        assert span["attributes"]["raxol.turn.id"] == "t2"
        journal.append_many(turn(3)[:3])
    journal.append_many(turn(3)[3:])
    journal.append_many(turn(4))
    assert len(traces.own()) == 1
    assert by_id(replayed(tmp_path))[span["span_id"]] == span


def test_importing_it_takes_the_api_only_and_sets_no_provider() -> None:
    """Neither the SDK nor a provider is there before the user brings them."""
    script = (
        "import sys; from raxol_otel.live import JournalInstrumentor as J; J().instrument();"
        "from opentelemetry import trace, _logs, metrics;"
        "print(sorted(n for n in sys.modules if n.startswith('opentelemetry.sdk')), trace._TRACER_PROVIDER,"
        " _logs._internal._LOGGER_PROVIDER, metrics._internal._METER_PROVIDER)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("[] None None None\n", "")


def test_without_its_package_it_works_by_hand(tmp_path: Path) -> None:
    """Where opentelemetry-instrumentation is not installed, the instrumentor is a plain one."""
    script = f"""
import sys
sys.modules["opentelemetry.instrumentation.instrumentor"] = None
from pathlib import Path
from raxol_otel.live import JournalInstrumentor
from raxol_otel.live.base import PlainInstrumentor
from tests.live_sdk import instrumented
from tests.test_live_instrumentor import play
assert isinstance(JournalInstrumentor(), PlainInstrumentor)
with instrumented() as traces:
    play(Path({str(tmp_path)!r}))
print(len(traces.own()))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr) == ("2\n", "")


def test_the_plain_instrumentor_is_one_and_on_or_off(caplog: pytest.LogCaptureFixture) -> None:
    """As OpenTelemetry's own: one a class, twice is once, its options for dependencies are not handed on."""
    said: list[object] = []

    class Own(PlainInstrumentor):
        def _instrument(self, **options: Any) -> None:
            said.append(options)

        def _uninstrument(self, **options: Any) -> None:
            said.append(options)

    assert Own() is Own()
    Own().instrument(skip_dep_check=True, raise_exception_on_conflict=True, x=1)
    Own().instrument(x=2)
    assert Own().is_instrumented_by_opentelemetry
    Own().uninstrument()
    Own().uninstrument()
    assert not Own().is_instrumented_by_opentelemetry
    assert said == [{"x": 1}, {}]
    assert len(caplog.records) == 2


def test_a_registry_that_is_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Where somebody's metrics of these names are registered, ours are left out, and the spans come all the same."""
    registry = CollectorRegistry()
    Metrics(registry)
    with instrumented(registry=registry) as traces:
        play(tmp_path)
    assert len(traces.own()) == 2
    assert len(caplog.records) == 1
    assert b'raxol_turns_total{outcome="completed",source="agent"} 0.0' in generate_latest(registry)


def test_the_global_provider_whenever_it_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Turns before it are not traced; the one that is open when it comes is, whole, with the ids of a replay."""
    traces = Traces()
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", None)
    instrumentor = JournalInstrumentor()
    instrumentor.instrument(registry=CollectorRegistry())
    try:
        with open_journal("s", base_dir=tmp_path) as journal:
            journal.append_many(turn(1))
            journal.append_many(turn(2)[:1])
            monkeypatch.setattr(trace, "_TRACER_PROVIDER", traces.provider)
            journal.append_many(turn(2)[1:])
    finally:
        instrumentor.uninstrument()
    live, again = by_id(traces.own()), by_id(replayed(tmp_path))
    assert len(live) == 2
    assert live == {span_id: again[span_id] for span_id in live}


def test_a_disabled_sdk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """OTEL_SDK_DISABLED: no span, nothing stamped; Prometheus, which is no part of it, counts."""
    monkeypatch.setenv("OTEL_SDK_DISABLED", "true")
    registry = CollectorRegistry()
    parent = NonRecordingSpan(SpanContext(1, 2, is_remote=True, trace_flags=TraceFlags(1)))
    with instrumented(registry=registry) as traces, trace.use_span(parent), open_journal("s", base_dir=tmp_path) as one:
        one.append_many(turn(1))
        assert "traceparent" not in one.read()[0]
        assert b'raxol_turns_total{outcome="completed",source="agent"} 1.0' in generate_latest(registry)
    assert traces.all() == ()


class _Foreign(trace.TracerProvider):
    """A provider that is not the SDK's: behind it is one, and it shows nothing of that."""

    def __init__(self, inner: TracerProvider) -> None:
        self._inner = inner

    def get_tracer(self, *arguments: Any, **more: Any) -> trace.Tracer:
        return _ForeignTracer(self._inner.get_tracer(*arguments, **more))


class _ForeignTracer(trace.Tracer):
    def __init__(self, inner: trace.Tracer) -> None:
        self._inner = inner

    def start_span(self, *arguments: Any, **more: Any) -> trace.Span:
        return self._inner.start_span(*arguments, **more)

    def start_as_current_span(self, *arguments: Any, **more: Any) -> Any:
        return self._inner.start_as_current_span(*arguments, **more)


def test_a_provider_that_is_not_the_sdks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Its ids, ours as attributes, one warning; names, times and parents are as ever."""
    traces, meters = Traces(), Meters()
    instrumentor = JournalInstrumentor()
    instrumentor.instrument(
        tracer_provider=_Foreign(traces.provider), meter_provider=meters.provider, registry=CollectorRegistry()
    )
    try:
        play(tmp_path)
        play(tmp_path, number=2)
    finally:
        instrumentor.uninstrument()
    assert [record.message for record in caplog.records] == [
        "the tracer is a _ForeignTracer, not the SDK's: its spans have ids of their own, and a replay has others"
    ]
    again = by_id(replayed(tmp_path))
    ours = {span["attributes"].pop("raxol.span_id"): span for span in traces.own()}
    traces_of = {span.pop("trace_id"): span["attributes"].pop("raxol.trace_id") for span in ours.values()}
    assert ours.keys() == again.keys()
    assert set(traces_of.values()) == {span["trace_id"] for span in again.values()}
    for span_id, span in ours.items():
        assert span["span_id"] != span_id
        for key in ("name", "times", "attributes", "events", "status"):
            assert span[key] == again[span_id][key]
    # What leads nowhere is no exemplar.
    assert [point.exemplars for point in meters.points("gen_ai.execute_tool.duration")] == [[]]


def test_chosen_ids_are_used_by_our_spans_only(tmp_path: Path) -> None:
    """The user's own tracer, and another scope of the same provider, go on with the generator of the provider."""
    with instrumented() as traces:
        other: Any = traces.provider.get_tracer("other")
        assert other.id_generator is traces.provider.id_generator
        own: Any = JournalInstrumentor()._live._sinks.tracing._tracer  # type: ignore[union-attr]  # it is on
        assert own.id_generator is not traces.provider.id_generator
        with own.start_as_current_span("not chosen") as span:
            assert span.get_span_context().is_valid
        play(tmp_path)
        first, second = (own.start_span("a").get_span_context() for _ in range(2))
        assert first.span_id != second.span_id
        assert own.id_generator.is_trace_id_random() is hasattr(RandomIdGenerator, "is_trace_id_random")
        own.id_generator.inner.extra = "seen through"
        assert own.id_generator.extra == "seen through"


def test_instrumenting_while_others_append(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """On and off again and again: no append fails, and no span comes twice."""
    caplog.set_level(logging.WARNING)
    stop = threading.Event()
    failed: list[BaseException] = []
    with open_journal("s", base_dir=tmp_path) as journal:

        def work() -> None:
            number = 0
            try:
                while not stop.is_set():
                    number += 1
                    for one in turn(number):
                        journal.append(one, sync=False)
                    stop.wait(0.0005)
            except BaseException as error:  # noqa: BLE001 - told to the test
                failed.append(error)

        thread = threading.Thread(target=work)
        thread.start()
        traces = Traces()
        for _ in range(10):
            with instrumented(traces=traces):
                stop.wait(0.05)
        stop.set()
        thread.join()
    assert failed == []
    assert caplog.records == []
    live, again = by_id(traces.own()), by_id(replayed(tmp_path))
    assert live
    assert live == {span_id: again[span_id] for span_id in live}


def test_the_names_of_what_a_foreign_span_carries() -> None:
    """They are public, as all names."""
    assert (catalogue.TRACE_ID, catalogue.SPAN_ID) == ("raxol.trace_id", "raxol.span_id")
