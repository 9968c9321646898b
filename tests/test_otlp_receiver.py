"""The OTLP receiver that other tests rely on: what it takes in, how it misbehaves, what it remembers."""

from __future__ import annotations

import gzip
import http.client
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, Any, Final

import grpc
import pytest
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo  # type: ignore[import-untyped]  # it has types, and no py.typed
from google.rpc.status_pb2 import Status as RpcStatus  # type: ignore[import-untyped]
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.conftest import ROOT
from tests.otlp_client import (
    NAMES,
    Mode,
    body,
    connect,
    export,
    grpc_call,
    grpc_channel,
    partial_success,
    post,
    sdk_spans,
    send,
)
from tests.otlp_receiver import (
    AcceptThenDrop,
    Action,
    Certificates,
    Counts,
    Garbage,
    Grpc,
    Hang,
    MaxBytes,
    Partial,
    Receiver,
    Redirect,
    Request,
    Reset,
    Slow,
    Status,
    Truncated,
    Warn,
    attributes,
    http_date,
    make_certificates,
    read_counts,
)
from tests.otlp_servers import HOST, PATH, PROTOBUF

if TYPE_CHECKING:
    from pathlib import Path

BOTH: Final = pytest.mark.parametrize("mode", ["http", "grpc"])
REFUSALS: Final = (ConnectionRefusedError, grpc.RpcError)


def names(receiver: Receiver) -> list[str]:
    """The names of the accepted spans."""
    return [received.span.name for received in receiver.spans]


COMPRESSIONS: Final = [
    pytest.param("http", Compression.NoCompression, None, id="http-plain"),
    pytest.param("http", Compression.Gzip, "gzip", id="http-gzip"),
    pytest.param("http", Compression.Deflate, "deflate", id="http-deflate"),
    pytest.param("grpc", grpc.Compression.NoCompression, None, id="grpc-plain"),
    pytest.param("grpc", grpc.Compression.Gzip, None, id="grpc-gzip"),
]


@pytest.mark.parametrize(("mode", "compression", "encoding"), COMPRESSIONS)
def test_what_the_official_exporter_sends_is_kept(mode: Mode, compression: Any, encoding: str | None) -> None:
    """Spans arrive in order, with resource and scope, however they were compressed; so do the request's headers."""
    before = time.time()
    with Receiver(grpc=mode == "grpc") as receiver:
        assert export(receiver, mode, sdk_spans(3), compression=compression, headers={"x-tenant": "blue"})
        received = receiver.wait_spans(3)
    assert [(each.span.name, each.request) for each in received] == [("cup 0", 0), ("cup 1", 0), ("cup 2", 0)]
    assert attributes(received[2].span.attributes) == {"number": 2, "hot": True, "leaves": ["green", "black"]}
    assert attributes(received[0].resource.attributes)["service.name"] == "tea shop"
    assert (received[0].scope.name, received[0].schema_url) == ("kettle", "https://example.org/1")
    [request] = receiver.requests
    assert (request.headers["x-tenant"], request.headers.get("content-encoding")) == ("blue", encoding)
    assert before <= request.time <= time.time()
    assert len(ExportTraceServiceRequest.FromString(request.body).resource_spans) == 1
    assert (request.size == len(request.body)) is (encoding is None)
    assert receiver.counts == Counts(1, 3, request.size)


@BOTH
def test_the_official_exporter_tries_again_after_a_refusal(mode: Mode) -> None:
    """A script is used up request by request; then everything is accepted."""
    with Receiver(grpc=mode == "grpc", script=[Status(503, retry_after="0"), Warn("careful")]) as receiver:
        assert export(receiver, mode, sdk_spans(2))
        assert (receiver.script, names(receiver)) == ([], ["cup 0", "cup 1"])
        first, second = receiver.requests
    assert (first.spans, first.action) == (0, Status(503, retry_after="0"))
    assert (second.spans, second.action) == (2, Warn("careful"))
    assert first.body == second.body


REFUSED: Final = [
    pytest.param(400, b"\x0a\xff", {}, id="no protobuf"),
    pytest.param(400, b"no gzip", {"Content_Encoding": "gzip"}, id="no gzip"),
    pytest.param(400, gzip.compress(body())[:-9], {"Content_Encoding": "gzip"}, id="half gzip"),
    pytest.param(415, body(), {"Content_Encoding": "br"}, id="unknown encoding"),
    pytest.param(404, body(), {"path": "/v1/logs"}, id="another path"),
    pytest.param(415, b"{}", {"Content_Type": "application/json"}, id="JSON"),
]


