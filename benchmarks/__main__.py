"""All benchmarks, one table: `python -m benchmarks [--records N] [--only NAME]`."""

from __future__ import annotations

import argparse
from typing import Final

from benchmarks import live, memory, metrics, network, reading, spans, writing
from benchmarks.common import RECORDS, Row, facts, table, workplace
from benchmarks.journals import whole_turns

_ALL: Final = {
    "reading": reading.run,
    "spans": spans.run,
    "writing": writing.run,
    "metrics": metrics.run,
    "live": live.run,
    "memory": memory.run,
    "network": network.run,
}


def main() -> None:
    """Run them in a temporary folder and print what docs/benchmarks.md shows."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description="Compares side by side and prints a Markdown table of ratios."
    )
    parser.add_argument(
        "--records", type=whole_turns, default=RECORDS, help=f"length of the journals (default {RECORDS:,})"
    )
    parser.add_argument("--only", choices=_ALL, help="one of the benchmarks")
    options = parser.parse_args()
    rows: list[Row] = []
    with workplace() as folder:
        for name, run in _ALL.items():
            if options.only in {None, name}:
                inside = folder / name
                inside.mkdir()
                rows += run(inside, options.records)
    print(f"{facts()}; journals of {options.records:,} records\n\n{table(rows)}")


main()
