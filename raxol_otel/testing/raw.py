"""A reader of its own: what stands in a session's directory, and no more. Nothing of the package is used here.

It is what a test compares with: were it built on the package's reader, both would err alike. It judges nothing; ids
need not follow each other, and no hash is looked at.
"""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["raw_head", "raw_lines", "raw_records"]

_SEGMENT: Final = re.compile(r"[0-9]{6}\.jsonl", re.ASCII)


def raw_lines(directory: Path) -> list[bytes]:
    """Every line of every segment, in order, each with its newline; an unterminated one is without."""
    folder = directory / "journal"
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    lines: list[bytes] = []
    for name in names:
        if _SEGMENT.fullmatch(name):
            lines += re.findall(rb"[^\n]*\n|[^\n]+", (folder / name).read_bytes())
    return lines


def raw_records(directory: Path) -> list[dict[str, Any]]:
    """The objects in the lines that are terminated and not empty. Raises `ValueError` for a line that is none."""
    records: list[dict[str, Any]] = []
    for number, line in enumerate(raw_lines(directory), 1):
        if line == b"\n" or not line.endswith(b"\n"):
            continue
        records.append(_object(line, f"line {number} of {directory}"))
    return records


def raw_head(directory: Path) -> dict[str, Any] | None:
    """What HEAD says; None where there is none. Raises `ValueError` when it is no JSON object."""
    try:
        text = (directory / "HEAD").read_bytes()
    except FileNotFoundError:
        return None
    return _object(text, f"HEAD of {directory}")


def _object(text: bytes, where: str) -> dict[str, Any]:
    try:
        value: Any = json.loads(text)
    except ValueError as error:
        message = f"{where} is no JSON: {error}"
        raise ValueError(message) from error
    if not isinstance(value, dict):
        message = f"{where} is no object"
        raise ValueError(message)  # noqa: TRY004 - the text is wrong, not the type of an argument
    return cast("dict[str, Any]", value)
