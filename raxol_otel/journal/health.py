"""One session's health, for people and for machines: what `verify` at the command line tells."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from raxol_otel.errors import JournalDamaged, JournalUnreadable
from raxol_otel.journal import layout
from raxol_otel.journal.lock import Writer, probe
from raxol_otel.journal.reader import Walk, read_batches

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.journal.damage import Damage

__all__ = ["Health", "State", "inspect", "is_truncated", "state_of"]

State = Literal["healthy", "torn", "truncated", "damaged", "unreadable"]


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of one session directory.

    `torn`: its last line is unterminated, as after a crash: healthy. `truncated`: HEAD names more records than there
    are. `size_bytes` and `segments` are of the segment files; `records` of those before any damage.
    """

    directory: Path
    state: State
    chained: bool
    records: int
    last_offset: int
    head_offset: int | None
    segments: int
    size_bytes: int
    writer: Writer
    damage: Damage | None = None
    error: str | None = None
    # What this health cannot know, for want of a file beside the segments.
    warning: str | None = None

    @property
    def is_intact(self) -> bool:
        """Whether the record is whole: healthy, or only torn."""
        return self.state in {"healthy", "torn"}


def inspect(directory: Path, *, is_foreign: bool = False) -> Health:
    """Read the whole journal and tell its health. Never raises for what a journal holds or denies.

    `is_foreign`: see `lock.probe`.
    """
    writer = probe(directory, is_foreign=is_foreign)
    walk = Walk(directory)
    error: str | None = None
    try:
        for _ in read_batches(walk):
            pass
    except JournalDamaged:
        pass
    except JournalUnreadable as unreadable:
        error = str(unreadable)
    segments, size_bytes = measure(directory)
    return Health(
        directory=directory,
        state=state_of(walk, error),
        chained=walk.chained,
        records=walk.records,
        last_offset=walk.last_id or 0,
        head_offset=walk.head_offset,
        segments=segments,
        size_bytes=size_bytes,
        writer=writer,
        damage=walk.damage,
        error=error,
        warning=_warning(walk) if error is None else None,
    )


def _warning(walk: Walk) -> str | None:
    if walk.is_sealed and not walk.chained:
        return "its records carry hashes, but no meta.json says so: they were not checked"
    if walk.records and walk.head_offset is None:
        there = os.path.lexists(walk.directory / layout.HEAD)
        return f"{'HEAD is unusable' if there else 'there is no HEAD'}: a lost tail would not show"
    return None


def state_of(walk: Walk, error: str | None = None) -> State:
    """The state that a finished walk has found."""
    if error is not None:
        return "unreadable"
    if walk.damage is not None:
        return "damaged"
    if is_truncated(walk):
        return "truncated"
    return "torn" if walk.torn is not None else "healthy"


def is_truncated(walk: Walk) -> bool:
    """Whether HEAD, read before the segments, names more records than there are (chained: that is damage)."""
    return walk.head_offset is not None and walk.head_offset > (walk.last_id or 0)


def measure(directory: Path) -> tuple[int, int]:
    """How many segments the journal has, and their size in bytes; what cannot be looked at counts as nothing."""
    try:
        paths = layout.segments(directory)
    except JournalUnreadable:
        return 0, 0
    size = 0
    for path in paths:
        try:
            size += path.stat().st_size
        except OSError:
            continue
    return len(paths), size
