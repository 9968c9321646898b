"""A real Prometheus (Debian's package) scrapes a real agent: types, labels, values and exemplars through its API."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest
from opentelemetry.exporter.prometheus import PrometheusMetricReader
from opentelemetry.sdk.metrics import MeterProvider
from prometheus_client import CollectorRegistry, generate_latest

from raxol_otel import catalogue
from raxol_otel.live import TurnInstruments
from raxol_otel.metrics import Metrics
from tests.conftest import ROOT
from tests.metrics_scrape import families
from tests.test_instruments import TURN, spans_of

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from raxol_otel.catalogue_entries import Metric

OURS: Final = [metric for metric in catalogue.PROCESS_METRICS if "agent" in metric.sources]
# No `scrape_protocols`: this version does not know it, and asks for OpenMetrics first by itself.
CONFIG: Final = """
global: {{scrape_interval: 200ms, scrape_timeout: 200ms}}
scrape_configs:
  - job_name: agent
    static_configs: [{{targets: ["127.0.0.1:{port}"]}}]
"""
DEADLINE_SECONDS: Final = 60


class Scraped:
    """An agent and a Prometheus that scrapes it."""

    def __init__(self, agent: subprocess.Popen[str], port: int) -> None:
        self._agent = agent
        self._url = f"http://127.0.0.1:{port}"
        self.ids: list[dict[str, str]] = []

    def play(self) -> None:
        """Let the agent have a turn."""
        assert self._agent.stdin
        assert self._agent.stdout
        self._agent.stdin.write("\n")
        self._agent.stdin.flush()
        self.ids.append(json.loads(self._agent.stdout.readline()))

    def ask(self, path: str, **parameters: Any) -> Any:
        """The data that the API answers."""
        with urlopen(f"{self._url}{path}?{urlencode(parameters, doseq=True)}", timeout=10) as answer:  # noqa: S310 - http
            said = json.load(answer)
        assert said["status"] == "success"
        return said["data"]

    def values(self, query: str) -> list[float]:
        """What a query gives now."""
        return [float(one["value"][1]) for one in self.ask("/api/v1/query", query=query)["result"]]

    def exemplars(self, query: str) -> list[dict[str, str]]:
        """The labels of the exemplars of the last hour."""
        now = time.time()
        found = self.ask("/api/v1/query_exemplars", query=query, start=now - 3600, end=now + 3600)
        return [one["labels"] for series in found for one in series["exemplars"]]


def wait(what: Callable[[], Any]) -> Any:
    """The first answer that is not empty; what has not started yet is waited for."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        try:
            answer = what()
        except (URLError, ConnectionError):
            answer = None
        if answer:
            return answer
        assert time.monotonic() < deadline, "Prometheus never had it"
        time.sleep(0.05)


