"""Approvals and errors of open turns as OpenTelemetry log events, under the turn's span, when they happen."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Final

from opentelemetry._logs import LogRecord, SeverityNumber, get_logger

from raxol_otel import __version__, signals
from raxol_otel import catalogue as names

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry._logs import LoggerProvider
    from opentelemetry.context import Context

    from raxol_otel.turns.span import Attributes, SpanEvent

__all__ = ["TurnEvents"]

_SEVERITIES: Final = {names.EVENT_APPROVAL: SeverityNumber.INFO, names.EVENT_EXCEPTION: SeverityNumber.ERROR}

_log = logging.getLogger(__name__)


class TurnEvents:
    """Gives span events to a logger of the user's provider, or of the global one, whenever that is set."""

    def __init__(self, logger_provider: LoggerProvider | None = None) -> None:
        self._logger = get_logger(names.SCOPE_NAME, __version__, logger_provider, names.SCHEMA_URL)

    def emit(self, events: Sequence[SpanEvent], common: Attributes, context: Context) -> None:
        """Emit the approvals and errors among the events, with what is said of each of them."""
        for event in events:
            severity = _SEVERITIES.get(event.name)
            if severity is None:
                continue
            try:
                self._logger.emit(
                    LogRecord(
                        timestamp=event.time_ns,
                        context=context,
                        severity_number=severity,
                        severity_text=severity.name,
                        attributes=common | event.attributes,
                        event_name=event.name,
                    )
                )
            except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
                if signals.count_error(names.TRACING_HANDLER) == 1:
                    # Only what kind of error: its text may quote a journal.
                    _log.warning("an event was lost (%s); further losses are only counted", type(error).__name__)
