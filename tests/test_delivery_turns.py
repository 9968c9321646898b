"""Which spans leave: turns without an end, damaged journals, and the choices by time, session, ratio and outcome."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.sdk.trace.sampling import Decision, TraceIdRatioBased

from raxol_otel.exporters.otlp_config import OtlpConfig
from raxol_otel.exporters.replay import ReplayOptions
from raxol_otel.fleet import leaving as leaving_module
from raxol_otel.fleet import reading
from raxol_otel.fleet.delivery import DeliveryOptions
from raxol_otel.fleet.leaving import Leaving
from raxol_otel.fleet.wanted import Wanted
from raxol_otel.turns import FoldConfig
from tests.follow_agents import agent, arrived, following, http, key_of, replayed
from tests.otlp_receiver import Action, Receiver, Request, Status, attributes
from tests.test_otlp_cli import wait_for

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from tests.otlp_receiver import Received


def turns(spans: Iterable[Received]) -> list[tuple[str, str]]:
    """Id and outcome of the turns, in order."""
    return [key_of(one.span) for one in spans if one.span.name == "invoke_agent"]


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A writer is looked for soon."""
    monkeypatch.setattr(reading, "QUIET_SECONDS", 0.3)


# -- turns without an end


def test_an_open_turn_of_a_live_writer_stays(tmp_path: Path) -> None:
    """It may go on at any moment; only its finished children leave."""
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)), agent(tmp_path / "s") as writer:
        writer.start()
        writer.message()
        receiver.wait_spans(1)
        time.sleep(1.5)
        assert turns(receiver.spans) == []


def test_a_turn_whose_writer_is_gone_leaves_as_incomplete_and_later_as_completed(tmp_path: Path) -> None:
    """Once for each end of the journal; when it goes on and completes, the same span is sent as completed."""
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)):
        with agent(tmp_path / "s") as writer:
            writer.start()
            writer.message()
        receiver.wait_spans(2)
        ((turn, outcome),) = turns(receiver.spans)
        assert outcome == "incomplete"
        time.sleep(1.0)
        assert len(receiver.spans) == 2
        with agent(tmp_path / "s") as writer:
            writer.turns = 1
            writer.message()
            writer.end()
        receiver.wait_spans(4)
        assert turns(receiver.spans) == [(turn, "incomplete"), (turn, "completed")]
        assert arrived(receiver.spans).items() >= replayed(tmp_path / "s").items()


def test_an_incomplete_turn_is_sent_once_over_restarts(tmp_path: Path) -> None:
    """That it left is part of the position."""
    with agent(tmp_path / "s") as writer:
        writer.start()
    with Receiver() as receiver:
        for _ in range(2):
            with following(tmp_path / "s", http(receiver)):
                receiver.wait_spans(1)
                time.sleep(1.0)
        assert len(turns(receiver.spans)) == 1


def test_a_writer_that_dies_changes_nothing_and_is_missed(tmp_path: Path) -> None:
    """A lock that nobody holds any more: the turn leaves though no file was touched."""
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)):
        child = os.fork()
        if not child:
            with agent(tmp_path / "s") as writer:
                writer.start()
                writer.journal.flush()
                os._exit(0)  # as by kill -9: the lock file stays
        os.waitpid(child, 0)
        assert (tmp_path / "s" / "one" / "writer.lock").exists()
        receiver.wait_spans(1)
        assert [outcome for _, outcome in turns(receiver.spans)] == ["incomplete"]


def test_a_writer_that_cannot_be_told_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Until the journal's last record is as old as for a replay."""
    with agent(tmp_path / "s") as writer:
        writer.start()
    lock = tmp_path / "s" / "one" / "writer.lock"
    lock.symlink_to(lock)
    options = DeliveryOptions(settle_seconds=2.5)
    begun = time.monotonic()
    with Receiver() as receiver, following(tmp_path / "s", http(receiver), options=options):
        receiver.wait_spans(1)
        assert time.monotonic() - begun >= 1.5
    monkeypatch.undo()


# -- damage


def damage(folder: Path, name: str = "one") -> None:
    """Add a line that is no record."""
    with (folder / name / "journal" / "000001.jsonl").open("ab") as file:
        file.write(b"{}{}\n")


def logs(receiver: Receiver) -> list[tuple[str, dict[str, object]]]:
    """Name, severity and attributes of the log events that arrived."""
    found: list[tuple[str, dict[str, object]]] = []
    for message in receiver.others:
        assert isinstance(message, ExportLogsServiceRequest)
        for resource in message.resource_logs:
            for scope in resource.scope_logs:
                found += [
                    (f"{one.event_name} {one.severity_text}", attributes(one.attributes)) for one in scope.log_records
                ]
    return found


