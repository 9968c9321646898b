"""Programs that a test starts in a process of its own, on a small disk, under a limit, or as another user.

`python -m tests.writer_programs NAME DIRECTORY`. Each asserts what it promises; what fails ends it with a traceback.
"""

from __future__ import annotations

import os
import resource
import sys
from pathlib import Path
from typing import Any, Final

from raxol_otel.errors import JournalUnreadable, WriteFailed
from raxol_otel.journal import Journal, open_journal, scan, verify
from raxol_otel.signals import SIGNAL_WRITE_FAILED, Signal
from tests.writer_files import NEVER, event, head_of, listen, segment_sizes

__all__ = ["NOBODY", "PROGRAMS"]

NOBODY: Final = 65534
LIMIT: Final = 8_192
heard: list[Signal] = []


def told() -> set[tuple[str, str]]:
    """The stages and reasons of what was said since the last call."""
    found = {(one.metadata["stage"], one.metadata["reason"]) for one in heard}
    assert {one.name for one in heard} <= {SIGNAL_WRITE_FAILED}
    heard.clear()
    return found


def raised(call: Any, *arguments: Any, **options: Any) -> tuple[str, str, tuple[int, ...]]:
    """The `WriteFailed` of a call."""
    try:
        call(*arguments, **options)
    except WriteFailed as error:
        return error.stage, error.reason, error.offsets
    message = "nothing was raised"
    raise AssertionError(message)


def opened(base: Path, **options: Any) -> Journal:
    """The journal, which syncs nothing by itself."""
    return open_journal("s", base_dir=base, sync_ceiling_ms=NEVER, **options)


def checked(base: Path, numbers: list[int]) -> None:
    """Exactly these were acknowledged, and are there, with HEAD at the last."""
    found = scan(base / "s")
    assert (found.ok, found.torn) == (True, False), found.damage
    assert [record["id"] for record in found.records] == list(range(1, len(numbers) + 1))
    assert [record["payload"]["number"] for record in found.records] == numbers
    assert head_of(base / "s")["offset"] == len(numbers)


def filled(journal: Journal, reason: str, numbers: list[int]) -> None:
    """Append until it fails: no id is used, and nothing of the record is left."""
    while True:
        size = sum(segment_sizes(journal.path))
        try:
            assert journal.append(event(len(numbers), text="x" * 900)) == len(numbers) + 1
        except WriteFailed as error:
            failed = error
            break
        numbers.append(len(numbers))
    assert (failed.stage, failed.reason, failed.offsets) == ("append", reason, ())
    assert journal.last_offset == len(numbers) > 2
    assert sum(segment_sizes(journal.path)) == size
    assert told() == {("append", reason)}
    assert raised(journal.append_many, [event(n, text="x" * 900) for n in range(5)])[:2] == ("append", reason)
    assert sum(segment_sizes(journal.path)) == size
    told()
    assert len(journal.read()) == len(numbers)
    assert len(scan(journal.path).records) == len(numbers)


def full_disk(base: Path, *, chain: bool = False) -> None:
    """ENOSPC in the middle of a line, again and again; each time space is freed appends go on where they were."""
    numbers: list[int] = []
    with opened(base, chain=chain) as journal:
        for _ in range(3):
            spare = base / "spare"
            spare.write_bytes(b"x" * 8_192)
            filled(journal, "enospc", numbers)
            spare.unlink()
            assert journal.append(event(len(numbers))) == len(numbers) + 1
            numbers.append(len(numbers))
        journal.flush()
        assert told() == set()
    checked(base, numbers)
    assert not chain or verify(base / "s") is None


def full_disk_chained(base: Path) -> None:
    """The same, and the chain links."""
    full_disk(base, chain=True)


def full_disk_at_close(base: Path) -> None:
    """HEAD cannot be written any more: it stays behind, and the records are there when the journal is opened again."""
    numbers: list[int] = []
    (base / "spare").write_bytes(b"x" * 8_192)
    journal = opened(base)
    filled(journal, "enospc", numbers)
    while True:  # to the last byte
        try:
            journal.append(event(len(numbers)))
        except WriteFailed:
            break
        numbers.append(len(numbers))
    told()
    journal.close()
    assert told() == {("head", "enospc")}
    assert head_of(base / "s")["offset"] == 0
    assert not (base / "s" / "writer.lock").exists()
    assert list((base / "s").glob("*.tmp.*")) == []
    (base / "spare").unlink()
    with opened(base) as journal:
        assert journal.append(event(len(numbers))) == len(numbers) + 1
        numbers.append(len(numbers))
    checked(base, numbers)


def full_disk_at_opening(base: Path) -> None:
    """No room for anything: a chain is not begun; an unchained journal appends when there is room."""
    with (base / "fill").open("wb", buffering=0) as file:
        try:
            while file.write(b"x" * 4_096):
                pass
        except OSError:
            pass
    assert raised(opened, base, chain=True)[:2] == ("meta", "enospc")
    assert told() == {("meta", "enospc")}
    with opened(base) as journal:
        assert told() == {("meta", "enospc"), ("head", "enospc")}
        assert raised(journal.append, event(0)) == ("append", "enospc", ())
        told()
        (base / "fill").unlink()
        assert journal.append(event(0)) == 1
    assert told() == set()
    checked(base, [0])


