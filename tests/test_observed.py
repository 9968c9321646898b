"""Observations: the closed vocabulary, what is written of a step, and what the fold makes of it."""

from __future__ import annotations

import json
import re
import time
from dataclasses import FrozenInstanceError, fields
from hashlib import sha256
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raxol_otel.canonical import is_object
from raxol_otel.errors import InvalidStep, RaxolError, Unencodable
from raxol_otel.journal import is_conversational
from raxol_otel.journal.codec import decode, encode
from raxol_otel.observed import (
    Cancelled,
    Decision,
    Prompted,
    Selected,
    Status,
    Step,
    ToolCall,
    TurnEnded,
    is_observation,
    parse,
    record,
    render,
    replay,
)
from tests.conftest import ROOT, json_values
from tests.test_fold import DAY, LIST, OBJECT, Folded

if TYPE_CHECKING:
    from collections.abc import Mapping

PRIVATE: Final = "the one thing nobody may read"
ALLOWED: Final = Selected("opt-1", "allow_once")
CHOSEN: Final = '{"outcome":"selected","option":"opt-1","kind":"allow_once"}'
# Every variant in the spelling that other programs write and read, to the byte.
SPELLINGS: Final[list[tuple[str, Step]]] = [
    ('{"step":"prompted"}', Prompted()),
    ('{"step":"tool_call","call":"c1","status":"pending"}', ToolCall("c1", Status.PENDING)),
    ('{"step":"tool_call","call":"c1","status":"in_progress"}', ToolCall("c1", Status.IN_PROGRESS)),
    ('{"step":"tool_call","call":"c1","status":"completed"}', ToolCall("c1", Status.COMPLETED)),
    ('{"step":"tool_call","call":"c1","status":"failed"}', ToolCall("c1", Status.FAILED)),
    ('{"step":"decision","call":"c1","outcome":' + CHOSEN + "}", Decision("c1", ALLOWED)),
    ('{"step":"decision","call":"c1","outcome":{"outcome":"cancelled"}}', Decision("c1", Cancelled())),
    ('{"step":"turn_ended","reason":"end_turn"}', TurnEnded("end_turn")),
]
CALL: Final = {"step": "tool_call", "call": "c1", "status": "pending"}
CHOICE: Final = {"outcome": "selected", "option": "opt-1", "kind": "allow_once"}

# All text, what JSON cannot carry included.
TEXTS: Final = st.text(st.characters(exclude_categories=()), max_size=8)
CLEAN_TEXTS: Final = st.text(max_size=8)


def steps(texts: st.SearchStrategy[str]) -> st.SearchStrategy[Step]:
    """Steps of every kind."""
    outcomes = st.one_of(st.builds(Selected, texts, texts), st.just(Cancelled()))
    return st.one_of(
        st.just(Prompted()),
        st.builds(ToolCall, texts, st.sampled_from(Status)),
        st.builds(Decision, texts, outcomes),
        st.builds(TurnEnded, texts),
    )


class ListJournal:
    """A journal in memory: what is appended is encoded, stamped and decoded as on disk."""

    def __init__(self) -> None:
        self.records: list[dict[str, Any]] = []

    def append(self, event: Mapping[str, Any]) -> int:
        """Append the event; its offset."""
        offset = len(self.records) + 1
        self.records.append(decode(encode({**event, "id": offset})))
        return offset


def ticking() -> Any:
    """A clock whose n-th reading is n seconds into the day of the fold's tests."""
    seconds = iter(range(1, 10**6))
    return lambda: (DAY + next(seconds)) * 10**9


def recorded(*given_steps: Step, **options: Any) -> list[dict[str, Any]]:
    """The records of these steps, a second apart."""
    journal, clock = ListJournal(), ticking()
    for number, step in enumerate(given_steps, 1):
        assert record(journal, step, clock=clock, **options) == number
    return journal.records


def attempt(value: Any) -> Step | InvalidStep:
    """The step that a value is, or how it is refused."""
    try:
        return parse(value)
    except InvalidStep as error:
        return error


def refusal(value: Any) -> InvalidStep:
    """How a value is refused."""
    error = attempt(value)
    assert isinstance(error, InvalidStep)
    return error


def decided(outcome: Any) -> dict[str, Any]:
    """A decision with this outcome."""
    return {"step": "decision", "call": "c1", "outcome": outcome}


