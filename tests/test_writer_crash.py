"""kill -9 at every point: what was acknowledged is there, ids go on, nothing is left that stands in the way."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import WriteFailed
from raxol_otel.journal import open_journal, scan, verify
from raxol_otel.journal.layout import read_head
from raxol_otel.journal.lock import probe
from tests.crash_kill import KillingFiles, in_child, kill_at_system_call

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raxol_otel.journal import Journal
    from tests.crash_kill import Said

SESSION: Final = "s"
NEVER: Final = 1e9
SMALL: Final = 450
STEPS: Final = (
    *("append", "later", "durable", "many", "later", "tool", "checked", "flush", "many"),
    *("later", "reopen", "durable", "later", "ceiling", "later"),
)


def event(number: int, kind: str = "x") -> dict[str, Any]:
    """An event that knows which offset it is going to have."""
    return {"type": kind, "payload": {"n": number, "text": "é" * 20}}


def open_it(base: Path, *, chain: bool, files: KillingFiles | None = None) -> Journal:
    """The journal, with segments that are soon full, and a ceiling that never comes by itself."""
    return open_journal(
        SESSION,
        base_dir=base,
        chain=chain,
        segment_cap=SMALL,
        sync_ceiling_ms=NEVER,
        files=files or KillingFiles(),
    )


def append_one(journal: Journal, name: str) -> int:
    """Append one event, in the way of that name."""
    new = event(journal.last_offset + 1, "tool_result" if name == "tool" else "x")
    if name == "checked":
        return journal.append_checked(new, lambda records: len(list(records)) == records.last_offset)
    return journal.append(new, sync={"append": None, "durable": True}.get(name, False))


def work(base: Path, files: KillingFiles, *, chain: bool) -> Callable[[Said], None]:
    """What the child does to the journal; it says every offset that it was given."""

    def run(say: Said) -> None:
        journal = open_it(base, chain=chain, files=files)
        for name in STEPS:
            if name == "many":
                following = journal.last_offset + 1
                for offset in journal.append_many([event(following + index) for index in range(5)], sync=False):
                    say(offset)
            elif name == "flush":
                journal.flush()
            elif name == "ceiling":
                journal._writer.due()  # pyright: ignore[reportPrivateUsage] - only the ceiling's thread calls it
            elif name == "reopen":
                journal.close()
                journal = open_it(base, chain=chain, files=files)
            else:
                try:
                    say(append_one(journal, name))
                except WriteFailed:
                    say(append_one(journal, name))
        journal.close()

    return run


def check(base: Path, said: list[int], *, chain: bool) -> None:
    """What the next process finds, and what it can do with it."""
    session = base / SESSION
    if session.exists():
        assert probe(session).state in ("none", "stale")
    found = scan(session)
    assert found.ok, found.damage
    last = len(found.records)
    assert [record["id"] for record in found.records] == list(range(1, last + 1))
    assert [record["payload"]["n"] for record in found.records] == list(range(1, last + 1))
    assert last >= max(said, default=0)
    head = read_head(session)
    assert head is None or head["offset"] <= last
    with open_it(base, chain=chain) as journal:
        assert journal.status() == "ok"
        assert journal.append(event(last + 1), sync=True) == last + 1
        assert probe(session).pid == os.getpid()
    assert sorted(path.name for path in session.iterdir()) == ["HEAD", "journal", "meta.json", "snapshots"]
    found = scan(session)
    assert (found.ok, found.torn, len(found.records)) == (True, False, last + 1)
    head = read_head(session)
    assert head is not None
    assert head["offset"] == last + 1
    assert not chain or verify(session) is None


def torn(base: Path, *, chain: bool) -> None:
    """A journal that a crash left behind: a torn tail, a temporary file, a lock that names nobody alive."""
    with open_it(base, chain=chain) as journal:
        journal.append_many([event(number) for number in range(1, 4)])
    with (journal.path / "journal" / "000001.jsonl").open("ab") as segment:
        segment.write(b'{"id":4,"payload":{"n')
    (journal.path / "HEAD.tmp.99.1").write_bytes(b'{"off')
    (journal.path / "writer.lock").write_text("4194305")  # above any pid


def nothing(base: Path, *, chain: bool) -> None:
    """No journal yet, whether it is to be chained or not."""
    del base, chain


@pytest.fixture(params=[nothing, torn], ids=["new", "torn"])
def before(request: pytest.FixtureRequest) -> Callable[..., None]:
    """What is there when the process that is killed begins."""
    found: Callable[..., None] = request.param
    return found


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize("how", ["before", "after", "part"])
def test_a_kill_at_any_operation_loses_nothing(
    tmp_path: Path, before: Callable[..., None], how: str, *, chain: bool
) -> None:
    """Between any two operations on files, and in the middle of any write."""
    pristine = tmp_path / "pristine"
    pristine.mkdir()
    before(pristine, chain=chain)
    names = operations(pristine, tmp_path / "all", chain=chain)
    for at, name in enumerate(names, 1):
        parts = (0,) if how != "part" else (1, -1) if name == "write" else ()
        for part in parts:
            base = shutil.copytree(pristine, tmp_path / f"{at}-{part}")
            ended = in_child(work(base, KillingFiles(at, how, part=part), chain=chain))
            assert ended.is_killed, (at, name)
            check(base, ended.said, chain=chain)
            shutil.rmtree(base)
    assert {"write", "sync", "rename", "open", "sync_directory"} <= set(names)
    assert len(names) > 50


def operations(pristine: Path, base: Path, *, chain: bool) -> list[str]:
    """The names of all operations of an undisturbed run."""
    files = KillingFiles()
    shutil.copytree(pristine, base)
    work(base, files, chain=chain)(lambda _: None)
    shutil.rmtree(base)
    return files.names


@pytest.mark.parametrize("chain", [False, True])
def test_a_kill_while_a_short_write_is_cut_back_loses_nothing(tmp_path: Path, *, chain: bool) -> None:
    """The disk is full for one record; the process dies before, while or after it takes the piece back."""
    pristine = tmp_path / "pristine"
    pristine.mkdir()
    torn(pristine, chain=chain)
    names = operations(pristine, tmp_path / "all", chain=chain)
    # The first write of a record: what comes before belongs to the opener's HEAD.
    short_at = names.index("write", names.index("sync_directory", names.index("rename"))) + 1
    for at in range(short_at, short_at + 12):
        for how in ("before", "after"):
            base = shutil.copytree(pristine, tmp_path / f"{at}-{how}")
            ended = in_child(work(base, KillingFiles(at, how, short_at=short_at), chain=chain))
            assert ended.is_killed
            check(base, ended.said, chain=chain)


@pytest.mark.parametrize("chain", [False, True])
def test_a_kill_at_any_system_call_loses_nothing(tmp_path: Path, before: Callable[..., None], *, chain: bool) -> None:
    """The lock and a torn tail's repair are killed in their midst as well: opening, one append, closing."""
    pristine = tmp_path / "pristine"
    pristine.mkdir()
    before(pristine, chain=chain)

    def run(base: Path, number: int) -> Callable[[Said], None]:
        def inside(say: Said) -> None:
            kill_at_system_call(number)
            with open_it(base, chain=chain) as journal:
                say(journal.append(event(journal.last_offset + 1), sync=True))

        return inside

    number = 0
    for number in range(1, 2_000):
        base = shutil.copytree(pristine, tmp_path / str(number))
        ended = in_child(run(base, number))
        check(base, ended.said, chain=chain)
        shutil.rmtree(base)
        if not ended.is_killed:
            break
    assert 100 < number < 1_000