@contextmanager
def program(*command: str, folder: Path, **options: Any) -> Generator[subprocess.Popen[str]]:
    """A process, for a while; what it says on standard error goes to a file."""
    with (
        (folder / "stderr.txt").open("a", encoding="utf-8") as errors,
        subprocess.Popen(command, stderr=errors, stdout=subprocess.PIPE, text=True, **options) as process,
    ):
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def scraped(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scraped]:
    """Both at work, after the agent's first turn has been scraped."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("Prometheus is not here: Debian's package `prometheus` has it")
    folder = tmp_path_factory.mktemp("prometheus")
    with ExitStack() as stack:
        agent = stack.enter_context(
            program(
                *(sys.executable, "-m", "tests.prometheus_agent", str(folder / "sessions")),
                folder=folder,
                cwd=ROOT,
                stdin=subprocess.PIPE,
            )
        )
        assert agent.stdout
        config = folder / "prometheus.yaml"
        config.write_text(CONFIG.format(port=json.loads(agent.stdout.readline())["port"]), encoding="utf-8")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port: int = free.getsockname()[1]
        stack.enter_context(
            program(
                prometheus,
                f"--config.file={config}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
                "--enable-feature=exemplar-storage",
                folder=folder,
                cwd=folder,
            )
        )
        made = Scraped(agent, port)
        # What is there at 0 before the first turn is what lets an increase be seen.
        wait(lambda: made.values('raxol_turns_total{outcome="completed"} == 0'))
        made.play()
        wait(lambda: made.values('raxol_turns_total{outcome="completed"} == 1'))
        yield made
        assert agent.stdin
        agent.stdin.close()
        assert agent.wait(20) == 0


@pytest.mark.parametrize("metric", OURS, ids=lambda metric: metric.name)
def test_every_metric_is_found_with_its_type(scraped: Scraped, metric: Metric) -> None:
    """Its type, help and unit in the metadata, its series with their labels, and what was counted."""
    metadata = scraped.ask("/api/v1/metadata", metric=metric.family)
    assert metadata == {metric.family: [{"type": metric.kind, "help": metric.help, "unit": metric.unit}]}
    endings = ("_bucket", "_count", "_sum") if metric.kind == "histogram" else ("",)
    for ending in endings:
        series = scraped.ask("/api/v1/series", **{"match[]": metric.name + ending})
        labels = {*metric.label_names, "__name__", "instance", "job", *(["le"] if ending == "_bucket" else [])}
        assert series
        assert all(one.keys() == labels and one["source"] == "agent" for one in series)
        sets = len(series) // (len(metric.buckets) + 1 if ending == "_bucket" else 1)
        assert sets >= len(metric.born) or metric is catalogue.METRIC_HANDLER_ERRORS


def test_nothing_else_is_found(scraped: Scraped) -> None:
    """No metric that is not in the catalogue comes from the agent."""
    own = set(scraped.ask("/api/v1/label/__name__/values"))
    found = {name for name in own if not name.startswith("scrape_") and name != "up"}
    endings = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_count", "_sum")}
    assert found == {metric.name + ending for metric in OURS for ending in endings[metric.kind]}


def test_values_are_those_of_the_journal(scraped: Scraped) -> None:
    """Of one turn, and of the damage that a scan met."""
    for query, value in (
        ('raxol_tool_calls_total{tool="sh",outcome="ok"}', 1),
        ('raxol_input_tokens_total{cache="none"}', 30),
        ('raxol_input_tokens_total{cache="read"}', 60),
        ("raxol_output_tokens_total", 40),
        ("raxol_cost_usd_total", 0.25),
        ("raxol_approvals_requested_total", 1),
        ('raxol_journal_records_total{type="turn_started"}', 1),
        ('raxol_journal_damaged_total{cause="id_gap"}', 1),
        ('raxol_journal_checkpoint_surrogate_total{op="write"}', 1),
        ("raxol_turn_iterations_sum", 1),
        ("raxol_journal_writer_failing", 0),
    ):
        assert scraped.values(f"max({query})") == [value], query
    assert scraped.values("raxol_journal_sync_duration_seconds_count")[0] >= 1


def test_exemplars_come_back(scraped: Scraped) -> None:
    """They lead to the spans of the turn and of its tool call."""
    for query, role in (
        ('raxol_turns_total{outcome="completed"}', "turn"),
        ('raxol_turn_duration_seconds_bucket{outcome="completed"}', "turn"),
        ("raxol_cost_usd_total", "turn"),
        ('raxol_tool_calls_total{tool="sh"}', "tool"),
        ("raxol_tool_duration_seconds_bucket", "tool"),
    ):
        first = scraped.ids[0][role].split()
        labels = wait(partial(scraped.exemplars, query))
        assert {"trace_id": first[0], "span_id": first[1]} in labels


def test_an_increase_is_seen(scraped: Scraped) -> None:
    """A counter that was there at 0 increases with the first turn already, and again with the next."""
    before = int(scraped.values('raxol_turns_total{outcome="completed"}')[0])
    scraped.play()
    wait(lambda: scraped.values(f'raxol_turns_total{{outcome="completed"}} == {before + 1}'))
    assert scraped.values('increase(raxol_turns_total{outcome="completed"}[10m])')[0] > 0
    assert scraped.values('increase(raxol_turns_total{outcome="canceled"}[10m])') == [0]


def prometheus_name(name: str) -> str:
    """An instrument's name as Prometheus is given it; units and endings come behind it."""
    return re.sub(r"[^a-zA-Z0-9_:]", "_", name)


def test_the_two_paths_share_no_name() -> None:
    """No instrument's name, written for Prometheus, begins like a metric of ours, or the other way round."""
    instruments = [prometheus_name(entry.name) for entry in catalogue.INSTRUMENTS]
    families = [metric.family for metric in catalogue.PROCESS_METRICS]
    assert "gen_ai_invoke_agent_duration" in instruments
    for one in instruments:
        assert not any(one.startswith(other) or other.startswith(one) for other in families)


def test_both_paths_in_one_registry() -> None:
    """The metrics, and the instruments through OpenTelemetry's exporter for Prometheus: no family is there twice."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    provider = MeterProvider([PrometheusMetricReader(registry=registry)], shutdown_on_exit=False)
    spans = spans_of(*TURN)
    metrics.observe_spans(spans)
    TurnInstruments(provider, legacy=True).observe_spans(spans)
    names = [family.name for family in families(generate_latest(registry).decode(), strict=False)]
    provider.shutdown()
    assert len(names) == len(set(names))
    theirs = {name for name in names if not name.startswith(("raxol_", "target"))}
    assert {name for name in names if name.startswith("raxol_")} <= {
        metric.family for metric in catalogue.PROCESS_METRICS
    }
    assert len(theirs) == len(catalogue.INSTRUMENTS)
    for entry in catalogue.INSTRUMENTS:
        assert any(name.startswith(prometheus_name(entry.name)) for name in theirs)
