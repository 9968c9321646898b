"""A writer for whoever follows it, in a process of its own: `python -m tests.tail_processes BASE SECONDS [--chained]`.

Three threads append records of all sizes, to segments of 100 kB.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from raxol_otel.errors import WriteFailed
from raxol_otel.journal import open_journal

if TYPE_CHECKING:
    from raxol_otel.testing import FaultJournal

__all__ = ["write_short"]

THREADS = 3


def note(thread: int, number: int) -> dict[str, Any]:
    """An event of some size."""
    size = random.Random(number).choice((10, 300, 300, 3_000, 40_000))  # noqa: S311 - of any size
    return {"type": "note", "thread": thread, "number": number, "text": "é" * size}


def write_short(journal: FaultJournal) -> None:
    """Append 300 records, of which every third write is short at first: it is cut back and tried again."""
    for number in range(300):
        if number % 3 == 0:
            journal.arm("short_write", times=2)
        while True:
            with suppress(WriteFailed):
                journal.append(note(0, number), sync=number % 7 == 0)
                break


def main(base: str, seconds: float, *, chained: bool) -> None:
    """Write for so long, unless killed before."""
    until = time.monotonic() + seconds
    with open_journal("session", base_dir=base, chain=chained, segment_cap=100_000) as journal:

        def write(thread: int) -> None:
            number = 0
            while time.monotonic() < until:
                journal.append(note(thread, number), sync=number % 50 == 0)
                number += 1

        threads = [threading.Thread(target=write, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]), chained="--chained" in sys.argv)
