"""The OTLP exporter against a receiver that misbehaves: delivered whole, retried, split, refused and told."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import ExportError
from raxol_otel.exporters.otlp import OtlpExporter, RetryPolicy
from raxol_otel.exporters.otlp_config import OtlpConfig
from raxol_otel.exporters.otlp_proto import ProtoEnvelope
from raxol_otel.turns import Link
from tests.exporter_contract import BoomError, ExporterContract, Subject, batch, fail_inside, turn_span
from tests.otlp_receiver import (
    Action,
    Garbage,
    Grpc,
    MaxBytes,
    Partial,
    Receiver,
    Redirect,
    Request,
    Status,
    Warn,
    attributes,
    http_date,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

    from tests.otlp_receiver import Script

ENVELOPE: Final = ProtoEnvelope({"service.name": "cart"}, scope_name="tests", scope_version="1", schema_url="urn:s")
MODES: Final = pytest.mark.parametrize("mode", ["http", "grpc"])


class Clock:
    """Time that passes only by sleeping, and every sleep."""

    def __init__(self) -> None:
        self.now = 0.0
        self.slept: list[float] = []

    def sleep(self, seconds: float) -> None:
        """Let the time pass at once."""
        self.slept.append(seconds)
        self.now += seconds


class Rig:
    """A receiver, an exporter that sends to it, and the exporter's clock and notices."""

    def __init__(self, mode: str, receiver: Receiver, policy: RetryPolicy | None = None, **options: Any) -> None:
        self.receiver = receiver
        self.clock = Clock()
        self.notices: list[str] = []
        self.config = replace(config_of(mode, receiver), **options)
        self.exporter = OtlpExporter(self.config, ENVELOPE, policy=policy, notice=self.notices.append)
        self.exporter.clock = lambda: self.clock.now
        self.exporter.sleep = self.clock.sleep
        self.exporter.jitter = lambda: 1.0

    def export(self, count: int = 3) -> tuple[int, int, str]:
        """Send so many turns; how many were accepted, rejected, and what was said."""
        result = self.exporter.export([turn_span(number) for number in range(1, count + 1)])
        return result.accepted, result.rejected, result.message

    def failure(self) -> str:
        """What the error says of sending; it names the endpoint and is one line."""
        with pytest.raises(ExportError) as caught:
            self.export()
        said = str(caught.value)
        assert self.config.endpoint in said
        assert "\n" not in said
        return said

    def delivered(self) -> list[int]:
        """The numbers of the turns that the receiver keeps, in order."""
        return [int(received.span.span_id.hex(), 16) for received in self.receiver.spans]


def config_of(mode: str, receiver: Receiver) -> OtlpConfig:
    """The way to the receiver."""
    if mode == "grpc":
        return OtlpConfig(receiver.grpc_endpoint, "grpc", timeout=5.0)
    return OtlpConfig(receiver.http_endpoint, timeout=5.0)


@contextmanager
def rig(mode: str, script: Script | None = None, policy: RetryPolicy | None = None, **options: Any) -> Generator[Rig]:
    """A receiver with this script and an exporter for it; `receiver=` are options of the receiver's."""
    theirs: dict[str, Any] = options.pop("receiver", {})
    with Receiver(grpc=mode == "grpc", script=script, **theirs) as receiver:
        made = Rig(mode, receiver, policy, **options)
        with made.exporter:
            yield made


class OtlpContract(ExporterContract):
    """What an exporter promises; but what has left cannot be taken back."""

    mode: str

    @pytest.fixture
    def subject(self) -> Generator[Subject]:
        """Sends to a receiver and sees what it keeps."""
        with Receiver(grpc=self.mode == "grpc") as receiver:
            yield Subject(
                lambda: OtlpExporter(config_of(self.mode, receiver), ENVELOPE),
                lambda: {"spans": b"".join(received.span.SerializeToString() for received in receiver.spans)},
            )

    def test_aborting_leaves_nothing_behind(self, subject: Subject) -> None:
        """What was delivered stays; aborting, twice too, sends nothing more."""
        exporter = subject.make()
        exporter.export(batch()[:2])
        before = subject.seen()
        exporter.abort()
        exporter.abort()
        assert subject.seen() == before

    def test_an_exception_in_the_block_aborts(self, subject: Subject) -> None:
        """The exception comes out as it is; what was delivered stays."""
        with pytest.raises(BoomError):
            fail_inside(subject.make(), batch()[:2])
        assert subject.shows("tool-2")

    def test_a_block_left_unfinished_aborts(self, subject: Subject) -> None:
        """Nothing waits for the end: what was exported is there."""
        with subject.make() as exporter:
            exporter.export(batch()[:2])
            assert subject.shows("tool-2")


