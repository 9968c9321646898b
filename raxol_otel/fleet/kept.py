"""What a fleet exporter keeps of its sessions: written to the state, or waiting in memory while that cannot be."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import ExportError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raxol_otel.fleet.state import FleetState

__all__ = ["Kept"]

# A state that could not be written is tried again after so many seconds: each try may wait for a lock.
RETRY_SECONDS: Final = 30.0

_log = logging.getLogger(__name__)


class Kept:
    """What one reader keeps. A full disk, or another process that holds the database, is told once and costs no look.

    What is asked for is what was kept last, written or not.
    """

    def __init__(self, state: FleetState, reader: str) -> None:
        self._state = state
        self._reader = reader
        self._began_at = state.began_at
        self._is_begun = self._began_at is not None
        self._facts: dict[str, bytes] = {}
        self._follow: dict[str, bytes] = {}
        self._gone: set[str] = set()
        self._retry_at = 0.0
        self._has_trouble = False

    @property
    def began_at(self) -> float | None:
        """When the first look at all sessions was done, in seconds since the epoch; None before it."""
        return self._began_at

    def begin(self, now: float) -> None:
        """The first look is done."""
        self._began_at = now
        self._write()

    def saved(self, where: str) -> bytes | None:
        """Where following a session stands. Raises `ExportError` when the state cannot be read."""
        if where in self._follow:
            return self._follow[where]
        return None if where in self._gone else self._state.saved(self._reader, where)

    def keep(self, facts: Iterable[tuple[str, bytes]], follow: Iterable[tuple[str, bytes]]) -> None:
        """What is known of sessions, and where following them stands."""
        self._facts.update(facts)
        self._follow.update(follow)
        self._write()

    def forget(self, gone: set[str]) -> None:
        """Sessions that are no longer there."""
        for where in gone:
            self._facts.pop(where, None)
            self._follow.pop(where, None)
        self._gone |= gone
        self._write()

    def flush(self) -> None:
        """Write what waits, now. Raises `ExportError`."""
        if self._gone:
            self._state.forget(self._gone)
            self._gone = set()
        if self._facts or self._follow:
            follow = [(self._reader, where, saved) for where, saved in self._follow.items()]
            self._state.keep(self._facts.items(), follow)
            self._facts, self._follow = {}, {}
        if self._began_at is not None and not self._is_begun:
            self._state.begin(self._began_at)
            self._is_begun = True

    def _write(self) -> None:
        if self._has_trouble and time.monotonic() < self._retry_at:
            return
        try:
            self.flush()
        except ExportError as error:
            if not self._has_trouble:
                _log.warning("%s; what is known is kept in memory, and written later", error)
            self._has_trouble, self._retry_at = True, time.monotonic() + RETRY_SECONDS
        else:
            self._has_trouble = False
