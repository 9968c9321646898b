"""`raxol-otel show PATH`: the records of one healthy journal."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from raxol_otel.cli.common import EXIT_DAMAGE, EXIT_OK, complain, quiet_core
from raxol_otel.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "show",
        help="records of a healthy journal",
        description="Prints the records of one healthy journal as JSON, one a line. Nothing of a damaged one is shown.",
    )
    parser.add_argument("path", metavar="PATH", help="a session directory, or a tar of one")
    parser.add_argument(
        "--from", dest="start", type=int, metavar="OFFSET", help="only records of this offset and after"
    )
    parser.add_argument(
        "--tip", action="store_true", help="only the conversational tip of a branch, where a resumed conversation lands"
    )
    parser.add_argument("--branch", default="main", metavar="NAME", help="the branch of --tip (default main)")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Print the records, after the whole journal was found healthy."""
    from raxol_otel.exporters.sources import open_sources  # noqa: PLC0415 - not needed for --help
    from raxol_otel.journal.health import inspect  # noqa: PLC0415 - as above

    quiet_core()
    with open_sources([options.path]) as found:
        if found.unreadable:
            path, reason = found.unreadable[0]
            raise UsageError(f"cannot read {path}: {reason}")
        if len(found.sessions) > 1:
            names = ", ".join(found.name(session) for session in found.sessions[:3])
            raise UsageError(f"{len(found.sessions)} sessions in {options.path}: {names}...", "name one of them")
        directory = found.sessions[0]
        health = inspect(directory)
        if health.error is not None:
            raise UsageError(health.error)
        if health.damage is not None:
            complain(
                f"{found.name(directory)} is {health.damage}",
                "raxol-otel salvage PATH NEW writes the records before the damage as a new journal",
            )
            return EXIT_DAMAGE
        _print(directory, options)
        if health.state == "truncated":
            complain(
                f"{found.name(directory)} has lost its tail: HEAD names offset {health.head_offset}, "
                f"the last record is {health.last_offset}"
            )
            return EXIT_DAMAGE
    return EXIT_OK


def _print(directory: Path, options: argparse.Namespace) -> None:
    from raxol_otel.canonical import encode  # noqa: PLC0415 - as above
    from raxol_otel.journal import iter_records  # noqa: PLC0415 - not needed for --help
    from raxol_otel.journal.tip import branch_of, is_conversational  # noqa: PLC0415 - as above

    records = iter_records(directory)
    if options.tip:
        records = (record for record in records if is_conversational(record) and branch_of(record) == options.branch)
        last = None
        for record in records:
            last = record
        records = iter(() if last is None else (last,))
    out = sys.stdout.buffer
    for record in records:
        if options.start is None or record["id"] >= options.start:
            out.write(encode(record) + b"\n")
    out.flush()
