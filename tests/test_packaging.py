"""What is built from this repository: the wheel, the sdist, and the wheel that the sdist builds."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tarfile
import zipfile
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pytest

import raxol_otel

ROOT: Final = Path(__file__).resolve().parent.parent
LINKS: Final = ("dashboards", "exporters", "golden")
BUILD_SECONDS_MAX: Final = 120
# What tools leave behind; never part of an archive.
LEFTOVERS: Final = ("__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".DS_Store")


@dataclass(frozen=True)
class Archive:
    """A built archive: every name as it stands in it (repeated if it is there twice), and the content by name."""

    path: Path
    names: list[str]
    content: dict[str, bytes]

    def below(self, folder: str) -> dict[str, bytes]:
        """The files under a folder of the archive, by their name in that folder."""
        return {
            name.removeprefix(f"{folder}/"): text
            for name, text in self.content.items()
            if name.startswith(f"{folder}/")
        }


def run(command: list[str], cwd: Path, **environment: str) -> str:
    """Run a command of this Python away from the checkout; give its output, or fail with all it said."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith(("COVERAGE_", "COV_", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env=inherited | environment,
        capture_output=True,
        text=True,
        timeout=BUILD_SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read_wheel(path: Path) -> Archive:
    """All files of a wheel."""
    with zipfile.ZipFile(path) as wheel:
        return Archive(path, wheel.namelist(), {name: wheel.read(name) for name in wheel.namelist()})


def read_sdist(path: Path) -> Archive:
    """All regular files of an sdist, without its outer folder."""
    with tarfile.open(path) as sdist:
        members = [(member, member.name.split("/", 1)[1]) for member in sdist.getmembers()]
        files = {name: sdist.extractfile(member) for member, name in members if member.isfile()}
        content = {name: file.read() for name, file in files.items() if file is not None}
    return Archive(path, [name for _, name in members], content)


def checkout(folder: str) -> dict[str, bytes]:
    """The files of a folder of the checkout as they should be packed: no link followed, nothing that a tool left."""
    found: dict[str, bytes] = {}
    for parent, folders, names in os.walk(ROOT / folder):
        folders[:] = [name for name in folders if name not in LEFTOVERS]
        for name in names:
            if name not in LEFTOVERS:
                path = Path(parent, name)
                found[path.relative_to(ROOT / folder).as_posix()] = path.read_bytes()
    return found


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Archive:
    """The wheel built from the checkout."""
    out = tmp_path_factory.mktemp("wheel")
    run(["-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT)], cwd=out)
    (path,) = out.glob("*.whl")
    return read_wheel(path)


@pytest.fixture(scope="module")
def sdist_and_wheel(tmp_path_factory: pytest.TempPathFactory) -> tuple[Archive, Archive]:
    """The sdist built from the checkout, and the wheel built from that sdist."""
    out = tmp_path_factory.mktemp("sdist")
    run(["-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)], cwd=out)
    (sdist,) = out.glob("*.tar.gz")
    (path,) = out.glob("*.whl")
    return read_sdist(sdist), read_wheel(path)


@pytest.mark.parametrize("folder", LINKS)
def test_the_wheel_ships_the_top_level_folders_inside_the_package(wheel: Archive, folder: str) -> None:
    """exporters/, dashboards/ and golden/ are in the package, file for file as in the checkout."""
    assert wheel.below(f"raxol_otel/{folder}") == checkout(folder)
    assert wheel.below(f"raxol_otel/{folder}")


def test_the_wheel_ships_the_package_itself(wheel: Archive) -> None:
    """Every file of raxol_otel/ is in the wheel as it is in the checkout, py.typed among them."""
    packed = wheel.below("raxol_otel")
    own = {name: text for name, text in packed.items() if name.split("/")[0] not in LINKS}
    assert own == checkout("raxol_otel")
    assert own["py.typed"] == b""


def test_the_wheel_holds_nothing_else(wheel: Archive) -> None:
    """At the wheel's top stand the package and its metadata only: no exporters/, no tests, no docs."""
    assert {name.split("/")[0] for name in wheel.names} == {
        "raxol_otel",
        f"raxol_otel-{raxol_otel.__version__}.dist-info",
    }


def test_the_wheel_holds_every_file_once_and_as_a_file(wheel: Archive) -> None:
    """No name stands twice in the wheel, and none is a link."""
    assert [name for name, count in Counter(wheel.names).items() if count > 1] == []
    with zipfile.ZipFile(wheel.path) as opened:
        assert [entry.filename for entry in opened.infolist() if stat.S_ISLNK(entry.external_attr >> 16)] == []


def test_the_sdist_holds_what_builds_the_wheel_once(sdist_and_wheel: tuple[Archive, Archive]) -> None:
    """In the sdist the three folders stand at the top and nowhere else; no tests, no docs, no machinery."""
    sdist, _ = sdist_and_wheel
    assert [name for name, count in Counter(sdist.names).items() if count > 1] == []
    assert [name for name in sdist.names if name.startswith(tuple(f"raxol_otel/{link}" for link in LINKS))] == []
    for folder in ("raxol_otel", *LINKS):
        assert sdist.below(folder) == checkout(folder)
    files_at_top = {".gitignore", "CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "pyproject.toml"}
    assert {name.split("/")[0] for name in sdist.names} == {"raxol_otel", *LINKS} | files_at_top


def test_the_wheel_from_the_sdist_is_the_wheel(wheel: Archive, sdist_and_wheel: tuple[Archive, Archive]) -> None:
    """Whoever builds from the sdist gets the very same files."""
    _, rebuilt = sdist_and_wheel
    assert sorted(rebuilt.names) == sorted(wheel.names)
    assert rebuilt.content == wheel.content


def test_the_metadata_says_what_it_is(wheel: Archive) -> None:
    """Licence, Python, version and the command are in the wheel's metadata; the licence text goes with it."""
    folder = f"raxol_otel-{raxol_otel.__version__}.dist-info"
    metadata = wheel.content[f"{folder}/METADATA"].decode().splitlines()
    for line in ("Name: raxol-otel", "License-Expression: Apache-2.0", "Requires-Python: >=3.11"):
        assert line in metadata
    assert f"Version: {raxol_otel.__version__}" in metadata
    assert "raxol-otel = raxol_otel.cli:main" in wheel.content[f"{folder}/entry_points.txt"].decode()
    assert wheel.content[f"{folder}/licenses/LICENSE"] == (ROOT / "LICENSE").read_bytes()


def test_the_unpacked_wheel_imports_its_exporters_from_the_package(wheel: Archive, tmp_path: Path) -> None:
    """Away from the checkout `raxol_otel.exporters` is the wheel's own folder, and the data lies beside it."""
    with zipfile.ZipFile(wheel.path) as opened:
        opened.extractall(tmp_path)
    script = (
        "import raxol_otel.exporters as e, importlib.resources as r; print(e.__file__);"
        "print(*sorted(p.name for p in r.files('raxol_otel').iterdir() if p.is_dir() and p.name != '__pycache__'))"
    )
    file, folders = run(["-c", script], cwd=tmp_path, PYTHONPATH=str(tmp_path)).splitlines()
    assert Path(file) == tmp_path / "raxol_otel" / "exporters" / "__init__.py"
    assert set(LINKS) <= set(folders.split())


@pytest.mark.parametrize("name", LINKS)
def test_a_checkout_has_a_relative_link_for_each_folder(name: str) -> None:
    """In the checkout raxol_otel/NAME is a link to ../NAME, so that a clone anywhere works uninstalled."""
    link = ROOT / "raxol_otel" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert link.is_dir()
    assert not (ROOT / name).is_symlink()
