"""Journals into traces: what is exported, what is held back, what is reported, and what a failure leaves."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.canonical import encode
from raxol_otel.errors import ExportError, UsageError
from raxol_otel.exporters import replay as replay_module
from raxol_otel.exporters.base import ExportResult
from raxol_otel.exporters.file import FileExporter
from raxol_otel.exporters.limits import Limits
from raxol_otel.exporters.otlp_json import Envelope
from raxol_otel.exporters.replay import ReplayOptions, ReplayReport, SessionReport, replay
from tests.conftest import ROOT, require_shared
from tests.exporter_contract import (
    SECOND,
    START_NS,
    Recorder,
    held_lock,
    record,
    turn_records,
    turns_records,
    write_session,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from raxol_otel.turns import Span

START: Final = START_NS / SECOND
HOUR: Final = 3600.0
GARBAGE: Final = b'{"id":oops}\n'


@pytest.fixture(params=["held", "read twice", "read again midway"], autouse=True)
def _size(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every test runs with small sessions, whose spans are held, and with large ones, read twice and sent in parts."""
    if request.param == "held":
        return
    monkeypatch.setattr(replay_module, "HOLD_BYTES_MAX" if request.param == "read twice" else "HOLD_SPANS_MAX", 0)
    monkeypatch.setattr(replay_module, "BATCH_SPANS", 1)


def outcome(*paths: Path, **options: Any) -> tuple[list[Span], ReplayReport]:
    """The spans and the report of a replay."""
    recorder = Recorder()
    now = options.pop("now", START + 10 * HOUR)
    report = replay(paths, recorder, ReplayOptions(**options), now=lambda: now)
    return recorder.spans, report


def only(report: ReplayReport) -> SessionReport:
    """The report of the one session."""
    (session,) = report.sessions
    return session


def turns(spans: Sequence[Span]) -> list[tuple[object, object]]:
    """The id and outcome of each turn, in order."""
    chosen = [span.attributes for span in spans if span.role == "turn"]
    return [(attributes["raxol.turn.id"], attributes["raxol.turn.outcome"]) for attributes in chosen]


def marked(spans: Sequence[Span]) -> list[object]:
    """The ids of the spans that say that their journal is damaged, and their roles."""
    return [
        (span.role, span.attributes.get("raxol.turn.id"))
        for span in spans
        if "raxol.journal.damaged" in span.attributes
    ]


def test_the_report_of_a_healthy_session(tmp_path: Path) -> None:
    """Records, turns, spans and offsets are told for the session and for all together."""
    directory = write_session(tmp_path / "s", turns_records(3))
    spans, report = outcome(directory)
    session = only(report)
    assert (session.name, session.state, session.error, session.damage) == (str(directory), "healthy", None, None)
    assert (session.records, session.turns, session.spans, session.held) == (12, 3, 6, 0)
    assert (session.last_offset, session.head_offset) == (12, 12)
    assert (report.accepted, report.rejected, report.messages, report.is_intact) == (6, 0, [], True)
    assert [span.role for span in spans] == ["tool", "turn"] * 3


def test_the_report_of_the_tour() -> None:
    """The shipped session: its numbers, as counted in its records by hand."""
    spans, report = outcome(ROOT / "golden" / "tour")
    session = only(report)
    assert (session.records, session.turns, session.last_offset, session.state) == (150, 12, 150, "healthy")
    assert report.accepted == len(spans) == session.spans
    assert sum(span.role == "turn" for span in spans) == 12


@pytest.mark.parametrize("corpus", ["v1.0.0/golden-v1", "v1.1.0/golden-v11", "v1.2.0/golden-v12"])
def test_the_frozen_corpora_are_intact(corpus: str) -> None:
    """Journals of the reference replay without a word of damage."""
    spans, report = outcome(require_shared("golden", *corpus.split("/")))
    assert report.is_intact
    assert spans


def test_many_sessions_are_summed_up_in_the_order_of_their_names(tmp_path: Path) -> None:
    """However the paths were given; each session's own numbers stay apart."""
    for name, count in (("b", 1), ("a", 2), ("c", 3)):
        write_session(tmp_path / name, turns_records(count))
    _, report = outcome(tmp_path / "c", tmp_path / "b", tmp_path / "a")
    assert [(session.name, session.spans) for session in report.sessions] == [
        (str(tmp_path / "a"), 4),
        (str(tmp_path / "b"), 2),
        (str(tmp_path / "c"), 6),
    ]
    assert [report.total(what) for what in ("records", "turns", "spans", "held")] == [24, 6, 12, 0]


