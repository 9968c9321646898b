"""Which records need no second look."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, cast

from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raxol_otel.turns.turn import Turn

__all__ = ["ITEM_RECORDS", "is_plain_item"]

ITEM_RECORDS: Final = ("item_started", "item_completed")
_INT64: Final = 2**63
_MICROSECONDS_MIN: Final = values.MICROSECONDS_MIN
_MICROSECONDS_MAX: Final = values.MICROSECONDS_MAX


def is_plain_item(record: Mapping[str, Any], turn: Turn) -> bool:
    """Whether an item's record needs no second look: it belongs to this turn of the main branch and has nothing odd."""
    try:
        stored, offset = record["ts"], record["id"]
        return (
            record["turn_id"] == turn.turn_id
            and record["type"] in ITEM_RECORDS
            and record["family"] == "loop"
            and record["tier"] == "durable"
            and type(stored) is int
            and _MICROSECONDS_MIN <= stored < _MICROSECONDS_MAX
            and type(offset) is int
            and turn.last_offset < offset < _INT64
            and type(record["payload"]) is dict
            and ("provenance" not in record or _is_untainted(record["provenance"]))
            and "branch_id" not in record
            and "kind" not in record
        )
    except KeyError:
        return False


def _is_untainted(provenance: Any) -> bool:
    return type(provenance) is dict and cast("dict[str, Any]", provenance).get("trust") != "tainted"
