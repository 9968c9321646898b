"""The tree in the terminal: its exact text, without Unicode, with styles, and against hostile journals."""

from __future__ import annotations

import io
import os
import pty
import re
import select
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.exporters.console import CHILDREN_SHOWN_MAX, ConsoleExporter, duration, printable
from raxol_otel.exporters.replay import replay
from raxol_otel.turns.span import SpanEvent
from tests.conftest import ROOT
from tests.exporter_contract import (
    SECOND,
    START_NS,
    child_span,
    raxol,
    record,
    turn_records,
    turn_span,
    with_attributes,
    write_session,
)
from tests.test_exporters import text_stream

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from raxol_otel.turns import Span

    Record = dict[str, Any]

# The one escape sequence that may reach a terminal: colours and weights.
STYLE: Final = re.compile(r"\x1b\[[0-9;]*m")
HOSTILE: Final = "\x1b[2J\x1b]0;owned\x07\r\n\t\u202e\u2066\u200b\x9b1m\x00\x7f"

TREE: Final = """\
session cart

turn t1  completed  4.0 s  birch  1200 in, 80 out tokens  $0.0125  evidence accepted
  ◆ raxol.approval.requested ap1 high at 1.6 s
  ├─ reasoning                                   500 ms │███                 │
  ├─ execute_tool read_file         ok           500 ms │     ███            │
  ├─ execute_tool run_tests         error         1.0 s │          █████     │ TestTimeout
  └─ message                                          0 │                 ▏  │

turn t2 on side  canceled  1m 05s  tainted
  └─ execute_tool                   unanswered   1m 04s │████████████████████│

turn t3  error  0  http_error
  ◆ exception http_error at 0

turn t4  incomplete  250 us  start lost
  └─ execute_tool _OTHER            orphan            0 │                   ▏│
"""
ASCII_TREE: Final = TREE.translate(str.maketrans("◆│█▏", "*|#.")).replace("├─", "|-").replace("└─", "`-")


def cart_records() -> list[Record]:
    """Four turns of every sort, each line of `TREE` worked out by hand from them."""
    usage = {"input_tokens": 1200, "output_tokens": 80}
    return [
        record(1, "turn_started", 0, model="birch"),
        record(2, "item_started", 0.1, item_type="reasoning", item_id="i1"),
        record(3, "item_completed", 0.6, item_type="reasoning", item_id="i1", content="so"),
        record(4, "item_completed", 1, item_type="tool_use", call_id="c1", name="read_file"),
        record(5, "item_completed", 1.5, item_type="tool_result", call_id="c1", result="fine"),
        record(6, "approval_requested", 1.6, request_id="ap1", risk="high"),
        record(7, "item_completed", 2, item_type="tool_use", call_id="c2", name="run_tests"),
        record(8, "item_completed", 3, item_type="tool_result", call_id="c2", is_error=True, error="TestTimeout: 9 s"),
        record(9, "item_completed", 3.5, item_type="message", item_id="i2", content="done"),
        record(10, "turn_completed", 4, final=True, usage=usage, cost=0.0125, evidence="accepted"),
        {**record(11, "turn_started", 100, turn="t2"), "branch_id": "side", "provenance": {"trust": "tainted"}},
        {**record(12, "item_completed", 101, turn="t2", item_type="tool_use", call_id="c3"), "branch_id": "side"},
        {**record(13, "turn_canceled", 165, turn="t2"), "branch_id": "side"},
        record(14, "turn_started", 200, turn="t3"),
        record(15, "error", 200, turn="t3", reason="{:http_error, 503}"),
        record(16, "item_started", 300, turn="t4", item_type="tool_result", item_id="i9"),
        record(17, "item_completed", 300.00025, turn="t4", item_type="tool_result", item_id="i9", name="rm -rf /"),
    ]


def printed(spans: Iterable[Span], *, encoding: str = "utf-8") -> str:
    """What the console shows of the spans where it is no terminal."""
    written, stream = text_stream(encoding)
    exporter = ConsoleExporter(stream)
    exporter.export(list(spans))
    exporter.finish()
    return written.getvalue().decode(encoding)


