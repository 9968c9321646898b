"""What span events of a turn say, from their records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from raxol_otel import catalogue as names
from raxol_otel.turns import values

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raxol_otel.turns.span import Attributes

__all__ = ["of_approval", "of_checkpoint"]


def of_approval(payload: Mapping[str, Any]) -> Attributes:
    """Of an approval's request."""
    attributes: Attributes = {}
    request_id = payload.get("request_id")
    if request_id is not None:
        attributes[names.APPROVAL_REQUEST_ID] = values.clean(values.text_of(request_id))
    if "risk" in payload:
        attributes[names.APPROVAL_RISK] = values.member(payload["risk"], names.APPROVAL_RISKS)
    return attributes


def of_checkpoint(record: Mapping[str, Any]) -> Attributes:
    """Of a checkpoint."""
    attributes: Attributes = {}
    tip_offset = record.get("tip_offset")
    if type(tip_offset) is int:
        attributes[names.CHECKPOINT_TIP] = values.integer(tip_offset)
    attributes[names.CHECKPOINT_REASON] = values.member(record.get("reason"), names.CHECKPOINT_REASONS)
    return attributes
