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
# Tag and length of a span within the request.
_OVERHEAD_BYTES: Final = 5

_Encoded = tuple["Span", bytes]


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
        encoded: list[_Encoded] = []
        unsendable = 0
        for span in spans:
            try:
                encoded.append((span, span_proto(span)))
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

    def _deliver(self, batch: list[_Encoded]) -> int:
        """Deliver one request's spans; how many were refused."""
        answer = self._send(batch)
        if answer.kind == "delivered":
            if answer.rejected or answer.message:
                self._say(f"{self._config.endpoint} rejected {answer.rejected} spans: {answer.message or 'no reason'}")
            self._done(batch)
            return min(answer.rejected, len(batch))
        if answer.kind == "too_large" and len(batch) > 1:
            middle = len(batch) // 2
            return self._deliver(batch[:middle]) + self._deliver(batch[middle:])
        if answer.kind == "too_large":
            self._say(f"{self._config.endpoint} takes no span of {len(batch[0][1])} bytes: {answer.message}")
            self._done(batch)
            return 1
        raise ExportError(f"{self._config.endpoint} refused the spans: {answer.message}")

    def _done(self, batch: list[_Encoded]) -> None:
        if self.on_delivered is not None:
            self.on_delivered([span for span, _ in batch])

    def _send(self, batch: list[_Encoded]) -> Answer:
        """Send one request until it is taken or refused, within the policy's total time."""
        body = self._envelope.wrap([encoded for _, encoded in batch])
        policy = self._policy
        deadline = self.clock() + policy.total
        pause = policy.first
        while True:
            timeout = self._config.timeout
            if policy.total > 0:
                timeout = max(min(timeout, deadline - self.clock()), 0.001)
            answer = self._transport.send(body, timeout)
            if answer.kind != "retry":
                return answer
            backoff = pause * self.jitter()
            if answer.wait_seconds is None:
                wait = backoff
            else:
                # Invited to come back at once, again and again, we still back off.
                wait = answer.wait_seconds if pause == policy.first else max(answer.wait_seconds, backoff)
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


def _batches(encoded: list[_Encoded]) -> Iterator[list[_Encoded]]:
    batch: list[_Encoded] = []
    size = 0
    for pair in encoded:
        if batch and (size + len(pair[1]) > REQUEST_BYTES_MAX or len(batch) >= REQUEST_SPANS_MAX):
            yield batch
            batch, size = [], 0
        batch.append(pair)
        size += len(pair[1]) + _OVERHEAD_BYTES
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
