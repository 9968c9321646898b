"""What an entry of the catalogue says of a signal, a metric or an instrument."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from itertools import product
from typing import Final, Literal

__all__ = ["SOURCES", "Instrument", "Label", "Metric", "SignalEntry"]

# The values of the label that every metric has: whose process it is.
SOURCES: Final = ("agent", "fleet")


@dataclass(frozen=True, slots=True)
class SignalEntry:
    """A signal: when it is published, with what metadata; how severe it is as a log event, and its attributes there."""

    name: str
    when: str
    metadata: tuple[str, ...]
    severity: str
    attributes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Label:
    """A label and the `values` it starts with: all of them, or, with a `limit`, so many names may join them."""

    name: str
    values: tuple[str, ...]
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Metric:
    """A metric. `labels` come beside `source`; `pairs` are the label values that go together where not all do."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    _: KW_ONLY
    unit: str = ""
    labels: tuple[Label, ...] = ()
    buckets: tuple[float, ...] = ()
    pairs: tuple[tuple[str, ...], ...] = ()
    sources: tuple[str, ...] = SOURCES
    # Without the label `source`: of a name that only one kind of process can have.
    is_bare: bool = False

    @property
    def label_names(self) -> tuple[str, ...]:
        """The names of all labels, in order."""
        own = tuple(label.name for label in self.labels)
        return own if self.is_bare else ("source", *own)

    @property
    def family(self) -> str:
        """The name without a counter's ending, which is how the client library and OpenMetrics know it."""
        return self.name.removesuffix("_total") if self.kind == "counter" else self.name

    @property
    def born(self) -> tuple[tuple[str, ...], ...]:
        """The label values, `source` apart, that are there from the start."""
        return self.pairs or tuple(product(*(label.values for label in self.labels)))


@dataclass(frozen=True, slots=True)
class Instrument:
    """An instrument of OpenTelemetry, for those who take metrics over OTLP. `legacy`: only where it was asked for."""

    name: str
    kind: Literal["counter", "histogram"]
    unit: str
    help: str
    _: KW_ONLY
    attributes: tuple[str, ...]
    buckets: tuple[float, ...] = ()
    legacy: bool = False
