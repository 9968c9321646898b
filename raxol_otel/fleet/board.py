"""What a scrape is answered with: bodies made once a look, read by the server's thread at any time."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Board", "View"]


@dataclass(frozen=True, slots=True)
class View:
    """All that the server tells, of one look. `text` and `openmetrics` are /metrics in the two formats, `page` is HTML.

    `reason` says why it is not ready; one line. A view that is not ready may have metrics, or none (empty bodies).
    """

    text: bytes
    openmetrics: bytes
    page: bytes
    is_ready: bool
    reason: str = ""


class Board:
    """Holds the newest view: one thread posts, any thread reads, nobody waits."""

    def __init__(self) -> None:
        self._view: View | None = None

    def post(self, view: View) -> None:
        """Show this view from now on."""
        self._view = view  # one reference: whoever reads has the old view or the new, whole

    @property
    def view(self) -> View | None:
        """The view that was posted last; None before the first."""
        return self._view
