"""What a mutation run found that no test of salvage said."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from raxol_otel.errors import WriteFailed
from raxol_otel.journal import salvage

if TYPE_CHECKING:
    from pathlib import Path


def journal_of(folder: Path, lines: list[bytes], head: bytes = b"{}") -> Path:
    """A session with these lines in one segment."""
    (folder / "old" / "journal").mkdir(parents=True)
    (folder / "old" / "journal" / "000001.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    (folder / "old" / "HEAD").write_bytes(head)
    return folder / "old"


def test_refusals_have_their_stage_and_reason(tmp_path: Path) -> None:
    """What is no journal, a target within it, one that is there, and one whose folder is not."""
    old = journal_of(tmp_path, [b'{"id":1}'])
    (tmp_path / "there").touch()
    for source, target, reason in (
        (tmp_path / "none", tmp_path / "new", "enoent"),
        (old, old / "new", "other"),
        (old, tmp_path / "there", "other"),
        (old, tmp_path / "missing" / "new", "enoent"),
    ):
        with pytest.raises(WriteFailed) as caught:
            salvage(source, target)
        assert (caught.value.stage, caught.value.reason) == ("append", reason)


@pytest.mark.parametrize(("cap", "sizes"), [(1, [9, 9, 9, 0]), (9, [9, 9, 9, 0]), (10, [18, 9]), (0, [27])])
def test_a_segment_ends_with_the_record_that_takes_it_to_the_cap(tmp_path: Path, cap: int, sizes: list[int]) -> None:
    """Exactly the cap is enough; HEAD's cap counts from one byte on, and goes on being said."""
    old = journal_of(tmp_path, [b'{"id":%d}' % number for number in (1, 2, 3)], b'{"segment_cap":%d}' % cap)
    before = len(os.listdir("/proc/self/fd"))
    assert salvage(old, tmp_path / "new") == 3
    assert len(os.listdir("/proc/self/fd")) == before
    paths = sorted((tmp_path / "new" / "journal").iterdir())
    assert [path.stat().st_size for path in paths] == sizes
    head = json.loads((tmp_path / "new" / "HEAD").read_bytes())
    assert (head["offset"], head["segment"], head["segment_cap"]) == (3, len(sizes), cap or 8 * 2**20)


def test_every_snapshot_that_is_pointed_to_comes_along(tmp_path: Path) -> None:
    """Whatever stands between: one that is pointed to twice, one that is missing, one that is none."""
    texts = [b"{}", b'{"a":1}', b'{"b":1}']
    names = [sha256(text).hexdigest() for text in texts]
    pointers = [names[0], names[0], names[1], "0" * 64, "x", names[2]]
    lines = [
        json.dumps({"id": number, "kind": "checkpoint", "snapshot_ref": f"snapshots/{name}.json"}).encode()
        for number, name in enumerate(pointers, 1)
    ]
    old = journal_of(tmp_path, [*lines, b'{"id":7}', b'{"id":8,"kind":"checkpoint"}'])
    (old / "snapshots").mkdir()
    for name, text in zip(names, texts, strict=True):
        (old / "snapshots" / f"{name}.json").write_bytes(text)
    assert salvage(old, tmp_path / "new") == 8
    found = {path.name: path.read_bytes() for path in (tmp_path / "new" / "snapshots").iterdir()}
    assert found == {f"{name}.json": text for name, text in zip(names, texts, strict=True)}
