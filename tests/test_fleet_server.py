"""The fleet's HTTP server: what is answered to whom, and what no client can take from the others."""

from __future__ import annotations

import gzip
import re
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest
import urllib3

from raxol_otel.errors import UsageError
from raxol_otel.fleet import server as server_module
from raxol_otel.fleet.app import accepts_gzip, wants_openmetrics
from raxol_otel.fleet.board import Board, View
from raxol_otel.fleet.listen import parse_listen
from raxol_otel.fleet.server import Server
from tests.fleet_server import VIEW, WAITING, get, serving

if TYPE_CHECKING:
    from collections.abc import Callable

TEXT = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"
# What Prometheus 2 and 3 send.
PROMETHEUS_2 = "application/openmetrics-text;version=1.0.0;q=0.75,text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,application/openmetrics-text;version=0.0.1;"
    "q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


def talk(server: Server, data: bytes, *, seconds: float = 10.0) -> bytes:
    """Send bytes, and read until the server closes."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=seconds) as connection:
        connection.sendall(data)
        return rest_of(connection)


def rest_of(connection: socket.socket) -> bytes:
    """All that still comes; a reset ends it too."""
    answer = b""
    try:
        while more := connection.recv(65536):
            answer += more
    except ConnectionResetError:
        pass
    return answer


def test_metrics_come_in_the_text_format_unless_asked_otherwise() -> None:
    """Without Accept /metrics is the text format, of version 0.0.4."""
    with serving() as (server, _):
        answer = get(server)
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, TEXT, VIEW.text)


@pytest.mark.parametrize("accept", [PROMETHEUS_2, PROMETHEUS_3])
def test_prometheus_gets_openmetrics(accept: str) -> None:
    """What Prometheus asks for by its Accept is OpenMetrics, with its version."""
    with serving() as (server, _):
        answer = get(server, headers={"Accept": accept})
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, OPENMETRICS, VIEW.openmetrics)


@pytest.mark.parametrize(
    ("accept", "is_open"),
    [
        (b"", False),
        (b"*/*", False),
        (b"text/html", False),
        (b"application/openmetrics-text", True),
        (b"APPLICATION/OpenMetrics-Text ; Version=1.0.0", True),
        (b"application/openmetrics-text; version=0.0.1", False),
        (b"application/openmetrics-text; version=2.0.0", False),
        (b"application/openmetrics-text;q=0", False),
        (b"application/openmetrics-text;q=0.2,text/plain;q=0.9", False),
        (b"text/plain;q=0.2,application/openmetrics-text;q=0.9", True),
        (b"text/plain,application/openmetrics-text", False),
        (b"application/openmetrics-text,text/plain", True),
        (b"application/openmetrics-text;q=nan", False),
        (b"application/openmetrics-text;q=x,;;,,=", False),
        (b",".join([b"text/html"] * 1000 + [b"application/openmetrics-text"]), False),
    ],
)
def test_the_format_is_the_one_that_the_client_weighs_most(accept: bytes, is_open: bool) -> None:  # noqa: FBT001 - a table
    """OpenMetrics is given to who names it, in a version that there is, and weighs the text format no higher."""
    assert wants_openmetrics(accept) is is_open


@pytest.mark.parametrize(
    ("accept", "is_allowed"),
    [
        (b"", False),
        (b"gzip", True),
        (b"br, GZIP;q=0.5", True),
        (b"gzip;q=0", False),
        (b"*", False),
        (b"gzipped", False),
    ],
)
def test_gzip_is_for_those_who_name_it(accept: bytes, is_allowed: bool) -> None:  # noqa: FBT001 - a table
    """Only `gzip` with a weight above 0 allows it."""
    assert accepts_gzip(accept) is is_allowed


def test_a_body_is_compressed_once_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """Scrapers that take gzip share one compressed body of each format, until the next view."""
    calls: list[bytes] = []
    compress: Callable[..., bytes] = gzip.compress

    def counted(data: bytes, *arguments: int, **more: int) -> bytes:
        calls.append(data)
        return compress(data, *arguments, **more)

    monkeypatch.setattr("raxol_otel.fleet.app.gzip.compress", counted)
    second = View(b"second\n" * 400, VIEW.openmetrics, VIEW.page, is_ready=True)
    with serving() as (server, board):
        answers = [get(server, headers={"Accept-Encoding": "gzip"}) for _ in range(3)]
        board.post(second)
        after = get(server, headers={"Accept-Encoding": "gzip"})
        plain = get(server)
    assert {answer.headers["content-encoding"] for answer in answers} == {"gzip"}
    assert [gzip.decompress(answer.body) for answer in answers] == [VIEW.text] * 3
    assert gzip.decompress(after.body) == second.text
    assert calls == [VIEW.text, second.text]
    assert (plain.body, plain.headers.get("content-encoding")) == (second.text, None)
    assert plain.headers["vary"] == "accept, accept-encoding"


@pytest.mark.parametrize("path", ["/", "/metrics", "/healthz", "/readyz", "/nowhere"])
def test_head_is_get_without_the_body(path: str) -> None:
    """HEAD gives the status and the headers of GET, its length among them, and no body."""
    with serving() as (server, _):
        full, head = get(server, path), get(server, path, method="HEAD")
    assert (head.status, head.body) == (full.status, b"")
    assert head.headers["content-length"] == full.headers["content-length"] == str(len(full.body))
    assert head.headers["content-type"] == full.headers["content-type"]


def test_before_the_first_view_nothing_is_ready() -> None:
    """Without a view /metrics, /readyz and / answer 503, while /healthz is fine."""
    with serving(None) as (server, _):
        answers = {path: get(server, path) for path in ("/", "/metrics", "/readyz", "/healthz")}
    assert {path: answer.status for path, answer in answers.items()} == {
        "/": 503,
        "/metrics": 503,
        "/readyz": 503,
        "/healthz": 200,
    }
    assert answers["/readyz"].body == b"not ready: nothing was looked at yet\n"


def test_a_view_without_metrics_says_what_is_waited_for() -> None:
    """A view that is not ready and has no metrics gives its reason; its page is shown; then it is ready."""
    with serving(WAITING) as (server, board):
        metrics, ready, page = (get(server, path) for path in ("/metrics", "/readyz", "/"))
        board.post(VIEW)
        after = get(server), get(server, "/readyz")
    assert (metrics.status, metrics.body) == (503, b"no metrics yet: waiting for /srv/sessions\n")
    assert (ready.status, ready.body) == (503, b"not ready: waiting for /srv/sessions\n")
    assert (page.status, page.body) == (200, WAITING.page)
    assert [(answer.status, answer.body) for answer in after] == [(200, VIEW.text), (200, b"ready\n")]


def test_a_view_that_is_not_ready_may_have_metrics() -> None:
    """Metrics of a view that is not ready are served; only /readyz says that it is not."""
    with serving(View(b"up 1\n", b"up 1\n# EOF\n", b"p", is_ready=False, reason="a\nb\x1b\udcff")) as (server, _):
        metrics, ready = get(server), get(server, "/readyz")
    assert (metrics.status, metrics.body) == (200, b"up 1\n")
    assert (ready.status, ready.body.decode()) == (503, "not ready: a\ufffdb\ufffd\ufffd\n")


def test_health_is_the_age_of_the_last_sign_of_life() -> None:
    """/healthz fails when the engine was silent for too long, and recovers."""
    beat = [time.monotonic()]
    with serving(heartbeat=lambda: beat[0], heartbeat_seconds_max=60) as (server, _):
        alive = get(server, "/healthz")
        beat[0] -= 90
        silent = get(server, "/healthz")
        beat[0] = time.monotonic()
        again = get(server, "/healthz")
    assert (alive.status, alive.body) == (200, b"ok\n")
    assert (silent.status, silent.body) == (503, b"no sign of life for 90 seconds\n")
    assert again.status == 200


def test_paths_and_methods_that_there_are_not() -> None:
    """Elsewhere 404; with another method 405, which names those that are allowed; a query changes nothing."""
    with serving() as (server, _):
        paths = {path: get(server, path).status for path in ("/metrics/", "/../etc/passwd", "/%2e%2e/x", "//", "/?a=b")}
        posted = get(server, method="POST")
        asked = get(server, method="OPTIONS")
        query = get(server, "/metrics?name[]=up")
    assert paths == {"/metrics/": 404, "/../etc/passwd": 404, "/%2e%2e/x": 404, "//": 404, "/?a=b": 200}
    assert (posted.status, posted.headers["allow"]) == (405, "GET, HEAD")
    assert asked.status == 405
    assert (query.status, query.body) == (200, VIEW.text)


@pytest.mark.parametrize("path", ["/", "/metrics", "/readyz", "/nowhere"])
def test_every_answer_is_fenced_in(path: str) -> None:
    """No answer may be cached, sniffed, framed, or run anything; and the server does not tell what it is."""
    with serving() as (server, _):
        headers = get(server, path).headers
    assert headers["content-security-policy"] == (
        "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"
    assert "server" not in headers


@pytest.mark.parametrize(
    "garbage",
    [
        b"\0\1\2\3\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET\r\n\r\n",
        b"GET /metrics HTTP/9.9\r\n\r\n",
        b"GET /\xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
        b"GET /metrics HTTP/1.1\r\nA B: c\r\n\r\n",
        b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
        b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"CONNECT example.org:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    ],
)
def test_garbage_is_refused_and_harms_nobody(
    garbage: bytes, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no request is answered with an error or closed, without a word on standard error."""
    monkeypatch.setattr(server_module, "EXCHANGE_SECONDS_MAX", 1.0)
    with serving() as (server, _):
        answer = talk(server, garbage)
        after = get(server)
    assert answer == b"" or answer[:11] == b"HTTP/1.1 40", answer
    assert after.status == 200
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    "head",
    [
        b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000,
        b"GET /" + b"x" * 20_000,
        b"GET /metrics HTTP/1.1\r\n" + b"X: y\r\n" * 5_000,
        b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 20_000 + b"\r\n\r\n",
    ],
    ids=["one header", "the target", "many headers", "a whole head"],
)
def test_a_head_that_is_too_large_is_refused(head: bytes) -> None:
    """A request's head has 16 KiB; beyond, 431 and the connection is closed."""
    with serving() as (server, _):
        assert talk(server, head).startswith(b"HTTP/1.1 431 ")
        assert get(server, headers={"X": "x" * 12_000}).status == 200