@pytest.mark.parametrize(("status", "data", "headers"), REFUSED)
def test_what_is_no_otlp_is_refused(status: int, data: bytes, headers: dict[str, str]) -> None:
    """A receiver that took anything would hide faults; this one keeps the request and no spans."""
    with Receiver() as receiver:
        connection = connect(receiver.port)
        assert post(connection, data, **headers)[0] == status
        assert post(connection, body("a"))[0] == 200
        connection.close()
    assert ([request.spans for request in receiver.requests], names(receiver)) == ([0, 1], ["a"])


def test_statuses_come_with_their_headers_and_reasons() -> None:
    """Refusals carry Retry-After in either form, and a google.rpc.Status that says why."""
    date = http_date(30)
    script: list[Action] = [Status(400, message="no"), Status(429, "1"), Status(429, date), Redirect(), Status(299)]
    with Receiver(script=script) as receiver:
        connection = connect(receiver.port)
        answers = [post(connection, body()) for _ in range(5)]
        connection.close()
    assert len({request.connection for request in receiver.requests}) == 1  # it was kept
    assert [status for status, _, _ in answers] == [400, 429, 429, 307, 299]
    assert [headers["Retry-After"] for _, headers, _ in answers] == [None, "1", date, None, None]
    assert RpcStatus.FromString(answers[0][2]).message == "no"
    assert answers[3][1]["Location"] == "/elsewhere"
    assert 28 <= parsedate_to_datetime(date).timestamp() - time.time() <= 30
    assert receiver.spans == []


CODES: Final[list[tuple[Action, str, float | None]]] = [
    (Grpc("UNAVAILABLE", "busy", retry_delay=1.25), "UNAVAILABLE", 1.25),
    (Grpc("UNAVAILABLE", "busy", retry_delay=0), "UNAVAILABLE", 0),
    (Grpc("INVALID_ARGUMENT"), "INVALID_ARGUMENT", None),
    (Status(429, retry_after="2"), "RESOURCE_EXHAUSTED", 2),
    (Status(413), "RESOURCE_EXHAUSTED", None),
]


@pytest.mark.parametrize(("action", "code", "delay"), CODES, ids=[str(action) for action, _, _ in CODES])
def test_grpc_codes_come_with_retry_info(action: Action, code: str, delay: float | None) -> None:
    """A delay is in the status details as google.rpc.RetryInfo; where none is given there are no details."""
    with Receiver(grpc=True, script=[action]) as receiver:
        with pytest.raises(grpc.RpcError) as caught:
            send(receiver.port, "grpc")
        assert partial_success(send(receiver.port, "grpc")) == (0, "")
    error: Any = caught.value
    details = dict(error.trailing_metadata()).get("grpc-status-details-bin")
    assert (error.code().name, details is None) == (code, delay is None)
    if details is not None:
        status, info = RpcStatus.FromString(details), RetryInfo()
        assert (status.code, status.message) == (error.code().value[0], error.details())
        assert status.details[0].Unpack(info)
        assert info.retry_delay.ToTimedelta().total_seconds() == delay


@BOTH
def test_a_partial_success_rejects_the_last_spans(mode: Mode) -> None:
    """What is said to be rejected is not kept; a warning keeps everything."""
    with Receiver(grpc=mode == "grpc", script=[Partial(rejected=3, message="too old"), Warn("deprecated")]) as receiver:
        assert partial_success(send(receiver.port, mode)) == (3, "too old")
        assert names(receiver) == ["a", "b"]
        assert partial_success(send(receiver.port, mode)) == (0, "deprecated")
    assert [request.spans for request in receiver.requests] == [2, 5]
    assert receiver.counts.spans == 7


@BOTH
@pytest.mark.parametrize(("action", "kept"), [(Reset(), 0), (AcceptThenDrop(), 5)], ids=["reset", "drop"])
def test_connections_are_reset(mode: Mode, action: Action, kept: int) -> None:
    """The client sees the connection break, whether or not its spans were kept; the next request is served."""
    expected = grpc.RpcError if mode == "grpc" else ConnectionResetError
    with Receiver(grpc=mode == "grpc", script=[action]) as receiver:
        with pytest.raises(expected) as caught:
            send(receiver.port, mode)
        assert not isinstance(caught.value, http.client.RemoteDisconnected)  # which would be FIN
        assert len(receiver.spans) == kept
        send(receiver.port, mode)
        assert len(receiver.spans) == kept + 5


