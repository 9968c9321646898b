"""The HTTP server: uvicorn in a thread of its own, with bounds on what a client may hold.

A request's head has a size; a request, and the taking of its answer, has a time; so have silence between requests and
the number of connections. Whoever goes beyond is cut off, and nobody else waits meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, cast

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from raxol_otel.errors import UsageError
from raxol_otel.fleet.app import App
from raxol_otel.fleet.listen import bind, parse_listen

if TYPE_CHECKING:
    import socket
    import ssl
    from collections.abc import Callable

    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

    from raxol_otel.fleet.board import Board
    from raxol_otel.fleet.web_config import WebConfig

__all__ = ["Server"]

CONNECTIONS_MAX: Final = 256
HEAD_BYTES_MAX: Final = 16 * 1024
# From a request's first byte to the last byte of its answer that the client took.
EXCHANGE_SECONDS_MAX: Final = 20.0
# More than a minute: who scrapes each minute keeps its connection.
KEEP_ALIVE_SECONDS: Final = 65
_SWEEP_SECONDS: Final = 1.0
_RELOAD_SECONDS: Final = 10.0
_START_SECONDS_MAX: Final = 10.0
_TOO_LARGE: Final = b"HTTP/1.1 431 Request Header Fields Too Large\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
HEARTBEAT_SECONDS_MAX: Final = 60.0

_log = logging.getLogger("raxol_otel.fleet")


class Server:
    """Serves a board on `listen` from `start` to `stop`.

    `heartbeat` gives the engine's last sign of life in seconds of `time.monotonic`; /healthz fails when it is older
    than `heartbeat_seconds_max`. Certificates that change on disk are taken up within seconds.
    """

    def __init__(
        self,
        board: Board,
        *,
        listen: str,
        web_config: WebConfig | None,
        heartbeat: Callable[[], float] = time.monotonic,
        heartbeat_seconds_max: float = HEARTBEAT_SECONDS_MAX,
    ) -> None:
        self.address = parse_listen(listen)
        self._tls = web_config.tls if web_config else None
        self._app = App(
            board,
            users=web_config.users if web_config else {},
            headers=web_config.headers if web_config else {},
            heartbeat=heartbeat,
            heartbeat_seconds_max=heartbeat_seconds_max,
        )
        self._uvicorn: uvicorn.Server | None = None
        self._thread: threading.Thread | None = None
        self._socket: socket.socket | None = None
        self._port = 0

    @property
    def port(self) -> int:
        """The port that is listened on, also where 0 was asked for; 0 before `start`."""
        return self._port

    @property
    def url(self) -> str:
        """Where the page is."""
        host = self.address.host or "localhost"
        return f"{'https' if self._tls else 'http'}://{f'[{host}]' if ':' in host else host}:{self._port}/"

    @property
    def is_running(self) -> bool:
        """Whether the server's thread lives."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Listen and begin to answer. Raises `UsageError`: a port in use, a bad address, a bad certificate."""
        context = self._tls.context() if self._tls else None
        self._socket = bind(self.address)
        self._port = int(self._socket.getsockname()[1])
        server = self._uvicorn = uvicorn.Server(self._config(context))
        self._thread = threading.Thread(target=self._run, args=(server, context), name="raxol-server", daemon=True)
        self._thread.start()
        deadline = time.monotonic() + _START_SECONDS_MAX
        while not server.started:
            if not self._thread.is_alive() or time.monotonic() > deadline:
                self.stop()
                raise UsageError(f"the server on {self.address} did not start")
            time.sleep(0.005)

    def stop(self, timeout_seconds: float = 3.0) -> bool:
        """Finish what is being answered and close; whether that was done in time. Twice is once."""
        if self._uvicorn is not None:
            self._uvicorn.config.timeout_graceful_shutdown = max(1, int(timeout_seconds) - 1)
            self._uvicorn.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout_seconds)
        if self._socket is not None:
            self._socket.close()
        self._app.close()
        return not self.is_running

    def _config(self, context: ssl.SSLContext | None) -> uvicorn.Config:
        config = uvicorn.Config(
            self._app,
            loop="asyncio",
            http=_Protocol,
            ws="none",
            lifespan="off",
            log_config=None,
            # A client's garbage is no news, and our own errors are told by the application.
            log_level="critical",
            access_log=False,
            proxy_headers=False,
            server_header=False,
            backlog=512,
            timeout_keep_alive=KEEP_ALIVE_SECONDS,
            timeout_graceful_shutdown=1,
        )
        config.load()
        config.ssl = context
        return config

    def _run(self, server: uvicorn.Server, context: ssl.SSLContext | None) -> None:
        asyncio.run(self._serve(server, context))

    async def _serve(self, server: uvicorn.Server, context: ssl.SSLContext | None) -> None:
        sweeping = asyncio.create_task(self._sweep(server, context))
        try:
            await server.serve(sockets=[self._socket] if self._socket else None)
        finally:
            sweeping.cancel()
            for connection in list(server.server_state.connections):
                _abort(connection)

    async def _sweep(self, server: uvicorn.Server, context: ssl.SSLContext | None) -> None:
        """Cut off who takes too long; take up certificates that changed."""
        stamp, looked = self._stamp(), time.monotonic()
        while True:
            await asyncio.sleep(_SWEEP_SECONDS)
            now = time.monotonic()
            for connection in list(server.server_state.connections):
                if cast("_Protocol", connection).is_overdue(now):
                    _abort(connection)
            if context is not None and now - looked >= _RELOAD_SECONDS:
                looked = now
                stamp = await asyncio.to_thread(self._reload, context, stamp)

    def _stamp(self) -> tuple[int, ...]:
        """When the certificate and its key were changed."""
        stamp: list[int] = []
        for path in (self._tls.cert_file, self._tls.key_file) if self._tls else ():
            with contextlib.suppress(OSError):
                status = path.stat()
                stamp += [status.st_mtime_ns, status.st_ino, status.st_size]
        return tuple(stamp)

    def _reload(self, context: ssl.SSLContext, known: tuple[int, ...]) -> tuple[int, ...]:
        stamp = self._stamp()
        if self._tls is None or stamp == known:
            return known
        try:
            self._tls.context()  # tried on another first: one that fails would be left half changed
            self._tls.load_pair(context)
        except UsageError as error:
            _log.warning("the certificate changed, but the old one stays in use: %s", error)
        return stamp


