"""What a scrape gives, and how metrics are made to count: helpers of the tests of the metrics."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import choose_encoder

from raxol_otel import signals
from raxol_otel.metrics import Metrics
from raxol_otel.turns import FoldConfig, TurnFold

if TYPE_CHECKING:
    from collections.abc import Mapping

    from prometheus_client.metrics_core import Metric as Family

__all__ = ["Agent", "damaged", "families", "openmetrics", "write_failed"]

# The client library's strict format, which Prometheus asks for first, and its parsers, which have no types.
_encode: Final = choose_encoder("application/openmetrics-text; version=1.0.0")[0]
_strict: Final[Any] = import_module("prometheus_client.openmetrics.parser")
_plain: Final[Any] = import_module("prometheus_client.parser")


class Agent:
    """Metrics on a registry of their own, and sessions whose records they count."""

    def __init__(self, source: Any = "agent") -> None:
        self.source = source
        self.registry = CollectorRegistry()
        self.metrics = Metrics(self.registry, source=source)

    def run(
        self, *records: Mapping[str, Any], session_id: str = "s", exemplar: bool = False, capture: bool = False
    ) -> None:
        """Fold a session to its end and count it."""
        fold = TurnFold(session_id, config=FoldConfig(capture_content=capture))
        following = self.metrics.follow(fold)
        following.observe(records, fold.feed_many(records), exemplar=exemplar)
        following.observe((), fold.close(), exemplar=exemplar)

    def series(self) -> dict[str, float]:
        """Each series of a scrape and its value, the label `source` left out: `raxol_turns_total{outcome="error"}`."""
        found: dict[str, float] = {}
        for line in generate_latest(self.registry).decode().split("\n"):
            if line and not line.startswith("#"):
                name, _, value = line.rpartition(" ")
                assert f'source="{self.source}"' in name
                name = name.replace(f'source="{self.source}",', "").replace(f'source="{self.source}"', "")
                found[name.replace(",}", "}").replace("{}", "")] = float(value)
        return found

    def counted(self, prefix: str = "raxol_") -> dict[str, float]:
        """The series that are not 0, buckets apart, of the metrics whose name begins so."""
        return {
            name: value
            for name, value in self.series().items()
            if value and name.startswith(prefix) and "_bucket" not in name
        }


def openmetrics(registry: CollectorRegistry) -> str:
    """A scrape in the strict format."""
    return _encode(registry).decode()


def families(text: str, *, strict: bool = True) -> list[Family]:
    """The families of a scrape, read by the client library's parser of its format."""
    return list((_strict if strict else _plain).text_string_to_metric_families(text))


def damaged(**metadata: Any) -> None:
    """Publish a damage."""
    place: Final = {"dir": "/d", "segment": "/d/journal/000001.jsonl", "session_id": "d", "last_offset": 1}
    signals.publish(signals.Signal(signals.SIGNAL_DAMAGED, {**place, "cause": "nul_run", **metadata}))


def write_failed(stage: Any, reason: Any) -> None:
    """Publish a failure of the writer."""
    signals.publish(signals.Signal(signals.SIGNAL_WRITE_FAILED, {"stage": stage, "reason": reason, "session_id": "s"}))
