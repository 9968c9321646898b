"""The event envelope, its line, payloads made safe to write, and the evidence marker's decoder."""

from __future__ import annotations

import enum
import json
import math
from collections import OrderedDict, UserDict
from collections.abc import Iterator, Mapping
from dataclasses import FrozenInstanceError, dataclass
from datetime import UTC, date, datetime, time, timedelta, timezone, tzinfo
from decimal import Decimal
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, Final, NamedTuple, NoReturn

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raxol_otel.contract import Event, Evidence, InvalidEvent, encode_line, evidence_status, sanitize_payload
from raxol_otel.errors import RaxolError, Unencodable
from raxol_otel.journal.codec import decode, encode
from tests.conftest import json_values

# Drawing values of any kind is slow.
FEWER: Final = settings(max_examples=settings().max_examples // 5)


class Word(enum.StrEnum):
    """An enum of texts."""

    DONE = "done"


class Level(enum.IntEnum):
    """An enum of numbers."""

    HIGH = 3


class Colour(enum.Enum):
    """An enum of neither."""

    RED = "red"


class Broken:
    """A value that cannot even be shown."""

    def __repr__(self) -> str:
        raise RuntimeError("no")


class NoWords:
    """A value whose text is no text."""

    def __repr__(self) -> str:
        return 5  # type: ignore[return-value]


class Hostile(Mapping[str, Any]):
    """A mapping that raises whatever is asked of it."""

    def __getitem__(self, key: str) -> NoReturn:
        raise RuntimeError(key)

    def __iter__(self) -> Iterator[str]:
        raise RuntimeError

    def __len__(self) -> int:
        raise RuntimeError

    def __contains__(self, key: object) -> bool:
        raise RuntimeError(key)


class BrokenList(list[Any]):
    """A list that cannot be walked."""

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError


class BrokenZone(tzinfo):
    """A time zone that does not know its offset."""

    def utcoffset(self, _moment: datetime | None) -> timedelta | None:
        """Nobody knows."""
        raise RuntimeError

    dst = utcoffset

    def tzname(self, _moment: datetime | None) -> str:
        """It has no name either."""
        raise RuntimeError


@dataclass
class Point:
    """A plain object with a text of its own."""

    x: int = 1


class Pair(NamedTuple):
    """A tuple with names."""

    left: int
    right: int


# Odd values, of any type.
LIST: Final[Any] = []
OBJECT: Final[Any] = {}


def test_an_event_becomes_a_record_of_what_is_set() -> None:
    """Fields that are not set are left out, `turn_id` apart; family, tier and version have their usual values."""
    usual = {"family": "loop", "tier": "durable", "v": 0}
    assert Event(type="idle").to_dict() == {"type": "idle", "payload": {}, "turn_id": None} | usual
    everything: dict[str, Any] = {"type": "note", "payload": {"a": 1}, "turn_id": "t", "ts": 5, "family": "meta"}
    everything |= {"tier": "ephemeral", "session_id": "s", "id": 0, "scope": "turn", "actor": {"name": "a"}}
    everything |= {"provenance": {"trust": "tainted"}, "branch_id": "", "v": 2}
    assert Event(**everything).to_dict() == everything


@pytest.mark.parametrize("fields", [{"family": "Loop"}, {"family": ""}, {"tier": "transient"}, {"tier": None}])
def test_an_event_outside_the_closed_sets_is_refused(fields: dict[str, Any]) -> None:
    """Producers are strict: the error names the field's value and what it may be."""
    with pytest.raises(InvalidEvent, match=f"{next(iter(fields))} .* is none of ") as refused:
        Event(type="idle", **fields)
    assert isinstance(refused.value, ValueError)
    assert isinstance(refused.value, RaxolError)


def test_an_event_cannot_be_changed() -> None:
    """What was published is not rewritten."""
    with pytest.raises(FrozenInstanceError):
        Event(type="idle").ts = 5  # type: ignore[misc]


def test_a_line_is_canonical_json_and_a_newline() -> None:
    """Sorted keys, no blanks, one newline at the end; a mapping is encoded like the event it stands for."""
    event = Event(type="error", ts=5, turn_id="t", payload={"b\n": [1, {}], "a": "\u00e9"})
    line = (
        '{"family":"loop","payload":{"a":"\u00e9","b\\n":[1,{}]},"tier":"durable","ts":5,"turn_id":"t","type":"error",'
    )
    assert encode_line(event) == line.encode() + b'"v":0}\n'
    assert encode_line(event.to_dict()) == encode_line(event)
    assert encode_line(MappingProxyType({"type": "later", "payload": {1: {2}}})) == (
        b'{"payload":{"1":"{2}"},"type":"later"}\n'
    )
    assert encode_line({"payload": [1], "more": None}) == b'{"more":null,"payload":[1]}\n'


def test_what_a_line_carries_beside_its_payload_is_not_made_up() -> None:
    """Outside the payload nothing is replaced: what JSON cannot carry is an error that names the place."""
    with pytest.raises(Unencodable) as refused:
        encode_line(Event(type="idle", payload={"x": math.nan}, provenance={"trust": {"by": [1, b"x"]}}))
    assert refused.value.path == "provenance.trust.by[1]"
    with pytest.raises(Unencodable) as refused:
        encode_line({"payload": [1, {2}]})
    assert refused.value.path == "payload[1]"


def test_encoding_a_line_leaves_the_callers_mapping_alone() -> None:
    """Sanitizing works on a copy, at every depth."""
    inner = {"k": [math.nan, {1}]}
    record = {"type": "idle", "payload": inner}
    encode_line(record)
    sanitized = sanitize_payload(inner)
    sanitized["k"].append(1)
    assert record == {"type": "idle", "payload": inner}
    assert len(inner["k"]) == 2


@pytest.mark.parametrize(
    ("value", "written"),
    [
        *((value, value) for value in (None, True, False, 0, -1, 2**70, 1.5, -0.0, 1e300, "", "\u00e9", LIST, OBJECT)),
        ((1, (2,)), [1, [2]]),
        (Pair(1, 2), [1, 2]),
        (OrderedDict({"a": (1,)}), {"a": [1]}),
        (UserDict(a={1: 2}), {"a": {"1": 2}}),
        (MappingProxyType({"a": 1}), {"a": 1}),
        ("a\ud800b\udfff", "a\ufffdb\ufffd"),
        ({"\ud800": "\udfff"}, {"\ufffd": "\ufffd"}),
        *((value, repr(value)) for value in (math.nan, math.inf, -math.inf)),
        (10**1023, 10**1023),
        (10**1024, "1" + "0" * 1024),
        (b"bytes", "b'bytes'"),
        (bytearray(b"x"), "bytearray(b'x')"),
        ({1}, "{1}"),
        (frozenset({1}), "frozenset({1})"),
        (range(3), "range(0, 3)"),
        (1j, "1j"),
        (Decimal("1.50"), "Decimal('1.50')"),
        (PurePosixPath("/a"), "PurePosixPath('/a')"),
        (ValueError("no"), "ValueError('no')"),
        (datetime(2026, 8, 4, 1, 2, 3, 4, UTC), "2026-08-04T01:02:03.000004+00:00"),
        (datetime(2026, 8, 4, 1, tzinfo=timezone(timedelta(hours=2))), "2026-08-04T01:00:00+02:00"),
        (date(2026, 8, 4), "2026-08-04"),
        (time(1, 2), "01:02:00"),
        (timedelta(seconds=1), "datetime.timedelta(seconds=1)"),
        (Word.DONE, "done"),
        (Level.HIGH, 3),
        (Colour.RED, "<Colour.RED: 'red'>"),
        (Point, "<class 'tests.test_contract.Point'>"),
        (Point(), "Point(x=1)"),
        ({1: "a", None: "b", (1, 2): "c", b"k": "d", Word.DONE: "e", 1.5: "f", False: "g"},
         {"1": "a", "None": "b", "(1, 2)": "c", "b'k'": "d", "done": "e", "1.5": "f", "False": "g"}),
    ],
)  # fmt: skip
def test_a_payload_is_made_safe_to_write(value: Any, written: Any) -> None:
    """What JSON has stays; keys become text, dates ISO 8601, lone surrogates are replaced, the rest is its repr."""
    for payload, expected in (({"k": value}, {"k": written}), ({"k": [{"k": value}]}, {"k": [{"k": written}]})):
        sanitized = sanitize_payload(payload)
        assert sanitized == expected
        # What it says on paper, not what it is equal to: 1 is True, and an enum is its number.
        assert json.dumps(sanitized) == json.dumps(expected)
        assert decode(encode_line({"payload": payload})[:-1]) == {"payload": expected}


@pytest.mark.parametrize(
    "odd",
    [
        *(Broken(), NoWords(), Hostile(), BrokenList(), {"deep": [Hostile()]}, {Broken(): 1}, 10**5000),
        datetime(2026, 8, 4, tzinfo=BrokenZone()),
        time(1, tzinfo=BrokenZone()),
    ],
    ids=lambda odd: type(odd).__name__,
)
def test_a_value_that_raises_does_not_break_a_journal(odd: Any) -> None:
    """A broken value in a payload becomes some text; the rest of the payload stays as it is."""
    sanitized = sanitize_payload({"before": 1, "odd": odd, "after": [2]})
    assert decode(encode(sanitized)) == sanitized
    assert (sanitized["before"], sanitized["after"]) == (1, [2])


@pytest.mark.parametrize("payload", [Hostile(), {Broken(): 1}, UserDict({NoWords(): Broken()})])
def test_a_payload_that_raises_does_not_break_a_journal(payload: Mapping[Any, Any]) -> None:
    """Whatever the payload itself does, what comes back is an object that can be written."""
    sanitized = sanitize_payload(payload)
    assert type(sanitized) is dict
    assert decode(encode(sanitized)) == sanitized


class Knot(dict[str, Any]):
    """A mapping that counts how often it is walked, and is empty once that is too often."""

    walks = 0

    def items(self) -> Any:
        """The items, a thousand times."""
        self.walks += 1
        return super().items() if self.walks <= 1000 else OBJECT.items()


def test_a_payload_within_itself_is_written_in_bounded_time() -> None:
    """A cycle ends somewhere, as text: also one that comes back to itself in two places."""
    listed: list[Any] = [1]
    listed.append(listed)
    assert decode(encode(sanitize_payload({"k": listed})))["k"][0] == 1
    knot = Knot()
    knot.update(left=knot, right=[knot])
    assert encode(sanitize_payload({"k": knot}))
    assert knot.walks < 1000


@pytest.mark.parametrize("depth", [1, 150, 1_000, 100_000])
def test_a_deep_payload_is_written(depth: int) -> None:
    """Where it is too deep to be followed it is text; the levels before that stand."""
    lists: Any = 1
    mappings: Any = 1
    for _ in range(depth):
        lists, mappings = [lists], {"k": mappings}
    for deep in (lists, mappings):
        sanitized = sanitize_payload({"k": deep})
        assert decode(encode(sanitized)) == sanitized
        if depth <= 150:
            assert sanitized == {"k": deep}


@FEWER
@given(st.dictionaries(st.text(), json_values(floats=True), max_size=2))
def test_what_json_carries_comes_back_unchanged(payload: dict[str, Any]) -> None:
    """Sanitizing is no change to a payload that needs none."""
    line = encode_line(Event(type="idle", payload=payload))
    assert json.loads(line) == json.loads(encode({**Event(type="idle").to_dict(), "payload": payload}))
    assert line.count(b"\n") == 1


LONE: Final = st.characters(categories=["Cs"])
KEYS: Final = st.one_of(st.none(), st.booleans(), st.integers(), st.text(), st.binary(), st.builds(Broken), LONE)
SCALARS: Final = st.one_of(KEYS, st.floats(), st.decimals(), st.dates(), st.datetimes(), st.timedeltas())
ANYTHING: Final = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        *(st.lists(inner, max_size=3), st.tuples(inner, inner), st.dictionaries(KEYS, inner, max_size=3)),
        st.frozensets(st.integers(), max_size=3),
    ),
    max_leaves=8,
)


