"""The commands that write: `salvage` and `demo`, as their users meet them."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.demo import SESSIONS
from raxol_otel.journal import open_journal, scan, verify
from tests.exporter_contract import raxol

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The demo's journals. Not to be changed."""
    folder = tmp_path_factory.mktemp("demo") / "journals"
    ran = raxol("demo", folder)
    assert (ran.returncode, ran.stdout.splitlines()) == (0, [str(folder / name) for name in SESSIONS])
    assert ran.stderr == f"wrote 6 sessions; try: raxol-otel verify {folder}\n"
    return folder


# What is done to each journal of the demo, and what the reader makes of it.
STATES: Final = {
    "checkout-bug": ("healthy", None),
    "audited": ("healthy", None),
    "power-cut": ("torn", None),
    "glued-lines": ("damaged", "spliced"),
    "tampered": ("damaged", "chain_hash"),
    "lost-tail": ("truncated", None),
}


def test_the_demo_shows_every_state(demo: Path) -> None:
    """Each journal is in the state that it is there to show, with the cause of its damage."""
    ran = raxol("verify", demo, "--json")
    found = {health["session"].rpartition("/")[2]: health for health in map(json.loads, ran.stdout.splitlines())}
    states = {name: (one["state"], one["damage"] and one["damage"]["cause"]) for name, one in found.items()}
    assert (ran.returncode, states) == (1, STATES)
    assert {name: state for name, (state, _) in STATES.items()} == SESSIONS
    assert {name for name, one in found.items() if one["chained"]} == {"audited", "tampered"}


def test_the_demo_tells_a_story(demo: Path) -> None:
    """A turn that works, one that fails, one canceled, one that ends in a checkpoint."""
    ran = raxol("replay", demo / "checkout-bug")
    assert ran.returncode == 0
    for words in ("turn turn-1  completed", "turn turn-2  error", "turn turn-3  canceled", "turn turn-4  completed"):
        assert words in ran.stdout


def test_a_demo_goes_into_a_new_or_empty_directory_only(demo: Path, tmp_path: Path) -> None:
    """What is there already stays as it is; an empty directory will do."""
    before = sorted(demo.rglob("*"))
    ran = raxol("demo", demo)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith(f"Error: {demo} is there already, and not an empty directory\nTry: ")
    assert sorted(demo.rglob("*")) == before
    (tmp_path / "empty").mkdir()
    assert raxol("demo", tmp_path / "empty").returncode == 0
    (tmp_path / "file").write_bytes(b"")
    assert raxol("demo", tmp_path / "file").returncode == 2


@pytest.mark.parametrize(("name", "count", "told"), [
    ("glued-lines", 4, "damaged at journal/000001.jsonl line 5"),
    ("tampered", 10, "damaged at journal/000001.jsonl line 11"),
    ("lost-tail", 16, "has lost its tail: HEAD names offset 31"),
    ("power-cut", 31, "is torn: nothing was left out but the torn tail"),
    ("audited", 31, "is healthy: nothing was left out"),
])  # fmt: skip
def test_salvage_writes_what_stands_before_the_damage(
    demo: Path, tmp_path: Path, name: str, count: int, told: str
) -> None:
    """The new journal is healthy and can be appended to; standard error says what was found and how much was kept."""
    ran = raxol("salvage", demo / name, tmp_path / "saved")
    assert (ran.returncode, ran.stdout) == (0, "")
    assert told in ran.stderr
    assert ran.stderr.endswith(f"wrote {count} records to {tmp_path / 'saved'}\n")
    found = scan(tmp_path / "saved")
    assert (found.ok, found.torn, len(found.records)) == (True, False, count)
    if name in {"audited", "tampered"}:
        assert verify(tmp_path / "saved") is None
    with open_journal("saved", base_dir=tmp_path) as journal:
        assert journal.append({"type": "turn_started", "payload": {}}) == count + 1


def test_a_lost_tail_comes_with_the_way_out(demo: Path) -> None:
    """What cannot be written to says how it can be saved."""
    with open_journal("lost-tail", base_dir=demo) as journal:
        with pytest.raises(Exception, match="below_head") as refused:
            journal.append({"type": "turn_started"})
        assert "salvage" in str(getattr(refused.value, "hint", ""))


@pytest.mark.parametrize(("path", "new", "told"), [
    ("nowhere", "saved", "is not a session directory"),
    (".", "saved", "it has no journal/"),
    ("audited", "tampered", "cannot write the salvaged journal"),
    ("audited", "audited", "which must not change"),
    ("audited", "with space", "invalid session id"),
])  # fmt: skip
def test_salvage_refuses_in_one_line(demo: Path, path: str, new: str, told: str) -> None:
    """A wrong path, a place that is taken, a name that is no session id: one error, exit code 2, nothing written."""
    before = sorted(demo.rglob("*"))
    ran = raxol("salvage", demo / path, demo / new)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr.startswith("Error: ")
    assert told in ran.stderr.splitlines()[0]
    assert sorted(demo.rglob("*")) == before
