"""A fleet of sessions to look at: `python -m benchmarks.fleet_journals DIR --sessions N`.

The same seed gives the same bytes. Each session is the beginning of one long journal, under an id of its own. Sizes are
spread evenly over their logarithm from 2 KB to 1.1 MB, beside some of 10 to 200 MB; for 10,000 sessions 2 GiB in all.
1 % are damaged (a NUL run in the middle), 1 % torn (half a line at the end). A segment has at most 8 MiB.
"""

from __future__ import annotations

import argparse
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import orjson

from benchmarks.journals import make

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["FleetMade", "make_fleet"]

SEED: Final = 20261130
_SMALL_BYTES: Final = 2_048
_USUAL_BYTES_MAX: Final = 1_100_000
# A share of the fleet each, as of 10,000: sizes in MB.
_LARGE: Final = (200, 100, 50, 50, *(10,) * 20)
_LARGE_OF: Final = 10_000
_SEGMENT_BYTES: Final = 8 * 2**20
_MASTER: Final = "session-00000"


@dataclass(frozen=True, slots=True)
class FleetMade:
    """What was made: the sessions by name, sizes in bytes."""

    root: Path
    sizes: dict[str, int]
    damaged: frozenset[str]
    torn: frozenset[str]

    @property
    def size(self) -> int:
        """All bytes."""
        return sum(self.sizes.values())

    def paths(self) -> Iterator[Path]:
        """All segments."""
        for name in self.sizes:
            yield from sorted((self.root / name / "journal").iterdir())


def make_fleet(root: Path, sessions: int, scratch: Path) -> FleetMade:
    """Make a fleet below a new folder; `scratch` is for the long journal that all begin like."""
    random_ = random.Random(SEED)  # noqa: S311 - to be repeatable is the point
    large = [size * 10**6 for size in _LARGE[: max(1, len(_LARGE) * sessions // _LARGE_OF)]]
    if sessions < _LARGE_OF:
        large = [size * sessions // _LARGE_OF for size in large]
    span = math.log(_USUAL_BYTES_MAX / _SMALL_BYTES)
    sizes = [int(_SMALL_BYTES * math.exp(random_.random() * span)) for _ in range(sessions - len(large))] + large
    random_.shuffle(sizes)
    longest = max(sizes)
    master = make(scratch / _MASTER, (longest // 340 // 20 + 1) * 20)
    text = b"".join(path.read_bytes() for path in master.paths)
    starts = _turns(text)
    root.mkdir()
    made: dict[str, int] = {}
    damaged: set[str] = set()
    torn: set[str] = set()
    for number, size in enumerate(sizes):
        name = f"session-{number:05d}"
        # Most agents are between two turns: one in eight was stopped in the middle of one.
        count = max(size * len(starts) // len(text), 1)
        body = text[: starts[count] if number % 8 else starts[count] - len(text) // len(starts) // 2]
        body = body[: body.rfind(b"\n") + 1]
        body = body.replace(f'"session_id":"{_MASTER}"'.encode(), f'"session_id":"{name}"'.encode())
        if number % 100 == 17:
            damaged.add(name)
            place = body.rfind(b"\n", 0, len(body) // 2) + 1
            body = body[:place] + b"\0" * 512 + body[place:]
        elif number % 100 == 43:
            torn.add(name)
            body = body[: -len(body.splitlines()[-1]) // 2]
        made[name] = _write(root / name, body)
    return FleetMade(root, made, frozenset(damaged), frozenset(torn))


def _turns(text: bytes) -> list[int]:
    """The byte at which each turn begins, and where the last one ends."""
    starts = [0]
    while (end := text.find(b'"type":"turn_completed"', starts[-1])) >= 0:
        starts.append(text.find(b"\n", end) + 1)
    return starts


def _write(directory: Path, body: bytes) -> int:
    (directory / "journal").mkdir(parents=True)
    begin, number = 0, 0
    while begin < len(body):
        number += 1
        end = body.rfind(b"\n", begin, begin + _SEGMENT_BYTES) + 1
        if len(body) - begin <= _SEGMENT_BYTES or end <= begin:
            end = len(body)
        (directory / "journal" / f"{number:06d}.jsonl").write_bytes(body[begin:end])
        begin = end
    meta = {"created_at": 1_785_800_000_000_000, "schema_version": "1.2.0", "title": directory.name}
    (directory / "meta.json").write_bytes(orjson.dumps(meta))
    offset = body.count(b"\n") - body.count(b"\0\0" * 256)
    head = {"offset": offset, "schema_version": "1.2.0", "segment": number, "segment_cap": _SEGMENT_BYTES}
    (directory / "HEAD").write_bytes(orjson.dumps(head))
    return len(body)


def main() -> None:
    """Make one fleet and say what it is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fleet_journals")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sessions", type=int, default=10_000)
    options = parser.parse_args()
    scratch = options.directory.with_name(options.directory.name + ".scratch")
    made = make_fleet(options.directory, options.sessions, scratch)
    print(f"{len(made.sizes):,} sessions, {made.size:,} bytes, {len(made.damaged)} damaged, {len(made.torn)} torn")


if __name__ == "__main__":
    main()
