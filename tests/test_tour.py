"""The tour in golden/: it is what its program writes, it is healthy, and it shows what a tour should show.

The sights are looked for in the records themselves, by plain walks that know nothing of the fold.
"""

from __future__ import annotations

import json
import re
import sys
from datetime import datetime
from functools import cache
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import catalogue as names
from raxol_otel.journal import CONVERSATIONAL_TYPES, scan, tip, verify
from tests import make_tour
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Record = dict[str, Any]

GOLDEN: Final = ROOT / "golden"
TOUR: Final = GOLDEN / "tour"


def files_below(folder: Path) -> dict[str, bytes]:
    """The bytes of every file, by its path below the folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@cache
def tour() -> list[Record]:
    """The records of the tour."""
    return scan(TOUR).records


def payloads(what: str, **expected: Any) -> list[Record]:
    """The payloads of a type that have these values."""
    found = [record["payload"] for record in tour() if record.get("type") == what]
    return [payload for payload in found if expected.items() <= payload.items()]


def is_of_a_turn(record: Record) -> bool:
    """Whether the record belongs to a turn of the agent itself."""
    return record.get("family") == "loop" and record["turn_id"] is not None and "kind" not in record


def branch_of(record: Record) -> str:
    """The record's branch."""
    return str(record.get("branch_id", "main"))


def is_closing(record: Record) -> bool:
    """Whether the record itself closes its turn."""
    return record["type"] in {"error", "turn_canceled"} or record["payload"].get("final") is True


@cache
def turns() -> list[list[Record]]:
    """The records of each turn, up to the one that closes it. The tour uses no turn id twice."""
    found: dict[str, list[Record]] = {}
    for record in filter(is_of_a_turn, tour()):
        turn = found.setdefault(record["turn_id"], [])
        if not (turn and is_closing(turn[-1])):
            turn.append(record)
    return list(found.values())


def items(turn: list[Record], what: str, item_type: str) -> list[Record]:
    """The payloads of a turn's item records of one type."""
    return [
        record["payload"]
        for record in turn
        if record["type"] == what and record["payload"].get("item_type") == item_type
    ]


def calls_and_results(turn: list[Record]) -> tuple[list[Record], list[Record]]:
    """What a turn called, and what came back."""
    return items(turn, "item_completed", "tool_use"), items(turn, "item_completed", "tool_result")


def unfinished(item_type: str) -> bool:
    """Whether an item of the type started and never completed."""
    for turn in turns():
        started = {item["item_id"] for item in items(turn, "item_started", item_type)}
        if started - {item["item_id"] for item in items(turn, "item_completed", item_type)}:
            return True
    return False


def unanswered() -> bool:
    """Whether a call's result is nowhere in the journal."""
    results = payloads("item_completed", item_type="tool_result")
    answered = {result.get("call_id") for result in results}
    by_name = {result["name"] for result in results if "call_id" not in result}
    calls = payloads("item_completed", item_type="tool_use")
    return any(call["call_id"] not in answered and call["name"] not in by_name for call in calls)


def orphaned() -> bool:
    """Whether a result names a call that its turn never made."""
    for calls, results in map(calls_and_results, turns()):
        if {result["call_id"] for result in results if "call_id" in result} - {call["call_id"] for call in calls}:
            return True
    return False


def parallel() -> bool:
    """Whether a tool is called again before it has answered, and the second call is answered first."""
    for calls, results in map(calls_and_results, turns()):
        answers = [result.get("call_id") for result in results]
        for first, second in pairwise(calls):
            if first["name"] == second["name"] and first["call_id"] in answers and second["call_id"] in answers:
                return answers.index(second["call_id"]) < answers.index(first["call_id"])
    return False


def matched_by_name() -> bool:
    """Whether a result without a call id has a call of its name to go to."""
    return any(
        "call_id" not in result and result["name"] in {call["name"] for call in calls}
        for calls, results in map(calls_and_results, turns())
        for result in results
    )


def left_open() -> bool:
    """Whether a turn of several calls of the model, each with usage, is closed by the next turn's start alone."""
    for turn in turns():
        ends = [record["payload"] for record in turn if record["type"] == "turn_completed"]
        if turn[-1]["type"] == "turn_completed" and not is_closing(turn[-1]) and is_followed(turn):
            return len(ends) > 1 and all(end["usage"]["output_tokens"] for end in ends)
    return False


def is_followed(turn: list[Record]) -> bool:
    """Whether another turn of the same branch starts later."""
    return any(
        other[0]["type"] == "turn_started"
        and other[0]["id"] > turn[-1]["id"]
        and branch_of(other[0]) == branch_of(turn[0])
        for other in turns()
    )


def incomplete() -> bool:
    """Whether a turn just stops, and another follows."""
    return any(
        turn[-1]["type"] != "turn_completed" and not is_closing(turn[-1]) and is_followed(turn) for turn in turns()
    )


def late() -> bool:
    """Whether a record comes after its turn was closed."""
    return sum(map(len, turns())) < sum(map(is_of_a_turn, tour()))


