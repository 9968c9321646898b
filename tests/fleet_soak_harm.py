"""What the soak does to sessions: each a change that is seen whole or not at all, told to the soak's log."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from raxol_otel.journal.health import inspect
from tests.fleet_soak_writer import events

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

    from tests.fleet_soak_log import Fact, Log

__all__ = ["Session", "facts_of", "harm", "mend", "segments"]

# Which causes each harm may have, by the format.
CAUSES: Final = {
    "nul": {"nul_run"},
    "splice": {"spliced", "chain_bytes"},
    "gap": {"id_gap", "chain_link"},
    "cut": {"below_head"},
    "head": {"head_hash"},
}


@dataclass
class Session:
    """A session, how it fares, and what mends it (the bytes of files; the mode of `refused`)."""

    directory: Path
    chained: bool
    segment_cap: int
    condition: Literal["fine", "lost", "damaged", "refused", "busy"] = "fine"
    contents: int = 0
    backup: dict[str, bytes] = field(default_factory=dict[str, bytes])
    refused: Path | None = None

    @property
    def name(self) -> str:
        """The directory's."""
        return self.directory.name


def segments(directory: Path) -> list[Path]:
    """The segment files, in order."""
    return sorted((directory / "journal").glob("*.jsonl"))


def facts_of(directory: Path) -> list[Fact]:
    """What stands in a journal that is intact, read as plain JSON: type, turn, and whether that is its end."""
    text = b"".join(path.read_bytes() for path in segments(directory))
    records = [json.loads(line) for line in text.split(b"\n")[:-1] if line]
    return [(one["type"], one["turn_id"], one["payload"].get("final") is True) for one in records]


class Harm:
    """One harm to one session."""

    def __init__(self, session: Session, log: Log, dice: random.Random, aside: Path) -> None:
        self.session = session
        self.log = log
        self.dice = dice
        self.aside = aside

    def put(self, path: Path, data: bytes) -> None:
        """Replace a file at once."""
        new = self.aside / "new"
        new.write_bytes(data)
        new.chmod(0o644)
        new.replace(path)

    def keep(self, *paths: Path) -> None:
        """Remember what is about to change."""
        self.session.backup = {str(path): path.read_bytes() for path in paths}

    def damaged(self, kind: str) -> None:
        """Look at what came of it, and say so."""
        damage = inspect(self.session.directory).damage
        assert damage is not None, kind
        assert damage.cause in CAUSES[kind], (kind, damage)
        self.session.condition = "damaged"
        self.log(
            "damaged",
            self.session.name,
            kind=kind,
            cause=damage.cause,
            segment=damage.place,
            last_offset=damage.last_offset,
        )

    def line(self) -> tuple[Path, list[bytes], int]:
        """A segment, its lines, and one of them that has another one before and behind it."""
        path = self.dice.choice([one for one in segments(self.session.directory) if one.read_bytes().count(b"\n") > 2])
        lines = path.read_bytes().splitlines(keepends=True)
        return path, lines, self.dice.randrange(1, b"".join(lines).count(b"\n") - 1)

    # -- kinds

    def nul(self) -> None:
        """A line becomes NULs, in place."""
        path, lines, number = self.line()
        self.keep(path)
        with path.open("r+b", buffering=0) as file:
            file.seek(sum(map(len, lines[:number])))
            file.write(b"\0" * (len(lines[number]) - 1))
        self.damaged("nul")

    def splice(self) -> None:
        """Two lines become one."""
        path, lines, number = self.line()
        self.keep(path)
        self.put(path, b"".join([*lines[:number], lines[number][:-1], *lines[number + 1 :]]))
        self.damaged("splice")

    def gap(self) -> None:
        """A line is gone."""
        path, lines, number = self.line()
        self.keep(path)
        self.put(path, b"".join([*lines[:number], *lines[number + 1 :]]))
        self.damaged("gap")

    def head(self) -> None:
        """HEAD of a chained journal names another hash."""
        path = self.session.directory / "HEAD"
        said = json.loads(path.read_bytes()) if path.exists() else {"offset": 0}
        if not self.session.chained or not 1 <= said["offset"] <= self.session.contents:
            return
        self.keep(path)
        self.put(path, json.dumps(said | {"tip_hash": "0" * 64}).encode())
        self.damaged("head")

    def cut(self) -> None:
        """The end is lost: of a segment, and before that, in an unchained journal, some whole ones."""
        paths = segments(self.session.directory)
        head = self.session.directory / "HEAD"
        # What HEAD does not name may count again when it comes back in parts: then it does not come back.
        named = json.loads(head.read_bytes())["offset"] if head.exists() else 0
        self.keep(*(paths if named == self.session.contents else []))
        filled = len([path for path in paths if path.stat().st_size])
        keep = filled if self.session.chained else self.dice.randrange(1, filled + 1)
        # The last one first: what is left is the beginning at any time.
        for path in reversed(paths[keep:]):
            path.unlink()
        last = paths[keep - 1]
        data = last.read_bytes()
        # At least one record is left, or it would be another journal.
        least = data.find(b"\n") + 1 if keep == 1 else 1
        os.truncate(last, self.dice.randrange(least, max(len(data) - 1, least + 1)))
        kept = len(facts_of(self.session.directory))
        self.log("lost", self.session.name, kept=kept)
        state = inspect(self.session.directory).state
        if state == "damaged":
            self.damaged("cut")
        if state in {"damaged", "truncated"}:
            self.session.condition = "lost"
        else:
            # HEAD knows of no more, so that nobody can tell.
            self.session.contents = kept
            self.log("accepted", self.session.name)

    def replaced(self) -> None:
        """Another journal stands in its place."""
        session, name = self.session, self.session.name
        _made(self.aside / name, self.dice, session)
        gone = self.aside / f"gone-{name}"
        session.directory.rename(gone)
        (self.aside / name).rename(session.directory)
        shutil.rmtree(gone)
        _placed(session, self.log)

    def deleted(self) -> None:
        """It is taken away."""
        gone = self.aside / f"gone-{self.session.name}"
        self.session.directory.rename(gone)
        shutil.rmtree(gone)
        self.log("gone", self.session.name)

    def touched(self) -> None:
        """Times, or a mode: nothing that counts."""
        for path in segments(self.session.directory):
            os.utime(path)
        (self.session.directory / "meta.json").chmod(0o640 if os.geteuid() else 0o604)
        self.log("touched", self.session.name)

    def refused(self) -> None:
        """Something of it may not be read."""
        directory = self.session.directory
        path = self.dice.choice([directory, directory / "journal", directory / "meta.json", segments(directory)[0]])
        path.chmod(0)
        self.session.refused, self.session.condition = path, "refused"
        self.log("refused", self.session.name, path=path.name)

    def headless(self) -> None:
        """HEAD is removed."""
        (self.session.directory / "HEAD").unlink(missing_ok=True)
        self.log("headless", self.session.name)

    def torn(self) -> None:
        """A line without an end, as of a crash."""
        last = segments(self.session.directory)[-1]
        with last.open("ab") as file:
            file.write(b'{"id":%d,"family":"loop","ty' % (self.session.contents + 1))
        self.log("torn", self.session.name)


