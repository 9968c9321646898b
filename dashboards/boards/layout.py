"""A board out of rows of panels: places, ids, variables and links."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.dashboards.boards.queries import FILTERS
from raxol_otel.dashboards.boards.variables import data_source, label_values
from raxol_otel.dashboards.links import RUNBOOK_BASE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raxol_otel.catalogue_entries import Metric
    from raxol_otel.dashboards.boards.panels import Panel

__all__ = ["AGENT_TURNS", "BOARDS", "JOURNAL_HEALTH", "SESSION", "Board", "Row", "Title"]

COLUMNS: Final = 24
SCHEMA_VERSION: Final = 42
# Room for panels to come: the panels of a row keep their ids, and so the links to them, when another row grows.
_IDS_A_ROW: Final = 100


@dataclass(frozen=True, slots=True)
class Title:
    """A board's name, in words and in addresses: `/d/<uid>`. Neither ever changes, people link to them."""

    uid: str
    words: str


JOURNAL_HEALTH: Final = Title("raxol-journal-health", "Journal health")
AGENT_TURNS: Final = Title("raxol-agent-turns", "Agent turns")
SESSION: Final = Title("raxol-session", "Session")
BOARDS: Final = (JOURNAL_HEALTH, AGENT_TURNS, SESSION)


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under a heading, from left to right, in as many lines as they need."""

    heading: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True)
class Board:
    """A board. `scraped` is a metric that all processes it shows have: its labels fill the variables."""

    title: Title
    description: str
    tags: tuple[str, ...]
    rows: tuple[Row, ...]
    _: KW_ONLY
    scraped: Metric
    sources: tuple[str, ...] = ()
    variables: tuple[Mapping[str, Any], ...] = ()

    def json(self) -> dict[str, Any]:
        """The board as Grafana imports it."""
        own = [*(label_values(name, self.scraped, FILTERS) for name in FILTERS)]
        source = label_values("source", self.scraped, FILTERS, chosen=self.sources)
        return {
            "uid": self.title.uid,
            "title": self.title.words,
            "description": self.description,
            "tags": ["raxol", *self.tags],
            "schemaVersion": SCHEMA_VERSION,
            "version": 1,
            "editable": False,
            "graphTooltip": 1,
            "fiscalYearStartMonth": 0,
            "timezone": "browser",
            "time": {"from": "now-1h", "to": "now"},
            "timepicker": {},
            "refresh": "30s",
            "annotations": {"list": []},
            "links": _links(self.title),
            "templating": {"list": [data_source("prometheus", "datasource"), *self.variables, *own, source]},
            "panels": placed(self.rows),
        }


def placed(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """The panels of all rows with their places and ids."""
    found: list[dict[str, Any]] = []
    top = 0
    for number, row in enumerate(rows, start=1):
        heading: dict[str, Any] = {"type": "row", "title": row.heading, "collapsed": False, "panels": []}
        found.append({"id": number * _IDS_A_ROW, **heading, "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1}})
        top += 1
        left = height = 0
        for place, panel in enumerate(row.panels, start=1):
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            grid = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            found.append({"id": number * _IDS_A_ROW + place, **panel.json, "gridPos": grid})
            left += panel.width
            height = max(height, panel.height)
        top += height
    return found


def _links(here: Title) -> list[dict[str, Any]]:
    others = [_link(title.words, f"/d/{title.uid}", icon="dashboard") for title in BOARDS if title != here]
    return [*others, _link("Runbooks", RUNBOOK_BASE, icon="doc", is_elsewhere=True)]


def _link(words: str, url: str, *, icon: str, is_elsewhere: bool = False) -> dict[str, Any]:
    return {
        "type": "link",
        "title": words,
        "tooltip": "",
        "icon": icon,
        "url": url,
        "tags": [],
        "asDropdown": False,
        "targetBlank": is_elsewhere,
        "includeVars": not is_elsewhere,
        "keepTime": not is_elsewhere,
    }
