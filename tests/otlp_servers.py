"""The two doors of `tests.otlp_receiver`: HTTP, and gRPC behind a relay that can reset its connections."""

from __future__ import annotations

import gzip
import selectors
import socket
import struct
import sys
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from email.utils import parsedate_to_datetime
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import BaseRequestHandler, TCPServer
from typing import TYPE_CHECKING, Any, Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration

from tests.otlp_script import (
    AcceptThenDrop,
    Action,
    Garbage,
    Grpc,
    Hang,
    Redirect,
    Request,
    Reset,
    Slow,
    Status,
    Truncated,
    answer,
)

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable, Generator, Mapping
    from typing import Never

    import grpc

    from tests.otlp_receiver import Receiver

HOST: Final = "127.0.0.1"
PATH: Final = "/v1/traces"
SERVICE: Final = "opentelemetry.proto.collector.trace.v1.TraceService"
PROTOBUF: Final = "application/x-protobuf"
GRPC_WORKERS: Final = 16
CONNECTIONS_WAITING_MAX: Final = 128
RELAY_CHUNK_BYTES: Final = 1 << 18
POLL_SECONDS: Final = 0.02
# What gRPC says where HTTP says this; UNKNOWN for the rest.
GRPC_CODES: Final = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "UNIMPLEMENTED",
    413: "RESOURCE_EXHAUSTED",
    429: "RESOURCE_EXHAUSTED",
    500: "INTERNAL",
    502: "UNAVAILABLE",
    503: "UNAVAILABLE",
    504: "UNAVAILABLE",
}


class Server(ThreadingHTTPServer):
    """A thread for every connection. Connections can be reset, and are closed and waited for at the end."""

    daemon_threads = False
    request_queue_size = CONNECTIONS_WAITING_MAX

    def __init__(
        self,
        port: int,
        handler: Callable[[Any, Any, Server], BaseRequestHandler],
        *,
        on_error: Callable[[Exception], None],
        tls: ssl.SSLContext | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._connected: set[socket.socket] = set()
        self._doomed: set[socket.socket] = set()
        self._on_error = on_error
        self._tls = tls
        super().__init__((HOST, port), handler)

    def server_bind(self) -> None:
        """Bind, without looking up the host's name, which can take seconds."""
        TCPServer.server_bind(self)

    def get_request(self) -> tuple[socket.socket, Any]:
        """Take a connection; the handshake is left to its own thread."""
        connection, address = super().get_request()
        if self._tls:
            connection = self._tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
        with self._lock:
            self._connected.add(connection)
        return connection, address

    def doom(self, connection: socket.socket) -> None:
        """Let this connection end with RST as soon as its handler returns."""
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        with self._lock:
            self._doomed.add(connection)

    def shutdown_request(self, request: Any) -> None:
        """Close a connection, with FIN or, if doomed, with RST."""
        with self._lock:
            self._connected.discard(request)
            doomed = request in self._doomed
            self._doomed.discard(request)
        if doomed:
            self.close_request(request)
        else:
            super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that went away, or failed the handshake, are no error of ours."""
        del request, client_address
        error = sys.exception()
        if isinstance(error, Exception) and not isinstance(error, OSError):
            self._on_error(error)

    @contextmanager
    def running(self) -> Generator[int]:
        """Serve meanwhile; gives the port."""
        thread = threading.Thread(target=self.serve_forever, args=(POLL_SECONDS,))
        thread.start()
        try:
            yield int(self.server_address[1])
        finally:
            self.shutdown()
            thread.join()
            with self._lock:
                for connection in self._connected:
                    with suppress(OSError):  # not SSLSocket's own, which would take the TLS state from under a reader
                        socket.socket.shutdown(connection, socket.SHUT_RDWR)
            self.server_close()


class HttpHandler(BaseHTTPRequestHandler):
    """One connection of OTLP/HTTP."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, receiver: Receiver, request: Any, address: Any, server: Server) -> None:
        self._receiver = receiver
        self._doom = partial(server.doom, request)
        super().__init__(request, address, server)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is http.server's
        """Say nothing."""

    def do_POST(self) -> None:
        """Take a request, and do with it as the script says."""
        length = self.headers.get("Content-Length", "")
        if not length.isdecimal():
            self.close_connection = True
            self._send(_response(411, b"", {"Connection": "close"}))
            return
        wire = self.rfile.read(int(length))
        if len(wire) < int(length):  # the client went away
            self.close_connection = True
            return
        headers = {name.lower(): value for name, value in self.headers.items()}
        body, refusal = self._body(headers, wire)
        now, number = time.time(), self._receiver.next_number()
        request = Request(number, now, self.client_address[1], self.path, headers, len(wire), body)
        self._perform(self._receiver.take(request, refusal))

    def _body(self, headers: Mapping[str, str], wire: bytes) -> tuple[bytes, Status | None]:
        encoding = headers.get("content-encoding", "identity")
        if self.path not in self._receiver.paths:
            return wire, Status(404)
        if headers.get("content-type") != PROTOBUF or encoding not in {"identity", "gzip", "deflate"}:
            return wire, Status(415)
        if encoding == "identity" or self._receiver.raw:
            return wire, None
        try:
            return gzip.decompress(wire) if encoding == "gzip" else zlib.decompress(wire), None
        except (OSError, EOFError, zlib.error) as error:
            return wire, Status(400, message=f"{encoding}: {error}")

    def _perform(self, action: Action | None) -> None:
        match action:
            case Reset() | AcceptThenDrop():
                self._doom()
                self.close_connection = True
            case Hang(seconds):
                self._receiver.closing.wait(seconds)
                self.close_connection = True
            case Status(code, retry_after, message):
                headers = {} if retry_after is None else {"Retry-After": retry_after}
                self._send(_response(code, _rpc_status(0, message), headers))
            case Redirect(location, code):
                self._send(_response(code, b"", {"Location": location}))
            case Garbage():
                self._send(_response(200, answer(action), {"Content-Type": "text/html"}))
            case Truncated():
                self._send(_response(200, answer(action), missing=10))
                self.close_connection = True
            case Slow(seconds):
                self._send(_response(200, answer(action)), seconds)
            case _:
                self._send(_response(200, answer(action)))

    def _send(self, response: bytes, seconds: float = 0.0) -> None:
        if not seconds:
            self.wfile.write(response)  # in one piece: no second packet waits for the first one's acknowledgement
            return
        for byte in response:
            self._receiver.closing.wait(seconds / len(response))
            self.wfile.write(bytes([byte]))


def _response(status: int, body: bytes, headers: Mapping[str, str] | None = None, *, missing: int = 0) -> bytes:
    """A whole HTTP response, whose length promises `missing` bytes more than there are."""
    phrase = HttpHandler.responses.get(status, ("Unknown",))[0]
    fields = {"Content-Type": PROTOBUF, "Content-Length": str(len(body) + missing)} | dict(headers or {})
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in fields.items()), "", ""]
    return "\r\n".join(lines).encode() + body


