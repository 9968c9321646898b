"""What is counted of turns, tools and records. The numbers are worked out by hand from the records."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import pytest
from prometheus_client import CollectorRegistry

from raxol_otel.journal import iter_records
from raxol_otel.metrics import Metrics
from raxol_otel.turns import TurnFold, fold
from tests.conftest import ROOT
from tests.metrics_scrape import Agent, families, openmetrics
from tests.test_fold import ASK, BEGIN, CANCEL, DONE, ERROR, START, item, record

if TYPE_CHECKING:
    from collections.abc import Mapping

TOUR: Final = ROOT / "golden" / "tour"
USAGE: Final = {
    "input_tokens": 100,
    "cache_read_input_tokens": 700,
    "cache_creation_input_tokens": 50,
    "output_tokens": 40,
    "output_tokens_details": {"reasoning_tokens": 15},
}


def observed(offset: int, **payload: Any) -> dict[str, Any]:
    """A record of what another agent reported."""
    return record(offset, "observed", None, {"family": "meta"}, **payload)


def test_turns_by_outcome_and_how_long_they_took() -> None:
    """Each turn counts once, under how it ended, with its own duration."""
    agent = Agent()
    agent.run(
        *(record(1, START, "a"), record(3, DONE, "a", final=True)),
        *(record(10, START, "b"), record(11, CANCEL, "b")),
        *(record(20, START, "c"), record(24, ERROR, "c", reason="boom")),
        *(record(30, START, "d"), item(31, "message")),
        *(record(40, START, "e"), record(43, DONE, "e")),
    )
    assert agent.counted("raxol_turns") == {
        'raxol_turns_total{outcome="canceled"}': 1,
        'raxol_turns_total{outcome="completed"}': 2,
        'raxol_turns_total{outcome="error"}': 1,
        # t1, which the stray item opened, and d, which e's start closed.
        'raxol_turns_total{outcome="incomplete"}': 2,
    }
    series = agent.series()
    assert series['raxol_turn_duration_seconds_sum{outcome="completed"}'] == 5
    assert series['raxol_turn_duration_seconds_sum{outcome="error"}'] == 4
    assert series['raxol_turn_duration_seconds_bucket{le="1.6",outcome="completed"}'] == 0
    assert series['raxol_turn_duration_seconds_bucket{le="3.2",outcome="completed"}'] == 2
    assert series['raxol_turn_duration_seconds_bucket{le="6553.6",outcome="completed"}'] == 2


def test_provider_calls_of_a_turn() -> None:
    """A turn that made none is no turn of 0 calls: nobody knows."""
    agent = Agent()
    agent.run(
        *(record(1, START), record(2, DONE), record(3, DONE), record(4, DONE, final=True)),
        *(record(5, START, "b"), record(6, CANCEL, "b")),
    )
    series = agent.series()
    assert series["raxol_turn_iterations_count"] == 1
    assert series["raxol_turn_iterations_sum"] == 3
    assert (series['raxol_turn_iterations_bucket{le="2.0"}'], series['raxol_turn_iterations_bucket{le="3.0"}']) == (
        0,
        1,
    )


@pytest.mark.parametrize(
    ("closing", "status"),
    [
        ({"evidence": "accepted"}, "accepted"),
        ({"evidence": "rejected"}, "rejected"),
        ({"evidence": "absent"}, "absent"),
        ({"refs": []}, "accepted"),
        ({}, "unknown"),
        ({"evidence": "a text of its own"}, "unknown"),
    ],
)
def test_evidence_of_a_completed_turn(closing: dict[str, Any], status: str) -> None:
    """By what its last boundary says; a turn that did not complete says nothing."""
    agent = Agent()
    agent.run(record(1, START), record(2, DONE, final=True, **closing), record(3, START, "b"), record(4, CANCEL, "b"))
    assert agent.counted("raxol_turn_evidence") == {f'raxol_turn_evidence_total{{status="{status}"}}': 1}


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        pytest.param(
            USAGE, {"none": 100, "read": 700, "write": 50, "text": 25, "reasoning": 15}, id="all parts, beside the rest"
        ),
        pytest.param(
            {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 80}, "completion_tokens": 9},
            {"none": 20, "read": 80, "text": 9},
            id="parts inside the total",
        ),
        pytest.param(
            {"prompt_tokens": 10, "prompt_tokens_details": {"cached_tokens": 80}},
            {"read": 10},
            id="part over the total",
        ),
        pytest.param({"cache_read_input_tokens": 7}, {"read": 7}, id="only a part is known"),
        pytest.param(
            {"output_tokens": 5, "output_tokens_details": {"reasoning_tokens": 9}}, {"reasoning": 5}, id="more"
        ),
        pytest.param({"input_tokens": 2**62, "output_tokens": 3}, {"text": 3}, id="more than anybody sends"),
        pytest.param({"input_tokens": None, "output_tokens": "many"}, {}, id="unknown"),
        pytest.param(None, {}, id="none"),
    ],
)
def test_tokens_are_counted_in_parts_that_add_up(usage: Any, tokens: dict[str, int]) -> None:
    """The parts of a partition never sum to more than the total, where that is known; the unknown is not counted."""
    agent = Agent()
    agent.run(record(1, START), record(2, DONE, final=True, usage=usage))
    parts = {
        f"raxol_{'output' if part in {'text', 'reasoning'} else 'input'}_tokens_total"
        f'{{{"kind" if part in {"text", "reasoning"} else "cache"}="{part}"}}': number
        for part, number in tokens.items()
    }
    assert agent.counted("raxol_input_tokens") | agent.counted("raxol_output_tokens") == parts


@pytest.mark.parametrize(
    ("costs", "total"), [([0.25, 0.5], 0.75), ([0], 0), ([None, "dear"], 0), ([1e308], 0), ([2**53], 0), ([-1.0], 0)]
)
def test_costs_add_up(costs: list[Any], total: float) -> None:
    """What is no cost adds nothing, and what no float could go on counting from neither."""
    agent = Agent()
    closings = [record(number, DONE, cost=cost) for number, cost in enumerate(costs, 2)]
    agent.run(record(1, START), *closings)
    assert agent.series()["raxol_cost_usd_total"] == total


def test_tool_calls_by_name_and_outcome() -> None:
    """Each call counts under its tool and how it ended; only one that got its result took a time that is known."""
    agent = Agent()
    agent.run(
        record(1, START),
        item(2, "tool_use", "i2", name="sh", call_id="1"),
        item(4, "tool_result", "i4", name="sh", call_id="1"),
        item(5, "tool_use", "i5", name="sh", call_id="2"),
        item(6, "tool_use", "i6", name="sh", call_id="3"),
        item(7, "tool_result", "i7", name="sh", call_id="2", is_error=True),
        item(8, "tool_result", "i8", name="read", call_id="9"),
        record(9, DONE, final=True),
    )
    assert agent.counted("raxol_tool") == {
        'raxol_tool_calls_total{outcome="ok",tool="sh"}': 1,
        'raxol_tool_calls_total{outcome="error",tool="sh"}': 1,
        'raxol_tool_calls_total{outcome="unanswered",tool="sh"}': 1,
        'raxol_tool_calls_total{outcome="orphan",tool="read"}': 1,
        'raxol_tool_duration_seconds_count{tool="sh"}': 2,
        'raxol_tool_duration_seconds_sum{tool="sh"}': 4,
    }
    # Beside the one that came, the outcomes that did not: a first failure later is an increase.
    assert agent.series()['raxol_tool_calls_total{outcome="error",tool="read"}'] == 0


def test_what_records_say_is_counted_whatever_becomes_of_their_turns() -> None:
    """Approvals, taint and errors, also of a turn that never ends or has ended."""
    tainted = {"provenance": {"trust": "tainted"}}
    agent = Agent()
    agent.run(
        record(1, START),
        record(2, ASK, request_id="r", risk="high"),
        item(3, "message", "i3", BEGIN),
        {**item(4, "message", "i3"), **tainted},
        {**item(5, "tool_use", "i5", BEGIN), **tainted},
        record(6, ERROR, reason="unmapped_acp_update"),
        record(7, ERROR, reason="{:http_error, 529}"),
        record(8, ERROR, reason="secret words"),
        record(9, ERROR, error={"type": "overloaded"}),
    )
    found = agent.counted()
    assert found["raxol_approvals_requested_total"] == 1
    assert found["raxol_tainted_items_total"] == 1
    assert {name: value for name, value in found.items() if name.startswith("raxol_errors")} == {
        'raxol_errors_total{error_type="unmapped_acp_update"}': 1,
        'raxol_errors_total{error_type="http_error"}': 1,
        'raxol_errors_total{error_type="_OTHER"}': 1,
        'raxol_errors_total{error_type="overloaded"}': 1,
    }
    assert found["raxol_turn_late_records_total"] == 2


def test_records_by_type_and_what_is_unknown_of_them() -> None:
    """Known types by name, all others together; unknown is what the fold did not know."""
    agent = Agent()
    agent.run(
        record(1, START),
        record(2, "idle"),
        record(3, "invented"),
        record(4, ["a", "list"]),
        record(5, START, "b", {"kind": "invented"}),
        record(6, START, "b", {"family": "invented"}),
        {"id": 7, "kind": "checkpoint", "tip_offset": 1, "reason": "auto"},
        {"id": 8},
        item(9, "invented"),
        item(10, "invented"),
    )
    assert agent.counted("raxol_journal") == {
        'raxol_journal_records_total{type="turn_started"}': 2,
        'raxol_journal_records_total{type="idle"}': 1,
        'raxol_journal_records_total{type="item_completed"}': 2,
        'raxol_journal_records_total{type="checkpoint"}': 1,
        'raxol_journal_records_total{type="other"}': 4,
        'raxol_journal_unknown_total{what="kind"}': 1,
        'raxol_journal_unknown_total{what="family"}': 2,
        'raxol_journal_unknown_total{what="type"}': 2,
        'raxol_journal_unknown_total{what="item_type"}': 2,
    }


def test_observed_steps_by_what_they_came_to() -> None:
    """A selection and a cancellation are told apart; the other party's words never become a label."""
    selected = {"outcome": "selected", "option": "allow_always", "kind": "their own word"}
    agent = Agent()
    agent.run(
        observed(1, step="prompted"),
        observed(2, step="tool_call", call="c", status="pending"),
        observed(3, step="decision", call="c", outcome=selected),
        observed(4, step="decision", call="c", outcome={"outcome": "cancelled"}),
        observed(5, step="decision", call="c", outcome={"outcome": "shrugged"}),
        observed(6, step="tool_call", call="c", status="failed"),
        observed(7, step="turn_ended", reason="end_turn"),
        *(observed(8, step="tool_call", call="c", status="their word"), observed(9, step="decision")),
        *(observed(10, step=["prompted"]), observed(11, step="dreamed", call="c")),
    )
    assert agent.counted("raxol_observed") == {
        'raxol_observed_steps_total{outcome="none",step="prompted"}': 1,
        'raxol_observed_steps_total{outcome="pending",step="tool_call"}': 1,
        'raxol_observed_steps_total{outcome="selected",step="decision"}': 1,
        'raxol_observed_steps_total{outcome="cancelled",step="decision"}': 1,
        'raxol_observed_steps_total{outcome="other",step="decision"}': 1,
        'raxol_observed_steps_total{outcome="failed",step="tool_call"}': 1,
        'raxol_observed_steps_total{outcome="none",step="turn_ended"}': 1,
    }
    assert agent.counted("raxol_turns") == {'raxol_turns_total{outcome="completed"}': 1}


