"""What a writer has open: the segment it appends to, and older ones until they are durable.

Nothing here locks. The writer calls `sync` from one thread at a time, and everything else under its lock.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

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
    """The open segments of a journal, each method raising `OSError`. `cap` is in bytes, `folder` the segments' own.

    `durable` is what a sync covered last, and the number of the segment that was appended to then: what HEAD may say.
    """

    def __init__(self, files: Files, folder: Path, segment: Segment, *, cap: int, mode: int) -> None:
        self._files = files
        self._folder = folder
        self._cap = cap
        self._mode = mode
        # What is not all durable, and last the segment that is appended to.
        self._segments = [segment]
        self._rotations: int = 0
        self._rotations_synced: int = 0
        self._check_at = 0.0
        self.durable: tuple[End, int] = (segment.end, segment.number)

    @property
    def end(self) -> End:
        """Where the journal ends."""
        return self._segments[-1].end

    @property
    def unsynced_bytes(self) -> int:
        """How much waits for a sync."""
        return sum(segment.unsynced_bytes for segment in self._segments)

    def append(self, data: bytes, offset: int, tip_hash: str | None) -> bool:
        """Write lines, the last one's offset and hash given; whether the segment is full now."""
        segment = self._segments[-1]
        if segment.number >= SEGMENT_NUMBER_MAX and segment.end.size >= self._cap:
            message = f"segment {SEGMENT_NUMBER_MAX} is full, and there is no name for another"
            raise OSError(0, message)
        now = time.monotonic()
        if now >= self._check_at:
            segment.check()
            self._check_at = now + CHECK_SECONDS
        segment.append(data, offset, tip_hash)
        return segment.end.size >= self._cap and segment.number < SEGMENT_NUMBER_MAX

    def append_within(self, data: bytes, offset: int, tip_hash: str | None) -> bool:
        """As `append`, but only what leaves room in the segment; whether it did."""
        if self.end.size + len(data) >= self._cap:
            return False
        self.append(data, offset, tip_hash)
        return True

    def rotate(self) -> None:
        """Open the next segment; the one before it is closed when it is durable."""
        segment = self._segments[-1]
        following = open_segment(
            self._files, self._folder, segment.number + 1, segment.end, mode=self._mode, is_new=True
        )
        self._rotations += 1
        self._segments.append(following)

    def sync(self, lock: AbstractContextManager[object]) -> None:
        """Make durable all that is written when it begins; `lock` is the writer's, and is held only for moments."""
        with lock:
            current = self._segments[-1]
            goal = (current.end, current.number)
            pending = [(segment, len(segment.unsynced)) for segment in self._segments]
            rotations = self._rotations
        for segment, count in pending:
            if count:
                segment.sync(count)
        if rotations != self._rotations_synced:
            self._files.sync_directory(self._folder)
        with lock:
            self.durable, self._rotations_synced = goal, rotations
            for segment, count in pending:
                segment.forget(count)
                if segment is not self._segments[-1] and not segment.unsynced:
                    self._segments.remove(segment)
                    segment.close()

    def close(self) -> None:
        """Close what is open. Never raises; twice is once."""
        for segment in self._segments:
            segment.close()
