"""The connections under the OTLP exporter: cut, silent, encrypted, of the other protocol; and missing libraries."""

from __future__ import annotations

import socket
import threading
import time
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import ExportError
from raxol_otel.exporters.otlp import OtlpExporter, RetryPolicy
from raxol_otel.exporters.otlp_config import OtlpConfig
from tests.conftest import ROOT
from tests.exporter_contract import raxol, turn_records, turn_span, write_session
from tests.otlp_receiver import (
    AcceptThenDrop,
    Action,
    Certificates,
    Garbage,
    Grpc,
    Hang,
    Receiver,
    Reset,
    Slow,
    Truncated,
    make_certificates,
)
from tests.test_otlp_exporter import ENVELOPE, MODES, Rig, config_of, rig

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

ENCRYPTED: Final = pytest.mark.parametrize("encrypted", [False, True], ids=["plain", "tls"])
QUICK: Final = RetryPolicy(first=0.05, longest=0.2, total=10.0)
BIG: Final = [turn_span(number, name="x" * 900_000) for number in range(1, 4)]


def really(at: Rig) -> Rig:
    """The same, where time passes by itself."""
    at.exporter.clock = time.monotonic
    at.exporter.sleep = time.sleep
    return at


def free_port() -> int:
    """A port where nobody listens."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])


def lost(mode: str, endpoint: str, **options: Any) -> str:
    """What the error says of an endpoint that can never be reached."""
    config = OtlpConfig(endpoint, "grpc" if mode == "grpc" else "http/protobuf", timeout=0.3, **options)
    with OtlpExporter(config, ENVELOPE, policy=RetryPolicy(first=0.05, total=0.4)) as exporter:
        began = time.monotonic()
        with pytest.raises(ExportError) as caught:
            exporter.export([turn_span()])
        assert time.monotonic() - began < 5.0
    assert endpoint in str(caught.value)
    return f"{caught.value} {caught.value.hint}"


# -- cut, silent, slow


@MODES
@ENCRYPTED
@pytest.mark.parametrize("action", [Reset(), AcceptThenDrop(), Hang(0.0), Truncated()], ids=lambda a: type(a).__name__)
def test_a_request_that_is_cut_off_is_sent_again(
    mode: str, action: Action, certificates: Certificates, *, encrypted: bool
) -> None:
    """At least once: what the receiver took before the cut comes a second time, byte for byte."""
    if mode == "grpc" and isinstance(action, Truncated):
        action = Grpc("UNAVAILABLE")  # half a message in a whole frame is no cut but nonsense
    options: dict[str, Any] = {"certificate": str(certificates.ca)} if encrypted else {}
    receiver = {"tls": certificates if encrypted else None}
    with rig(mode, [action, action], QUICK, receiver=receiver, **options) as at:
        assert really(at).export() == (3, 0, "")
        requests = at.receiver.requests
        took = isinstance(action, AcceptThenDrop | Truncated)
        assert at.delivered() == [1, 2, 3] * (3 if took else 1)
    assert len({request.body for request in requests}) == 1


def test_an_empty_web_page_is_no_answer_either() -> None:
    """An empty body would be a whole answer, were it not for what the headers say it is."""
    with rig("http", [Garbage(b"")]) as at:
        assert "does not speak OTLP" in at.failure()
        assert at.delivered() == []


def test_half_a_message_over_grpc_is_no_answer() -> None:
    """The frame was whole, so it was not the network: an error that names the endpoint."""
    with rig("grpc", [Truncated()]) as at:
        assert "does not speak OTLP" in at.failure()


@pytest.mark.parametrize(
    ("rest", "path"), [("", "/"), ("/", "/"), ("?a=b", "/?a=b"), ("/v1/traces?a=b#c", "/v1/traces?a=b")]
)
def test_the_path_of_the_endpoint_is_asked_for(rest: str, path: str) -> None:
    """Whatever the URL leaves out or adds."""
    with Receiver() as receiver:
        config = OtlpConfig(f"http://{receiver.address}{rest}")
        with OtlpExporter(config, ENVELOPE) as exporter, pytest.raises(ExportError, match="HTTP 404"):
            exporter.export([turn_span()])
        assert [request.path for request in receiver.requests] == [path]


@MODES
def test_a_receiver_that_says_nothing_is_asked_again(mode: str) -> None:
    """After the timeout of one request."""
    with rig(mode, [Hang(8.0)], QUICK, timeout=0.3) as at:
        began = time.monotonic()
        assert really(at).export() == (3, 0, "")
        assert 0.3 <= time.monotonic() - began < 6.0
        assert len(at.receiver.requests) == 2


@MODES
def test_silence_is_bounded_in_total(mode: str) -> None:
    """The last try has no more time than what is left of the total."""
    with rig(mode, lambda _: Hang(8.0), RetryPolicy(first=0.05, total=0.7), timeout=30.0) as at:
        began = time.monotonic()
        assert "0.7 s" in really(at).failure()
        assert time.monotonic() - began < 4.0


@MODES
@ENCRYPTED
def test_an_answer_that_drips_does_not_outlast_the_timeout(
    mode: str, certificates: Certificates, *, encrypted: bool
) -> None:
    """The timeout is of the request, not of each byte."""
    options: dict[str, Any] = {"certificate": str(certificates.ca)} if encrypted else {}
    receiver = {"tls": certificates if encrypted else None}
    with rig(mode, [Slow(5.0)], QUICK, timeout=0.5, receiver=receiver, **options) as at:
        began = time.monotonic()
        assert really(at).export() == (3, 0, "")
        assert time.monotonic() - began < 4.0


@MODES
def test_no_time_to_retry_is_one_full_try(mode: str) -> None:
    """A total of nothing means no second try; it does not mean that the first one has no time."""
    with rig(mode, [Slow(0.1)], RetryPolicy(total=0.0)) as at:
        assert at.export() == (3, 0, "")


@MODES
def test_nobody_listens(mode: str) -> None:
    """Refused until the total is over: an error that says so."""
    scheme = f"http://127.0.0.1:{free_port()}"
    assert "refused" in lost(mode, scheme if mode == "grpc" else f"{scheme}/v1/traces")


@MODES
def test_somebody_listens_and_never_answers(mode: str) -> None:
    """A connection that is taken and then left alone runs into the timeout."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        lost(mode, f"http://127.0.0.1:{silent.getsockname()[1]}")


