"""Spans into a file of OTLP JSON lines: one TracesData object a line, as the OTLP file exporter's specification has it.

The file is made beside its final name and renamed at the end: it is whole or not there.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import ExportError
from raxol_otel.exporters.base import BaseExporter, ExportResult
from raxol_otel.exporters.otlp_json import batches

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raxol_otel.exporters.otlp_json import Envelope
    from raxol_otel.turns import Span

__all__ = ["FileExporter"]

# Spans on one line: readers load a line at a time.
SPANS_PER_LINE_MAX: Final = 512
_WRITE_BYTES: Final = 256 * 1024


class FileExporter(BaseExporter):
    """Writes OTLP JSON lines to `path`, which is replaced when all went well.

    Spans are kept until a line is full. Raises `ExportError` when the file cannot be made or written.
    """

    def __init__(self, path: str | os.PathLike[str], envelope: Envelope) -> None:
        self.path = Path(path)
        self._envelope = envelope
        self._waiting: list[Span] = []
        if self.path.is_dir():
            raise ExportError(f"cannot write {self.path}: it is a directory", "name a file, as in file:OUT.jsonl")
        try:
            descriptor, name = tempfile.mkstemp(prefix=f".{self.path.name}.", suffix=".tmp", dir=self.path.parent)
        except OSError as error:
            raise self._failed(error) from error
        self._temporary: Path | None = Path(name)
        self._file = os.fdopen(descriptor, "wb", buffering=_WRITE_BYTES)

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Write the spans, or keep them for the next line."""
        self._waiting += spans
        if len(self._waiting) >= SPANS_PER_LINE_MAX:
            whole = len(self._waiting) // SPANS_PER_LINE_MAX * SPANS_PER_LINE_MAX
            self._write(self._waiting[:whole])
            del self._waiting[:whole]
        return ExportResult(len(spans))

    def _write(self, spans: Sequence[Span]) -> None:
        try:
            for line in batches(spans, SPANS_PER_LINE_MAX):
                self._file.write(self._envelope.wrap(line) + b"\n")
        except OSError as error:
            self.abort()
            raise self._failed(error) from error

    def finish(self) -> None:
        """Write what is left, make it durable and give it its name."""
        if self._temporary is None:
            return
        self._write(self._waiting)
        self._waiting.clear()
        try:
            self._file.flush()
            # A file of its own would have had the permissions that the umask leaves.
            os.fchmod(self._file.fileno(), 0o666 & ~_umask())
            os.fsync(self._file.fileno())
            self._file.close()
            self._temporary.replace(self.path)
        except OSError as error:
            self.abort()
            raise self._failed(error) from error
        self._temporary = None

    def abort(self) -> None:
        """Remove what was written so far; after `finish` do nothing."""
        if self._temporary is None:
            return
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()
        self._temporary = None

    def _failed(self, error: OSError) -> ExportError:
        return ExportError(f"cannot write {self.path}: {error.strerror or error}")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