@pytest.mark.parametrize(("text", "step"), SPELLINGS)
def test_each_variant_has_one_spelling(text: str, step: Step) -> None:
    """A step is rendered to exactly the JSON that it is parsed from, the tag first."""
    assert parse(json.loads(text)) == step
    assert json.dumps(render(step), separators=(",", ":")) == text
    assert step.step == json.loads(text)["step"]


@given(steps(TEXTS))
def test_what_is_rendered_parses_to_the_same_step(step: Step) -> None:
    """Calls, options, kinds and reasons are any text at all, and come back as given."""
    assert parse(render(step)) == step
    assert parse(MappingProxyType(render(step))) == step


@given(steps(CLEAN_TEXTS))
def test_a_step_survives_the_journal(step: Step) -> None:
    """Written and read back it is the same step, in a record of its own."""
    records = recorded(step)
    assert list(replay(records)) == [(records[0], step)]


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        (None, "", "an object is expected, not null"),
        (PRIVATE, "", "an object is expected, not text"),
        (OBJECT, "step", "is missing"),
        ({"call": "c1", "status": "pending"}, "step", "is missing"),
        ({"step": None}, "step", "text is expected, not null"),
        ({"step": True}, "step", "text is expected, not a boolean"),
        ({"step": 1.5}, "step", "text is expected, not a number"),
        ({"step": LIST}, "step", "text is expected, not an array"),
        ({"step": OBJECT}, "step", "text is expected, not an object"),
        ({"step": "thought"}, "step", "'thought' is none of prompted, tool_call, decision, turn_ended"),
        ({"step": "Prompted"}, "step", "'Prompted' is none of prompted, tool_call, decision, turn_ended"),
        ({"step": "prompted", "detail": PRIVATE}, "detail", "prompted has no such field"),
        ({"step": "turn_ended"}, "reason", "is missing"),
        ({"step": "turn_ended", "reason": None}, "reason", "text is expected, not null"),
        ({"step": "turn_ended", "reason": "a", "usage": PRIVATE}, "usage", "turn_ended has no such field"),
        ({"step": "tool_call", "status": "pending"}, "call", "is missing"),
        ({"step": "tool_call", "call": "c1"}, "status", "is missing"),
        (CALL | {"call": 5}, "call", "text is expected, not a number"),
        (CALL | {"status": 5}, "status", "text is expected, not a number"),
        (CALL | {"status": "done"}, "status", "'done' is none of pending, in_progress, completed, failed"),
        (CALL | {"status": "PENDING"}, "status", "'PENDING' is none of pending, in_progress, completed, failed"),
        (CALL | {"title": PRIVATE}, "title", "tool_call has no such field"),
        (CALL | {"call": b"c1"}, "call", "text is expected, not a value of type bytes"),
        ({"step": "decision", "call": "c1"}, "outcome", "is missing"),
        ({"step": "decision", "outcome": CHOICE}, "call", "is missing"),
        (CHOICE | {"step": "decision"}, "option", "decision has no such field"),
        (decided("cancelled"), "outcome", "an object is expected, not text"),
        (decided(None), "outcome", "an object is expected, not null"),
        (decided({}), "outcome.outcome", "is missing"),
        (decided({"outcome": 5}), "outcome.outcome", "text is expected, not a number"),
        (decided({"outcome": "allowed"}), "outcome.outcome", "'allowed' is none of selected, cancelled"),
        (decided({"outcome": "canceled"}), "outcome.outcome", "'canceled' is none of selected, cancelled"),
        (decided({"outcome": "cancelled", "option": "a"}), "outcome.option", "cancelled has no such field"),
        (decided({"outcome": "selected", "option": "a"}), "outcome.kind", "is missing"),
        (decided({"outcome": "selected", "kind": "a"}), "outcome.option", "is missing"),
        (decided(CHOICE | {"kind": None}), "outcome.kind", "text is expected, not null"),
        (decided(CHOICE | {"option": LIST}), "outcome.option", "text is expected, not an array"),
        (decided(CHOICE | {"name": PRIVATE}), "outcome.name", "selected has no such field"),
    ],
)
def test_what_is_not_of_the_vocabulary_is_refused(value: Any, path: str, reason: str) -> None:
    """The path says where, the reason says why, and no value but an unknown tag is repeated."""
    error = refusal(value)
    assert (error.path, error.reason, error.offset) == (path, reason, None)
    assert str(error) == f"{path or 'the step'}: {reason}"
    assert isinstance(error, RaxolError)
    assert PRIVATE not in str(error)