def test_an_empty_session_is_healthy(tmp_path: Path) -> None:
    """A writer that has written nothing yet."""
    spans, report = outcome(write_session(tmp_path / "s", []))
    assert (spans, only(report).state, only(report).last_offset) == ([], "healthy", 0)


def test_observed_turns_count_as_turns(tmp_path: Path) -> None:
    """What an agent reported doing is a turn like another."""
    steps = [{"step": "prompted"}, {"step": "turn_ended", "reason": "end_turn"}]
    records = [
        {**record(number, "observed", number), "family": "meta", "turn_id": None, "payload": step}
        for number, step in enumerate(steps, 1)
    ]
    spans, report = outcome(write_session(tmp_path / "s", records))
    assert [span.attributes["raxol.observed"] for span in spans] == [True]
    assert (only(report).turns, only(report).spans) == (1, 1)


def test_what_an_exporter_refuses_is_reported(tmp_path: Path) -> None:
    """Refused spans and the refuser's words; they do not count as spans of the session."""

    class Refusing(Recorder):
        def export(self, spans: Sequence[Span]) -> ExportResult:
            return ExportResult(len(spans) - 1, 1, "no more today")

    report = replay([write_session(tmp_path / "s", turns_records(1))], Refusing())
    assert (report.accepted, report.rejected, report.messages, only(report).spans) == (1, 1, ["no more today"], 1)


def test_a_second_replay_and_one_of_a_copy_are_the_same(tmp_path: Path) -> None:
    """The same spans with the same ids, whoever replays them, whenever, however large the session."""
    directory = write_session(tmp_path / "s", [*turns_records(2), *turn_records(9, "t3", 300, is_open=True)])
    shutil.copytree(directory, tmp_path / "copy" / "s")
    first, _ = outcome(directory)
    assert outcome(directory, now=START + 999 * HOUR)[0] == first
    assert outcome(tmp_path / "copy")[0] == first


def test_limits_are_applied_to_what_is_exported(tmp_path: Path) -> None:
    """Values are cut to the length that the user wants."""
    spans, _ = outcome(write_session(tmp_path / "s", turns_records(2)), limits=Limits(attribute_length=3))
    values = [value for span in spans for value in span.attributes.values() if isinstance(value, str)]
    assert max(map(len, values)) == 3


def test_all_turns_of_a_damaged_session_say_so(tmp_path: Path) -> None:
    """The first turn as the last, held or read twice; its children do not; what is after the damage never comes."""
    after = b"".join(encode(one) + b"\n" for one in turn_records(12, "t9", 600))
    records = turns_records(3)[:11]
    spans, report = outcome(write_session(tmp_path / "s", records, head=20, tail=GARBAGE + after))
    assert turns(spans) == [("t1", "completed"), ("t2", "completed"), ("t3", "incomplete")]
    assert marked(spans) == [("turn", "t1"), ("turn", "t2"), ("turn", "t3")]
    assert all(span.attributes["raxol.journal.damaged"] is True for span in spans if span.role == "turn")
    session = only(report)
    assert (session.state, session.records, session.last_offset, session.turns) == ("damaged", 11, 11, 3)
    assert session.damage is not None
    assert (session.damage.cause, session.damage.place, session.damage.line) == (
        "unparsable",
        "journal/000001.jsonl",
        12,
    )
    assert not report.is_intact


def test_damage_of_one_session_marks_no_other(tmp_path: Path) -> None:
    """The neighbour's turns are clean."""
    write_session(tmp_path / "a", turns_records(1), tail=GARBAGE)
    write_session(tmp_path / "b", turns_records(1))
    spans, report = outcome(tmp_path)
    assert marked(spans) == [("turn", "t1")]
    assert [session.state for session in report.sessions] == ["damaged", "healthy"]


def test_damage_is_published_once_a_session(tmp_path: Path) -> None:
    """Also of a session that is read twice."""
    heard: list[tuple[str, object]] = []
    write_session(tmp_path / "a", turns_records(1), tail=GARBAGE)
    write_session(tmp_path / "b", turns_records(1), tail=GARBAGE)
    signals.attach("test", lambda signal: heard.append((signal.name, signal.metadata["session_id"])))
    try:
        outcome(tmp_path)
    finally:
        signals.detach("test")
    assert heard == [("raxol.agent.journal.damaged", "a"), ("raxol.agent.journal.damaged", "b")]


