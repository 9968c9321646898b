"""The fold on anything: what leaves is bounded, clean and without content; any stream folds, and nothing raises."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raxol_otel import catalogue
from raxol_otel.turns import FoldConfig, TurnFold
from tests.test_fold import ASK, BEGIN, CANCEL, DAY, DONE, END, ERROR, START, Folded, Record, item, on, record, repeated
from tests.test_fold_events import observed

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from raxol_otel.turns import Span

# `raxol_otel.turns.fold` is the function.
FOLD: Final = sys.modules["raxol_otel.turns.fold"]
TURN: Final = sys.modules["raxol_otel.turns.turn"]
KEYS: Final = {value for name, value in vars(catalogue).items() if name.isupper() and type(value) is str}
CAPTURED: Final = FoldConfig(capture_content=True)
CONTENT: Final = {
    *("gen_ai.input.messages", "gen_ai.output.messages"),
    *("gen_ai.tool.call.arguments", "gen_ai.tool.call.result"),
}


def texts(spans: Iterable[Span]) -> Iterator[tuple[str, str]]:
    """Every text that would leave with the spans, and the key it stands under."""
    for span in spans:
        yield "name", span.name
        for attributes in (span.attributes, *(event.attributes for event in span.events)):
            yield from ((key, value) for key, value in attributes.items() if type(value) is str)
        yield from (("event", event.name) for event in span.events)


def assert_clean(spans: Iterable[Span]) -> None:
    """Names of the catalogue, values that any encoder takes, none of them large, no time turned around."""
    for span in spans:
        assert 0 <= span.start_ns <= span.end_ns < 2**63
        for attributes in (span.attributes, *(event.attributes for event in span.events)):
            assert set(attributes) <= KEYS
            for value in attributes.values():
                assert type(value) in {str, bool, int, float}
                assert type(value) is not int or -(2**63) <= value < 2**63
                assert type(value) is not float or math.isfinite(value)
        for key, text in texts([span]):
            assert len(text.encode()) <= (40_000 if key in CONTENT else 5_000)


def secret(what: str) -> str:
    """A text that must not leave; as no single word it is no name either."""
    return f"canary of {what}"


SECRETS: Final = [
    record(1, START, "t1", {"title": secret("title"), "cwd": secret("cwd")}, prompt=secret("prompt")),
    item(2, "message", "i1", BEGIN, content=secret("beginning")),
    item(3, "message", "i1", content=secret("message"), title=secret("title")),
    item(4, "reasoning", "i2", content=secret("reasoning"), summary=secret("summary")),
    item(5, "message", "i3", role="user", content=secret("user")),
    item(6, "tool_use", name=secret("command line"), call_id="a", arguments={"x": [secret("arguments")]}),
    item(7, "tool_result", call_id="a", result=secret("result"), status="failed", error=secret("error text")),
    item(8, "tool_result", call_id="b", content=secret("content"), exit_code=1, reason={"message": secret("message")}),
    record(9, ASK, request_id="r", action=secret("action"), command=secret("command"), risk=secret("risk")),
    record(10, DONE, summary=secret("summary"), evidence="rejected", evidence_rejected={"reason": secret("reason")}),
    record(11, "?", kind="checkpoint", reason=secret("checkpoint"))
    | {"kind": "checkpoint", "reason": secret("reason")},
    record(12, ERROR, reason="unmapped_acp_update", message=secret("error text")),
    item(13, "message", "i4", BEGIN, content=secret("unfinished")),
    record(14, ERROR, reason=f"RuntimeError: {secret('error text')}", details=[secret("details")]),
    record(15, START, "t2", message=secret("other prompt")),
    record(16, CANCEL, "t2", reason=secret("cancellation")),
    observed(17, "prompted", detail=secret("detail")),
    observed(18, "tool_call", call="c", status="pending", title=secret("title"), arguments=secret("arguments")),
    observed(19, "decision", call="c", outcome={"outcome": secret("outcome"), "detail": secret("detail")}),
    observed(20, "turn_ended", reason=secret("reason"), result=secret("result")),
]


def test_no_content_leaves_unless_it_is_asked_for() -> None:
    """By default no word of a prompt, a message, arguments, a result, an error or an approval is in any span."""
    folded = Folded(*SECRETS)
    assert len(folded.spans) == 9
    assert "canary" not in json.dumps([asdict(span) for span in folded.spans])


def test_captured_content_stands_in_its_four_attributes() -> None:
    """Captured content is there and nowhere else; errors and approvals are not. A tool has its full name."""
    spans = Folded(*SECRETS, config=CAPTURED).spans
    found = {(key, word) for key, text in texts(spans) for word in text.split("canary of ")[1:]}
    places = {(key, word.strip('"]}').partition('"')[0]) for key, word in found}
    assert places == {
        ("gen_ai.input.messages", "prompt"),
        ("gen_ai.input.messages", "other prompt"),
        ("gen_ai.output.messages", "message"),
        ("gen_ai.output.messages", "reasoning"),
        ("gen_ai.tool.call.arguments", "arguments"),
        ("gen_ai.tool.call.result", "result"),
        ("gen_ai.tool.call.result", "content"),
        ("gen_ai.tool.name", "command line"),
    }


def test_captured_content_is_json_of_the_genai_conventions() -> None:
    """Messages have a role and parts, arguments and results are JSON; the attributes come with the capture only."""
    said = {span.role: span.attributes for span in Folded(*SECRETS[:9], config=CAPTURED).spans[:3]}
    assert json.loads(str(said["tool"]["gen_ai.tool.call.arguments"])) == {"x": ["canary of arguments"]}
    assert json.loads(str(said["tool"]["gen_ai.tool.call.result"])) == "canary of result"
    records = [*SECRETS[:4], record(20, DONE, final=True)]
    turn = Folded(*records, config=CAPTURED).turns[0].attributes
    question = {"type": "text", "content": "canary of prompt"}
    assert json.loads(str(turn["gen_ai.input.messages"])) == [{"role": "user", "parts": [question]}]
    answer = [{"type": "text", "content": "canary of message"}, {"type": "reasoning", "content": "canary of reasoning"}]
    assert json.loads(str(turn["gen_ai.output.messages"])) == [
        {"role": "assistant", "parts": answer, "finish_reason": "stop"}
    ]
    assert turn.keys() - Folded(*records).turns[0].attributes.keys() == {*CONTENT} & turn.keys()


@pytest.mark.parametrize(
    ("result", "start", "length"),
    [
        ("x" * 48, f'"{"x" * 48}"', None),
        ("x" * 49, f'"{"x" * 49}', 51),
        ("\U0001f600" * 90, '"' + "\U0001f600" * 49, 92),
        ([1] * 100, "[1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1", 201),
    ],
)
def test_long_content_is_cut_and_marked(result: Any, start: str, length: int | None) -> None:
    """At the limit, between characters; a mark behind it says how long it was."""
    config = FoldConfig(capture_content=True, content_chars_max=50)
    records = [record(1, START), item(2, "tool_use", call_id="a"), item(3, "tool_result", call_id="a", result=result)]
    text = str(Folded(*records, config=config).of("tool")[0].attributes["gen_ai.tool.call.result"])
    assert text.startswith(start)
    mark = text.removeprefix(start)
    assert len(mark) < 50
    assert [int(word) for word in mark.split() if word.isdigit()] == ([] if length is None else [length])


def test_a_long_prompts_mark_says_the_original_length() -> None:
    """The mark of a cut prompt or message says how much there was, not how much was left of it."""
    config = FoldConfig(capture_content=True, content_chars_max=100)
    records = [record(1, START, prompt="x" * 9000), item(2, "message", content="y" * 9000)]
    turn = Folded(*records, config=config).turns[0].attributes
    for key in ("gen_ai.input.messages", "gen_ai.output.messages"):
        assert max(int(word) for word in str(turn[key]).split() if word.isdigit()) >= 9000


def test_what_was_not_said_is_not_made_up() -> None:
    """Without a prompt, a message's text, arguments or a result there is no attribute for it."""
    records = [
        record(1, START),
        item(2, "message"),
        item(3, "tool_use", call_id="a"),
        item(4, "tool_result", call_id="a"),
    ]
    for folded in (Folded(*records, config=CAPTURED), Folded(record(1, START, prompt=None), config=CAPTURED)):
        assert not CONTENT & {key for span in folded.spans for key in span.attributes}