def set_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm-256color") -> None:
    """Say what the terminal can do, whatever the one of these tests can."""
    monkeypatch.setenv("TERM", term)
    for name in ("NO_COLOR", "COLORTERM", "FORCE_COLOR", "TTY_COMPATIBLE", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)


def on_terminal(directory: Path) -> str:
    """What a terminal gets to see of the session."""
    ours, its = pty.openpty()
    seen = b""
    with os.fdopen(ours, "rb", buffering=0) as terminal, os.fdopen(its, "w", encoding="utf-8") as stream:
        replay([directory], ConsoleExporter(stream))
        while select.select([terminal], [], [], 0.1)[0]:
            seen += terminal.read(65536)
    return seen.decode().replace("\r\n", "\n")


def assert_harmless(text: str) -> None:
    """Nothing but printable characters and the ends of our own lines."""
    assert [letter for letter in text if not letter.isprintable() and letter != "\n"] == []


# -- the text


def test_the_tree_of_a_session_word_for_word(tmp_path: Path) -> None:
    """A heading for the session; a line a turn; its events; a line a child with its outcome, length and bar."""
    written, stream = text_stream()
    replay([write_session(tmp_path / "cart", cart_records())], ConsoleExporter(stream))
    assert written.getvalue().decode() == TREE


def test_the_tree_where_only_ascii_can_be_written(tmp_path: Path) -> None:
    """The same tree, drawn with other characters."""
    written, stream = text_stream("ascii")
    replay([write_session(tmp_path / "cart", cart_records())], ConsoleExporter(stream))
    assert written.getvalue().decode() == ASCII_TREE


def test_a_stream_that_knows_no_encoding_gets_ascii(tmp_path: Path) -> None:
    """A stream in memory does not say what it takes; ASCII is always right."""
    stream = io.StringIO()
    replay([write_session(tmp_path / "cart", cart_records())], ConsoleExporter(stream))
    assert stream.getvalue() == ASCII_TREE


@pytest.mark.parametrize(("encoding", "letter"), [("ascii", "ä"), ("latin-1", "語"), ("cp1252", "Ω")])
def test_a_letter_that_the_stream_cannot_encode(encoding: str, letter: str) -> None:
    """It is escaped or replaced; the line and all after it are printed."""
    turn = turn_span(1, session_id=f"s{letter}", attributes=with_attributes(raxol_turn_id=f"<{letter}>"))
    text = printed([child_span(turn, name=f"execute_tool {letter}"), turn, turn_span(2)], encoding=encoding)
    assert letter not in text
    assert "turn <" in text
    assert "turn-2" in text


def test_sessions_are_told_apart(tmp_path: Path) -> None:
    """Each session has its heading once, with an empty line between."""
    write_session(tmp_path / "a", [*turn_records(), *turn_records(5, "t2", 60)])
    write_session(tmp_path / "b", turn_records())
    written, stream = text_stream()
    replay([tmp_path], ConsoleExporter(stream))
    lines = written.getvalue().decode().split("\n")
    assert [line for line in lines if line.startswith("session")] == ["session a", "session b"]
    assert lines[lines.index("session b") - 1] == ""
    assert [line for line in lines if line.startswith("turn")] == [
        "turn t1  completed  2.0 s",
        "turn t2  completed  2.0 s",
        "turn t1  completed  2.0 s",
    ]