def test_an_unknown_tag_is_shown_short_and_clean() -> None:
    """However long it is and whatever it would do to a terminal."""
    tag = "\x1b[2J\n\ud800\u202e" + "x" * 10**6
    for error in (refusal({"step": tag}), refusal(CALL | {"status": tag}), refusal(CALL | {tag: 1})):
        assert len(str(error)) < 200
        assert str(error).isprintable()
    assert refusal({"step": "y" * 41}).reason.startswith(f"'{'y' * 40}'... is none of")
    assert refusal({**CALL, 5: PRIVATE}).path == "<int>"


@given(st.data())
def test_whatever_happened_to_a_step_it_is_a_step_or_refused(data: st.DataObject) -> None:
    """Fields renamed, dropped, added or given any value: what parses is the value itself, all else is `InvalidStep`."""
    value: Any = render(data.draw(steps(TEXTS)))
    names = st.sampled_from(["step", "call", "status", "outcome", "option", "kind", "reason"]) | st.text(max_size=3)
    tags = st.sampled_from([*Status, "prompted", "tool_call", "decision", "turn_ended", "selected", "cancelled"])
    for _ in range(data.draw(st.integers(1, 3))):
        nested: Any = value.get("outcome")
        target: Any = nested if is_object(nested) and data.draw(st.booleans()) else value
        name = data.draw(names)
        if data.draw(st.booleans()):
            target.pop(name, None)
        else:
            target[name] = data.draw(json_values(floats=True) | tags)
    step = attempt(value)
    assert str(step).isprintable() if isinstance(step, InvalidStep) else render(step) == value


@given(json_values(floats=True))
def test_any_other_value_is_refused(value: Any) -> None:
    """Nothing that JSON can say makes `parse` fail in another way."""
    assert refusal(value).path in {"", "step"}


@pytest.mark.parametrize(
    ("make", "path"),
    [
        (lambda: ToolCall("c1", "done"), "status"),  # type: ignore[arg-type]
        (lambda: ToolCall(5, Status.FAILED), "call"),  # type: ignore[arg-type]
        (lambda: Decision("c1", "cancelled"), "outcome"),  # type: ignore[arg-type]
        (lambda: Decision(None, ALLOWED), "call"),  # type: ignore[arg-type]
        (lambda: Selected("a", None), "kind"),  # type: ignore[arg-type]
        (lambda: Selected(1, "a"), "option"),  # type: ignore[arg-type]
        (lambda: TurnEnded(None), "reason"),  # type: ignore[arg-type]
        (lambda: render({"step": "prompted"}), ""),  # type: ignore[arg-type]
        (lambda: render(ALLOWED), ""),  # type: ignore[arg-type]
        (lambda: record(ListJournal(), None), ""),  # type: ignore[arg-type]
    ],
)
def test_no_step_can_be_made_that_would_be_refused_when_read(make: Any, path: str) -> None:
    """A program without types is told where it makes the step, not by whoever reads the journal."""
    with pytest.raises(InvalidStep) as caught:
        make()
    assert caught.value.path == path


def test_a_steps_fields_are_plain_and_fixed() -> None:
    """A status may be given as text, a text as an enum's member; what is made cannot be changed."""
    step = ToolCall(Status.FAILED, "failed")  # type: ignore[arg-type]
    assert step == ToolCall("failed", Status.FAILED)
    assert (type(step.call), type(step.status)) == (str, Status)
    with pytest.raises(FrozenInstanceError):
        step.call = "c2"  # type: ignore[misc]
    assert len({step, ToolCall("failed", Status.FAILED), Prompted(), Prompted()}) == 2


