"""An OTLP receiver for traces (over HTTP, if asked, for logs and metrics too), or gRPC, that misbehaves on order.

    with Receiver(script=[Status(503, retry_after="1"), Reset()]) as receiver:
        ...  # send to receiver.http_endpoint: refused once, cut off once, then accepted
        assert [received.span.name for received in receiver.wait_spans(2)] == ["a", "b"]

As a process of its own: `python -m tests.otlp_receiver --port 0 --spans-file ids.txt`. The first line of its standard
output is its port; SIGTERM ends it. Files are written, without a buffer, before the sender is answered.
"""

from __future__ import annotations

import argparse
import json
import signal
import ssl
import sys
import threading
from contextlib import ExitStack
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from ipaddress import IPv4Address
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.otlp_script import (
    OTHERS,
    AcceptThenDrop,
    Action,
    Garbage,
    Grpc,
    Hang,
    MaxBytes,
    Partial,
    Received,
    Redirect,
    Request,
    Reset,
    Script,
    Slow,
    Status,
    Truncated,
    Warn,
    accepts,
    attributes,
    http_date,
)
from tests.otlp_servers import HOST, PATH, GrpcDoor, HttpHandler, Server

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from io import FileIO
    from types import TracebackType
    from typing import Self

    from cryptography.x509 import ExtensionType
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.trace.v1.trace_pb2 import ResourceSpans, Span

__all__ = [
    "AcceptThenDrop",
    "Action",
    "Certificates",
    "Counts",
    "Garbage",
    "Grpc",
    "Hang",
    "MaxBytes",
    "Partial",
    "Received",
    "Receiver",
    "Redirect",
    "Request",
    "Reset",
    "Script",
    "Slow",
    "Status",
    "Truncated",
    "Warn",
    "attributes",
    "http_date",
    "make_certificates",
    "read_counts",
]


class Counts(NamedTuple):
    """What was accepted so far; `bytes` as sent. `spans` stays 0 where spans are not read."""

    requests: int = 0
    spans: int = 0
    bytes: int = 0


def read_counts(path: Path) -> Counts:
    """What the last whole line of a count file says."""
    lines = path.read_bytes().split(b"\n")[:-1] if path.exists() else []
    return Counts(**json.loads(lines[-1])) if lines else Counts()


