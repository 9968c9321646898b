"""One module in the place of another, for a while, for all who have it or something of it."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from types import FunctionType, ModuleType
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

__all__ = ["swapped_in"]

_ABSENT: Final = object()


@contextmanager
def swapped_in(name: str, other: ModuleType) -> Generator[None]:
    """While it is entered, `other` is the module of this name, and what is in it is what others have of it."""
    real = sys.modules[name]
    before = dict(sys.modules)
    changed = _replace(real, other)
    sys.modules[name] = other
    try:
        yield
    finally:
        sys.modules[name] = real
        _forget_new(before, name.partition(".")[0])
        # Whoever came meanwhile has got hold of the other; first they, then what was noted.
        _replace(other, real)
        for names, key, value in changed:
            names[key] = value


def _replace(old: ModuleType, new: ModuleType) -> list[tuple[dict[str, Any], str, object]]:
    """Put what is in `new` wherever a module has what is in `old`; what stood there before."""
    mine, others = vars(old), vars(new)
    by_identity: dict[int, object] = {id(old): new}
    for key, value in mine.items():
        if isinstance(value, FunctionType | type) and value.__module__ == old.__name__ and key in others:
            by_identity[id(value)] = others[key]
    changed: list[tuple[dict[str, Any], str, object]] = []
    for names in _namespaces(old, new):
        for key, value in list(names.items()):
            put: object = by_identity.get(id(value), _ABSENT)
            if put is _ABSENT and not key.startswith("_") and mine.get(key, _ABSENT) is value:
                put = others.get(key, value)  # a constant, imported under its name
            if put is not _ABSENT and put is not value:
                changed.append((names, key, value))
                names[key] = put
    return changed


def _namespaces(*apart: ModuleType) -> Iterator[dict[str, Any]]:
    """The names of all loaded modules but some."""
    modules: list[object] = list(sys.modules.values())  # anything may be put there
    for module in modules:
        if isinstance(module, ModuleType) and module not in apart:
            yield vars(module)


def _forget_new(before: dict[str, ModuleType], package: str) -> None:
    """Forget the package's modules that were not loaded before: they were built on the other."""
    for name in [name for name in sys.modules if name not in before]:
        if name.partition(".")[0] == package:
            del sys.modules[name]
            parent, _, last = name.rpartition(".")
            vars(sys.modules.get(parent, ModuleType(parent))).pop(last, None)