def test_a_reset_over_grpc_breaks_the_connection_itself() -> None:
    """The client had no answer at all, and its next request comes over a new connection."""
    with Receiver(grpc=True, script=[Warn(""), Reset()]) as receiver:
        with grpc_channel(receiver.port) as channel:
            grpc_call(channel)(body(), timeout=5)
            with pytest.raises(grpc.RpcError, match=r"UNAVAILABLE") as caught:
                grpc_call(channel)(body(), timeout=5)
            for _ in range(50):  # it takes the client a moment to see that the connection is gone
                with suppress(grpc.RpcError):
                    grpc_call(channel)(body(), timeout=5)
                    break
                time.sleep(0.02)
        ports = [request.connection for request in receiver.requests]
    assert "cut off" not in str(caught.value)  # what the receiver would say over a connection that held
    assert ports[0] == ports[1] != ports[2]


@BOTH
def test_hanging_is_a_long_silence_then_the_end(mode: Mode) -> None:
    """A client with less patience gives up first; a patient one loses the connection; nothing is kept."""
    with Receiver(grpc=mode == "grpc", script=[Hang(30), Hang(0.2)]) as receiver:
        with pytest.raises((TimeoutError, grpc.RpcError)):
            send(receiver.port, mode, timeout=0.5)
        receiver.wait_requests(1)
        began = time.monotonic()
        with pytest.raises((http.client.RemoteDisconnected, grpc.RpcError)):
            send(receiver.port, mode)
        assert time.monotonic() - began >= 0.2
        assert ([request.action for request in receiver.requests], receiver.spans) == ([Hang(30), Hang(0.2)], [])
        ending = time.monotonic()
    assert time.monotonic() - ending < 5  # what hangs does not hold up the end


def test_a_slow_answer_drips() -> None:
    """It comes byte by byte: only a client that limits the whole, not each read, notices that it takes long."""
    with Receiver(script=[Slow(0.5)]) as receiver:
        with socket.create_connection((HOST, receiver.port), timeout=5) as client:
            head = f"POST {PATH} HTTP/1.1\r\nContent-Type: {PROTOBUF}\r\nContent-Length: {len(body())}\r\n\r\n"
            began = time.monotonic()
            client.sendall(head.encode() + body())
            pieces = [client.recv(100)]
            while not b"".join(pieces).endswith(b"\r\n\r\n"):
                pieces.append(client.recv(100))
        assert time.monotonic() - began >= 0.5
        assert len(pieces) > 10
    assert names(receiver) == list(NAMES)


def test_answers_are_garbage_or_cut_off() -> None:
    """Garbage is success with a web page, and keeps nothing; what is truncated is shorter than it says, and kept."""
    with Receiver(script=[Garbage(), Truncated()]) as receiver:
        connection = connect(receiver.port)
        status, headers, page = post(connection, body())
        assert (status, headers["Content-Type"], page[:9]) == (200, "text/html", b"<!DOCTYPE")
        with pytest.raises(http.client.IncompleteRead):
            post(connection, body())
        connection.close()
    assert [request.spans for request in receiver.requests] == [0, 5]


def test_answers_over_grpc_come_late_or_are_no_messages() -> None:
    """The same over gRPC, as bytes that do not parse; what is slow comes in one piece, and may be too late."""
    with Receiver(grpc=True, script=[Slow(30), Garbage(), Truncated()]) as receiver:
        with pytest.raises(grpc.RpcError, match="DEADLINE_EXCEEDED"):
            send(receiver.port, "grpc", timeout=0.5)
        receiver.wait_requests(1)
        for _ in range(2):
            with pytest.raises(DecodeError):
                partial_success(send(receiver.port, "grpc"))
    assert [request.spans for request in receiver.requests] == [5, 0, 5]


@BOTH
def test_a_size_limit_stays(mode: Mode) -> None:
    """Larger requests are refused for good, smaller ones go on with the script."""
    script: list[Action] = [Warn("1"), MaxBytes(len(body())), Warn("2"), Warn("3")]
    with Receiver(grpc=mode == "grpc", script=script) as receiver:
        assert partial_success(send(receiver.port, mode, body("abcdef"))) == (0, "1")
        for answer in ("2", "3", ""):
            with pytest.raises(REFUSALS, match=r"413|RESOURCE_EXHAUSTED"):
                send(receiver.port, mode, body("abcdef"))
            assert partial_success(send(receiver.port, mode)) == (0, answer)


def test_a_callable_decides_for_every_request() -> None:
    """It sees the request and may wait, while others are served and the receiver can be asked."""
    asked, go = threading.Event(), threading.Event()

    def decide(request: Request) -> Action | None:
        if "x-wait" not in request.headers:
            return Partial(1) if request.number == 2 else None
        asked.set()
        assert go.wait(5)
        return Status(503)

    with Receiver(script=decide) as receiver:
        first = connect(receiver.port)
        first.request("POST", PATH, body("z"), {"Content-Type": PROTOBUF, "X-Wait": "1"})
        assert asked.wait(5)
        send(receiver.port, "http", body("a"))
        send(receiver.port, "http", body("bc"))
        assert names(receiver) == ["a", "b"]
        go.set()
        assert first.getresponse().status == 503
        first.close()
    assert [(request.number, request.action) for request in receiver.requests][-1] == (0, Status(503))


