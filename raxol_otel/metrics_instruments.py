"""The catalogue's metrics as objects of prometheus_client: each label set that can occur is there from the start, at 0.

They stand in no registry themselves: `raxol_otel.metrics.Metrics` hands their samples on, so that a forked child can
have new ones, whose locks nobody holds.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

from prometheus_client import Counter, Histogram
from prometheus_client.metrics import MetricWrapperBase
from prometheus_client.metrics_core import Metric as Samples

from raxol_otel import catalogue as names
from raxol_otel.bounds import Bounded
from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raxol_otel.catalogue_entries import Metric

__all__ = ["Family", "Instruments", "Tool", "described"]

_Kind = TypeVar("_Kind", bound=MetricWrapperBase)
_CREATED: Final = "_created"


def described(metric: Metric) -> Samples:
    """The metric as the client library knows it, without samples."""
    return Samples(metric.family, metric.help, metric.kind, metric.unit)


class Family(Generic[_Kind]):
    """A metric of the catalogue and its children, one for each label set."""

    def __init__(self, metric: Metric, source: str, made: _Kind) -> None:
        self.metric = metric
        self._source = source
        self._made = made
        if source in metric.sources:
            for born in metric.born:
                self.at(*born)

    def at(self, *label_values: str) -> _Kind:
        """The child of these label values, `source` apart."""
        return self._made.labels(self._source, *label_values)

    def by_value(self) -> dict[str, _Kind]:
        """The children of a metric with one closed label, by its value."""
        return {value: self.at(value) for (value,) in self.metric.born}

    def samples(self) -> Iterator[Samples]:
        """What a scrape gets. Not the times of creation: they would be names outside the catalogue."""
        for found in self._made.collect():
            found.samples = [sample for sample in found.samples if not sample.name.endswith(_CREATED)]
            yield found


class Tool(NamedTuple):
    """The children of one tool: its calls by outcome, and how long they took."""

    calls: dict[str, Counter]
    duration: Histogram


class Instruments:
    """What one process counts."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._families: list[Family[Counter] | Family[Histogram]] = []
        counter, histogram = self._counter, self._histogram
        # In the order of the catalogue, which is that of a scrape.
        self.damaged = counter(names.METRIC_DAMAGED)
        self.write_failed = counter(names.METRIC_WRITE_FAILED)
        self.surrogate = counter(names.METRIC_SURROGATE)
        self.turns = counter(names.METRIC_TURNS).by_value()
        self.turn_duration = histogram(names.METRIC_TURN_DURATION).by_value()
        self.iterations = histogram(names.METRIC_ITERATIONS).at()
        self.evidence = counter(names.METRIC_EVIDENCE).by_value()
        self.late = counter(names.METRIC_LATE).at()
        self._tool_calls = counter(names.METRIC_TOOL_CALLS)
        self._tool_duration = histogram(names.METRIC_TOOL_DURATION)
        self.input_tokens = counter(names.METRIC_INPUT_TOKENS).by_value()
        self.output_tokens = counter(names.METRIC_OUTPUT_TOKENS).by_value()
        self.cost = counter(names.METRIC_COST).at()
        self.approvals = counter(names.METRIC_APPROVALS).at()
        self.tainted = counter(names.METRIC_TAINTED).at()
        self._errors = counter(names.METRIC_ERRORS)
        self.observed = counter(names.METRIC_OBSERVED)
        self.records = counter(names.METRIC_RECORDS).by_value()
        self.unknown = counter(names.METRIC_UNKNOWN).by_value()
        self.sync_duration = histogram(names.METRIC_SYNC_DURATION).at()
        self.torn_repairs = counter(names.METRIC_TORN_REPAIRS).at()
        self._tool_names = Bounded(names.METRIC_TOOL_CALLS.labels[0])
        self._error_names = Bounded(names.METRIC_ERRORS.labels[0])
        self._tools: dict[str, Tool] = {}

    def _counter(self, metric: Metric) -> Family[Counter]:
        made = Counter(metric.name, metric.help, metric.label_names, unit=metric.unit, registry=None)
        family = Family(metric, self._source, made)
        self._families.append(family)
        return family

    def _histogram(self, metric: Metric) -> Family[Histogram]:
        made = Histogram(
            metric.name, metric.help, metric.label_names, unit=metric.unit, registry=None, buckets=metric.buckets
        )
        family = Family(metric, self._source, made)
        self._families.append(family)
        return family

    def tool(self, name: object) -> Tool:
        """The children of a tool. What is no name of a tool, a whole command line say, never becomes a label."""
        found = self._tools.get(name) if type(name) is str else None
        return found or self._new_tool(self._tool_names(values.tool_name(name) if type(name) is str else names.UNNAMED))

    def _new_tool(self, name: str) -> Tool:
        found = self._tools.get(name)
        if found is None:
            outcomes = names.METRIC_TOOL_CALLS.labels[1].values
            calls = {outcome: self._tool_calls.at(name, outcome) for outcome in outcomes}
            # Two threads may both get here: the children are the same.
            found = self._tools[name] = Tool(calls, self._tool_duration.at(name))
        return found

    def error(self, name: str) -> Counter:
        """The child of an error's name."""
        return self._errors.at(self._error_names(name))

    def samples(self) -> Iterator[Samples]:
        """What a scrape gets."""
        for family in self._families:
            if self._source in family.metric.sources:
                yield from family.samples()