def test_parts_that_are_left_out_are_marked() -> None:
    """A turn of very many messages keeps the first ones; what is shown of it says how much there was."""
    said = [item(number, "message", content="x" * 10) for number in range(2, 1002)]
    config = FoldConfig(capture_content=True, content_chars_max=10**6)
    text = str(Folded(record(1, START), *said, config=config).turns[0].attributes["gen_ai.output.messages"])
    assert text.startswith('[{"')
    assert 100 <= text.count("x" * 10) < 1000
    assert max(int(word) for word in text.split() if word.isdigit()) >= 10_000


def test_the_usual_limits() -> None:
    """Unless it is told otherwise, 8,192 characters of content and 1,024 of an identifier leave."""
    said = Folded(record(1, START, "t" * 9000, prompt="p" * 9000), config=CAPTURED).turns[0].attributes
    assert said["raxol.turn.id"] == "t" * 1024
    assert str(said["gen_ai.input.messages"])[8190:8195] == "pp..."


# 10 MB.
BIG: Final = "\u00e9" * (5 * 2**20)


@pytest.mark.parametrize("value", ["a\ud800b\udfff", BIG, -(2**63) - 1, {"k": "\ud800", "n": [2**70]}, [1.5]])
@pytest.mark.parametrize("config", [FoldConfig(), CAPTURED])
def test_odd_and_huge_values_leave_clean_and_small(value: Any, config: FoldConfig) -> None:
    """Lone surrogates are replaced, texts bounded, integers beyond 64 bits are text; wherever a value is put."""
    fields = {"session_id": value, "branch_id": value, "provenance": value, "traceparent": value}
    payload = dict.fromkeys(
        ("prompt", "model", "provider", "item_id", "call_id", "name", "content", "arguments"), value
    )
    payload |= dict.fromkeys(("result", "reason", "error", "request_id", "risk", "usage", "cost", "evidence"), value)
    records = [record(1, START, value, fields, **payload), record(2, ASK, value, fields, **payload)]
    kinds = ("message", "reasoning", "tool_use", "tool_result", value)
    records += [record(n, END, value, fields, item_type=kind, **payload) for n, kind in enumerate(kinds, 3)]
    records += [record(11, DONE, value, fields, **payload), record(12, ERROR, value, fields, **payload)]
    records += [record(13, "x", value, {**fields, "kind": "checkpoint", "tip_offset": value, "reason": value})]
    decided = {"outcome": value, "option": value, "kind": value}
    records += [
        observed(14, "tool_call", call="c", status="pending"),
        observed(15, "decision", call="c", outcome=decided),
    ]
    records += [observed(16, "turn_ended", reason=value), record(2**63, START, "t9", fields)]
    folded = Folded(*records, config=config)
    assert_clean(folded.spans)
    assert len(folded.spans) == 7
    assert "9223372036854775808" in {turn.attributes["raxol.journal.first_offset"] for turn in folded.turns}


