"""Simple senders of OTLP, to try `tests.otlp_receiver` with: bare requests, and the official exporters."""

from __future__ import annotations

import http.client
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as GrpcExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as HttpExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from tests.otlp_servers import HOST, PATH, PROTOBUF, SERVICE

if TYPE_CHECKING:
    from collections.abc import Sequence
    from email.message import Message

    from tests.otlp_receiver import Receiver

EXPORT: Final = f"/{SERVICE}/Export"
NAMES: Final = ("a", "b", "c", "d", "e")

Mode: TypeAlias = Literal["http", "grpc"]


def body(names: Sequence[str] = NAMES) -> bytes:
    """A request with a span for each name, whose id is made of the name."""
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add().scope_spans.add()
    for name in names:
        scope.spans.add(name=name, span_id=name.encode().rjust(8, b"\0"), trace_id=b"t" * 16)
    return message.SerializeToString()


def connect(port: int, timeout: float = 5) -> http.client.HTTPConnection:
    """A connection that is kept until closed."""
    return http.client.HTTPConnection(HOST, port, timeout=timeout)


def post(
    connection: http.client.HTTPConnection, data: bytes, path: str = PATH, **headers: str
) -> tuple[int, Message, bytes]:
    """Status, headers and body of the answer to a request."""
    fields = {"Content-Type": PROTOBUF} | {name.replace("_", "-"): value for name, value in headers.items()}
    connection.request("POST", path, data, fields)
    response = connection.getresponse()
    return response.status, response.headers, response.read()


def send(port: int, mode: Mode, data: bytes | None = None, *, timeout: float = 5) -> bytes:
    """The answer's body, by a new connection; any refusal or failure is an exception."""
    data = body() if data is None else data
    if mode == "grpc":
        with grpc_channel(port) as channel:
            return bytes(grpc_call(channel)(data, timeout=timeout))
    connection = connect(port, timeout)
    try:
        status, _, answer = post(connection, data)
    finally:
        connection.close()
    if status != 200:
        raise ConnectionRefusedError(status)
    return answer


def grpc_channel(port: int) -> grpc.Channel:
    """A channel with a connection of its own: by default channels share, and could be given one that is dying."""
    return grpc.insecure_channel(f"{HOST}:{port}", [("grpc.use_local_subchannel_pool", 1)])


def grpc_call(channel: grpc.Channel) -> Any:
    """Export as a function of bytes that answers bytes; the types have no word for a call without serializers."""
    return channel.unary_unary(EXPORT)  # pyright: ignore[reportUnknownVariableType]


def partial_success(answer: bytes) -> tuple[int, str]:
    """How many spans an answer rejects, and what it says."""
    partial = ExportTraceServiceResponse.FromString(answer).partial_success
    return partial.rejected_spans, partial.error_message


def sdk_spans(count: int) -> Sequence[ReadableSpan]:
    """Spans that the SDK made, with a resource, a scope and attributes."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "tea shop"}), shutdown_on_exit=False)
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("kettle", "2.1", schema_url="https://example.org/1")
    for number in range(count):
        with tracer.start_as_current_span(f"cup {number}") as span:
            span.set_attributes({"number": number, "hot": True, "leaves": ("green", "black")})
    return memory.get_finished_spans()


def export(receiver: Receiver, mode: Mode, spans: Sequence[ReadableSpan], **options: Any) -> bool:
    """Whether the official exporter says that the spans arrived."""
    of_mode: Any = GrpcExporter if mode == "grpc" else HttpExporter
    exporter = of_mode(receiver.grpc_endpoint if mode == "grpc" else receiver.http_endpoint, **{"timeout": 5} | options)
    try:
        return bool(exporter.export(spans) is SpanExportResult.SUCCESS)
    finally:
        exporter.shutdown()
