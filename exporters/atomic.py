"""A file that is whole or not there: made beside its final name, renamed at the end."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from pathlib import Path
from typing import Final

from raxol_otel.errors import ExportError

__all__ = ["AtomicFile"]

_BUFFER_BYTES: Final = 256 * 1024
_PREFIX_BYTES_MAX: Final = 200


class AtomicFile:
    """Writes bytes that become the file at `path` when all went well; till then, or after a failure, the old one stays.

    Every failure is an `ExportError`, after which nothing half-done is left. `example` is how to name such a file.
    """

    def __init__(self, path: str | os.PathLike[str], *, example: str) -> None:
        self.path = Path(path)
        # A file name has 255 bytes at most, and the temporary one is longer than its own.
        prefix = os.fsdecode(os.fsencode(f".{self.path.name}")[:_PREFIX_BYTES_MAX])
        try:
            self._refuse_what_is_no_file(f"name a file, as in {example}")
            descriptor, name = tempfile.mkstemp(prefix=f"{prefix}.", suffix=".tmp", dir=self.path.parent)
        except OSError as error:
            raise self._failed(error) from error
        self._temporary: Path | None = Path(name)
        self._file = os.fdopen(descriptor, "wb", buffering=_BUFFER_BYTES)

    @property
    def is_open(self) -> bool:
        """Whether it is neither finished nor given up."""
        return self._temporary is not None

    def write(self, data: bytes) -> None:
        """Write the bytes after those before."""
        try:
            self._file.write(data)
        except OSError as error:
            self.abort()
            raise self._failed(error) from error

    def finish(self) -> None:
        """Make what was written durable and give it its name; when it is not open any more do nothing."""
        if self._temporary is None:
            return
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
        """Remove what was written; when it is not open any more do nothing. Never raises."""
        if self._temporary is None:
            return
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._temporary.unlink()
        self._temporary = None

    def _refuse_what_is_no_file(self, hint: str) -> None:
        """Directories cannot be renamed over; pipes and devices can, and should not."""
        try:
            mode = self.path.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISREG(mode):
            what = "it is a directory" if stat.S_ISDIR(mode) else "it is not a regular file"
            raise ExportError(f"cannot write {self.path}: {what}", hint)

    def _failed(self, error: OSError) -> ExportError:
        return ExportError(f"cannot write {self.path}: {error.strerror or error}")


def _umask() -> int:
    mask = os.umask(0o022)
    os.umask(mask)
    return mask
