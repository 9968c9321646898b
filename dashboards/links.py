"""Where runbooks are read on the web: boards and alerts point there."""

from __future__ import annotations

from typing import Final

__all__ = ["RUNBOOK_BASE", "runbook_url"]

# The one place of this address: who keeps runbooks elsewhere changes it here and writes boards and alerts anew.
RUNBOOK_BASE: Final = "https://github.com/raxol-otel/raxol-otel/blob/main/dashboards/runbooks/"


def runbook_url(alert: str) -> str:
    """The page of an alert, given its name: `JournalDamaged`."""
    return f"{RUNBOOK_BASE}{alert}.md"
