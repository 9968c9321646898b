"""What `open_journal` was told, for those who do it."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Description", "WriterOptions"]


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """How a writer works; see `open_journal`. `segment_cap` in bytes; the modes are those of what is made new."""

    segment_cap: int
    immediate_sync_types: frozenset[str]
    sync_ceiling_ms: float
    schema_version: str
    file_mode: int
    directory_mode: int


@dataclass(frozen=True, slots=True)
class Description:
    """What a new journal is to be, and what its meta.json says."""

    chain: bool = False
    private: bool = False
    cwd: str | None = None
    git_branch: str | None = None
    title: str | None = None
