"""One call of a writer's `append`, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel.journal.group import Request
from raxol_otel.journal.line import encode_events

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raxol_otel.contract import Event
    from raxol_otel.journal.segment import End

    # What failed during one call, to be published when no lock is held: the stage and why.
    Failures = list[tuple[str, OSError]]

__all__ = ["Append", "joined"]


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


def joined(requests: Sequence[Append], end: End, schema_version: str) -> tuple[bytes, int, str | None]:
    """The lines of all requests after `end`, the last one's offset and its hash; each request is given its offsets.

    Raises `EncodeError` for any of them.
    """
    lines: list[bytes] = []
    last, tip = end.offset, end.tip_hash
    for request in requests:
        first = last + 1
        data, types, tip = encode_events(request.events, first, schema_version=schema_version, tip=tip)
        lines.append(data)
        last += len(types)
        request.offsets = range(first, last + 1)
    return b"".join(lines), last, tip
