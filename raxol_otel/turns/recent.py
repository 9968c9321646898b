"""A set that forgets its oldest members: what is remembered of a long journal stays bounded."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["Recent"]

_Member = TypeVar("_Member")


class Recent(Generic[_Member]):
    """At most `limit` members; adding one more forgets the oldest."""

    __slots__ = ("_members", "limit")

    def __init__(self, limit: int) -> None:
        self.limit = limit
        # A plain dictionary is slow to find its oldest key once many before it are gone.
        self._members: OrderedDict[_Member, None] = OrderedDict()

    def __iter__(self) -> Iterator[_Member]:
        """The members, oldest first."""
        return iter(self._members)

    def __contains__(self, member: object) -> bool:
        return member in self._members

    def add(self, member: _Member) -> None:
        """Remember a member as the newest."""
        members = self._members
        if member in members:
            members.move_to_end(member)
            return
        members[member] = None
        if len(members) > self.limit:
            members.popitem(last=False)

    def discard(self, member: _Member) -> None:
        """Forget a member."""
        self._members.pop(member, None)
