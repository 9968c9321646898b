"""Observations followed live: spans and metrics of an agent that is not run here, as a replay gives them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, generate_latest

from raxol_otel.journal import open_journal
from raxol_otel.observed import Cancelled, Decision, Prompted, Selected, Status, ToolCall, TurnEnded, record
from tests.live_sdk import instrumented, replayed
from tests.prometheus_agent import turn
from tests.test_live_parity import by_id

if TYPE_CHECKING:
    from pathlib import Path


def test_observations_are_spans_and_metrics(tmp_path: Path) -> None:
    """A turn with a call that was allowed and done, one that failed, one that nobody answered; in a turn of ours."""
    registry = CollectorRegistry()
    with instrumented(registry=registry) as traces:
        with open_journal("s", base_dir=tmp_path) as journal:
            journal.append(turn(1)[0])
            record(journal, Prompted(), turn_id="review")
            record(journal, ToolCall("c1", Status.PENDING))
            record(journal, Decision("c1", Selected("opt-1", "allow_once")))
            record(journal, ToolCall("c1", Status.COMPLETED))
            record(journal, ToolCall("c2", Status.IN_PROGRESS))
            record(journal, ToolCall("c2", Status.FAILED))
            record(journal, ToolCall("c3", Status.PENDING))
            record(journal, Decision("c9", Cancelled()))
            record(journal, TurnEnded("end_turn"))
            journal.append_many(turn(1)[1:])
        text = generate_latest(registry).decode()
    live = traces.own()
    assert by_id(live) == by_id(replayed(tmp_path))
    c1, c2, c3, observed, *_ = live
    assert [span["attributes"].get("raxol.tool.outcome") for span in (c1, c2, c3)] == ["ok", "error", "unanswered"]
    assert [span["status"][0] for span in (c1, c2, c3)] == ["UNSET", "ERROR", "UNSET"]
    assert [event[0] for event in c1["events"]] == ["raxol.decision"]
    assert c1["events"][0][2] == {
        "raxol.decision.outcome": "selected",
        "raxol.decision.option": "opt-1",
        "raxol.decision.kind": "allow_once",
    }
    assert [event[2]["raxol.decision.outcome"] for event in observed["events"]] == ["cancelled"]
    said = observed["attributes"]
    assert said["raxol.observed"] is True
    assert (said["raxol.observed.reason"], said["raxol.turn.outcome"], said["raxol.turn.id"]) == (
        *("end_turn", "completed", "review"),
    )
    assert {span["parent_id"] for span in (c1, c2, c3)} == {observed["span_id"]}
    for line in (
        'raxol_observed_steps_total{outcome="none",source="agent",step="prompted"} 1.0',
        'raxol_observed_steps_total{outcome="pending",source="agent",step="tool_call"} 2.0',
        'raxol_observed_steps_total{outcome="selected",source="agent",step="decision"} 1.0',
        'raxol_observed_steps_total{outcome="cancelled",source="agent",step="decision"} 1.0',
        'raxol_turns_total{outcome="completed",source="agent"} 2.0',
        'raxol_tool_calls_total{outcome="error",source="agent",tool="_OTHER"} 1.0',
    ):
        assert line in text