@pytest.mark.parametrize("tail", [b'{"id":', encode(record(5, "turn_canceled")), b"\0" * 500])
def test_a_torn_session_is_intact(tmp_path: Path, tail: bytes) -> None:
    """The unterminated line is left out, and nothing is marked."""
    spans, report = outcome(write_session(tmp_path / "s", turns_records(1), tail=tail))
    assert (only(report).state, only(report).records, report.is_intact) == ("torn", 4, True)
    assert (turns(spans), marked(spans)) == ([("t1", "completed")], [])


def test_a_truncated_session_is_exported_and_not_intact(tmp_path: Path) -> None:
    """HEAD names more than there is: what is there is good, and the loss is told."""
    spans, report = outcome(write_session(tmp_path / "s", turns_records(1), head=9))
    session = only(report)
    assert (session.state, session.last_offset, session.head_offset) == ("truncated", 4, 9)
    assert (turns(spans), marked(spans), report.is_intact) == ([("t1", "completed")], [], False)


@pytest.mark.parametrize("what", ["journal/000001.jsonl", "journal/000002.jsonl", "meta.json", "journal"])
def test_an_unreadable_session_among_others(tmp_path: Path, what: str) -> None:
    """Nothing of it is exported, it is told by name, and the rest goes on."""
    bad = write_session(tmp_path / "bad", turns_records(1))
    write_session(tmp_path / "good", turns_records(1))
    path = bad / what
    if what == "journal":
        shutil.rmtree(path)
        path.write_bytes(b"")
    else:
        path.unlink(missing_ok=True)
        path.mkdir()
    spans, report = outcome(tmp_path)
    first, second = report.sessions
    assert (first.name, first.state, first.spans, second.state) == (str(bad), "unreadable", 0, "healthy")
    assert first.error is not None
    assert str(path) in first.error
    assert {span.session_id for span in spans} == {"good"}
    assert not report.is_intact


def open_session(folder: Path, *, lock: str) -> Path:
    """A session with a whole turn and one that is still open; its last record is 61.5 seconds after the start."""
    directory = write_session(folder / "s", [*turn_records(), *turn_records(5, "t2", 60, is_open=True)])
    if lock == "unknown":
        (directory / "writer.lock").mkdir()
    elif lock != "none":
        (directory / "writer.lock").write_bytes(lock.encode())
    return directory


BOTH: Final = [("t1", "completed"), ("t2", "incomplete")]


def test_an_open_turn_of_a_live_writer_is_held_back(tmp_path: Path) -> None:
    """However old it is: its writer may go on."""
    directory = open_session(tmp_path, lock="garbage")
    with held_lock(directory / "writer.lock"):
        spans, report = outcome(directory, now=START + 1000 * HOUR, settle_seconds=0)
    assert turns(spans) == BOTH[:1]
    assert (only(report).held, report.total("held"), report.is_intact) == (1, 1, True)


def test_an_open_turn_of_a_writer_that_is_gone_is_exported(tmp_path: Path) -> None:
    """No lock, or a stale one: nobody will write to it any more."""
    for lock in ("none", "garbage", "0"):
        spans, report = outcome(open_session(tmp_path / lock, lock=lock), now=START)
        assert (turns(spans), only(report).held) == (BOTH, 0)


@pytest.mark.parametrize(
    ("age", "settle", "held"),
    [(0, HOUR, 1), (HOUR - 1, HOUR, 1), (HOUR + 1, HOUR, 0), (0, 0, 0), (59, 60, 1), (61, 60, 0)],
)
def test_an_open_turn_of_an_unknown_writer_waits_until_it_settles(
    tmp_path: Path, age: float, settle: float, held: int
) -> None:
    """Where it cannot be told who writes, the age of the last record decides."""
    directory = open_session(tmp_path, lock="unknown")
    spans, report = outcome(directory, now=START + 61.5 + age, settle_seconds=settle)
    assert only(report).held == held
    assert turns(spans) == BOTH[: 2 - held]


def test_by_default_an_unknown_writer_gets_an_hour() -> None:
    """The documented default."""
    assert ReplayOptions().settle_seconds == HOUR


