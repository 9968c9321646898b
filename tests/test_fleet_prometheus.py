"""Debian's Prometheus scrapes the real fleet exporter: what breaks while it runs shows within two scrapes."""

from __future__ import annotations

import json
import shutil
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from tests.alerting import free_address
from tests.fleet_processes import raw_session, serve
from tests.test_prometheus import program, wait

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

CONFIG: Final = """
global: {{scrape_interval: 1s, scrape_timeout: 1s}}
scrape_configs:
  - job_name: raxol-fleet
    static_configs: [{{targets: ["{address}"]}}]
"""
STATES: Final = ("healthy", "torn", "damaged", "unreadable")


class Asked:
    """A Prometheus, and what its API answers."""

    def __init__(self, address: str) -> None:
        self._url = f"http://{address}/api/v1"

    def query(self, expression: str) -> list[dict[str, Any]]:
        """An instant query."""
        with urlopen(f"{self._url}/query?{urlencode({'query': expression})}", timeout=10) as answer:  # noqa: S310 - http
            said = json.load(answer)
        assert said["status"] == "success"
        return list(said["data"]["result"])

    def value(self, expression: str) -> float | None:
        """The one value of it, if there is one."""
        found = self.query(expression)
        return float(found[0]["value"][1]) if found else None

    def times(self, series: str) -> list[float]:
        """When it was scraped in the last minute."""
        found = self.query(f"{series}[1m]")
        return [float(at) for at, _ in found[0]["values"]] if found else []


@contextmanager
def scraped(folder: Path, address: str) -> Generator[Asked]:
    """A Prometheus that scrapes this address, once it has."""
    prometheus = shutil.which("prometheus")
    if prometheus is None:
        pytest.skip("Prometheus is not here: Debian's package `prometheus` has it")
    (folder / "prometheus.yaml").write_text(CONFIG.format(address=address), encoding="utf-8")
    own = free_address()
    command = [prometheus, f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'data'}"]
    with program(*command, f"--web.listen-address={own}", "--enable-feature=exemplar-storage", folder=folder):
        asked = Asked(own)
        wait(lambda: asked.value("raxol_journal_sessions") is not None)
        yield asked


def test_what_is_damaged_shows_within_two_scrapes(tmp_path: Path) -> None:
    """By its name and cause, beside the counts of states; a turn that ends is counted; a scrape is all there."""
    root = tmp_path / "sessions"
    for name in ("shop-1", "shop-2", "shop-3"):
        raw_session(root / name, 3)
    with serve(tmp_path, root) as serving, scraped(tmp_path, serving.ready().address) as asked:
        assert {state: asked.value(f'raxol_journal_sessions{{state="{state}"}}') for state in STATES} == {
            "healthy": 3,
            "torn": 0,
            "damaged": 0,
            "unreadable": 0,
        }
        with (root / "shop-2" / "journal" / "000001.jsonl").open("r+b") as file:
            file.write(b"\0" * 8)
        damaged_at = time.time()
        series = 'raxol_journal_session_damaged{session_id="shop-2",cause="nul_run"}'
        wait(lambda: asked.value(series) == 1)
        shown_at = asked.times(series)[0]
        scrapes = [at for at in asked.times('up{job="raxol-fleet"}') if damaged_at < at <= shown_at]
        assert 1 <= len(scrapes) <= 2
        assert asked.value('raxol_journal_sessions{state="damaged"}') == 1
        assert asked.value('raxol_journal_damaged_total{cause="nul_run",source="fleet"}') == 1
        raw_session(root / "shop-4", 5)
        wait(lambda: asked.value('raxol_turns_total{outcome="completed",source="fleet"}') == 5)
        # All that a scrape gives was taken, beside the five series that Prometheus makes of each.
        assert asked.value('count({job="raxol-fleet"}) - on () scrape_samples_scraped{job="raxol-fleet"}') == 5
