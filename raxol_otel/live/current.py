"""The open turn made current, so that the user's own spans nest in it."""

from __future__ import annotations

import os
import weakref
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import context as api_context
from opentelemetry.trace import INVALID_SPAN, set_span_in_context

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    from opentelemetry.context import Context
    from opentelemetry.trace import Span

    from raxol_otel.journal import Journal
    from raxol_otel.live.following import JournalTap

__all__ = ["flush", "forget", "outside", "remember", "use_turn"]

# By journal: the context in which `use_turn` was entered. A turn is part of that, not of the turn before it.
_OUTSIDE: Final = api_context.create_key("raxol-otel-outside")

_taps: Final[weakref.WeakValueDictionary[str, JournalTap]] = weakref.WeakValueDictionary()


@contextmanager
def use_turn(journal: Journal, *, branch: str | None = None) -> Generator[Span]:
    """Make the journal's open turn the current span; where several are open, the one that began last, of that branch.

    Gives the turn's span, for attributes and events of the user's own; the turn's end ends it. Where no turn is open,
    or nothing is instrumented, nothing changes, and the span given is an invalid one. What is raised inside passes
    through and leaves no mark on the turn.
    """
    key = str(journal.path)
    tap = _taps.get(key)
    span = None if tap is None else tap.current(branch)
    if span is None or not span.get_span_context().is_valid:
        yield INVALID_SPAN
        return
    here = api_context.get_current()
    known: Any = api_context.get_value(_OUTSIDE, here) or {}
    inside = api_context.set_value(_OUTSIDE, {**known, key: outside(key, here)}, set_span_in_context(span, here))
    token = api_context.attach(inside)
    try:
        yield span
    finally:
        api_context.detach(token)


def outside(key: str, context: Context) -> Context:
    """The context in which the journal's next turn begins."""
    known: Any = context.get(_OUTSIDE)
    return context if known is None else _as_mapping(known).get(key, context)


def flush() -> None:
    """Tell of what waits, of every journal that is followed."""
    for tap in list(_taps.values()):
        tap.flush()


def remember(tap: JournalTap) -> None:
    """Have `use_turn` find it."""
    _taps[tap.key] = tap


def forget(tap: JournalTap) -> None:
    """Have `use_turn` find it no more."""
    if _taps.get(tap.key) is tap:
        del _taps[tap.key]


def _as_mapping(known: Mapping[str, Context]) -> Mapping[str, Context]:
    return known


# The turns that are open at a fork are the parent's.
os.register_at_fork(after_in_child=_taps.clear)