def test_names_of_the_configuration_leave_clean() -> None:
    """An environment that is no text gives lone surrogates; in a span's name one would cost a whole batch."""
    config = FoldConfig(agent_name="a\udcff", provider_name="p\udcff", model="m\udcff")
    (turn,) = Folded(record(1, START), config=config, session_id="s\udcff").spans
    assert turn.name == "invoke_agent a\ufffd"
    assert_clean([turn])


class Broken:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError


def test_what_only_a_program_can_give_does_not_raise() -> None:
    """A live fold sees records before they are written: values that JSON does not have are odd values like others."""
    raised: list[str] = []
    own = record(1, START)
    keys = [*own, "branch_id", "kind", "session_id", "provenance", "traceparent"]
    payload = ["prompt", "model", "item_id", "item_type", "role", "call_id", "name", "result", "usage", "cost", "final"]
    payload += ["evidence", "reason", "request_id", "risk", "step", "call", "status", "outcome", "exit_code"]
    for odd in (math.nan, -math.inf, b"x", {1}, {1: 2}, ["\ud800"], (), object(), Broken(), 10**2000, 10**5000):
        streams = {key: [{**record(1, kind), key: odd} for kind in (START, END, DONE)] for key in keys}
        kinds = (START, BEGIN, END, ASK, DONE, ERROR)
        for key in payload:
            streams[key] = [record(n, kind, "t1", {"payload": {key: odd}}) for n, kind in enumerate(kinds)]
            streams[key] += [observed(9, "decision") | {"payload": {"step": "decision", "call": "c", key: odd}}]
        for key, records in streams.items():
            try:
                assert_clean(Folded(*records, config=CAPTURED).spans)
            except Exception as error:  # noqa: BLE001 - all of them are shown at once
                raised.append(f"{key} = {type(odd).__name__}: {type(error).__name__}")
    assert raised == []


