"""What must be true of the codec and of observations, whatever they are given.

A check raises when something is not; the judges are written from the format and use nothing of the package.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import NUMBERS, TOKENS, Case, Dice, bent, dice, odd_value, same, spelled, value
from raxol_otel import observed
from raxol_otel.canonical import encode
from raxol_otel.errors import EncodeError, InvalidStep, Unencodable
from raxol_otel.journal import codec
from tests import naive_reader
from tests.naive_reader import exactly

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["bend_observed", "bend_text", "check_codec", "check_observed", "make_observed", "make_text"]

TEXT: Final = "text"
ODD: Final = "odd"
RECORDS: Final = "records"
_HEX: Final = re.compile(rb"\\(?:u00[0-9a-f]{2}|.)")
_FRACTION: Final = re.compile(rb"-?[0-9]+(?:\.[0-9]+)?(?:e[-+]?[0-9]+)?(?=[\],}]|$)")

# --- codec


def make_text(d: Dice) -> Case:
    """Some lines of JSON, and a seed for a value of Python's."""
    lines = [spelled(d, value(d, d.randrange(5))) for _ in range(d.choice((1, 1, 1, 2, 5)))]
    if d.random() < 0.05:
        lines.append(b"".join(d.choice(d.choice((TOKENS, NUMBERS))) for _ in range(d.randrange(9))))
    return {TEXT: b"\n".join(lines), ODD: b"%d" % d.getrandbits(32)}


def bend_text(d: Dice, case: Case) -> Case:
    """The case with something done to its text."""
    return {**case, TEXT: bent(d, case.get(TEXT, b"")), ODD: b"%d" % d.getrandbits(32)}


def check_codec(case: Case, _folder: Path) -> None:
    """Reading and writing agree with the naive reader's, and give the same thing there and back."""
    text = case.get(TEXT, b"")
    lines = [line for line in text.split(b"\n") if line]
    for one in {text, *lines}:
        _check_text(one)
    if lines:
        _check_lines(lines)
    _check_odd(odd_value(dice(int(case.get(ODD, b"0")), ODD, 0)))


def _naive(text: bytes) -> tuple[bool, Any]:
    try:
        return True, naive_reader.parse(text)
    except naive_reader.Refused:
        return False, None


def _check_text(text: bytes) -> None:
    good, expected = _naive(text)
    for read in (codec.decode, codec.decode_exact):
        try:
            found = read(text)
        except codec.DecodeError as error:
            assert not good, f"{read.__name__} refuses what is right: {error}"
            assert str(error)
            assert error.invalid_utf8 == (not _is_utf8(text))
        else:
            assert good, f"{read.__name__} takes what is wrong"
            assert same(found, expected)
    if good:
        written = encode(expected)
        assert written == naive_reader.dump(expected).encode()
        back = codec.decode(written)
        assert same(back, expected)
        assert encode(back) == written


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def _check_lines(lines: list[bytes]) -> None:
    """Many at once are read as one by one."""
    expected: list[Any] = []
    for line in lines:
        good, item = _naive(line)
        if not good:
            break
        expected.append(item)
    for sort_keys in (False, True):
        found, proven, error = codec.decode_lines([line + b"\n" for line in lines], sort_keys=sort_keys)
        assert (error is None) == (len(expected) == len(lines))
        assert same(found, expected)
        assert len(proven) == len(expected)
        for line, item, is_proven in zip(lines, expected, proven, strict=False):
            if sort_keys and is_proven:
                # Canonical but for the spelling of floats and the case of escapes.
                assert _HEX.sub(_upper, _FRACTION.sub(b"0.0", line)) == _FRACTION.sub(b"0.0", encode(item))


def _upper(match: re.Match[bytes]) -> bytes:
    return match[0][:4] + match[0][4:].upper() if match[0].startswith(b"\\u") else match[0]


def _check_odd(item: Any) -> None:
    """A value of Python's is written by the rules, or refused with its path; a record without floats as well."""
    try:
        expected: bytes | None = naive_reader.dump(_plain(item)).encode()
    except (_NotJson, UnicodeEncodeError):
        expected = None
    try:
        written = encode(item)
    except Unencodable as error:
        assert expected is None, f"refused: {error}"
    else:
        assert written == expected
    try:
        assert encode(item, floats=False) == expected
    except EncodeError:
        assert expected is None or _has_float(item)