def test_a_damaged_journal_is_named_on_each_turn(tmp_path: Path) -> None:
    """In words, at the end of the turn's line."""
    written, stream = text_stream()
    replay([write_session(tmp_path / "s", turn_records(), tail=b"garbage\n")], ConsoleExporter(stream))
    assert "turn t1  completed  2.0 s  journal damaged\n" in written.getvalue().decode()


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (-1, "0"),
        (0, "0"),
        (1, "1 us"),
        (4_000, "4 us"),
        (4_999, "4 us"),
        (999_999, "999 us"),
        (10**6, "1 ms"),
        (120 * 10**6, "120 ms"),
        (SECOND - 1, "999 ms"),
        (SECOND, "1.0 s"),
        (3_400_000_000, "3.4 s"),
        (59_999_999_999, "59.9 s"),
        (60 * SECOND, "1m 00s"),
        (125 * SECOND, "2m 05s"),
        (3600 * SECOND - 1, "59m 59s"),
        (3600 * SECOND, "1h 00m"),
        (3720 * SECOND, "1h 02m"),
        (100 * 3600 * SECOND, "100h 00m"),
    ],
)
def test_durations(nanoseconds: int, text: str) -> None:
    """A time is cut, never rounded up, to what a person wants to know of it."""
    assert duration(nanoseconds) == text


