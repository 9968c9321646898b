"""Salvage: the records before the damage as a new journal, whole or not at all; the old one is evidence."""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.errors import JournalUnreadable, WriteFailed
from raxol_otel.journal import open_journal, salvage, scan, verify
from raxol_otel.journal.codec import decode, encode
from tests.conftest import make_journal
from tests.lock_processes import EVENT
from tests.test_oracle import digest, place
from tests.test_private import portrait

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Record = dict[str, Any]

PAYLOADS: Final[list[Any]] = [{"n": number, "text": "äß/\n\x1f" * 5} for number in range(12)]
CHAINED: Final = pytest.mark.parametrize("chained", [False, True], ids=["unchained", "chained"])


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_salvage", found.append)
    yield found
    signals.detach("test_salvage")


def put(directory: Path, files: dict[str, bytes]) -> Path:
    """A session directory with these files."""
    for name, data in files.items():
        (directory / name).parent.mkdir(parents=True, exist_ok=True)
        (directory / name).write_bytes(data)
    return directory


def damaged(folder: Path, *, chained: bool = False) -> Path:
    """A journal of three segments, twelve records, the eighth of which is cut."""
    files, _ = make_journal(PAYLOADS, chained=chained, per_segment=5)
    lines = files["journal/000002.jsonl"].split(b"\n")
    lines[2] = lines[2][:-5]
    return put(folder / "old", {**files, "journal/000002.jsonl": b"\n".join(lines)})


def named(directory: Path) -> dict[str, tuple[object, ...]]:
    """The portrait of a directory, its paths relative to it."""
    return {str(Path(path).relative_to(directory)): entry for path, entry in portrait(directory).items()}


def salvaged(old: Path, new: Path) -> list[Record]:
    """Salvage, and check all that must hold whatever the damage; the records."""
    before = portrait(old) if old.exists() else {}
    count = salvage(old, new)
    if before:
        assert portrait(old) == before
    found = scan(new)
    assert found.ok
    assert not found.torn
    assert len(found.records) == count
    assert [path.name for path in new.parent.iterdir() if ".tmp." in path.name] == []
    for path in [new, *new.rglob("*")]:
        assert stat.S_IMODE(path.lstat().st_mode) == (0o700 if path.is_dir() else 0o600), path
    head = decode((new / "HEAD").read_bytes())
    assert head["offset"] == (found.records[-1]["id"] if found.records else 0)
    return found.records


def assert_writable(new: Path, following: int) -> None:
    """The salvaged journal is appended to as any other."""
    with open_journal(new.name, base_dir=new.parent) as journal:
        assert journal.status() == "ok"
        assert journal.append(EVENT, sync=True) == following
    assert scan(new).ok


# --- What is damaged --------------------------------------------------------------------------------------------------


@CHAINED
def test_the_records_before_the_damage(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - a parameter of the test
    """With their ids, their hashes and all else; the journal is chained as the old one was, and goes on."""
    _, records = make_journal(PAYLOADS, chained=chained)
    new = tmp_path / "new"
    assert salvaged(damaged(tmp_path, chained=chained), new) == records[:7]
    assert (new / "journal" / "000001.jsonl").read_bytes() == b"".join(encode(one) + b"\n" for one in records[:7])
    if chained:
        assert verify(new) is None
        assert decode((new / "HEAD").read_bytes())["tip_hash"] == records[6]["hash"]
    assert_writable(new, 8)
    assert not chained or verify(new) is None


HURTS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "cut": lambda line: line[:-5],
    "empty object": lambda _: b"{}",
    "not an object": lambda _: b"[]",
    "blank": lambda _: b"  ",
    "NULs": lambda line: b"\0" * len(line),
    "id": lambda line: line.replace(b'"id":6', b'"id":7'),
    "id is a float": lambda line: line.replace(b'"id":6', b'"id":6.0'),
    "UTF-8": lambda line: line.replace("ä".encode(), b"\xe4", 1),
    "huge integer": lambda line: line.replace(b'"n":5', b'"n":' + b"5" * 1025),
    "NaN": lambda line: line.replace(b'"n":5', b'"n":NaN'),
    "two on a line": lambda line: line + line,
}
CHAIN_HURTS: Final[dict[str, Callable[[bytes], bytes]]] = {
    "content": lambda line: line.replace(b'"n":5', b'"n":6'),
    "spelling": lambda line: line.replace(b'":', b'": ', 1),
    "CR": lambda line: line + b"\r",
    "hash": lambda line: line.replace(b'"hash":"', b'"hash":"0', 1),
}


@pytest.mark.parametrize(
    ("hurt", "chained"),
    [
        *((hurt, chained) for hurt in HURTS for chained in (False, True)),
        *((hurt, True) for hurt in CHAIN_HURTS),
    ],
)
def test_each_way_to_be_damaged(tmp_path: Path, hurt: str, chained: bool) -> None:  # noqa: FBT001 - as above
    """The sixth record is hurt, the first of its segment: five are left, and a chain verifies."""
    files, records = make_journal(PAYLOADS, chained=chained, per_segment=5)
    line, rest = files["journal/000002.jsonl"].split(b"\n", 1)
    files["journal/000002.jsonl"] = (HURTS | CHAIN_HURTS)[hurt](line) + b"\n" + rest
    assert salvaged(put(tmp_path / "old", files), tmp_path / "new") == records[:5]
    assert not chained or verify(tmp_path / "new") is None
    assert_writable(tmp_path / "new", 6)


