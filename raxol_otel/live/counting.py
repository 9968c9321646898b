"""Prometheus metrics of a program that is followed: what waits is counted before a scrape."""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.live.current import flush
from raxol_otel.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["LiveMetrics"]

# So many syncs may wait to be counted: after a sync each costs four times what it does among others.
SYNCS_MAX: Final = 1_024


class LiveMetrics(Metrics):
    """As `Metrics`, and never behind what was appended when a scrape begins."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        self._syncs: deque[float] = deque()
        super().__init__(*arguments, **more)

    def observe_sync(self, seconds: float) -> None:
        """Count a sync that took so long, soon."""
        self._syncs.append(seconds)
        if len(self._syncs) >= SYNCS_MAX:
            self.settle()

    def settle(self) -> None:
        """Count the syncs that wait."""
        with suppress(IndexError):  # another thread may be at it
            while self._syncs:
                super().observe_sync(self._syncs.popleft())

    def collect(self) -> Iterator[Any]:
        """What a scrape gets."""
        flush()
        self.settle()
        yield from super().collect()

    def forked(self) -> None:
        """Start anew in a child."""
        self._syncs.clear()
        super().forked()
