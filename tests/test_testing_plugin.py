"""The pytest plugin: a project that has only it, its weight, loading it twice, and the package without pytest."""

from __future__ import annotations

import importlib.metadata
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Final

import pytest

from raxol_otel import testing
from raxol_otel.testing import SITES
from tests.conftest import ROOT
from tests.exporter_contract import environment

PLUGIN: Final = "raxol_otel.testing.plugin"
DOCUMENT: Final = ROOT / "docs" / "reference" / "testing.md"
FIXTURES: Final = ("fault_journal", "foreign_writer", "mutation_anchor")
SECONDS_MAX: Final = 120
NO_PYTEST: Final = """
import sys
sys.modules["pytest"] = sys.modules["_pytest"] = None
import tempfile, raxol_otel.testing
from raxol_otel.testing import *
with FaultJournal(tempfile.mkdtemp()) as journal:
    journal.append({"type": "note"})
    assert not FaultJournal(journal.base_dir, "other").run_in_child(lambda child: child.append({})).error
    with ForeignWriter(journal.base_dir, holds=False) as foreign:
        assert not foreign.wants().is_writer
MutationAnchor("raxol_otel.journal.tip", "from __future__ import annotations")
try:
    import raxol_otel.testing.plugin
except ImportError:
    print("all but the plugin")
"""
WEIGHT: Final = """
import json, pytest, sys
before = set(sys.modules)
import raxol_otel.testing.plugin
print(json.dumps(sorted(set(sys.modules) - before)))
"""


def run_pytest(folder: Path, *arguments: str, path: str = "", **variables: str) -> subprocess.CompletedProcess[str]:
    """Run pytest in a folder of its own, knowing nothing of this run; warnings are errors there too."""
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", "--color=no", *arguments],
        cwd=folder,
        env=environment(measured=False, PYTHONPATH=f"{ROOT}:{path}" if path else str(ROOT), **variables),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )


def alone() -> dict[str, str]:
    """Plugins that are installed stay out."""
    return {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}


def installed(folder: Path) -> Path:
    """What an installer would leave of the package in a folder, for who looks for entry points."""
    info = folder / "raxol_otel_sample-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: raxol-otel-sample\nVersion: 1\n")
    (info / "entry_points.txt").write_text(f"[pytest11]\n{PLUGIN} = {PLUGIN}\n")
    return folder


def test_a_project_that_has_only_the_plugin(tmp_path: Path) -> None:
    """Its tests pass, but for the one whose fault never fires, which the fixture's end turns into an error."""
    project = shutil.copytree(Path(__file__).parent / "sample_project", tmp_path / "project")
    done = run_pytest(project, "-p", PLUGIN, "check_agent.py", **alone())
    assert "5 passed, 1 error" in done.stdout, done.stdout + done.stderr
    assert "ERROR check_agent.py::test_that_promises_a_fault_and_never_meets_it" in done.stdout
    assert "sync_fail (fired 0, armed for good)" in done.stdout
    assert done.stderr == ""


def test_the_page_for_users_is_true(tmp_path: Path) -> None:
    """The tests that it shows pass as they stand there."""
    (block,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    (tmp_path / "test_page.py").write_text(block, encoding="utf-8")
    done = run_pytest(tmp_path, "-p", PLUGIN, **alone())
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_the_page_names_everything() -> None:
    """Each public name, site and fixture, and no site that is not."""
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in (*SITES, *FIXTURES, *(set(testing.__all__) - {"FOR_GOOD", "SITES"})):
        assert f"`{name}" in text, name
    assert set(re.findall(r"^\| `([a-z_]+(?:_fail|_write|_down|_head|_publish))`", text, re.MULTILINE)) == set(SITES)


@pytest.mark.parametrize("arguments", [[], ["-p", PLUGIN], ["-p", PLUGIN, "-p", PLUGIN]])
def test_loaded_twice_is_once(tmp_path: Path, arguments: list[str]) -> None:
    """The entry point, the option and a conftest may all name it."""
    (tmp_path / "conftest.py").write_text(f"pytest_plugins = [{PLUGIN!r}]\n" if arguments else "")
    (tmp_path / "test_one.py").write_text("def test_one(fault_journal):\n    assert fault_journal.append({}) == 1\n")
    done = run_pytest(tmp_path, *arguments, path=str(installed(tmp_path / "site")))
    assert "1 passed" in done.stdout, done.stdout + done.stderr


def test_it_can_be_kept_away(tmp_path: Path) -> None:
    """By the name that is documented."""
    (tmp_path / "test_one.py").write_text("def test_one(fault_journal):\n    pass\n")
    done = run_pytest(tmp_path, "-p", f"no:{PLUGIN}", path=str(installed(tmp_path / "site")))
    assert "fixture 'fault_journal' not found" in done.stdout


def test_its_fixtures_are_told(tmp_path: Path) -> None:
    """`pytest --fixtures` says what each is."""
    done = run_pytest(tmp_path, "-p", PLUGIN, "--fixtures", **alone())
    for name in FIXTURES:
        assert re.search(rf"^{name}.*\n    \S", done.stdout, re.MULTILINE), done.stdout


def test_it_is_light() -> None:
    """Every start of pytest pays for it: it brings in itself, and nothing of the journal or of telemetry."""
    done = subprocess.run(
        [sys.executable, "-c", WEIGHT], env=environment(measured=False), capture_output=True, check=True, timeout=60
    )
    assert json.loads(done.stdout) == ["raxol_otel", "raxol_otel.testing", PLUGIN]


def test_without_pytest_all_but_the_plugin_works(tmp_path: Path) -> None:
    """It is none of the package's dependencies."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", NO_PYTEST],
        cwd=tmp_path,
        env=environment(measured=False),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("all but the plugin\n", "")


def test_the_project_names_the_entry_point() -> None:
    """Under the module's own name: pytest takes the two ways of loading it for one."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["entry-points"]["pytest11"] == {PLUGIN: PLUGIN}


def test_an_installed_package_has_the_entry_point() -> None:
    """What pip installed from this checkout says so."""
    try:
        found = importlib.metadata.distribution("raxol-otel").entry_points.select(group="pytest11")
    except importlib.metadata.PackageNotFoundError:
        pytest.skip("raxol-otel is not installed here, only on the path")
    if not found:
        pytest.skip("raxol-otel was installed before it had the entry point: pip install -e . --no-deps")
    assert [(one.name, one.value) for one in found] == [(PLUGIN, PLUGIN)]


def test_a_name_that_is_not_there_is_an_attribute_error() -> None:
    """Names come when they are asked for; others do not."""
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = getattr(testing, "nothing")  # noqa: B009 - a type checker would see it
    assert testing.__all__ == [name for name in testing.__all__ if getattr(testing, name) is not None]
