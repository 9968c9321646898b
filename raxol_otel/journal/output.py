"""What a writer has open: the segment that it appends to, and the next one once that is full.

Nothing is written to the next segment before the full one is durable: the kernel writes files back in any order, and a
power loss may take the end of the last one only. Until then the full one grows past its cap.

Nothing here locks. The writer calls `sync` from one thread at a time, and everything else under its lock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from raxol_otel.journal import meter
from raxol_otel.journal.segment import SEGMENT_NUMBER_MAX, open_segment

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from raxol_otel.journal.files import Files
    from raxol_otel.journal.segment import End, Segment

__all__ = ["Output"]

# How often appends look whether the segment is still there, and as it was left.
CHECK_SECONDS: Final = 0.05


class Output:
    """The open segments of a journal. `cap` is in bytes, `folder` the segments' own. Its methods raise `OSError`.

    `durable` is what a sync covered last, and the number of the segment that is appended to then: what HEAD may say.
    """

    def __init__(self, files: Files, folder: Path, segment: Segment, *, cap: int, mode: int) -> None:
        self._files = files
        self._folder = folder
        self._cap = cap
        self._mode = mode
        self._segment = segment
        self._next: Segment | None = None
        self._check_at = 0.0
        # When the oldest record that is not durable was written, on the monotonic clock in seconds; None: all are.
        self.unsynced_since: float | None = None
        # A signal handler that finds this true must not append.
        self.is_switching = False
        self.durable: tuple[End, int] = (segment.end, segment.number)

    @property
    def end(self) -> End:
        """Where the journal ends."""
        return self._segment.end

    @property
    def unsynced_bytes(self) -> int:
        """How much waits for a sync."""
        return self._segment.unsynced_bytes

    @property
    def is_rotating(self) -> bool:
        """Whether the segment is full and the next one waits for it to be durable."""
        return self._next is not None

    @property
    def is_full(self) -> bool:
        """Whether the next segment should be there, and is not."""
        segment = self._segment
        return segment.end.size >= self._cap and self._next is None and segment.number < SEGMENT_NUMBER_MAX

    def append(self, data: bytes, offset: int, tip_hash: str | None) -> bool:
        """Write lines, the last one's offset and hash given; whether the segment is full now."""
        segment = self._segment
        if segment.number >= SEGMENT_NUMBER_MAX and segment.end.size >= self._cap:
            message = f"segment {SEGMENT_NUMBER_MAX} is full, and there is no name for another"
            raise OSError(0, message)
        now = time.monotonic()
        if now >= self._check_at:
            segment.check()
            self._check_at = now + CHECK_SECONDS
        segment.append(data, offset, tip_hash)
        if self.unsynced_since is None:
            self.unsynced_since = now
        return self.is_full

    def append_within(self, data: bytes, offset: int, tip_hash: str | None) -> bool:
        """As `append`, but only what leaves room in the segment; whether it did."""
        if self.end.size + len(data) >= self._cap:
            return False
        self.append(data, offset, tip_hash)
        return True

    def clean(self) -> None:
        """See `Segment.clean`."""
        self._segment.clean()

    def rotate(self) -> None:
        """Make the next segment."""
        number = self._segment.number + 1
        self._next = open_segment(self._files, self._folder, number, self.end, mode=self._mode, is_new=True)

    def sync(self, lock: AbstractContextManager[object]) -> None:
        """Make durable all that is written when it begins; `lock` is the writer's, and is held only for moments."""
        with lock:
            segment, following = self._segment, self._next
            end, count, began = segment.end, len(segment.unsynced), time.monotonic()
        if count:
            segment.sync()
        if following is not None:
            self._files.sync_directory(self._folder)
        with lock:
            self.is_switching = True
            try:
                self._synced(segment, count, end, following, began)
            finally:
                self.is_switching = False
        if meter.attached:
            meter.synced(time.monotonic() - began)

    def _synced(self, segment: Segment, count: int, end: End, following: Segment | None, began: float) -> None:
        """So many writes are durable; go on to the next segment where it waited for that."""
        segment.forget(count)
        self.unsynced_since = began if segment.unsynced else None
        if following is not None and self._next is following and not segment.unsynced:
            following.end = segment.end._replace(size=following.end.size)
            # In this order: interrupted in between, the next segment is made once more.
            self._next = None
            self._segment = following
            segment.close()
        self.durable = (end, self._segment.number)

    def close(self) -> None:
        """Close what is open. Never raises; twice is once."""
        self._segment.close()
        if self._next is not None:
            self._next.close()
