"""Folded turns, records and signals as Prometheus metrics: the catalogue's, on whatever registry.

    metrics = Metrics(registry)
    metrics.attach()                               # the core's signals, from now on
    following = metrics.follow(fold)               # one for each session
    following.observe(records, fold.feed_many(records))

Nothing here raises into its caller: what goes wrong is logged once and counted as a failure of the handler
`raxol_otel.metrics`. A label's value is of a closed set or one of a bounded number of names, never a text of a journal.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final, Literal

from prometheus_client import REGISTRY
from prometheus_client import values as client_values

from raxol_otel import catalogue as names
from raxol_otel import signals
from raxol_otel.bounds import AMOUNT_MAX, DAMAGES_MAX, Bounded, DistinctDamage
from raxol_otel.catalogue_entries import SOURCES
from raxol_otel.journal import meter, store
from raxol_otel.metrics_facts import count_record, count_span, exemplar_of
from raxol_otel.metrics_instruments import Instruments, described
from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from prometheus_client import CollectorRegistry
    from prometheus_client.metrics_core import Metric as Samples

    from raxol_otel.turns import Counts, Span, TurnFold

__all__ = ["DAMAGES_MAX", "Following", "Metrics"]

_HANDLER_CHARS_MAX: Final = 64
_CAUSES: Final = frozenset(names.DAMAGE_CAUSES)
_STAGES: Final = frozenset(names.WRITE_STAGES)
_REASONS: Final = frozenset(names.WRITE_REASONS)
_OPS: Final = frozenset(names.SURROGATE_OPS)

_log = logging.getLogger(__name__)


class Metrics:
    """The metrics of this process, registered as one collector. A forked child starts at 0.

    `source` is a label of every metric: `agent` in a process that runs an agent, `fleet` in one that watches many.
    """

    def __init__(self, registry: CollectorRegistry = REGISTRY, *, source: Literal["agent", "fleet"] = "agent") -> None:
        if source not in SOURCES:
            raise ValueError(f"source must be one of {', '.join(SOURCES)}")
        self._registry = registry
        self._source = source
        # The bus knows a handler by its name, and one of each source may be there.
        self._handler = names.METRICS_HANDLER if source == "agent" else f"{names.METRICS_HANDLER}.{source}"
        self._unsynced: Callable[[], float] | None = None
        self._failing: Callable[[], bool] | None = None
        self._anew()
        self._live: Instruments | None = Instruments(source)
        registry.register(self)
        _everyone.add(self)

    def _anew(self) -> None:
        self._lock = threading.Lock()
        self._damages = DistinctDamage()
        self._handlers = Bounded(names.METRIC_HANDLER_ERRORS.labels[0])
        self._failures = 0

    def attach(self) -> None:
        """Count the core's signals from now on, and measure the writers of this process."""
        signals.attach(self._handler, self._handle)
        if self._source in names.METRIC_UNSYNCED.sources:
            meter.attach(self)
            self.watch_writers(unsynced=store.unsynced_seconds, failing=store.is_failing)

    def detach(self) -> bool:
        """Count no more signals and syncs; says whether any were counted."""
        meter.detach(self)
        return signals.detach(self._handler)

    def close(self) -> None:
        """Leave the registry; `detach` comes before it where `attach` came."""
        _everyone.discard(self)
        with contextlib.suppress(KeyError):
            self._registry.unregister(self)

    # -- turns

    def follow(self, fold: TurnFold) -> Following:
        """What counts the records and spans of one session, as its fold gives them."""
        return Following(self, fold)

    def observe_spans(self, spans: Iterable[Span], *, exemplar: bool = False) -> None:
        """Count finished spans, see `observe_span`."""
        for span in spans:
            self.observe_span(span, exemplar=exemplar)

    def observe_span(self, span: Span, *, exemplar: bool = False) -> None:
        """Count a finished span. `exemplar`: it is exported under these ids, so that they lead to something."""
        try:
            count_span(self._live or self._renewed(), span, exemplar_of(span) if exemplar else None)
        except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
            self._failed(error)

    def observe_records(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Count records of a journal, see `observe_record`."""
        for record in records:
            self.observe_record(record)

    def observe_record(self, record: Mapping[str, Any]) -> None:
        """Count a record by its type, and what it says that no span does."""
        try:
            count_record(self._live or self._renewed(), record)
        except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
            self._failed(error)

    def observe_unfolded(self, late: int, unknown: Mapping[str, int]) -> None:
        """Count so many late records and unknown parts more."""
        try:
            live = self._live or self._renewed()
            live.late.inc(late)
            for what, number in unknown.items():
                if number > 0:
                    live.unknown[what].inc(number)
        except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
            self._failed(error)

    # -- the writer

    def observe_sync(self, seconds: float) -> None:
        """Count a sync that took so long."""
        try:
            if 0 <= seconds < AMOUNT_MAX:
                (self._live or self._renewed()).sync_duration.observe(seconds)
        except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
            self._failed(error)

    def observe_torn_repair(self) -> None:
        """Count a torn tail that was cut off."""
        try:
            (self._live or self._renewed()).torn_repairs.inc()
        except Exception as error:  # noqa: BLE001 - nothing is raised into the caller
            self._failed(error)

    def watch_writers(self, *, unsynced: Callable[[], float], failing: Callable[[], bool]) -> None:
        """Ask at every scrape for the age of the oldest record not yet durable, in seconds, and whether a writer fails.

        Both are called from the thread that scrapes, and in a forked child too: they must not wait.
        """
        self._unsynced, self._failing = unsynced, failing

    # -- signals

    def _handle(self, signal: signals.Signal) -> None:
        """Count a signal. What is outside a closed set is `other`: damage of an unheard-of cause is damage still."""
        live = self._live or self._renewed()
        said = values.as_mapping(signal.metadata)
        if signal.name == names.SIGNAL_DAMAGED:
            if self._damages.is_new(said):
                live.damaged.at(values.member(said.get("cause"), _CAUSES)).inc()
        elif signal.name == names.SIGNAL_WRITE_FAILED:
            stage = values.member(said.get("stage"), _STAGES)
            live.write_failed.at(stage, values.member(said.get("reason"), _REASONS)).inc()
        elif signal.name == names.SIGNAL_SURROGATE:
            live.surrogate.at(values.member(said.get("op"), _OPS)).inc()

    # -- the scrape

    def describe(self) -> Iterator[Samples]:
        """The families that a scrape may give: the registry refuses a second collector of the same."""
        return (described(metric) for metric in names.PROCESS_METRICS if self._source in metric.sources)

    def collect(self) -> Iterator[Samples]:
        """What a scrape gets."""
        yield from (self._live or self._renewed()).samples()
        if self._source in names.METRIC_UNSYNCED.sources:
            for metric, ask in ((names.METRIC_UNSYNCED, self._unsynced), (names.METRIC_WRITER_FAILING, self._failing)):
                # A gauge that nobody fills is not there: 0 would say that all is well.
                value = None if ask is None else self._asked(ask)
                if value is not None:
                    family = described(metric)
                    family.add_sample(metric.name, {"source": self._source}, value)
                    yield family
        yield self._handler_errors()

    def _asked(self, ask: Callable[[], float]) -> float | None:
        try:
            value = float(ask())
        except Exception as error:  # noqa: BLE001 - a scrape never fails
            self._failed(error)
            return None
        return max(0.0, value) if math.isfinite(value) else None

    def _handler_errors(self) -> Samples:
        counted = dict.fromkeys(signals.handlers(), 0) | signals.handler_errors()
        shown = {self._handler: self._failures}
        for handler, errors in counted.items():
            label = self._handlers(values.clean(values.text_of(handler), _HANDLER_CHARS_MAX))
            shown[label] = shown.get(label, 0) + errors
        metric = names.METRIC_HANDLER_ERRORS
        family = described(metric)
        for label, errors in shown.items():
            family.add_sample(metric.name, {"source": self._source, "handler": label}, errors)
        return family

    # -- failures and forks

    def _failed(self, error: Exception) -> None:
        with self._lock:
            self._failures += 1
            first = self._failures == 1
        if first:
            # Only what kind of error: its text may quote a journal.
            _log.warning("metrics lost an observation (%s); further losses are only counted", type(error).__name__)

    def _renewed(self) -> Instruments:
        with self._lock:
            if self._live is None:
                self._live = Instruments(self._source)
            return self._live

    def forked(self) -> None:
        """Start anew in a child, where a lock that another thread of the parent held would never be let go."""
        self._anew()
        if "_lock" in vars(self._registry):
            vars(self._registry)["_lock"] = threading.Lock()
        # In multiprocess mode a value notices the fork by itself, and a second one would count into the same place.
        if not getattr(client_values.ValueClass, "_multiprocess", False):
            self._live = None


class Following:
    """Counts what the fold of one session is given and gives."""

    __slots__ = ("_counts", "_late", "_metrics", "_unknown")

    def __init__(self, metrics: Metrics, fold: TurnFold) -> None:
        self._metrics = metrics
        self._counts: Counts = fold.counts
        self._late = self._counts.late
        self._unknown = dict(self._counts.unknown)

    def observe(self, records: Iterable[Mapping[str, Any]], spans: Iterable[Span], *, exemplar: bool = False) -> None:
        """Count the records that the fold was given and the spans that it gave; `exemplar` as for `observe_span`."""
        metrics = self._metrics
        for record in records:
            metrics.observe_record(record)
        for span in spans:
            metrics.observe_span(span, exemplar=exemplar)
        counts = self._counts
        if counts.late != self._late or counts.unknown != self._unknown:
            metrics.observe_unfolded(
                counts.late - self._late,
                {what: number - self._unknown.get(what, 0) for what, number in counts.unknown.items()},
            )
            self._late, self._unknown = counts.late, dict(counts.unknown)


_everyone: Final[weakref.WeakSet[Metrics]] = weakref.WeakSet()


def _in_child() -> None:
    for metrics in list(_everyone):
        metrics.forked()


os.register_at_fork(after_in_child=_in_child)
