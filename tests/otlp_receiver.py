"""An OTLP receiver for traces, over HTTP or gRPC, that misbehaves on order.

    with Receiver(script=[Status(503, retry_after="1"), Reset()]) as receiver:
        ...  # send to receiver.http_endpoint: refused once, cut off once, then accepted
        assert [received.span.name for received in receiver.wait_spans(2)] == ["a", "b"]

As a process of its own: `python -m tests.otlp_receiver --port 0 --spans-file ids.txt`. Its port is the first line of its
standard output; SIGTERM ends it. Files are written, without a buffer, before the sender is answered.
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
    any time. What is wrong on this side (a callable that raises, an action that the protocol has not) is raised when the
    context ends. With `keep` off nothing is remembered but the counts, and gRPC is served without the relay that resets
    need; with `raw` bodies are not even looked into.
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
        spans_file: Path | None = None,
        count_file: Path | None = None,
    ) -> None:
        self.script: Script = script if script is not None else []
        self.port = port
        self.keep = keep
        self.raw = raw
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
        self._counts = Counts()
        self._errors: list[Exception] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            opened = [path and stack.enter_context(path.open("ab", buffering=0)) for path in self._paths]
            self._files = opened
            if self._grpc:
                running = GrpcDoor(self, self.port, self._tls and self._tls.for_grpc(mutual=self._mutual_tls)).running()
            else:
                context = self._tls and self._tls.for_http(mutual=self._mutual_tls)
                running = Server(self.port, partial(HttpHandler, self), on_error=self.fail, tls=context).running()
            self.port = stack.enter_context(running)
            stack.callback(self.closing.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()
        if self._errors and error is None:
            raise self._errors[0]

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
        if accepts(action) and not self.raw:
            try:
                message.ParseFromString(request.body)
            except DecodeError as error:
                action = Status(400, message=str(error))
        accepted = accepts(action)
        sent = sum(len(scope.spans) for resource in message.resource_spans for scope in resource.scope_spans)
        kept = max(0, sent - action.rejected) if isinstance(action, Partial) else sent if accepted else 0
        with self._changed:
            if accepted:
                self._accept(request, message, kept)
            if self.keep:
                self._requests.append(replace(request, spans=kept, action=action))
            self._changed.notify_all()
        return action

    def _next(self, request: Request) -> Action | None:
        script = self.script
        action: Action | None = None
        if callable(script):
            try:
                action = script(request)
            except Exception as error:  # noqa: BLE001 - raised again when the context ends
                self.fail(error)
                return Status(500, message=str(error))
        with self._changed:
            if not callable(script):
                while script and isinstance(script[0], MaxBytes):
                    self._limit = script.pop(0).limit
