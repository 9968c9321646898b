"""What must be true of observations, whatever they are given; the judge is written from the format."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any, Final

from benchmarks.fuzz_inputs import Case, Dice, dice, odd_value, value
from benchmarks.fuzz_judge import attempt, is_clean, is_dict, is_list, naive, same
from raxol_otel import observed
from raxol_otel.errors import InvalidStep, Unencodable
from tests import naive_reader

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["bend_observed", "check_observed", "make_observed"]

RECORDS: Final = "records"
ODD: Final = "odd"
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
    good, records = naive(case.get(RECORDS, b"[]"))
    if not good or not is_list(records) or not all(is_dict(one) for one in records):
        return make_observed(d)
    here: Any = records
    path: list[Any] = []
    while type(here) in {dict, list} and here and (len(path) < 2 or d.random() < 0.6):
        path.append((here, d.choice(list(here) if is_dict(here) else range(len(here)))))
        here = here[path[-1][1]]
    if not path:
        return make_observed(d)
    container, key = path[-1]
    put = d.choice((_word(d), value(d, 2), _step(d), here))
    if is_list(container):
        container[key] = put if is_dict(put) or len(path) > 1 else {"type": put}
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
        case {
            "step": "decision",
            "call": str(),
            "outcome": {"outcome": "selected", "option": str(), "kind": str(), **more},
        }:
            return len(item) == 3 and not more
        case {"step": "turn_ended", "reason": str()}:
            return len(item) == 2
        case _:
            return False


def check_observed(case: Case, _folder: Path) -> None:
    """Steps are taken and given back as they are; everything else is `InvalidStep`, told briefly."""
    good, records = naive(case.get(RECORDS, b"[]"))
    if good and is_list(records) and all(is_dict(one) for one in records):
        for record in records:
            _check_step(record.get("payload"))
            _check_step(record)
        _check_replay(records)
    d = dice(int(case.get(ODD, b"0")), ODD, 0)
    for _ in range(4):
        _check_odd_step(d)


def _check_step(item: Any) -> None:
    step, error = attempt(partial(observed.parse, item), InvalidStep)
    assert (error is None) == _is_step(item), error
    if step is not None:
        assert same(observed.render(step), item)
        assert observed.parse(observed.render(step)) == step
    if error is not None:
        assert is_clean(error)
        assert error.offset is None


def _check_replay(records: list[dict[str, Any]]) -> None:
    seen: list[tuple[Any, Any]] = []
    expected: list[Any] = []
    bad = None
    for record in records:
        if [record.get(key, "event") for key in ("type", "family", "kind")] == ["observed", "meta", "event"]:
            if not _is_step(record.get("payload")):
                bad = record
                break
            expected.append(record)
    # Keeps those before the error.
    _, error = attempt(partial(seen.extend, observed.replay(records)), InvalidStep)
    assert (error is None) == (bad is None), error
    if error is not None and bad is not None:
        wanted = bad.get("id")
        assert error.offset == (wanted if type(wanted) is int else None)
        assert is_clean(error, 1500)
    assert same([record for record, _ in seen], expected)
    assert same([observed.render(step) for _, step in seen], [one["payload"] for one in expected])


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
    step, error = attempt(d.choice(makers), InvalidStep)
    if error is not None:
        assert is_clean(error)
    elif step is not None:
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
    branch = d.choice((None, "main"))
    write = partial(observed.record, sink, step, detail, keep_digest=keep, branch_id=branch)
    offset, error = attempt(write, Unencodable)
    assert (error is None) == (not keep or detail is None or detail.isascii())
    assert (offset == 1) == (error is None)
    assert [step for _, step in observed.replay(sink.events)] == ([] if error else [step])
    assert "secret" not in repr((sink.events, error))
