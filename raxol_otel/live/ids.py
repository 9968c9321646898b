"""Ids that are chosen, through the SDK's own tracer: a generator in front of its own that knows what comes next."""

from __future__ import annotations

from contextvars import ContextVar
from typing import Any, Final

__all__ = ["ChosenIds", "choose"]

# What the next span of this thread or task is to be called.
_next: Final[ContextVar[tuple[int, int] | None]] = ContextVar("next_ids", default=None)


def choose(ids: tuple[int, int] | None) -> None:
    """The (trace id, span id) of the next span started here; None: whatever the generator gives."""
    _next.set(ids)


class ChosenIds:
    """An IdGenerator of the SDK in front of another; not a subclass, as only the API may be imported."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner

    def generate_trace_id(self) -> int:
        """The chosen trace id, else the other's."""
        chosen = _next.get()
        return int(self.inner.generate_trace_id()) if chosen is None else chosen[0]

    def generate_span_id(self) -> int:
        """The chosen span id, else the other's. It is the last to be asked for, so what was chosen is used up."""
        chosen = _next.get()
        if chosen is None:
            return int(self.inner.generate_span_id())
        _next.set(None)
        return chosen[1]

    def is_trace_id_random(self) -> bool:
        """A chosen trace id is worked out, not random, though as evenly spread."""
        ask = getattr(self.inner, "is_trace_id_random", None)
        return _next.get() is None and ask is not None and bool(ask())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)
