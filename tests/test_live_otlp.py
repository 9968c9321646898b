"""Log events and instruments through the official OTLP exporters to a receiver: names and attributes arrive intact."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.sdk._logs import LoggerProvider
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider

from raxol_otel import catalogue, signals
from raxol_otel.journal import scan
from raxol_otel.live import LogEvents, TurnInstruments
from tests.conftest import make_journal, on_disk
from tests.metrics_scrape import write_failed
from tests.otlp_receiver import Receiver, attributes
from tests.test_fold import ERROR, START, record
from tests.test_instruments import TURN, spans_of

if TYPE_CHECKING:
    from collections.abc import Iterator

RESOURCE: Final = Resource({"service.name": "agent"})


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """A receiver that takes logs and metrics."""
    with Receiver(others=True) as made:
        yield made
        assert {request.action for request in made.requests} <= {None}


def test_events_arrive(receiver: Receiver) -> None:
    """The damage of a real journal and a failed write, in a span: event names, severities, attributes, ids, scope."""
    provider = LoggerProvider(RESOURCE, shutdown_on_exit=False)
    exporter = OTLPLogExporter(f"{receiver.grpc_endpoint}/v1/logs")
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    files, _ = make_journal([1, 2, 3])
    files["journal/000001.jsonl"] = files["journal/000001.jsonl"].replace(b'"id":2', b'"id":7')
    LogEvents(provider).attach()
    try:
        with TracerProvider().get_tracer("t").start_as_current_span("work") as span, on_disk(files) as session:
            scan(session)
        write_failed("rotate", "eacces")
    finally:
        signals.detach(catalogue.LOG_EVENTS_HANDLER)
        provider.shutdown()
    logs = [message for message in receiver.others if isinstance(message, ExportLogsServiceRequest)]
    (resource,) = logs[0].resource_logs
    assert attributes(resource.resource.attributes)["service.name"] == "agent"
    (scope,) = resource.scope_logs
    assert (scope.scope.name, scope.schema_url) == (catalogue.SCOPE_NAME, catalogue.SCHEMA_URL)
    first, second = scope.log_records
    assert (first.event_name, first.severity_text, first.severity_number) == (
        "raxol.agent.journal.damaged",
        "ERROR",
        17,
    )
    assert attributes(first.attributes) == {
        "raxol.session.id": "session",
        "raxol.journal.segment": "journal/000001.jsonl",
        "raxol.journal.damage.cause": "id_gap",
        "raxol.journal.last_offset": 1,
    }
    context = span.get_span_context()
    assert (first.trace_id.hex(), first.span_id.hex()) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert (second.event_name, second.severity_text, second.severity_number) == (
        *("raxol.agent.journal.write_failed", "WARN", 13),
    )
    assert attributes(second.attributes) == {
        "raxol.session.id": "s",
        "raxol.journal.stage": "rotate",
        "error.type": "EACCES",
    }
    assert not second.trace_id


def test_instruments_arrive(receiver: Receiver) -> None:
    """Every instrument: name, unit, help, bounds, sums and attributes; the exemplar leads to the turn."""
    exporter = OTLPMetricExporter(f"{receiver.grpc_endpoint}/v1/metrics")
    reader = PeriodicExportingMetricReader(exporter, export_interval_millis=3_600_000)
    provider = MeterProvider([reader], RESOURCE, shutdown_on_exit=False)
    spans = spans_of(*TURN, record(20, START, "t2"), record(21, ERROR, "t2", reason="boom"), agent_name="Math Tutor")
    TurnInstruments(provider, legacy=True, agent_name="Math Tutor").observe_spans(spans, exemplar=True)
    provider.shutdown()
    (message,) = [message for message in receiver.others if isinstance(message, ExportMetricsServiceRequest)]
    (scope,) = message.resource_metrics[0].scope_metrics
    assert (scope.scope.name, scope.schema_url) == (catalogue.SCOPE_NAME, catalogue.SCHEMA_URL)
    metrics = {metric.name: metric for metric in scope.metrics}
    assert metrics.keys() == {entry.name for entry in catalogue.INSTRUMENTS}
    for entry in catalogue.INSTRUMENTS:
        metric = metrics[entry.name]
        points: Any = metric.histogram.data_points if entry.kind == "histogram" else metric.sum.data_points
        assert (metric.unit, metric.description) == (entry.unit, entry.help)
        for point in points:
            assert attributes(point.attributes).keys() <= set(entry.attributes)
            if entry.kind == "histogram":
                assert tuple(point.explicit_bounds) == entry.buckets
    completed, failed = metrics["gen_ai.invoke_agent.duration"].histogram.data_points
    assert attributes(completed.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.agent.name": "Math Tutor",
        "raxol.turn.outcome": "completed",
    }
    assert (completed.count, completed.sum) == (1, 9.0)
    assert attributes(failed.attributes)["error.type"] == "boom"
    turn = next(span for span in spans if span.role == "turn")
    (exemplar,) = completed.exemplars
    assert (exemplar.trace_id.hex(), exemplar.span_id.hex()) == (turn.trace_id, turn.span_id)
    (tokens,) = metrics["gen_ai.client.inference.usage.input_tokens"].sum.data_points
    assert tokens.as_int == 107
    assert attributes(tokens.attributes) == {
        "gen_ai.operation.name": "invoke_agent",
        "gen_ai.provider.name": "anthropic",
        "gen_ai.request.model": "claude-x",
        "gen_ai.token.modality": "unknown",
    }
