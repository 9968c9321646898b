"""What is answered to whom: an ASGI application over a board. It reads the newest view, and no journal."""

from __future__ import annotations

import gzip
import logging
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.fleet.auth import BasicAuth, TooBusyError

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable, Mapping

    from raxol_otel.fleet.board import Board, View

    Headers = list[tuple[bytes, bytes]]
    Send = Callable[[dict[str, Any]], Awaitable[None]]

__all__ = ["OPENMETRICS_TYPE", "TEXT_TYPE", "App", "accepts_gzip", "wants_openmetrics"]

TEXT_TYPE: Final = b"text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS_TYPE: Final = b"application/openmetrics-text; version=1.0.0; charset=utf-8"
_PLAIN_TYPE: Final = b"text/plain; charset=utf-8"
_HTML_TYPE: Final = b"text/html; charset=utf-8"
_POLICY: Final = (
    b"default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_SECURITY: Final = {
    b"cache-control": b"no-store",
    b"content-security-policy": _POLICY,
    b"cross-origin-resource-policy": b"same-origin",
    b"referrer-policy": b"no-referrer",
    b"x-content-type-options": b"nosniff",
    b"x-frame-options": b"DENY",
}
_METHODS: Final = frozenset({"GET", "HEAD"})
# Fast, and half a percent larger than the default would be.
_GZIP_LEVEL: Final = 4
# What is as small goes into one packet anyway.
_GZIP_BYTES_MIN: Final = 1024
_HEADER_PARTS_MAX: Final = 64

_log = logging.getLogger("raxol_otel.fleet")


@dataclass(frozen=True, slots=True)
class _Answer:
    status: int
    body: bytes
    kind: bytes = _PLAIN_TYPE
    more: Headers = field(default_factory=list[tuple[bytes, bytes]])


class App:
    """The application. `heartbeat` gives the engine's last sign of life in seconds of `time.monotonic`."""

    def __init__(
        self,
        board: Board,
        *,
        users: Mapping[str, bytes],
        headers: Mapping[str, str],
        heartbeat: Callable[[], float],
        heartbeat_seconds_max: float,
    ) -> None:
        self._board = board
        self._auth = BasicAuth(users) if users else None
        own = _SECURITY | {name.lower().encode(): value.encode() for name, value in headers.items()}
        self._headers: Headers = list(own.items())
        self._heartbeat = heartbeat
        self._heartbeat_seconds_max = heartbeat_seconds_max
        self._paths: dict[str, Callable[[Mapping[bytes, bytes]], _Answer]] = {
            "/": self._page,
            "/metrics": self._metrics,
            "/healthz": self._healthz,
            "/readyz": self._readyz,
        }
        self._zipped_of: View | None = None
        self._zipped: dict[bytes, bytes] = {}

    async def __call__(self, scope: Any, _receive: object, send: Send) -> None:
        """Answer one request."""
        try:
            answer = await self._answer(scope)
        except Exception as error:  # noqa: BLE001 - whatever it was, the others are to be answered
            _log.error("cannot answer a request: %s: %s", type(error).__name__, error)
            answer = _Answer(500, b"internal error\n")
        length = (b"content-length", b"%d" % len(answer.body))
        headers = [(b"content-type", answer.kind), length, *self._headers, *answer.more]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        # To HEAD the server sends the headers only.
        await send({"type": "http.response.body", "body": answer.body})

    def close(self) -> None:
        """Let go of threads."""
        if self._auth is not None:
            self._auth.close()

    async def _answer(self, scope: Any) -> _Answer:
        headers = _joined(scope["headers"])
        if self._auth is not None:
            try:
                is_allowed = await self._auth.allows(headers.get(b"authorization", b""))
            except TooBusyError:
                return _Answer(503, b"too many passwords to check\n", more=[(b"retry-after", b"1")])
            if not is_allowed:
                challenge = (b"www-authenticate", b'Basic realm="raxol-otel", charset="UTF-8"')
                return _Answer(401, b"unauthorized\n", more=[challenge])
        handler = self._paths.get(scope["path"])
        if handler is None:
            return _Answer(404, b"not found; there are / /metrics /healthz /readyz\n")
        if scope["method"] not in _METHODS:
            return _Answer(405, b"only GET and HEAD\n", more=[(b"allow", b"GET, HEAD")])
        return handler(headers)

    def _metrics(self, headers: Mapping[bytes, bytes]) -> _Answer:
        view = self._board.view
        is_open = wants_openmetrics(headers.get(b"accept", b""))
        body = b"" if view is None else view.openmetrics if is_open else view.text
        vary = (b"vary", b"accept, accept-encoding")
        if view is None or not (body or view.is_ready):
            reason = view.reason if view else ""
            return _Answer(503, _line("no metrics yet", reason), more=[vary, (b"retry-after", b"1")])
        return self._maybe_zipped(view, body, OPENMETRICS_TYPE if is_open else TEXT_TYPE, headers, vary)

    def _page(self, headers: Mapping[bytes, bytes]) -> _Answer:
        view = self._board.view
        if view is None:
            return _Answer(503, b"nothing to show yet\n", more=[(b"retry-after", b"1")])
        return self._maybe_zipped(view, view.page, _HTML_TYPE, headers, (b"vary", b"accept-encoding"))

    def _healthz(self, _headers: Mapping[bytes, bytes]) -> _Answer:
        silent = time.monotonic() - self._heartbeat()
        if silent > self._heartbeat_seconds_max:
            return _Answer(503, b"no sign of life for %d seconds\n" % silent)
        return _Answer(200, b"ok\n")

    def _readyz(self, _headers: Mapping[bytes, bytes]) -> _Answer:
        view = self._board.view
        if view is None or not view.is_ready:
            return _Answer(503, _line("not ready", view.reason if view else "nothing was looked at yet"))
        return _Answer(200, b"ready\n")

    def _maybe_zipped(
        self, view: View, body: bytes, kind: bytes, headers: Mapping[bytes, bytes], vary: tuple[bytes, bytes]
    ) -> _Answer:
        """The body, compressed for those who take that; each body once a view."""
        if len(body) < _GZIP_BYTES_MIN or not accepts_gzip(headers.get(b"accept-encoding", b"")):
            return _Answer(200, body, kind, [vary])
        if self._zipped_of is not view:
            self._zipped_of, self._zipped = view, {}
        zipped = self._zipped.get(kind)
        if zipped is None:
            zipped = self._zipped[kind] = gzip.compress(body, _GZIP_LEVEL, mtime=0)
        return _Answer(200, zipped, kind, [vary, (b"content-encoding", b"gzip")])


