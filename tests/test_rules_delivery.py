"""From a damaged journal to a webhook: real Prometheus and Alertmanager, with the shipped rules in a shortened copy."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel import catalogue
from raxol_otel.dashboards.links import runbook_url
from raxol_otel.demo import write_demo
from tests.alerting import Exposition, World, alerting, fleet_exporter, shorten
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SHIPPED: Final = ROOT / "dashboards" / "prometheus"
ALERT: Final = "RaxolJournalDamaged"
FLEET: Final = """\
# TYPE raxol_journal_session_damaged gauge
raxol_journal_session_damaged{session_id="shop-2",cause="id_gap"} 1
"""
# An agent that met damage before anybody scraped it: its counter is born with a value.
AGENT: Final = """\
# TYPE raxol_journal_damaged_total counter
raxol_journal_damaged_total{cause="nul_run",source="agent"} 1
raxol_journal_damaged_total{cause="id_gap",source="agent"} 0
"""


@pytest.fixture(scope="module")
def fleet() -> Iterator[Exposition]:
    """What stands for a fleet exporter."""
    with Exposition(FLEET) as served:
        yield served


def shortened(folder: Path) -> list[Path]:
    """The shipped rules in a copy in which time passes faster."""
    rules = [folder / "rules.yaml", folder / "alerts.yaml"]
    for path in rules:
        path.write_text(shorten((SHIPPED / path.name).read_text(encoding="utf-8")), encoding="utf-8")
    return rules


@pytest.fixture(scope="module")
def world(fleet: Exposition, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """Prometheus and Alertmanager that watch it, and an agent."""
    folder = tmp_path_factory.mktemp("alerting")
    with Exposition(AGENT) as agent:
        targets = {"raxol-fleet": [fleet.address], "raxol-agent": [agent.address]}
        with alerting(folder, targets, shortened(folder), {"cluster": "eu"}) as made:
            yield made


def test_a_shortened_copy_differs_in_durations_only() -> None:
    """Those of windows, offsets, `for`, `keep_firing_for` and `interval`; neither texts, names nor thresholds."""
    rules = (
        "interval: 30s\nfor: 0s\nkeep_firing_for: 5m\nrecord: a:b:rate1h\nexpr: rate(x[1h] offset 1d) > 600 or y[5m]\n"
        "description: over 1h, for 5m now\n"
    )
    assert shorten(rules) == (
        "interval: 500ms\nfor: 0s\nkeep_firing_for: 1s\nrecord: a:b:rate1h\n"
        "expr: rate(x[12s] offset 288s) > 600 or y[3s]\n"
        "description: over 1h, for 5m now\n"
    )


def test_a_damaged_session_reaches_the_webhook(world: World, fleet: Exposition) -> None:
    """With its name and cause, its severity, a runbook, and a panel to look at."""
    alert = world.wait_for(ALERT, source="fleet")
    where = {"cluster": "eu", "job": "raxol-fleet", "instance": fleet.address}
    session = {"session_id": "shop-2", "cause": "id_gap", "source": "fleet"}
    assert alert["labels"] == {"alertname": ALERT, "severity": "critical", **where, **session}
    said = alert["annotations"]
    assert said.keys() == {"summary", "description", "runbook_url", "dashboard_url"}
    assert said["summary"] == "A journal is damaged."
    assert said["description"] == (
        f"Session shop-2 is damaged: id_gap (seen by raxol-fleet on {fleet.address}, cluster eu). It opens for reading "
        "only, and nothing at or after the damage is ever shown."
    )
    assert said["runbook_url"] == runbook_url(ALERT)
    path, _, variables = said["dashboard_url"].partition("?")
    assert path == "/d/raxol-journal-health"
    place = fleet.address.replace(":", "%3A")
    assert variables.partition("&")[2] == f"var-cluster=eu&var-job=raxol-fleet&var-instance={place}"


def test_damage_that_an_agent_met_before_its_first_scrape_reaches_the_webhook(world: World) -> None:
    """Though its counter never grew where anybody could see it; a cause that it did not meet is not told."""
    assert world.wait_for(ALERT, source="agent")["labels"]["cause"] == "nul_run"
    assert world.find(ALERT, source="agent", cause="id_gap") is None
    assert world.query(f'{catalogue.METRIC_DAMAGED.name}{{cause="nul_run"}}')


def test_an_acknowledged_session_is_told_to_be_over(world: World, fleet: Exposition) -> None:
    """When its series is gone the alert is resolved."""
    world.wait_for(ALERT, source="fleet")
    fleet.text = ""
    world.wait_for(ALERT, "resolved", source="fleet")


def test_what_a_real_exporter_finds_reaches_the_webhook(tmp_path: Path) -> None:
    """Every damaged session by its name and cause, and a lost tail; an exporter that is stopped is missed."""
    sessions = tmp_path / "sessions"
    write_demo(sessions, time.time_ns() // 1_000)
    with ExitStack() as exporter_stack:
        exporter = exporter_stack.enter_context(fleet_exporter(tmp_path, sessions))
        with alerting(tmp_path, {"raxol-fleet": [exporter]}, shortened(tmp_path)) as made:
            for session, cause in (("glued-lines", "spliced"), ("tampered", "chain_hash")):
                said = made.wait_for(ALERT, session_id=session, cause=cause)["annotations"]["description"]
                assert said.startswith(f"Session {session} is damaged: {cause} (seen by raxol-fleet on {exporter}).")
            said = made.wait_for("RaxolJournalTailLost")["annotations"]["description"]
            assert said.startswith(
                f"Sessions with fewer records than their HEAD names, seen by raxol-fleet on {exporter}: 1."
            )
            assert made.find("RaxolJournalUnreadable") is None
            exporter_stack.close()
            assert made.wait_for("RaxolExporterDown")["labels"]["instance"] == exporter
