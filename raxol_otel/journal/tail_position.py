"""A tail's position as plain data, that any JSON library keeps, and back.

An offset may have a thousand digits: it is kept as text.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final, TypeGuard, TypeVar

from raxol_otel.journal.damage import Damage
from raxol_otel.journal.reader import Walk

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    Anchor = tuple[int | None, str | None]

__all__ = [
    "checked",
    "restored_anchor",
    "restored_damage",
    "restored_walk",
    "saved_anchor",
    "saved_damage",
    "saved_walk",
]

_INTEGER_MAX: Final = 2**63 - 1

_T = TypeVar("_T")


def checked(kind: type[_T], value: Any) -> _T:
    """The value, if it is of exactly that type and no negative number. Raises `ValueError`."""
    if type(value) is not kind:
        raise ValueError(f"not {kind.__name__}")
    if isinstance(value, int) and value < 0:
        raise ValueError("a negative number")
    return value


def as_list(value: Any) -> list[Any]:
    """The value, if it is a list. Raises `ValueError`."""
    if not _is_list(value):
        raise ValueError("not a list")
    return value


def _is_list(value: Any) -> TypeGuard[list[Any]]:
    return type(value) is list


def saved_walk(walk: Walk) -> dict[str, Any]:
    """Where a walk stands."""
    return {
        "chained": walk.chained,
        "last_id": _text(walk.last_id),
        "last_hash": walk.last_hash,
        "head": saved_anchor((walk.head_offset, walk.head_hash)),
        "created_at": _plain(walk.meta.get("created_at")),
        "records": walk.records,
    }


def restored_walk(directory: Path, saved: Mapping[str, Any]) -> Walk:
    """A quiet walk that stands there. Raises `ValueError`, `KeyError` and `TypeError` for what is none of ours."""
    walk = Walk(directory, quiet=True, chained=checked(bool, saved["chained"]))
    walk.last_id, walk.last_hash = _integer(saved["last_id"]), checked(str, saved["last_hash"])
    walk.head_offset, walk.head_hash = restored_anchor(saved["head"])
    walk.meta = {"created_at": _plain(saved["created_at"])}
    walk.records = checked(int, saved["records"])
    return walk


def saved_anchor(anchor: Anchor) -> list[str | None]:
    """What HEAD said."""
    return [_text(anchor[0]), anchor[1]]


def restored_anchor(saved: Any) -> Anchor:
    """What HEAD said. Raises as `restored_walk` does."""
    offset, tip_hash = as_list(saved)
    return _integer(offset), None if tip_hash is None else checked(str, tip_hash)


def saved_damage(damage: Damage | None) -> dict[str, Any] | None:
    """Where a journal is damaged."""
    if damage is None:
        return None
    return {**asdict(damage), "segment": damage.place, "last_offset": _text(damage.last_offset)}


def restored_damage(directory: Path, saved: Mapping[str, Any] | None) -> Damage | None:
    """Where a journal is damaged. Raises as `restored_walk` does."""
    if saved is None:
        return None
    return Damage(
        cause=checked(str, saved["cause"]),
        segment=directory / checked(str, saved["segment"]),
        line=checked(int, saved["line"]),
        byte=checked(int, saved["byte"]),
        last_offset=int(checked(str, saved["last_offset"])),
        detail=checked(str, saved["detail"]),
    )


def _plain(created_at: Any) -> str | int | float | None:
    """What may be a time, of all that a meta.json can hold."""
    if type(created_at) is int and abs(created_at) > _INTEGER_MAX:
        return None
    return created_at if type(created_at) in {str, int, float} else None


def _text(offset: int | None) -> str | None:
    return None if offset is None else str(offset)


def _integer(text: Any) -> int | None:
    return None if text is None else int(checked(str, text))
