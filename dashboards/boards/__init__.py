"""The Grafana boards, as a program: `python -m raxol_otel.dashboards.boards` writes dashboards/grafana/*.json.

Files by role: `queries` makes PromQL of the catalogue's metrics, `panels` the kinds of panels, `variables` what boards
are filtered by, `layout` places panels and links boards; `health`, `turns` and `session` say what the boards show.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from raxol_otel.dashboards.boards import health, session, turns

__all__ = ["FOLDER", "texts"]

FOLDER: Final = Path(__file__).parent.parent / "grafana"


def texts() -> dict[str, str]:
    """The boards by the names of their files."""
    boards = (health.board(), turns.board(), session.board())
    return {
        f"{board.title.uid.removeprefix('raxol-')}.json": json.dumps(board.json(), indent=2, ensure_ascii=False) + "\n"
        for board in boards
    }