def test_open_turns_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many, and the oldest is closed as the journal's end would."""
    monkeypatch.setattr(FOLD, "OPEN_TURNS_MAX", 2)
    records = [record(1, DONE, "a"), record(2, BEGIN, "b"), item(3, "message") | {"turn_id": "a"}, record(4, DONE, "c")]
    folded = Folded(*records, record(5, DONE, "a"))
    ends = ["a incomplete 1-3", "b incomplete 2-2", "c completed 4-4 not final"]
    assert folded.lines() == [f"{end} synthesized" for end in ends]
    assert folded.counts.late == 1


def test_open_items_and_calls_of_a_turn_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One too many, and the oldest is given up on: its span leaves before the turn ends, and none leaves twice."""
    monkeypatch.setattr(TURN, "OPEN_ITEMS_MAX", 2)
    records = [record(1, START), *(item(n, "message", n, BEGIN) for n in (2, 3, 4))]
    records += [item(n, "tool_use", name="sh", call_id=n) for n in (5, 6, 7)]
    fold = TurnFold("s")
    assert [(span.name, span.offset) for span in fold.feed_many(records)] == [("message", 2), ("execute_tool sh", 5)]
    folded = Folded(*records, item(8, "tool_result", call_id=5), item(9, "tool_result", call_id=6))
    assert [line.split()[-2] for line in folded.lines("tool")] == ["unanswered", "ok", "unanswered", "orphan"]
    assert len(folded.lines("item")) == 3
    assert (len(folded.spans), repeated(folded.spans)) == (8, [])


def test_what_is_remembered_of_closed_turns_and_branches_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn closed long ago is unknown again, and a branch not seen for long has no link."""
    monkeypatch.setattr(FOLD, "CLOSED_TURNS_MAX", 1)
    monkeypatch.setattr(FOLD, "BRANCHES_MAX", 1)
    records = [record(1, CANCEL), record(2, CANCEL, "t2"), record(3, CANCEL, "t2"), record(4, CANCEL)]
    folded = Folded(*records, record(5, START, "b1", on("b")), record(6, START, "t3"))
    assert folded.lines()[:3] == [f"t{n} canceled {at}-{at} synthesized" for n, at in ((1, 1), (2, 2), (1, 4))]
    assert folded.counts.late == 1
    assert [len(turn.links) for turn in folded.turns] == [0, 1, 1, 0, 0]


ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    0,
    -1,
    1.5,
    1e308,
    2**70,
    "",
    "x",
    "\ud800",
    "{:error, :x}",
    [],
    [1],
    {},
    {"type": "x"},
)
USUAL: Final[dict[str, tuple[Any, ...]]] = {
    "item_id": ("i1", "i2"),
    "item_type": ("message", "reasoning", "tool_use", "tool_result") * 2,
    "role": ("user", "assistant"),
    "call_id": ("a", "b"),
    "name": ("sh", "cat"),
    "status": ("failed",),
    "is_error": (True,),
    "result": ("fine",),
    "content": ("fine",),
    "final": (True,),
    "usage": ({"input_tokens": 3, "cache_read_input_tokens": 2}, {"prompt_tokens": "4", "input_tokens_details": {}}),
    "cost": (0.1, 2),
    "evidence": ("accepted", "rejected"),
    "reason": ("boom", "unmapped_acp_update", "auto"),
    "request_id": ("r",),
    "risk": ("low",),
    "model": ("m",),
}
OBSERVED: Final[dict[str, tuple[Any, ...]]] = {
    "step": ("prompted", "tool_call", "decision", "turn_ended") * 5,
    "call": ("a", "b") * 5,
    "status": ("pending", "completed", "failed") * 5,
    "outcome": ({"outcome": "selected", "option": "o", "kind": "k"}, {"outcome": "cancelled"}, {"outcome": []}),
}