class Relay:
    """Carries connections on to gRPC's own port, as grpcio has no means to reset one."""

    def __init__(self, port: int, on_error: Callable[[Exception], None]) -> None:
        self.server = Server(port, partial(_RelayHandler, self), on_error=on_error)
        self.upstream = 0
        self.cuts: dict[int, Callable[[], None]] = {}  # by the port that gRPC knows the client by
        self.clients: dict[int, int] = {}

    def cut(self, peer: int) -> None:
        """Reset the connection to this client."""
        if cut := self.cuts.get(peer):
            cut()


class _RelayHandler(BaseRequestHandler):
    """One connection, both ways."""

    def __init__(self, relay: Relay, request: Any, address: Any, server: Server) -> None:
        self._relay = relay
        super().__init__(request, address, server)

    def handle(self) -> None:
        """Pass bytes on until either side ends."""
        down: socket.socket = self.request
        with socket.create_connection((HOST, self._relay.upstream)) as up, selectors.DefaultSelector() as selector:
            peer = up.getsockname()[1]

            def cut() -> None:
                self._relay.server.doom(down)
                with suppress(OSError):
                    up.shutdown(socket.SHUT_RDWR)  # wakes the loop

            self._relay.clients[peer] = self.client_address[1]
            self._relay.cuts[peer] = cut
            for source, sink in ((down, up), (up, down)):
                source.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                selector.register(source, selectors.EVENT_READ, (source, sink))
            try:
                while True:
                    for key, _ in selector.select():
                        data = key.data[0].recv(RELAY_CHUNK_BYTES)
                        if not data:
                            return
                        key.data[1].sendall(data)
            finally:
                del self._relay.cuts[peer]


