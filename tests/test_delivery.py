"""Endpoints that are down, slow or refuse: nothing that closed is lost, memory is bounded, what waits is told."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from raxol_otel.errors import UsageError
from raxol_otel.exporters.otlp_config import OtlpConfig
from raxol_otel.fleet import delivery as delivery_module
from raxol_otel.fleet import reading
from raxol_otel.fleet.leaving import Leaving
from raxol_otel.fleet.state import FleetState
from raxol_otel.fleet.wanted import Wanted
from raxol_otel.turns import FoldConfig
from tests.follow_agents import agent, arrived, following, http, replayed
from tests.otlp_receiver import Action, Garbage, Grpc, Hang, MaxBytes, Partial, Receiver, Request, Reset, Slow, Status
from tests.test_otlp_cli import wait_for
from tests.test_otlp_transport import free_port

if TYPE_CHECKING:
    from pathlib import Path


def write(folder: Path, turns: int, sessions: int = 3) -> int:
    """Write so many whole turns; how many spans they make."""
    for number in range(sessions):
        with agent(folder, f"s{number}", seed=turns) as writer:
            for _ in range(turns // sessions):
                writer.turn()
    return len(replayed(folder))


def test_spans_leave_as_their_turns_close(tmp_path: Path) -> None:
    """A child leaves when it is finished, the turn when it closes; nothing leaves twice."""
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)) as found, agent(tmp_path / "s") as writer:
        writer.start()
        writer.message()
        writer.tool()
        receiver.wait_spans(2)
        assert [one.span.name for one in receiver.spans] == ["message", "execute_tool search"]
        writer.end()
        closed = time.monotonic()
        receiver.wait_spans(3)
        assert time.monotonic() - closed < 2
        assert wait_for(lambda: (found.facts.accepted, found.facts.backlog, found.facts.waiting_since) == (3, 0, None))
        assert (found.facts.rejected, found.facts.failures) == (0, 0)
    assert len(receiver.spans) == 3
    assert arrived(receiver.spans) == replayed(tmp_path / "s")
    assert found.failed == []


def test_a_position_is_kept_over_restarts(tmp_path: Path) -> None:
    """What was delivered is not sent again by the next run, and what came in between is."""
    with Receiver() as receiver:
        first = write(tmp_path / "s", 9)
        with following(tmp_path / "s", http(receiver)):
            receiver.wait_spans(first)
        with agent(tmp_path / "s", "s0", seed="more") as writer:
            writer.turn(items=2)
        with following(tmp_path / "s", http(receiver)) as found:
            receiver.wait_spans(first + 3)
            time.sleep(0.5)
        assert (found.facts.accepted, len(receiver.spans)) == (3, first + 3)


def test_nothing_is_lost_while_the_endpoint_is_down(tmp_path: Path) -> None:
    """Refused connections throughout, and an endpoint in the end: it gets everything once, and is told of, down and up.

    Meanwhile journals are not read on, the backlog is told, and since when it waits.
    """
    port = free_port()
    config = OtlpConfig(f"http://127.0.0.1:{port}/v1/traces", timeout=2.0)
    with following(tmp_path / "s", config) as found:
        begun = time.time()
        expected = write(tmp_path / "s", 30)
        assert wait_for(lambda: found.facts.failures >= 3)
        assert wait_for(lambda: found.facts.backlog > 0)
        since = found.facts.waiting_since
        assert since is not None
        assert begun - 1 <= since <= time.time()
        expected = write(tmp_path / "s", 60)
        assert wait_for(lambda: found.facts.backlog > 0.5 * expected)
        assert int(found.deliveries[0].left.split()[0]) < expected / 2
        with Receiver(port=port) as receiver:
            receiver.wait_spans(expected, 30)
            assert wait_for(lambda: (found.facts.backlog, found.facts.waiting_since) == (0, None))
            assert arrived(receiver.spans) == replayed(tmp_path / "s")
            assert len(receiver.spans) == found.facts.accepted == expected
    words = [line for line in found.said if "spans" in line]
    assert len(words) == 2
    assert words[0].startswith(f"{config.endpoint} takes no spans: ")
    assert words[1] == f"{config.endpoint} takes spans again"


@pytest.mark.parametrize(
    "answer",
    [Status(503), Status(429, retry_after="1"), Status(401), Status(404), Status(500), Reset(), Garbage()],
    ids=lambda answer: f"{type(answer).__name__}{getattr(answer, 'code', '')}",
)
def test_what_may_be_mended_is_sent_again(tmp_path: Path, answer: Action) -> None:
    """A busy endpoint, a wrong token, a wrong path, a web page: spans wait until it is mended, and each is sent."""
    expected = write(tmp_path / "s", 9)
    with Receiver(script=[answer, answer]) as receiver, following(tmp_path / "s", http(receiver)) as found:
        begun = time.monotonic()
        receiver.wait_spans(expected)
        took = time.monotonic() - begun
        assert wait_for(lambda: found.facts.accepted == expected)
        assert (found.facts.failures, found.facts.rejected) == (2, 0)
    assert arrived(receiver.spans) == replayed(tmp_path / "s")
    if answer == Status(429, retry_after="1"):
        assert took >= 2


@pytest.mark.parametrize("answer", [Status(400, message="no such field"), Grpc("INVALID_ARGUMENT", "no such field")])
def test_a_bad_request_is_refused_for_good(tmp_path: Path, answer: Action) -> None:
    """What the endpoint will never take is counted, told once, and does not hold up what comes after."""
    is_grpc = isinstance(answer, Grpc)
    with Receiver(grpc=is_grpc, script=lambda _request: answer) as receiver:
        config = http(receiver)
        if is_grpc:
            config = replace(config, endpoint=receiver.grpc_endpoint, protocol="grpc")
        with following(tmp_path / "s", config) as found, agent(tmp_path / "s") as writer:
            for refused in (3, 6):
                writer.turn("completed", 2)
                assert wait_for(lambda: found.facts.rejected == refused)  # noqa: B023 - called at once
            receiver.script = []
            writer.turn("completed", 1)
            receiver.wait_spans(2)
            assert wait_for(lambda: found.facts.accepted == 2)
            assert found.facts.failures == 0
    words = [line for line in found.said if "refused the spans" in line]
    assert len(words) == 1
    assert "no such field" in words[0]


def test_a_partial_success_counts_what_was_rejected(tmp_path: Path) -> None:
    """The endpoint's count is taken, and nothing is sent again."""
    with Receiver(script=[Partial(2, "too old")]) as receiver, following(tmp_path / "s", http(receiver)) as found:
        with agent(tmp_path / "s") as writer:
            writer.turn("completed", 3)
        assert wait_for(lambda: found.facts.rejected == 2)
        assert (found.facts.accepted, found.facts.failures, len(receiver.spans)) == (2, 0, 2)
        assert wait_for(lambda: found.facts.backlog == 0)
    assert [line for line in found.said if "too old" in line]


