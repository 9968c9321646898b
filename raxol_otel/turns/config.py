"""What a fold is told beside the records."""

from __future__ import annotations

from dataclasses import dataclass

from raxol_otel.turns.content import CONTENT_CHARS_MAX

__all__ = ["FoldConfig"]


@dataclass(frozen=True, slots=True)
class FoldConfig:
    """What the records do not say. `content_chars_max` bounds one content attribute, in characters."""

    agent_name: str | None = None
    provider_name: str | None = None
    model: str | None = None
    capture_content: bool = False
    content_chars_max: int = CONTENT_CHARS_MAX
