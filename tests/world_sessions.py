"""Sessions of the generated world that nobody writes any more: healthy, torn, cut short, and ways to damage one."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from raxol_otel.journal import open_journal
from tests.world_turns import event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from random import Random

__all__ = ["DAMAGES", "KNOWN", "LOST_TAIL", "damaged_session", "old_sessions", "tear", "write_session"]

# A damaged session that an operator has acknowledged, and one whose last records are gone.
KNOWN: Final = "old-known"
LOST_TAIL: Final = "old-lost-tail"
HEALTHY: Final = 9
HOUR: Final = 3_600
# Of a session that is written in one go: small segments, so that there are several.
SEGMENT_BYTES: Final = 2_048


def write_session(sessions: Path, name: str, random: Random, *, hours_ago: float = 0, chain: bool = False) -> Path:
    """A healthy session of some turns, the first of them so long ago; its directory."""
    at = time.time() - hours_ago * HOUR
    with open_journal(name, base_dir=sessions, chain=chain, segment_cap=SEGMENT_BYTES) as journal:
        for number in range(1, random.randint(3, 6)):
            turn, at = f"turn-{number}", at + random.uniform(5, 60)
            call = {"name": "search", "call_id": "call-1"}
            steps = (
                event(turn, "turn_started", at=at, prompt="what is left to do?"),
                event(turn, "item_completed", at=at + 1, item_type="tool_use", item_id="item-1", **call),
                event(turn, "item_completed", at=at + 2, item_type="tool_result", item_id="item-2", result="-", **call),
                event(turn, "turn_completed", at=at + 3, final=True, evidence="accepted", usage={"output_tokens": 9}),
            )
            for step in steps:
                journal.append(step, sync=False)
        return journal.path


def old_sessions(sessions: Path, random: Random) -> None:
    """What is there before anybody looks."""
    for number in range(1, HEALTHY + 1):
        write_session(sessions, f"old-{number}", random, hours_ago=24 + number, chain=number % 3 == 0)
    tear(write_session(sessions, "old-torn", random, hours_ago=20))
    _last(write_session(sessions, LOST_TAIL, random, hours_ago=18)).unlink()
    DAMAGES["id_gap"](write_session(sessions, KNOWN, random, hours_ago=90))


def damaged_session(sessions: Path, name: str, cause: str, random: Random) -> Path:
    """A session that is written in good order, and then damaged in this way; its directory."""
    session = write_session(sessions, name, random, chain=cause in {"chain_hash", "below_head"})
    DAMAGES[cause](session)
    return session


def tear(session: Path) -> None:
    """As a power cut leaves it: the last line is not all there."""
    with _last(session).open("ab") as segment:
        segment.write(b'{"family":"loop","id":999,"payl')


def _last(session: Path) -> Path:
    return max(path for path in (session / "journal").iterdir() if path.stat().st_size)


def _with_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    """Something that happens to the lines of a session's first segment."""

    def damage(session: Path) -> None:
        path = session / "journal" / "000001.jsonl"
        path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))

    return damage


def _in_the_middle(change: Callable[[bytes, bytes], list[bytes]]) -> Callable[[Path], None]:
    """Something that happens to two lines in the middle."""

    def changed(lines: list[bytes]) -> list[bytes]:
        middle = len(lines) // 2
        return [*lines[:middle], *change(*lines[middle : middle + 2]), *lines[middle + 2 :]]

    return _with_lines(changed)


# What is done to a healthy session, by the cause that `raxol-otel verify` then names.
DAMAGES: Final[dict[str, Callable[[Path], None]]] = {
    "spliced": _in_the_middle(lambda one, two: [one.rstrip(b"\n"), two]),
    "nul_run": _in_the_middle(lambda one, two: [b"\0" * len(one), two]),
    "id_gap": _in_the_middle(lambda _, two: [two]),
    "chain_hash": _with_lines(lambda lines: [line.replace(b"what is left", b"what is done") for line in lines]),
    "invalid_utf8": _in_the_middle(lambda one, two: [one.replace(b"turn-", b"turn\xff-"), two]),
    "id_repeated": _in_the_middle(lambda one, two: [one, one, two]),
    "below_head": lambda session: _last(session).unlink(),
    "unparsable": _in_the_middle(lambda one, two: [one, b"<<<<<<< HEAD\n", two]),
}