def test_what_is_too_large_is_split(tmp_path: Path) -> None:
    """413 halves the request until it fits."""
    expected = write(tmp_path / "s", 60)
    with Receiver(script=[MaxBytes(8_000)]) as receiver, following(tmp_path / "s", http(receiver)) as found:
        receiver.wait_spans(expected)
        assert wait_for(lambda: found.facts.accepted == expected)
        assert found.facts.failures == 0
    assert len(receiver.spans) == expected


def test_a_slow_endpoint_loses_nothing(tmp_path: Path) -> None:
    """Answers that take long, and some that come too late: spans come twice at worst, with the same content."""

    def slow(request: Request) -> Action | None:
        return Hang(1.5) if request.number % 4 == 1 else Slow(0.2)

    expected = write(tmp_path / "s", 300)
    with Receiver(script=slow) as receiver, following(tmp_path / "s", http(receiver, timeout=1.0)) as found:
        assert wait_for(lambda: found.facts.accepted == expected and not found.facts.backlog, 60)
        assert arrived(receiver.spans) == replayed(tmp_path / "s")
        assert found.facts.failures >= 1


def test_two_endpoints_go_their_own_ways(tmp_path: Path) -> None:
    """One that is down holds the other up by nothing, and gets all of it later from where it stood."""
    port = free_port()
    down = OtlpConfig(f"http://127.0.0.1:{port}/v1/traces")
    with Receiver() as receiver, following(tmp_path / "s", http(receiver), down) as found:
        expected = write(tmp_path / "s", 60)
        receiver.wait_spans(expected)
        assert wait_for(lambda: found.deliveries[1].facts.failures > 0)
        assert found.deliveries[1].facts.accepted == 0
        assert found.facts.failures == 0
    assert found.failed == [found.deliveries[1]]
    with Receiver(port=port) as late, Receiver() as again:
        with following(tmp_path / "s", replace(down), http(again)) as found:
            late.wait_spans(expected)
            again.wait_spans(expected)
        assert arrived(late.spans) == arrived(receiver.spans) == replayed(tmp_path / "s")
    assert len(receiver.spans) == expected


