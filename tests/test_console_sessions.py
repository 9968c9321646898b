"""Sessions in the terminal's tree: each on its own, and what is wrong with one is said where it ends."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

from raxol_otel.exporters.base import SessionSummary
from raxol_otel.exporters.console import ConsoleExporter
from raxol_otel.exporters.replay import replay
from tests.exporter_contract import child_span, turn_records, turn_span, write_session
from tests.test_console import HOSTILE, STYLE, assert_harmless, set_terminal
from tests.test_exporters import text_stream

if TYPE_CHECKING:
    from pathlib import Path


def replayed(*paths: Path) -> str:
    """What the console shows of a replay of these paths where it is no terminal."""
    written, stream = text_stream()
    replay(paths, ConsoleExporter(stream))
    return written.getvalue().decode()


def test_copies_of_a_session_have_their_own_headings(tmp_path: Path) -> None:
    """Two directories of one name are two sessions, also when nothing is wrong with either."""
    for folder in ("one", "two"):
        write_session(tmp_path / folder / "s", turn_records())
    tree = replayed(tmp_path)
    assert tree == "\n".join([replayed(tmp_path / "one")] * 2)
    assert tree.count("session s\n") == tree.count("turn t1  completed  2.0 s\n") == 2


def test_what_is_wrong_with_a_session_ends_its_tree(tmp_path: Path) -> None:
    """One line after the turns, where the record ends too; a session without turns has it under its heading."""
    session = write_session(tmp_path / "a", turn_records(), tail=b'{"id":6,"ts":1}\n')
    size = (session / "journal" / "000001.jsonl").stat().st_size - len(b'{"id":6,"ts":1}\n')
    write_session(tmp_path / "b", [], tail=b'{"id":"x"}\n')
    write_session(tmp_path / "c", [], head=17)
    shutil.rmtree(write_session(tmp_path / "d", []) / "journal")
    (tmp_path / "d" / "journal").touch()
    write_session(tmp_path / "e", turn_records())
    call = "  └─ execute_tool read_file         ok           500 ms │          █████     │\n"
    assert replayed(tmp_path) == (
        f"session a\n\nturn t1  completed  2.0 s  journal damaged\n{call}\n"
        f"damaged at journal/000001.jsonl line 5, byte {size}: id_gap (expected offset 5, found 6); "
        "last good offset 4\n\nsession b\n\n"
        "damaged at journal/000001.jsonl line 1, byte 0: id_missing (the id is a text); last good offset 0\n\n"
        "session c\n\ntruncated: HEAD names offset 17, the last record is 0\n\n"
        "session d\n\nunreadable: cannot read journal: Not a directory\n\n"
        f"session e\n\nturn t1  completed  2.0 s\n{call}"
    )


def test_intact_sessions_without_turns_are_not_shown(tmp_path: Path) -> None:
    """A healthy or torn one says nothing: with `--turn` there are many of them."""
    write_session(tmp_path / "empty", [])
    write_session(tmp_path / "torn", [], tail=b'{"id"')
    assert replayed(tmp_path) == ""


def test_a_session_whose_directory_has_another_name() -> None:
    """The heading has the id in the records; the line that tells what is wrong names the directory."""
    written, stream = text_stream()
    exporter = ConsoleExporter(stream)
    exporter.export([turn_span()])
    exporter.session_done(SessionSummary("renamed", "truncated", 4, 1, 0, "HEAD names offset 9"))
    exporter.session_done(SessionSummary("other", "unreadable", 0, 0, 0))
    assert written.getvalue().decode() == (
        "session s1\n\nturn turn-1  completed  1.0 s\n\n"
        "truncated: HEAD names offset 9 (directory renamed)\n\nsession other\n\nunreadable\n"
    )


def test_a_child_whose_turn_never_came_is_in_no_other_session() -> None:
    """The turn of the same id in a copy of the session does not get it."""
    written, stream = text_stream()
    exporter = ConsoleExporter(stream)
    turn = turn_span()
    exporter.export([child_span(turn, 1)])
    exporter.session_done(SessionSummary("s1", "healthy", 4, 1, 0))
    exporter.export([child_span(turn, 2), turn])
    tree = written.getvalue().decode()
    assert ("tool-1" in tree, "tool-2" in tree) == (False, True)


@pytest.mark.parametrize("styled", [False, True])
def test_no_control_character_of_a_sessions_end_reaches_a_terminal(
    monkeypatch: pytest.MonkeyPatch, *, styled: bool
) -> None:
    """A directory can have any name, and what is wrong may be told with it; markup stays text, and all is cut."""
    set_terminal(monkeypatch)
    written, stream = text_stream()
    exporter = ConsoleExporter(stream, styled=styled)
    text = f"[red]{HOSTILE}[/red]"
    exporter.session_done(SessionSummary(text, "damaged", 0, 0, 0, f"damaged {text}"))
    exporter.export([turn_span()])
    exporter.session_done(SessionSummary(text, text, 0, 0, 0, text * 1000))
    seen = STYLE.sub("", written.getvalue().decode())
    assert_harmless(seen)
    assert seen.startswith("session [red]\\u{1b}[2J")
    assert "\ndamaged [red]\\u{1b}[2J" in seen
    assert max(map(len, seen.splitlines())) < 2000