@FEWER
@given(st.dictionaries(KEYS, ANYTHING, max_size=4))
def test_anything_can_be_written(payload: dict[Any, Any]) -> None:
    """Sanitizing never raises, and what it gives is written and read back as it is."""
    sanitized = sanitize_payload(payload)
    assert decode(encode(sanitized)) == sanitized
    assert sanitize_payload(sanitized) == sanitized


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        *(({"evidence": word}, word) for word in ("accepted", "rejected", "absent", "unknown")),
        *(({"evidence": member}, member.value) for member in Evidence),
        *(({"evidence": odd, "refs": [1]}, "unknown") for odd in ("Accepted", " accepted", "accepted\n", "", "future")),
        *(({"evidence": odd, "refs": 1}, "unknown") for odd in (None, True, 1, LIST, ["accepted"], OBJECT, b"absent")),
        *(({"refs": refs}, "accepted") for refs in ([1], LIST, None, False, "no")),
        *((bare, "unknown") for bare in (OBJECT, {"final": True}, {"evidence_rejected": 1}, {"Evidence": "absent"})),
        *((odd, "unknown") for odd in (None, LIST, ["refs"], "refs", "evidence", 5, True, {"refs"}, Hostile())),
        (MappingProxyType({"evidence": "rejected"}), "rejected"),
        (UserDict({"refs": None}), "accepted"),
    ],
)  # fmt: skip
def test_evidence_is_read_as_it_was_stamped(payload: Any, status: str) -> None:
    """A present marker decides; before there were markers, refs mean accepted, and their absence means nothing."""
    found = evidence_status(payload)
    assert type(found) is Evidence
    assert found.value == status


class OddText(str):
    """A text that raises when it is compared."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        raise RuntimeError

    def __hash__(self) -> int:
        raise RuntimeError


@given(st.one_of(ANYTHING, st.fixed_dictionaries({}, optional={"evidence": ANYTHING, "refs": ANYTHING})))
def test_evidence_is_total(payload: Any) -> None:
    """Nothing makes the decoder raise, and nothing but the very words and old refs is ever accepted."""
    found = evidence_status(payload)
    if found is Evidence.ACCEPTED:
        assert payload.get("evidence", "accepted") == "accepted"
        assert "evidence" in payload or "refs" in payload
    assert evidence_status({"evidence": OddText("accepted")}) is Evidence.UNKNOWN
