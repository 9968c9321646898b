"""The end of the process: the SDK may send what is left, but not hold up the exit for a collector that is gone.

Its providers shut themselves down at exit, and a batch processor then waits for its exporter's retries, up to half a
minute. Where they would do so anyway, it is done a moment earlier, all at once, and not waited for beyond a deadline.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["Ending"]

# Beside it stands what the agent itself does at its end.
EXIT_SECONDS: Final = 4.0
# Of these, for what the providers do not have yet.
_BEFORE_SECONDS: Final = 1.0

_log = logging.getLogger(__name__)


class Ending:
    """Bounds the end of the providers that `providers()` names when it comes, while it is registered.

    `before()` gives them what they do not have yet.
    """

    def __init__(
        self,
        providers: Callable[[], Iterable[Any]],
        seconds: float = EXIT_SECONDS,
        before: Callable[[], object] | None = None,
    ) -> None:
        self._providers = providers
        self._seconds = seconds
        self._before = before

    def register(self) -> None:
        """At the exit of the process."""
        atexit.register(self.run)

    def unregister(self) -> None:
        """Not any more."""
        atexit.unregister(self.run)

    def run(self) -> None:
        """Shut down those that shut themselves down at exit."""
        deadline = time.monotonic() + self._seconds
        try:
            if self._before is not None:
                _started(self._before).join(min(_BEFORE_SECONDS, self._seconds))
            threads = [
                _started(_shut_down, provider)
                for provider in self._providers()
                if getattr(provider, "_atexit_handler", None) is not None
            ]
        except RuntimeError:  # too late for a thread: the provider's own handler does it
            return
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))


def _started(target: Callable[..., object], *arguments: Any) -> threading.Thread:
    thread = threading.Thread(target=target, args=arguments, daemon=True)
    thread.start()
    return thread


def _shut_down(provider: Any) -> None:
    try:
        provider.shutdown()
    except Exception as error:  # noqa: BLE001 - nobody is left to be told
        _log.warning("a provider was not shut down (%s)", type(error).__name__)
