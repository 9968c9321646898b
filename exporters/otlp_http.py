"""OTLP over HTTP with protobuf bodies: one request, one answer, by the OTLP specification."""

from __future__ import annotations

import contextlib
import gzip
import socket
import threading
import time
import zlib
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import urllib3
from google.protobuf.message import DecodeError
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from urllib3.util import parse_url

from raxol_otel import __version__
from raxol_otel.errors import ExportError
from raxol_otel.exporters.otlp_transport import Answer

if TYPE_CHECKING:
    from urllib3.connection import HTTPConnection

    from raxol_otel.exporters.otlp_config import OtlpConfig

__all__ = ["HttpTransport", "parse_response"]

_RETRYABLE: Final = frozenset({429, 502, 503, 504})
_TOO_LARGE: Final = 413
# An answer is a few dozen bytes; a web page is not read to its end.
_ANSWER_BYTES_MAX: Final = 64 * 1024
_SHOWN_CHARS_MAX: Final = 200
# What no second try mends.
_TLS_FAULTS: Final = ("CERTIFICATE_VERIFY_FAILED", "WRONG_VERSION_NUMBER", "certificate verify failed", "wrong version")
TLS_HINT: Final = "check OTEL_EXPORTER_OTLP_CERTIFICATE and the scheme of the endpoint"
_WAIT_SECONDS_MAX: Final = 3600.0


class HttpTransport:
    """One keep-alive connection; redirects and retries are not the library's business here."""

    def __init__(self, config: OtlpConfig) -> None:
        self._config = config
        self._headers = {
            "content-type": "application/x-protobuf",
            "user-agent": f"raxol-otel/{__version__}",
            **({} if config.compression == "none" else {"content-encoding": config.compression}),
            **config.headers,
        }
        tls: dict[str, Any] = {}
        if config.is_secure:
            tls = {
                "ca_certs": config.certificate,
                "key_file": config.client_key,
                "cert_file": config.client_certificate,
            }
        pool = urllib3.connection_from_url(
            config.endpoint, maxsize=1, retries=False, **{key: value for key, value in tls.items() if value}
        )
        self._pool = pool
        self._path = parse_url(config.endpoint).request_uri
        self._connections: list[Any] = []
        self._is_cut = False
        _watch(pool, self._connections)

    def send(self, body: bytes, timeout_seconds: float) -> Answer:
        """Send the request; what happened as an answer."""
        deadline = time.monotonic() + timeout_seconds
        # The library's timeout is of each byte: an answer that drips would outlast any.
        self._is_cut = False
        watchdog = threading.Timer(timeout_seconds + 0.1, self._cut)
        watchdog.start()
        try:
            response = self._pool.urlopen(
                "POST",
                self._path,
                body=_compressed(body, self._config.compression),
                headers=self._headers,
                timeout=urllib3.Timeout(total=timeout_seconds),
                redirect=False,
                preload_content=False,
            )
            content = _read(response, deadline)
        except TimeoutError:
            return Answer("retry", "timed out")
        except urllib3.exceptions.HTTPError as error:
            reason = _why(error)
            if any(word in reason for word in _TLS_FAULTS):
                raise self._unusable(error, TLS_HINT) from error
            return Answer("retry", reason)
        except (OSError, ValueError) as error:
            raise self._unusable(error, None) from error
        finally:
            watchdog.cancel()
        if self._is_cut:
            # What was cut in its headers passes for a whole answer.
            return Answer("retry", "timed out")
        return self._answer(response.status, response.headers, content)

    def close(self) -> None:
        """Close the connection."""
        self._pool.close()

    def _cut(self) -> None:
        self._is_cut = True
        for connection in self._connections:
            with contextlib.suppress(OSError, AttributeError):
                connection.sock.shutdown(socket.SHUT_RDWR)

    def _answer(self, status: int, headers: urllib3.HTTPHeaderDict, content: bytes) -> Answer:
        if 200 <= status < 300:  # noqa: PLR2004 - the class of success
            if headers.get("content-type", "").strip().lower().startswith("text/"):
                raise _not_otlp(self._config.endpoint, "its answer is a text")
            return parse_response(content, self._config.endpoint)
        said = f"HTTP {status}"
        reason = _reason(content, headers.get("content-type", ""))
        message = f"{said}: {reason}" if reason else said
        if status in _RETRYABLE:
            return Answer("retry", message, wait_seconds=_retry_after(headers.get("retry-after")))
        return Answer("too_large" if status == _TOO_LARGE else "refused", message)

    def _unusable(self, error: Exception, hint: str | None) -> ExportError:
        return ExportError(f"cannot send to {self._config.endpoint}: {_why(error)}", hint)