def file_too_large(base: Path) -> None:
    """EFBIG by the limit of the process: the next append works when the limit is raised."""
    numbers: list[int] = []
    with opened(base) as journal:
        for limit in (LIMIT, 2 * LIMIT):
            resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            filled(journal, "efbig", numbers)
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert journal.append(event(len(numbers))) == len(numbers) + 1
        numbers.append(len(numbers))
    checked(base, numbers)


def too_many_open_files(base: Path) -> None:
    """EMFILE at rotation: the segment grows past its cap, and the next append rotates when it may."""
    with opened(base, segment_cap=100) as journal:
        journal.append(event(0))
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        taken = [os.dup(0) for _ in range(3)]
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(taken) + 1, before[1]))
        assert journal.append(event(1)) == 2
        assert told() == {("rotate", "emfile")}
        assert journal.append(event(2)) == 3
        assert told() == {("rotate", "emfile")}
        resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert journal.append(event(3)) == 4
        assert told() == set()
        assert len(segment_sizes(base / "s")) == 2
    checked(base, [0, 1, 2, 3])


def read_only_base(base: Path) -> None:
    """A session that cannot be made: nothing is left of it."""
    base.chmod(0o555)
    unprivileged()
    assert raised(opened, base) == ("meta", "eacces", ())
    assert list(base.iterdir()) == []


def read_only_session(base: Path) -> None:
    """No lock and no HEAD can be had in it, but the segment can be written: so it is, and each lack is told."""
    prepared(base)
    (base / "s").chmod(0o555)
    unprivileged()
    journal = opened(base)
    assert told() == {("lock", "eacces"), ("head", "eacces")}
    assert journal.append(event(1), sync=True) == 2
    assert told() == {("head", "eacces")}
    journal.close()
    assert told() == {("head", "eacces")}
    assert head_of(base / "s")["offset"] == 1
    (base / "s").chmod(0o755)
    with opened(base) as journal:
        assert journal.append(event(2)) == 3
    assert told() == set()
    checked(base, [0, 1, 2])


def read_only_folder(base: Path) -> None:
    """The next segment cannot be made: `rotate` is told until it can."""
    prepared(base)
    (base / "s" / "journal").chmod(0o555)
    unprivileged()
    with opened(base, segment_cap=100) as journal:
        assert journal.append(event(1)) == 2
        assert told() == {("rotate", "eacces")}
        (base / "s" / "journal").chmod(0o755)
        assert journal.append(event(2)) == 3
        assert told() == set()
        assert len(segment_sizes(base / "s")) == 2
    checked(base, [0, 1, 2])


def read_only_segment(base: Path) -> None:
    """Not opened for writing; nothing changes, the lock is given back, and it can be read."""
    prepared(base)
    segment = base / "s" / "journal" / "000001.jsonl"
    segment.chmod(0o444)
    unprivileged()
    head = (base / "s" / "HEAD").read_bytes()
    assert raised(opened, base) == ("append", "eacces", ())
    assert (base / "s" / "HEAD").read_bytes() == head
    assert not (base / "s" / "writer.lock").exists()
    segment.chmod(0o644)
    with opened(base) as journal:
        assert journal.append(event(1)) == 2
    checked(base, [0, 1])


def torn_read_only_segment(base: Path) -> None:
    """A torn tail that may not be cut is not appended to."""
    prepared(base)
    segment = base / "s" / "journal" / "000001.jsonl"
    with segment.open("ab") as file:
        file.write(b'{"id":2,"to')
    segment.chmod(0o444)
    unprivileged()
    before = segment.read_bytes()
    assert raised(opened, base) == ("append", "eacces", ())
    assert segment.read_bytes() == before
    segment.chmod(0o644)
    with opened(base) as journal:
        assert journal.append(event(1)) == 2
    checked(base, [0, 1])


def unreadable_files(base: Path) -> None:
    """A segment, the folder or meta.json that may not be read: refused, naming it, never taken for empty."""
    prepared(base)
    unprivileged()
    session = base / "s"
    for path in (session / "meta.json", session / "journal" / "000001.jsonl", session / "journal"):
        mode = path.stat().st_mode
        path.chmod(0)
        try:
            opened(base)
        except JournalUnreadable as error:
            assert error.path == path  # noqa: PT017 - no pytest here
        else:
            message = f"opened without {path}"
            raise AssertionError(message)
        path.chmod(mode)
        assert not (session / "writer.lock").exists()
    with opened(base) as journal:
        assert journal.append(event(1)) == 2
    checked(base, [0, 1])


def prepared(base: Path) -> None:
    """A journal with one record, which the other user owns."""
    with opened(base) as journal:
        journal.append(event(0))
    for path in base.rglob("*"):
        if os.geteuid() == 0:
            os.chown(path, NOBODY, NOBODY)


def unprivileged() -> None:
    """From now on permissions bind."""
    if os.geteuid() == 0:
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)


PROGRAMS: Final = {
    "disk": [full_disk, full_disk_chained, full_disk_at_close, full_disk_at_opening],
    "limit": [file_too_large, too_many_open_files],
    "user": [
        *(read_only_base, read_only_session, read_only_folder, read_only_segment),
        *(torn_read_only_segment, unreadable_files),
    ],
}


def main() -> None:
    """Run the program of that name."""
    name, directory = sys.argv[1:]
    listen("program", heard)
    known = {program.__name__: program for programs in PROGRAMS.values() for program in programs}
    known[name](Path(directory))
    sys.stdout.write("kept\n")


if __name__ == "__main__":
    main()
