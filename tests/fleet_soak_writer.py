"""A writer of the soak, a process of its own: `python -m tests.fleet_soak_writer ROOT SEED SESSIONS`.

SESSIONS is JSON: `{"name": [chained, segment_cap], ...}`, and `count` and `ending` of all. It writes to all of them in
turns and says each append that returned (`NAME OFFSET`). `ending`: `close`; `exit` without closing; `wait` with all of
them open, saying `waiting`, until standard input ends.
"""

from __future__ import annotations

import json
import os
import random
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.journal import open_journal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raxol_otel.journal import Journal

__all__ = ["events", "write"]

BETWEEN: Final = ("item_started", "item_delta", "item_completed", "approval_requested", "idle")


def events(dice: random.Random, prefix: str) -> Iterator[dict[str, Any]]:
    """Turns, one after the other; some are left without an end."""
    number = 0
    while True:
        number += 1
        turn = {"family": "loop", "tier": "durable", "turn_id": f"{prefix}-{number}"}
        yield event(turn, "turn_started")
        for _ in range(dice.randrange(4)):
            kind = dice.choice(BETWEEN)
            yield event(turn, kind, item_id=f"i{number}", item_type="message", text="x" * dice.randrange(200))
        end = dice.random()
        if end < 0.1:
            yield event(turn, "turn_completed", final=False)
        elif end < 0.7:
            yield event(turn, "turn_completed", final=True)
        elif end < 0.8:
            yield event(turn, "turn_canceled")
        elif end < 0.9:
            yield event(turn, "error", reason="timeout")


def event(turn: dict[str, Any], kind: str, **payload: Any) -> dict[str, Any]:
    """An event of a turn, now."""
    return {**turn, "type": kind, "ts": time.time_ns() // 1000, "payload": payload}


def write(root: Path, seed: str, sessions: dict[str, list[Any]], count: int) -> list[Journal]:
    """Write so many events to all of them together; the journals, open."""
    dice = random.Random(seed)  # noqa: S311 - no secret
    journals = {
        name: open_journal(name, base_dir=root, chain=chained, segment_cap=cap)
        for name, (chained, cap) in sessions.items()
    }
    streams = {name: events(dice, f"{seed}-{name}") for name in sessions}
    while count > 0:
        name = dice.choice(list(journals))
        batch = [next(streams[name]) for _ in range(dice.choice((1, 1, 1, 5, 30)))]
        count -= len(batch)
        offsets = journals[name].append_many(batch)
        sys.stdout.write(f"{name} {offsets[-1]}\n")
        sys.stdout.flush()
        if dice.random() < 0.3:
            time.sleep(dice.random() * 0.02)
    return list(journals.values())


def main() -> None:
    """As the module says."""
    root, seed, said = sys.argv[1:]
    spec = json.loads(said)
    journals = write(Path(root), seed, spec["sessions"], spec["count"])
    if spec["ending"] == "exit":
        os._exit(0)
    if spec["ending"] == "wait":
        for journal in journals:
            journal.flush()
        sys.stdout.write("waiting\n")
        sys.stdout.flush()
        sys.stdin.read()
    for journal in journals:
        journal.close()


if __name__ == "__main__":
    main()
