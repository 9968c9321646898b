"""What a transport of OTLP is: one request, one answer. What the answer means is the exporter's business."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

__all__ = ["Answer", "Transport"]


@dataclass(frozen=True, slots=True)
class Answer:
    """What the endpoint said to one request.

    `delivered`: taken, `rejected` spans of it refused for good. `retry`: not now, at the earliest after
    `wait_seconds`. `too_large`: less at once. `refused`: never.
    """

    kind: Literal["delivered", "retry", "too_large", "refused"]
    message: str = ""
    rejected: int = 0
    wait_seconds: float | None = None


class Transport(Protocol):
    """Sends one encoded request over one protocol."""

    def send(self, body: bytes, timeout_seconds: float) -> Answer:
        """Send the request. Raises `ExportError` only for what no request could ever change."""
        ...

    def close(self) -> None:
        """Give up the connection."""
        ...
