"""The command `raxol-otel`: data on standard output, everything else on standard error.

Exit codes: 0 fine, 1 damage found, 2 usage, 3 could not export.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING

from raxol_otel import __version__
from raxol_otel.cli import replay, show, verify
from raxol_otel.cli.common import EXIT_USAGE, complain, export_failed
from raxol_otel.errors import ExportError, RaxolError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["build_parser", "main"]


def build_parser() -> argparse.ArgumentParser:
    """The command's whole grammar."""
    parser = argparse.ArgumentParser(
        prog="raxol-otel",
        description="What did the agent do, and is its record intact? Journals into traces, and their health.",
        epilog="Exit codes: 0 fine, 1 damage found, 2 usage, 3 could not export.",
    )
    parser.add_argument("--version", action="version", version=f"raxol-otel {__version__}")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (replay, verify, show):
        module.add_parser(commands)
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code. Errors are one line each, never a traceback."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        sys.stdout.flush()
    except ExportError as error:
        return export_failed(error)
    except RaxolError as error:
        complain(str(error), error.hint)
        return EXIT_USAGE
    except BrokenPipeError:
        # The reader of our output has gone; the flush at exit must not complain either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        complain(f"{error.filename or 'standard output'}: {error.strerror or error}")
        return EXIT_USAGE
    except KeyboardInterrupt as stop:
        by = stop.args[0] if stop.args else signal.SIGINT
        complain("interrupted" if by == signal.SIGINT else "terminated")
        return 128 + int(by)
    return code
