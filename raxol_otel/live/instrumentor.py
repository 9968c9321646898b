"""All of it turned on: every journal that this process writes, as spans, log events and metrics.

JournalInstrumentor().instrument()             # or: opentelemetry-instrument python agent.py
"""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry._logs import get_logger_provider
from opentelemetry.metrics import get_meter_provider
from opentelemetry.trace import get_tracer_provider

from raxol_otel.journal import store
from raxol_otel.live import current
from raxol_otel.live.ending import Ending
from raxol_otel.live.following import JournalTap, Sinks
from raxol_otel.live.instruments import TurnInstruments
from raxol_otel.live.log_events import LogEvents
from raxol_otel.live.tracing import Tracing
from raxol_otel.live.turn_events import TurnEvents
from raxol_otel.turns import FoldConfig

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping
    from pathlib import Path

    from prometheus_client import CollectorRegistry

    from raxol_otel.live.base import PlainInstrumentor as _Base
    from raxol_otel.live.counting import LiveMetrics
else:
    try:
        from opentelemetry.instrumentation.instrumentor import BaseInstrumentor as _Base
    except ImportError:  # an optional extra
        from raxol_otel.live.base import PlainInstrumentor as _Base

__all__ = ["InstrumentorOptions", "JournalInstrumentor"]

_CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"

_log = logging.getLogger(__name__)


@dataclass
class InstrumentorOptions:
    """What a declarative configuration may say under `instrumentation/development: python: raxol:`."""

    agent_name: str | None = None
    provider_name: str | None = None
    model: str | None = None
    legacy: bool | None = None


class JournalInstrumentor(_Base):
    """Follows every journal that this process writes, those that are open and those opened later; wraps no user code.

    `instrument()` takes `tracer_provider`, `meter_provider`, `logger_provider` (else the global ones, whenever they are
    set), `registry` (else prometheus_client's own), `agent_name`, `provider_name`, `model` (what the journals do not
    say) and `legacy` (see `TurnInstruments`). There is one a process: twice is once.
    """

    configuration = InstrumentorOptions
    _live: _Live | None = None

    def instrumentation_dependencies(self) -> Collection[str]:
        """Nothing but ourselves is instrumented."""
        return ()

    @staticmethod
    def flush() -> None:
        """Tell of what waits: records that come faster than some tens a second are told of a moment later.

        Spans that are complete are then with the provider, whose own `force_flush` exports them.
        """
        current.flush()

    def _instrument(self, **options: Any) -> None:
        self._live = _Live(options)
        self._live.start()

    def _uninstrument(self, **_options: Any) -> None:
        live, self._live = self._live, None
        if live is not None:
            live.stop()


class _Live:
    """What one `instrument()` made."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        config = FoldConfig(
            agent_name=options.get("agent_name"),
            provider_name=options.get("provider_name"),
            model=options.get("model"),
            capture_content=_captures(),
        )
        tracer_provider = options.get("tracer_provider")
        meter_provider, logger_provider = options.get("meter_provider"), options.get("logger_provider")
        self._ending = Ending(
            lambda: (
                tracer_provider or get_tracer_provider(),
                meter_provider or get_meter_provider(),
                logger_provider or get_logger_provider(),
            ),
            before=current.flush,
        )
        self._log_events = LogEvents(logger_provider)
        self._metrics = _metrics(options.get("registry"))
        self._sinks = Sinks(
            tracing=Tracing(tracer_provider),
            events=TurnEvents(logger_provider),
            instruments=TurnInstruments(
                meter_provider, legacy=bool(options.get("legacy")), agent_name=config.agent_name
            ),
            metrics=self._metrics,
            config=config,
        )

    def start(self) -> None:
        """From now on."""
        self._log_events.attach()
        if self._metrics is not None:
            self._metrics.attach()
        store.follow(self._tap)
        self._ending.register()

    def stop(self) -> None:
        """As if nothing had been."""
        self._ending.unregister()
        store.unfollow(self._tap)
        self._log_events.detach()
        if self._metrics is not None:
            self._metrics.detach()
            self._metrics.close()
        self._sinks.tracing.close()

    def _tap(self, directory: Path, meta: Mapping[str, Any]) -> JournalTap:
        tap = JournalTap(directory, meta, self._sinks)
        current.remember(tap)
        return tap


def _captures() -> bool:
    said = os.environ.get(_CAPTURE_VARIABLE, "").strip()
    if said and said.upper() not in {"SPAN_ONLY", "NO_CONTENT"}:
        _log.warning("%s=%s is not SPAN_ONLY: no content is exported", _CAPTURE_VARIABLE, said)
    return said.upper() == "SPAN_ONLY"


def _metrics(registry: CollectorRegistry | None) -> LiveMetrics | None:
    """Metrics in the registry, unless it has them already from somebody else."""
    from prometheus_client import REGISTRY  # noqa: PLC0415 - who only wants log events does without

    from raxol_otel.live.counting import LiveMetrics  # noqa: PLC0415 - as above

    try:
        return LiveMetrics(registry or REGISTRY)
    except ValueError:
        _log.warning("the registry has metrics of these names already; no others are added")
        return None
