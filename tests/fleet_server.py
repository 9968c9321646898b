"""What the tests of the fleet's server share: a running server, requests to it, facts to show."""

from __future__ import annotations

import http.client
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import bcrypt

from raxol_otel.fleet.board import Board, View
from raxol_otel.fleet.facts import FleetFacts, SessionFacts
from raxol_otel.fleet.server import Server
from raxol_otel.fleet.web_config import load_web_config
from tests.otlp_receiver import Certificates, make_certificates

if TYPE_CHECKING:
    import ssl
    from collections.abc import Generator, Mapping
    from pathlib import Path

VIEW: Final = View(b"# text\n" * 400, b"# open\n# EOF\n" * 400, b"<p>page</p>\n" * 400, is_ready=True)
WAITING: Final = View(b"", b"", b"<p>waiting</p>\n", is_ready=False, reason="waiting for /srv/sessions")
SECONDS_MAX: Final = 20.0
# The least that bcrypt can do: a millisecond.
COST: Final = 4


class Got(NamedTuple):
    """An answer; `headers` by their lower-case names."""

    status: int
    headers: dict[str, str]
    body: bytes


@contextmanager
def serving(
    view: View | None = VIEW, *, listen: str = "127.0.0.1:0", web_config: Path | None = None, **options: Any
) -> Generator[tuple[Server, Board]]:
    """A server of this view, and its board."""
    board = Board()
    if view is not None:
        board.post(view)
    config = load_web_config(web_config) if web_config else None
    others = own_threads()
    server = Server(board, listen=listen, web_config=config, **options)
    server.start()
    try:
        yield server, board
    finally:
        assert server.stop(5.0)
        deadline = time.monotonic() + 5
        while (left := own_threads() - others) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert left == set()


def own_threads() -> set[threading.Thread]:
    """The threads of servers that run."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("raxol-")}


def get(
    server: Server,
    path: str = "/metrics",
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    tls: ssl.SSLContext | None = None,
) -> Got:
    """Ask for a path, on a connection of its own."""
    connection = (
        http.client.HTTPSConnection("localhost", server.port, timeout=SECONDS_MAX, context=tls)
        if tls
        else http.client.HTTPConnection("127.0.0.1", server.port, timeout=SECONDS_MAX)
    )
    try:
        connection.request(method, path, headers=dict(headers or {}))
        answer = connection.getresponse()
        return Got(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())
    finally:
        connection.close()


def hashed(password: str) -> str:
    """The bcrypt hash of a password, quick to check."""
    return bcrypt.hashpw(password.encode(), bcrypt.gensalt(COST)).decode()


def config_file(folder: Path, text: str) -> Path:
    """A web config of this text."""
    path = folder / "web.yml"
    path.write_text(text, encoding="utf-8")
    return path


def tls_config(folder: Path, more: str = "") -> tuple[Path, Certificates]:
    """A web config with TLS, whose certificates are named relative to it; and the certificates."""
    certificates = make_certificates(folder)
    text = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n"
    return config_file(folder, text + more), certificates


def session(name: str = "s1", **facts: Any) -> SessionFacts:
    """A session, damaged unless told otherwise."""
    own: dict[str, Any] = {"where": name, "state": "damaged", "cause": "spliced", "since": 1_790_000_000.0}
    own["place"] = "000002.jsonl line 7, byte 1234"
    return SessionFacts(name=name, **(own | facts))


def fleet(*troubles: SessionFacts, **facts: Any) -> FleetFacts:
    """A fleet that is ready, with these troubles."""
    own: dict[str, Any] = {
        "sessions_dir": "/srv/sessions",
        "is_ready": True,
        "looked_at": 1_790_000_100.0,
        "duration_seconds": 0.25,
        "states": {"healthy": 9_000, "torn": 12, "damaged": 3, "unreadable": 1},
        "writers": {"live": 40, "stale": 2, "unknown": 1},
        "behind_head": 2,
        "size_bytes": 3 * 2**30,
        "open_turns": 17,
        "scan_errors": 5,
        "troubles": troubles,
    }
    return FleetFacts(**(own | facts))
