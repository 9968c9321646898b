"""Reading a journal while its writer goes on: what is written meanwhile is missed whole, never in part."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.journal import open_journal, scan
from raxol_otel.journal import reader as reader_module

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raxol_otel.journal.blocks import Block


@pytest.mark.parametrize("chain", [False, True])
def test_a_writer_that_rotates_between_two_segments_is_no_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, chain: bool
) -> None:
    """The end of one segment is read, its writer goes on in it and in the next, and then the next one is read."""
    with open_journal("s", base_dir=tmp_path, segment_cap=300, chain=chain) as journal:
        for number in range(8):
            journal.append({"number": number})
        before = journal.last_offset
        plain = vars(reader_module)["blocks"]

        def slow(path: Path, *size: Any) -> Iterator[Block]:
            yield from plain(path, *size)
            for number in range(3):
                journal.append({"number": number})

        monkeypatch.setattr(reader_module, "blocks", slow)
        found = scan(tmp_path / "s")
    assert found.ok
    assert len(found.records) >= before
    assert [record["id"] for record in found.records] == list(range(1, len(found.records) + 1))


def test_what_comes_behind_all_that_there_was_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As far as it is whole; a segment that was empty when it was looked at is left for the next reading."""
    folder = tmp_path / "s" / "journal"
    folder.mkdir(parents=True)
    path = folder / "000001.jsonl"
    path.write_bytes(b'{"id":1}\n{"id":2}\n{"i')
    (folder / "000002.jsonl").touch()
    plain = vars(reader_module)["blocks"]

    def late(one: Path, *size: Any) -> Iterator[Block]:
        if one == path:
            path.write_bytes(b'{"id":1}\n{"id":2}\n{"id":3}\n')
        yield from plain(one, *size)
        (folder / "000002.jsonl").write_bytes(b'{"id":5}\n')
        path.write_bytes(b'{"id":1}\n{"id":2}\n{"id":3}\n{"id":4}\n')

    monkeypatch.setattr(reader_module, "blocks", late)
    found = scan(tmp_path / "s")
    assert (found.ok, found.torn) == (True, False)
    assert [record["id"] for record in found.records] == [1, 2, 3]
