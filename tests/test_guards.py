"""What is read is never written, and what a verdict cannot know is said."""

from __future__ import annotations

import json
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from raxol_otel.journal.health import inspect
from tests.conftest import ROOT, make_journal, on_disk, photograph
from tests.exporter_contract import raxol

if TYPE_CHECKING:
    from pathlib import Path

TOUR = ROOT / "golden" / "tour"


@pytest.mark.parametrize(
    "options",
    [
        "--to file:{session}/journal/000001.jsonl",
        "--to file:{session}/journal/000009.jsonl",
        "--to html:{session}/meta.json",
        "--to file:{link}/HEAD",
        "--to otlp --endpoint http://127.0.0.1:1 --state {session}/HEAD",
    ],
)
def test_an_output_inside_of_what_is_read_is_refused(tmp_path: Path, options: str) -> None:
    """By whatever name: exit code 2, one line, and the session stays as it was."""
    session = tmp_path / "session"
    shutil.copytree(TOUR, session)
    (tmp_path / "link").symlink_to(session)
    before = photograph(session)
    done = raxol("replay", session, *options.format(session=session, link=tmp_path / "link").split())
    assert done.returncode == 2
    assert "lies inside the session" in done.stderr.splitlines()[0]
    assert photograph(session) == before


def test_an_output_over_the_archive_that_is_read_is_refused(tmp_path: Path) -> None:
    """The archive stays as it was."""
    archive = tmp_path / "night.tar"
    with tarfile.open(archive, "w") as tar:
        tar.add(TOUR, "tour")
    before = archive.read_bytes()
    done = raxol("replay", archive, "--to", f"file:{archive}")
    assert (done.returncode, archive.read_bytes()) == (2, before)


@pytest.mark.parametrize(
    ("path", "options", "said"),
    [
        ("", [], "an empty PATH"),
        (str(TOUR), ["--since", "2030-01-01", "--until", "2020-01-01"], "--since is not before --until"),
        (str(TOUR), ["--endpoint", "http://localhost:4318"], "--endpoint goes with --to otlp"),
    ],
)
def test_what_cannot_be_meant_is_refused(path: str, options: list[str], said: str) -> None:
    """An empty variable, a time that is none, an endpoint for the console."""
    done = raxol("replay", path, *options)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_choice_that_chooses_nothing_says_so() -> None:
    """Nothing replayed is told from nothing there."""
    done = raxol("replay", TOUR, "--turn", "nope")
    assert done.returncode == 0
    assert "no turn was chosen" in done.stderr


def test_what_health_cannot_know_is_said() -> None:
    """Hashes that nobody checked; a tail whose loss would not show. The state stays what it is."""
    files, _ = make_journal([1, 2, 3], chained=True)
    with on_disk(files) as session:
        assert inspect(session).warning is None
        (session / "meta.json").unlink()
        assert "carry hashes" in str(inspect(session).warning)
        told = json.loads(raxol("verify", session, "--json").stdout)
        assert (told["state"], told["chained"]) == ("healthy", False)
        assert "carry hashes" in told["warning"]
        assert "but its records carry hashes" in raxol("verify", session).stdout
    files, _ = make_journal([1, 2, 3])
    with on_disk(files) as session:
        (session / "HEAD").write_bytes(b"?")
        assert "HEAD is unusable" in str(inspect(session).warning)
        (session / "HEAD").unlink()
        assert "there is no HEAD" in str(inspect(session).warning)
