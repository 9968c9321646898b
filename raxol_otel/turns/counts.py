"""What a fold has seen."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from raxol_otel import catalogue as names
from raxol_otel.journal.tip import CONVERSATIONAL_TYPES

__all__ = ["Counts"]

_LOOP_TYPES: Final = CONVERSATIONAL_TYPES | names.QUIET_TYPES | {"item_delta"}


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

    def note_item(self, what: str) -> None:
        """An item made no span: it is the user's message, or what the item says it is was unknown."""
        if what == "user":
            self.user += 1
        else:
            self.unknown[what] += 1

    def note_unfolded(self, kind: Any, family: Any, record_type: Any) -> None:
        """A record did not fold."""
        self.unfolded += 1
        if kind == "event":
            if family == "loop":
                if type(record_type) is not str or record_type not in _LOOP_TYPES:
                    self.unknown["type"] += 1
            elif family != "meta":
                self.unknown["family"] += 1
        elif kind != "checkpoint":
            self.unknown["kind"] += 1
