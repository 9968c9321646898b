"""The program behind `ForeignWriter`: `python -m raxol_otel.testing.foreign_process BASE SESSION`.

Each line of its input is a JSON object that says what to `do`; each is answered with one. It ends with its input.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

from raxol_otel.errors import JournalLocked, RaxolError
from raxol_otel.journal import open_journal

if TYPE_CHECKING:
    from raxol_otel.journal import Journal

__all__ = ["main"]


class _Program:
    """What the process holds: the journal, while it is its writer."""

    def __init__(self, base: str, session: str) -> None:
        self.base = base
        self.session = session
        self.journal: Journal | None = None

    def do(self, order: dict[str, Any]) -> dict[str, Any]:
        """Do what is asked; the answer."""
        if order["do"] == "want":
            if self.journal is None:
                self.journal = open_journal(self.session, base_dir=self.base)
        elif order["do"] == "append" and self.journal is not None:
            return {"offset": self.journal.append(order["event"], sync=True)}
        elif order["do"] == "release":
            self.close()
        return {"is_writer": self.journal is not None}

    def close(self) -> None:
        """Stop being the writer."""
        journal, self.journal = self.journal, None
        if journal is not None:
            journal.close()


def _say(answer: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(answer) + "\n")
    sys.stdout.flush()


def main(base: str, session: str) -> None:
    """Answer until the input ends."""
    program = _Program(base, session)
    _say({"pid": os.getpid()})
    for line in sys.stdin:
        try:
            _say(program.do(json.loads(line)))
        except RaxolError as error:
            holder = error.pid if isinstance(error, JournalLocked) else None
            _say({"is_writer": False, "error": type(error).__name__, "message": str(error), "holder": holder})
    program.close()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
