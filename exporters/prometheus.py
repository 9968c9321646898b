"""The fleet exporter's gauges as a collector of prometheus_client.

    fleet = Fleet(Path("sessions"))
    registry.register(FleetCollector(fleet.facts))

A scrape gives what the last look found and reads no journal. Before the first look is done only the exporter's own
families are there.
"""

from __future__ import annotations

import platform
import time
from typing import TYPE_CHECKING

from raxol_otel import __version__
from raxol_otel import catalogue_fleet as names
from raxol_otel.bounds import Bounded
from raxol_otel.metrics_instruments import described
from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from prometheus_client.metrics_core import Metric as Samples

    from raxol_otel.catalogue_entries import Metric
    from raxol_otel.fleet.facts import FleetFacts

__all__ = ["EndpointFacts", "FleetCollector"]


class EndpointFacts:
    """What became of an endpoint's spans. `waiting_since` is in seconds since the epoch, None when nothing waits."""

    __slots__ = ("accepted", "backlog", "failures", "name", "rejected", "waiting_since")

    def __init__(self, name: str) -> None:
        self.name = name
        self.accepted = 0
        self.rejected = 0
        self.failures = 0
        self.backlog = 0
        self.waiting_since: float | None = None


class FleetCollector:
    """`facts` gives the last look; `endpoints` what became of the spans of each endpoint; `now` is in seconds."""

    def __init__(
        self,
        facts: Callable[[], FleetFacts],
        *,
        endpoints: Callable[[], Iterable[EndpointFacts]] | None = None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._facts = facts
        self._endpoints = endpoints
        self._now = now
        self._endpoint_names = Bounded(names.METRIC_BACKLOG.labels[0])

    def describe(self) -> Iterator[Samples]:
        """The families that a scrape may give."""
        return (described(metric) for metric in names.FLEET_METRICS)

    def collect(self) -> Iterator[Samples]:
        """What a scrape gets."""
        facts = self._facts()
        if facts.is_ready:
            yield from self._of_sessions(facts)
            yield _family(names.METRIC_SCAN_DURATION, [((), facts.duration_seconds)])
            yield _family(names.METRIC_LAST_SCAN, [((), facts.looked_at)])
        yield _family(names.METRIC_SCAN_ERRORS, [((), facts.scan_errors)])
        if self._endpoints is not None:
            yield from self._of_endpoints(list(self._endpoints()))
        yield _family(names.METRIC_BUILD_INFO, [((__version__, platform.python_version()), 1)])

    def _of_sessions(self, facts: FleetFacts) -> Iterator[Samples]:
        now = self._now()
        states: dict[str, int] = dict(facts.states.items())
        yield _family(names.METRIC_SESSIONS, [((state,), states.get(state, 0)) for state in names.FLEET_SESSION_STATES])
        # A name that is no text must not cost the scrape; two that look alike then are told once.
        named = {(values.clean(where), cause): 1.0 for where, cause in facts.named}
        yield _family(names.METRIC_SESSION_DAMAGED, named.items())
        writers = facts.writers
        yield _family(names.METRIC_WRITERS, [((state,), writers.get(state, 0)) for state in names.FLEET_WRITER_STATES])
        for metric, value in (
            (names.METRIC_BEHIND_HEAD, facts.behind_head),
            (names.METRIC_DAMAGED_OMITTED, facts.omitted),
            (names.METRIC_DAMAGED_ACKNOWLEDGED, facts.acknowledged),
            (names.METRIC_BYTES, facts.size_bytes),
            (names.METRIC_SEGMENTS, facts.segments),
            (names.METRIC_HEAD_LAG, facts.head_lag_records),
            (names.METRIC_OPEN_TURNS, facts.open_turns),
            (names.METRIC_OLDEST_TURN, _age(facts.oldest_turn_at, now)),
            (names.METRIC_OLDEST_APPROVAL, _age(facts.oldest_approval_at, now)),
        ):
            yield _family(metric, [((), value)])

    def _of_endpoints(self, endpoints: list[EndpointFacts]) -> Iterator[Samples]:
        now = self._now()
        by_name = {self._endpoint_names(values.clean(endpoint.name)): endpoint for endpoint in endpoints}
        yield _family(names.METRIC_EXPORT_FAILURES, [((name,), found.failures) for name, found in by_name.items()])
        yield _family(names.METRIC_BACKLOG, [((name,), found.backlog) for name, found in by_name.items()])
        yield _family(
            names.METRIC_BACKLOG_AGE, [((name,), _age(found.waiting_since, now)) for name, found in by_name.items()]
        )
        results = names.EXPORT_RESULTS
        yield _family(
            names.METRIC_EXPORTED,
            [
                ((name, result), count)
                for name, found in by_name.items()
                for result, count in zip(results, (found.accepted, found.rejected), strict=True)
            ],
        )


def _age(since: float | None, now: float) -> float:
    return 0.0 if since is None else max(0.0, now - since)


def _family(metric: Metric, rows: Iterable[tuple[tuple[str, ...], float]]) -> Samples:
    family = described(metric)
    for labels, value in rows:
        family.add_sample(metric.name, dict(zip(metric.label_names, labels, strict=True)), float(value))
    return family
