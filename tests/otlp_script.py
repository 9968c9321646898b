"""What `tests.otlp_receiver` is told to do, and what it remembers. Import these names from there."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from email.utils import formatdate
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTracePartialSuccess,
    ExportTraceServiceResponse,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, InstrumentationScope, KeyValue
    from opentelemetry.proto.resource.v1.resource_pb2 import Resource
    from opentelemetry.proto.trace.v1.trace_pb2 import Span

# What else a receiver takes over HTTP, if it is told to.
OTHERS: Final = {"/v1/logs": ExportLogsServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}
HTML: Final = b"<!DOCTYPE html><html><body>Please sign in to the guest network.</body></html>"


@dataclass(frozen=True, slots=True)
class Status:
    """Refuse with an HTTP status. Over gRPC: with the code for it, and `retry_after`, in seconds, as RetryInfo."""

    code: int
    retry_after: str | None = None
    message: str = ""


@dataclass(frozen=True, slots=True)
class Grpc:
    """Refuse with a gRPC code, by name; a delay goes into the status details as RetryInfo. Only over gRPC."""

    code: str
    message: str = ""
    retry_delay: float | None = None


@dataclass(frozen=True, slots=True)
class Partial:
    """Accept all but the last `rejected` spans."""

    rejected: int
    message: str = ""


@dataclass(frozen=True, slots=True)
class Warn:
    """Accept everything, and say something: a partial success that rejects nothing."""

    message: str


@dataclass(frozen=True, slots=True)
class Hang:
    """Accept nothing, say nothing for so long, then cut the connection."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Slow:
    """Accept, and spread the bytes of the answer over this time. Over gRPC: answer after it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Reset:
    """Accept nothing and reset the connection (RST)."""


@dataclass(frozen=True, slots=True)
class AcceptThenDrop:
    """Accept, and reset the connection instead of answering."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """Accept nothing and answer a web page, with success. `content` is what the page is over HTTP."""

    content: bytes = HTML


@dataclass(frozen=True, slots=True)
class Truncated:
    """Accept, and break off in the middle of the answer. Over gRPC: half a message."""


@dataclass(frozen=True, slots=True)
class Redirect:
    """Accept nothing and point elsewhere, by default to another path of this receiver. Only over HTTP."""

    location: str = "/elsewhere"
    code: int = 307


@dataclass(frozen=True, slots=True)
class MaxBytes:
    """From now on refuse (413, RESOURCE_EXHAUSTED) what is larger, uncompressed. Uses up no request of its own."""

    limit: int


Action: TypeAlias = (
    Status | Grpc | Partial | Warn | Hang | Slow | Reset | AcceptThenDrop | Garbage | Truncated | Redirect | MaxBytes
)


@dataclass(frozen=True, slots=True)
class Request:
    """A request that arrived whole. A script sees it before `spans` (those accepted) and `action` are known."""

    number: int  # from 0, as they arrived
    time: float
    connection: int  # the client's port: the same again where a connection was kept
    path: str
    headers: Mapping[str, str]  # names in lower case
    size: int  # as sent, over HTTP maybe compressed
    body: bytes = field(repr=False)  # uncompressed
    spans: int = 0
    action: Action | None = None


@dataclass(frozen=True, slots=True)
class Received:
    """An accepted span and what it came in."""

    span: Span
    resource: Resource
    scope: InstrumentationScope
    schema_url: str  # of the scope's spans
    request: int  # the number of its request


Script: TypeAlias = list[Action] | Callable[[Request], Action | None]


def accepts(action: Action | None) -> bool:
    """Whether the spans are kept."""
    return action is None or isinstance(action, Partial | Warn | Slow | AcceptThenDrop | Truncated)


def answer(action: Action | None) -> bytes:
    """The message that answers an accepted request, or what stands in its place."""
    match action:
        case Partial(rejected, message):
            return _partial_success(rejected, message)
        case Warn(message):
            return _partial_success(0, message)
        case Garbage(content):
            return content
        case Truncated():
            return _partial_success(0, "cut off in the middle")[:-10]
        case _:
            return b""


def _partial_success(rejected: int, message: str) -> bytes:
    partial = ExportTracePartialSuccess(rejected_spans=rejected, error_message=message)
    return ExportTraceServiceResponse(partial_success=partial).SerializeToString()


def attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    """OTLP attributes as a dictionary."""
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    kind = value.WhichOneof("value")
    if kind == "array_value":
        return [_value(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return attributes(value.kvlist_value.values)
    return getattr(value, kind) if kind else None


def http_date(seconds: float) -> str:
    """The time so many seconds from now as HTTP writes it, in whole seconds."""
    return formatdate(time.time() + seconds, usegmt=True)
