"""`raxol-otel serve`: the fleet exporter. Journals are followed in one thread, scrapes are answered in another."""

from __future__ import annotations

import argparse
import contextlib
import os
import select
import signal
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from raxol_otel.cli.common import EXIT_EXPORT, EXIT_OK, complain, jobs, note, quiet_core
from raxol_otel.cli.follow import add_otlp_options, check_otlp, deliveries_from
from raxol_otel.errors import ExportError, RaxolError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from raxol_otel.fleet.board import Board
    from raxol_otel.fleet.listen import Address
    from raxol_otel.fleet.web_config import WebConfig

__all__ = ["Runs", "add_parser", "run", "serve"]

_DEFAULT_LISTEN: Final = "127.0.0.1:9464"
_INTERVAL_MIN: Final = 0.1
_INTERVAL_MAX: Final = 3600.0
# Together less than the 5 seconds in which the command ends.
_SERVER_STOP_SECONDS: Final = 1.5
_ENGINE_STOP_SECONDS: Final = 4.0
_LOOK_SECONDS: Final = 0.5
# An answer is given in several short steps, and between any two of them the other thread may go on for so long.
_SWITCH_SECONDS: Final = 0.0005
_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


class Runs(Protocol):
    """An engine, as far as the command knows it."""

    @property
    def heartbeat(self) -> float:
        """The last sign of life, in seconds of `time.monotonic`."""
        ...

    def run(self, stop: threading.Event) -> None:
        """Look at journals and post on the board until `stop` is set."""
        ...


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "serve",
        help="the health of many journals as Prometheus metrics",
        description="Follows every journal below a directory, changing nothing there, and serves /metrics, /healthz, "
        "/readyz and a page that lists what is damaged. SIGTERM and Ctrl-C end it, with exit code 0.",
    )
    parser.add_argument(
        "--sessions-dir",
        type=Path,
        metavar="DIR",
        help="it need not exist yet (default $RAXOL_SESSIONS_DIR, else ~/.raxol/sessions)",
    )
    parser.add_argument(
        "--listen",
        default=_DEFAULT_LISTEN,
        metavar="ADDRESS",
        help=f"HOST:PORT, [::1]:PORT, or :PORT for every address (default {_DEFAULT_LISTEN}: this machine only)",
    )
    parser.add_argument(
        "--web-config", type=Path, metavar="FILE", help="TLS and basic authentication, as for Prometheus' exporters"
    )
    parser.add_argument("--state", type=Path, metavar="FILE", help="remember what was read: a restart reads it once")
    parser.add_argument(
        "--acknowledged", type=Path, metavar="FILE", help="damaged sessions that are known: one a line, # comments"
    )
    parser.add_argument("--jobs", type=jobs, default=1, metavar="N", help="processes of the first look (default 1)")
    parser.add_argument(
        "--interval", type=_interval, default=1.0, metavar="SECONDS", help="from one look to the next (default 1)"
    )
    parser.add_argument("--poll", action="store_true", help="never ask the kernel what changed: for network drives")
    add_otlp_options(parser)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    from raxol_otel.journal.layout import base_directory  # noqa: PLC0415 - not needed for --help

    quiet_core()
    options.sessions_dir = base_directory(options.sessions_dir)
    check_otlp(options)
    if options.state and is_below(options.state, options.sessions_dir):
        raise UsageError(f"the state file {options.state} lies inside the sessions directory", "name a file elsewhere")
    if options.sessions_dir.exists() and not options.sessions_dir.is_dir():
        raise UsageError(f"{options.sessions_dir} is no directory", "name the folder that holds the sessions")
    try:
        from raxol_otel.fleet.engine import Engine, EngineOptions  # noqa: PLC0415 - not needed for --help
    except ImportError as error:
        raise _missing(error) from None
    engine_options = EngineOptions(
        sessions_dir=options.sessions_dir,
        state=options.state,
        acknowledged=options.acknowledged,
        jobs=options.jobs,
        interval_seconds=options.interval,
        poll=options.poll,
    )
    return serve(
        options,
        lambda board: Engine(
            engine_options, board, notice=note, deliveries=lambda state: deliveries_from(options, state)
        ),
    )


def is_below(path: Path, folder: Path) -> bool:
    """Whether a path leads into a folder."""
    return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))