@MODES
def test_a_name_that_does_not_resolve(mode: str) -> None:
    """It may be known later, so it is tried until the total is over."""
    lost(mode, "http://no-such-host.invalid:4318")


@MODES
def test_the_receiver_comes_back_while_we_wait(mode: str) -> None:
    """Down at first, delivered later; each wait is told."""
    receiver = Receiver(grpc=mode == "grpc", port=free_port())
    at = really(Rig(mode, receiver, RetryPolicy(first=0.2, longest=0.2, total=20.0)))
    with ExitStack() as stack:
        stack.enter_context(at.exporter)

        def sleep(seconds: float) -> None:
            if len(at.notices) == 2:
                stack.enter_context(receiver)
            time.sleep(seconds)

        at.exporter.sleep = sleep
        assert at.export() == (3, 0, "")
        assert at.delivered() == [1, 2, 3]
    assert len(at.notices) >= 2
    assert all(at.config.endpoint in notice for notice in at.notices)


@MODES
def test_the_receiver_is_restarted_between_two_batches(mode: str) -> None:
    """The old connection is gone, which costs nothing."""
    with Receiver(grpc=mode == "grpc") as receiver:
        at = really(Rig(mode, receiver, QUICK))
        assert at.export() == (3, 0, "")
    with at.exporter, Receiver(grpc=mode == "grpc", port=receiver.port) as again:
        assert at.export(5) == (5, 0, "")
        assert len(again.spans) == 5


