"""`raxol-otel replay --follow`: traces leave as turns close. And the options by which `serve` sends them, too."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel import catalogue as names
from raxol_otel.cli.common import EXIT_EXPORT, EXIT_OK, complain, note, when
from raxol_otel.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence

    from raxol_otel.fleet.delivery import Delivery
    from raxol_otel.fleet.follow import Follow
    from raxol_otel.fleet.state import FleetState

__all__ = [
    "CAPTURE_VARIABLE",
    "add_follow_options",
    "add_otlp_options",
    "check_follow",
    "deliveries_from",
    "header",
    "run",
]

CAPTURE_VARIABLE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
_STOPS: Final = (signal.SIGTERM, signal.SIGINT)
# What is of no use while following, with the value that it has when it is not given.
_REPLAY_ONLY: Final[dict[str, Any]] = {
    "until": None,
    "turn": None,
    "dry_run": False,
    "json": False,
    "jobs": 1,
    "retry_for": 300.0,
}
_OTLP_ONLY: Final[dict[str, Any]] = {
    "otlp_protocol": None,
    "otlp_header": [],
    "otlp_sample": 1.0,
    "otlp_session": [],
    "otlp_outcome": frozenset[str](),
    "otlp_since": None,
}
_FOLLOW_ONLY: Final[dict[str, Any]] = {"sample": 1.0, "session": [], "outcome": frozenset[str](), "poll": False}


# -- options


def add_follow_options(parser: argparse.ArgumentParser) -> None:
    """Add what `replay` takes to follow."""
    group = parser.add_argument_group("to follow, with --to otlp")
    group.add_argument(
        "--follow",
        action="store_true",
        help="go on: what turns leave behind is sent as they close, until a signal comes",
    )
    group.add_argument("--poll", action="store_true", help="never ask the kernel what changed: for network drives")
    _add_choice(group, "--")


def add_otlp_options(parser: argparse.ArgumentParser) -> None:
    """Add what `serve` takes to send traces; `deliveries_from` makes use of it."""
    group = parser.add_argument_group(
        "traces", "Spans leave as turns close. The OTEL_EXPORTER_OTLP_* variables say what these do not."
    )
    group.add_argument(
        "--otlp-endpoint", action="append", default=[], metavar="URL", help="send traces there; may be repeated"
    )
    group.add_argument("--otlp-protocol", metavar="NAME", help="http/protobuf (the default) or grpc")
    group.add_argument(
        "--otlp-header", action="append", default=[], metavar="NAME=VALUE", type=header, help="may be repeated"
    )
    _add_choice(group, "--otlp-")
    group.add_argument("--otlp-since", type=when, metavar="TIME", help="only turns that start then or later")


def _add_choice(group: Any, prefix: str) -> None:
    group.add_argument(
        f"{prefix}sample", type=_ratio, default=1.0, metavar="RATIO", help="this share of the traces (default 1)"
    )
    group.add_argument(
        f"{prefix}session",
        action="append",
        default=[],
        metavar="PATTERN",
        help="only sessions of that name, * and ? as in a shell; may be repeated",
    )
    group.add_argument(
        f"{prefix}outcome",
        type=_outcomes,
        default=frozenset(),
        metavar="A,B",
        help=f"only turns that end so: {', '.join(sorted(names.TURN_OUTCOMES))}",
    )


def header(text: str) -> tuple[str, str]:
    """A header on the command line."""
    name, equals, value = text.partition("=")
    name = name.strip().lower()
    # What is no header is told without its value, which may be a secret.
    if not equals or not name or not name.isascii() or not name.isprintable() or ":" in name or not value.isprintable():
        message = "a header is NAME=VALUE"
        raise argparse.ArgumentTypeError(message)
    return name, value.strip()


def _ratio(text: str) -> float:
    try:
        ratio = float(text)
    except ValueError:
        ratio = -1.0
    if not 0 <= ratio <= 1:
        message = f"{text!r} is no ratio; use a number from 0 to 1"
        raise argparse.ArgumentTypeError(message)
    return ratio


def _outcomes(text: str) -> frozenset[str]:
    outcomes = frozenset(part.strip() for part in text.split(","))
    if not outcomes <= names.TURN_OUTCOMES:
        message = f"{text!r} has an unknown outcome; use {', '.join(sorted(names.TURN_OUTCOMES))}"
        raise argparse.ArgumentTypeError(message)
    return outcomes


def check_follow(options: argparse.Namespace) -> None:
    """Refuse what does not go with `--follow`, or only with it. Raises `UsageError`."""
    if not options.follow:
        _refuse(options, _FOLLOW_ONLY, "goes with --follow", "add --follow --to otlp")
        if len(options.endpoint or []) > 1:
            raise UsageError("several --endpoint go with --follow", "replay once for each, or add --follow")
        return
    if options.to != "otlp":
        raise UsageError("--follow sends to an endpoint only", "add --to otlp")
    _refuse(options, _REPLAY_ONLY, "does not go with --follow", "replay without --follow")
    for path in options.paths:
        if not path:
            raise UsageError("an empty PATH names nothing", "is a variable unset?")
        if Path(path).exists() and not Path(path).is_dir():
            raise UsageError(f"{path} is no directory, and nothing is ever added to it", "replay it without --follow")


def check_otlp(options: argparse.Namespace) -> None:
    """Refuse what goes with `--otlp-endpoint` only. Raises `UsageError`."""
    if not options.otlp_endpoint:
        _refuse(options, _OTLP_ONLY, "goes with --otlp-endpoint", "add --otlp-endpoint URL")


def _refuse(options: argparse.Namespace, defaults: dict[str, Any], words: str, hint: str) -> None:
    given = [f"--{name.replace('_', '-')}" for name, value in defaults.items() if getattr(options, name) != value]
    if given:
        raise UsageError(f"{', '.join(given)} {words}", hint)


# -- deliveries


def deliveries_from(options: argparse.Namespace, state: FleetState) -> list[Delivery]:
    """What the options of `add_otlp_options` ask for; nothing without `--otlp-endpoint`.

    Raises `UsageError` for an endpoint that is none, `ExportError` where a library is missing.
    """
    if not options.otlp_endpoint:
        return []
    return _deliveries(
        state,
        endpoints=options.otlp_endpoint,
        resolve={"protocol": options.otlp_protocol, "headers": dict(options.otlp_header)},
        wanted={
            "since": options.otlp_since,
            "sample": options.otlp_sample,
            "sessions": tuple(options.otlp_session),
            "outcomes": options.otlp_outcome,
        },
        fold={},
    )


def _deliveries(
    state: FleetState,
    *,
    endpoints: Sequence[str | None],
    resolve: dict[str, Any],
    wanted: dict[str, Any],
    fold: dict[str, Any],
    **more: Any,
) -> list[Delivery]:
    from raxol_otel.exporters.limits import Limits  # noqa: PLC0415 - not needed for --help
    from raxol_otel.exporters.otlp_config import OtlpConfig  # noqa: PLC0415 - as above
    from raxol_otel.fleet.delivery import Delivery, DeliveryOptions  # noqa: PLC0415 - as above
    from raxol_otel.fleet.follow import Once  # noqa: PLC0415 - as above
    from raxol_otel.fleet.wanted import Wanted  # noqa: PLC0415 - as above
    from raxol_otel.turns import FoldConfig  # noqa: PLC0415 - as above

    captures = os.environ.get(CAPTURE_VARIABLE, "").strip().upper() == "SPAN_ONLY"
    delivery_options = DeliveryOptions(
        wanted=Wanted(**wanted),
        fold=FoldConfig(**fold, capture_content=captures),
        limits=Limits.from_environment(),
        **more,
    )
    configs = [OtlpConfig.resolve(endpoint=endpoint, **resolve) for endpoint in endpoints]
    urls = [config.endpoint for config in configs]
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        raise UsageError(f"{twice[0]} is named twice", "name each endpoint once")
    tell = Once(note)
    return [Delivery(config, state, delivery_options, notice=tell) for config in configs]


# -- the command


def run(options: argparse.Namespace) -> int:
    """Follow until SIGTERM or SIGINT; the exit code. Raises `UsageError` and `ExportError`."""
    from raxol_otel.fleet.follow import Follow  # noqa: PLC0415 - not needed for --help
    from raxol_otel.fleet.state import FleetState  # noqa: PLC0415 - as above

    # No handler: it would run amid whatever the main thread does. Threads inherit that these are blocked.
    signal.pthread_sigmask(signal.SIG_BLOCK, _STOPS)
    try:
        state = FleetState(options.state, notice=note)
        try:
            deliveries = _deliveries(
                state,
                endpoints=options.endpoint or [None],
                resolve={
                    "protocol": options.protocol,
                    "headers": dict(options.header),
                    "timeout": options.timeout,
                    "compression": options.compression,
                },
                wanted={
                    "since": options.since,
                    "sample": options.sample,
                    "sessions": tuple(options.session),
                    "outcomes": options.outcome,
                },
                fold={"agent_name": options.agent_name, "provider_name": options.provider, "model": options.model},
                settle_seconds=options.settle,
            )
            paths = [Path(path) for path in options.paths]
            follow = Follow(paths, deliveries, state, poll=options.poll, notice=note)
            to = ", ".join(delivery.endpoint for delivery in deliveries)
            note(f"following {', '.join(options.paths)}; traces go to {to}")
            return _follow(follow)
        finally:
            state.close()
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)


def _follow(follow: Follow) -> int:
    status = _Status(follow)

    def wait(seconds: float) -> bool:
        status.show()
        return signal.sigtimedwait(_STOPS, seconds) is not None

    try:
        follow.run(wait)
    finally:
        # A second signal ends the process at once.
        for number in _STOPS:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _STOPS)
        status.clear()
        failed = follow.stop()
    for delivery in failed:
        complain(f"stopped with at least {delivery.left}; the next run sends them")
    sent = "; ".join(f"{delivery.facts.accepted} spans to {delivery.endpoint}" for delivery in follow.deliveries)
    note(f"sent {sent}")
    return EXIT_EXPORT if failed else EXIT_OK


class _Status:
    """A line on a terminal that says what goes on."""

    def __init__(self, follow: Follow) -> None:
        self._follow = follow
        self._is_terminal = sys.stderr.isatty()

    def show(self) -> None:
        """Write it over the last one."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K" + "; ".join(self._parts())[: _columns() - 1])
            sys.stderr.flush()

    def clear(self) -> None:
        """Leave the line free."""
        if self._is_terminal:
            sys.stderr.write("\r\x1b[2K")
            sys.stderr.flush()

    def _parts(self) -> Generator[str]:
        yield f"{len(self._follow.sessions)} sessions"
        for delivery in self._follow.deliveries:
            facts = delivery.facts
            waiting = f", about {facts.backlog} waiting" if facts.backlog else ""
            yield f"{delivery.endpoint}: {facts.accepted} spans{waiting}"


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or 80
    except OSError:
        return 80
