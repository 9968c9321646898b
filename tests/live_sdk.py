"""Providers of the SDK that remember what they are given: helpers of the tests of `raxol_otel.live`."""

from __future__ import annotations

from contextlib import contextmanager
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from opentelemetry.sdk import _logs as sdk_logs
from opentelemetry.sdk._logs import export as sdk_export
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from prometheus_client import CollectorRegistry

from raxol_otel.exporters.base import BaseExporter, ExportResult
from raxol_otel.exporters.replay import replay
from raxol_otel.live import JournalInstrumentor

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from raxol_otel.exporters.replay import ReplayOptions
    from raxol_otel.turns import Span

# A span as plain data: name, ids, parent, times, attributes, events, links, status.
Plain = dict[str, Any]

__all__ = ["Collected", "Logs", "Meters", "Traces", "instrumented", "of_fold", "replayed"]

# Its name before 1.39.
_IN_MEMORY: Any = getattr(sdk_export, "InMemoryLogRecordExporter", None) or getattr(
    sdk_export, "InMemoryLogExporter", None
)


class Logs:
    """A logger provider and the events that it was given."""

    def __init__(self) -> None:
        self._exporter = _IN_MEMORY()
        self.provider = sdk_logs.LoggerProvider(shutdown_on_exit=False)
        self.provider.add_log_record_processor(sdk_export.SimpleLogRecordProcessor(self._exporter))

    def events(self) -> list[Any]:
        """The records, in order, their attributes as plain dictionaries."""
        records = [data.log_record for data in self._exporter.get_finished_logs()]
        keys = ("event_name", "severity_number", "severity_text", "body", "timestamp", "trace_id", "span_id")
        return [
            SimpleNamespace(attributes=dict(record.attributes), **{key: getattr(record, key) for key in keys})
            for record in records
        ]

    def scopes(self) -> list[Any]:
        """The scope of each record."""
        return [data.instrumentation_scope for data in self._exporter.get_finished_logs()]


class Meters:
    """A meter provider and what its instruments say."""

    def __init__(self) -> None:
        self._reader = InMemoryMetricReader()
        self.provider = MeterProvider([self._reader], shutdown_on_exit=False)

    @contextmanager
    def active_span(self) -> Generator[None]:
        """Meanwhile a sampled span of somebody else's is active."""
        with TracerProvider(shutdown_on_exit=False).get_tracer("somebody").start_as_current_span("else"):
            yield

    def metrics(self) -> dict[str, Any]:
        """The metrics by their names."""
        data = self._reader.get_metrics_data()
        found = [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []
        return {metric.name: metric for scope in found for metric in scope.metrics}

    def scopes(self) -> list[Any]:
        """The scopes and their schemas."""
        data = self._reader.get_metrics_data()
        return [scope for resource in data.resource_metrics for scope in resource.scope_metrics] if data else []

    def points(self, name: str) -> list[Any]:
        """The data points of a metric."""
        metric = self.metrics().get(name)
        return list(metric.data.data_points) if metric else []

    def said(self, name: str) -> dict[Any, Any]:
        """What a metric says by its attributes: a counter's value, a histogram's count and sum."""
        return {
            frozenset(_plain(point.attributes).items()): (
                (point.count, round(point.sum, 9)) if hasattr(point, "count") else point.value
            )
            for point in self.points(name)
        }


def _plain(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    return dict(attributes or {})


class Traces:
    """A tracer provider and the spans that it exported."""

    def __init__(self, **options: Any) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(shutdown_on_exit=False, **options)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))

    def all(self) -> tuple[ReadableSpan, ...]:
        """All spans, in the order in which they ended."""
        return self._exporter.get_finished_spans()

    def own(self) -> list[Plain]:
        """The spans of our scope."""
        scopes = [(span, span.instrumentation_scope) for span in self.all()]
        return [_of_sdk(span) for span, scope in scopes if scope is not None and scope.name == "raxol_otel"]

    def clear(self) -> None:
        """Forget them."""
        self._exporter.clear()


def _of_sdk(span: ReadableSpan) -> Plain:
    context, parent = span.get_span_context(), span.parent
    assert context is not None
    assert span.kind.name == "INTERNAL"
    return {
        "name": span.name,
        "trace_id": f"{context.trace_id:032x}",
        "span_id": f"{context.span_id:016x}",
        "parent_id": f"{parent.span_id:016x}" if parent else "",
        "parent_trace": f"{parent.trace_id:032x}" if parent else "",
        "times": (span.start_time, span.end_time),
        "attributes": _plain(span.attributes),
        "events": [(event.name, event.timestamp, _plain(event.attributes)) for event in span.events],
        "links": [(f"{link.context.trace_id:032x}", f"{link.context.span_id:016x}") for link in span.links],
        "status": (span.status.status_code.name, span.status.description),
    }


def of_fold(span: Span) -> Plain:
    """A span of the fold in the same form."""
    return {
        "name": span.name,
        "trace_id": span.trace_id,
        "span_id": span.span_id,
        "parent_id": span.parent_id,
        "parent_trace": span.trace_id if span.parent_id else "",
        "times": (span.start_ns, span.end_ns),
        "attributes": dict(span.attributes),
        "events": [(event.name, event.time_ns, dict(event.attributes)) for event in span.events],
        "links": [(link.trace_id, link.span_id) for link in span.links],
        "status": ("ERROR" if span.error else "UNSET", None),
    }


class Collected(BaseExporter):
    """An exporter that keeps the spans of a replay."""

    def __init__(self) -> None:
        self.spans: list[Plain] = []

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Keep them."""
        self.spans += [of_fold(span) for span in spans]
        return ExportResult(len(spans))

    def finish(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Nothing to do."""


def replayed(folder: Path, options: ReplayOptions | None = None) -> list[Plain]:
    """What a replay of all sessions in the folder gives."""
    collected = Collected()
    replay([folder], collected, options)
    return collected.spans


@contextmanager
def instrumented(**options: Any) -> Generator[Traces]:
    """Meanwhile journals are followed; the spans."""
    traces = options.pop("traces", None) or Traces()
    instrumentor = JournalInstrumentor()
    options.setdefault("registry", CollectorRegistry())
    instrumentor.instrument(tracer_provider=traces.provider, **options)
    try:
        yield traces
    finally:
        instrumentor.uninstrument()
