"""The conversational tip: where a resumed conversation lands.

A closed list. A new type, kind or family is never a tip unless it is added here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raxol_otel.canonical import text_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["CONVERSATIONAL_TYPES", "branch_of", "is_conversational", "kind_of", "tip"]

CONVERSATIONAL_TYPES: Final = frozenset(
    {
        "approval_requested",
        "error",
        "item_completed",
        "item_started",
        "turn_canceled",
        "turn_completed",
        "turn_started",
    }
)


def kind_of(record: Mapping[str, Any]) -> str:
    """The record's kind as text, as the reference turns a term into one; absent reads as `event`."""
    return text_of(record.get("kind", "event"))


def branch_of(record: Mapping[str, Any]) -> str:
    """The record's branch; absent reads as `main`."""
    return text_of(record.get("branch_id", "main"))


def is_conversational(record: Mapping[str, Any]) -> bool:
    """Whether the record may be a tip: kind `event`, family `loop`, a type of the closed list."""
    kind = record.get("type")
    return (
        type(kind) is str
        and kind in CONVERSATIONAL_TYPES
        and record.get("family") == "loop"
        and kind_of(record) == "event"
    )


def tip(records: Iterable[Mapping[str, Any]], branch: str = "main") -> int | None:
    """The highest offset of a conversational record on the branch, in whatever order the records come; else None."""
    highest: int | None = None
    for record in records:
        if is_conversational(record) and branch_of(record) == branch:
            offset = record.get("id")
            if type(offset) is int and (highest is None or offset > highest):
                highest = offset
    return highest
