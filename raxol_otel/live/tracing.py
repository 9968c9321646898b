"""The fold's spans as spans of the user's tracer: started and ended, nothing handed past sampling and processors.

With the SDK's provider they carry the ids of the fold, so that a replay gives the same; another's give their own, and
ours are attributes. What a sampler or a processor raises is logged once, counted, and goes no further.
"""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.context import Context
from opentelemetry.trace import (
    INVALID_SPAN,
    Link,
    NoOpTracer,
    ProxyTracer,
    SpanContext,
    Status,
    StatusCode,
    get_tracer,
    set_span_in_context,
)

from raxol_otel import __version__, signals
from raxol_otel import catalogue as names
from raxol_otel.live.ids import ChosenIds, choose

if TYPE_CHECKING:
    from opentelemetry import trace

    from raxol_otel.turns import Span

__all__ = ["NOWHERE", "Tracing"]

# A context without a span. Not empty: some take that for none, and look for the active span instead.
NOWHERE: Final = set_span_in_context(INVALID_SPAN, Context())
_ERROR: Final = Status(StatusCode.ERROR)

_log = logging.getLogger(__name__)


class Tracing:
    """Spans on a tracer of the user's provider, or of the global one, from when that is set."""

    def __init__(self, tracer_provider: trace.TracerProvider | None = None) -> None:
        self._provider = tracer_provider
        self._lock = threading.Lock()
        self._tracer: trace.Tracer | None = None
        self._is_closed = False
        self._has_own_ids = False
        self._attempt()

    @property
    def is_on(self) -> bool:
        """Whether spans lead anywhere."""
        return (self._tracer or self._attempt()) is not None

    def begin(self, span: Span, context: Context) -> trace.Span | None:
        """Start a turn's span; None where nothing takes it."""
        try:
            return self._start(span, context)
        except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
            self._failed(error)
            return None

    def end(self, live: trace.Span, span: Span) -> None:
        """End a turn's span with everything that is known now."""
        try:
            if live.is_recording():
                said: dict[str, Any] = dict(getattr(live, "attributes", None) or {})
                live.set_attributes({key: value for key, value in span.attributes.items() if said.get(key) != value})
            self._finish(live, span)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)

    def whole(self, span: Span, context: Context) -> trace.Span | None:
        """Start and end a span."""
        try:
            made = self._start(span, context)
            if made is not None:
                self._finish(made, span)
        except Exception as error:  # noqa: BLE001 - as above
            self._failed(error)
            return None
        return made

    def close(self) -> None:
        """Give the tracer its own ids back. Nothing is traced any more."""
        with self._lock:
            self._is_closed = True
            tracer: Any = self._tracer
            if tracer is not None and isinstance(getattr(tracer, "id_generator", None), ChosenIds):
                tracer.id_generator = tracer.id_generator.inner
            self._tracer = None

    # -- the span

    def _start(self, span: Span, context: Context) -> trace.Span | None:
        tracer = self._tracer or self._attempt()
        if tracer is None:
            return None
        attributes = span.attributes
        if self._has_own_ids:
            attributes = attributes | {names.TRACE_ID: span.trace_id, names.SPAN_ID: span.span_id}
        links: list[Link] | None = None
        if span.links:
            links = [
                Link(SpanContext(int(link.trace_id, 16), int(link.span_id, 16), is_remote=False)) for link in span.links
            ]
        choose((int(span.trace_id, 16), int(span.span_id, 16)))
        try:
            return tracer.start_span(span.name, context, attributes=attributes, links=links, start_time=span.start_ns)
        finally:
            choose(None)

    @staticmethod
    def _finish(made: trace.Span, span: Span) -> None:
        for event in span.events:
            made.add_event(event.name, event.attributes, event.time_ns)
        if span.error:
            made.set_status(_ERROR)
        made.end(span.end_ns)

    # -- the tracer

    def _attempt(self) -> trace.Tracer | None:
        """The tracer, once there is a provider: until then the API's proxy answers."""
        with self._lock:
            if self._tracer is not None or self._is_closed:
                return self._tracer
            try:
                tracer: Any = get_tracer(names.SCOPE_NAME, __version__, self._provider, names.SCHEMA_URL)
            except Exception as error:  # noqa: BLE001 - as above
                self._failed(error)
                return None
            if isinstance(tracer, ProxyTracer | NoOpTracer):
                return None
            if hasattr(tracer, "id_generator"):
                if not isinstance(tracer.id_generator, ChosenIds):
                    tracer.id_generator = ChosenIds(tracer.id_generator)
            else:
                self._has_own_ids = True
                _log.warning(
                    "the tracer is a %s, not the SDK's: its spans have ids of their own, and a replay has others",
                    type(tracer).__name__,
                )
            self._tracer = tracer
            return self._tracer

    @staticmethod
    def _failed(error: Exception) -> None:
        if signals.count_error(names.TRACING_HANDLER) == 1:
            # Only what kind of error: its text may quote a journal.
            _log.warning("tracing lost a span (%s); further losses are only counted", type(error).__name__)