class _Protocol(HttpToolsProtocol):
    """A connection with bounds: on the size of a request's head, and on how long an exchange or silence may last."""

    _since = 0.0
    _head_bytes = 0
    _is_in_head = _is_inside = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = time.monotonic()
        if len(self.connections) > CONNECTIONS_MAX:
            transport.abort()

    def on_message_begin(self) -> None:
        self._since = time.monotonic()
        self._is_in_head = self._is_inside = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > HEAD_BYTES_MAX:
            raise ValueError  # to the parser any error is a bad request
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._is_in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._is_inside = False
        super().on_message_complete()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._is_in_head and not self.transport.is_closing():
            # What is not a whole header yet the parser keeps to itself.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES_MAX:
                self.send_400_response("")

    def send_400_response(self, msg: str) -> None:
        if self._head_bytes > HEAD_BYTES_MAX:
            self.transport.write(_TOO_LARGE)
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        # From now on the client has the time of another exchange to take the answer.
        self._since = time.monotonic()
        super().on_response_complete()

    def is_overdue(self, now: float) -> bool:
        """Whether the exchange, or the silence after one, has lasted too long."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        is_over = cycle is not None and cycle.response_complete and not self._is_inside and not self.pipeline
        is_idle = is_over and not self.transport.get_write_buffer_size()
        return now - self._since > (KEEP_ALIVE_SECONDS if is_idle else EXCHANGE_SECONDS_MAX)


def _abort(connection: Any) -> None:
    transport = getattr(connection, "transport", None)
    if transport is not None:
        transport.abort()
