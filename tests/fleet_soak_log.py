"""The soak's own log, and what is to be counted by it: nothing in here looks at a journal, or at the exporter.

An entry is `{"op": ..., "session": ..., ...}`, a line of JSON in the log's file. A session has contents, a list of
records `[type, turn, is_final]`, which these change:

* `wrote`: records were added to it. All of them count.
* `placed`: a journal of other records took its place, or a new session came. All of its records count.
* `lost`: only the first `kept` are left. Nothing counts, then or when they come back (`restored`); but what is written
  after `kept`, once HEAD no longer says that there was more, counts as anything that is written.
* `accepted`: what was lost stays lost; HEAD does not say any more that it was there.
* `gone`: it was taken away.

A turn counts when a record that counts ends it: `turn_completed` that is final, `turn_canceled`, `error`, or the next
`turn_started`, which leaves the one before it incomplete. Turns that nothing ended count nowhere.

Damage (`damaged`) counts once a place (session, segment, last offset before it, cause) as long as an exporter runs;
damage that one found, and the next finds again (`restart`), is known to it. `healed`: it is no longer there.
A session that cannot be read (`refused`) counts as an error of looking, and nothing else of it does.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    Fact = tuple[str, str, bool]

__all__ = ["Counts", "Log", "open_turn", "recount"]

ENDINGS: Final = {"turn_canceled": "canceled", "error": "error"}


@dataclass
class Counts:
    """What the exporter's counters have to come to."""

    turns: Counter[str] = field(default_factory=Counter[str])
    records: Counter[str] = field(default_factory=Counter[str])
    damaged: Counter[str] = field(default_factory=Counter[str])
    refused: int = 0


class Log:
    """What was done, in a file and in memory."""

    def __init__(self, path: Path) -> None:
        self.entries: list[dict[str, Any]] = []
        self._file = path.open("w", encoding="utf-8")

    def __call__(self, op: str, session: str = "", **facts: Any) -> None:
        """Note what was done."""
        entry = {"op": op, "session": session, **facts}
        self.entries.append(entry)
        self._file.write(json.dumps(entry) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def open_turn(contents: Iterable[Fact]) -> tuple[str, str] | None:
    """The turn that is open at the end, and the type of its last record."""
    turn: tuple[str, str] | None = None
    for kind, name, is_final in contents:
        turn = None if kind in ENDINGS or (kind == "turn_completed" and is_final) else (name, kind)
    return turn


def _ended(turn: tuple[str, str] | None, fact: Fact) -> str | None:
    """The outcome of the turn that this record ends."""
    kind, name, is_final = fact
    if kind == "turn_started" and turn is not None and turn[0] != name:
        return "completed" if turn[1] == "turn_completed" else "incomplete"
    if kind == "turn_completed" and is_final:
        return "completed"
    return ENDINGS.get(kind)


def recount(entries: Iterable[dict[str, Any]]) -> Counts:
    """What all that was done comes to."""
    counts = Counts()
    contents: dict[str, list[Fact]] = {}
    whole: dict[str, list[Fact]] = {}
    # The damage that an exporter found in its life, and the last one of each session, which the state remembers.
    met: set[tuple[Any, ...]] = set()
    standing: dict[str, tuple[Any, ...]] = {}
    for entry in entries:
        op, session = entry["op"], entry["session"]
        if op in {"wrote", "placed"}:
            if op == "placed":
                contents[session] = []
                standing.pop(session, None)
            _count(
                counts, contents.setdefault(session, []), [(kind, turn, end) for kind, turn, end in entry["records"]]
            )
        elif op == "lost":
            whole[session] = contents[session]
            contents[session] = contents[session][: entry["kept"]]
        elif op == "restored":
            contents[session] = whole.pop(session, contents[session])
        elif op == "gone":
            contents.pop(session)
            standing.pop(session, None)
        elif op == "damaged":
            damage = (session, entry["segment"], entry["last_offset"], entry["cause"])
            if standing.get(session) != damage and damage not in met:
                counts.damaged[entry["cause"]] += 1
            standing[session] = damage
            met.add(damage)
        elif op == "restart":
            met.clear()
        elif op == "refused":
            counts.refused += 1
        if op in {"healed", "refused"}:
            standing.pop(session, None)
        if op in {"placed", "gone", "accepted"}:
            whole.pop(session, None)
    return counts


def _count(counts: Counts, contents: list[Fact], records: list[Fact]) -> None:
    turn = open_turn(contents)
    for fact in records:
        counts.records[fact[0]] += 1
        outcome = _ended(turn, fact)
        if outcome is not None:
            counts.turns[outcome] += 1
        turn = open_turn([fact])
    contents += records