def test_a_record_is_an_event_of_the_meta_family() -> None:
    """Its payload is the step and nothing else; its time (now) is in microseconds; what was not given is left out."""
    journal = ListJournal()
    assert record(journal, ToolCall("c1", Status.PENDING), clock=lambda: 1_785_801_600_123_456_789) == 1
    written = {"v": 0, "kind": "event", "family": "meta", "type": "observed", "tier": "durable", "turn_id": None}
    assert journal.records == [written | {"id": 1, "ts": 1_785_801_600_123_456, "payload": CALL}]
    options: dict[str, Any] = {"session_id": "s1", "turn_id": "t1", "branch_id": "b1", "actor": "reviewer"}
    record(journal, ToolCall("c1", Status.PENDING), clock=lambda: 1_785_801_600_123_456_789, **options)
    assert journal.records[1] == {**journal.records[0], "id": 2, **options}
    before = time.time_ns() // 1000
    record(journal, Prompted())
    assert before <= journal.records[2]["ts"] <= time.time_ns() // 1000
    assert not any(map(is_conversational, journal.records))


def test_the_detail_is_never_written() -> None:
    """Not by default, and with a digest only the digest, beside the payload and not in it."""
    text = f"{PRIVATE} \u00e9\U0001f600"
    journal = ListJournal()
    for detail, keep_digest in ((text, False), (text, True), (None, True), ("", True)):
        record(journal, Prompted(), detail, keep_digest=keep_digest)
    assert PRIVATE not in str(journal.records)
    digests = [one.get("detail_sha256", "-") for one in journal.records]
    assert digests == ["-", sha256(text.encode()).hexdigest(), "-", sha256(b"").hexdigest()]
    assert {str(one["payload"]) for one in journal.records} == {"{'step': 'prompted'}"}


def test_what_json_cannot_carry_is_refused_as_it_is() -> None:
    """A step's text by the writer, a detail here, which leaves nothing of it behind; nothing is appended."""
    journal = ListJournal()
    with pytest.raises(Unencodable) as caught:
        record(journal, Decision("c1", Selected("opt", "\udfff")))
    assert caught.value.path == "payload.outcome.kind"
    with pytest.raises(Unencodable) as caught:
        record(journal, Prompted(), PRIVATE + "\ud800", keep_digest=True)
    assert (caught.value.path, caught.value.__context__, journal.records) == ("detail", None, [])
    assert PRIVATE not in str(caught.value)


def test_replay_passes_over_every_other_record() -> None:
    """Only kind event, family meta and type observed are observations; a kind that is absent is an event."""
    (own,) = recorded(Prompted())
    bare = {key: value for key, value in own.items() if key != "kind"}
    others: list[dict[str, Any]] = [own | {"kind": odd} for odd in ("checkpoint", None, 5, LIST)]
    others += [own | {"family": odd} for odd in ("loop", None, LIST)]
    others += [own | {"type": odd} for odd in ("plan", None, OBJECT)]
    others += [{}, {"id": 1, "payload": {"step": "prompted"}}]
    assert [is_observation(one) for one in (own, bare, *others)] == [True, True, *[False] * len(others)]
    assert list(replay([*others, own, *others, bare])) == [(own, Prompted()), (bare, Prompted())]


def test_replay_stops_at_an_observation_that_it_does_not_understand() -> None:
    """Those before it are given; the error says which record, and what in it."""
    records = recorded(Prompted(), ToolCall("c1", Status.PENDING), TurnEnded("end_turn"))
    records[1]["payload"]["status"] = "paused"
    replayed = replay(iter(records))
    assert next(replayed) == (records[0], Prompted())
    with pytest.raises(InvalidStep) as caught:
        next(replayed)
    reason = "'paused' is none of pending, in_progress, completed, failed"
    assert (caught.value.path, caught.value.reason, caught.value.offset) == ("status", reason, 2)
    assert str(caught.value) == f"the observation at offset 2: status: {reason}"


@pytest.mark.parametrize("offset", ["2", True, None, 2.0, pytest.param(10**5000, id="long")])
def test_an_observation_without_an_offset_is_refused_without_one(offset: Any) -> None:
    """What is no offset is not told as one."""
    with pytest.raises(InvalidStep) as caught:
        list(replay([{"id": offset, "family": "meta", "type": "observed"}]))
    assert (caught.value.offset, str(caught.value)) == (None, "the step: an object is expected, not null")


