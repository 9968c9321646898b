"""An operation of the writer that failed: its closed sets of stages and reasons, and the signal that tells of it."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

from raxol_otel import signals
from raxol_otel.errors import WriteFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["REASONS", "STAGES", "publish_failure", "publish_failures", "reason_of", "write_failed"]

_log = logging.getLogger("raxol_otel.journal")

STAGES: Final = ("append", "datasync", "rotate", "head", "meta", "snapshot", "lock")
_NAMED: Final = (
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EIO,
    errno.EFBIG,
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.EISDIR,
    errno.ENOTDIR,
    errno.ENOENT,
    errno.EMFILE,
    errno.ESTALE,
)
REASONS: Final = (*(errno.errorcode[number].lower() for number in _NAMED), "other")


def reason_of(error: OSError) -> str:
    """The errno's name in lower case, `other` for those outside the closed set."""
    return errno.errorcode[error.errno].lower() if error.errno in _NAMED else "other"


def publish_failure(session_id: str, stage: str, error: OSError) -> None:
    """Log one line and publish one `write_failed` signal."""
    _log.warning("journal %s: %s failed: %s", session_id, stage, error.strerror or error)
    metadata = {"stage": stage, "reason": reason_of(error), "session_id": session_id}
    signals.publish(signals.Signal(signals.SIGNAL_WRITE_FAILED, metadata))


def publish_failures(session_id: str, failures: Iterable[tuple[str, OSError]]) -> None:
    """As `publish_failure`, each stage with its error."""
    for stage, error in failures:
        publish_failure(session_id, stage, error)


def write_failed(session_id: str, what: str, stage: str, error: OSError, offsets: Sequence[int] = ()) -> WriteFailed:
    """The error to raise, from the operating system's."""
    message = f"{session_id}: {what}: {error.strerror or error}"
    return WriteFailed(message, stage=stage, reason=reason_of(error), offsets=offsets)
