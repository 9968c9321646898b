"""A whole session at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel.turns.fold import TurnFold

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from raxol_otel.turns.config import FoldConfig
    from raxol_otel.turns.span import Span

__all__ = ["fold"]


def fold(
    records: Iterable[Mapping[str, Any]],
    session_id: str,
    *,
    created_at: Any = None,
    config: FoldConfig | None = None,
) -> Iterator[Span]:
    """The finished spans of a session's records; turns still open at the end are closed.

    `session_id` is the directory's name, for records that carry none.
    """
    state = TurnFold(session_id, created_at=created_at, config=config)
    for record in records:
        yield from state.feed(record)
    yield from state.close()