class Receiver:
    """Listens on 127.0.0.1 while the context lasts.

    `script` is a list of actions, each used up by one request (`receiver.script == []` says that all were), after which
    requests are accepted; or a callable that is asked for every request, None meaning to accept. It may be replaced at
    any time. What is wrong on this side (a callable that raises, an action of the other protocol) is raised when the
    context ends. With `keep` off only the counts are remembered, and gRPC is served without the relay that resets need;
    with `raw` bodies are not even looked into. With `others` logs and metrics are taken too, over HTTP.
    """

    def __init__(
        self,
        *,
        grpc: bool = False,
        script: Script | None = None,
        port: int = 0,
        tls: Certificates | None = None,
        mutual_tls: bool = False,
        required_headers: Mapping[str, str] | None = None,
        keep: bool = True,
        raw: bool = False,
        others: bool = False,
        spans_file: Path | None = None,
        count_file: Path | None = None,
    ) -> None:
        self.script: Script = script if script is not None else []
        self.port = port
        self.keep = keep
        self.raw = raw
        self.paths = {PATH, *OTHERS} if others else {PATH}
        self.closing = threading.Event()
        self._grpc = grpc
        self._tls = tls
        self._mutual_tls = mutual_tls
        self._required = {name.lower(): value for name, value in (required_headers or {}).items()}
        self._paths = (spans_file, count_file)
        self._files: list[FileIO | None] = [None, None]
        self._limit: int | None = None
        self._numbers = count()
        self._changed = threading.Condition()
        self._requests: list[Request] = []
        self._accepted: list[tuple[int, ExportTraceServiceRequest, int]] = []
        self._others: list[ExportLogsServiceRequest | ExportMetricsServiceRequest] = []
        self._counts = Counts()
        self._errors: list[Exception] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self._files = [stack.enter_context(path.open("ab", buffering=0)) if path else None for path in self._paths]
            self.port = stack.enter_context((self._grpc_door() if self._grpc else self._http_door()).running())
            stack.callback(self.closing.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._errors and error is None:
            raise self._errors[0]

    def _grpc_door(self) -> GrpcDoor:
        return GrpcDoor(self, self.port, self._tls.for_grpc(mutual=self._mutual_tls) if self._tls else None)

    def _http_door(self) -> Server:
        context = self._tls.for_http(mutual=self._mutual_tls) if self._tls else None
        return Server(self.port, partial(HttpHandler, self), on_error=self.fail, tls=context)

    @property
    def address(self) -> str:
        """Host and port."""
        return f"{HOST}:{self.port}"

    @property
    def http_endpoint(self) -> str:
        """The URL for OTLP/HTTP."""
        return f"{self.grpc_endpoint}{PATH}"

    @property
    def grpc_endpoint(self) -> str:
        """The URL for OTLP/gRPC."""
        return f"{'https' if self._tls else 'http'}://{self.address}"

    @property
    def requests(self) -> list[Request]:
        """Every request that arrived whole, refused ones too."""
        with self._changed:
            return list(self._requests)

    @property
    def spans(self) -> list[Received]:
        """Every accepted span, in order; one that came twice is here twice."""
        with self._changed:
            accepted = list(self._accepted)
        return [received for number, message, kept in accepted for received in islice(_unpack(number, message), kept)]

    @property
    def others(self) -> list[ExportLogsServiceRequest | ExportMetricsServiceRequest]:
        """What was accepted of logs and metrics, in order."""
        with self._changed:
            return list(self._others)

    @property
    def counts(self) -> Counts:
        """How much was accepted."""
        with self._changed:
            return self._counts

    def wait_spans(self, number: int, timeout: float = 10.0) -> list[Received]:
        """The accepted spans, once there are so many; `TimeoutError` if that takes too long."""
        self._wait(lambda: self._counts.spans >= number, timeout)
        return self.spans

    def wait_requests(self, number: int, timeout: float = 10.0) -> list[Request]:
        """The requests, once there are so many; `TimeoutError` if that takes too long."""
        self._wait(lambda: len(self._requests) >= number, timeout)
        return self.requests

    def _wait(self, condition: Callable[[], bool], timeout: float) -> None:
        with self._changed:
            if not self._changed.wait_for(condition, timeout):
                raise TimeoutError(f"after {timeout} s: {len(self._requests)} requests, {self._counts} accepted")

    def next_number(self) -> int:
        """The number of the request that has just arrived."""
        return next(self._numbers)

    def fail(self, error: Exception) -> None:
        """Keep an error of this side for the end of the context."""
        self._errors.append(error)

    def take(self, request: Request, refusal: Status | None) -> Action | None:
        """What to do with a request, which is remembered; its spans are too, if they are accepted."""
        if any(request.headers.get(name) != value for name, value in self._required.items()):
            refusal = Status(401)
        action = refusal or self._next(request)
        message = ExportTraceServiceRequest()
        other = OTHERS[request.path]() if request.path in OTHERS else None
        if accepts(action) and not self.raw:
            try:
                (message if other is None else other).ParseFromString(request.body)
            except DecodeError as error:
                action = Status(400, message=str(error))
        accepted = accepts(action)
        sent = sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)
        kept = max(0, sent - action.rejected) if isinstance(action, Partial) else sent if accepted else 0
        with self._changed:
            if accepted and other is not None:
                self._others.append(other)
            elif accepted:
                self._accept(request, message, kept)
            if self.keep:
                self._requests.append(replace(request, spans=kept, action=action))
            self._changed.notify_all()
        return action

    def _next(self, request: Request) -> Action | None:
        script = self.script
        size = len(request.body)
        try:
            action = script(request) if callable(script) else self._step(script, size)
            if isinstance(action, MaxBytes):
                self._limit, action = action.limit, None
            self._check(action)
        except Exception as error:  # noqa: BLE001 - raised again when the context ends
            self.fail(error)
            return Status(500, message=str(error))
        return Status(413) if self._is_over(size) else action

    def _step(self, script: list[Action], size: int) -> Action | None:
        with self._changed:
            while script and isinstance(script[0], MaxBytes):
                self._limit = script[0].limit
                del script[0]
            return script.pop(0) if script and not self._is_over(size) else None

    def _check(self, action: Action | None) -> None:
        if isinstance(action, Redirect if self._grpc else Grpc):
            raise TypeError(f"{action} is not for {'gRPC' if self._grpc else 'HTTP'}")

    def _is_over(self, size: int) -> bool:
        return self._limit is not None and size > self._limit

    def _accept(self, request: Request, message: ExportTraceServiceRequest, kept: int) -> None:
        before = self._counts
        self._counts = Counts(before.requests + 1, before.spans + kept, before.bytes + request.size)
        if self.keep:
            self._accepted.append((request.number, message, kept))
        spans_file, count_file = self._files
        if spans_file and kept:
            ids = (span.span_id.hex() for resource in message.resource_spans for span in _spans(resource))
            spans_file.write(("\n".join(islice(ids, kept)) + "\n").encode())
        if count_file:
            count_file.write(json.dumps(self._counts._asdict()).encode() + b"\n")


