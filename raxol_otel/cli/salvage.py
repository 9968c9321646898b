"""`raxol-otel salvage PATH NEW`: the records of a damaged journal before the damage, as a new journal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from raxol_otel.cli.common import EXIT_OK, note, quiet_core
from raxol_otel.errors import UsageError

if TYPE_CHECKING:
    import argparse

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "salvage",
        help="the records before the damage, as a new journal",
        description="Writes the records of a damaged journal before the damage as a new journal, with their ids, "
        "hashes and snapshots. The old journal is not touched; the new one is there whole or not at all.",
    )
    parser.add_argument("path", metavar="PATH", help="the session directory to salvage")
    parser.add_argument("new", metavar="NEW", help="the new session directory; its name becomes the session's id")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Salvage, and tell what was found and what was written."""
    from raxol_otel.journal import salvage  # noqa: PLC0415 - not needed for --help
    from raxol_otel.journal.health import inspect  # noqa: PLC0415 - as above
    from raxol_otel.journal.layout import is_session_directory  # noqa: PLC0415 - as above

    quiet_core()
    directory = Path(options.path)
    if not directory.is_dir():
        raise UsageError(f"{directory} is not a session directory")
    if not is_session_directory(directory):
        raise UsageError(f"{directory} is not a session directory: it has no journal/", "name one session")
    health = inspect(directory)
    if health.error is not None:
        raise UsageError(health.error)
    if health.writer.state == "live":
        note(f"Warning: {directory} is being written to; records that come later are not in the new journal")
    count = salvage(directory, options.new)
    if health.damage is not None:
        note(f"{directory} is {health.damage}")
    elif health.state == "truncated":
        note(f"{directory} has lost its tail: HEAD names offset {health.head_offset}")
    else:
        note(f"{directory} is {health.state}: nothing was left out{' but the torn tail' * (health.state == 'torn')}")
    note(f"wrote {count} records to {options.new}")
    return EXIT_OK
