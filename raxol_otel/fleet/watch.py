"""Which sessions may have changed since the last look: told by the kernel where it can, else all of them."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Notified", "Polling", "Watch", "watching"]

# How often the kernel is asked, and how long changes are gathered, in milliseconds.
_STEP_MS: Final = 100
_GATHER_MS: Final = 200
_QUIET_MS: Final = 5_000
_STOP_SECONDS: Final = 2.0

_log = logging.getLogger(__name__)


class Watch(Protocol):
    """Tells what to look at."""

    def take(self) -> set[str] | None:
        """The paths below the root where something happened since the last call; None: anywhere."""
        ...

    def close(self) -> None:
        """Watch no more."""
        ...


class Polling:
    """Everything is looked at, every time."""

    def take(self) -> set[str] | None:
        """Anywhere."""
        return None

    def close(self) -> None:
        """Nothing to do."""


class Notified:
    """The kernel tells, through the library watchfiles; where it stops doing so, everything is looked at again.

    It watches a folder, not a path: when another stands there, that is watched.
    """

    def __init__(self, root: Path, watch: Callable[..., Any]) -> None:
        self._path = root
        self._watch = watch
        self._lock = threading.Lock()
        self._begin()

    def _begin(self) -> None:
        self._root = os.path.realpath(self._path)
        self._is_of = _identity(self._path)
        self._changed: set[str] = set()
        self._has_failed = False
        self._stop = threading.Event()
        self._is_ready = threading.Event()
        arguments = (self._root, self._stop, self._is_ready)
        self._thread = threading.Thread(target=self._run, args=arguments, name="raxol-otel-watch", daemon=True)
        self._thread.start()

    def take(self) -> set[str] | None:
        """The paths below the root where something happened since the last call; None: anywhere."""
        found = _identity(self._path)
        if found != self._is_of:
            self.close()
            if found is not None:
                self._begin()
            else:
                self._is_of = None
            return None
        with self._lock:
            if self._has_failed or not self._is_ready.is_set():
                return None
            changed, self._changed = self._changed, set()
        return changed

    def close(self) -> None:
        """Watch no more."""
        self._stop.set()
        self._thread.join(_STOP_SECONDS)

    def _run(self, root: str, stop: threading.Event, is_ready: threading.Event) -> None:
        prefix = len(root) + 1
        try:
            for changes in self._watch(
                root,
                watch_filter=None,
                debounce=_GATHER_MS,
                step=_STEP_MS,
                stop_event=stop,
                rust_timeout=_QUIET_MS,
                yield_on_timeout=True,
                raise_interrupt=False,
                ignore_permission_denied=True,
            ):
                paths = {path[prefix:] for _, path in changes}
                with self._lock:
                    if stop is self._stop:
                        self._changed |= paths
                # The first word of it, be it silence, says that all watches stand.
                is_ready.set()
        except Exception as error:  # noqa: BLE001 - out of watches, a folder that is gone: polling goes on
            if not stop.is_set():
                _log.warning("changes are not told by the system (%s): polling", error)
        with self._lock:
            if stop is self._stop:
                self._has_failed = True


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def watching(root: Path, *, poll: bool) -> Watch:
    """Watch a folder: by the kernel where the library is there, unless `poll`."""
    if poll:
        return Polling()
    try:
        watch = importlib.import_module("watchfiles").watch
    except ImportError:
        return Polling()
    return Notified(root, watch)
