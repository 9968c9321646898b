"""The command `raxol-otel`: data on standard output, everything else on standard error.

Exit codes: 0 fine, 1 damage found, 2 usage, 3 could not export.
"""

from __future__ import annotations

import argparse
import io
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from raxol_otel import __version__
from raxol_otel.cli import dashboards, demo, replay, salvage, serve, show, verify
from raxol_otel.cli.common import EXIT_EXPORT, EXIT_USAGE, complain
from raxol_otel.errors import ExportError, RaxolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build_parser", "main"]


def _drop_output() -> None:
    """What is left in the buffer can go nowhere; the flush at exit must not complain again."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


class _Parser(argparse.ArgumentParser):
    """Tells a mistake in one line, as everything else is told."""

    def error(self, message: str) -> NoReturn:
        complain(message, f"{self.prog} --help")
        raise SystemExit(EXIT_USAGE)


def build_parser() -> argparse.ArgumentParser:
    """The command's whole grammar."""
    parser = _Parser(
        prog="raxol-otel",
        description="What did the agent do, and is its record intact? Journals into traces, and their health.",
        epilog="Exit codes: 0 fine, 1 damage found, 2 usage, 3 could not export.",
    )
    parser.add_argument("--version", action="version", version=f"raxol-otel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (replay, verify, show, salvage, serve, demo, dashboards):
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Errors are one line each, never a traceback."""
    options = build_parser().parse_args(arguments)
    out: Any = sys.stdout
    if out is None:
        complain("standard output is closed")
        return EXIT_EXPORT
    if isinstance(out, io.TextIOWrapper):
        out.reconfigure(errors="backslashreplace")
    try:
        code: int = options.run(options)
        out.flush()
    except (RaxolError, OSError) as error:
        return _failed(error)
    except KeyboardInterrupt as stop:
        by = stop.args[0] if stop.args else signal.SIGINT
        complain("interrupted" if by == signal.SIGINT else "terminated")
        return 128 + int(by)
    return code


def _failed(error: RaxolError | OSError) -> int:
    """Tell the error; the exit code."""
    if isinstance(error, RaxolError):
        complain(str(error), error.hint)
        return EXIT_EXPORT if isinstance(error, ExportError) else EXIT_USAGE
    if isinstance(error, BrokenPipeError):
        _drop_output()
        return 128 + signal.SIGPIPE
    complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
    if error.filename is not None:
        return EXIT_USAGE
    _drop_output()
    return EXIT_EXPORT
