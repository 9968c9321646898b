"""A function run in a process of its own, which may be killed in the middle: how it ended, and what it got done."""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
import time
import traceback
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

    Message = dict[str, Any]

__all__ = ["Ended", "Method", "Report", "run_process"]

# A forked child has everything that its parent has; a spawned one begins anew and imports the function by its name.
Method = Literal["fork", "spawn"]
# How long a child that says no more is waited for, in seconds.
_END_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended.

    `exit_code` is negative for a signal. `acknowledged` are the offsets that its appends had returned. `fired` counts
    the faults that fired in it. `error` is the traceback of what its function raised.
    """

    exit_code: int
    acknowledged: list[int] = field(default_factory=list[int])
    fired: dict[str, int] = field(default_factory=dict[str, int])
    error: str | None = None

    @property
    def was_killed(self) -> bool:
        """Whether SIGKILL ended it."""
        return self.exit_code == -signal.SIGKILL


S = TypeVar("S")


class Report:
    """The child's end: what it says arrives, whatever happens to it next."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._guard = threading.Lock()

    def say(self, **message: Any) -> None:
        """Tell the parent."""
        with self._guard:
            self._connection.send_bytes(json.dumps(message).encode())


def run_process(
    body: Callable[[Report, S], object],
    setup: S,
    *,
    method: Method,
    seconds: float,
    heard: Callable[[Message], object],
) -> tuple[int, str | None]:
    """Run `body(report, setup)` in a child; its exit code, and the traceback of what it raised.

    `heard` is called with each message. Raises `TimeoutError` when it has not ended in time; it is killed then.
    """
    receiver, sender = multiprocessing.Pipe(duplex=False)
    process: BaseProcess
    if method == "fork":
        process = multiprocessing.get_context("fork").Process(target=_child, args=(sender, body, setup), daemon=True)
    else:
        process = multiprocessing.get_context("spawn").Process(target=_child, args=(sender, body, setup), daemon=True)
    with warnings.catch_warnings():
        # Newer Pythons warn of a fork beside threads. A writer's thread holds nothing that the child needs.
        warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*fork")
        process.start()
    sender.close()
    error: str | None = None
    try:
        deadline = time.monotonic() + seconds
        while (message := _receive(receiver, deadline)) is not None:
            error = message.pop("raised", error)
            if message:
                heard(message)
        process.join(_END_SECONDS)
    finally:
        receiver.close()
        process.kill()
        process.join()
        exit_code = process.exitcode or 0
        process.close()
    return exit_code, error


def _receive(receiver: Connection, deadline: float) -> Message | None:
    """The next message; None when there are no more."""
    if not receiver.poll(max(deadline - time.monotonic(), 0)):
        message = "the child has not ended in time"
        raise TimeoutError(message)
    try:
        received: Message = json.loads(receiver.recv_bytes())
    except (EOFError, OSError):  # it has ended; killed while it spoke, perhaps
        return None
    return received


def _child(sender: Connection, body: Callable[[Report, S], object], setup: S) -> None:
    report = Report(sender)
    try:
        body(report, setup)
    except BaseException:  # noqa: BLE001 - a failing assertion of pytest's is none of `Exception`
        report.say(raised=traceback.format_exc())
        raise SystemExit(1) from None
    finally:
        sender.close()