class TestHttp(OtlpContract):
    """OTLP over HTTP."""

    mode = "http"


class TestGrpc(OtlpContract):
    """OTLP over gRPC."""

    mode = "grpc"


# -- delivered whole


@MODES
@pytest.mark.parametrize("compression", ["none", "gzip", "deflate"])
def test_everything_arrives_in_order_over_one_connection(mode: str, compression: str) -> None:
    """Requests of 2,000 spans at most, compressed as asked, all over the connection that was made first."""
    with rig(mode, compression=compression, headers={"x-tenant": "blue"}) as at:
        assert at.export(4_500) == (4_500, 0, "")
        assert at.export(1) == (1, 0, "")
        requests = at.receiver.requests
        assert at.delivered() == [*range(1, 4_501), 1]
        received = at.receiver.spans[-1]
    assert [request.spans for request in requests] == [2_000, 2_000, 500, 1]
    assert len({request.connection for request in requests}) == 1
    assert {request.headers["x-tenant"] for request in requests} == {"blue"}
    assert all(request.headers["user-agent"].startswith("raxol-otel/") for request in requests)
    if mode == "http":
        said = None if compression == "none" else compression
        assert {request.headers.get("content-encoding") for request in requests} == {said}
        assert {request.headers["content-type"] for request in requests} == {"application/x-protobuf"}
        assert all((request.size < len(request.body) / 5) is (said is not None) for request in requests[:-1])
    assert attributes(received.resource.attributes) == {"service.name": "cart"}
    assert (received.scope.name, received.scope.version, received.schema_url) == ("tests", "1", "urn:s")
    assert attributes(received.span.attributes) == {
        "raxol.turn.id": "turn-1",
        "raxol.turn.outcome": "completed",
        "n": 1,
    }


@MODES
def test_requests_are_bounded_in_bytes(mode: str) -> None:
    """Three spans of a million bytes go together, a fourth does not; a larger one goes alone."""
    spans = [turn_span(number, name="x" * 1_000_000) for number in range(1, 8)]
    spans.insert(4, turn_span(99, name="x" * 5_000_000))
    with rig(mode) as at:
        assert at.exporter.export(spans).accepted == 8
        assert at.delivered() == [1, 2, 3, 4, 99, 5, 6, 7]
        assert [request.spans for request in at.receiver.requests] == [3, 1, 1, 3]
        assert sorted(len(request.body) for request in at.receiver.requests)[-2] < 4 * 2**20


@MODES
def test_nothing_is_sent_for_nothing(mode: str) -> None:
    """Neither an empty batch nor one without a span that can be encoded makes a request."""
    with rig(mode) as at:
        assert at.export(0) == (0, 0, "")
        assert at.exporter.export([turn_span(span_id="no")]).rejected == 1
        assert at.receiver.requests == []


UNSENDABLE: Final[dict[str, dict[str, Any]]] = {
    "an id that is no hex": {"trace_id": "x" * 32},
    "a short id": {"span_id": "ab"},
    "a short parent": {"parent_id": "ab"},
    "a short link": {"links": (Link("ab", "cd"),)},
    "a value of no type": {"attributes": {"k": None}},
    "a list": {"attributes": {"k": [1, 2]}},
    "a key that is no text": {"attributes": {1: "v"}},
    "a name that is no text": {"name": b"name"},
    "a time before the epoch": {"start_ns": -1},
    "a time that is no integer": {"end_ns": 0.5},
}


@MODES
@pytest.mark.parametrize("what", UNSENDABLE)
def test_a_span_that_cannot_be_encoded_costs_itself_only(mode: str, what: str) -> None:
    """Those around it arrive as they are; it is counted, and named with the reason."""
    odd = turn_span(0xBAD, **UNSENDABLE[what])
    with rig(mode) as at:
        result = at.exporter.export([turn_span(1), odd, turn_span(2)])
        assert at.delivered() == [1, 2]
    assert (result.accepted, result.rejected) == (2, 1)
    assert f"span {odd.span_id} cannot be encoded: " in result.message


