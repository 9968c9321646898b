"""`raxol-otel replay PATH...`: journals into traces."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

from raxol_otel import catalogue as names
from raxol_otel.cli import follow
from raxol_otel.cli.common import (
    EXIT_DAMAGE,
    EXIT_EXPORT,
    EXIT_OK,
    complain,
    jobs,
    note,
    quiet_core,
    stop_on_termination,
    when,
)
from raxol_otel.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from raxol_otel.exporters.base import Exporter
    from raxol_otel.exporters.replay import ReplayReport, SessionReport
    from raxol_otel.exporters.sources import Found

__all__ = ["add_parser", "run"]


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
        help="console (the default), otlp, file:OUT.jsonl (OTLP JSON lines) or html:OUT.html (a page to look at)",
    )
    parser.add_argument(
        "--since", type=when, metavar="TIME", help="only turns that start then or later: ISO 8601, or 90m, 12h, 7d ago"
    )
    parser.add_argument("--until", type=when, metavar="TIME", help="only turns that start before then")
    parser.add_argument("--turn", metavar="ID", help="only the turns of this id")
    parser.add_argument("--agent-name", metavar="NAME", help=f"{names.AGENT_NAME} of the turns")
    parser.add_argument("--provider", metavar="NAME", help=f"{names.PROVIDER_NAME} where the journal does not say")
    parser.add_argument("--model", metavar="NAME", help=f"{names.REQUEST_MODEL} where the journal does not say")
    parser.add_argument(
        "--settle",
        type=_seconds,
        default=3600.0,
        metavar="SECONDS",
        help="hold back an open turn whose writer cannot be told until its last record is this old (default 3600)",
    )
    parser.add_argument("--dry-run", action="store_true", help="read and fold everything, send nothing")
    parser.add_argument("--json", action="store_true", help="the report as one JSON object on standard output, no tree")
    _add_otlp(parser)
    follow.add_follow_options(parser)
    parser.set_defaults(run=run)


def _add_otlp(parser: argparse.ArgumentParser) -> None:
    otlp = parser.add_argument_group("with --to otlp", "Options win over the OTEL_EXPORTER_OTLP_* variables.")
    otlp.add_argument(
        "--endpoint",
        action="append",
        metavar="URL",
        help="default http://localhost:4318, for gRPC http://localhost:4317; to follow it may be repeated",
    )
    otlp.add_argument("--protocol", metavar="NAME", help="http/protobuf (the default) or grpc")
    otlp.add_argument(
        "--header", action="append", default=[], metavar="NAME=VALUE", type=follow.header, help="may be repeated"
    )
    otlp.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="of one request (default 10)")
    otlp.add_argument("--compression", metavar="NAME", help="none (the default), gzip or deflate")
    otlp.add_argument(
        "--retry-for",
        type=_seconds,
        default=300.0,
        metavar="SECONDS",
        help="give up on the endpoint when a request could not be delivered for so long (default 300)",
    )
    otlp.add_argument("--state", metavar="FILE", help="remember what was delivered, so that nothing is sent twice")
    otlp.add_argument("--jobs", type=jobs, default=1, metavar="N", help="processes; sessions are divided among them")


def run(options: argparse.Namespace) -> int:
    """Replay, and tell what is wrong with any session."""
    from raxol_otel.exporters.sources import open_sources  # noqa: PLC0415 - not needed for --help

    quiet_core()
    _check(options)
    if options.follow:
        return follow.run(options)
    stop_on_termination()
    with open_sources(options.paths) as found:
        kind, _, out = options.to.partition(":")
        for path, what in ((out if kind in {"file", "html"} else "", "the output"), (options.state, "the state file")):
            if path and not options.dry_run:
                found.refuse_output(path, what)
        report = _over_otlp(options, found) if options.to == "otlp" and not options.dry_run else _alone(options, found)
    if options.json:
        from raxol_otel.cli.report import replay_json  # noqa: PLC0415 - only here

        sys.stdout.write(replay_json(report))
    _tell(report, options)
    if report.rejected:
        complain(f"{report.rejected} spans were refused: {'; '.join(report.messages) or 'no reason given'}")
        return EXIT_EXPORT
    for message in report.messages:
        note(f"Warning: {message}")
    return EXIT_OK if report.is_intact else EXIT_DAMAGE


def _check(options: argparse.Namespace) -> None:
    """Refuse options that contradict each other. Raises `UsageError`."""
    otlp = ("endpoint", "protocol", "header", "timeout", "compression", "state")
    given = [name for name in otlp if getattr(options, name)] + ["jobs"] * (options.jobs > 1)
    if options.to != "otlp" and given:
        raise UsageError(f"{', '.join('--' + name for name in given)} goes with --to otlp", "add --to otlp")
    follow.check_follow(options)
    if options.since is not None and options.until is not None and options.since >= options.until:
        raise UsageError("--since is not before --until: no turn starts in between")
    capture = os.environ.get(follow.CAPTURE_VARIABLE, "").strip()
    if capture and capture.upper() not in {"SPAN_ONLY", "NO_CONTENT"}:
        note(f"Warning: {follow.CAPTURE_VARIABLE}={capture} is not SPAN_ONLY: no content is exported")


def _alone(options: argparse.Namespace, found: Found) -> ReplayReport:
    """Replay in this process, into the console or a file."""
    from raxol_otel.exporters.replay import replay_found  # noqa: PLC0415 - not needed for --help

    replay_options = _replay_options(options)
    # An interrupt must not come between the making of a file and the promise to remove it.
    stops = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stops)
    try:
        exporter = _exporter(options)
    except BaseException:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        raise
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, stops)
        with _progress(options, found) as progress:
            report = replay_found(found, exporter, replay_options, progress=progress)
        exporter.finish()
    finally:
        exporter.abort()
    return report


def _over_otlp(options: argparse.Namespace, found: Found) -> ReplayReport:
    """Replay to an endpoint, by this process or by several, remembering what was delivered."""
    from raxol_otel.exporters.otlp import RetryPolicy  # noqa: PLC0415 - not needed for --help
    from raxol_otel.exporters.otlp_config import OtlpConfig  # noqa: PLC0415 - as above
    from raxol_otel.exporters.otlp_replay import replay_otlp  # noqa: PLC0415 - as above

    config = OtlpConfig.resolve(
        endpoint=options.endpoint[0] if options.endpoint else None,
        protocol=options.protocol,
        headers=dict(options.header),
        timeout=options.timeout,
        compression=options.compression,
    )
    with _progress(options, found) as progress:
        return replay_otlp(
            found,
            _replay_options(options),
            config,
            policy=RetryPolicy(total=options.retry_for),
            state_path=options.state,
            jobs=options.jobs,
            progress=progress,
            notice=note,
        )


def _replay_options(options: argparse.Namespace) -> Any:
    from raxol_otel.exporters.limits import Limits  # noqa: PLC0415 - not needed for --help
    from raxol_otel.exporters.replay import ReplayOptions  # noqa: PLC0415 - as above
    from raxol_otel.turns import FoldConfig  # noqa: PLC0415 - as above

    config = FoldConfig(
        agent_name=options.agent_name,
        provider_name=options.provider,
        model=options.model,
        capture_content=os.environ.get(follow.CAPTURE_VARIABLE, "").strip().upper() == "SPAN_ONLY",
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
    if text in {"console", "otlp"} or (kind in {"file", "html"} and colon and where):
        return text
    message = f"{text!r} is no destination; use console, otlp, file:OUT.jsonl or html:OUT.html"
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
    kind, _, path = options.to.partition(":")
    if kind == "html":
        from raxol_otel.exporters.html import HtmlExporter  # noqa: PLC0415 - only here

        return HtmlExporter(path)
    from raxol_otel.exporters.file import FileExporter  # noqa: PLC0415 - only here
    from raxol_otel.exporters.resource import replay_envelope  # noqa: PLC0415 - only here

    return FileExporter(path, replay_envelope())


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
        note(
            f"held back: {held} open turn{'s' * (held != 1)} that may still be written to (a live writer, or --settle)"
        )
    done = "would send" if options.dry_run else "replayed"
    where = "" if options.to == "console" else f" to {options.to.partition(':')[2] or 'OTLP'}"
    already = report.total("already")
    before = f"; {already} were delivered before" if already else ""
    turns, sessions = report.total("turns"), len(report.sessions)
    broken = sum(session.state not in {"healthy", "torn"} for session in report.sessions)
    before += f"; {broken} not intact" if broken and sessions > 1 else ""
    if not turns and not already and (options.turn or options.since is not None or options.until is not None):
        before += "; no turn was chosen by --turn, --since, --until"
    note(
        f"{done} {report.accepted} span{'s' * (report.accepted != 1)} of {turns} turn{'s' * (turns != 1)}"
        f" in {sessions} session{'s' * (sessions != 1)}{where}{before}"
    )


def _tell_session(session: SessionReport) -> None:
    if session.warning:
        note(f"Warning: {session.name}: {session.warning}")
    if session.state == "damaged":
        complain(f"{session.name} is {session.damage}")
    elif session.state == "unreadable":
        complain(f"{session.name}: {session.error}")
    elif session.state == "truncated":
        complain(
            f"{session.name} has lost its tail: HEAD names offset {session.head_offset}, "
            f"the last record is {session.last_offset}"
        )
