"""Following for traces alone: look at folders again and again, and offer what may be new to each delivery.

follow = Follow([Path("sessions")], deliveries, state)
follow.run(wait)                         # until `wait` says that it is enough
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import ExportError
from raxol_otel.fleet.discovery import Discovery, sessions_of, shown
from raxol_otel.fleet.watch import watching

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from raxol_otel.fleet.delivery import Delivery
    from raxol_otel.fleet.state import FleetState
    from raxol_otel.fleet.watch import Watch

__all__ = ["Follow", "Once", "end_all"]

# From one look to the next, in seconds.
INTERVAL_SECONDS: Final = 0.5
# In which time all deliveries end, in seconds.
STOP_SECONDS: Final = 4.0
# The same line is told again after so many seconds at the earliest.
_ONCE_SECONDS: Final = 60.0
_ONCE_MAX: Final = 1_024

_log = logging.getLogger(__name__)


class Once:
    """Tells a line at most once a minute: several endpoints find the same damage."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._told: dict[str, float] = {}

    def __call__(self, message: str) -> None:
        """Tell it."""
        now = time.monotonic()
        if now - self._told.get(message, -_ONCE_SECONDS) >= _ONCE_SECONDS:
            self._told[message] = now
            # Nobody may read standard error any more: deliveries go on.
            with contextlib.suppress(Exception):
                self._tell(message)
        if len(self._told) > _ONCE_MAX:
            self._told = {text: told for text, told in self._told.items() if now - told < _ONCE_SECONDS}


class Follow:
    """Sessions below `paths`, each a folder or a session itself, for the deliveries. Starts and stops them.

    A session is known to the state by its real path. `poll`: never ask the kernel what changed.
    """

    def __init__(
        self,
        paths: Iterable[Path],
        deliveries: Sequence[Delivery],
        state: FleetState,
        *,
        poll: bool = False,
        notice: Callable[[str], None] = _log.warning,
    ) -> None:
        self.deliveries = deliveries
        self.sessions: Mapping[str, Path] = {}
        self._state = state
        self._roots = [_Root(path, poll=poll, notice=notice) for path in paths]

    def run(self, wait: Callable[[float], bool]) -> None:
        """Look, and wait so many seconds, until `wait` returns true. Raises `ExportError` when the state fails."""
        for delivery in self.deliveries:
            delivery.start()
        try:
            is_enough = False
            while not is_enough:
                begun = time.monotonic()
                self.look()
                is_enough = wait(max(0.0, INTERVAL_SECONDS - (time.monotonic() - begun)))
        finally:
            for root in self._roots:
                root.close()

    def look(self) -> None:
        """Look once, and offer what may be new."""
        changed: set[str] | None = set()
        gone: set[str] = set()
        for root in self._roots:
            told = root.look()
            gone |= root.gone
            changed = None if told is None or changed is None else changed | told
        there: dict[str, Path] = {}
        for root in self._roots:
            there.update(root.sessions)
        self.sessions = there
        gone -= there.keys()
        if gone:
            try:
                self._state.forget(gone)
            except ExportError as error:
                _log.warning("%s", error)
        for delivery in self.deliveries:
            delivery.offer(there, changed)

    def stop(self) -> list[Delivery]:
        """Let all deliveries end; those that could not deliver all that was read."""
        return end_all(self.deliveries, STOP_SECONDS)


class _Root:
    """One of the paths. `sessions` are known by their real paths; `gone` are those that the last look missed."""

    def __init__(self, path: Path, *, poll: bool, notice: Callable[[str], None]) -> None:
        self.sessions: dict[str, Path] = {}
        self.gone: set[str] = set()
        self._path = path
        self._poll = poll
        self._notice = notice
        self._discovery = Discovery(path)
        self._watch: Watch | None = None
        # By the way to a session below the path, its real path.
        self._real: dict[str, str] = {}
        self._trouble = ""

    def look(self) -> set[str] | None:
        """Look at what there is; the sessions that may have changed, None for all of them."""
        self.gone = set()
        try:
            if self._watch is None and self._path.is_dir():
                # Before the look: what changes meanwhile is told.
                self._watch = watching(self._path, poll=self._poll)
            new, gone = self._discovery.look()
        except OSError as error:
            is_absent = isinstance(error, FileNotFoundError)
            self._say("which does not exist yet" if is_absent else error.strerror or str(error))
            self.close()
            self._discovery = Discovery(self._path)
            self.sessions, self._real = {}, {}
            return set()
        self._say("")
        told = self._watch.take() if self._watch is not None else None
        sessions = self._discovery.sessions
        if new or gone:
            self.gone = {self._real.pop(where) for where in gone if where in self._real}
            for where in new:
                self._real[where] = os.path.realpath(sessions[where])
            self.sessions = {self._real[where]: path for where, path in sessions.items()}
        if told is None:
            return None
        changed = sessions_of(told, sessions) | self._discovery.linked
        return {self._real[where] for where in changed}

    def close(self) -> None:
        """Watch no more."""
        if self._watch is not None:
            self._watch.close()
            self._watch = None

    def _say(self, trouble: str) -> None:
        if trouble and trouble != self._trouble:
            self._notice(f"waiting for {shown(self._path)}, {trouble}")
        self._trouble = trouble


def end_all(deliveries: Sequence[Delivery], seconds: float) -> list[Delivery]:
    """Let all end within so many seconds; those that could not deliver all that was read."""
    for delivery in deliveries:
        delivery.stop()
    until = time.monotonic() + seconds
    return [delivery for delivery in deliveries if not delivery.join(max(until - time.monotonic(), 0.0))]
