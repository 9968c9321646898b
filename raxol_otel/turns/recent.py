"""A set that forgets its oldest members: what is remembered of a long journal stays bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Recent"]

_Member = TypeVar("_Member")


class Recent(Generic[_Member]):
    """At most `limit` members; adding one more forgets the oldest."""

    __slots__ = ("_limit", "_members")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # A plain dictionary is slow to find its oldest key once many before it are gone.
        self._members: OrderedDict[_Member, None] = OrderedDict()

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def add(self, member: _Member) -> None:
        """Remember a member as the newest."""
        self._members.pop(member, None)
        self._members[member] = None
        if len(self._members) > self._limit:
            self._members.popitem(last=False)

    def discard(self, member: _Member) -> None:
        """Forget a member."""
        self._members.pop(member, None)
