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

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

__all__ = ["Logs", "Meters"]

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
