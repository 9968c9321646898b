"""Something happens in the main thread at every point of a call at which Python may handle a signal there."""

from __future__ import annotations

import itertools
import sys
import threading
from typing import TYPE_CHECKING, Any

from raxol_otel.journal.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["Point", "UnsyncedFiles", "within"]


class Point:
    """`do` is called at point `number` (from 1) of what runs; `where` that was, empty if there were fewer.

    The interpreter handles signals when a function of Python's begins and when one of C's has returned.
    """

    def __init__(self, number: int, do: Callable[[], object]) -> None:
        self.number, self.do, self.where = number, do, ""
        # Held here too: Python drops it when it raises, and 3.11 was seen, rarely, to call an object freed meanwhile.
        self._looks = self._look

    def run(self, call: Callable[[], object]) -> None:
        """Make the call."""
        sys.setprofile(self._looks)
        try:
            call()
        finally:
            sys.setprofile(None)

    def _look(self, frame: Any, happened: str, function: Any) -> None:
        if happened not in ("call", "c_return") or frame.f_code.co_filename == __file__:
            return
        self.number -= 1
        if self.number == 0:
            self.where = f"{frame.f_code.co_qualname}:{frame.f_lineno} {happened} {getattr(function, '__name__', '')}"
            self.do()


def within(seconds: float, call: Callable[[], object]) -> None:
    """Have another thread make the call, and raise what it raises; a call that hangs is an error."""
    raised: list[BaseException] = []

    def run() -> None:
        try:
            call()
        except BaseException as error:  # noqa: BLE001 - raised below
            raised.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(seconds)
    if thread.is_alive():
        raise TimeoutError(f"still at it after {seconds} seconds")
    if raised:
        raise raised[0]


class UnsyncedFiles(Files):
    """Knows what of the segments has been written and not synced since; asks the disk for no sync.

    `during_sync` is called once, in the middle of the next sync.
    """

    def __init__(self) -> None:
        self.during_sync: Callable[[], object] | None = None
        self.unsynced: set[tuple[str, int, int]] = set()
        self._writes = itertools.count()
        self._paths: dict[int, str] = {}

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """As the real one."""
        descriptor = super().open(path, flags, mode)
        self._paths[descriptor] = str(path)
        return descriptor

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """As the real one."""
        written = super().write(descriptor, data, position)
        self.unsynced.add((self._paths[descriptor], position, next(self._writes)))
        return written

    def sync(self, descriptor: int) -> None:
        """Only noted: what was written before it began is durable, what a handler writes meanwhile is not."""
        path = self._paths[descriptor]
        before = list(self.unsynced)
        do, self.during_sync = self.during_sync, None
        if do is not None:
            do()
        for written in before:
            if written[0] == path:
                self.unsynced.discard(written)

    def sync_directory(self, path: Path) -> None:
        """Nothing."""