def test_metrics_and_traces_say_the_same_of_the_tour() -> None:
    """As many turns and tool calls are counted as spans go out, by outcome; as many records as the journal has."""
    agent = Agent()
    records = list(iter_records(TOUR))
    agent.run(*records, session_id="tour")
    found = agent.counted()
    expected: dict[str, float] = {}
    for span in fold(records, "tour"):
        said = span.attributes
        if span.role == "turn":
            name = f'raxol_turns_total{{outcome="{said["raxol.turn.outcome"]}"}}'
        elif span.role == "tool":
            tool = said.get("gen_ai.tool.name", "_OTHER")
            name = f'raxol_tool_calls_total{{outcome="{said["raxol.tool.outcome"]}",tool="{tool}"}}'
        else:
            continue
        expected[name] = expected.get(name, 0) + 1
    assert {name: value for name, value in found.items() if name in expected or "_calls_" in name} == expected
    assert sum(value for name, value in found.items() if "_records_total{" in name) == len(records)


def test_one_record_at_a_time_counts_as_all_at_once() -> None:
    """Live and replay give the same numbers."""
    at_once, one_by_one = Agent(), Agent()
    records = list(iter_records(TOUR))
    at_once.run(*records)
    turns = TurnFold("s")
    following = one_by_one.metrics.follow(turns)
    for one in records:
        following.observe([one], turns.feed(one))
    one_by_one.metrics.observe_spans(turns.close())
    assert one_by_one.series() == at_once.series()


