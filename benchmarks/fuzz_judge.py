"""How a check of the fuzzer judges: values compared exactly, errors that may come told from those that may not."""

from __future__ import annotations

import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeGuard, TypeVar

from raxol_otel import signals
from tests import naive_reader

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from pathlib import Path

__all__ = ["Photo", "attempt", "heard", "is_clean", "is_dict", "is_list", "naive", "photograph", "same"]

_Result = TypeVar("_Result")
_Error = TypeVar("_Error", bound=Exception)
# Every file and folder: when it was last changed, and its bytes.
Photo = dict[str, tuple[int, bytes]]


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, and of equal types, all the way down."""
    try:
        if repr(one) == repr(other):
            return True
    except RecursionError:
        pass
    return naive_reader.exactly(one) == naive_reader.exactly(other)


def naive(text: bytes) -> tuple[bool, Any]:
    """Whether the naive reader takes a text, and its value."""
    try:
        return True, naive_reader.parse(text)
    except naive_reader.Refused:
        return False, None


def is_dict(item: object) -> TypeGuard[dict[str, Any]]:
    """Whether a value is an object."""
    return type(item) is dict


def is_list(item: object) -> TypeGuard[list[Any]]:
    """Whether a value is an array."""
    return type(item) is list


def attempt(what: Callable[[], _Result], *allowed: type[_Error]) -> tuple[_Result | None, _Error | None]:
    """What a call gives, or the error, if it is one that may come; any other passes through and is a finding."""
    try:
        return what(), None
    except allowed as error:
        return None, error


def is_clean(error: Exception, size: int = 300) -> bool:
    """Whether an error's text is short and can be written anywhere."""
    return len(str(error).encode()) < size


@contextmanager
def heard() -> Generator[list[signals.Signal]]:
    """The signals that are published inside."""
    found: list[signals.Signal] = []
    signals.attach("benchmarks.fuzz", found.append)
    try:
        yield found
    finally:
        signals.detach("benchmarks.fuzz")


def photograph(session: Path) -> Photo:
    """The session's directory as it is now."""
    found: Photo = {}
    for path in (session, *session.rglob("*")):
        content = path.read_bytes() if path.is_file() else b""
        found[os.fspath(path.relative_to(session))] = (path.stat().st_mtime_ns, content)
    return found
