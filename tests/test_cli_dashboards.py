"""`raxol-otel dashboards export`: what it writes, what it refuses, and that nothing half-done is left."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Final

import pytest

from tests.conftest import ROOT, photograph
from tests.exporter_contract import MAIN, environment, raxol
from tests.rules_files import said, tool

SHIPPED: Final = ROOT / "dashboards"
# A limit on the size of files, which stands for a disk that is full.
FULL: Final = """
import resource, signal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
"""
# The command stops itself in the middle of its work, as if from outside.
STOPPED: Final = """
import os, signal
from raxol_otel.exporters.atomic import AtomicFile
finish, count = AtomicFile.finish, [0]
def stop(self):
    finish(self)
    count[0] += 1
    if count[0] == 5:
        os.kill(os.getpid(), signal.SIGTERM)
AtomicFile.finish = stop
"""


def expected() -> dict[str, bytes]:
    """The files of the checkout that ship: no Python, nothing that a tool left."""
    suffixes = {".json", ".md", ".yaml", ".yml"}
    paths = [path for path in SHIPPED.rglob("*") if path.suffix in suffixes]
    return {path.relative_to(SHIPPED).as_posix(): path.read_bytes() for path in paths}


def written(folder: Path) -> dict[str, bytes]:
    """The files below a folder."""
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def export(*arguments: str | Path, before: str = "") -> subprocess.CompletedProcess[str]:
    """The command, in a process of its own."""
    return raxol("dashboards", "export", *arguments, before=before)


def test_everything_that_ships_is_written_and_named(tmp_path: Path) -> None:
    """Boards, rules, runbooks, provisioning and the README, byte for byte; their paths on standard output."""
    done = export(tmp_path / "out")
    assert done.returncode == 0
    files = expected()
    assert written(tmp_path / "out") == files
    assert sorted(done.stdout.splitlines()) == sorted(str(tmp_path / "out" / name) for name in files)
    assert done.stderr == f"wrote {len(files)} files; read {tmp_path / 'out' / 'README.md'} first\n"
    for name in ("README.md", "grafana/journal-health.json", "prometheus/alerts.yaml", "prometheus/rules.yaml"):
        assert name in files
    assert {name.split("/")[0] for name in files} == {"README.md", "grafana", "prometheus", "provisioning", "runbooks"}


def test_what_is_written_has_the_permissions_of_files_of_ones_own(tmp_path: Path) -> None:
    """As the umask leaves them, the directory's too; nothing else is made beside it."""
    assert export(tmp_path / "deep" / "er" / "out", before="import os; os.umask(0o027)").returncode == 0
    out = tmp_path / "deep" / "er" / "out"
    assert stat.S_IMODE(out.stat().st_mode) == 0o750
    assert stat.S_IMODE((out / "README.md").stat().st_mode) == 0o640
    assert list(out.parent.iterdir()) == [out]


def test_an_empty_directory_is_as_good_as_a_new_one(tmp_path: Path) -> None:
    """It is filled, and stays the directory that it was."""
    (tmp_path / "out").mkdir(mode=0o700)
    before = (tmp_path / "out").stat().st_ino
    assert export(tmp_path / "out").returncode == 0
    assert written(tmp_path / "out") == expected()
    assert (tmp_path / "out").stat().st_ino == before


def test_a_directory_with_something_in_it_is_refused(tmp_path: Path) -> None:
    """One line that names it, one with the way out; nothing is changed."""
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine", encoding="utf-8")
    before = photograph(tmp_path)
    done = export(tmp_path / "out")
    assert done.returncode == 2
    assert done.stdout == ""
    error, hint = done.stderr.splitlines()
    assert error == f"Error: {tmp_path / 'out'} is there already, and not an empty directory"
    assert hint.startswith("Try: ")
    assert "--force" in hint
    assert photograph(tmp_path) == before


