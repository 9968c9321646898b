"""`raxol-otel replay PATH...`: journals into traces."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING, Any

from raxol_otel.cli.common import EXIT_DAMAGE, EXIT_EXPORT, EXIT_OK, complain, note, quiet_core, when

if TYPE_CHECKING:
    from collections.abc import Callable

    from raxol_otel.exporters.base import Exporter
    from raxol_otel.exporters.replay import ReplayReport, SessionReport
    from raxol_otel.exporters.sources import Found

__all__ = ["add_parser", "run"]

_CAPTURE_VARIABLE = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "replay",
        help="journals into traces",
        description="Reads session journals and shows each turn as a trace, in the terminal or in a file.",
    )
    parser.add_argument(
        "paths", nargs="+", metavar="PATH", help="a session directory, a folder of sessions, or a tar of either"
    )
    parser.add_argument(
        "--to",
        default="console",
        type=_destination,
        metavar="WHERE",
        help="console (the default) or file:OUT.jsonl (OTLP JSON lines)",
    )
    parser.add_argument(
        "--since", type=when, metavar="TIME", help="only turns that start then or later: ISO 8601, or 90m, 12h, 7d ago"
    )
    parser.add_argument("--until", type=when, metavar="TIME", help="only turns that start before then")
    parser.add_argument("--turn", metavar="ID", help="only the turns of this id")
    parser.add_argument("--agent-name", metavar="NAME", help="gen_ai.agent.name of the turns")
    parser.add_argument("--provider", metavar="NAME", help="gen_ai.provider.name where the journal does not say")
    parser.add_argument("--model", metavar="NAME", help="gen_ai.request.model where the journal does not say")
    parser.add_argument(
        "--settle",
        type=_seconds,
        default=3600.0,
        metavar="SECONDS",
        help="hold back an open turn whose writer cannot be told until its last record is this old (default 3600)",
    )
    parser.add_argument("--dry-run", action="store_true", help="read and fold everything, send nothing")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object on standard output, no tree")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Replay, and tell what is wrong with any session."""
    from raxol_otel.exporters.replay import replay_found  # noqa: PLC0415 - not needed for --help
    from raxol_otel.exporters.sources import open_sources  # noqa: PLC0415 - as above

    quiet_core()
    replay_options = _replay_options(options)
    with open_sources(options.paths) as found:
        exporter = _exporter(options)
        try:
            with _progress(options, found) as progress:
                report = replay_found(found, exporter, replay_options, progress=progress)
            exporter.finish()
        finally:
            exporter.abort()
    if options.json:
        from raxol_otel.cli.report import replay_json  # noqa: PLC0415 - only here

        sys.stdout.write(replay_json(report))
    _tell(report, options)
    if report.rejected:
        complain(f"{report.rejected} spans were refused: {'; '.join(report.messages) or 'no reason given'}")
        return EXIT_EXPORT
    return EXIT_OK if report.is_intact else EXIT_DAMAGE


def _replay_options(options: argparse.Namespace) -> Any:
    from raxol_otel.exporters.limits import Limits  # noqa: PLC0415 - not needed for --help
    from raxol_otel.exporters.replay import ReplayOptions  # noqa: PLC0415 - as above
    from raxol_otel.turns import FoldConfig  # noqa: PLC0415 - as above

    config = FoldConfig(
        agent_name=options.agent_name,
        provider_name=options.provider,
        model=options.model,
        capture_content=os.environ.get(_CAPTURE_VARIABLE, "").strip().upper() == "SPAN_ONLY",
    )
    return ReplayOptions(
        config=config,
        since=options.since,
        until=options.until,
        turn=options.turn,
        settle_seconds=options.settle,
        limits=Limits.from_environment() if options.to != "console" else Limits(),
    )


def _destination(text: str) -> str:
    kind, colon, where = text.partition(":")
    if text == "console" or (kind == "file" and colon and where):
        return text
    message = f"{text!r} is no destination; use console or file:OUT.jsonl"
    raise argparse.ArgumentTypeError(message)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        message = f"{text!r} is no number of seconds"
        raise argparse.ArgumentTypeError(message)
    return seconds


def _exporter(options: argparse.Namespace) -> Exporter:
    if options.dry_run or (options.json and options.to == "console"):
        from raxol_otel.exporters.base import NullExporter  # noqa: PLC0415 - only here

        return NullExporter()
    if options.to == "console":
        from raxol_otel.exporters.console import ConsoleExporter  # noqa: PLC0415 - only here

        return ConsoleExporter(sys.stdout)
    from raxol_otel.exporters.file import FileExporter  # noqa: PLC0415 - only here
    from raxol_otel.exporters.resource import replay_envelope  # noqa: PLC0415 - only here

    return FileExporter(options.to.partition(":")[2], replay_envelope())


class _progress:  # noqa: N801 - used as a function
    """A progress bar on a terminal that the tree does not go to; else nothing."""

    def __init__(self, options: argparse.Namespace, found: Found) -> None:
        tree = options.to == "console" and not options.dry_run and not options.json
        self._bar: Any = None
        if sys.stderr.isatty() and not (tree and sys.stdout.isatty()):
            self._bar = self._make(found)

    @staticmethod
    def _make(found: Found) -> Any:
        from rich.console import Console  # noqa: PLC0415 - only on a terminal
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn  # noqa: PLC0415

        from raxol_otel.journal.health import measure  # noqa: PLC0415 - as above

        columns = (TextColumn("replaying"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        bar.add_task("replay", total=sum(measure(session)[1] for session in found.sessions))
        return bar

    def __enter__(self) -> Callable[[int], None] | None:
        if self._bar is None:
            return None
        self._bar.start()
        return lambda count: self._bar.advance(self._bar.task_ids[0], count)

    def __exit__(self, *_error: object) -> None:
        if self._bar is not None:
            self._bar.stop()


def _tell(report: ReplayReport, options: argparse.Namespace) -> None:
    for session in report.sessions:
        _tell_session(session)
    held = report.total("held")
    if held:
        note(f"held back: {held} open turn{'s' * (held != 1)} that may still be written to (see --settle)")
    done = "would send" if options.dry_run else "replayed"
    where = "" if options.to == "console" else f" to {options.to.partition(':')[2]}"
    turns, sessions = report.total("turns"), len(report.sessions)
    note(
        f"{done} {report.accepted} spans of {turns} turn{'s' * (turns != 1)}"
        f" in {sessions} session{'s' * (sessions != 1)}{where}"
    )


def _tell_session(session: SessionReport) -> None:
    if session.state == "damaged":
        complain(f"{session.name} is {session.damage}")
    elif session.state == "unreadable":
        complain(f"{session.name}: {session.error}")
    elif session.state == "truncated":
        complain(
            f"{session.name} has lost its tail: HEAD names offset {session.head_offset}, "
            f"the last record is {session.last_offset}"
        )
