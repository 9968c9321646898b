"""`python -m raxol_otel.dashboards.boards` writes the boards; with `--check` it only says whether they are current."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from raxol_otel.cli.common import EXIT_USAGE, complain
from raxol_otel.dashboards.boards import FOLDER, texts

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0: written, or current; 1: a file is not current; 2: the folder cannot be read or written."""
    parser = argparse.ArgumentParser(prog="python -m raxol_otel.dashboards.boards", description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 names each file not current")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the boards are (default: %(default)s)")
    options = parser.parse_args(arguments)
    try:
        if not options.check:
            _write(options.folder)
            return 0
        stale = _stale(options.folder)
    except OSError as error:
        complain(f"{error.filename}: {error.strerror}", "name another folder with --folder")
        return EXIT_USAGE
    for path, fault in stale.items():
        sys.stderr.write(f"{path}: {fault}\n")
    return 1 if stale else 0


def _write(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts().items():
        (folder / name).write_text(text, encoding="utf-8")


def _stale(folder: Path) -> dict[Path, str]:
    """The files that are not what the program would write, each with what is wrong."""
    expected = texts()
    found = {path.name: path for path in folder.glob("*.json")}
    faults = {path: "is no board of ours: remove it" for name, path in found.items() if name not in expected}
    for name, text in expected.items():
        if name not in found:
            faults[folder / name] = "is missing: run `python -m raxol_otel.dashboards.boards`"
        elif found[name].read_text(encoding="utf-8") != text:
            faults[folder / name] = "is not current: run `python -m raxol_otel.dashboards.boards`"
    return faults


if __name__ == "__main__":
    sys.exit(main())