# -- refused

GRPC_REFUSALS: Final = (
    *("UNKNOWN", "INVALID_ARGUMENT", "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "FAILED_PRECONDITION"),
    *("UNIMPLEMENTED", "INTERNAL", "UNAUTHENTICATED"),
)
REFUSALS: Final = [
    *[("http", Status(code, message="not you"), f"HTTP {code}") for code in (400, 401, 403, 404, 405, 408, 500, 501)],
    *[("http", Redirect(code=code), f"HTTP {code}") for code in (301, 302, 307, 308)],
    *[("grpc", Grpc(code, "not you"), f"gRPC {code}") for code in GRPC_REFUSALS],
]


@pytest.mark.parametrize(("mode", "action", "said"), REFUSALS)
def test_a_refusal_is_an_error_that_names_the_endpoint(mode: str, action: Action, said: str) -> None:
    """What may not be retried is sent once, and the receiver's words are told; a redirect is not followed."""
    with rig(mode, [action]) as at:
        failure = at.failure()
        assert (len(at.receiver.requests), at.clock.slept, at.delivered()) == (1, [], [])
    assert said in failure
    assert isinstance(action, Redirect) or "not you" in failure


@MODES
def test_a_missing_header_is_refused_by_who_wants_it(mode: str) -> None:
    """Unauthenticated is an error, and the value of a header is no part of it."""
    receiver = {"required_headers": {"authorization": "Bearer right"}}
    with rig(mode, headers={"authorization": "Bearer wrong"}, receiver=receiver) as at:
        failure = at.failure()
        assert at.delivered() == []
    assert "401" in failure or "UNAUTHENTICATED" in failure
    assert "wrong" not in failure
    with rig(mode, headers={"authorization": "Bearer right"}, receiver=receiver) as at:
        assert at.export() == (3, 0, "")


@MODES
def test_a_web_page_is_no_answer(mode: str) -> None:
    """Success that does not speak OTLP is an error at once: nothing was delivered."""
    with rig(mode, [Garbage()]) as at:
        assert "does not speak OTLP" in at.failure()
        assert (at.clock.slept, at.delivered()) == ([], [])


# -- too large


@MODES
def test_what_is_too_large_is_split(mode: str) -> None:
    """Down to single spans where it must be; the one that is too large by itself is refused, counted and told."""
    spans = [turn_span(number, name="x" * (9_000 if number == 6 else 1_000)) for number in range(1, 11)]
    with rig(mode, [MaxBytes(2_500)]) as at:
        result = at.exporter.export(spans)
        assert at.delivered() == [1, 2, 3, 4, 5, 7, 8, 9, 10]
        assert at.clock.slept == []
    assert (result.accepted, result.rejected) == (9, 1)
    assert at.config.endpoint in result.message
    assert result.message.count("takes no span of") == 1


# -- partial success


@MODES
@pytest.mark.parametrize(("rejected", "counted"), [(1, 1), (2, 2), (3, 3), (99, 3)])
def test_partial_success_is_counted_and_told(mode: str, rejected: int, counted: int) -> None:
    """How many, by whom and why; never more than were sent, and not again with the next batch."""
    with rig(mode, [Partial(rejected, "no\nroom")]) as at:
        accepted, refused, message = at.export()
        assert (accepted, refused) == (3 - counted, counted)
        assert message.startswith(f"{at.config.endpoint} rejected ")
        assert "room" in message
        assert at.export() == (3, 0, "")


@MODES
def test_a_warning_is_told_though_nothing_was_rejected(mode: str) -> None:
    """The receiver's words come with the result, of every request that had some."""
    with rig(mode, [Warn("careful"), Warn("slow down")]) as at:
        accepted, rejected, message = at.export(2_001)
        assert (accepted, rejected) == (2_001, 0)
        assert "careful" in message
        assert "slow down" in message
        assert len(at.delivered()) == 2_001


# -- retried

BUSY: Final = [
    *[("http", Status(code)) for code in (429, 502, 503, 504)],
    *[("grpc", Grpc(code)) for code in ("CANCELLED", "DEADLINE_EXCEEDED", "ABORTED", "OUT_OF_RANGE", "UNAVAILABLE")],
    ("grpc", Grpc("DATA_LOSS")),
]


@pytest.mark.parametrize(("mode", "action"), BUSY)
def test_what_may_be_retried_is_retried_with_backoff(mode: str, action: Action) -> None:
    """The same request after half a second, after one and after two, each told; then it is delivered."""
    with rig(mode, [action] * 3) as at:
        assert at.export() == (3, 0, "")
        requests = at.receiver.requests
        assert at.delivered() == [1, 2, 3]
    assert at.clock.slept == [0.5, 1.0, 2.0]
    assert (len(requests), len({request.body for request in requests})) == (4, 1)
    assert len(at.notices) == 3
    assert all(at.config.endpoint in notice for notice in at.notices)


@MODES
def test_waits_are_jittered_and_have_a_longest(mode: str) -> None:
    """Each wait is a share, drawn anew, of a time that doubles up to the longest; a new request begins anew."""
    shares = iter([0.5, 0.0, 1.0, 0.25, 1.0, 0.75, 1.0])
    script: list[Action] = [Status(503)] * 6
    with rig(mode, script, RetryPolicy(first=1.0, factor=2.0, longest=5.0)) as at:
        at.exporter.jitter = lambda: next(shares)
        at.export(1)
        at.receiver.script = [Status(503)]
        at.export(1)
    assert at.clock.slept == [0.5, 0.0, 4.0, 1.25, 5.0, 3.75, 1.0]


@MODES
def test_giving_up_is_bounded_in_total(mode: str) -> None:
    """Waits and tries together never take longer than the policy says; the error tells the last answer."""
    with rig(mode, lambda _: Status(503), RetryPolicy(total=100.0)) as at:
        failure = at.failure()
    assert at.clock.slept == [0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0]
    assert "100 s" in failure
    assert "HTTP 503" in failure or "gRPC UNAVAILABLE" in failure


WAITS: Final = [
    ("http", lambda: Status(429, retry_after="7"), 7.0),
    ("http", lambda: Status(503, retry_after="200"), 200.0),
    ("http", lambda: Status(503, retry_after=http_date(30)), 30.0),
    ("http", lambda: Status(429, retry_after=http_date(-30)), 0.0),
    ("grpc", lambda: Grpc("UNAVAILABLE", retry_delay=3.25), 3.25),
    ("grpc", lambda: Grpc("RESOURCE_EXHAUSTED", retry_delay=200.5), 200.5),
    *[("http", partial(Status, 429, text), 0.5) for text in ("", "soon", "-1", "1.5", "Mon, 99 Foo 2026 99:99:99 GMT")],
]


@pytest.mark.parametrize(("mode", "action", "seconds"), WAITS)
def test_the_receiver_says_how_long_to_wait(mode: str, action: Callable[[], Action], seconds: float) -> None:
    """In seconds, as a date or as RetryInfo; then nothing is split, and what cannot be read is no word at all."""
    with rig(mode, [action()]) as at:
        assert at.export() == (3, 0, "")
        assert len(at.receiver.requests) == 2
    (slept,) = at.clock.slept
    assert slept == pytest.approx(seconds, abs=2.0 if seconds == 30.0 else 0.0)


@pytest.mark.parametrize(("mode", "action"), [("http", Status(429, "301")), ("grpc", Grpc("ABORTED", "", 301.0))])
def test_a_wait_beyond_the_total_is_not_begun(mode: str, action: Action) -> None:
    """Who is to come back later than ever is told so at once."""
    with rig(mode, [action]) as at:
        assert "300 s" in at.failure()
    assert at.clock.slept == []


@pytest.mark.parametrize(("mode", "action"), [("http", Status(503, "0")), ("grpc", Grpc("UNAVAILABLE", "", 0.0))])
def test_a_receiver_that_says_at_once_is_not_hammered(mode: str, action: Action) -> None:
    """Invited to come back at once, again and again, the exporter still backs off."""

    def script(request: Request) -> Action:
        return action if request.number < 100 else Status(400, message="hammered")

    with rig(mode, script) as at:
        assert "hammered" not in at.failure()