def test_recorded_steps_fold_into_a_turn() -> None:
    """From the prompt to the end; each call from its first status to its last, with the decision about it."""
    asked: list[Step] = [Prompted(), ToolCall("c1", Status.PENDING), Decision("c1", ALLOWED)]
    both: list[Step] = [ToolCall("c1", Status.IN_PROGRESS), ToolCall("c2", Status.PENDING), Decision("c2", Cancelled())]
    ended: list[Step] = [ToolCall("c1", Status.COMPLETED), ToolCall("c2", Status.FAILED)]
    ended += [Decision("c3", Selected("opt-9", "a kind of its own")), TurnEnded("end_turn")]
    folded = Folded(*recorded(*asked, *both, *ended, turn_id="review-1"))
    assert folded.lines() == ["review-1 completed 1-10"]
    assert folded.lines("tool") == ["execute_tool ok 2-7", "execute_tool error 5-8"]
    first, second = folded.of("tool")
    assert [span.attributes["gen_ai.tool.call.id"] for span in (first, second)] == ["c1", "c2"]
    (turn,) = folded.turns
    assert [turn.attributes[f"raxol.observed{name}"] for name in ("", ".reason")] == [True, "end_turn"]
    events = [event for span in (first, second, turn) for event in span.events]
    assert {event.name for event in events} == {"raxol.decision"}
    assert [event.attributes for event in events] == [
        {f"raxol.decision.{key}": value for key, value in said.items()}
        for said in (CHOICE, {"outcome": "cancelled"}, CHOICE | {"option": "opt-9", "kind": "a kind of its own"})
    ]
    assert [len(span.events) for span in (first, second, turn)] == [1, 1, 1]
    assert folded.counts.unfolded == 0


def test_session_and_branch_of_a_record_are_the_spans() -> None:
    """Two branches are two turns; the session is the record's, not the directory's."""
    main = recorded(Prompted(), TurnEnded("end_turn"), session_id="s1")
    other = [one | {"id": one["id"] + 2} for one in recorded(Prompted(), branch_id="b1", session_id="s1")]
    folded = Folded(*main, *other, session_id="directory")
    assert folded.lines() == ["- completed 1-2", "- incomplete 1-1"]
    assert [turn.attributes["raxol.session.id"] for turn in folded.turns] == ["s1", "s1"]
    assert [turn.attributes.get("raxol.branch.id") for turn in folded.turns] == [None, "b1"]


@given(st.lists(steps(CLEAN_TEXTS), max_size=12))
def test_the_fold_understands_every_recorded_step(taken: list[Step]) -> None:
    """Whatever their order; prompts open turns and each call and decision is somewhere in them."""
    records = recorded(*taken)
    folded = Folded(*records)
    assert folded.counts.unfolded == 0
    assert [step for _, step in replay(records)] == taken
    opened = [turn for turn in folded.turns if "raxol.turn.synthesized" not in turn.attributes]
    assert len(opened) == taken.count(Prompted())
    events = sum(len(span.events) for span in folded.spans)
    assert events == sum(isinstance(step, Decision) for step in taken)


def test_no_span_carries_a_digest_or_a_text_of_its_own() -> None:
    """Neither a detail's digest nor the sentence with which an agent ended its turn leaves the journal."""
    journal, clock = ListJournal(), ticking()
    record(journal, Prompted(), PRIVATE, keep_digest=True, clock=clock)
    record(journal, TurnEnded(PRIVATE), PRIVATE, keep_digest=True, clock=clock)
    folded = Folded(*journal.records)
    assert folded.turns[0].attributes["raxol.observed.reason"] == "_OTHER"
    assert sha256(PRIVATE.encode()).hexdigest() in str(journal.records)
    for hidden in (PRIVATE, sha256(PRIVATE.encode()).hexdigest()):
        assert hidden not in str(folded.spans)


def test_the_reference_shows_the_whole_vocabulary() -> None:
    """Each object in docs/reference/observed.md is a step, and each step, status and outcome is there."""
    text = (ROOT / "docs" / "reference" / "observed.md").read_text(encoding="utf-8")
    shown = [parse(json.loads(spelled)) for spelled in re.findall(r'`(\{"step".*?\})`', text)]
    assert {step.step for step in shown} == {step.step for _, step in SPELLINGS}
    assert {type(step.outcome) for step in shown if isinstance(step, Decision)} == {Selected, Cancelled}
    assert [status for status in Status if f"`{status}`" not in text] == []
    names = {field.name for kind in (ToolCall, Decision, Selected, TurnEnded) for field in fields(kind)}
    assert [name for name in sorted(names) if f'"{name}"' not in text] == []