def _made(directory: Path, dice: random.Random, session: Session) -> None:
    from raxol_otel.journal import open_journal  # noqa: PLC0415 - only here

    stream = events(dice, f"other-{dice.randrange(10**9)}")
    with open_journal(
        directory.name, base_dir=directory.parent, chain=session.chained, segment_cap=session.segment_cap
    ) as journal:
        journal.append_many([next(stream) for _ in range(dice.randrange(3, 60))])


def _placed(session: Session, log: Log) -> None:
    facts = facts_of(session.directory)
    session.contents, session.condition = len(facts), "fine"
    log("placed", session.name, records=facts)


def place(session: Session, log: Log, dice: random.Random, aside: Path) -> None:
    """Bring a new session in, whole."""
    _made(aside / session.name, dice, session)
    (aside / session.name).rename(session.directory)
    _placed(session, log)


def harm(session: Session, log: Log, dice: random.Random, aside: Path, *, may_refuse: bool) -> None:
    """Do something to a session that is fine, has some records, and no writer."""
    one = Harm(session, log, dice, aside)
    kinds: list[Callable[[], Any]] = [
        *(one.nul, one.splice, one.gap, one.head, one.cut, one.cut),
        *(one.replaced, one.deleted, one.touched, one.headless, one.torn),
    ]
    dice.choice([*kinds, one.refused] if may_refuse else kinds)()


def mend(session: Session, log: Log, dice: random.Random, aside: Path) -> None:
    """Put right what is wrong with a session, or go on without it."""
    one = Harm(session, log, dice, aside)
    way = dice.random()
    if session.condition == "refused":
        assert session.refused is not None
        session.refused.chmod(0o755 if session.refused.is_dir() else 0o644)
        session.condition = "fine"
        log("readable", session.name)
    elif way < 0.15:
        one.deleted()
    elif way < 0.3:
        one.replaced()
    elif session.condition == "lost" and (way < 0.5 or not session.backup):
        # Whoever accepts the loss goes on behind it.
        (session.directory / "HEAD").unlink()
        session.contents, session.condition = len(facts_of(session.directory)), "fine"
        log("healed", session.name)
        log("accepted", session.name)
    else:
        for path, data in sorted(session.backup.items()):
            one.put(Path(path), data)
        session.condition = "fine"
        log("healed", session.name)
        log("restored", session.name)