# -- encrypted


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """An authority of our own with a server and a client."""
    return make_certificates(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def strangers(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    """Another authority, that the server knows nothing of."""
    return make_certificates(tmp_path_factory.mktemp("strangers"))


@MODES
def test_a_private_authority_is_trusted_where_it_is_named(mode: str, certificates: Certificates) -> None:
    """Delivered encrypted, under the server's address and its name."""
    with rig(mode, certificate=str(certificates.ca), receiver={"tls": certificates}) as at:
        assert at.export() == (3, 0, "")
        named = OtlpConfig(
            at.config.endpoint.replace("127.0.0.1", "localhost"), at.config.protocol, certificate=str(certificates.ca)
        )
        with OtlpExporter(named, ENVELOPE) as exporter:
            assert exporter.export([turn_span()]).accepted == 1


@MODES
@pytest.mark.parametrize("whose", ["another's", "nobody's"])
def test_a_server_that_cannot_be_trusted_gets_nothing(
    mode: str, whose: str, certificates: Certificates, strangers: Certificates
) -> None:
    """The error says that it is about the certificate, and which variable names the authority."""
    options = {"certificate": str(strangers.ca)} if whose == "another's" else {}
    with Receiver(grpc=mode == "grpc", tls=certificates) as receiver:
        said = lost(mode, config_of(mode, receiver).endpoint, **options)
        assert receiver.requests == []
    assert "CERTIFICATE_VERIFY_FAILED" in said
    assert "OTEL_EXPORTER_OTLP_CERTIFICATE" in said


@MODES
def test_plain_text_to_an_encrypted_port(mode: str, certificates: Certificates) -> None:
    """An error that names the endpoint."""
    with Receiver(grpc=mode == "grpc", tls=certificates) as receiver:
        lost(mode, config_of(mode, receiver).endpoint.replace("https://", "http://"))


@MODES
def test_encryption_to_a_plain_port(mode: str) -> None:
    """An error that says what to look at: the scheme."""
    with Receiver(grpc=mode == "grpc") as receiver:
        said = lost(mode, config_of(mode, receiver).endpoint.replace("http://", "https://"))
    assert "scheme of the endpoint" in said


@MODES
def test_the_other_protocol(mode: str) -> None:
    """HTTP to a gRPC port and gRPC to an HTTP port: an error of printable text that names the endpoint."""
    with Receiver(grpc=mode != "grpc") as receiver:
        endpoint = receiver.grpc_endpoint if mode == "grpc" else receiver.http_endpoint
        assert lost(mode, endpoint).isprintable()
        assert receiver.requests == []


@MODES
def test_both_sides_show_a_certificate(mode: str, certificates: Certificates, strangers: Certificates) -> None:
    """With the client's own it is delivered; without one, or with a stranger's, nothing is."""
    ours: dict[str, Any] = {"client_key": str(certificates.client_key), "client_certificate": str(certificates.client)}
    theirs = {"client_key": str(strangers.client_key), "client_certificate": str(strangers.client)}
    trust: dict[str, Any] = {"certificate": str(certificates.ca)}
    with rig(mode, **trust, **ours, receiver={"tls": certificates, "mutual_tls": True}) as at:
        assert at.export() == (3, 0, "")
        lost(mode, at.config.endpoint, **trust)
        lost(mode, at.config.endpoint, **trust, **theirs)
        assert len(at.receiver.requests) == 1


@contextmanager
def cut_during_upload(certificates: Certificates | None, receiver: Receiver, answer: bytes) -> Generator[str]:
    """A port whose first connection is cut within a request, after `answer`; then the receiver listens there."""
    context = certificates.for_http(mutual=False) if certificates else None

    def serve() -> None:
        with suppress(OSError), listening.accept()[0] as plain:
            connection = context.wrap_socket(plain, server_side=True) if context else plain
            connection.recv(1000)
            connection.sendall(answer)
            socket.socket.shutdown(connection, socket.SHUT_WR if answer else socket.SHUT_RDWR)
            time.sleep(0.2 if answer else 0.0)
            connection.close()
        listening.close()
        receiver.__enter__()

    with socket.create_server(("127.0.0.1", receiver.port)) as listening:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield receiver.http_endpoint
        finally:
            thread.join()
            receiver.__exit__(None, None, None)


@ENCRYPTED
def test_a_cut_during_the_upload_is_tried_again(certificates: Certificates, *, encrypted: bool) -> None:
    """A connection that ends in the middle of a request is a matter of the network, encrypted or not."""
    tls = certificates if encrypted else None
    receiver = Receiver(port=free_port(), tls=tls)
    with cut_during_upload(tls, receiver, b"") as endpoint:
        config = OtlpConfig(endpoint, certificate=str(certificates.ca) if encrypted else None)
        with OtlpExporter(config, ENVELOPE, policy=QUICK) as exporter:
            assert exporter.export(BIG).accepted == 3
        assert len(receiver.spans) == 3


def test_an_answer_before_the_end_of_the_upload_is_read() -> None:
    """A 413 that comes while the request is still being sent splits it as any other does."""
    receiver = Receiver(port=free_port())
    too_large = b"HTTP/1.1 413 Too Large\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
    with cut_during_upload(None, receiver, too_large) as endpoint:
        with OtlpExporter(OtlpConfig(endpoint), ENVELOPE, policy=QUICK) as exporter:
            assert exporter.export(BIG).accepted == 3
        assert [request.spans for request in receiver.requests] == [1, 2]


# -- missing libraries


@pytest.mark.parametrize(
    ("protocol", "library", "jobs"),
    [("http/protobuf", "urllib3", "1"), ("http/protobuf", "urllib3", "2"), ("grpc", "grpc", "1")],
)
def test_without_the_extra_the_way_to_get_it_is_told(tmp_path: Path, protocol: str, library: str, jobs: str) -> None:
    """Exit code 3, one line that names the package, one with the pip command; what else there is works."""
    session = write_session(tmp_path / "session", turn_records())
    absent = tmp_path / "absent"
    absent.mkdir()
    (absent / f"{library}.py").write_text(f"raise ModuleNotFoundError('No module named {library}', name='{library}')")
    variables = {"PYTHONPATH": f"{absent}:{ROOT}"}
    options = ("--protocol", protocol, "--jobs", jobs, "--endpoint", "http://127.0.0.1:1", "--retry-for", "0.1")
    done = raxol("replay", session, "--to", "otlp", *options, variables=variables)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == (
        f"Error: OTLP over {protocol} needs the package {library}\nTry: pip install 'raxol-otel[otlp]'\n"
    )
    if library == "grpc":
        with Receiver() as receiver:
            done = raxol("replay", session, "--to", "otlp", "--endpoint", receiver.http_endpoint, variables=variables)
            assert done.returncode == 0
            assert len(receiver.spans) == 2
