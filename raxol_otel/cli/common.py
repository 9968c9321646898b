"""What the commands share: exit codes, messages, times."""

from __future__ import annotations

import argparse
import re
import signal
import sys
from datetime import UTC, datetime, timedelta
from typing import Final

__all__ = [
    "EXIT_DAMAGE",
    "EXIT_EXPORT",
    "EXIT_OK",
    "EXIT_USAGE",
    "JOBS_MAX",
    "complain",
    "jobs",
    "note",
    "quiet_core",
    "stop_on_termination",
    "when",
]

EXIT_OK: Final = 0
EXIT_DAMAGE: Final = 1
EXIT_USAGE: Final = 2
EXIT_EXPORT: Final = 3

# So many processes work side by side at most, in `replay` as in `serve`.
JOBS_MAX: Final = 64

_AGO: Final = re.compile(r"([0-9]{1,6})([smhd])", re.ASCII)
_UNITS: Final = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def complain(message: str, hint: str | None = None) -> None:
    """One `Error:` line on standard error, and a `Try:` line where the way out is known."""
    note(f"Error: {message}")
    if hint:
        note(f"Try: {hint}")


def note(message: str) -> None:
    """One line on standard error."""
    sys.stderr.write(_one_line(message) + "\n")


def quiet_core() -> None:
    """The core logs damage for programs; a command tells it in its own words."""
    import logging  # noqa: PLC0415 - not needed for --help

    logging.getLogger("raxol_otel.journal").addHandler(logging.NullHandler())
    logging.getLogger("raxol_otel.journal").propagate = False


def stop_on_termination() -> None:
    """Let SIGTERM end the command the way Ctrl-C does: what is open is closed, what was sent is remembered."""
    signal.signal(signal.SIGTERM, _terminated)


def _terminated(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt(signal.SIGTERM)


def jobs(text: str) -> int:
    """A number of processes on the command line."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= JOBS_MAX:
        message = f"{text!r} is no number of processes from 1 to {JOBS_MAX}"
        raise argparse.ArgumentTypeError(message)
    return int(text)


def when(text: str) -> int:
    """A moment on the command line in nanoseconds since the epoch: ISO 8601 (without a zone UTC) or `90m` ago."""
    ago = _AGO.fullmatch(text)
    try:
        moment = datetime.now(UTC) - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]]) if ago else _iso(text)
    except (ValueError, OverflowError):
        message = f"{text!r} is no time; use 2026-09-14T20:00:00Z, 2026-09-14, or 90m, 12h, 7d for that long ago"
        raise argparse.ArgumentTypeError(message) from None
    return int(moment.timestamp() * 10**6) * 1000


def _iso(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _one_line(text: str) -> str:
    return "".join(
        letter if letter.isprintable() else " " if letter in "\n\t" else f"\\u{{{ord(letter):x}}}" for letter in text
    )