class _NotJson(Exception):
    """A value that JSON cannot carry."""


def _plain(item: Any) -> Any:
    if isinstance(item, dict):
        if not all(isinstance(key, str) for key in item):
            raise _NotJson
        return {str.__str__(key): _plain(one) for key, one in item.items()}
    if isinstance(item, (list, tuple)):
        return [_plain(one) for one in item]
    if item is None or isinstance(item, bool):
        return item
    if isinstance(item, str):
        item.encode()
        return str.__str__(item)
    if isinstance(item, int):
        if abs(item) >= 10**1024 or len(str(int(item))) > 1024:
            raise _NotJson
        return int(item)
    if isinstance(item, float) and item - item == 0:
        return float(item)
    raise _NotJson


def _has_float(item: Any) -> bool:
    if isinstance(item, dict):
        return any(map(_has_float, item.values()))
    if isinstance(item, (list, tuple)):
        return any(map(_has_float, item))
    return isinstance(item, float)


# --- observed

_WORDS: Final = (
    *(
        "prompted",
        "tool_call",
        "decision",
        "turn_ended",
        "selected",
        "cancelled",
        "pending",
        "in_progress",
        "completed",
    ),
    *(
        "failed",
        "step",
        "outcome",
        "call",
        "status",
        "option",
        "kind",
        "reason",
        "Completed",
        "allow",
        "",
        "x" * 90,
        "\0",
    ),
)
_STATUSES: Final = {"pending", "in_progress", "completed", "failed"}


def _step(d: Dice) -> dict[str, Any]:
    outcome = d.choice(({"outcome": "cancelled"}, {"outcome": "selected", "option": _word(d), "kind": _word(d)}))
    status = d.choice(sorted(_STATUSES))
    steps: tuple[dict[str, Any], ...] = (
        {"step": "prompted"},
        {"step": "tool_call", "call": _word(d), "status": status},
        {"step": "decision", "call": _word(d), "outcome": outcome},
        {"step": "turn_ended", "reason": _word(d)},
    )
    return d.choice(steps)


def _word(d: Dice) -> Any:
    return d.choice(_WORDS)


def make_observed(d: Dice) -> Case:
    """Some records, most of them observations, and a seed for values of Python's."""
    records: list[Any] = []
    for number in range(d.randrange(1, 5)):
        record = {"id": number, "kind": "event", "family": "meta", "type": "observed", "payload": _step(d)}
        if d.random() < 0.2:
            record.pop(d.choice(list(record)))
        records.append(record)
    return {RECORDS: naive_reader.dump(records).encode(), ODD: b"%d" % d.getrandbits(32)}


def bend_observed(d: Dice, case: Case) -> Case:
    """The case with a member somewhere put in, taken out, or given another value."""
    good, records = _naive(case.get(RECORDS, b"[]"))
    if not good or type(records) is not list or not all(type(one) is dict for one in records):
        return make_observed(d)
    here: Any = records
    path: list[Any] = []
    while type(here) in {dict, list} and here and (len(path) < 2 or d.random() < 0.6):
        path.append((here, d.choice(list(here) if type(here) is dict else range(len(here)))))
        here = here[path[-1][1]]
    if not path:
        return make_observed(d)
    container, key = path[-1]
    put = d.choice((_word(d), value(d, 2), _step(d), here))
    if type(container) is list:
        container[key] = put if type(put) is dict or len(path) > 1 else {"type": put}
    elif d.random() < 0.3:
        del container[key]
    else:
        container[d.choice((key, key, str(_word(d))))] = put
    return {RECORDS: naive_reader.dump(records).encode(), ODD: b"%d" % d.getrandbits(32)}