def test_slow_clients_are_cut_off_and_nobody_waits_for_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who sends a byte now and then, or nothing, or never ends a body, is closed; others are served meanwhile."""
    monkeypatch.setattr(server_module, "EXCHANGE_SECONDS_MAX", 1.5)
    ended: list[float] = []

    def drip(server: Server, first: bytes) -> None:
        began = time.monotonic()
        with socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
            try:
                connection.sendall(first)
                while time.monotonic() - began < 10:
                    connection.sendall(b"G" if first else b"")
                    connection.settimeout(0.1)
                    try:
                        if connection.recv(65536) == b"":
                            break
                    except TimeoutError:
                        continue
            except (ConnectionError, BrokenPipeError):
                pass
        ended.append(time.monotonic() - began)

    begun = (b"", b"GET /metr", b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000\r\n\r\n")
    with serving() as (server, _):
        threads = [threading.Thread(target=drip, args=(server, first)) for first in begun]
        for thread in threads:
            thread.start()
        times: list[float] = []
        for _ in range(10):
            start = time.monotonic()
            assert get(server).status == 200
            times.append(time.monotonic() - start)
        for thread in threads:
            thread.join(15)
    assert len(ended) == 3
    assert max(ended) < 8
    assert min(times) < 0.5


def test_who_never_takes_an_answer_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that asks and does not read holds its connection no longer than an exchange may last."""
    monkeypatch.setattr(server_module, "EXCHANGE_SECONDS_MAX", 1.5)
    large = View(b"x" * 50_000_000, b"", b"", is_ready=True)
    with serving(large) as (server, _), socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", server.port))
        connection.sendall(b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(4)
        connection.settimeout(10)
        assert len(rest_of(connection)) < 50_000_000


def test_silence_between_requests_ends_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that is kept is closed after a time without requests, also when empty lines come meanwhile."""
    monkeypatch.setattr(server_module, "KEEP_ALIVE_SECONDS", 1)
    with serving() as (server, _), socket.create_connection(("127.0.0.1", server.port), timeout=10) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        time.sleep(0.3)
        connection.sendall(b"\r\n")
        began = time.monotonic()
        assert rest_of(connection).startswith(b"HTTP/1.1 200 OK")
        assert time.monotonic() - began < 6


def test_a_connection_that_is_used_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests that follow one another on one connection, for longer than an exchange may last, are all answered."""
    monkeypatch.setattr(server_module, "EXCHANGE_SECONDS_MAX", 1.0)
    monkeypatch.setattr(server_module, "KEEP_ALIVE_SECONDS", 10)
    with serving() as (server, _), urllib3.HTTPConnectionPool("127.0.0.1", server.port, maxsize=1) as pool:
        began = time.monotonic()
        while time.monotonic() - began < 4:
            assert pool.request("GET", "/metrics", retries=False).status == 200
            time.sleep(0.2)
        time.sleep(2)
        assert pool.request("GET", "/metrics", retries=False).status == 200
        assert pool.num_connections == 1


def test_requests_sent_at_once_are_answered_in_order() -> None:
    """Requests that come before the first is answered are answered one after the other."""
    with serving() as (server, _):
        one = b"GET /%b HTTP/1.1\r\nHost: x\r\n%b\r\n"
        answer = talk(
            server, one % (b"healthz", b"") + one % (b"nowhere", b"") + one % (b"readyz", b"Connection: close\r\n")
        )
    assert re.findall(rb"HTTP/1.1 ([0-9]+) ", answer) == [b"200", b"404", b"200"]


def test_connections_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond so many connections new ones are closed at once; when some have ended, new ones are served again."""
    monkeypatch.setattr(server_module, "CONNECTIONS_MAX", 5)
    with serving() as (server, _):
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=5) for _ in range(5)]
        time.sleep(0.3)
        assert talk(server, b"") == b""
        for connection in held:
            connection.close()
        time.sleep(0.3)
        assert get(server).status == 200


def test_fifty_scrapers_at_once() -> None:
    """50 scrapers, each on a connection of its own, get whole bodies of a view, while views change."""
    views = [View(b"%d\n" % number * 50_000, b"", b"", is_ready=True) for number in range(10)]
    whole = {view.text for view in views}
    stop = threading.Event()

    def post(board: Board) -> None:
        while not stop.is_set():
            for view in views:
                board.post(view)
                time.sleep(0.002)

    with serving(views[0]) as (server, board), ThreadPoolExecutor(51) as threads:
        posting = threads.submit(post, board)
        zipped = {"Accept-Encoding": "gzip"}
        futures = [threads.submit(get, server, headers=zipped if n % 2 else {}) for n in range(500)]
        answers = [future.result() for future in futures]
        stop.set()
        posting.result()
    assert {answer.status for answer in answers} == {200}
    bodies = {gzip.decompress(one.body) if "content-encoding" in one.headers else one.body for one in answers}
    assert bodies <= whole


def test_a_port_in_use_is_told() -> None:
    """Two servers on one port: the second says which address, and what to do."""
    with serving() as (server, board), pytest.raises(UsageError) as caught:
        Server(board, listen=f"127.0.0.1:{server.port}", web_config=None).start()
    assert str(caught.value) == f"cannot listen on 127.0.0.1:{server.port}: address already in use"
    assert caught.value.hint is not None
    assert "--listen" in caught.value.hint


@pytest.mark.parametrize(
    ("listen", "told"),
    [
        ("203.0.113.7:9464", "cannot listen on 203.0.113.7:9464: cannot assign requested address"),
        ("no-such-host.invalid:9464", "cannot listen on no-such-host.invalid:9464: "),
    ],
)
def test_an_address_that_is_not_ours_is_told(listen: str, told: str) -> None:
    """An address of another machine, or a name that leads nowhere, is one clear error."""
    with pytest.raises(UsageError) as caught:
        Server(Board(), listen=listen, web_config=None).start()
    assert str(caught.value).startswith(told)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9464",
        "localhost",
        "localhost:",
        ":",
        ":65536",
        ":-1",
        "::1:9464",
        "[::1]",
        "[::z]:1",
        "[x]:1",
        "a b:1",
        "h:1x",
        "http://h:1",
    ],
)
def test_what_is_no_address_is_refused(text: str) -> None:
    """Anything but HOST:PORT, [IPv6]:PORT and :PORT is refused, with the grammar as the way out."""
    with pytest.raises(UsageError) as caught:
        parse_listen(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "host", "port", "is_loopback"),
    [
        ("127.0.0.1:9464", "127.0.0.1", 9464, True),
        ("127.8.8.8:1", "127.8.8.8", 1, True),
        ("[::1]:9464", "::1", 9464, True),
        ("localhost:0", "localhost", 0, True),
        (":9464", "", 9464, False),
        ("0.0.0.0:9464", "0.0.0.0", 9464, False),  # noqa: S104 - what is tested
        ("[::]:9464", "::", 9464, False),
        ("example.org:443", "example.org", 443, False),
    ],
)
def test_addresses_are_read(text: str, host: str, port: int, is_loopback: bool) -> None:  # noqa: FBT001 - a table
    """Host, port, and whether only this machine can reach it; told as it was given."""
    address = parse_listen(text)
    assert (address.host, address.port, address.is_loopback, str(address)) == (host, port, is_loopback, text)


def test_every_address_and_ipv6() -> None:
    """`:0` answers on 127.0.0.1 (and ::1 where there is IPv6), `[::1]:0` on ::1."""
    with serving(listen=":0") as (server, _):
        assert get(server, "/healthz").status == 200
    if not socket.has_dualstack_ipv6():
        pytest.skip("this machine has no IPv6")
    with serving(listen="[::1]:0") as (server, _):
        assert server.url == f"http://[::1]:{server.port}/"
        with socket.create_connection(("::1", server.port), timeout=5) as connection:
            connection.sendall(b"GET /healthz HTTP/1.0\r\n\r\n")
            assert rest_of(connection).startswith(b"HTTP/1.1 200 OK")


def test_stopping_lets_go_of_idle_connections_and_the_port() -> None:
    """A server stops in time although clients hold connections, idle and half-way; then the port is free."""
    with serving() as (server, board):
        held = [socket.create_connection(("127.0.0.1", server.port), timeout=10) for _ in range(3)]
        held[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        held[1].sendall(b"GET /hea")
        time.sleep(0.3)
        began = time.monotonic()
        assert server.stop(3.0)
        assert time.monotonic() - began < 3
        for connection in held:
            rest_of(connection)
            connection.close()
        again = Server(board, listen=f"127.0.0.1:{server.port}", web_config=None)
        again.start()
        assert get(again).status == 200
        assert again.stop(3.0)
        assert again.stop(3.0)


def test_an_error_of_our_own_is_one_line(caplog: pytest.LogCaptureFixture) -> None:
    """Should the application fail, the client is told 500, the log the error, and the next request is answered."""

    def broken() -> float:
        message = "no heart"
        raise RuntimeError(message)

    with serving(heartbeat=broken) as (server, _):
        answer, after = get(server, "/healthz"), get(server)
    assert (answer.status, answer.body, after.status) == (500, b"internal error\n", 200)
    assert caplog.messages == ["cannot answer a request: RuntimeError: no heart"]
