"""The core's three signals as OpenTelemetry log events: one LogRecord each, with the ids of the active span.

Only the API: without an SDK nothing happens. Attributes are identifiers, numbers and members of closed sets; where a
journal is on this machine is not among them.
"""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import LogRecord, SeverityNumber, get_logger

from raxol_otel import __version__, signals
from raxol_otel import catalogue as names
from raxol_otel.bounds import DistinctDamage
from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from opentelemetry._logs import LoggerProvider

    from raxol_otel.turns.span import Attributes

__all__ = ["LogEvents"]

_CAUSES: Final = frozenset(names.DAMAGE_CAUSES)
_STAGES: Final = frozenset(names.WRITE_STAGES)
_OPS: Final = frozenset(names.SURROGATE_OPS)
# The name of an errno in upper case, for each reason that has one.
_ERRORS: Final = {reason: reason.upper() for reason in names.WRITE_REASONS if reason != names.OVERFLOW}
# Records may be lost after these; the others leave only work for the next time.
_GRAVE_STAGES: Final = frozenset({"append", "datasync"})
# The end of a path: what of it is inside the session's directory.
_SEGMENT: Final = re.compile(r"(?:\A|.*/)(journal/[0-9]{6}\.jsonl|HEAD)", re.ASCII | re.DOTALL)


class LogEvents:
    """Gives signals to a logger of the user's provider, or of the global one, whenever that is set."""

    def __init__(self, logger_provider: LoggerProvider | None = None) -> None:
        self._logger = get_logger(names.SCOPE_NAME, __version__, logger_provider, names.SCHEMA_URL)
        self._damages = DistinctDamage()
        self._events = {
            names.SIGNAL_DAMAGED: _damaged,
            names.SIGNAL_WRITE_FAILED: _write_failed,
            names.SIGNAL_SURROGATE: _surrogate,
        }

    def attach(self) -> None:
        """Emit from now on. There is one handler of that name: another's `attach` takes its place."""
        signals.attach(names.LOG_EVENTS_HANDLER, self.emit)

    @staticmethod
    def detach() -> bool:
        """Emit no more; says whether anything was attached."""
        return signals.detach(names.LOG_EVENTS_HANDLER)

    def emit(self, signal: signals.Signal) -> None:
        """Emit a signal as an event, each distinct damage once. What raises here is the bus's to catch and count."""
        describe = self._events.get(signal.name)
        if describe is None:
            return
        said = values.as_mapping(signal.metadata)
        if signal.name == names.SIGNAL_DAMAGED and not self._damages.is_new(said):
            return
        attributes: Attributes = {}
        session = values.text_of(said.get("session_id")).rpartition("/")[2]
        if session:
            attributes[names.SESSION_ID] = values.clean(session)
        severity = describe(said, attributes)
        self._logger.emit(
            LogRecord(
                timestamp=time.time_ns(),
                severity_number=severity,
                severity_text=severity.name,
                attributes=attributes,
                event_name=signal.name,
            )
        )


def _damaged(said: Mapping[str, Any], attributes: Attributes) -> SeverityNumber:
    segment = said.get("segment")
    inside = _SEGMENT.fullmatch(segment) if type(segment) is str else None
    if inside:
        attributes[names.JOURNAL_SEGMENT] = inside[1]
    attributes[names.DAMAGE_CAUSE] = values.member(said.get("cause"), _CAUSES)
    _put_offset(attributes, names.LAST_OFFSET, said.get("last_offset"))
    return SeverityNumber.ERROR


def _write_failed(said: Mapping[str, Any], attributes: Attributes) -> SeverityNumber:
    stage, reason = values.member(said.get("stage"), _STAGES), said.get("reason")
    attributes[names.JOURNAL_STAGE] = stage
    attributes[names.ERROR_TYPE] = _ERRORS.get(reason, names.UNNAMED) if type(reason) is str else names.UNNAMED
    return SeverityNumber.ERROR if stage in _GRAVE_STAGES else SeverityNumber.WARN


def _surrogate(said: Mapping[str, Any], attributes: Attributes) -> SeverityNumber:
    attributes[names.CHECKPOINT_OP] = values.member(said.get("op"), _OPS)
    _put_offset(attributes, names.CHECKPOINT_TIP, said.get("tip_offset"))
    return SeverityNumber.INFO


def _put_offset(attributes: Attributes, key: str, offset: Any) -> None:
    if type(offset) is int and offset >= 0:
        attributes[key] = values.integer(offset)