def test_damage_is_told_and_later_turns_are_marked(tmp_path: Path) -> None:
    """One log event, once over restarts; the turn that is cut off leaves, and says that its journal is damaged."""
    with Receiver(others=True) as receiver:
        with following(tmp_path / "s", http(receiver)) as found:
            with agent(tmp_path / "s") as writer:
                writer.turn("completed", 0)
                receiver.wait_spans(1)
                writer.start()
                writer.journal.flush()
                damage(tmp_path / "s")
                receiver.wait_spans(2)
            assert wait_for(lambda: len(receiver.others) == 1)
        with following(tmp_path / "s", http(receiver)):
            time.sleep(1.0)
        first, second = (attributes(one.span.attributes) for one in receiver.spans)
        assert ("raxol.journal.damaged" in first, second["raxol.journal.damaged"]) == (False, True)
        assert (first["raxol.turn.outcome"], second["raxol.turn.outcome"]) == ("completed", "incomplete")
        assert logs(receiver) == [
            (
                "raxol.agent.journal.damaged ERROR",
                {
                    "raxol.session.id": "one",
                    "raxol.journal.segment": "journal/000001.jsonl",
                    "raxol.journal.damage.cause": "unparsable",
                    "raxol.journal.last_offset": 3,
                },
            )
        ]
    assert len([line for line in found.said if "one is damaged at journal/000001.jsonl line 4" in line]) == 1


def test_damage_is_told_over_grpc(tmp_path: Path) -> None:
    """LogsService, by the same channel's options; an endpoint without it is told of once and takes its traces."""
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 1)
    damage(tmp_path / "s")
    with Receiver(grpc=True) as receiver:
        config = OtlpConfig(receiver.grpc_endpoint, "grpc")
        with following(tmp_path / "s", config) as found:
            receiver.wait_spans(2)
            assert wait_for(lambda: any("takes no logs: gRPC UNIMPLEMENTED" in line for line in found.said))
            with agent(tmp_path / "s", "two") as writer:
                writer.turn("completed", 1)
            receiver.wait_spans(4)


def test_an_endpoint_without_logs_costs_no_traces(tmp_path: Path) -> None:
    """404 for the logs is told once; spans and positions go on."""
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 1)
    damage(tmp_path / "s")
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)) as found:
        receiver.wait_spans(2)
        assert wait_for(lambda: any("takes no logs: HTTP 404" in line for line in found.said))
        with agent(tmp_path / "s", "two") as writer:
            writer.turn("completed", 1)
        damage(tmp_path / "s", "two")
        receiver.wait_spans(4)
        assert len([line for line in found.said if "takes no logs" in line]) == 1
    assert found.failed == []


def test_logs_that_are_not_taken_now_are_told_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A busy logs endpoint holds no spans up, and the event comes in the end, after a restart too."""
    monkeypatch.setattr("raxol_otel.fleet.delivery.TELL_SECONDS", 0.5)
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 1)
    damage(tmp_path / "s")

    def busy(request: Request) -> Action | None:
        return Status(503) if request.path == "/v1/logs" else None

    with Receiver(others=True, script=busy) as receiver:
        with following(tmp_path / "s", http(receiver)) as found:
            receiver.wait_spans(2)
            assert wait_for(lambda: sum(one.path == "/v1/logs" for one in receiver.requests) >= 2)
        assert found.failed == []
        receiver.script = []
        with following(tmp_path / "s", http(receiver)):
            assert wait_for(lambda: len(receiver.others) == 1)
        assert len(receiver.spans) == 2


# -- choices


def many(folder: Path, names: Iterable[str] = ("one",), count: int = 40) -> None:
    """Sessions with turns of all outcomes."""
    for name in names:
        with agent(folder, name) as writer:
            for _ in range(count):
                writer.turn()


def test_a_ratio_chooses_the_traces_that_the_sdk_would_choose(tmp_path: Path) -> None:
    """By the trace id, whole traces: what one program samples another does, too."""
    many(tmp_path / "s", count=200)
    sampler = TraceIdRatioBased(0.3)
    wanted = {
        key: span
        for key, span in replayed(tmp_path / "s").items()
        if sampler.should_sample(None, int(span.trace_id.hex(), 16), "").decision is Decision.RECORD_AND_SAMPLE
    }
    options = DeliveryOptions(wanted=Wanted(sample=0.3))
    with Receiver() as receiver, following(tmp_path / "s", http(receiver), options=options) as found:
        receiver.wait_spans(len(wanted))
        assert wait_for(lambda: not found.facts.backlog)
    assert arrived(receiver.spans) == wanted
    assert 30 <= len(turns(receiver.spans)) <= 90


@pytest.mark.parametrize(("ratio", "expected"), [(0.0, 0), (1.0, 40)])
def test_none_and_all(tmp_path: Path, ratio: float, expected: int) -> None:
    """0 is no trace, 1 every one."""
    many(tmp_path / "s")
    leaving = Leaving(tmp_path / "s" / "one", Wanted(sample=ratio), FoldConfig())
    assert sum(span.role == "turn" for span in leaving.read(10**7)) == expected


def test_sessions_are_chosen_by_name(tmp_path: Path) -> None:
    """Patterns as in a shell, of the directory's own name."""
    many(tmp_path / "s" / "team", ["prod-1", "prod-2", "dev-1"], 3)
    options = DeliveryOptions(wanted=Wanted(sessions=("prod-*", "*-9")))
    with Receiver() as receiver, following(tmp_path / "s", http(receiver), options=options) as found:
        assert wait_for(lambda: len(turns(receiver.spans)) == 6)
        assert wait_for(lambda: not found.facts.backlog)
    sessions = {attributes(one.span.attributes).get("raxol.session.id") for one in receiver.spans}
    assert sessions - {None} == {"prod-1", "prod-2"}