@CHAINED
def test_damage_at_the_very_beginning(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - as above
    """Nothing is left, and that is a journal too."""
    files, _ = make_journal(PAYLOADS, chained=chained)
    files["journal/000001.jsonl"] = b"garbage\n" + files["journal/000001.jsonl"]
    assert salvaged(put(tmp_path / "old", files), tmp_path / "new") == []
    assert_writable(tmp_path / "new", 1)


@CHAINED
def test_a_lost_tail(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - as above
    """HEAD names more than there is: the writer refuses the old journal, and the salvaged one is written on."""
    files, records = make_journal(PAYLOADS, chained=chained)
    files["journal/000001.jsonl"] = b"".join(files["journal/000001.jsonl"].splitlines(keepends=True)[:9])
    assert salvaged(put(tmp_path / "old", files), tmp_path / "new") == records[:9]
    assert_writable(tmp_path / "new", 10)


@CHAINED
def test_a_torn_tail_does_not_come_along(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - as above
    """It was never appended."""
    files, records = make_journal(PAYLOADS, chained=chained)
    files["journal/000001.jsonl"] += b'{"id":13,"pay'
    assert salvaged(put(tmp_path / "old", files), tmp_path / "new") == records
    assert_writable(tmp_path / "new", 13)


def test_another_hash_at_heads_offset(tmp_path: Path) -> None:
    """The record that HEAD disowns is left out."""
    files, records = make_journal(PAYLOADS, chained=True)
    files["HEAD"] = encode({"offset": 9, "segment": 1, "tip_hash": "0" * 64})
    assert salvaged(put(tmp_path / "old", files), tmp_path / "new") == records[:8]
    assert verify(tmp_path / "new") is None


def test_a_dropped_prefix_stays_dropped(tmp_path: Path) -> None:
    """Ids are kept, also where the first is not 1."""
    files, records = make_journal(PAYLOADS, first=100)
    files["journal/000001.jsonl"] += b"\t\n"
    assert salvaged(put(tmp_path / "old", files), tmp_path / "new") == records
    assert_writable(tmp_path / "new", 112)


def test_values_are_kept_exactly(tmp_path: Path) -> None:
    """Large integers, floats, odd text, deep nesting, and what a repeated key said first."""
    deep: Any = []
    for _ in range(3000):
        deep = [deep]
    record = {"id": 1, "a": 10**1000, "b": [1.0, 1e-300, -0.0], "c": "\0\u2028\x7f\U0001f600", "deep": deep}
    twice = b'{"id":2,"x":1,"x":2} \r\n'
    old = put(tmp_path / "old", {"journal/000001.jsonl": encode(record) + b"\n" + twice + b"garbage\n"})
    assert salvage(old, tmp_path / "new") == 2
    written = (tmp_path / "new" / "journal" / "000001.jsonl").read_bytes()
    assert written == encode(record) + b'\n{"id":2,"x":1}\n'


def test_every_journal_of_the_reference(oracle_verdict: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    """The reference's own verdict says how many records are good, and which; damaged or healthy."""
    old = place(oracle_verdict, tmp_path / "old", shared / "oracle")
    expected = oracle_verdict["scan"]
    new = tmp_path / "new"
    if not oracle_verdict["session_dir_exists"]:
        pytest.skip("there is no directory to salvage")
    if expected["verdict"] == "raised":
        with pytest.raises(JournalUnreadable):
            salvage(old, new)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["old"]
        return
    records = salvaged(old, new)
    assert len(records) == expected["records_returned"]
    assert digest(records) == expected["records_sha256"]
    assert not oracle_verdict["chained"] or verify(new) is None
    assert_writable(new, (expected["last_id"] or 0) + 1)


# --- Beside the records -----------------------------------------------------------------------------------------------


def checkpoint(data: bytes, **changes: Any) -> Record:
    """A checkpoint record that points to a snapshot of these bytes."""
    digest = hashlib.sha256(data).hexdigest()
    reference = {"snapshot_ref": f"snapshots/{digest}.json", "snapshot_hash": digest}
    return {"kind": "checkpoint", "branch_id": "main", "tip_offset": 1, "reason": "manual", **reference, **changes}


def test_snapshots_come_along(tmp_path: Path) -> None:
    """Those that a surviving checkpoint points to, and are there; not others, and nothing from elsewhere."""
    kept, lost, gone = (encode({"applied": [], "model": name}) for name in ("kept", "lost", "gone"))
    outside = tmp_path / "outside.json"
    outside.write_bytes(b"{}")
    entries = [
        {"id": 1, "type": "turn_started"},
        {"id": 2, **checkpoint(kept)},
        {"id": 3, **checkpoint(kept)},
        {"id": 4, **checkpoint(gone)},
        {"id": 5, **checkpoint(b"", snapshot_ref=None, snapshot_hash=None)},
        {"id": 6, **checkpoint(b"", snapshot_ref="../outside.json")},
        {"id": 7, **checkpoint(b"", snapshot_ref=["snapshots"])},
        {"id": 8, "type": "note", "snapshot_ref": checkpoint(lost)["snapshot_ref"]},
    ]
    lines = b"".join(encode(entry) + b"\n" for entry in entries)
    late = encode({"id": 10, **checkpoint(lost)})
    files = {"journal/000001.jsonl": lines + b"garbage\n" + late + b"\n", "snapshots/stray.json": b"{}"}
    for data in (kept, lost):
        files[checkpoint(data)["snapshot_ref"]] = data
    new = tmp_path / "new"
    assert salvaged(put(tmp_path / "old", files), new) == entries
    assert {path.name: path.read_bytes() for path in (new / "snapshots").iterdir()} == {
        hashlib.sha256(kept).hexdigest() + ".json": kept
    }
    assert sorted(path.name for path in tmp_path.iterdir()) == ["new", "old", "outside.json"]


def test_meta_and_heads_options_come_along(tmp_path: Path) -> None:
    """What the session is called and how it was written stays; segments end at the old cap."""
    old = damaged(tmp_path)
    meta = {"created_at": "2026-01-01T00:00:00Z", "cwd": "/w", "schema_version": "1.1.0", "title": "t", "unknown": [1]}
    (old / "meta.json").write_bytes(encode(meta))
    (old / "HEAD").write_bytes(encode({"offset": 3, "schema_version": "1.1.0", "segment": 1, "segment_cap": 200}))
    new = tmp_path / "new"
    records = salvaged(old, new)
    assert (new / "meta.json").read_bytes() == encode(meta)
    sizes: list[int] = [0]
    for record in records:
        if sizes[-1] >= 200:
            sizes.append(0)
        sizes[-1] += len(encode(record)) + 1
    if sizes[-1] >= 200:
        sizes.append(0)
    assert len(sizes) > 2
    assert [path.stat().st_size for path in sorted((new / "journal").iterdir())] == sizes
    head = {"offset": 7, "schema_version": "1.1.0", "segment": len(sizes), "segment_cap": 200}
    assert decode((new / "HEAD").read_bytes()) == head


@pytest.mark.parametrize(
    "head", [b"garbage", b"[]", b'{"segment_cap":0}', b'{"segment_cap":"1"}', b'{"segment_cap":true}']
)
def test_a_head_that_says_nothing(tmp_path: Path, head: bytes) -> None:
    """The usual cap and schema version take its place."""
    old = damaged(tmp_path)
    (old / "HEAD").write_bytes(head)
    assert len(salvaged(old, tmp_path / "new")) == 7
    expected = {"offset": 7, "schema_version": "1.2.0", "segment": 1, "segment_cap": 8 * 2**20}
    assert decode((tmp_path / "new" / "HEAD").read_bytes()) == expected


def test_it_is_quiet(tmp_path: Path, heard: list[signals.Signal]) -> None:
    """The damage was told when it was found; salvaging is no new one. The old journal's lock does not matter."""
    old = damaged(tmp_path)
    (old / "writer.lock").write_text("1")
    assert len(salvaged(old, tmp_path / "new")) == 7
    assert heard == []
    assert not (tmp_path / "new" / "writer.lock").exists()


# --- Journals that are well, or hardly there --------------------------------------------------------------------------


@CHAINED
def test_a_healthy_journal_is_copied(tmp_path: Path, chained: bool) -> None:  # noqa: FBT001 - as above
    """Every record, segment for segment; what our writer wrote comes out as the very same bytes."""
    with open_journal("old", base_dir=tmp_path, chain=chained, segment_cap=700) as journal:
        for _ in range(20):
            journal.append(EVENT)
        records = journal.read()
    assert salvaged(tmp_path / "old", tmp_path / "new") == records
    old, new = ({name: entry[-1] for name, entry in named(tmp_path / which).items()} for which in ("old", "new"))
    assert old == new
    assert len(old) > 5


@pytest.mark.parametrize("files", [{}, {"journal/000001.jsonl": b""}, {"meta.json": b'{"chain":true}'}])
def test_an_empty_journal(tmp_path: Path, files: dict[str, bytes]) -> None:
    """No journal folder, an empty segment, a chain that has not begun: no records, and a journal to write to."""
    (tmp_path / "old").mkdir()
    assert salvaged(put(tmp_path / "old", files), tmp_path / "new") == []
    assert_writable(tmp_path / "new", 1)
    assert "meta.json" not in files or verify(tmp_path / "new") is None


@pytest.mark.parametrize("kind", ["missing", "file", "link to nothing"])
def test_nothing_to_salvage(tmp_path: Path, kind: str) -> None:
    """A session that is not there is an error, and nothing is made of it."""
    old = tmp_path / "old"
    if kind == "file":
        old.write_bytes(b"")
    elif kind == "link to nothing":
        old.symlink_to("nowhere")
    with pytest.raises(WriteFailed, match="old"):
        salvage(old, tmp_path / "new")
    assert not (tmp_path / "new").exists()