def checkpointed() -> bool:
    """Whether a tip-only checkpoint stands between two calls of the model within one turn, at the tip."""
    for record in tour():
        if record.get("kind") == "checkpoint":
            before = tour()[: record["id"] - 1]
            pointer = (record["tip_offset"], record["reason"], record["snapshot_ref"], record["snapshot_hash"])
            within = [turn for turn in turns() if turn[0]["id"] < record["id"] < turn[-1]["id"]]
            between = before[-1]["type"] == "turn_completed" and before[-1]["payload"]["final"] is False
            return between and len(within) == 1 and pointer == (tip(before), "compaction", None, None)
    return False


def clock_steps_back() -> bool:
    """Whether an item ends before it began."""
    for turn in turns():
        begun = {record["payload"]["item_id"]: record["ts"] for record in turn if record["type"] == "item_started"}
        ended = {record["payload"]["item_id"]: record["ts"] for record in turn if record["type"] == "item_completed"}
        both = [(begun[item], end) for item, end in ended.items() if item in begun and isinstance(end, int)]
        if any(end < begin for begin, end in both):
            return True
    return False


def proven() -> bool:
    """Whether accepted evidence names the offset of a tool's result."""
    results = {
        record["id"] for turn in turns() for record in turn if record["payload"].get("item_type") == "tool_result"
    }
    accepted = payloads("turn_completed", final=True, evidence="accepted")
    return any(payload["refs"] and results.issuperset(payload["refs"]) for payload in accepted)


def on_a_side_branch() -> bool:
    """Whether a turn of another branch begins and ends while main's turn is open."""
    return any(branch_of(turn[0]) != "main" and is_closing(turn[-1]) for turn in turns()) and left_open()


def is_iso(value: Any) -> bool:
    """Whether a stored time is text that says one."""
    return isinstance(value, str) and datetime.fromisoformat(value).tzinfo is not None


def usage_has(*path: str) -> bool:
    """Whether some usage has a count there."""
    for payload in payloads("turn_completed"):
        value: Any = payload["usage"]
        for key in path:
            value = value.get(key, {})
        if isinstance(value, int) and value > 0:
            return True
    return False


def observed(step: str, **expected: Any) -> bool:
    """Whether another agent reported this step."""
    return bool(payloads("observed", step=step, **expected))


def decided(outcome: str) -> bool:
    """Whether a decision had this outcome."""
    return any(payload["outcome"]["outcome"] == outcome for payload in payloads("observed", step="decision"))


SIGHTS: Final[dict[str, Callable[[], bool]]] = {
    "evidence accepted": proven,
    "evidence rejected, for a known reason": lambda: any(
        payload["evidence_rejected"]["reason"] in names.EVIDENCE_REASONS
        for payload in payloads("turn_completed", final=True, evidence="rejected")
    ),
    "evidence absent": lambda: bool(payloads("turn_completed", final=True, evidence="absent")),
    "evidence unknown": lambda: any(
        not payload.keys() & {"evidence", "refs"} for payload in payloads("turn_completed", final=True)
    ),
    "a turn closed by the next": left_open,
    "an error turn": lambda: bool(payloads("error", reason="{:http_error, 503}")),
    "a canceled turn": lambda: bool(payloads("turn_canceled")),
    "an incomplete turn": incomplete,
    "a turn whose start was lost": lambda: any(turn[0]["type"] != "turn_started" for turn in turns()),
    "reasoning": lambda: bool(payloads("item_completed", item_type="reasoning")),
    "a message": lambda: bool(payloads("item_completed", item_type="message")),
    "a message of the user": lambda: bool(payloads("item_completed", item_type="message", role="user")),
    "a message that never started": lambda: any(
        item["item_id"] not in {other["item_id"] for other in items(turn, "item_started", "message")}
        for turn in turns()
        for item in items(turn, "item_completed", "message")
    ),
    "a message that never completed": lambda: unfinished("message"),
    "a call that never completed": lambda: unfinished("tool_use"),
    "a call that went well": lambda: bool(payloads("item_completed", item_type="tool_result", exit_code=0)),
    "a failure by exit code": lambda: bool(payloads("item_completed", item_type="tool_result", exit_code=1)),
    "a failure by mark": lambda: bool(payloads("item_completed", item_type="tool_result", is_error=True)),
    "a failure by status": lambda: bool(payloads("item_completed", item_type="tool_result", status="failed")),
    "a failure by text": lambda: bool(payloads("item_completed", content="{:error, :enoent}")),
    "an unanswered call": unanswered,
    "an orphan": orphaned,
    "parallel calls of one name": parallel,
    "a result matched by name": matched_by_name,
    "a command line as a name": lambda: any(
        " " in payload["name"] for payload in payloads("item_completed", item_type="tool_use")
    ),
    "an approval": lambda: any(payload["risk"] in names.APPROVAL_RISKS for payload in payloads("approval_requested")),
    "a tainted result": lambda: any(
        record.get("provenance", {}).get("trust") == "tainted" and record["payload"]["item_type"] == "tool_result"
        for record in tour()
    ),
    "tokens read from a cache": lambda: usage_has("cache_read_input_tokens"),
    "tokens written to a cache": lambda: usage_has("cache_creation_input_tokens"),
    "reasoning tokens": lambda: usage_has("output_tokens_details", "reasoning_tokens"),
    "the other spelling of usage": lambda: usage_has("prompt_tokens_details", "cached_tokens"),
    "model and provider at the start": lambda: any({"model", "provider"} <= p.keys() for p in payloads("turn_started")),
    "model and provider at the end": lambda: any({"model", "provider"} <= p.keys() for p in payloads("turn_completed")),
    "a traceparent": lambda: (
        [bool(re.fullmatch("00-[0-9a-f]{32}-[0-9a-f]{16}-01", r["traceparent"])) for r in tour() if "traceparent" in r]
        == [True]
    ),
    "another branch": on_a_side_branch,
    "a late record": late,
    "an unknown item type": lambda: any(
        payload["item_type"] not in names.ITEM_TYPES for payload in payloads("item_completed")
    ),
    "an unknown loop type": lambda: any(
        record["type"] not in CONVERSATIONAL_TYPES | names.QUIET_TYPES for record in filter(is_of_a_turn, tour())
    ),
    "an unknown family": lambda: any(record.get("family") not in {None, "loop", "meta"} for record in tour()),
    "an unknown kind": lambda: any(record.get("kind") not in {None, "event", "checkpoint"} for record in tour()),
    "idle time": lambda: any(record.get("type") == "idle" and record["turn_id"] is None for record in tour()),
    "a checkpoint": checkpointed,
    "a clock that steps back": clock_steps_back,
    "a time as text": lambda: any(is_iso(record.get("ts")) for record in tour()),
    "a missing time": lambda: sum("ts" not in record for record in tour()) == 1,
    "observed: a prompt": lambda: observed("prompted"),
    "observed: a call pending": lambda: observed("tool_call", status="pending"),
    "observed: a call in progress": lambda: observed("tool_call", status="in_progress"),
    "observed: a call completed": lambda: observed("tool_call", status="completed"),
    "observed: a call failed": lambda: observed("tool_call", status="failed"),
    "observed: a choice": lambda: decided("selected"),
    "observed: no choice": lambda: decided("cancelled"),
    "observed: the end": lambda: observed("turn_ended"),
}


