"""How the writers of this process fare, for whoever measures them. Costs nothing while nobody does.

The core knows no metrics library; one attaches itself here.
"""

from __future__ import annotations

import logging
import threading
from typing import Protocol

__all__ = ["Meter", "attach", "attached", "detach", "synced", "torn_repaired"]

_log = logging.getLogger("raxol_otel.journal")
_lock = threading.RLock()
# Copy on write: read without the lock.
attached: tuple[Meter, ...] = ()


class Meter(Protocol):
    """Is told what happens, in the thread in which it does; what it raises is logged and goes no further."""

    def observe_sync(self, seconds: float) -> None:
        """A sync succeeded after so many seconds."""
        ...

    def observe_torn_repair(self) -> None:
        """A torn tail was cut."""
        ...


def attach(meter: Meter) -> None:
    """Tell the meter from now on; twice is once."""
    global attached  # noqa: PLW0603 - one list a process
    with _lock:
        attached = (*(one for one in attached if one is not meter), meter)


def detach(meter: Meter) -> None:
    """Tell it no more."""
    global attached  # noqa: PLW0603 - as above
    with _lock:
        attached = tuple(one for one in attached if one is not meter)


def synced(seconds: float) -> None:
    """Tell every meter of a sync."""
    for meter in attached:
        try:
            meter.observe_sync(seconds)
        except Exception:  # noqa: BLE001 - measuring must never disturb the journal
            _log.debug("a meter failed", exc_info=True)


def torn_repaired() -> None:
    """Tell every meter of a torn tail that was cut."""
    for meter in attached:
        try:
            meter.observe_torn_repair()
        except Exception:  # noqa: BLE001 - as above
            _log.debug("a meter failed", exc_info=True)
