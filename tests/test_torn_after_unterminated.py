"""A torn line behind a record that is the unterminated rest of an earlier segment: cutting the one spares the other."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from raxol_otel.journal import open_journal, resume_scan, scan
from tests.conftest import make_journal

if TYPE_CHECKING:
    from pathlib import Path


def journal_of(folder: Path, *segments: bytes) -> Path:
    """A session of these segments."""
    (folder / "s" / "journal").mkdir(parents=True)
    for number, data in enumerate(segments, 1):
        (folder / "s" / "journal" / f"{number:06}.jsonl").write_bytes(data)
    return folder / "s"


TWO = b'{"id":1}\n{"id":2}'


@pytest.mark.parametrize("later", [(b'{"id":3',), (b"\n\n", b'{"id":3'), (b"", b'\n{"id":3', b"", b"\n")])
def test_a_cut_does_not_tear_what_was_whole(tmp_path: Path, later: tuple[bytes, ...]) -> None:
    """The record gets its newline before the torn line goes; no reading after it says anything else."""
    session = journal_of(tmp_path, TWO, *later)
    before = scan(session)
    assert (before.ok, [record["id"] for record in before.records], before.torn) == (True, [1, 2], True)
    resume_scan(session)
    for _ in range(2):
        after = resume_scan(session)
        assert (after.ok, after.records, after.torn) == (True, before.records, False)
    assert (session / "journal" / "000001.jsonl").read_bytes() == TWO + b"\n"


def test_the_writer_goes_on_after_it(tmp_path: Path) -> None:
    """Opened, closed, opened again: the record is there, and the next one follows."""
    session = journal_of(tmp_path, TWO, b'{"id":3')
    open_journal("s", base_dir=tmp_path).close()
    with open_journal("s", base_dir=tmp_path) as journal:
        assert journal.status() == "ok"
        assert journal.append({"type": "note"}) == 3
    assert [record["id"] for record in scan(session).records] == [1, 2, 3]


def test_a_chained_one_is_spared_too(tmp_path: Path) -> None:
    """A newline is no part of what is hashed."""
    files, _ = make_journal([1, 2, 3], chained=True, per_segment=2)
    session = tmp_path / "s"
    for name, data in files.items():
        (session / name).parent.mkdir(parents=True, exist_ok=True)
        (session / name).write_bytes(data)
    first, second = (session / "journal" / name for name in ("000001.jsonl", "000002.jsonl"))
    first.write_bytes(first.read_bytes().rstrip(b"\n"))
    second.write_bytes(second.read_bytes()[:20])
    (session / "HEAD").unlink(missing_ok=True)
    with open_journal("s", base_dir=tmp_path) as journal:
        assert journal.append({"type": "note"}) == 3
        assert journal.verify() is None
    assert scan(session).ok