def test_the_tour_is_what_its_program_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever runs the program gets the committed bytes, and no other file lies beside them."""
    monkeypatch.setattr(sys, "argv", ["make_tour", str(tmp_path)])
    make_tour.main()
    assert files_below(tmp_path / "tour") == files_below(TOUR)


def test_the_manifest_names_every_file_of_golden() -> None:
    """Size and SHA-256 of each file, in the form the program gives them, so that nothing in golden/ changes unseen."""
    listed = json.loads((GOLDEN / "MANIFEST.json").read_bytes())
    files = {name: data for name, data in files_below(GOLDEN).items() if name != "MANIFEST.json"}
    facts = {name: {"bytes": len(data), "sha256": sha256(data).hexdigest()} for name, data in files.items()}
    assert listed == facts
    assert (GOLDEN / "MANIFEST.json").read_bytes() == make_tour.manifest(GOLDEN)


def test_the_tour_is_a_healthy_chained_journal() -> None:
    """Nothing is damaged or torn, every link holds over both segments, and HEAD names the last record."""
    found = scan(TOUR)
    head, meta = json.loads((TOUR / "HEAD").read_bytes()), json.loads((TOUR / "meta.json").read_bytes())
    assert (found.ok, found.torn, found.damage) == (True, False, None)
    assert verify(TOUR) is None
    assert meta["chain"] is True
    assert (head["offset"], head["tip_hash"], head["segment"]) == (
        found.records[-1]["id"],
        found.records[-1]["hash"],
        2,
    )
    assert {path.name for path in (TOUR / "journal").iterdir()} == {"000001.jsonl", "000002.jsonl"}


def test_the_tour_is_small_and_takes_a_quarter_of_an_hour() -> None:
    """A newcomer can read all of it."""
    times = [record["ts"] for record in tour() if isinstance(record.get("ts"), int)]
    assert 100 <= len(tour()) <= 150
    assert 12 * 60 * 10**6 < times[-1] - times[0] < 18 * 60 * 10**6


def test_nothing_in_the_tour_is_a_float() -> None:
    """A chained journal refuses floats, and so the tour has no `cost`."""
    floats: list[str] = []
    for path in (TOUR / "journal").iterdir():
        for line in path.read_bytes().splitlines():
            json.loads(line, parse_float=floats.append)
    assert floats == []
    assert [payload for payload in payloads("turn_completed") if "cost" in payload] == []


@pytest.mark.parametrize("sight", SIGHTS)
def test_the_tour_shows(sight: str) -> None:
    """Each thing that a journal may hold is there to be seen."""
    assert SIGHTS[sight]()
