"""One call of a writer's `append`, and what became of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel.journal.group import Request
from raxol_otel.journal.line import encode_events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from raxol_otel.contract import Event
    from raxol_otel.journal.segment import End
    from raxol_otel.journal.tap import Feed

    # What failed during one call, to be published when no lock is held: the stage and why.
    Failures = list[tuple[str, OSError]]

__all__ = ["Append", "joined"]


class Append(Request):
    """One call of `append`, and what became of it."""

    __slots__ = ("context", "error", "events", "failures", "feed", "is_wanted", "offsets", "records", "sync_error")

    def __init__(
        self, events: Sequence[Mapping[str, Any] | Event], feed: Feed | None = None, *, is_wanted: bool
    ) -> None:
        self.events = events
        # Whether a sync is wanted before the call returns.
        self.is_wanted = is_wanted
        self.offsets: Sequence[int] = ()
        self.failures: Failures = []
        self.error: BaseException | None = None
        self.sync_error: OSError | None = None
        # For whoever follows the journal: what the appending thread knew, and what was written.
        self.feed = feed
        self.context: Any = None if feed is None else feed.context(events)
        self.records: list[dict[str, Any]] = []

    def follow(self, feed: Feed | None) -> None:
        """Under the writer's lock: who follows now, which may have changed since the call began."""
        if feed is not self.feed:
            self.feed, self.context = feed, None

    def stamp_for(self) -> Callable[[dict[str, Any]], None] | None:
        """What each record goes through before it is encoded."""
        feed = self.feed
        if feed is None:
            return None
        self.records = []

        def stamp(record: dict[str, Any]) -> None:
            feed.stamp(record, self.context)
            self.records.append(record)

        return stamp

    def tell(self) -> None:
        """Under the writer's lock: the records were written."""
        if self.feed is not None:
            self.feed.put(self.records)


def joined(requests: Sequence[Append], end: End, schema_version: str) -> tuple[bytes, int, str | None]:
    """The lines of all requests after `end`, the last one's offset and its hash; each request is given its offsets.

    Raises `EncodeError` for any of them.
    """
    if any(request.feed is not None for request in requests):
        return _joined_and_followed(requests, end, schema_version)
    events = [event for request in requests for event in request.events]
    data, types, tip = encode_events(events, end.offset + 1, schema_version=schema_version, tip=end.tip_hash)
    last = end.offset
    for request in requests:
        first, last = last + 1, last + len(request.events)
        request.offsets = range(first, last + 1)
    return data, end.offset + len(types), tip


def _joined_and_followed(requests: Sequence[Append], end: End, schema_version: str) -> tuple[bytes, int, str | None]:
    """As `joined`; each request's records are stamped with what its own thread knew."""
    lines: list[bytes] = []
    last, tip = end.offset, end.tip_hash
    for request in requests:
        first = last + 1
        data, types, tip = encode_events(
            request.events, first, schema_version=schema_version, tip=tip, stamp=request.stamp_for()
        )
        lines.append(data)
        last += len(types)
        request.offsets = range(first, last + 1)
    return b"".join(lines), last, tip
