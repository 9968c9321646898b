"""A set that forgets its oldest members: what is remembered of a long journal stays bounded."""

from __future__ import annotations

from typing import Generic, TypeVar

__all__ = ["Recent"]

_Member = TypeVar("_Member")


class Recent(Generic[_Member]):
    """At most `limit` members; adding one more forgets the oldest."""

    __slots__ = ("_limit", "_members")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._members: dict[_Member, None] = {}

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def add(self, member: _Member) -> None:
        """Remember a member as the newest."""
        self._members.pop(member, None)
        self._members[member] = None
        if len(self._members) > self._limit:
            del self._members[next(iter(self._members))]

    def discard(self, member: _Member) -> None:
        """Forget a member."""
        self._members.pop(member, None)