def test_exemplars_lead_from_a_metric_to_its_trace() -> None:
    """With the flag, and only then; they pass the strict parser of OpenMetrics."""

    def exemplars(agent: Agent) -> dict[str, Mapping[str, str]]:
        samples = [sample for family in families(openmetrics(agent.registry)) for sample in family.samples]
        return {sample.name: sample.exemplar.labels for sample in samples if sample.exemplar}

    records = [
        record(1, START),
        item(2, "tool_use", "i2", name="sh", call_id="1"),
        item(4, "tool_result", "i4", name="sh", call_id="1"),
        record(5, DONE, final=True, usage=USAGE, cost=0.5),
    ]
    tool, turn = list(fold(records, "s"))
    agent, silent = Agent(), Agent()
    agent.run(*records, exemplar=True)
    silent.run(*records)
    assert exemplars(silent) == {}
    of_turn = {"trace_id": turn.trace_id, "span_id": turn.span_id}
    assert exemplars(agent) == {
        "raxol_turns_total": of_turn,
        "raxol_turn_duration_seconds_bucket": of_turn,
        "raxol_turn_iterations_bucket": of_turn,
        "raxol_turn_evidence_total": of_turn,
        "raxol_cost_usd_total": of_turn,
        "raxol_tool_calls_total": {"trace_id": tool.trace_id, "span_id": tool.span_id},
        "raxol_tool_duration_seconds_bucket": {"trace_id": tool.trace_id, "span_id": tool.span_id},
    }


