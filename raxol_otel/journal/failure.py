"""An operation of the writer that failed: the reason by its name in the catalogue, and the signal that tells of it."""

from __future__ import annotations

import errno
import logging
from typing import TYPE_CHECKING, Final

from raxol_otel import signals
from raxol_otel.catalogue import WRITE_REASONS
from raxol_otel.errors import WriteFailed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

__all__ = ["publish_failure", "publish_failures", "reason_of", "write_failed"]

_log = logging.getLogger("raxol_otel.journal")
_REASONS: Final = frozenset(WRITE_REASONS)


def reason_of(error: OSError) -> str:
    """The errno's name in lower case, `other` for those outside the closed set."""
    name = errno.errorcode.get(error.errno or 0, "").lower()
    return name if name in _REASONS else "other"


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
