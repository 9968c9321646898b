"""Group commit: requests of many threads done together, by whichever of them comes first.

The first thread to come leads: it does what has gathered, wakes the others, and hands the lead on if more came
meanwhile. So a sync serves all that waited for one, and each of them waits once.

Not for the main thread: an interruption (Ctrl-C) or a signal handler between two steps could keep the lead for ever.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING, Final, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Group", "Request"]

# One round does at most so many, so that what waits for its end does not wait long.
ROUND_MAX: Final = 1_024


class Request:
    """Something to be done in a group, by the thread that made it or for it."""

    __slots__ = ("following", "is_done", "woken")

    # Made by the group: most requests never wait.
    woken: threading.Lock
    is_done: bool
    following: Request | None


R = TypeVar("R", bound=Request)


class Group(Generic[R]):
    """`run(requests)` does a round; it must not raise, and leaves in each request what became of it."""

    def __init__(self, run: Callable[[list[R]], None]) -> None:
        self._run = run
        self._queue: deque[R] = deque()
        self._lead = threading.Lock()

    @property
    def is_busy(self) -> bool:
        """Whether a round is being done."""
        return self._lead.locked()

    def do(self, request: R) -> None:
        """Have the request done, alone or with others."""
        request.woken = threading.Lock()
        request.woken.acquire()
        request.is_done = False
        request.following = None
        self._queue.append(request)
        if not self._lead.acquire(blocking=False):
            request.woken.acquire()
            if request.is_done:
                if request.following is not None:
                    request.following.woken.release()
                return
        try:
            self._round(request)
        finally:
            self._hand_on()

    def _round(self, own: R) -> None:
        queue = self._queue
        requests: list[R] = []
        while queue and len(requests) < ROUND_MAX:
            requests.append(queue.popleft())
        try:
            self._run(requests)
        finally:
            self._wake(requests, own)

    def _wake(self, requests: list[R], own: R) -> None:
        """Wake those whose requests are done: two, each of whom wakes the next but one, and so on.

        All at once would only fight for the interpreter's lock.
        """
        others = [one for one in requests if one is not own]
        for one, following in zip(others, others[2:], strict=False):
            one.following = following
        for one in requests:
            one.is_done = True
        for one in others[:2]:
            one.woken.release()

    def _hand_on(self) -> None:
        """Give the lead to whoever waits first, or up."""
        while not self._queue:
            self._lead.release()
            # Somebody may have come in between, and gone to wait.
            if not self._queue or not self._lead.acquire(blocking=False):
                return
        self._queue[0].woken.release()