@pytest.mark.parametrize("tenths", range(10, 600, 7))
def test_tenths_of_seconds_are_exact(tenths: int) -> None:
    """No float's error shows: 5.7 seconds are not 5.6."""
    assert duration(tenths * SECOND // 10) == f"{tenths // 10}.{tenths % 10} s"


def test_children_beyond_the_limit_are_counted() -> None:
    """The first 200 are shown, in order; one last line says how many more there are."""
    turn = turn_span()
    children = [child_span(turn, number, start_ns=START_NS + number) for number in range(1, 251)]
    lines = printed([*reversed(children), turn]).splitlines()
    assert CHILDREN_SHOWN_MAX == 200
    assert [line.split()[2] for line in lines[3:-1]] == [f"tool-{number}" for number in range(1, 201)]
    assert all(line.startswith("  ├─ ") for line in lines[3:-1])
    assert lines[-1] == "  └─ and 50 more"


def test_exactly_as_many_children_as_are_shown() -> None:
    """At the limit nothing is hidden, and the last child closes the tree."""
    turn = turn_span()
    lines = printed([*(child_span(turn, number) for number in range(1, 201)), turn]).splitlines()
    assert len(lines) == 3 + 200
    assert lines[-1].startswith("  └─ execute_tool tool-200")


@pytest.mark.parametrize(
    ("start", "end", "bar"),
    [
        (0, 20, "████████████████████"),
        (0, 0, "▏                   "),
        (20, 20, "                   ▏"),
        (19, 20, "                   █"),
        (5, 6, "     █              "),
        (5.5, 5.6, "     █              "),
        (-10, 5, "█████               "),
        (15, 40, "               █████"),
        (-10, -5, "▏                   "),
        (30, 40, "                   █"),
    ],
)
def test_a_bar_shows_when_a_child_ran(start: float, end: float, bar: str) -> None:
    """Its share of the turn, at its place, never outside: also for a child that ran before or after the turn."""
    turn = turn_span(end_ns=START_NS + 20 * SECOND)
    times = {"start_ns": START_NS + int(start * SECOND), "end_ns": START_NS + int(end * SECOND)}
    line = printed([child_span(turn, 1, **times), turn]).splitlines()[-1]
    assert line.partition("│")[2] == f"{bar}│"


# -- styles


def test_a_terminal_sees_colours_and_the_same_words(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Styles are added and take nothing away: without them it is the plain text."""
    set_terminal(monkeypatch)
    seen = on_terminal(write_session(tmp_path / "cart", cart_records()))
    plain = STYLE.sub("", seen)
    assert "\n".join(line.rstrip() for line in plain.split("\n")) == TREE
    assert re.search(r"\x1b\[[0-9;]*32m *completed", seen), "completed is green"
    assert re.search(r"\x1b\[[0-9;]*31m *error", seen), "error is red"


def test_a_terminal_that_wants_no_colour_gets_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TERM=dumb` gets the words alone."""
    set_terminal(monkeypatch, "dumb")
    seen = on_terminal(write_session(tmp_path / "cart", cart_records()))
    assert seen == TREE


def test_styles_can_be_asked_for_and_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """`styled` decides, whether the stream is a terminal or not: for a pager, say."""
    set_terminal(monkeypatch)
    for styled in (True, False):
        written, stream = text_stream()
        ConsoleExporter(stream, styled=styled).export([turn_span()])
        assert (b"\x1b[" in written.getvalue()) is styled


# -- hostile journals


def hostile_records() -> list[Record]:
    """A session in which everything that is shown was written to take over a terminal."""
    turn = f"t{HOSTILE}"
    call = {"call_id": HOSTILE, "name": f"tool{HOSTILE}"}
    records = [
        record(1, "turn_started", 0, turn=turn, model=f"m{HOSTILE}", provider=HOSTILE),
        record(2, "item_completed", 1, turn=turn, item_type="tool_use", item_id=HOSTILE, **call),
        record(3, "item_completed", 2, turn=turn, item_type="tool_result", **call, is_error=True, error=HOSTILE),
        record(4, "approval_requested", 2, turn=turn, request_id=f"a{HOSTILE}", risk=HOSTILE),
        record(5, "error", 3, turn=turn, reason=f"Error: {HOSTILE}"),
    ]
    return [{**one, "session_id": f"s{HOSTILE}", "branch_id": f"b{HOSTILE}"} for one in records]


def test_no_control_character_of_a_journal_reaches_a_stream(tmp_path: Path) -> None:
    """Escapes, bidi overrides, newlines in ids and names are shown as their numbers."""
    written, stream = text_stream()
    replay([write_session(tmp_path / "s", hostile_records())], ConsoleExporter(stream))
    text = written.getvalue().decode()
    assert_harmless(text)
    assert "\\u{1b}[2J" in text
    assert "\\u{202e}" in text


def test_no_control_character_of_a_journal_reaches_a_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same in a terminal: all that moves it are our own styles; markup in names stays text."""
    records = [*hostile_records(), *turn_records(6, "[red]t2[/red] :smile:", 60)]
    set_terminal(monkeypatch)
    seen = on_terminal(write_session(tmp_path / "s", records))
    assert_harmless(STYLE.sub("", seen))
    assert "[red]t2[/red] :smile:" in STYLE.sub("", seen)


def test_a_long_name_is_cut() -> None:
    """One bad name does not fill the screen."""
    turn = turn_span(attributes=with_attributes(raxol_turn_id="n" * 10_000))
    events = [SpanEvent("e" * 500, START_NS, {"k": "v" * 500})]
    lines = printed([child_span(turn, name="c" * 10_000), turn_span(1, attributes=turn.attributes, events=events)])
    assert max(map(len, lines.splitlines())) < 200


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("Ünï 語", "Ünï 語"),
        ("a\nb\tc", "a\\u{a}b\\u{9}c"),
        ("\ud800", "\\u{d800}"),
        ("\u2028\u00ad\ufeff", "\\u{2028}\\u{ad}\\u{feff}"),
        ("x" * 60, "x" * 60),
        ("x" * 61, "x" * 57 + "..."),
    ],
)
def test_printable_text(text: str, shown: str) -> None:
    """Only what is neither printable nor short enough is changed."""
    assert printable(text) == shown


def test_the_tour_is_shown_without_styles(capfd: pytest.CaptureFixture[str]) -> None:
    """The shipped session prints its twelve turns and nothing on standard error."""
    written, stream = text_stream()
    replay([ROOT / "golden" / "tour"], ConsoleExporter(stream))
    lines = written.getvalue().decode().splitlines()
    assert lines[0] == "session tour"
    assert len([line for line in lines if line.startswith(("turn ", "observed turn"))]) == 12
    assert capfd.readouterr() == ("", "")


def test_letters_that_standard_output_cannot_encode(tmp_path: Path) -> None:
    """A session of any name is shown somehow, never with a traceback."""
    session = write_session(tmp_path / "s\u00e4\udcff", turn_records(turn="\u8a9e"))
    for command in (("replay",), ("verify",), ("verify", "--json"), ("replay", "--json"), ("show",)):
        done = raxol(*command, session, variables={"PYTHONIOENCODING": "ascii"})
        assert (done.returncode, "Error" in done.stderr) == (0, False), done.stderr
        assert done.stdout
