"""The resource and scope of replayed spans. The SDK reads the standard variables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from opentelemetry.sdk.resources import SERVICE_NAME, OTELResourceDetector, Resource

from raxol_otel import __version__
from raxol_otel import catalogue as names
from raxol_otel.exporters.otlp_json import Envelope
from raxol_otel.exporters.otlp_proto import ProtoEnvelope

if TYPE_CHECKING:
    from raxol_otel.turns.span import AttributeValue

__all__ = ["replay_envelope", "replay_proto_envelope", "replay_resource"]

# The service of replayed spans when OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES do not say.
DEFAULT_SERVICE_NAME: Final = "raxol"


def replay_resource() -> dict[str, AttributeValue]:
    """The resource's attributes: the SDK's, the user's from `OTEL_*`, and `raxol.replayed`."""
    attributes: dict[str, AttributeValue] = {
        key: value for key, value in Resource.create().attributes.items() if isinstance(value, (str, bool, int, float))
    }
    if str(attributes.get(SERVICE_NAME, "unknown_service")).startswith("unknown_service"):
        attributes[SERVICE_NAME] = DEFAULT_SERVICE_NAME
    if "service.instance.id" not in OTELResourceDetector().detect().attributes:
        # The SDK's is this process' and another each time; the spans are not this process'.
        attributes.pop("service.instance.id", None)
    attributes[names.REPLAYED] = True
    return attributes


def replay_proto_envelope() -> ProtoEnvelope:
    """What stands around replayed spans in an OTLP request."""
    return ProtoEnvelope(
        replay_resource(), scope_name=names.SCOPE_NAME, scope_version=__version__, schema_url=names.SCHEMA_URL
    )


def replay_envelope() -> Envelope:
    """What stands around replayed spans in OTLP JSON."""
    return Envelope(
        replay_resource(), scope_name=names.SCOPE_NAME, scope_version=__version__, schema_url=names.SCHEMA_URL
    )