def wants_openmetrics(accept: bytes) -> bool:
    """Whether `Accept` would rather have OpenMetrics 1.0.0, which must be named, than the text format."""
    best: tuple[float, bool] = (0.0, False)
    for kind, parameters, weight in _weighed(accept):
        is_open = kind == b"application/openmetrics-text" and parameters.get(b"version", b"1.0.0") == b"1.0.0"
        if (is_open or kind in {b"text/plain", b"text/*", b"*/*"}) and weight > best[0]:
            best = (weight, is_open)  # of equals the first
    return best[1]


def accepts_gzip(accept_encoding: bytes) -> bool:
    """Whether `Accept-Encoding` names gzip."""
    return any(weight > 0 and name == b"gzip" for name, _, weight in _weighed(accept_encoding))


def _weighed(header: bytes) -> Iterable[tuple[bytes, dict[bytes, bytes], float]]:
    """The alternatives of a header with their parameters and weights; a weight that is no number is none."""
    for part in header.split(b",", _HEADER_PARTS_MAX)[:_HEADER_PARTS_MAX]:
        name, *rest = part.split(b";")
        parameters = {key.strip().lower(): value.strip() for key, _, value in (one.partition(b"=") for one in rest)}
        try:
            weight = float(parameters.get(b"q", b"1"))
        except ValueError:
            weight = 0.0
        yield name.strip().lower(), parameters, weight if 0 <= weight <= 1 else 0.0


def _joined(headers: Headers) -> dict[bytes, bytes]:
    """The headers by their names; those that stand several times as one, as HTTP has it."""
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = joined[name] + b", " + value if name in joined else value
    return joined


def _line(what: str, reason: str) -> bytes:
    """One line of plain text, whatever stands in the reason."""
    letters = (letter if letter.isprintable() else "\ufffd" for letter in reason)
    return f"{what}: {''.join(letters)}\n".encode() if reason else f"{what}\n".encode()
