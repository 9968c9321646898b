"""One attempt at a time to hand spans and log events to an OTLP endpoint, and what its answers mean.

What the endpoint calls a bad request is refused for good and counted; anything else that is not taken (no connection,
503, but also 401 or 404, which somebody will mend) is to be sent again.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import ExportError
from raxol_otel.exporters.otlp import OtlpExporter, RetryPolicy, make_transport
from raxol_otel.exporters.otlp_logs import logs_transport
from raxol_otel.exporters.prometheus import EndpointFacts
from raxol_otel.exporters.resource import replay_proto_envelope

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raxol_otel.exporters.otlp_config import OtlpConfig
    from raxol_otel.exporters.otlp_logs import DamageEvent
    from raxol_otel.exporters.otlp_transport import Answer, Transport
    from raxol_otel.turns import Span

__all__ = ["Outbox"]

# How the answers begin with which an endpoint refuses what a request holds, not who asks or where.
_BAD_REQUESTS: Final = ("HTTP 400", "HTTP 422", "gRPC INVALID_ARGUMENT")

# So many different things are said of what an endpoint refused.
_SAID_MAX: Final = 20


class Outbox:
    """The endpoint. `facts` counts what became of spans; `notice` is told of what changes, in one line.

    After an attempt that failed, `reason` says why and `wait_seconds` what the endpoint asked for. `seconds_max` bounds
    each request beside the configured timeout. Raises `ExportError` where a library or a TLS file is missing.
    """

    def __init__(self, config: OtlpConfig, notice: Callable[[str], None]) -> None:
        self.endpoint = config.endpoint
        self.facts = EndpointFacts(config.endpoint)
        self.reason = ""
        self.wait_seconds: float | None = None
        self._notice = notice
        self._envelope = replay_proto_envelope()
        self._spans = _Heard(make_transport(config))
        # One attempt: waiting is for those who can be stopped while they wait.
        self._exporter = OtlpExporter(
            config, self._envelope, transport=self._spans, policy=RetryPolicy(total=0), notice=_ignore
        )
        transport = logs_transport(config)
        self._logs = None if transport is None else _Heard(transport)
        self._timeout = config.timeout
        self._said: set[str] = set()
        self._is_down = False

    @property
    def seconds_max(self) -> float:
        """How long a request may take at most."""
        return self._spans.seconds_max

    @seconds_max.setter
    def seconds_max(self, seconds: float) -> None:
        self._spans.seconds_max = seconds
        if self._logs is not None:
            self._logs.seconds_max = seconds

    def send(self, spans: Sequence[Span]) -> bool:
        """Hand over the spans; whether they are done with: taken, or refused for good."""
        self._spans.last = None
        try:
            result = self._exporter.export(spans)
        except ExportError as error:
            answer = self._spans.last
            if not _is_bad_request(answer):
                self._fail(error, answer)
                return False
            accepted, rejected, message = 0, len(spans), f"{self.endpoint} refused the spans: {_said(error, answer)}"
        else:
            accepted, rejected, message = result.accepted, result.rejected, result.message
        self.facts.accepted += accepted
        self.facts.rejected += rejected
        if rejected:
            self._say(f"{message or f'{self.endpoint} refused spans'}; such spans are counted and not sent again")
        elif message:
            self._say(message)
        if self._is_down:
            self._is_down = False
            self._notice(f"{self.endpoint} takes spans again")
        return True

    def tell(self, events: Sequence[DamageEvent]) -> bool:
        """Hand over log events; whether they are done with. An endpoint that takes no logs is told of once."""
        if self._logs is None:
            self._say(f"{self.endpoint} is no .../v1/traces: damage is not told there as log events")
            return False
        try:
            answer = self._logs.send(self._envelope.wrap([event.encoded() for event in events]), self._timeout)
        except ExportError as error:
            self._give_up_logs(str(error))
            return False
        if answer.kind in {"refused", "too_large"}:
            self._give_up_logs(answer.message)
        return answer.kind == "delivered"

    @property
    def takes_logs(self) -> bool:
        """Whether log events may be handed over."""
        return self._logs is not None

    def close(self) -> None:
        """Close the connections."""
        self._spans.close()
        if self._logs is not None:
            self._logs.close()

    def _fail(self, error: ExportError, answer: Answer | None) -> None:
        self.facts.failures += 1
        self.reason = _said(error, answer)
        self.wait_seconds = None if answer is None else answer.wait_seconds
        if not self._is_down:
            self._is_down = True
            self._notice(f"{self.endpoint} takes no spans: {self.reason}; they wait in their journals")

    def _give_up_logs(self, reason: str) -> None:
        self._say(f"{self.endpoint} takes no logs: {reason}; damage is not told there as log events")
        if self._logs is not None:
            self._logs.close()
        self._logs = None

    def _say(self, message: str) -> None:
        if message not in self._said and len(self._said) < _SAID_MAX:
            self._said.add(message)
            self._notice(message)


class _Heard:
    """A transport whose last answer is remembered, and whose patience can be cut short."""

    def __init__(self, inner: Transport) -> None:
        self._inner = inner
        self.last: Answer | None = None
        self.seconds_max = math.inf

    def send(self, body: bytes, timeout_seconds: float) -> Answer:
        """Send the request."""
        self.last = None
        self.last = self._inner.send(body, min(timeout_seconds, self.seconds_max))
        return self.last

    def close(self) -> None:
        """Close the connection."""
        self._inner.close()


def _is_bad_request(answer: Answer | None) -> bool:
    return answer is not None and answer.kind == "refused" and answer.message.startswith(_BAD_REQUESTS)


def _said(error: ExportError, answer: Answer | None) -> str:
    return str(error) if answer is None else answer.message


def _ignore(_message: str) -> None:
    return