def payloads(usual: dict[str, tuple[Any, ...]]) -> st.SearchStrategy[Record]:
    """Payloads of these keys, with their usual values and odd ones."""
    pairs = [(key, value) for key, values in usual.items() for value in (*values * 3, *ODD)]
    return st.lists(st.sampled_from(pairs), max_size=6).map(dict)


# Times, ids and places: mostly the usual ones, which each record has already.
FIELDS: Final = st.lists(
    st.sampled_from(
        [
            *((key, value) for key in ("ts", "turn_id", "kind", "tier", "family", "payload") for value in ODD),
            *(("id", value) for value in (None, "7", 1.5, True)),
            *(("branch_id", value) for value in ("main", "b", *ODD)),
            *(
                ("ts", value)
                for value in (1, DAY, DAY * 1000, DAY * 10**9, 10**16, "2026-08-04", "2026-08-04T01:00:00Z")
            ),
            *(("traceparent", f"00-{n:032x}-{n:016x}-01") for n in range(3)),
            *(("provenance", {"trust": trust}) for trust in ("tainted", "trusted")),
            *(("session_id", value) for value in ("other", *ODD)),
        ]
    ),
    max_size=2,
).map(dict)
KINDS: Final = st.sampled_from((START, BEGIN, END, END, END, DONE, DONE, ERROR, CANCEL, ASK, "idle", "?"))
TURNS: Final = st.sampled_from(("t1", "t1", "t1", "t2", "t3", 5))
RECORDS: Final = st.one_of(
    st.tuples(KINDS, TURNS, payloads(USUAL), st.one_of(st.just(Record()), FIELDS)),
    st.tuples(st.just("observed"), TURNS, payloads(OBSERVED), st.one_of(st.just(Record()), FIELDS)),
)
STREAMS: Final = st.lists(RECORDS, max_size=30)


def stream(drawn: Iterable[tuple[str, Any, Record, Record]]) -> list[Record]:
    """The drawn records in a row; between two offsets there is room for those that are not stored."""
    records: list[Record] = []
    for number, (kind, turn, payload, fields) in enumerate(drawn):
        family = {"family": "meta"} if kind == "observed" else {"kind": "checkpoint"} if kind == "?" else {}
        own = record(number, kind, turn, {"id": number * 1000, "payload": payload, **family})
        records.append({**own, **fields})
    return records


@settings(report_multiple_bugs=False)
@given(STREAMS, st.booleans(), st.integers(0, 30))
def test_any_stream_folds(drawn: list[tuple[str, Any, Record, Record]], capture: bool, at: int) -> None:  # noqa: FBT001
    """Whatever the records are: nothing raises, ids are unique, every child leaves before its turn, all is clean."""
    records = stream(drawn)
    config = CAPTURED if capture else FoldConfig()
    folded = Folded(*records, config=config)
    in_two = TurnFold("s", config=config)
    assert in_two.feed_many(records[:at]) + in_two.feed_many(records[at:]) + in_two.close() == folded.spans
    assert_clean(folded.spans)
    assert repeated(folded.spans) == []
    assert folded.counts.turns == len(folded.turns)
    places = {(span.trace_id, span.span_id): place for place, span in enumerate(folded.spans) if span.role == "turn"}
    for place, span in enumerate(folded.spans):
        assert span.role == "turn" or place < places[span.trace_id, span.parent_id]
        assert all((link.trace_id, link.span_id) in places for link in span.links)


@settings(report_multiple_bugs=False)
@given(STREAMS, st.lists(st.tuples(st.integers(0, 30), st.integers(1, 30)), max_size=5))
def test_records_that_repeat_give_no_span_id_twice(drawn: list[Any], again: list[tuple[int, int]]) -> None:
    """A stream that repeats records, at once or later, folds as well, and no id leaves twice."""
    records = stream(drawn)
    for at, later in again:
        records[at + later : at + later] = records[at : at + 1]
    assert repeated(Folded(*records).spans) == []