def test_force_replaces_what_ships_and_leaves_everything_else(tmp_path: Path) -> None:
    """An older export is brought up to date; files of one's own stay, also in our folders, and so does a link's end."""
    out = tmp_path / "out"
    assert export(out).returncode == 0
    own = {"mine.txt": b"mine", "grafana/mine.json": b"{}", "runbooks/old.md": b"an alert that is no more"}
    for name, content in own.items():
        (out / name).write_bytes(content)
    (out / "prometheus" / "alerts.yaml").write_bytes(b"changed")
    (out / "README.md").unlink()
    (tmp_path / "elsewhere").write_bytes(b"not ours")
    (out / "README.md").symlink_to(tmp_path / "elsewhere")
    done = export(out, "--force")
    assert done.returncode == 0
    assert written(out) == expected() | own
    assert not (out / "README.md").is_symlink()
    assert (tmp_path / "elsewhere").read_bytes() == b"not ours"


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("kind", ["file", "dangling", "pipe"])
def test_what_is_no_directory_is_refused(tmp_path: Path, kind: str, force: bool) -> None:  # noqa: FBT001 - a parameter of pytest
    """Whatever is there, forced or not; it stays as it is."""
    out = tmp_path / "out"
    if kind == "file":
        out.write_text("mine", encoding="utf-8")
    elif kind == "dangling":
        out.symlink_to(tmp_path / "nowhere")
    else:
        os.mkfifo(out)
    done = export(out, *(["--force"] if force else []))
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"Error: {out} is there already, and is no directory"
    assert list(tmp_path.iterdir()) == [out]


@pytest.mark.parametrize(("place", "what"), [("runbooks", "is no directory"), ("README.md", "is no file")])
def test_force_changes_nothing_when_something_is_in_the_way(tmp_path: Path, place: str, what: str) -> None:
    """A file where a folder belongs, or the other way round, is found before the first file is written."""
    out = tmp_path / "out"
    out.mkdir()
    if what == "is no file":
        (out / place).mkdir()
    else:
        (out / place).write_text("mine", encoding="utf-8")
    before = photograph(out)
    done = export(out, "--force")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"Error: {out / place} {what}"
    assert photograph(out) == before


def test_a_disk_that_is_full_leaves_no_directory(tmp_path: Path) -> None:
    """One line says so, exit code 3, and nothing is there."""
    done = export(tmp_path / "out", before=FULL)
    assert done.returncode == 3
    assert "File too large" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_is_terminated_leaves_no_directory(tmp_path: Path) -> None:
    """What was made up to then is gone."""
    done = export(tmp_path / "out", before=STOPPED)
    assert done.returncode == 128 + signal.SIGTERM
    assert done.stderr == "Error: terminated\n"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("below", ["out", "deep/er/out"])
def test_a_place_below_a_file_is_refused(tmp_path: Path, below: str) -> None:
    """The file is named."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    done = export(tmp_path / "file" / below)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"Error: {tmp_path / 'file'} is no directory"


def test_a_place_that_takes_no_directory_is_one_line() -> None:
    """A file system that nobody may write to, not even root."""
    done = export(Path("/proc/raxol-dashboards"))
    assert done.returncode == 3
    assert done.stderr == "Error: cannot make /proc/raxol-dashboards: No such file or directory\n"


def test_a_relative_path_and_the_current_directory_will_do(tmp_path: Path) -> None:
    """`.` is an empty directory like any other."""
    for name in (".", "sub/"):
        (tmp_path / "here").mkdir(exist_ok=True)
        command = [sys.executable, "-c", MAIN, "dashboards", "export", name, "--force"]
        done = subprocess.run(command, cwd=tmp_path / "here", env=environment(), capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "here" / name / "README.md").is_file()


def test_without_an_action_the_command_says_what_there_is() -> None:
    """As every mistake, in one line with a way out."""
    done = raxol("dashboards")
    assert done.returncode == 2
    assert done.stderr.startswith("Error: ")
    assert "Traceback" not in done.stderr
    assert "export" in raxol("dashboards", "--help").stdout


def test_the_files_can_be_had_from_python() -> None:
    """Through `importlib.resources`, wherever the package is installed."""
    root = resources.files("raxol_otel.dashboards")
    assert (root / "prometheus" / "alerts.yaml").read_bytes() == (SHIPPED / "prometheus" / "alerts.yaml").read_bytes()


def test_prometheus_takes_the_configuration_of_an_export_as_it_lies_there(tmp_path: Path) -> None:
    """With the rules beside it, and their unit tests with them: an export is whole."""
    assert export(tmp_path / "out").returncode == 0
    promtool = tool("promtool", "prometheus")
    assert "SUCCESS" in said(promtool, "check", "config", tmp_path / "out" / "provisioning" / "prometheus.yml")
    assert "SUCCESS" in said(promtool, "test", "rules", tmp_path / "out" / "prometheus" / "tests" / "turns.yaml")