def serve(options: argparse.Namespace, make_engine: Callable[[Board], Runs]) -> int:
    """Serve what the engine posts; the exit code. Raises `UsageError`, and what the engine fails of.

    The port is taken before the engine is made: a second exporter on the same port touches no state of the first.
    """
    try:
        from raxol_otel.fleet.board import Board  # noqa: PLC0415 - not needed for --help
        from raxol_otel.fleet.server import Server  # noqa: PLC0415 - as above
        from raxol_otel.fleet.web_config import load_web_config  # noqa: PLC0415 - as above
    except ImportError as error:
        raise _missing(error) from None
    web_config = load_web_config(options.web_config) if options.web_config else None
    board = Board()
    life = _Life()
    server = Server(board, listen=options.listen, web_config=web_config, heartbeat=life.heartbeat)
    _warn(server.address, web_config)
    with _logged(), _signals() as woken:
        server.start()
        try:
            life.engine = make_engine(board)
            life.start()
            note(f"serving {options.sessions_dir} on {server.url}")
            while not woken(_LOOK_SECONDS) and life.is_running and server.is_running:
                pass
            was_running = server.is_running
            life.stop.set()
        finally:
            is_stopped = server.stop(_SERVER_STOP_SECONDS)
        is_stopped = life.join(_ENGINE_STOP_SECONDS - _SERVER_STOP_SECONDS) and is_stopped
    if not was_running:
        raise ExportError("the server ended by itself", "see the log above")
    if not is_stopped:
        complain("what was being done did not end in time, and was left")
        return EXIT_EXPORT
    return EXIT_OK


class _Life:
    """The engine's thread."""

    def __init__(self) -> None:
        self.engine: Runs | None = None
        self.stop = threading.Event()
        self._began = time.monotonic()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="raxol-engine", daemon=True)

    def start(self) -> None:
        """Let the engine run."""
        self._thread.start()

    def heartbeat(self) -> float:
        """The engine's last sign of life; before there is one, when the command began."""
        return self._began if self.engine is None else self.engine.heartbeat

    @property
    def is_running(self) -> bool:
        """Whether the engine runs."""
        return self._thread.is_alive()

    def join(self, timeout_seconds: float) -> bool:
        """Wait for its end; whether it came. Raises what the engine failed of."""
        self._thread.join(timeout_seconds)
        if isinstance(self._error, RaxolError | OSError):
            raise self._error
        if self._error is not None:
            raise ExportError(f"the engine failed: {type(self._error).__name__}: {self._error}") from self._error
        return not self.is_running

    def _run(self) -> None:
        try:
            if self.engine is not None:
                self.engine.run(self.stop)
        except BaseException as error:  # noqa: BLE001 - told by the main thread
            self._error = error


@contextlib.contextmanager
def _signals() -> Generator[Callable[[float], bool]]:
    """Gives a function that waits so many seconds for SIGTERM or SIGINT, and says whether one came.

    A handler that set an event could wait for itself, since it runs amid whatever its thread does. A second signal ends
    the process at once.
    """
    reading, writing = os.pipe()
    os.set_blocking(reading, False)
    os.set_blocking(writing, False)
    before = {number: signal.signal(number, _once) for number in _SIGNALS}
    waker = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)

    def woken(seconds: float) -> bool:
        ready, _, _ = select.select([reading], [], [], seconds)
        return bool(ready) and any(number in _SIGNALS for number in os.read(reading, 64))

    try:
        yield woken
    finally:
        signal.set_wakeup_fd(waker)
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(reading)
        os.close(writing)


def _once(_number: int, _frame: object) -> None:
    for number in _SIGNALS:
        signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def _logged() -> Generator[None]:
    """What the parts log is told on standard error, a line each; and threads take turns more often."""
    import logging  # noqa: PLC0415 - not needed for --help

    class Notes(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            with contextlib.suppress(Exception):  # nobody reads standard error any more: the exporter goes on
                note(f"{record.levelname.capitalize()}: {record.getMessage()}")

    handler = Notes(logging.WARNING)
    logger = logging.getLogger("raxol_otel")
    logger.addHandler(handler)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(_SWITCH_SECONDS)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)
        logger.removeHandler(handler)


def _warn(address: Address, web_config: WebConfig | None) -> None:
    """Say once what an address that others can reach gives away."""
    if address.is_loopback:
        return
    if web_config is None or not web_config.is_guarded:
        note(
            f"Warning: {address} can be reached from other machines, and anybody there may read names of sessions and "
            "what is wrong with them; --web-config FILE asks who they are"
        )
    elif web_config.tls is None:
        note(f"Warning: passwords come to {address} without encryption; add tls_server_config to the web config")


def _missing(error: ImportError) -> Exception:
    """What to raise instead: a library that is not there is no fault of ours, a module of our own is."""
    if (error.name or "").startswith("raxol_otel"):
        return error
    from raxol_otel.fleet.web_config import missing_library  # noqa: PLC0415 - only here

    return missing_library(error.name or str(error))


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not _INTERVAL_MIN <= seconds <= _INTERVAL_MAX:
        message = f"{text!r} is no number of seconds from {_INTERVAL_MIN} to {_INTERVAL_MAX:.0f}"
        raise argparse.ArgumentTypeError(message)
    return seconds
