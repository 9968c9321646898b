"""Opening that fails: it is told, nothing stays behind, and the next try works."""

from __future__ import annotations

import contextlib
import errno
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel.errors import WriteFailed
from raxol_otel.journal import scan
from tests.writer_files import Bench, head_of, segment_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator

OPERATIONS = [
    *(("make_directory", ""), ("make_directory", "journal"), ("make_directory", "snapshots")),
    *(("open", "journal/"), ("sync", "journal/"), ("sync_directory", "journal"), ("sync_directory", "")),
    *(("open", "meta.json"), ("write", "meta.json"), ("sync", "meta.json"), ("rename", "meta.json")),
    *(("open", "HEAD"), ("write", "HEAD"), ("sync", "HEAD"), ("rename", "HEAD"), ("close", "HEAD")),
]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A journal with a file layer that can fail."""
    with Bench(tmp_path) as bench:
        yield bench


def descriptors() -> list[str]:
    """The files that this process has open."""
    found: list[str] = []
    for link in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):  # the listing's own
            found.append(str(link.readlink()))
    return [path for path in found if path.startswith("/") and not path.startswith("/proc")]


def opened_in_spite(bench: Bench, operation: str, where: str, **options: Any) -> WriteFailed | None:
    """Open while an operation fails, and close; why it was not opened."""
    bench.files.fail(operation, where, errno.EIO)
    try:
        bench.open(**options)
    except WriteFailed as failed:
        return failed
    finally:
        bench.files.repair()
    return None


def prepared(bench: Bench, **options: Any) -> None:
    """A journal of two records, closed."""
    bench.open(**options)
    bench.append(1, 2)
    bench.finish()
    bench.files.log.clear()


@pytest.mark.parametrize(("operation", "where"), OPERATIONS)
@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("is_new", [True, False])
def test_whatever_fails_at_opening_leaves_nothing(
    bench: Bench, operation: str, where: str, *, chain: bool, is_new: bool
) -> None:
    """Opened or not: no file stays open afterwards, no lock, nothing temporary; and then it can be opened."""
    if not is_new:
        prepared(bench, chain=chain)
    before = descriptors()
    error = opened_in_spite(bench, operation, where, chain=chain)
    assert error is None or error.reason == "eio"
    if error is None:
        assert bench.journal is not None
        bench.journal.close()
    bench.journal = None
    assert not (bench.session / "writer.lock").exists()
    assert [path for path in descriptors() if path not in before] == []
    bench.open(chain=chain)
    bench.append(3)
    bench.finish()


@pytest.mark.parametrize(("operation", "where"), OPERATIONS)
@pytest.mark.parametrize("is_new", [True, False])
def test_whatever_fails_at_opening_is_told(bench: Bench, operation: str, where: str, *, is_new: bool) -> None:
    """As a signal, whether the journal is opened in spite of it or not, with the stage and reason of the error."""
    if not is_new:
        prepared(bench)
    error = opened_in_spite(bench, operation, where)
    told = bench.told()
    has_failed = any(name == operation and where in path for name, path, _, _ in bench.files.log)
    assert bool(told) == has_failed
    assert error is None or told == [(error.stage, error.reason)]


@pytest.mark.parametrize("is_new", [True, False])
def test_a_segment_that_cannot_be_synced_is_no_ground_to_stand_on(bench: Bench, *, is_new: bool) -> None:
    """Not opened: the stage is `datasync`, and HEAD does not move."""
    if not is_new:
        prepared(bench)
    error = opened_in_spite(bench, "sync", "journal/")
    assert error is not None
    assert (error.stage, error.reason) == ("datasync", "eio")
    assert is_new or head_of(bench.session)["offset"] == 2


def test_a_torn_tail_is_cut_and_the_cut_is_durable(bench: Bench) -> None:
    """At the byte where its line began; the id is given anew. Other segments stay as they are."""
    bench.open(segment_cap=100)
    bench.append(1, 2, 3)
    bench.finish()
    sizes = segment_sizes(bench.session)
    with (bench.session / "journal" / "000002.jsonl").open("ab") as file:
        file.write(b'{"id":4,"payload":{"num')
    bench.open(segment_cap=100)
    assert segment_sizes(bench.session) == sizes
    assert bench.append(4) == [4]
    bench.finish()


def test_what_a_crash_left_is_swept(bench: Bench) -> None:
    """Temporary files directly in the session's directory; nothing in the folders, and no folder of such a name."""
    bench.open()
    bench.append(1)
    bench.finish()
    for name in ("HEAD.tmp.7", "meta.json.tmp.9.1", "snapshots/x.tmp.1", "journal/000001.jsonl.tmp.1"):
        (bench.session / name).write_bytes(b"left")
    (bench.session / "folder.tmp.1").mkdir()
    bench.open()
    assert {path.name for path in bench.session.glob("*.tmp.*")} == {"folder.tmp.1"}
    assert (bench.session / "snapshots" / "x.tmp.1").exists()
    assert (bench.session / "journal" / "000001.jsonl.tmp.1").exists()
    assert scan(bench.session).ok
