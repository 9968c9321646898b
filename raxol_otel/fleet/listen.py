"""Where the server listens: `HOST:PORT`, `[::1]:PORT`, `:PORT`."""

from __future__ import annotations

import errno
import ipaddress
import os
import re
import socket
from dataclasses import dataclass
from typing import Final

from raxol_otel.errors import UsageError

__all__ = ["DEFAULT_LISTEN", "Address", "bind", "parse_listen"]

DEFAULT_LISTEN: Final = "127.0.0.1:9464"
_BACKLOG: Final = 512
_PORT_MAX: Final = 65535
_LISTEN: Final = re.compile(r"(?:\[([0-9A-Fa-f:.]+(?:%[\w.-]+)?)\]|([A-Za-z0-9._-]*)):([0-9]{1,5})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Address:
    """A host (empty for every address of the machine) and a port (0 for any that is free)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach it."""
        try:
            return ipaddress.ip_address(self.host.partition("%")[0]).is_loopback
        except ValueError:
            return self.host == "localhost"


def parse_listen(text: str) -> Address:
    """Read what `--listen` says. Raises `UsageError`."""
    match = _LISTEN.fullmatch(text)
    if match is None or int(match[3]) > _PORT_MAX:
        raise UsageError(
            f"{text!r} is no address to listen on",
            f"HOST:PORT, [::1]:PORT or :PORT (every address), such as {DEFAULT_LISTEN}",
        )
    if match[1] is not None:
        try:
            ipaddress.IPv6Address(match[1])
        except ValueError:
            raise UsageError(f"{text!r}: {match[1]!r} is no IPv6 address", "such as [::1]:9464") from None
    return Address(match[1] if match[1] is not None else match[2], int(match[3]))


def bind(address: Address) -> socket.socket:
    """A socket that listens there. Raises `UsageError` with the address and what is in the way."""
    listening = _bound(address)
    # Accepted connections inherit it; asyncio sets it only where a protocol was named, and an answer is two writes.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return listening


def _bound(address: Address) -> socket.socket:
    try:
        if not address.host:
            return _everywhere(address.port)
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE | socket.AI_NUMERICSERV
        )
    except OSError as error:
        raise _refused(address, error) from None
    # Of a name with several addresses one is taken, IPv4 first, as Prometheus' exporters do.
    family, _, _, _, where = min(found, key=lambda one: one[0] != socket.AF_INET)
    try:
        return socket.create_server(where, family=family, backlog=_BACKLOG)
    except OSError as error:
        raise _refused(address, error) from None


def _everywhere(port: int) -> socket.socket:
    """Every address, of both kinds where the machine has both."""
    if socket.has_dualstack_ipv6():
        try:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_BACKLOG)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise
    return socket.create_server(("", port), backlog=_BACKLOG)


def _refused(address: Address, error: OSError) -> UsageError:
    if isinstance(error, socket.gaierror):
        return UsageError(f"cannot listen on {address}: {error.strerror}", "name an address of this machine")
    hints = {
        errno.EADDRINUSE: f"another process listens there (ss -ltnp 'sport = :{address.port}'); stop it, or take "
        "another port with --listen",
        errno.EADDRNOTAVAIL: f"{address.host} is no address of this machine (ip address)",
        errno.EACCES: "ports below 1024 need CAP_NET_BIND_SERVICE; take a higher one with --listen",
    }
    reason = os.strerror(error.errno).lower() if error.errno else str(error)
    return UsageError(
        f"cannot listen on {address}: {reason}", hints.get(error.errno or 0, f"--listen {DEFAULT_LISTEN}")
    )
