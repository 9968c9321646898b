"""Whoever follows a journal with a `Tail`, and what it is compared with: a scan of the files as they are."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel.errors import JournalDamaged, JournalUnreadable
from raxol_otel.journal.codec import encode
from raxol_otel.journal.health import is_truncated, measure
from raxol_otel.journal.reader import Walk, read_batches
from raxol_otel.journal.tail import Tail
from tests.conftest import make_journal, on_disk

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping
    from pathlib import Path

    from raxol_otel.journal import Damage
    from raxol_otel.journal.tail import Restart

    Record = dict[str, Any]

__all__ = [
    "PAYLOADS",
    "Follower",
    "Verdict",
    "append",
    "bytes_read",
    "followed",
    "grow_by_one",
    "judge",
    "line",
    "lines_of",
    "put",
    "seg",
    "settle",
]

# Of records of 1 KB each.
PAYLOADS: Final = [f"payload {number} " + "x" * 1_000 for number in range(1, 11)]


@dataclass(frozen=True)
class Verdict:
    """What there is to say of a journal, but for its records."""

    state: str
    damage: Damage | None
    is_behind_head: bool
    last_offset: int
    head_offset: int | None


def judge(directory: Path) -> tuple[Verdict, list[Record]]:
    """The verdict over the files as they are, and the records, read from the beginning; `JournalUnreadable`."""
    walk = Walk(directory, quiet=True)
    records: list[Record] = []
    try:
        for batch in read_batches(walk):
            records += batch
    except JournalDamaged:
        pass
    damaged = walk.damage is not None
    state = "damaged" if damaged else "torn" if walk.torn is not None else "healthy"
    is_behind = not damaged and is_truncated(walk)
    return Verdict(state, walk.damage, is_behind, walk.last_id or 0, walk.head_offset), records


@dataclass
class Follower:
    """A tail, the records it gave since its last restart, and those restarts. `error`: why nothing can be read."""

    directory: Path
    tail: Tail = field(init=False)
    records: list[Record] = field(default_factory=list["Record"])
    restarts: list[Restart] = field(default_factory=list["Restart"])
    error: str | None = None
    looks: int = 0

    def __post_init__(self) -> None:
        self.tail = Tail(self.directory)

    def look(self, bytes_max: int | None = None, *, rounds: int = 10_000) -> list[Record]:
        """Read what is new, as often as the tail asks for it; the records."""
        before = len(self.records)
        while self.tail.has_changed() and rounds:
            rounds -= 1
            self.looks += 1
            try:
                restart = self.tail.begin()
                if restart is not None:
                    self.restarts.append(restart)
                    self.records, before = [], 0
                for batch in self.tail.batches(bytes_max):
                    assert batch
                    self.records += batch
            except JournalUnreadable as error:
                self.error = str(error)
                return self.records[before:]
            self.error = None
            if not self.tail.has_more:
                break
        return self.records[before:]

    def ids(self) -> list[int]:
        """The offsets of the new records, after a look."""
        return [record["id"] for record in self.look()]

    def save(self) -> None:
        """Go on from the saved position, as another process would."""
        saved = orjson.dumps(self.tail.position())
        self.tail = Tail(self.directory, orjson.loads(saved))

    @property
    def verdict(self) -> Verdict:
        """What the tail says."""
        tail = self.tail
        return Verdict(tail.state, tail.damage, tail.is_behind_head, tail.last_offset, tail.head_offset)

    def check(self) -> None:
        """Look, and compare with a scan of the files as they are."""
        self.look()
        refusal = None
        try:
            verdict, records = judge(self.directory)
        except JournalUnreadable as error:
            refusal, verdict, records = str(error), None, []
        assert self.error == refusal
        if verdict is None:
            return
        assert self.verdict == verdict
        assert (self.tail.segments, self.tail.size_bytes) == measure(self.directory)
        # Of those that were given some may have been dropped since, from the beginning.
        assert self.records[len(self.records) - len(records) :] == records


def seg(directory: Path, number: int = 1) -> Path:
    """The path of a segment."""
    return directory / "journal" / f"{number:06}.jsonl"


def append(path: Path, data: bytes) -> None:
    """Add bytes to a file."""
    with path.open("ab") as file:
        file.write(data)


def lines_of(path: Path) -> list[bytes]:
    """The lines of a file, each with its newline."""
    return path.read_bytes().splitlines(keepends=True)


def settle() -> None:
    """Wait until whatever changes next shows in the time of change: the kernel's clock ticks every 10 ms at most."""
    time.sleep(0.03)


@contextmanager
def followed(*, chained: bool) -> Generator[Follower]:
    """Whoever has read a journal of ten records, in three segments of which the first two have four each."""
    files, records = make_journal(PAYLOADS, chained=chained, per_segment=4)
    with on_disk(files) as session:
        follower = Follower(session)
        assert follower.look() == records
        yield follower


def grow_by_one(follower: Follower, *, chained: bool) -> list[int]:
    """Append the eleventh record; the offsets of what is new."""
    files, _ = make_journal([*PAYLOADS, "the eleventh"], chained=chained)
    append(seg(follower.directory, 3), files["journal/000001.jsonl"].splitlines(keepends=True)[-1])
    return follower.ids()


def put(directory: Path, files: Mapping[str, bytes]) -> Path:
    """A session's directory with these files."""
    (directory / "journal").mkdir(parents=True, exist_ok=True)
    for name, data in files.items():
        (directory / name).write_bytes(data)
    return directory


def line(offset: int, text: str = "") -> bytes:
    """An unchained record of this text."""
    return encode({"id": offset, "text": text}) + b"\n"


def bytes_read() -> int:
    """How many bytes this process has read so far, as the system counts them."""
    with open("/proc/self/io", encoding="ascii") as file:  # noqa: PTH123 - said short
        return int(file.readline().removeprefix("rchar: "))
