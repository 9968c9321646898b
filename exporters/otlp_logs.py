"""Damage as OTLP log events, by the endpoint that spans go to: `/v1/logs` beside `/v1/traces`, or LogsService."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from raxol_otel import catalogue as names
from raxol_otel.turns import values

if TYPE_CHECKING:
    from raxol_otel.exporters.otlp_config import OtlpConfig
    from raxol_otel.exporters.otlp_transport import Transport

__all__ = ["DamageEvent", "logs_transport"]

_TRACES_PATH: Final = "/v1/traces"
_LOGS_PATH: Final = "/v1/logs"
_METHOD: Final = "/opentelemetry.proto.collector.logs.v1.LogsService/Export"


@dataclass(frozen=True, slots=True)
class DamageEvent:
    """What is told of a damage: `session` and `place` are no paths of this machine. `time_ns`: when it was found."""

    session: str
    cause: str
    place: str
    last_offset: int
    time_ns: int

    def encoded(self) -> bytes:
        """As a LogRecord, which `ProtoEnvelope.wrap` makes a request of: logs are wrapped as spans are."""
        from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue  # noqa: PLC0415 - an optional library
        from opentelemetry.proto.logs.v1.logs_pb2 import SEVERITY_NUMBER_ERROR, LogRecord  # noqa: PLC0415 - as above

        texts = {
            names.SESSION_ID: values.clean(self.session),
            names.JOURNAL_SEGMENT: self.place,
            names.DAMAGE_CAUSE: values.member(self.cause, frozenset(names.DAMAGE_CAUSES)),
        }
        attributes = [KeyValue(key=key, value=AnyValue(string_value=text)) for key, text in texts.items()]
        last = values.integer(self.last_offset)
        value = AnyValue(int_value=last) if isinstance(last, int) else AnyValue(string_value=str(last))
        attributes.append(KeyValue(key=names.LAST_OFFSET, value=value))
        record = LogRecord(
            time_unix_nano=self.time_ns,
            observed_time_unix_nano=time.time_ns(),
            severity_number=SEVERITY_NUMBER_ERROR,
            severity_text="ERROR",
            event_name=names.SIGNAL_DAMAGED,
            attributes=attributes,
        )
        return record.SerializeToString()


def logs_transport(config: OtlpConfig) -> Transport | None:
    """Where logs go: None when the URL for traces does not say. Raises `ExportError` for unusable TLS files."""
    if config.protocol == "grpc":
        from raxol_otel.exporters.otlp_grpc import GrpcTransport  # noqa: PLC0415 - an optional library

        class GrpcLogs(GrpcTransport):
            """The same channel's options, another method; the answer has the same shape."""

            def __init__(self) -> None:
                super().__init__(config)
                self._call = self._channel.unary_unary(_METHOD)

        return GrpcLogs()
    if not config.endpoint.endswith(_TRACES_PATH):
        return None
    from raxol_otel.exporters.otlp_http import HttpTransport  # noqa: PLC0415 - an optional library

    return HttpTransport(replace(config, endpoint=config.endpoint.removesuffix(_TRACES_PATH) + _LOGS_PATH))
