"""Boards and alerts in a generated world: no panel is empty, what must page somebody does, exemplars lead to traces.

Prometheus and Alertmanager are Debian's. The shipped rules are loaded in a copy in which hours pass in seconds.
"""

from __future__ import annotations

import math
import re
import time
from random import Random
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from raxol_otel.catalogue import SESSION_ID, SIGNAL_DAMAGED
from raxol_otel.dashboards.links import runbook_url
from raxol_otel.journal import scan
from tests.alerting import alerting, shorten
from tests.boards import JOURNAL_HEALTH, QUERIES, TURNS, Query, panel
from tests.otlp_receiver import attributes
from tests.promql import filled
from tests.rules_files import ALERT_NAMES, ALERT_RULES, ALERTS, RULES, tool
from tests.world import CLUSTER, world
from tests.world_pages import PAGES, SILENT, SILENT_SERIES, Page
from tests.world_sessions import DAMAGES, damaged_session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tests.alerting import World as Scraped
    from tests.world import World

SCRAPE: Final = "1s"
SHORTEN_BY: Final = 180
# Not so fast where the exporter's own pace counts: a backend that is down is tried again after up to 30 seconds.
SHORTEN_EXPORTER_BY: Final = 15
EXPORTER_GROUP: Final = "raxol-exporter"
# Five minutes that data would have to reach; all other thresholds stand as they are shipped.
BACKLOG: Final = ("raxol_exporter_backlog_seconds > 300", "raxol_exporter_backlog_seconds > 30")
RATE_WINDOW: Final = "15s"
STEP_SECONDS: Final = 2
SECONDS_MAX: Final = 140
# The first two boards, and whose count of turns they show.
SHOWN: Final = ((JOURNAL_HEALTH, ".+"), (TURNS, "agent"), (TURNS, "fleet"))


class Watched:
    """A world, and what Prometheus and Alertmanager know of it."""

    def __init__(self, made: World, scraped: Scraped, began: float) -> None:
        self.made = made
        self.scraped = scraped
        self.began = began

    def labels(self, page: Page) -> dict[str, str]:
        """The labels of a page, in this world."""
        endpoints = {"backend": self.made.backend.http_endpoint, "dead_backend": self.made.dead_endpoint}
        return {name: value.format(**endpoints) for name, value in page.labels.items()}

    def page(self, page: Page) -> dict[str, Any]:
        """The alert, when it has been delivered."""
        labels = self.labels(page)
        return self.scraped.wait_for(page.alert, seconds=SECONDS_MAX, severity=page.severity, **labels)

    def expression(self, query: Query, source: str) -> str:
        """What Grafana would send for a query, of all that there is."""
        since = math.ceil(time.time() - self.began)
        text = query.expr.replace("$__rate_interval", RATE_WINDOW).replace("$__range", f"{since}s")
        return filled(text, {"cluster": ".*", "job": ".+", "instance": ".+", "source": source})

    def is_empty(self, query: Query, source: str) -> bool:
        """Whether a query shows nothing: no series, or one that has no numbers."""
        expression = self.expression(query, source)
        if query.json.get("instant"):
            samples = [[one["value"]] for one in self.scraped.query(expression)]
        else:
            times = {"start": self.began, "end": time.time(), "step": STEP_SECONDS}
            found = self.scraped.ask("query_range", query=expression, **times)["result"]
            samples = [one["values"] for one in found]
        return all(math.isnan(float(value)) for series in samples for _, value in series)


def shortened(folder: Path) -> list[Path]:
    """The shipped rules in a copy in which time passes faster."""
    groups = re.split(r"(?m)^(?=  - name: )", ALERTS.read_text(encoding="utf-8"))
    parts = [shorten(group, SHORTEN_EXPORTER_BY if EXPORTER_GROUP in group else SHORTEN_BY) for group in groups]
    alerts = "".join(parts)
    assert BACKLOG[0] in alerts
    texts = {ALERTS.name: alerts.replace(*BACKLOG), RULES.name: shorten(RULES.read_text(encoding="utf-8"), SHORTEN_BY)}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    return [folder / name for name in texts]


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    """The world at work, scraped every second."""
    for name in ("prometheus", "prometheus-alertmanager"):
        tool(name, name)
    folder = tmp_path_factory.mktemp("world")
    began = time.time()
    with (
        world(folder) as made,
        alerting(folder, made.targets, shortened(folder), {"cluster": CLUSTER}, scrape=SCRAPE) as scraped,
    ):
        yield Watched(made, scraped, began)