@pytest.mark.parametrize(
    ("options", "chosen"),
    [
        ({"since": START_NS + 60 * SECOND}, ["t2", "t3"]),
        ({"since": START_NS + 60 * SECOND + 1}, ["t3"]),
        ({"until": START_NS + 60 * SECOND}, ["t1"]),
        ({"until": START_NS + 60 * SECOND + 1}, ["t1", "t2"]),
        ({"since": START_NS + 1, "until": START_NS + 120 * SECOND}, ["t2"]),
        ({"turn": "t2"}, ["t2"]),
        ({"turn": "t2", "until": START_NS}, []),
        ({"turn": "t"}, []),
        ({"since": START_NS + HOUR * SECOND}, []),
        ({}, ["t1", "t2", "t3"]),
    ],
)
def test_chosen_turns_come_with_their_children(tmp_path: Path, options: dict[str, Any], chosen: list[str]) -> None:
    """By when they start (`until` excluded) and by their id; a child belongs to its turn, whenever it ran."""
    spans, report = outcome(write_session(tmp_path / "s", turns_records(3)), **options)
    assert [turn for turn, _ in turns(spans)] == chosen
    parents = {span.span_id for span in spans if span.role == "turn"}
    assert [span.parent_id in parents for span in spans if span.role == "tool"] == [True] * len(chosen)
    assert (report.accepted, only(report).records) == (2 * len(chosen), 12)


def test_a_journal_that_grows_while_it_is_read(tmp_path: Path) -> None:
    """What comes in the meantime is read as far as it is whole; half a line is no damage."""
    directory = write_session(tmp_path / "s", turns_records(200))
    late = b"".join(encode(one) + b"\n" for one in turns_records(101, 200))
    cut = late.rindex(b"\n", 0, -1) + 30
    parts = [late[:cut], b"", late[cut:], *([b""] * 10_000)]

    def write(_done: int) -> None:
        with (directory / "journal" / "000001.jsonl").open("ab") as file:
            file.write(parts.pop(0))

    recorder = Recorder()
    report = replay([directory], recorder, progress=write)
    assert (only(report).state, only(report).records, only(report).last_offset) == ("healthy", 1204, 1204)
    assert [turn for turn, _ in turns(recorder.spans)] == [f"t{number}" for number in range(1, 302)]
    assert len({span.span_id for span in recorder.spans}) == 602


@pytest.mark.parametrize("error", [ExportError("full"), RuntimeError("boom"), KeyboardInterrupt()])
@pytest.mark.parametrize("when", ["export", "finish"])
def test_a_failing_exporter_is_aborted(tmp_path: Path, when: str, error: BaseException) -> None:
    """The error comes out as it is; what was exported before is given up, and nothing is finished."""
    calls: list[str] = []

    class Failing(Recorder):
        def export(self, spans: Sequence[Span]) -> ExportResult:
            calls.append("export")
            if when == "export" and len(calls) == 2:
                raise error
            return super().export(spans)

        def finish(self) -> None:
            calls.append("finish")
            raise error

        def abort(self) -> None:
            calls.append("abort")

    for name in ("a", "b", "c"):
        write_session(tmp_path / name, turns_records(1))
    with pytest.raises(type(error)) as caught:
        replay([tmp_path], Failing())
    assert caught.value is error
    assert calls[-1] == "abort"
    assert calls.count("abort") == 1
    assert ("finish" in calls) is (when == "finish")


def test_a_path_without_sessions_aborts_the_exporter(tmp_path: Path) -> None:
    """Nothing is exported, and the exporter leaves nothing behind."""
    (tmp_path / "out").mkdir()
    envelope = Envelope({}, scope_name="s", scope_version="1", schema_url="")
    with pytest.raises(UsageError):
        replay([tmp_path / "missing"], FileExporter(tmp_path / "out" / "x.jsonl", envelope))
    assert list((tmp_path / "out").iterdir()) == []


def _unreadable(directory: Path) -> None:
    (directory / "journal" / "000001.jsonl").rename(directory / "journal" / "000000.jsonl")
    (directory / "journal" / "000001.jsonl").mkdir()


STATES: Final[dict[str, Callable[[Path], object]]] = {
    "healthy": lambda folder: write_session(folder, turns_records(200)),
    "torn": lambda folder: write_session(folder, turns_records(200), tail=b"x" * 40_000),
    "damaged": lambda folder: write_session(folder, turns_records(100), tail=GARBAGE + b"x\n" * 40_000),
    "truncated": lambda folder: write_session(folder, turns_records(3), head=99),
    "unreadable": lambda folder: _unreadable(write_session(folder, turns_records(200))),
    "empty": lambda folder: write_session(folder, []),
}


@pytest.mark.parametrize("state", STATES)
def test_progress_adds_up_to_the_size(tmp_path: Path, state: str) -> None:
    """Step by step, never back, and in the end all bytes are done, whatever became of the session."""
    STATES[state](tmp_path / "s")
    segments = (tmp_path / "s" / "journal").iterdir()
    steps: list[int] = []
    replay([tmp_path], Recorder(), progress=steps.append)
    assert min(steps, default=0) >= 0
    assert sum(steps) == sum(path.stat().st_size for path in segments)
