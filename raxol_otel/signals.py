"""The core's three signals and the bus they travel on.

Handlers attach by name and run in the publishing thread. One that raises is caught, logged once and counted;
it stays attached, and it never disturbs the journal. Nothing here knows OpenTelemetry or Prometheus.

    attach("pager", lambda signal: ...)
    detach("pager")
"""

from __future__ import annotations

import logging
import os
import threading
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from raxol_otel.catalogue import SIGNAL_DAMAGED, SIGNAL_SURROGATE, SIGNAL_WRITE_FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Handler = Callable[["Signal"], object]

__all__ = [
    "SIGNAL_DAMAGED",
    "SIGNAL_SURROGATE",
    "SIGNAL_WRITE_FAILED",
    "Signal",
    "attach",
    "count_error",
    "detach",
    "handler_errors",
    "handlers",
    "publish",
]

_log = logging.getLogger("raxol_otel.signals")
_lock = threading.Lock()
# Copy on write: publish reads it without the lock.
_handlers: tuple[tuple[str, Handler], ...] = ()
_errors: dict[str, int] = {}


@dataclass(frozen=True, slots=True)
class Signal:
    """One thing the journal core reports: a `name` of the catalogue and its `metadata`."""

    name: str
    metadata: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))


def attach(handler_name: str, handler: Handler) -> None:
    """Call `handler(signal)` for every signal from now on; a handler of the same name is replaced."""
    global _handlers  # noqa: PLW0603 - one bus a process
    with _lock:
        kept = tuple(pair for pair in _handlers if pair[0] != handler_name)
        _handlers = (*kept, (handler_name, handler))


def detach(handler_name: str) -> bool:
    """Forget the handler of that name; says whether there was one."""
    global _handlers  # noqa: PLW0603 - one bus a process
    with _lock:
        kept = tuple(pair for pair in _handlers if pair[0] != handler_name)
        found = len(kept) != len(_handlers)
        _handlers = kept
    return found


def handlers() -> tuple[str, ...]:
    """The names of the attached handlers, in the order in which they run."""
    return tuple(name for name, _ in _handlers)


def handler_errors() -> dict[str, int]:
    """How often each handler has raised since the process began."""
    with _lock:
        return dict(_errors)


def publish(signal: Signal) -> None:
    """Give the signal to every handler, in order. Never raises what a handler raised."""
    for name, handler in _handlers:
        try:
            handler(signal)
        except Exception:  # noqa: BLE001 - a handler must never disturb the journal
            _failed(name, signal)


def count_error(name: str) -> int:
    """Count a failure of the telemetry under the name of a handler; how many there are of it now."""
    with _lock:
        count = _errors.get(name, 0) + 1
        _errors[name] = count
    return count


def _failed(name: str, signal: Signal) -> None:
    if count_error(name) == 1:
        _log.warning(
            "signal handler %r failed on %s; further failures are only counted", name, signal.name, exc_info=True
        )


def _in_child() -> None:
    """Start anew in a forked child: nothing has failed in it, and a lock that was held at the fork stays so."""
    global _lock  # noqa: PLW0603 - one bus a process
    _lock = threading.Lock()
    _errors.clear()


os.register_at_fork(after_in_child=_in_child)
