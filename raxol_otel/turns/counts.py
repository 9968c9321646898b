"""What a fold has seen."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Counts"]


@dataclass(slots=True)
class Counts:
    """What was seen, and what of it made no span.

    `records` were given; `turns` were opened and wanted, observed ones included. `unfolded`: another kind or family,
    an ephemeral tier, no turn id, a type that makes no span. `late`: a record of a closed turn. `duplicate`: an offset
    that already made a span. `user`: messages of the user. `unknown`: by what was unknown.
    """

    records: int = 0
    turns: int = 0
    unfolded: int = 0
    late: int = 0
    duplicate: int = 0
    user: int = 0
    unknown: dict[str, int] = field(default_factory=lambda: {"kind": 0, "family": 0, "type": 0, "item_type": 0})