class GrpcDoor:
    """OTLP/gRPC."""

    def __init__(self, receiver: Receiver, port: int, credentials: tuple[bytes, bytes, bytes | None] | None) -> None:
        import grpc  # noqa: PLC0415 - heavy, and not needed over HTTP

        self._codes: Any = grpc.StatusCode
        self._receiver = receiver
        # First, so that gRPC's own port, which may be any, is not the one asked for.
        self._relay = Relay(port, receiver.fail) if receiver.keep else None
        options = [("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", -1)]
        self._workers = ThreadPoolExecutor(GRPC_WORKERS)
        self._server = grpc.server(self._workers, options=options)
        handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
            "Export": grpc.unary_unary_rpc_method_handler(self._export)
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = f"{HOST}:{0 if self._relay else port}"
        if credentials:
            key, chain, client_ca = credentials
            secure = grpc.ssl_server_credentials([(key, chain)], client_ca, require_client_auth=client_ca is not None)
            self._port = self._server.add_secure_port(address, secure)
        else:
            self._port = self._server.add_insecure_port(address)
        if self._relay:
            self._relay.upstream = self._port

    @contextmanager
    def running(self) -> Generator[int]:
        """Serve meanwhile; gives the port."""
        self._server.start()
        try:
            if self._relay:
                with self._relay.server.running() as port:
                    yield port
            else:
                yield self._port
        finally:
            self._server.stop(None).wait()
            self._workers.shutdown()

    def _export(self, body: bytes, context: grpc.ServicerContext) -> bytes:
        peer = int(context.peer().rpartition(":")[2])
        headers = {
            name: value if isinstance(value, str) else value.decode("latin-1")
            for name, value in context.invocation_metadata()
        }
        client = self._relay.clients[peer] if self._relay else peer
        now, number = time.time(), self._receiver.next_number()
        request = Request(number, now, client, f"/{SERVICE}/Export", headers, len(body), body)
        action = self._receiver.take(request, None)
        try:
            self._perform(action, peer, context)
        except (KeyError, ValueError) as error:  # the script's: no such code, no such time
            self._receiver.fail(error)
            raise
        return answer(action)

    def _perform(self, action: Action | None, peer: int, context: grpc.ServicerContext) -> None:
        match action:
            case Status(code, retry_after, message):
                delay = None if retry_after is None else _seconds(retry_after)
                self._refuse(context, GRPC_CODES.get(code, "UNKNOWN"), message, delay)
            case Grpc(name, message, delay):
                self._refuse(context, name, message, delay)
            case Reset() | AcceptThenDrop() | Hang():
                if isinstance(action, Hang):
                    self._receiver.closing.wait(action.seconds)
                if self._relay:
                    self._relay.cut(peer)
                self._refuse(context, "UNAVAILABLE", "cut off", None)
            case Slow(seconds):
                self._receiver.closing.wait(seconds)
            case _:
                pass

    def _refuse(self, context: grpc.ServicerContext, name: str, message: str, delay: float | None) -> Never:
        code = self._codes[name]
        if delay is not None:
            details = _rpc_status(code.value[0], message, delay)
            context.set_trailing_metadata((("grpc-status-details-bin", details),))
        context.abort(code, message)


def _seconds(retry_after: str) -> float:
    """How long a Retry-After is from now, whether it says seconds or a date."""
    try:
        return float(retry_after)
    except ValueError:
        return max(0.0, parsedate_to_datetime(retry_after).timestamp() - time.time())


def _rpc_status(code: int, message: str, retry_delay: float | None = None) -> bytes:
    """A google.rpc.Status: code (1), message (2) and details (3), here a RetryInfo, whose field 1 is the delay."""
    written = b"\x08" + bytes([code]) if code else b""
    written += _field(2, message.encode()) if message else b""
    if retry_delay is not None:
        delay = Duration()
        delay.FromNanoseconds(round(retry_delay * 1e9))
        info = _field(1, delay.SerializeToString())
        detail = AnyMessage(type_url="type.googleapis.com/google.rpc.RetryInfo", value=info)
        written += _field(3, detail.SerializeToString())
    return written


def _field(number: int, content: bytes) -> bytes:
    size = len(content)
    assert size < 1 << 14
    varint = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
    return bytes([number << 3 | 2]) + varint + content
