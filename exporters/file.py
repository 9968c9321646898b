"""Spans into a file of OTLP JSON lines: one TracesData object a line, as the OTLP file exporter's specification has it.

The file is made beside its final name and renamed at the end: it is whole or not there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raxol_otel.exporters.atomic import AtomicFile
from raxol_otel.exporters.base import BaseExporter, ExportResult
from raxol_otel.exporters.otlp_json import batches

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from raxol_otel.exporters.otlp_json import Envelope
    from raxol_otel.turns import Span

__all__ = ["FileExporter"]

# Spans on one line: readers load a line at a time.
SPANS_PER_LINE_MAX: Final = 512


class FileExporter(BaseExporter):
    """Writes OTLP JSON lines to `path`, which is replaced when all went well.

    Spans are kept until a line is full. Raises `ExportError` when the file cannot be made or written.
    """

    def __init__(self, path: str | os.PathLike[str], envelope: Envelope) -> None:
        self._file = AtomicFile(path, example="file:OUT.jsonl")
        self.path = self._file.path
        self._envelope = envelope
        self._waiting: list[Span] = []

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Write the spans, or keep them for the next line."""
        self._waiting += spans
        if len(self._waiting) >= SPANS_PER_LINE_MAX:
            whole = len(self._waiting) // SPANS_PER_LINE_MAX * SPANS_PER_LINE_MAX
            self._write(self._waiting[:whole])
            del self._waiting[:whole]
        return ExportResult(len(spans))

    def _write(self, spans: Sequence[Span]) -> None:
        for line in batches(spans, SPANS_PER_LINE_MAX):
            self._file.write(self._envelope.wrap(line) + b"\n")

    def finish(self) -> None:
        """Write what is left, make it durable and give it its name."""
        if not self._file.is_open:
            return
        self._write(self._waiting)
        self._waiting.clear()
        self._file.finish()

    def abort(self) -> None:
        """Remove what was written so far; after `finish` do nothing."""
        self._file.abort()