def _is_step(item: Any) -> bool:
    """Whether it is one of the four, with exactly its members."""
    match item:
        case {"step": "prompted"}:
            return len(item) == 1
        case {"step": "tool_call", "call": str(), "status": str() as status}:
            return len(item) == 3 and status in _STATUSES
        case {"step": "decision", "call": str(), "outcome": {"outcome": "cancelled"} as outcome}:
            return len(item) == 3 and len(outcome) == 1
        case {"step": "decision", "call": str(), "outcome": dict() as outcome}:
            texts = all(type(outcome.get(key)) is str for key in ("option", "kind"))
            return len(item) == 3 and outcome.get("outcome") == "selected" and len(outcome) == 3 and texts
        case {"step": "turn_ended", "reason": str()}:
            return len(item) == 2
        case _:
            return False


def check_observed(case: Case, _folder: Path) -> None:
    """Steps are taken and given back as they are; everything else is `InvalidStep`, told briefly."""
    good, records = _naive(case.get(RECORDS, b"[]"))
    if good and type(records) is list and all(type(one) is dict for one in records):
        for record in records:
            _check_step(record.get("payload"))
            _check_step(record)
        _check_replay(records)
    d = dice(int(case.get(ODD, b"0")), ODD, 0)
    for _ in range(4):
        _check_odd_step(d)


def _check_step(item: Any) -> None:
    try:
        step = observed.parse(item)
    except InvalidStep as error:
        assert not _is_step(item), f"refused: {error}"
        assert len(str(error)) < 300
        assert error.offset is None
        str(error).encode()
    else:
        assert _is_step(item)
        assert same(observed.render(step), item)
        assert observed.parse(observed.render(step)) == step


def _check_replay(records: list[dict[str, Any]]) -> None:
    seen: list[tuple[Any, Any]] = []
    expected: list[Any] = []
    bad = None
    for record in records:
        if (
            record.get("type") == "observed"
            and record.get("family") == "meta"
            and record.get("kind", "event") == "event"
        ):
            if not _is_step(record.get("payload")):
                bad = record
                break
            expected.append(record)
    try:
        seen.extend(observed.replay(records))  # keeps those before the error
    except InvalidStep as error:
        assert bad is not None
        wanted = bad.get("id")
        assert error.offset == (wanted if type(wanted) is int and abs(wanted) < 10**1024 else None)
        assert len(str(error)) < 1500
    else:
        assert bad is None
    assert same([record for record, _ in seen], expected)
    assert [exactly(observed.render(step)) for _, step in seen] == [exactly(one["payload"]) for one in expected]


def _check_odd_step(d: Dice) -> None:
    """Values that no JSON has, in the place of a step or of one of its members."""

    def member() -> Any:
        return _word(d) if d.random() < 0.5 else odd_value(d, 2)

    def outcome() -> Any:
        return d.choice((observed.Cancelled, lambda: observed.Selected(member(), member()), member))()

    def mapping() -> Any:
        step: dict[Any, Any] = _step(d)
        step[d.choice((*step, "x", 1, None, b"x"))] = member()
        return observed.parse(step)

    makers: tuple[Any, ...] = (
        *(mapping, mapping, mapping, lambda: observed.parse(odd_value(d)), lambda: observed.render(odd_value(d))),
        *(lambda: observed.ToolCall(member(), member()), lambda: observed.TurnEnded(member())),
        lambda: observed.Decision(member(), outcome()),
    )
    try:
        step = d.choice(makers)()
    except InvalidStep as error:
        str(error).encode()
        assert len(str(error)) < 300
    else:
        assert observed.parse(observed.render(step)) == step
        _check_record(d, step)


class _Sink:
    """A journal that only remembers."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def append(self, event: dict[str, Any], /) -> int:
        """Remember it."""
        self.events.append(event)
        return len(self.events)


def _check_record(d: Dice, step: observed.Step) -> None:
    """What is recorded is replayed, without a word of the detail."""
    sink = _Sink()
    detail = d.choice((None, "secret words", "\ud800 secret words"))
    keep = d.random() < 0.5
    try:
        assert observed.record(sink, step, detail, keep_digest=keep, branch_id=d.choice((None, "main"))) == 1
    except Unencodable:
        assert keep
        assert detail is not None
        assert detail.startswith("\ud800")
        assert not sink.events
    else:
        assert [step for _, step in observed.replay(sink.events)] == [step]
        assert "secret" not in repr(sink.events)
