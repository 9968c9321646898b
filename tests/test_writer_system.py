"""The writer on a disk that is really full, under a real limit, and as a user whom permissions bind.

Each program stands in tests/writer_programs.py and asserts what it promises.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.exporter_contract import SECONDS_MAX, environment, in_own_mounts
from tests.writer_programs import NOBODY, PROGRAMS


def names(kind: str) -> list[str]:
    """The programs of a kind, by name."""
    return [program.__name__ for program in PROGRAMS[kind]]


def run(name: str, base: Path) -> None:
    """Run a program on a directory."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.writer_programs", name, base],
        env=environment(measured=False),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if "PermissionError: [Errno 1]" in done.stderr:
        pytest.skip("this is root, whom permissions do not bind, and it may not become another user")
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr


@pytest.mark.parametrize("name", names("disk"))
def test_a_disk_that_is_full(tmp_path: Path, name: str) -> None:
    """ENOSPC on a file system of 64 KB: nothing is lost or glued, no id is used, and it goes on once there is space."""
    script = 'mount -t tmpfs -o size=64k none "$1" || exit 99; exec "$2" -m tests.writer_programs "$3" "$1"'
    done = in_own_mounts(script, tmp_path, sys.executable, name)
    assert (done.returncode, done.stdout) == (0, "kept\n"), done.stderr


@pytest.mark.parametrize("name", names("limit"))
def test_a_limit_of_the_process(tmp_path: Path, name: str) -> None:
    """EFBIG and EMFILE by the process's own limits."""
    run(name, tmp_path)


@pytest.mark.parametrize("name", names("user"))
def test_permissions_that_bind(name: str) -> None:
    """EACCES, as another user: what can be written is, what cannot is told, and nothing passes for what it is not."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        base = Path(folder, "base")
        base.mkdir()
        if os.geteuid() == 0:
            os.chown(base, NOBODY, NOBODY)
        try:
            run(name, base)
        finally:
            for path in [base, *base.rglob("*")]:
                path.chmod(0o755)
