# ruff: noqa: INP001 - a project of somebody's own, not a package of these tests
"""A small agent that keeps a journal of its work."""

from __future__ import annotations

from typing import TYPE_CHECKING

from raxol_otel.errors import WriteFailed

if TYPE_CHECKING:
    from raxol_otel.journal import JournalStore

__all__ = ["Agent", "may_spend"]


class Agent:
    """Does its work, and says so; what cannot be written down is not done."""

    def __init__(self, store: JournalStore) -> None:
        self.store = store
        self.done: list[str] = []

    def work(self, task: str) -> bool:
        """Do a task, if it can be written down; whether it was done."""
        try:
            self.store.append({"type": "note", "payload": {"task": task}}, sync=True)
        except WriteFailed:
            return False
        self.done.append(task)
        return True


def may_spend(cents: int) -> bool:
    """Whether the agent may spend so much by itself."""
    return cents <= 500
