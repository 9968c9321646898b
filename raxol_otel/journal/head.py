"""HEAD, as its writer keeps it: never more than what is durable, rewritten whole."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

from raxol_otel.journal.codec import encode
from raxol_otel.journal.files import replace_file

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.journal.files import Files
    from raxol_otel.journal.options import WriterOptions
    from raxol_otel.journal.segment import End

__all__ = ["HeadFile"]


class HeadFile:
    """One journal's HEAD. It tells the current opener's segment cap and schema version."""

    def __init__(self, files: Files, path: Path, options: WriterOptions, *, chained: bool) -> None:
        self._files = files
        self._path = path
        self._rest = {"schema_version": options.schema_version, "segment_cap": options.segment_cap}
        self._chained = chained
        self._mode = options.file_mode
        self._lock = threading.RLock()
        self._said: tuple[End, int] | None = None
        self._is_writing = False
        self.has_failed = False

    def write(self, end: End, segment: int) -> None:
        """Make HEAD say that everything up to this end is durable. Raises `OSError`."""
        with self._lock:
            # Being written means: a signal handler, in the middle of it. The next call makes up for it.
            if self._is_writing or (self._said == (end, segment) and not self.has_failed):
                return
            self._is_writing = True
            try:
                replace_file(self._files, self._path, self._text(end, segment), self._mode)
            except BaseException:
                self.has_failed = True
                raise
            finally:
                self._is_writing = False
            # Not before: whoever looks while it is written sees no failure.
            self._said, self.has_failed = (end, segment), False

    def _text(self, end: End, segment: int) -> bytes:
        head: dict[str, Any] = {**self._rest, "offset": end.offset, "segment": segment}
        if self._chained:
            head["tip_hash"] = end.tip_hash
        return encode(head)

    def abandon(self) -> None:
        """In a forked child: whoever held the lock is not here."""
        self._lock = threading.RLock()
