"""`raxol-otel verify PATH...`: tells whether the record is intact."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from raxol_otel.cli.common import EXIT_DAMAGE, EXIT_OK, complain, note, quiet_core

if TYPE_CHECKING:
    import argparse

    from raxol_otel.journal.health import Health
    from raxol_otel.journal.lock import Writer

__all__ = ["add_parser", "run"]


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "verify",
        help="health of journals",
        description="Tells each session's health: healthy, torn (its last line is unterminated, which is harmless), "
        "truncated (HEAD names more records than there are), damaged (cause, segment, line) or unreadable.",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a session directory, a folder of sessions, or a tar of either"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object a session, a line each")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Look at every session; 1 when one is not intact."""
    from raxol_otel.cli.report import health_json  # noqa: PLC0415 - not needed for --help
    from raxol_otel.exporters.console import printable  # noqa: PLC0415 - as above
    from raxol_otel.exporters.sources import open_sources  # noqa: PLC0415 - as above
    from raxol_otel.journal.health import inspect  # noqa: PLC0415 - as above

    quiet_core()
    code = EXIT_OK
    states: dict[str, int] = {}
    with open_sources(options.paths) as found:
        for path, reason in found.unreadable:
            complain(f"cannot read {path}: {reason}")
            code = EXIT_DAMAGE
        for directory in found.sessions:
            health = inspect(directory, is_foreign=directory in found.shown)
            name = found.name(directory)
            states[health.state] = states.get(health.state, 0) + 1
            if not health.is_intact:
                code = EXIT_DAMAGE
            sys.stdout.write(health_json(name, health) if options.json else _line(printable(name, 1000), health))
            sys.stdout.flush()
    if sum(states.values()) > 1:
        note(", ".join(f"{count} {state}" for state, count in sorted(states.items())))
    return code


def _line(name: str, health: Health) -> str:
    records, segments = health.records, health.segments
    facts = [
        f"{records} record{'s' * (records != 1)}",
        f"{segments} segment{'s' * (segments != 1)}",
        "chained" if health.chained else "unchained",
        _writer(health.writer),
    ]
    if health.damage is not None:
        damage = health.damage
        facts.insert(0, f"{damage.cause} at {damage.place} line {damage.line}, byte {damage.byte} ({damage.detail})")
    elif health.state == "truncated":
        facts.insert(0, f"HEAD names offset {health.head_offset}, the last record is {health.last_offset}")
    elif health.error is not None:
        facts = [health.error]
    if health.warning is not None:
        facts.append(f"but {health.warning}")
    return f"{health.state:<10} {name}: {', '.join(facts)}\n"


def _writer(writer: Writer) -> str:
    if writer.state in {"none", "unknown"}:
        return "no writer" if writer.state == "none" else "writer unknown"
    return f"{writer.state} writer" + (f" (pid {writer.pid})" if writer.pid else "")
