"""A process that reads whole journals for the first look: paths in, what they hold out, as bytes.

The first line is the setup, `{"root": ...}`; each further one a list of sessions by their path below it. Each session
is answered by a line with two sizes, and so many bytes. Whatever a journal does to its reader, the others are answered.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final

import orjson

from raxol_otel.errors import JournalUnreadable
from raxol_otel.fleet.entry import Entry
from raxol_otel.fleet.followed import KNOWN_PAST, Followed

__all__ = ["main", "read_session"]

_ORPHAN_SECONDS: Final = 2.0
_NICENESS: Final = 10


def read_session(root: Path, where: str, now: float) -> tuple[Entry, bytes]:
    """Read a journal as a baseline: what to know of it, and where following stands. Never raises for what it holds."""
    entry = Entry(where)
    followed = Followed(root / where, is_baseline=True)
    try:
        followed.catch_up()
        entry.take(followed, now)
        return entry, followed.save()
    except JournalUnreadable as unreadable:
        entry.refuse(str(unreadable.reason), now)
        entry.place = unreadable.path.name
    except (MemoryError, RecursionError, OSError, ValueError) as error:
        entry.refuse(f"cannot be read: {type(error).__name__}", now)
    return entry, KNOWN_PAST


def main() -> None:
    """Answer until there is nothing more to read, or nobody to read it for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Whoever scrapes meanwhile comes first, and so do the agents of this machine.
    os.nice(_NICENESS)
    threading.Thread(target=_end_with_parent, args=(os.getppid(),), daemon=True).start()
    lines = sys.stdin.buffer
    root = Path(os.fsdecode(bytes.fromhex(orjson.loads(lines.readline())["root"])))
    out = sys.stdout.buffer
    for line in lines:
        for place in orjson.loads(line):
            entry, saved = read_session(root, os.fsdecode(bytes.fromhex(place)), time.time())
            facts = entry.saved()
            # The sizes, then the bytes as they are.
            out.write(b"%d %d\n%b%b" % (len(facts), len(saved), facts, saved))
            # At once: what a process dies over is the first session without an answer.
            out.flush()


def _end_with_parent(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_ORPHAN_SECONDS)
    os._exit(0)


if __name__ == "__main__":
    main()