def test_syncs_repairs_and_the_state_of_the_writers() -> None:
    """What the writer tells is counted; what it is asked for at a scrape is there once there is somebody to ask."""
    agent = Agent()
    assert "raxol_journal_unsynced_seconds" not in agent.series()
    said: dict[str, Any] = {"unsynced": 1.5, "failing": True}
    agent.metrics.watch_writers(unsynced=lambda: said["unsynced"], failing=lambda: said["failing"])
    agent.metrics.observe_torn_repair()
    for seconds in (0.0004, 0.003, -1.0, float("nan"), float("inf")):
        agent.metrics.observe_sync(seconds)
    series = agent.series()
    assert series["raxol_journal_torn_repairs_total"] == 1
    assert series["raxol_journal_sync_duration_seconds_count"] == 2
    assert series['raxol_journal_sync_duration_seconds_bucket{le="0.0005"}'] == 1
    assert (series["raxol_journal_unsynced_seconds"], series["raxol_journal_writer_failing"]) == (1.5, 1)
    said.update(unsynced=-0.1, failing=False)
    series = agent.series()
    assert (series["raxol_journal_unsynced_seconds"], series["raxol_journal_writer_failing"]) == (0, 0)
    said.update(unsynced="?", failing=float("nan"))
    series = agent.series()
    assert "raxol_journal_unsynced_seconds" not in series
    assert "raxol_journal_writer_failing" not in series


def test_metrics_come_and_go() -> None:
    """A registry takes one of them, and gets rid of it; going twice is no mistake."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    with pytest.raises(ValueError, match="Duplicated"):
        Metrics(registry)
    metrics.close()
    metrics.close()
    Metrics(registry, source="fleet")
    with pytest.raises(ValueError, match="source must be one of agent, fleet"):
        Metrics(CollectorRegistry(), source="mine")  # type: ignore[arg-type] # pyright: ignore[reportArgumentType]


def test_a_watcher_of_many_says_nothing_of_writers() -> None:
    """It has none: a 0 there would say that they are well."""
    fleet = Agent("fleet")
    fleet.metrics.watch_writers(unsynced=lambda: 1.0, failing=lambda: True)
    names = {name.split("{")[0] for name in fleet.series()}
    assert "raxol_journal_damaged_total" in names
    assert {
        name for name in names if "sync" in name or "writ" in name or "torn" in name or "surrogate" in name
    } == set()
