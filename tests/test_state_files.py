"""State files that are none: set aside, kept as they are, never trusted; and what a link or a killed run leaves."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
from contextlib import closing
from functools import partial
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.errors import ExportError, UsageError
from raxol_otel.exporters.state import DeliveryState, StateLock
from tests.exporter_contract import raxol, turn_records, turn_span, turns_records
from tests.otlp_receiver import Receiver
from tests.test_state import HERE, TURN, Run, made_state, rewritten

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

APPLICATION_ID: Final = 0x52584F54  # "RXOT"


def garbage(path: Path) -> None:
    """No database at all."""
    path.write_bytes(random.Random(7).randbytes(20_000))  # noqa: S311 - the same garbage every time


def text(path: Path) -> None:
    """Somebody's notes."""
    path.write_text("remember the milk\n")


def truncated(path: Path) -> None:
    """The first half of a state."""
    path.write_bytes(made_state(path)[:30_000])


def cut_in_header(path: Path) -> None:
    """Not even a whole header."""
    path.write_bytes(made_state(path)[:60])


def flipped_page(path: Path) -> None:
    """A page in the middle that was overwritten."""
    data = bytearray(made_state(path))
    data[8 * 4096 : 9 * 4096] = bytes(4096 * [0xA5])
    path.write_bytes(data)


def zeroed_page(path: Path) -> None:
    """A page in the middle that was never written."""
    data = bytearray(made_state(path))
    data[8 * 4096 : 9 * 4096] = bytes(4096)
    path.write_bytes(data)


def of_another(path: Path) -> None:
    """A database of another application."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA application_id = 7")
        database.execute("CREATE TABLE delivered (id INTEGER)")


def of_nobody(path: Path) -> None:
    """A database that does not say whose it is."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("CREATE TABLE notes (id INTEGER)")