def _watch(pool: Any, connections: list[Any]) -> None:
    """Let the pool's newest connection stand in the list."""
    kind: type[HTTPConnection] = pool.ConnectionCls

    class Watched(kind):  # type: ignore[misc,valid-type] # HTTP's or HTTPS'
        def connect(self) -> None:
            super().connect()
            connections[:] = [self]

    pool.ConnectionCls = Watched


def parse_response(content: bytes, endpoint: str) -> Answer:
    """The answer in an ExportTraceServiceResponse. Raises `ExportError` when it is none."""
    response = ExportTraceServiceResponse()
    try:
        response.ParseFromString(content)
    except DecodeError as error:
        raise _not_otlp(endpoint, "its answer is no ExportTraceServiceResponse") from error
    partial = response.partial_success
    return Answer("delivered", partial.error_message[:_SHOWN_CHARS_MAX], rejected=max(partial.rejected_spans, 0))


def _not_otlp(endpoint: str, why: str) -> ExportError:
    return ExportError(
        f"{endpoint} does not speak OTLP: {why}", "is that the traces path, as in http://localhost:4318/v1/traces?"
    )


def _read(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """The answer's body, or the start of a long one. Raises `TimeoutError` for one that drips beyond the deadline."""
    content = b""
    while len(content) < _ANSWER_BYTES_MAX:
        part = response.read1(_ANSWER_BYTES_MAX)
        if not part:
            response.release_conn()
            return content
        content += part
        if time.monotonic() > deadline:
            response.close()
            raise TimeoutError
    response.close()  # a long page: no connection to use again
    return content


def _compressed(body: bytes, compression: str) -> bytes:
    if compression == "gzip":
        return gzip.compress(body, compresslevel=6, mtime=0)
    return zlib.compress(body) if compression == "deflate" else body


def _retry_after(value: str | None) -> float | None:
    """Seconds to wait by a Retry-After header, in seconds or as a date; None when there is no usable one."""
    if not value:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(float(text), _WAIT_SECONDS_MAX)
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=UTC)
    return min(max((moment - datetime.now(UTC)).total_seconds(), 0.0), _WAIT_SECONDS_MAX)


def _reason(content: bytes, content_type: str) -> str:
    """What an error's body says, for people: a google.rpc.Status' message, or the start of a short text."""
    if content_type.startswith("application/x-protobuf"):
        return _status_message(content)[:_SHOWN_CHARS_MAX]
    text = content[:_SHOWN_CHARS_MAX].decode("utf-8", "replace").strip()
    return "" if "<" in text else " ".join(text.split())


def _status_message(content: bytes) -> str:
    # google.rpc.Status has its text in field 2 and ExportTracePartialSuccess has its in field 2 too.
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess  # noqa: PLC0415

    status = ExportTracePartialSuccess()
    try:
        status.ParseFromString(content)
    except DecodeError:
        return ""
    return str(status.error_message)


def _why(error: Exception) -> str:
    """The innermost reason of a connection's failure, on one line."""
    reason: BaseException = error
    while True:
        inner = getattr(reason, "reason", None) or reason.__cause__ or reason.__context__
        if not isinstance(inner, BaseException) or inner is reason:
            break
        reason = inner
    text = reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason).rpartition(": ")[2]
    shown = "".join(letter for letter in text[:_SHOWN_CHARS_MAX] if letter.isprintable())
    return shown or type(reason).__name__
