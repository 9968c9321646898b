"""`raxol-otel demo [DIR]`: a small set of real journals to play with."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Any

from raxol_otel.cli.common import EXIT_OK, note, quiet_core

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser", "run"]

_DEFAULT = "raxol-demo"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "demo",
        help="write a small set of journals to play with",
        description="Writes real journals, one healthy, one chained, the others torn, damaged, tampered with and short "
        "of their tail, and prints their directories.",
    )
    parser.add_argument(
        "directory", nargs="?", default=_DEFAULT, metavar="DIR", help=f"new or empty (default {_DEFAULT})"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Write them; their directories go to standard output."""
    from raxol_otel.demo import SESSIONS, write_demo  # noqa: PLC0415 - not needed for --help

    quiet_core()
    sessions = write_demo(options.directory, time.time_ns() // 1_000)
    for session in sessions:
        sys.stdout.write(f"{session}\n")
    note(f"wrote {len(SESSIONS)} sessions; try: raxol-otel verify {options.directory}")
    return EXIT_OK
