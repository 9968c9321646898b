"""Handles that are forgotten, forked, or still open when the interpreter ends."""

from __future__ import annotations

import gc
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import WriterClosed
from raxol_otel.journal import open_journal, scan
from raxol_otel.journal.layout import read_head
from raxol_otel.journal.lock import probe
from tests.crash_kill import in_child
from tests.exporter_contract import environment
from tests.test_writer_threads import SECONDS_MAX, Crowd, Trap, event

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from raxol_otel.journal import Journal
    from tests.crash_kill import Said


def test_a_handle_that_is_forgotten_closes(tmp_path: Path) -> None:
    """Without `close`, the last reference gone is enough: durable, HEAD exact, the lock given back."""
    journal = open_journal("s", base_dir=tmp_path, sync_ceiling_ms=1e9)
    path = journal.path
    journal.append(event(0, 0), sync=False)
    del journal
    gc.collect()
    assert not (path / "writer.lock").exists()
    assert (read_head(path) or {})["offset"] == len(scan(path).records) == 1


def test_a_handle_forgotten_in_the_middle_of_another_s_append_closes_after_it(tmp_path: Path) -> None:
    """The collector may come at any time: the append goes on, and then the journal is closed."""
    owner: list[Any] = [open_journal("s", base_dir=tmp_path, sync_ceiling_ms=1e9)]
    joined = open_journal("s", base_dir=tmp_path)
    owner.append(owner)
    owner.clear()
    cycle: dict[str, Any] = {"owner": open_journal("t", base_dir=tmp_path, sync_ceiling_ms=1e9)}
    cycle["self"] = cycle
    other = open_journal("t", base_dir=tmp_path)
    del cycle
    assert other.append(Trap(gc.collect), sync=False) == 1
    assert not (other.path / "writer.lock").exists()
    assert (read_head(other.path) or {})["offset"] == len(scan(other.path).records) == 1
    with pytest.raises(WriterClosed):
        joined.append(event(0, 0))


def refused(journal: Journal) -> Callable[[Said], None]:
    """In a child: every method says that the writer is not its own; as many as did are said."""

    def run(say: Said) -> None:
        calls: list[Callable[[], object]] = [
            lambda: journal.append(event(9, 9)),
            lambda: journal.append_many([event(9, 9)]),
            lambda: journal.append_checked(event(9, 9), len),
            journal.read,
            journal.status,
            journal.flush,
        ]
        for number, call in enumerate(calls):
            try:
                call()
            except WriterClosed:
                say(number)
        journal.close()

    return run


def test_a_forked_child_never_writes_and_never_unlocks(tmp_path: Path) -> None:
    """A hundred forks while threads append: each child is refused at once, and the parent goes on as if alone."""
    journal = open_journal("s", base_dir=tmp_path, segment_cap=6_000, sync_ceiling_ms=1)
    crowd, done = Crowd(journal), threading.Event()

    def append_on(thread: int) -> None:
        number = 0
        while not done.is_set():
            offset = journal.append(event(thread, number), sync=(None, True, False)[number % 3])
            crowd.said[thread].append((offset, number))
            number += 1

    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(append_on, thread) for thread in range(4)]
        try:
            for _ in range(100):
                ended = in_child(refused(journal))
                assert ended.said == [0, 1, 2, 3, 4, 5]
                assert probe(journal.path).state == "live"
        finally:
            done.set()
        for future in futures:
            future.result(SECONDS_MAX)
    assert (journal.path / "writer.lock").exists()
    journal.close()
    crowd.check(is_whole=True)


OPEN: Final = """
import os, sys, threading, time
from raxol_otel.journal import open_journal
journal = open_journal("s", base_dir=sys.argv[1], sync_ceiling_ms=1e9)
for number in range(5):
    journal.append({"type": "x", "payload": {"n": number}}, sync=False)
"""
ENDINGS: Final = {
    "end": "",
    "exit": "sys.exit(0)",
    "error": "raise LookupError",
    "interrupt": "raise KeyboardInterrupt",
    "cycle": "journal.me = journal; del journal",
    "daemon": "threading.Thread(target=time.sleep, args=(60,), daemon=True).start()",
    "busy daemon": """
def go():
    while True:
        journal.append({"type": "x", "payload": {}})
threading.Thread(target=go, daemon=True).start()
time.sleep(0.05)
""",
    "late": "import atexit; atexit.register(lambda: None)",
    "forked": """
child = os.fork()
if child == 0:
    sys.exit(0)  # everything that runs at the end of a process runs in the child too
os.waitpid(child, 0)
assert os.path.exists(sys.argv[1] + "/s/writer.lock")
journal.append({"type": "x", "payload": {}}, sync=False)
""",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_process_that_ends_without_closing_has_closed(tmp_path: Path, ending: str) -> None:
    """However the interpreter comes to its end: everything appended is durable and named by HEAD, the lock is gone."""
    done = subprocess.run(
        [sys.executable, "-c", OPEN + ENDINGS[ending], str(tmp_path)],
        env=environment(measured=False),
        capture_output=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    session = tmp_path / "s"
    assert b"AssertionError" not in done.stderr
    assert (done.returncode != 0) == (ending in ("error", "interrupt")), done.stderr
    assert not (session / "writer.lock").exists()
    found = scan(session)
    assert found.ok
    assert not found.torn
    assert len(found.records) >= 5
    assert (read_head(session) or {})["offset"] == len(found.records)
