"""`raxol-otel serve` with an engine of the test's own: `python -m tests.fleet_program KIND serve OPTIONS...`.

KIND: `good` posts a view and waits; `stuck` does not look at its stop; `fails` and `breaks` end with an error of ours
and with one that nobody expected; `refused` cannot be made.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING

from raxol_otel.cli import main
from raxol_otel.cli import serve as command
from raxol_otel.errors import UsageError
from raxol_otel.fleet.board import View

if TYPE_CHECKING:
    import argparse
    import threading

    from raxol_otel.fleet.board import Board

__all__ = ["Engine"]


class Engine:
    """Does what its kind does."""

    def __init__(self, kind: str, board: Board) -> None:
        if kind == "refused":
            raise UsageError("the state is of a newer version", "another --state")
        self._kind = kind
        self._board = board
        self.heartbeat = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Post one view; go on until told to stop, if that is heard."""
        self._board.post(View(b"up 1\n", b"up 1\n# EOF\n", b"<p>", is_ready=True))
        if self._kind == "fails":
            raise UsageError("the folder is gone", "bring it back")
        if self._kind == "breaks":
            message = "nobody expected this"
            raise RuntimeError(message)
        if self._kind == "stuck":
            time.sleep(60)
        stop.wait()


def run(options: argparse.Namespace) -> int:
    """Serve with the engine."""
    return command.serve(options, lambda board: Engine(KIND, board))


if __name__ == "__main__":
    KIND = sys.argv[1]
    command.run = run
    sys.exit(main(sys.argv[2:]))
