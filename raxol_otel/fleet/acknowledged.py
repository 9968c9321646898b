"""The damaged sessions that an operator knows of: a text file, one session a line, `#` begins a comment."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Final

from raxol_otel.journal.layout import open_regular

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Acknowledged"]

_BYTES_MAX: Final = 4 * 2**20

_log = logging.getLogger(__name__)


class Acknowledged:
    """The file's names, read again when it has changed. A file that is not there, or no longer, names nothing.

    Of a file of more than 4 MiB only the whole lines before that count.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._status: tuple[int, int, int] | None = None
        self._names: frozenset[str] = frozenset()
        self._trouble = ""

    def names(self) -> frozenset[str]:
        """The sessions, each by its name or its path below the sessions directory."""
        if self._path is None:
            return self._names
        try:
            found = self._path.stat()
            status = (found.st_ino, found.st_size, found.st_ctime_ns)
            if status != self._status:
                self._names, self._status = self._read(self._path), status
        except FileNotFoundError:
            self._names, self._status = frozenset(), None
            self._tell("it is not there, so nothing is acknowledged")
        except OSError as error:
            # What was acknowledged stays so: a slip of permissions need not page anybody.
            self._status = None
            self._tell(error.strerror or str(error))
        return self._names

    def _read(self, path: Path) -> frozenset[str]:
        with open_regular(path) as file:
            text = file.read(_BYTES_MAX + 1)
        trouble = ""
        if len(text) > _BYTES_MAX:
            # Half a name might be another's.
            text = text[: text.rfind(b"\n", 0, _BYTES_MAX) + 1]
            trouble = f"it has more than {_BYTES_MAX} bytes, and the rest is not read"
        self._tell(trouble)
        lines = (line.partition("#")[0].strip() for line in os.fsdecode(text).removeprefix("\ufeff").split("\n"))
        return frozenset(filter(None, lines))

    def _tell(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            _log.warning("cannot read the acknowledgements %s: %s", self._path, trouble)
        self._trouble = trouble
