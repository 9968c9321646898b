"""The exporter's loop: look at the fleet, make the bodies that scrapes are answered with, wait."""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder

from raxol_otel.exporters.prometheus import FleetCollector
from raxol_otel.fleet.board import View
from raxol_otel.fleet.discovery import shown
from raxol_otel.fleet.fleet import Fleet
from raxol_otel.fleet.follow import end_all
from raxol_otel.fleet.page import render_page
from raxol_otel.fleet.state import FleetState
from raxol_otel.fleet.watch import watching
from raxol_otel.metrics import Metrics

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from raxol_otel.fleet.board import Board
    from raxol_otel.fleet.delivery import Delivery
    from raxol_otel.fleet.watch import Watch

__all__ = ["Engine", "EngineOptions"]

# While there is nothing to look at, and while a first look goes on, bodies are made this often, in seconds.
_IDLE_SECONDS: Final = 1.0
# In which time all deliveries end, in seconds.
_DELIVERED_SECONDS: Final = 2.0

_generate_openmetrics: Final = choose_encoder("application/openmetrics-text; version=1.0.0")[0]

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EngineOptions:
    """What to look at, how often, and what to keep. `interval_seconds` is from the begin of a look to the next."""

    sessions_dir: Path
    state: Path | None = None
    acknowledged: Path | None = None
    jobs: int = 1
    interval_seconds: float = 1.0
    poll: bool = False


class Engine:
    """Looks at a fleet and posts on `board`. Opens the state when made: raises `UsageError` and `ExportError`.

    `notice` is told when a corrupt state file was set aside. `deliveries` makes those that get the sessions' spans.
    """

    def __init__(
        self,
        options: EngineOptions,
        board: Board,
        *,
        notice: Callable[[str], None] | None = None,
        deliveries: Callable[[FleetState], Sequence[Delivery]] | None = None,
    ) -> None:
        self._options = options
        self._board = board
        self._beat_at = time.monotonic()
        self._waiting_for = ""
        self._state = FleetState(options.state, notice=notice)
        try:
            self._deliveries = () if deliveries is None else deliveries(self._state)
        except BaseException:
            self._state.close()
            raise
        self.registry = CollectorRegistry()
        self._metrics = Metrics(self.registry, source="fleet")
        self._fleet = Fleet(
            options.sessions_dir,
            self._state,
            metrics=self._metrics,
            acknowledged=options.acknowledged,
            jobs=options.jobs,
            beat=self._beat,
        )
        told = [delivery.facts for delivery in self._deliveries]
        self.registry.register(FleetCollector(self._fleet.facts, endpoints=(lambda: told) if told else None))

    @property
    def heartbeat(self) -> float:
        """The last sign of life, in seconds of `time.monotonic`."""
        return self._beat_at

    def _beat(self) -> None:
        self._beat_at = time.monotonic()

    def run(self, stop: threading.Event) -> None:
        """Look until `stop` is set; then what is known is kept. Raises `ExportError` when it cannot be kept."""
        self._metrics.attach()
        watch: Watch | None = None
        try:
            self._post()
            while not stop.is_set() and watch is None:
                watch = self._begin(stop)
            if watch is not None:
                for delivery in self._deliveries:
                    delivery.start()
                    delivery.offer(self._fleet.sessions, None)
            while watch is not None and not stop.is_set():
                begun = time.monotonic()
                self._beat()
                self._look(watch)
                self._post()
                stop.wait(max(0.0, self._options.interval_seconds - (time.monotonic() - begun)))
            if watch is not None:
                self._fleet.keep()
        finally:
            if watch is not None:
                watch.close()
            self._metrics.detach()
            self._metrics.close()
            for delivery in end_all(self._deliveries, _DELIVERED_SECONDS):
                _log.warning("stopped with %s; the next run sends them", delivery.left)
            self._state.close()

    def _begin(self, stop: threading.Event) -> Watch | None:
        """Wait for the folder and take the first look; None when there is none yet."""
        root = self._options.sessions_dir
        watch: Watch | None = None
        try:
            with os.scandir(root):
                # Before the look: what changes meanwhile is told.
                watch = watching(root, poll=self._options.poll)
            if self._fleet.first_look(stop):
                self._waits_for("")
                self._post()
                return watch
        except FileNotFoundError as error:
            self._waits_for(f"{root}: {error.strerror}" if root.exists() else f"{root}, which does not exist yet")
        except OSError as error:
            self._waits_for(f"{root}: {error.strerror or error}")
        if watch is not None:
            watch.close()
        self._beat()
        self._post()
        stop.wait(min(_IDLE_SECONDS, self._options.interval_seconds))
        return None

    def _look(self, watch: Watch) -> None:
        try:
            changed = watch.take()
            self._fleet.look(changed)
        except FileNotFoundError as error:
            root = self._options.sessions_dir
            self._waits_for(f"{root}: {error.strerror}" if root.exists() else f"{root}, which is no longer there")
        else:
            self._waits_for("")
            told = self._fleet.sessions_in(changed) if self._deliveries else None
            for delivery in self._deliveries:
                delivery.offer(self._fleet.sessions, told)

    def _waits_for(self, what: str) -> None:
        if what:
            self._fleet.wait_for(what)
            if what != self._waiting_for:
                _log.warning("waiting for %s", shown(what))
        self._waiting_for = what

    def _post(self) -> None:
        facts = self._fleet.facts()
        self._board.post(
            View(
                text=_rendered(generate_latest, self.registry),
                openmetrics=_rendered(_generate_openmetrics, self.registry),
                page=render_page(facts),
                is_ready=facts.is_ready,
                reason="" if facts.is_ready else f"waiting for {shown(facts.waiting_for)}",
            )
        )


def _rendered(render: Callable[[CollectorRegistry], bytes], registry: CollectorRegistry) -> bytes:
    return render(registry)
