"""The one interface of everything that takes spans.

    with exporter:                      # leaving it by an exception aborts
        exporter.export(spans)          # again and again; batches of any size
        exporter.finish()               # only now what was exported is there for others

An exporter never changes a span and keeps no reference to one after `export` returns, unless it says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, runtime_checkable

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from raxol_otel.turns import Span

__all__ = ["BaseExporter", "ExportResult", "Exporter", "NullExporter", "SessionSummary"]


@dataclass(frozen=True, slots=True)
class ExportResult:
    """What became of a batch: how many spans were taken, how many refused, and the refuser's words."""

    accepted: int
    rejected: int = 0
    message: str = ""


@dataclass(frozen=True, slots=True)
class SessionSummary:
    """What became of one session, for exporters that show sessions.

    `name` is the directory's own name; two copies of a session share it. `state` is healthy, torn, truncated, damaged
    or unreadable; `trouble` says what is wrong and where, in one line, empty where nothing is. Neither holds a path
    from outside the session directory.
    """

    name: str
    state: str
    records: int
    turns: int
    held: int
    trouble: str = ""


@runtime_checkable
class Exporter(Protocol):
    """Takes finished spans; a turn's children come before the turn."""

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Take a batch. Raises `ExportError` when it cannot be delivered."""
        ...

    def finish(self) -> None:
        """Everything is exported: make it final. Raises `ExportError`. Calling it twice is once."""
        ...

    def abort(self) -> None:
        """Give up: leave nothing half-done behind. Never raises; after `finish` it does nothing."""
        ...


class BaseExporter:
    """The context manager that every exporter is.

    `on_delivered`, where it is set, is called by an exporter that delivers a batch in parts, after each part.
    """

    on_delivered: Callable[[Sequence[Span]], None] | None = None

    def session_done(self, session: SessionSummary) -> None:
        """All spans of a session are exported: those since the last call. Most exporters need not know."""

    def __enter__(self) -> Exporter:
        assert isinstance(self, Exporter)  # noqa: S101 - tells the type checkers what every subclass is
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        assert isinstance(self, Exporter)  # noqa: S101 - as above
        self.abort()


class NullExporter(BaseExporter):
    """Takes everything and sends nothing: a dry run."""

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Count the spans."""
        return ExportResult(len(spans))

    def finish(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Nothing to do."""
