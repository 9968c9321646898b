"""Words and colours that several boards share."""

from __future__ import annotations

from typing import Final

__all__ = ["NONE_REPORTED", "NO_AGENT", "NO_EXPORTER", "NO_TURN", "OUTCOME_COLORS", "STATE_COLORS", "by_source"]

# What a panel says that has nothing to show. That nobody told is another thing than that there is none.
NO_EXPORTER: Final = "No exporter"
NO_AGENT: Final = "No agent"
NO_TURN: Final = "No turn"
# Said of what is rare. It is no promise that there was none: perhaps nobody was there to report it.
NONE_REPORTED: Final = "None reported"

STATE_COLORS: Final = {"healthy": "green", "torn": "yellow", "damaged": "red", "unreadable": "orange"}
OUTCOME_COLORS: Final = {"completed": "green", "canceled": "blue", "incomplete": "orange", "error": "red"}


def by_source(label: str) -> str:
    """The name of a series of both agents and the exporter: `unparsable (fleet)`."""
    return f"{{{{{label}}}}} ({{{{source}}}})"