def _spans(resource: ResourceSpans) -> Iterator[Span]:
    return (span for scope in resource.scope_spans for span in scope.spans)


def _unpack(number: int, message: ExportTraceServiceRequest) -> Iterator[Received]:
    for resource in message.resource_spans:
        for scope in resource.scope_spans:
            for span in scope.spans:
                yield Received(span, resource.resource, scope.scope, scope.schema_url, number)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Paths of PEM files: a certificate authority of the test's own, a server and a client that it vouches for."""

    ca: Path
    server: Path
    server_key: Path
    client: Path
    client_key: Path

    def for_http(self, *, mutual: bool) -> ssl.SSLContext:
        """What a server needs; with `mutual`, its clients need a certificate too."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.server, self.server_key)
        if mutual:
            context.load_verify_locations(self.ca)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    def for_grpc(self, *, mutual: bool) -> tuple[bytes, bytes, bytes | None]:
        """Key, certificate and, with `mutual`, the authority that clients are checked by."""
        return self.server_key.read_bytes(), self.server.read_bytes(), self.ca.read_bytes() if mutual else None


def make_certificates(folder: Path) -> Certificates:
    """A new authority, a server for 127.0.0.1 and localhost, and a client, good for a day, as files in a folder."""
    from cryptography import x509  # noqa: PLC0415 - only those who encrypt need it
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415
    from cryptography.hazmat.primitives.hashes import SHA256  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID  # noqa: PLC0415

    ca_key = ec.generate_private_key(ec.SECP256R1())
    authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
    names = x509.SubjectAlternativeName([x509.DNSName("localhost"), x509.IPAddress(IPv4Address(HOST))])
    signing = dict.fromkeys(("digital_signature", "key_cert_sign", "crl_sign"), True)
    others = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = x509.KeyUsage(**signing, **dict.fromkeys((*others, "encipher_only", "decipher_only"), False))
    now = datetime.now(UTC)

    def issue(name: str, key: ec.EllipticCurvePrivateKey, extensions: list[ExtensionType], *, ca: bool) -> Path:
        subject, issuer = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, cn)]) for cn in (name, "ca"))
        builder = x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
        builder = builder.not_valid_before(now - timedelta(hours=1)).not_valid_after(now + timedelta(days=1))
        builder = builder.add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
        for extension in (x509.SubjectKeyIdentifier.from_public_key(key.public_key()), authority, *extensions):
            builder = builder.add_extension(extension, critical=isinstance(extension, x509.KeyUsage))
        pem = folder / f"{name}.pem"
        pem.write_bytes(builder.sign(ca_key, SHA256()).public_bytes(Encoding.PEM))
        (folder / f"{name}.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        return pem

    ca = issue("ca", ca_key, [usage], ca=True)
    server, client = (
        issue(name, ec.generate_private_key(ec.SECP256R1()), [names, x509.ExtendedKeyUsage([purpose])], ca=False)
        for name, purpose in (("server", ExtendedKeyUsageOID.SERVER_AUTH), ("client", ExtendedKeyUsageOID.CLIENT_AUTH))
    )
    return Certificates(ca, server, server.with_suffix(".key"), client, client.with_suffix(".key"))


def main() -> int:
    """Receive until SIGTERM (or SIGINT) comes."""
    parser = argparse.ArgumentParser(prog="python -m tests.otlp_receiver", description="Receive traces over OTLP.")
    parser.add_argument("--port", type=int, default=0, help="to listen on; 0, the default, for any")
    parser.add_argument("--grpc", action="store_true", help="OTLP/gRPC instead of OTLP/HTTP")
    parser.add_argument("--spans-file", type=Path, help="a line is added for each accepted span: its id")
    parser.add_argument("--count-file", type=Path, help="a line is added for each accepted request: the totals as JSON")
    parser.add_argument("--raw", action="store_true", help="count bytes and requests; do not look into them")
    options = parser.parse_args()
    if options.raw and options.spans_file:
        parser.error("--raw does not see the spans that --spans-file wants")
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before there are threads, so that it is this one that is told
    with Receiver(keep=False, **vars(options)) as receiver:
        sys.stdout.write(f"{receiver.port}\n")
        sys.stdout.flush()
        signal.sigwait(ends)
    return 0


if __name__ == "__main__":
    sys.exit(main())
