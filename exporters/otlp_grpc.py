"""OTLP over gRPC: one call, one answer, by the OTLP specification."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

# Set before the import: the library's own log lines are not ours to show.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from raxol_otel import __version__
from raxol_otel.errors import ExportError
from raxol_otel.exporters.otlp_http import TLS_HINT, parse_response
from raxol_otel.exporters.otlp_transport import Answer

if TYPE_CHECKING:
    from raxol_otel.exporters.otlp_config import OtlpConfig

__all__ = ["GrpcTransport"]

_METHOD: Final = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"
_RETRYABLE: Final = frozenset(
    {
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.DEADLINE_EXCEEDED,
        grpc.StatusCode.ABORTED,
        grpc.StatusCode.OUT_OF_RANGE,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.DATA_LOSS,
    }
)
_COMPRESSIONS: Final = {
    "none": grpc.Compression.NoCompression,
    "gzip": grpc.Compression.Gzip,
    "deflate": grpc.Compression.Deflate,
}
# What no second try mends.
_TLS_FAULTS: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER")
_SHOWN_CHARS_MAX: Final = 200


class GrpcTransport:
    """One channel; waiting and trying again is the exporter's business."""

    def __init__(self, config: OtlpConfig) -> None:
        self._config = config
        options = [("grpc.enable_retries", 0), ("grpc.primary_user_agent", f"raxol-otel/{__version__}")]
        compression = _COMPRESSIONS[config.compression]
        if config.is_secure:
            credentials = grpc.ssl_channel_credentials(
                _read(config.certificate), _read(config.client_key), _read(config.client_certificate)
            )
            self._channel = grpc.secure_channel(config.host, credentials, options=options, compression=compression)
        else:
            self._channel = grpc.insecure_channel(config.host, options=options, compression=compression)
        # The request is bytes already; the answer is parsed where HTTP's is.
        self._call: Any = self._channel.unary_unary(_METHOD)
        self._metadata = tuple(config.headers.items())

    def send(self, body: bytes, timeout_seconds: float) -> Answer:
        """Make the call; what happened as an answer."""
        try:
            content = self._call(body, timeout=timeout_seconds, metadata=self._metadata)
        except grpc.RpcError as error:
            return self._answer(error)
        except ValueError as error:
            raise ExportError(f"cannot send to {self._config.endpoint}: {error}") from error
        return parse_response(content, self._config.endpoint)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _answer(self, error: Any) -> Answer:
        code: grpc.StatusCode = error.code()
        whole = " ".join(str(error.details() or "").split())
        details = whole[:_SHOWN_CHARS_MAX]
        for fault in _TLS_FAULTS:
            if fault in whole:
                raise ExportError(f"cannot send to {self._config.endpoint}: {fault}", TLS_HINT)
        message = f"gRPC {code.name}: {details}" if details else f"gRPC {code.name}"
        wait = _retry_delay(error)
        if code in _RETRYABLE:
            return Answer("retry", message, wait_seconds=wait)
        if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
            # With RetryInfo the receiver is only busy; without, the request is too large for it.
            return Answer("retry" if wait is not None else "too_large", message, wait_seconds=wait)
        return Answer("refused", message)


def _read(path: str | None) -> bytes | None:
    if path is None:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise ExportError(f"cannot read {path}: {error.strerror}") from error


def _retry_delay(error: Any) -> float | None:
    """Seconds to wait by the RetryInfo of the status' details; None where there is none."""
    for key, value in error.trailing_metadata() or ():
        if key == "grpc-status-details-bin":
            return _retry_info(value)
    return None


def _retry_info(details: bytes) -> float | None:
    from google.protobuf.duration_pb2 import Duration  # noqa: PLC0415 - rare

    marker = b"google.rpc.RetryInfo"
    place = details.find(marker)
    if place < 0:
        return None
    # Any: type_url, then field 2 with the RetryInfo, whose field 1 is a Duration; all of them short.
    rest = details[place + len(marker) :]
    if len(rest) < 2 or rest[0] != 0x12:  # noqa: PLR2004 - the tag of field 2
        return 0.0
    info = rest[2 : 2 + rest[1]]
    if len(info) < 2 or info[0] != 0x0A:  # noqa: PLR2004 - the tag of field 1
        return 0.0
    duration = Duration.FromString(info[2 : 2 + info[1]])
    return max(duration.seconds + duration.nanos / 1e9, 0.0)
