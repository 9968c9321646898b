"""`raxol-otel dashboards export DIR`: the boards, rules and runbooks that ship with the package, as files."""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.cli.common import EXIT_OK, note, stop_on_termination
from raxol_otel.errors import ExportError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping
    from importlib.resources.abc import Traversable

__all__ = ["add_parser", "run_export", "shipped"]

# What ships; beside them stand the programs that the boards are made with.
_FOLDERS: Final = ("grafana", "prometheus", "provisioning", "runbooks")
_README: Final = "README.md"
_SUFFIXES: Final = (".json", ".md", ".yaml", ".yml")
_EXAMPLE: Final = "raxol-otel dashboards export DIR"


def add_parser(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "dashboards",
        help="Grafana boards, Prometheus rules and runbooks, as files",
        description="Grafana boards, Prometheus rules and runbooks that ship with the package.",
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    export = actions.add_parser(
        "export",
        help="write them into a directory",
        description="Writes the boards, rules, runbooks and provisioning files into a directory that is new or empty, "
        "and prints their paths.",
    )
    export.add_argument("directory", metavar="DIR", help="new or empty")
    export.add_argument(
        "--force",
        action="store_true",
        help="write into a directory that has something in it: files of ours are replaced, others stay",
    )
    export.set_defaults(run=run_export)


def run_export(options: argparse.Namespace) -> int:
    """Write the files; their paths go to standard output."""
    stop_on_termination()
    from raxol_otel.exporters.sources import refuse_inside_session  # noqa: PLC0415 - not needed for --help

    directory, files = Path(options.directory), shipped()
    refuse_inside_session(directory / _README, "the directory of")
    if os.path.lexists(directory):
        _refuse(directory, files, force=options.force)
        _write(directory, files)
    else:
        _write_new(directory, files)
    for name in files:
        sys.stdout.write(f"{directory / name}\n")
    note(f"wrote {len(files)} files; read {directory / _README} first")
    return EXIT_OK


def shipped() -> dict[PurePosixPath, bytes]:
    """The files that ship, by their paths, in order."""
    from importlib.resources import files  # noqa: PLC0415 - not needed for --help

    root = files("raxol_otel") / "dashboards"
    found = {PurePosixPath(_README): (root / _README).read_bytes()}
    for folder in _FOLDERS:
        found.update(_below(root / folder, PurePosixPath(folder)))
    return dict(sorted(found.items()))


def _below(folder: Traversable, place: PurePosixPath) -> Iterator[tuple[PurePosixPath, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _below(entry, place / entry.name)
        elif entry.name.endswith(_SUFFIXES):
            yield place / entry.name, entry.read_bytes()


def _refuse(directory: Path, files: Mapping[PurePosixPath, bytes], *, force: bool) -> None:
    """Raise unless all files can go into the directory, before any does."""
    if not directory.is_dir():
        raise UsageError(f"{directory} is there already, and is no directory", "name another directory")
    if not force and any(directory.iterdir()):
        raise UsageError(
            f"{directory} is there already, and not an empty directory",
            "name another directory, or --force, which replaces the files of an earlier export and leaves all others",
        )
    for name in files:
        for folder in reversed(name.parents[:-1]):
            if os.path.lexists(directory / folder) and not (directory / folder).is_dir():
                raise UsageError(f"{directory / folder} is no directory", "move it away, or name another directory")
        if (directory / name).exists() and not (directory / name).is_file():
            raise UsageError(f"{directory / name} is no file", "move it away, or name another directory")


def _write_new(directory: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    """Make the directory with all that belongs in it, or not at all."""
    import shutil  # noqa: PLC0415 - not needed for --help
    import tempfile  # noqa: PLC0415 - as above

    above = next((folder for folder in directory.parents if os.path.lexists(folder)), directory)
    if not above.is_dir():
        raise UsageError(f"{above} is no directory", "name another directory")
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(prefix=".raxol-dashboards.", dir=directory.parent))
    except OSError as error:
        raise ExportError(f"cannot make {directory}: {error.strerror or error}") from error
    try:
        whole = made / "whole"  # made with the permissions that the umask leaves
        whole.mkdir()
        _write(whole, files)
        whole.rename(directory)
    except OSError as error:
        raise ExportError(f"cannot make {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(made, ignore_errors=True)


def _write(directory: Path, files: Mapping[PurePosixPath, bytes]) -> None:
    """Write each file, whole or not at all; what stood there before is replaced."""
    from raxol_otel.exporters.atomic import AtomicFile  # noqa: PLC0415 - not needed for --help

    for name, content in files.items():
        path = directory / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ExportError(f"cannot make {path.parent}: {error.strerror or error}") from error
        file = AtomicFile(path, example=_EXAMPLE)
        try:
            file.write(content)
            file.finish()
        finally:
            file.abort()