def test_turns_are_chosen_by_outcome_with_their_children(tmp_path: Path) -> None:
    """Children wait for their turn's outcome, and go with it."""
    many(tmp_path / "s")
    everything = replayed(tmp_path / "s")
    failed = {
        span.span_id for (_, outcome), span in everything.items() if outcome == "error" and not span.parent_span_id
    }
    assert failed
    expected = {key: span for key, span in everything.items() if {span.span_id, span.parent_span_id} & failed}
    options = DeliveryOptions(wanted=Wanted(outcomes=frozenset({"error"})))
    with Receiver() as receiver, following(tmp_path / "s", http(receiver), options=options):
        receiver.wait_spans(len(expected))
    assert arrived(receiver.spans) == expected


def test_children_that_wait_are_part_of_the_position(tmp_path: Path) -> None:
    """A restart in the middle of a turn loses none of its children."""
    options = DeliveryOptions(wanted=Wanted(outcomes=frozenset({"completed"})))
    with Receiver() as receiver, agent(tmp_path / "s") as writer:
        for step in range(3):
            with following(tmp_path / "s", http(receiver), options=options):
                if not step:
                    writer.start()
                writer.message()
                writer.tool()
                writer.journal.flush()
                time.sleep(0.7)
                assert receiver.spans == []
        writer.end()
        with following(tmp_path / "s", http(receiver), options=options):
            receiver.wait_spans(7)
        assert arrived(receiver.spans) == replayed(tmp_path / "s")


def test_too_many_children_leave_without_their_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory is bounded: rather more is sent than was asked for."""
    monkeypatch.setattr(leaving_module, "WAITING_SPANS_MAX", 10)
    with agent(tmp_path / "s") as writer:
        writer.start()
        for _ in range(25):
            writer.message()
        writer.journal.flush()
        leaving = Leaving(tmp_path / "s" / "one", Wanted(outcomes=frozenset({"error"})), FoldConfig())
        first = leaving.read(10**7)
        writer.end("canceled")
        writer.journal.flush()
        assert (len(first), leaving.read(10**7)) == (25, [])


def test_turns_from_a_time_on(tmp_path: Path) -> None:
    """By the turn's start, over restarts too."""
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 1)
        time.sleep(0.05)
        since = time.time_ns()
        writer.turn("completed", 1)
    options = DeliveryOptions(wanted=Wanted(since=since))
    with Receiver() as receiver:
        with following(tmp_path / "s", http(receiver), options=options):
            receiver.wait_spans(2)
        with agent(tmp_path / "s") as writer:
            writer.turns = 2
            writer.turn("completed", 1)
        with following(tmp_path / "s", http(receiver), options=options):
            receiver.wait_spans(4)
        expected = replayed(tmp_path / "s", ReplayOptions(since=since, settle_seconds=0))
        assert arrived(receiver.spans) == expected
        assert len(expected) == 4


def test_a_session_that_is_gone_is_forgotten(tmp_path: Path) -> None:
    """Its directory is removed: nothing is said, and another of that name is another."""
    with Receiver() as receiver, following(tmp_path / "s", http(receiver)) as found:
        with agent(tmp_path / "s") as writer:
            writer.start()
        receiver.wait_spans(1)
        shutil.rmtree(tmp_path / "s" / "one")
        time.sleep(1.0)  # that it is missed
        with agent(tmp_path / "s") as writer:
            writer.turn("completed", 1)
        receiver.wait_spans(3)
        assert wait_for(lambda: not found.facts.backlog)
    assert found.said in ([], [f"waiting for {tmp_path / 's'}, which does not exist yet"])


def test_a_session_whose_name_is_no_text(tmp_path: Path) -> None:
    """Bytes that are no UTF-8: it is followed, its children wait and its position is kept like any other's."""
    options = DeliveryOptions(wanted=Wanted(outcomes=frozenset({"completed"})))
    folder = tmp_path / "s"
    odd = folder / os.fsdecode(b"caf\xe9")
    with Receiver() as receiver:
        with agent(folder) as writer:
            writer.start()
            writer.message()
        (folder / "one").rename(odd)
        with following(folder, http(receiver), options=options):
            time.sleep(1.5)
        odd.rename(folder / "one")
        with agent(folder) as writer:
            writer.turns = 1
            writer.end()
        (folder / "one").rename(odd)
        with following(folder, http(receiver), options=options) as found:
            receiver.wait_spans(2)
            assert wait_for(lambda: not found.facts.backlog)
        assert arrived(receiver.spans) == replayed(folder)
    assert found.said == []
