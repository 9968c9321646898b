"""What an instrumentor is where the package opentelemetry-instrumentation is not installed."""

from __future__ import annotations

import logging
from typing import Any, Self

__all__ = ["PlainInstrumentor"]

_log = logging.getLogger(__name__)


class PlainInstrumentor:
    """As `opentelemetry.instrumentation.instrumentor.BaseInstrumentor`, by hand only: one a process, on or off."""

    _instance: Self | None = None
    _is_instrumented_by_opentelemetry = False

    def __new__(cls, *_arguments: Any, **_more: Any) -> Self:
        """The one there is."""
        if cls._instance is None:
            cls._instance = object.__new__(cls)
        return cls._instance

    @property
    def is_instrumented_by_opentelemetry(self) -> bool:
        """Whether it is on."""
        return self._is_instrumented_by_opentelemetry

    def instrument(self, **options: Any) -> None:
        """Turn it on; twice is once."""
        if self._is_instrumented_by_opentelemetry:
            _log.warning("Attempting to instrument while already instrumented")
            return
        options.pop("skip_dep_check", None)
        options.pop("raise_exception_on_conflict", None)
        self._instrument(**options)
        self._is_instrumented_by_opentelemetry = True

    def uninstrument(self, **options: Any) -> None:
        """Turn it off; twice is once."""
        if not self._is_instrumented_by_opentelemetry:
            _log.warning("Attempting to uninstrument while already uninstrumented")
            return
        self._uninstrument(**options)
        self._is_instrumented_by_opentelemetry = False

    def _instrument(self, **options: Any) -> None:
        raise NotImplementedError

    def _uninstrument(self, **options: Any) -> None:
        raise NotImplementedError
