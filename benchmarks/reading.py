"""Reading a journal, beside the least that any reading takes: `python -m benchmarks.reading [--records N]`.

`iter_records` gives exact values and has checked every id, HEAD and, where the journal is chained, every hash and every
byte. The loops beside it check nothing, and get repeated keys, large integers and odd floats wrong.
"""

from __future__ import annotations

from functools import partial
from hashlib import sha256
from itertools import islice
from typing import TYPE_CHECKING, Final

import orjson

from benchmarks.common import Row, alternate, command_line, note
from benchmarks.journals import make
from raxol_otel.journal import iter_records
from raxol_otel.journal.codec import encode

if TYPE_CHECKING:
    from pathlib import Path

    from benchmarks.journals import Journal

__all__ = ["run"]

_ROUNDS: Final = 7
_COMPARED_RECORDS: Final = 20_000


def run(folder: Path, records: int) -> list[Row]:
    """Measure both kinds of journals."""
    rows: list[Row] = []
    for chained in (False, True):
        kind = "chained" if chained else "plain"
        note(f"reading: a {kind} journal of {records} records")
        journal = make(folder / kind, records, chained=chained)
        _check(journal)
        ours, theirs = alternate((partial(_ours, journal), partial(_hashed if chained else _bare, journal)), _ROUNDS)
        rows.append(
            Row(
                f"`iter_records`, {kind} ({journal.size / records:.0f} bytes a record)",
                f"{ours.rate(records)} records",
                f"loads, sorted dumps, SHA-256: {theirs.rate(records)}"
                if chained
                else f"loads: {theirs.rate(records)}",
                ours.ratio(theirs),
                "at least 0.45" if chained else "at least 0.6",
            )
        )
    return rows


def _ours(journal: Journal) -> None:
    count = 0
    for _ in iter_records(journal.directory):
        count += 1
    assert count == journal.records


def _bare(journal: Journal) -> None:
    for path in journal.paths:
        with path.open("rb") as file:
            for line in file:
                orjson.loads(line)


def _hashed(journal: Journal) -> None:
    for path in journal.paths:
        with path.open("rb") as file:
            for line in file:
                sha256(orjson.dumps(orjson.loads(line), option=orjson.OPT_SORT_KEYS)).hexdigest()


def _check(journal: Journal) -> None:
    """The records read are those on disk: written again, they are the very lines."""
    with journal.paths[0].open("rb") as file:
        for line, record in zip(islice(file, _COMPARED_RECORDS), iter_records(journal.directory), strict=False):
            assert encode(record) + b"\n" == line


if __name__ == "__main__":
    command_line("reading", run)
