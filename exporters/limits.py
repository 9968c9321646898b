"""The SDK's span limits, applied to spans that never pass through the SDK.

The limits are the user's (`OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT` and the rest), read by the SDK itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from raxol_otel.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from raxol_otel.turns import Span
    from raxol_otel.turns.span import Attributes

__all__ = ["Limits"]


@dataclass(frozen=True, slots=True)
class Limits:
    """Numbers that a span may not exceed; None is no limit. `attribute_length` is in characters."""

    attributes: int | None = None
    attribute_length: int | None = None
    events: int | None = None
    event_attributes: int | None = None
    links: int | None = None

    @classmethod
    def from_environment(cls) -> Limits:
        """The limits the SDK would use for spans of this process."""
        try:
            from opentelemetry.sdk.trace import SpanLimits  # noqa: PLC0415 - slow to import

            sdk = SpanLimits()
        except ValueError as error:
            raise UsageError(str(error)) from error
        return cls(
            attributes=sdk.max_span_attributes,
            attribute_length=sdk.max_span_attribute_length,
            events=sdk.max_events,
            event_attributes=sdk.max_event_attributes,
            links=sdk.max_links,
        )

    def apply(self, spans: Iterable[Span]) -> None:
        """Cut the spans down to the limits, in place; dropped events are counted on the span."""
        for span in spans:
            if self.attribute_length is not None or len(span.attributes) > (self.attributes or 0):
                self._cut(span.attributes, self.attributes)
            if span.events:
                self._cut_events(span)
            if self.links is not None and len(span.links) > self.links:
                span.links = span.links[: self.links]

    def _cut_events(self, span: Span) -> None:
        if self.events is not None and len(span.events) > self.events:
            span.dropped_events += len(span.events) - self.events
            span.events = span.events[: self.events]
        for event in span.events:
            self._cut(event.attributes, self.event_attributes)

    def _cut(self, attributes: Attributes, count: int | None) -> None:
        if count is not None:
            for key in list(attributes)[count:]:
                del attributes[key]
        length = self.attribute_length
        if length is not None:
            for key, value in attributes.items():
                if type(value) is str and len(value) > length:
                    attributes[key] = value[:length]