def test_more_sessions_than_are_kept_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those not used lately are let go with their positions, and go on where they stood."""
    monkeypatch.setattr(reading, "HOT_MAX", 3)
    monkeypatch.setattr(reading, "HOT_SLACK", 2)
    monkeypatch.setattr(delivery_module, "COMMIT_SECONDS", 3600.0)
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)) as found:
        for round_ in range(3):
            for number in range(12):
                with agent(tmp_path / "s", f"s{number}", seed=round_) as writer:
                    writer.turn("completed", 2)
            receiver.wait_spans(3 * 12 * (round_ + 1))
        reader = found.deliveries[0]._reading  # pyright: ignore[reportPrivateUsage]
        assert wait_for(lambda: len(reader._hot) <= 3)  # pyright: ignore[reportPrivateUsage]
    assert len(receiver.spans) == 3 * 36
    assert arrived(receiver.spans) == replayed(tmp_path / "s")


def test_a_corrupt_state_is_set_aside_and_everything_sent_again(tmp_path: Path) -> None:
    """The same ids come twice; the corrupt file is kept under another name."""
    expected = write(tmp_path / "s", 9)
    with Receiver() as receiver:
        with following(tmp_path / "s", http(receiver)):
            receiver.wait_spans(expected)
        (tmp_path / "state").write_bytes(b"SQLite format 3\0" + b"rubbish" * 1000)
        with following(tmp_path / "s", http(receiver)):
            receiver.wait_spans(2 * expected)
        assert arrived(receiver.spans) == replayed(tmp_path / "s")
    assert len([*tmp_path.glob("state.corrupt-*")]) == 1


def test_rubbish_in_the_state_costs_a_second_sending_only(tmp_path: Path) -> None:
    """A session whose position cannot be understood is read from its beginning."""
    expected = write(tmp_path / "s", 9)
    with Receiver() as receiver:
        config = http(receiver)
        with following(tmp_path / "s", config):
            receiver.wait_spans(expected)
        state = FleetState(tmp_path / "state")
        where = str((tmp_path / "s" / "s0").resolve())
        reader = f"otlp http/protobuf {config.endpoint}"
        saved = state.saved(reader, where)
        assert saved is not None
        for number, rubbish in enumerate(
            (b"", b"\0", b'{"v":1}\n{}', saved[: len(saved) // 2], saved.replace(b'"v":1', b'"v":2'))
        ):
            assert Leaving(tmp_path / "s" / "s0", Wanted(), FoldConfig(), saved=rubbish).followed.fold is None, number
        state.close()


def test_a_journal_written_anew_is_sent_anew(tmp_path: Path) -> None:
    """Other bytes in the same place are another journal; its spans leave from its beginning."""
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)):
        with agent(tmp_path / "s") as writer:
            writer.turn("completed", 1)
        receiver.wait_spans(2)
        segment = tmp_path / "s" / "one" / "journal" / "000001.jsonl"
        lines = segment.read_bytes().splitlines(keepends=True)
        segment.write_bytes(b"".join(lines).replace(b"turn-1", b"turn-9"))
        receiver.wait_spans(4)
        assert arrived(receiver.spans[2:]) == replayed(tmp_path / "s")


def test_one_state_is_one_followers(tmp_path: Path) -> None:
    """A second one with the same state file is refused."""
    state = FleetState(tmp_path / "state")
    try:
        with pytest.raises(UsageError, match="in use"):
            FleetState(tmp_path / "state")
    finally:
        state.close()