def wait(what: Callable[[], list[str]], message: str) -> None:
    """Wait until nothing is missing; fails with what is."""
    deadline = time.monotonic() + SECONDS_MAX
    while missing := what():
        if time.monotonic() > deadline:
            pytest.fail(f"{message}: {missing}")
        time.sleep(0.5)


def test_every_alert_is_decided_about() -> None:
    """Each rule either must come in this world, or must not, and then there is a reason."""
    assert {page.alert for page in PAGES} | SILENT.keys() == {*ALERT_NAMES}
    assert not {page.alert for page in PAGES} & SILENT.keys()
    rules = {(rule["alert"], rule["labels"]["severity"]) for rule in ALERT_RULES if rule["alert"] not in SILENT}
    assert {(page.alert, page.severity) for page in PAGES} == rules


@pytest.mark.parametrize("cause", DAMAGES)
def test_damage_is_what_it_is_called(tmp_path: Path, cause: str) -> None:
    """A scan of a session that was damaged in some way names that way."""
    damage = scan(damaged_session(tmp_path, "session", cause, Random(1))).damage  # noqa: S311 - the same every time
    assert damage is not None
    assert damage.cause == cause


@pytest.mark.parametrize(("board", "source"), SHOWN)
def test_no_panel_is_empty(watched: Watched, board: str, source: str) -> None:
    """Every query of every panel of the first two boards finds something, whoever counts the turns."""
    left = [query for query in QUERIES if query.panel.board == board]
    assert left

    def empty() -> list[str]:
        left[:] = [query for query in left if watched.is_empty(query, source)]
        return [query.name for query in left]

    wait(empty, f"nothing to see, for source {source}")


@pytest.mark.parametrize("source", ["agent", "fleet"])
def test_exemplars_lead_to_traces(watched: Watched, source: str) -> None:
    """Those of the panel of durations are of turns; the backend has traces of these ids."""
    (query, *_) = [one for one in QUERIES if one.panel == panel(TURNS, "Duration of turns")]
    assert query.json["exemplar"] is True
    expression = watched.expression(query, source)

    def missing() -> list[str]:
        found = watched.scraped.ask("query_exemplars", query=expression, start=watched.began, end=time.time() + 60)
        assert all(one["seriesLabels"]["source"] == source for one in found)
        exemplars = [exemplar["labels"] for one in found for exemplar in one["exemplars"]]
        assert all(labels.keys() == {"trace_id", "span_id"} for labels in exemplars)
        known = {(got.span.trace_id.hex(), got.span.span_id.hex()) for got in watched.made.backend.spans}
        return [] if known & {(one["trace_id"], one["span_id"]) for one in exemplars} else ["exemplars"]

    wait(missing, "the backend has no trace of any of them")


def test_damage_reaches_the_backend(watched: Watched) -> None:
    """As a log event with the session's name, from the exporter, of each that was damaged while it looked."""

    def missing() -> list[str]:
        told = [
            (one.event_name, attributes(one.attributes)[SESSION_ID])
            for request in watched.made.backend.others
            if isinstance(request, ExportLogsServiceRequest)
            for resource in request.resource_logs
            for scope in resource.scope_logs
            for one in scope.log_records
        ]
        return [name for name in ("found-1", "batch-found-1", "batch-found-2") if (SIGNAL_DAMAGED, name) not in told]

    wait(missing, "no log event of these")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_comes(watched: Watched, page: Page) -> None:
    """Through Alertmanager to the webhook: with its sentence, what and where it is, a runbook and a panel."""
    said = watched.page(page)["annotations"]
    rules = [rule for rule in ALERT_RULES if rule["alert"] == page.alert]
    assert said.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
    assert said["summary"] in {rule["annotations"]["summary"] for rule in rules}
    assert re.fullmatch(page.description, said["description"]), said["description"]
    assert said["runbook_url"] == runbook_url(page.alert)
    assert re.match(rf"/d/raxol-[a-z-]+\?viewPanel=[0-9]+&var-cluster={CLUSTER}&var-job=raxol-", said["dashboard_url"])


def test_nothing_else_comes_until_the_exporter_stops(watched: Watched) -> None:
    """When all has come that must, what must not has not; then the exporter ends, and is missed."""
    for page in PAGES:
        watched.page(page)
    for name, reason in SILENT.items():
        assert watched.scraped.find(name) is None, f"{name} came, though {reason}"
    for what, labels in SILENT_SERIES.items():
        came = [one for one in watched.scraped.delivered if labels.items() <= one["labels"].items()]
        assert came == [], f"{what} paged somebody"
    exporter = watched.made.exporter
    watched.made.stop_exporter()
    down = watched.scraped.wait_for("RaxolExporterDown", instance=exporter)
    assert down["annotations"]["description"].endswith("does not answer: nobody looks for damage.")