@BOTH
@pytest.mark.parametrize("callable_", [False, True], ids=["action", "callable"])
def test_mistakes_in_a_script_come_out(mode: Mode, *, callable_: bool) -> None:
    """An action of the other protocol, or a callable that raises, fails the test that wrote it."""
    wrong: Action = Redirect() if mode == "grpc" else Grpc("UNAVAILABLE")

    def fails(_: Request) -> Action | None:
        raise TypeError("this is not for here")

    receiver = Receiver(grpc=mode == "grpc", script=fails if callable_ else [wrong])
    with pytest.raises(TypeError, match="is not for"), receiver, pytest.raises(REFUSALS):
        send(receiver.port, mode)


@BOTH
def test_required_headers_are_required(mode: Mode) -> None:
    """Without them, or with others, a request is unauthenticated and uses up nothing of the script."""
    with Receiver(grpc=mode == "grpc", required_headers={"Authorization": "Bearer x"}, script=[Warn("")]) as receiver:
        with pytest.raises(REFUSALS, match=r"401|UNAUTHENTICATED"):
            send(receiver.port, mode)
        assert receiver.script == [Warn("")]
        assert export(receiver, mode, sdk_spans(1), headers={"authorization": "Bearer x"})
    assert [request.action for request in receiver.requests] == [Status(401), Warn("")]


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority, a server and a client."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@BOTH
@pytest.mark.parametrize("mutual", [False, True], ids=["server", "mutual"])
def test_tls_is_checked_from_both_sides(
    mode: Mode, *, mutual: bool, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The official exporter trusts the server by the test's authority; a client is asked for its own certificate."""
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):  # requests prefers them to what it was given
        monkeypatch.delenv(variable, raising=False)

    def secure(*, with_client: bool) -> dict[str, Any]:
        client = (certificates.client_key, certificates.client) if with_client else (None, None)
        if mode == "grpc":
            pem = [path and path.read_bytes() for path in (certificates.ca, *client)]
            return {"credentials": grpc.ssl_channel_credentials(*pem)}
        named = ("certificate_file", "client_key_file", "client_certificate_file")
        return {name: path and str(path) for name, path in zip(named, (certificates.ca, *client), strict=True)}

    with Receiver(grpc=mode == "grpc", tls=certificates, mutual_tls=mutual) as receiver:
        assert export(receiver, mode, sdk_spans(1), **secure(with_client=mutual))
        assert export(receiver, mode, sdk_spans(1), timeout=0.5, **secure(with_client=False)) is not mutual


@BOTH
def test_a_receiver_can_come_back_to_its_port(mode: Mode) -> None:
    """What an outage looks like: nobody there, then somebody again."""
    with Receiver(grpc=mode == "grpc") as receiver:
        send(receiver.port, mode)
    with pytest.raises(REFUSALS):
        send(receiver.port, mode)
    with Receiver(grpc=mode == "grpc", port=receiver.port) as again:
        send(again.port, mode)
    assert (again.port, names(again)) == (receiver.port, list(NAMES))


@pytest.mark.parametrize("arguments", [[], ["--grpc"], ["--raw"], ["--grpc", "--raw"]], ids=" ".join)
def test_as_a_process_it_writes_what_it_accepts(arguments: list[str], tmp_path: Path) -> None:
    """Ids and counts are in the files before the answer is there; SIGTERM ends it well."""
    mode: Mode = "grpc" if "--grpc" in arguments else "http"
    files = ["--count-file", str(tmp_path / "counts")]
    if "--raw" not in arguments:
        files += ["--spans-file", str(tmp_path / "ids")]
    command = [sys.executable, "-m", "tests.otlp_receiver", *arguments, *files]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process, ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout is not None
        port = int(process.stdout.readline())
        for number, text in enumerate(("ab", "c"), 1):
            send(port, mode, body(text))
            counts = read_counts(tmp_path / "counts")
            assert counts[:2] == (number, 0 if "--raw" in arguments else number + 1)
        assert read_counts(tmp_path / "counts").bytes == len(body("ab")) + len(body("c"))
        if "--raw" not in arguments:
            assert (tmp_path / "ids").read_text() == "".join(f"{ord(name):016x}\n" for name in "abc")
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
