"""Basic authentication against bcrypt hashes: beside the event loop, and each password once.

A name that is not known takes as long as a wrong password. What was right is remembered under a keyed hash, whose key
is this process's own and never leaves it; plain passwords are not kept. What was wrong is not remembered. So much work
is done at a time; who comes beyond is told to come again.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import hashlib
import secrets
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

import bcrypt

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["BasicAuth", "TooBusyError"]

REMEMBERED_MAX: Final = 256
# Each is some 50 ms of a core, or more, whatever the outcome.
WAITING_MAX: Final = 64
_THREADS: Final = 2
# What bcrypt looks at; later versions of the library refuse more instead of leaving it out.
_PASSWORD_BYTES_MAX: Final = 72
_HEADER_BYTES_MAX: Final = 4096


class TooBusyError(Exception):
    """More passwords wait to be checked than is allowed."""


class BasicAuth:
    """Checks `Authorization` headers against users and their hashes (at least one). For one event loop."""

    def __init__(self, users: Mapping[str, bytes]) -> None:
        self._users = dict(users)
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._checking: dict[bytes, asyncio.Future[bool]] = {}
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="raxol-bcrypt")
        # As costly as the costliest, and the hash of no password that anybody knows.
        cost = max(int(one[4:6]) for one in self._users.values())
        self._nobody = bcrypt.gensalt(cost) + b"." * 31

    async def allows(self, header: bytes) -> bool:
        """Whether the header names a user and the right password. Raises `TooBusyError`."""
        name, password = _credentials(header)
        digest = hashlib.blake2b(b"%d:%b%b" % (len(name), name, password), key=self._key).digest()
        if digest in self._right:
            self._right.move_to_end(digest)
            return True
        checking = self._checking.get(digest)
        if checking is None:
            if len(self._checking) >= WAITING_MAX:
                raise TooBusyError
            checking = asyncio.get_running_loop().run_in_executor(self._threads, self._check, name, password)
            self._checking[digest] = checking
            checking.add_done_callback(lambda done: self._checked(digest, done))
        # One client that goes away takes the answer from none of the others.
        return await asyncio.shield(checking)

    def close(self) -> None:
        """Start no more checks."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _checked(self, digest: bytes, done: asyncio.Future[bool]) -> None:
        self._checking.pop(digest, None)
        if not done.cancelled() and done.exception() is None and done.result():
            self._right[digest] = None
            if len(self._right) > REMEMBERED_MAX:
                self._right.popitem(last=False)

    def _check(self, name: bytes, password: bytes) -> bool:
        known = self._users.get(name.decode("utf-8", "replace"))
        try:
            is_right = bcrypt.checkpw(password[:_PASSWORD_BYTES_MAX], known or self._nobody)
        except ValueError:  # a NUL in the password, which some versions refuse
            return False
        return is_right and known is not None


def _credentials(header: bytes) -> tuple[bytes, bytes]:
    """Name and password; what is no such header names nobody."""
    scheme, _, value = header[:_HEADER_BYTES_MAX].strip().partition(b" ")
    if scheme.lower() == b"basic":
        try:
            name, colon, password = base64.b64decode(value.strip(), validate=True).partition(b":")
        except binascii.Error:
            return b"", b""
        if colon:
            return name, password
    return b"", b""
