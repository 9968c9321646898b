"""The progress bar: on a terminal only, and not over the tree."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.conftest import ROOT

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = [sys.executable, "-c", "import sys; from raxol_otel.cli import main; sys.exit(main())"]


def on_terminal(*arguments: str, stdout: int | None = None) -> tuple[int, str]:
    """Run the command with standard error (and output, where not given) on a terminal; its code and what was shown."""
    leader, follower = pty.openpty()
    variables = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "TERM": "xterm", "COLUMNS": "100"}
    process = subprocess.Popen(
        [*COMMAND, *arguments],
        stdin=subprocess.DEVNULL,
        stdout=follower if stdout is None else stdout,
        stderr=follower,
        cwd=ROOT,
        env=variables,
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 65536)
        except OSError:
            break  # the terminal's other end is closed
        if not part:
            break
        shown += part
    os.close(leader)
    return process.wait(), shown.decode("utf-8", "replace")


def test_a_bar_is_shown_while_a_file_is_written(tmp_path: Path) -> None:
    """On a terminal, and gone at the end; the last line is the report."""
    code, shown = on_terminal("replay", "golden/tour", "--to", f"file:{tmp_path / 'out.jsonl'}")
    assert code == 0
    assert "replaying" in shown
    assert shown.rstrip().endswith(f"1 session to {tmp_path / 'out.jsonl'}")


def test_no_bar_over_the_tree() -> None:
    """Where the tree goes to the same terminal, nothing is drawn over it; it is in colour."""
    code, shown = on_terminal("replay", "golden/tour")
    assert code == 0
    assert "replaying" not in shown
    assert "\x1b[" in shown
    assert "execute_tool" in shown


def test_no_bar_without_a_terminal(tmp_path: Path) -> None:
    """In a pipe there is the report and nothing else."""
    out = tmp_path / "out.jsonl"
    done = subprocess.run(
        [*COMMAND, "replay", "golden/tour", "--to", f"file:{out}"], capture_output=True, text=True, cwd=ROOT, check=True
    )
    assert done.stderr == f"replayed 47 spans of 12 turns in 1 session to {out}\n"
    assert done.stdout == ""
