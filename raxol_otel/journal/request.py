"""One call of a writer's `append`, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel.journal.group import Request

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raxol_otel.contract import Event

    # What failed during one call, to be published when no lock is held: the stage and why.
    Failures = list[tuple[str, OSError]]

__all__ = ["Append"]


class Append(Request):
    """One call of `append`, and what became of it."""

    __slots__ = ("error", "events", "failures", "is_wanted", "offsets", "sync_error")

    def __init__(self, events: Sequence[Mapping[str, Any] | Event], *, is_wanted: bool) -> None:
        self.events = events
        # Whether a sync is wanted before the call returns.
        self.is_wanted = is_wanted
        self.offsets: Sequence[int] = ()
        self.failures: Failures = []
        self.error: BaseException | None = None
        self.sync_error: OSError | None = None
