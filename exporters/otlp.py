"""Spans to an OTLP endpoint, completely.

What may be retried is retried, what is too large is split, what was refused is told, and anything else stops the replay
with an error that names the endpoint.

`export` returns only when every span it was given is delivered or refused, so that what it returns can be remembered.
"""

from __future__ import annotations

import random
import struct
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import ExportError
from raxol_otel.exporters.base import BaseExporter, ExportResult
from raxol_otel.exporters.otlp_proto import span_proto

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from raxol_otel.exporters.otlp_config import OtlpConfig
    from raxol_otel.exporters.otlp_proto import ProtoEnvelope
    from raxol_otel.exporters.otlp_transport import Answer, Transport
    from raxol_otel.turns import Span

__all__ = ["OtlpExporter", "RetryPolicy", "make_transport"]

# A request stays below what receivers take by default (gRPC: 4 MiB).
REQUEST_BYTES_MAX: Final = 3 * 2**20
REQUEST_SPANS_MAX: Final = 2_000
_MESSAGES_MAX: Final = 20


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Exponential backoff with full jitter, in seconds; `total` bounds one request's time, waits included."""

    first: float = 0.5
    factor: float = 2.0
    longest: float = 30.0
    total: float = 300.0


class OtlpExporter(BaseExporter):
    """Sends spans in requests bounded in bytes and spans, over `transport`.

    A span that cannot be encoded costs itself only. Raises `ExportError` when the endpoint cannot be reached within
    the policy's total, or refuses.
    """

    def __init__(
        self,
        config: OtlpConfig,
        envelope: ProtoEnvelope,
        *,
        transport: Transport | None = None,
        policy: RetryPolicy | None = None,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        self._config = config
        self._envelope = envelope
        self._transport = transport or make_transport(config)
        self._policy = policy or RetryPolicy()
        self._notice = notice or _silent
        self._messages: list[str] = []
        # Replaced in tests of the policy.
        self.clock: Callable[[], float] = time.monotonic
        self.sleep: Callable[[float], None] = time.sleep
        self.jitter: Callable[[], float] = random.random

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Deliver the spans; returns when all are taken or refused."""
        self._messages = []
        encoded: list[bytes] = []
        unsendable = 0
        for span in spans:
            try:
                encoded.append(span_proto(span))
            except (ValueError, OverflowError, TypeError, AttributeError, struct.error) as error:
                unsendable += 1
                self._say(f"span {span.span_id!s:.32} cannot be encoded: {error}")
        rejected = unsendable
        for batch in _batches(encoded):
            rejected += self._deliver(batch)
        return ExportResult(len(spans) - rejected, rejected, "; ".join(self._messages))

    def finish(self) -> None:
        """Everything was delivered by `export`; close the connection."""
        self._transport.close()

    def abort(self) -> None:
        """Close the connection."""
        self._transport.close()

    def _deliver(self, batch: list[bytes]) -> int:
        """Deliver one request's spans; how many were refused."""
        answer = self._send(batch)
        if answer.kind == "delivered":
            if answer.rejected or answer.message:
                self._say(f"{self._config.endpoint} rejected {answer.rejected} spans: {answer.message or 'no reason'}")
            return min(answer.rejected, len(batch))
        if answer.kind == "too_large" and len(batch) > 1:
            middle = len(batch) // 2
            return self._deliver(batch[:middle]) + self._deliver(batch[middle:])
        if answer.kind == "too_large":
            self._say(f"{self._config.endpoint} takes no span of {len(batch[0])} bytes: {answer.message}")
            return 1
        raise ExportError(f"{self._config.endpoint} refused the spans: {answer.message}")

    def _send(self, batch: list[bytes]) -> Answer:
        """Send one request until it is taken or refused, within the policy's total time."""
        body = self._envelope.wrap(batch)
        policy = self._policy
        deadline = self.clock() + policy.total
        pause = policy.first
        while True:
            timeout = max(min(self._config.timeout, deadline - self.clock()), 0.001)
            answer = self._transport.send(body, timeout)
            if answer.kind != "retry":
                return answer
            wait = pause * self.jitter() if answer.wait_seconds is None else answer.wait_seconds
            if self.clock() + wait >= deadline:
                raise ExportError(
                    f"{self._config.endpoint} could not be reached within {policy.total:g} s: {answer.message}",
                    "check the endpoint; what was delivered is remembered with --state",
                )
            self._notice(f"{self._config.endpoint}: {answer.message}; trying again in {wait:.1f} s")
            self.sleep(wait)
            pause = min(pause * policy.factor, policy.longest)

    def _say(self, message: str) -> None:
        if len(self._messages) < _MESSAGES_MAX:
            self._messages.append(message)


def _batches(encoded: list[bytes]) -> Iterator[list[bytes]]:
    batch: list[bytes] = []
    size = 0
    for body in encoded:
        if batch and (size + len(body) > REQUEST_BYTES_MAX or len(batch) >= REQUEST_SPANS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(body)
        size += len(body) + 5
    if batch:
        yield batch


def _silent(_message: str) -> None:
    return


def make_transport(config: OtlpConfig) -> Transport:
    """The transport of the configured protocol. Raises `ExportError` where its library is missing."""
    try:
        if config.protocol == "grpc":
            from raxol_otel.exporters.otlp_grpc import GrpcTransport  # noqa: PLC0415 - an optional library

            return GrpcTransport(config)
        from raxol_otel.exporters.otlp_http import HttpTransport  # noqa: PLC0415 - an optional library

        return HttpTransport(config)
    except ModuleNotFoundError as error:
        raise ExportError(
            f"OTLP over {config.protocol} needs the package {error.name}", "pip install 'raxol-otel[otlp]'"
        ) from error
