"""The shipped boards, as data: their panels, queries and variables."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Final

from tests.conftest import ROOT

__all__ = [
    "BOARDS",
    "FOLDER",
    "JOURNAL_HEALTH",
    "PANELS",
    "QUERIES",
    "SESSION",
    "TURNS",
    "Panel",
    "Query",
    "named",
    "panel",
]

FOLDER: Final = ROOT / "dashboards" / "grafana"
JOURNAL_HEALTH: Final = "raxol-journal-health"
TURNS: Final = "raxol-agent-turns"
SESSION: Final = "raxol-session"
# By their uids; the names of the files are the uids without `raxol-`.
BOARDS: Final[dict[str, dict[str, Any]]] = {
    uid: json.loads((FOLDER / f"{uid.removeprefix('raxol-')}.json").read_text(encoding="utf-8"))
    for uid in (JOURNAL_HEALTH, TURNS, SESSION)
}


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of a board, headings of rows left out."""

    board: str
    json: dict[str, Any]

    @property
    def name(self) -> str:
        """Board, id and title: what a failing test says."""
        return f"{self.board} {self.json['id']} {self.json['title']}"

    @property
    def defaults(self) -> dict[str, Any]:
        """What is true of all its fields."""
        defaults: dict[str, Any] = self.json["fieldConfig"]["defaults"]
        return defaults


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query of a panel."""

    panel: Panel
    json: dict[str, Any]

    @property
    def name(self) -> str:
        """The panel's name and the query's letter."""
        return f"{self.panel.name} {self.json['refId']}"

    @property
    def expr(self) -> str:
        """The PromQL, with Grafana's variables."""
        return str(self.json["expr"])


PANELS: Final = [
    Panel(uid, panel) for uid, board in BOARDS.items() for panel in board["panels"] if panel["type"] != "row"
]
QUERIES: Final = [Query(panel, target) for panel in PANELS for target in panel.json["targets"] if "expr" in target]


def panel(board: str, title: str) -> Panel:
    """The panel of a board with this title; there is one."""
    (found,) = (panel for panel in PANELS if panel.board == board and panel.json["title"] == title)
    return found


def named(case: Panel | Query) -> str:
    """The id of a test's case."""
    return case.name