def with_other_tables(path: Path) -> None:
    """It says that it is ours and lacks our tables."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        database.execute("PRAGMA user_version = 1")
        database.execute("CREATE TABLE notes (id INTEGER)")


def newer(path: Path) -> None:
    """A state of a version that is to come."""
    made_state(path)
    with closing(sqlite3.connect(path)) as database, database:
        database.execute("PRAGMA journal_mode = DELETE")
        database.execute("PRAGMA user_version = 99")


UNUSABLE: Final = [
    *(garbage, text, truncated, cut_in_header, flipped_page, zeroed_page),
    *(of_another, of_nobody, with_other_tables, newer),
]


@pytest.mark.parametrize("make", UNUSABLE)
def test_a_file_that_is_no_state_is_set_aside(tmp_path: Path, make: Callable[[Path], None]) -> None:
    """Told once, kept byte for byte under a name of its own, and a new one is begun that works."""
    rewritten(tmp_path, turn_records())
    kept: list[bytes] = []
    for number in (1, 2):
        (tmp_path / "state").unlink(missing_ok=True)
        make(tmp_path / "state")
        kept.append((tmp_path / "state").read_bytes())
        first, second = Run(tmp_path), Run(tmp_path)
        assert (first.sent, second.sent, second.notices) == (TURN, [], [])
        aside = tmp_path / f"state.{'newer' if make is newer else 'corrupt'}-{number}"
        (notice,) = first.notices
        assert str(tmp_path / "state") in notice
        assert str(aside) in notice
        assert [(tmp_path / f"{aside}").read_bytes()] == kept[-1:]
    assert len({path.name.partition("-wal")[0] for path in tmp_path.glob("state*-[12]*")}) == 2


def test_single_bytes_that_changed_never_cost_a_span(tmp_path: Path) -> None:
    """Whichever byte flips, the file works on or is set aside; what is not in it for certain is sent again."""
    data = made_state(tmp_path / "state")
    later = [turn_span(number) for number in range(5_001, 5_011)]
    drawn = random.Random(11)  # noqa: S311 - the same places every time
    for _ in range(40):
        place = drawn.choice([drawn.randrange(len(data)), drawn.randrange(200)])
        changed = bytearray(data)
        changed[place] ^= 1 << drawn.randrange(8)
        for path in tmp_path.iterdir():
            path.unlink()
        (tmp_path / "state").write_bytes(changed)
        with DeliveryState(tmp_path / "state", HERE) as state:
            assert state.undelivered(later) == later
            state.remember(later)
            assert state.undelivered(later) == []
        assert [path.read_bytes() for path in tmp_path.glob("state.corrupt-1")] in ([], [changed])


def test_what_a_killed_run_left_beside_the_file_is_used(tmp_path: Path) -> None:
    """A write-ahead log that was never put into the file is no corruption."""
    with DeliveryState(tmp_path / "state", HERE) as state:
        state.remember([turn_span(1)])
        (tmp_path / "copy").mkdir()
        for path in tmp_path.glob("state*"):
            shutil.copy(path, tmp_path / "copy" / path.name)
    assert (tmp_path / "copy" / "state-wal").stat().st_size
    notices: list[str] = []
    with DeliveryState(tmp_path / "copy" / "state", HERE, notice=notices.append) as state:
        assert state.undelivered([turn_span(1), turn_span(2)]) == [turn_span(2)]
    assert notices == []


def test_an_empty_file_is_begun(tmp_path: Path) -> None:
    """There is nothing in it to keep or to mistrust: `mktemp` makes such files."""
    rewritten(tmp_path, turn_records())
    (tmp_path / "state").touch()
    assert [Run(tmp_path).sent, Run(tmp_path).sent] == [TURN, []]


def test_what_is_no_file_or_has_no_place_is_refused(tmp_path: Path) -> None:
    """A directory, and a file in a folder that is not there: a usage error that names it, and nothing is made."""
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=r"folder is a directory"):
        DeliveryState(tmp_path / "folder", HERE)
    nowhere = tmp_path / "nowhere" / "state"
    for attempt in (partial(DeliveryState, nowhere, HERE), partial(StateLock, nowhere)):
        with pytest.raises(UsageError, match=r"nowhere/state") as caught:
            attempt()
        assert not isinstance(caught.value, ExportError)
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("name", [":memory:", "file:state?mode=memory", "a b#c%20?d", "-state", os.fsdecode(b"\xff")])
def test_an_odd_name_is_a_file_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What SQLite has a meaning of its own for is a name here: it is remembered, in a file."""
    monkeypatch.chdir(tmp_path)
    with DeliveryState(name, HERE) as state:
        state.remember([turn_span(1)])
    with DeliveryState(name, HERE) as state:
        assert state.undelivered([turn_span(1)]) == []
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_the_rows_of_another_application_are_all_kept(tmp_path: Path) -> None:
    """Also those that only its write-ahead log has."""
    with closing(sqlite3.connect(tmp_path / "theirs")) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("CREATE TABLE notes (text)")
        database.execute("INSERT INTO notes VALUES ('milk')")
        database.commit()
        for path in tmp_path.glob("theirs*"):
            shutil.copy(path, tmp_path / path.name.replace("theirs", "state"))
    with DeliveryState(tmp_path / "state", HERE) as state:
        state.remember([turn_span(1)])
    with closing(sqlite3.connect(tmp_path / "state.corrupt-1")) as database:
        assert database.execute("SELECT text FROM notes").fetchall() == [("milk",)]


def test_a_link_to_a_state_stays_one(tmp_path: Path) -> None:
    """Setting aside what it points to leaves the file where it was kept, under its new name."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "real").write_text("no state at all, but somebody's notes\n")
    (tmp_path / "state").symlink_to(tmp_path / "kept" / "real")
    with DeliveryState(tmp_path / "state", HERE) as state:
        state.remember([turn_span(1)])
    texts = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert b"no state at all, but somebody's notes\n" in texts
    with DeliveryState(tmp_path / "state", HERE) as state:
        assert state.undelivered([turn_span(1)]) == []


def test_the_command_tells_what_it_set_aside(tmp_path: Path) -> None:
    """A notice on standard error, exit code 0, everything delivered; a warning where a journal got shorter."""
    rewritten(tmp_path, turns_records(2))
    garbage(tmp_path / "state")
    with Receiver() as receiver:
        options = ("--to", "otlp", "--endpoint", receiver.http_endpoint, "--state", str(tmp_path / "state"))
        first = raxol("replay", tmp_path / "s", *options)
        rewritten(tmp_path, turns_records(1))
        second = raxol("replay", tmp_path / "s", *options)
        assert len(receiver.spans) == 4
    assert (first.returncode, second.returncode) == (0, 0)
    assert f"{tmp_path}/state.corrupt-1" in first.stderr
    assert first.stderr.endswith("replayed 4 spans of 2 turns in 1 session to OTLP\n")
    assert f"Warning: {tmp_path}/s: it ended at offset 8" in second.stderr
    assert second.stderr.endswith("replayed 0 spans of 1 turn in 1 session to OTLP; 2 were delivered before\n")
