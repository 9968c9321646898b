"""What keeps telemetry small and true whatever a journal says: names, amounts and damage, each bounded.

Metrics, log events and instruments share it, so that they agree.
"""

from __future__ import annotations

import os
import threading
import weakref
from typing import TYPE_CHECKING, Any, Final

from raxol_otel import catalogue as names
from raxol_otel.canonical import plain_repr
from raxol_otel.turns.recent import Recent

if TYPE_CHECKING:
    from collections.abc import Mapping

    from raxol_otel.catalogue_entries import Label

__all__ = ["AMOUNT_MAX", "DAMAGES_MAX", "Bounded", "DistinctDamage", "as_amount", "partition"]

# An amount at which a float no longer moves by 1: counted, it would be the last that ever shows.
AMOUNT_MAX: Final = 2.0**53
# How many distinct damages are remembered, to count each once; beyond it the oldest is forgotten.
DAMAGES_MAX: Final = 16_384
_PLACE: Final = ("dir", "segment", "last_offset", "cause")
_PLAIN: Final = frozenset({str, int, type(None)})


class Bounded:
    """Which names a label may say: the first so many that come, then `other`."""

    def __init__(self, label: Label) -> None:
        self._names = set(label.values)
        self._limit = len(label.values) + label.limit
        self._lock = threading.Lock()

    def __call__(self, name: str) -> str:
        """The name, or `other`."""
        if name in self._names:
            return name
        with self._lock:
            if len(self._names) < self._limit:
                self._names.add(name)
        return name if name in self._names else names.OVERFLOW


class DistinctDamage:
    """Tells damage that is new from damage that was met before. A forked child has met none."""

    def __init__(self) -> None:
        self.forget()
        _everyone.add(self)

    def forget(self) -> None:
        """Start anew, with a lock that nobody holds."""
        self._lock = threading.Lock()
        self._known: Recent[int] = Recent(DAMAGES_MAX)

    def is_new(self, metadata: Mapping[str, Any]) -> bool:
        """Whether a signal's damage (journal, segment, place, cause) comes for the first time."""
        # Its hash stands for it: 64 bits under a key of this process, and no path is kept.
        damage = hash(tuple(map(_hashable, map(metadata.get, _PLACE))))
        with self._lock:
            is_new = damage not in self._known
            self._known.add(damage)
        return is_new


def _hashable(value: Any) -> object:
    return value if type(value) in _PLAIN else plain_repr(value)


def as_amount(value: Any) -> int | None:
    """An amount that can be counted; else unknown."""
    return value if type(value) is int and 0 <= value < AMOUNT_MAX else None


def partition(total: Any, parts: Mapping[str, Any]) -> tuple[dict[str, int], int | None]:
    """The known parts of a total, which they never exceed where it is known, and what is left of it."""
    left = as_amount(total)
    known: dict[str, int] = {}
    for part, said in parts.items():
        amount = as_amount(said)
        if amount is not None:
            if left is not None:
                amount = min(amount, left)
                left -= amount
            known[part] = amount
    return known, left


_everyone: Final[weakref.WeakSet[DistinctDamage]] = weakref.WeakSet()


def _in_child() -> None:
    for damages in list(_everyone):
        damages.forget()


os.register_at_fork(after_in_child=_in_child)
