"""What a mutation run found that no test said: each test here notices a change of one line that none did before."""

from __future__ import annotations

import fcntl
import os
import tracemalloc
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from raxol_otel.errors import FloatRefused, JournalUnreadable, NotChained, WriteFailed
from raxol_otel.journal import resume_scan, scan, verify
from raxol_otel.journal.blocks import blocks, has_content
from raxol_otel.journal.chain import GENESIS, record_hash, seal
from raxol_otel.journal.codec import DecodeError, decode, decode_lines
from raxol_otel.journal.damage import CAUSES, Damage
from raxol_otel.journal.health import inspect
from raxol_otel.journal.reader import Walk, cut_torn_tail, read_batches
from tests.conftest import make_journal, on_disk, unprivileged

if TYPE_CHECKING:
    from collections.abc import Generator

FIRST = "journal/000001.jsonl"
SECOND = "journal/000002.jsonl"
WHOLE = b'{"id":1}\n{"id":2}\n'


def read(session: Path) -> Walk:
    """A reading of the whole journal, finished."""
    walk = Walk(session)
    for _ in read_batches(walk):
        pass
    return walk


@contextmanager
def sealed_file(data: bytes, seals: int) -> Generator[Path]:
    """A file in memory that the kernel lets nobody change, in the ways that are sealed, not even its owner."""
    descriptor = os.memfd_create("segment", os.MFD_ALLOW_SEALING)
    try:
        os.write(descriptor, data)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


# --- The repair of a torn tail ----------------------------------------------------------------------------------------


def test_a_segment_that_is_gone_before_the_cut_is_told() -> None:
    """What cannot be opened for the cut raises, names the segment and the reason by its name."""
    with on_disk({FIRST: WHOLE + b'{"id":'}) as session:
        walk = read(session)
        (session / FIRST).unlink()
        with pytest.raises(WriteFailed, match=r"cannot open .*000001.jsonl to cut the torn tail: No such") as caught:
            cut_torn_tail(walk)
        assert caught.value.reason == "enoent"


def test_a_cut_that_the_kernel_refuses_is_told() -> None:
    """The cut itself fails: the error names the segment, the way and the reason."""
    with sealed_file(WHOLE + b'{"id":', fcntl.F_SEAL_SHRINK) as file, on_disk({}) as session:
        (session / FIRST).symlink_to(file)
        with pytest.raises(WriteFailed, match=r"cannot cut the torn tail of .*000001.jsonl: Operation not") as caught:
            resume_scan(session)
        assert caught.value.reason == "eperm"
        assert file.read_bytes() == WHOLE + b'{"id":'


def test_a_newline_that_the_kernel_refuses_is_told_before_the_cut() -> None:
    """The record before the torn line keeps its newline's place; the torn line stays until that is done."""
    with sealed_file(WHOLE[:-1], fcntl.F_SEAL_GROW) as file, on_disk({SECOND: b'{"id":3'}) as session:
        (session / FIRST).symlink_to(file)
        with pytest.raises(WriteFailed, match=r"cannot terminate the last record of .*000001.jsonl") as caught:
            resume_scan(session)
        assert caught.value.reason == "eperm"
        assert (session / SECOND).read_bytes() == b'{"id":3'


def test_a_segment_that_has_grown_since_is_not_cut() -> None:
    """The repair is declined where the file is no longer as it was read, and says so; nothing is lost."""
    with on_disk({FIRST: WHOLE + b'{"id":'}) as session:
        walk = read(session)
        (session / FIRST).write_bytes(WHOLE + b'{"id":3}\n')
        assert cut_torn_tail(walk) is False
        assert (session / FIRST).read_bytes() == WHOLE + b'{"id":3}\n'


def test_a_record_that_cannot_be_terminated_spares_the_torn_line() -> None:
    """Declined at the first of two steps, the second is not taken."""
    with on_disk({FIRST: WHOLE[:-1], SECOND: b'{"id":3'}) as session:
        walk = read(session)
        (session / FIRST).write_bytes(WHOLE)
        assert cut_torn_tail(walk) is False
        assert (session / SECOND).read_bytes() == b'{"id":3'


def test_a_segment_that_may_not_be_written_is_not_cut() -> None:
    """Declined on read-only media too, and the caller is told that nothing was cut."""
    with on_disk({FIRST: WHOLE + b'{"id":'}) as session:
        walk = read(session)
        (session / FIRST).chmod(0o444)
        with unprivileged(session):
            assert cut_torn_tail(walk) is False


def test_a_cut_is_synced_and_its_file_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sync comes after the cut, of the file that was cut, and no descriptor stays open."""
    synced: list[int] = []
    sync = os.fdatasync

    def watch(descriptor: int) -> None:
        synced.append(os.fstat(descriptor).st_size)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", watch)
    with on_disk({FIRST: WHOLE + b'{"id":'}) as session:
        before = len(os.listdir("/proc/self/fd"))
        resume_scan(session)
        assert len(os.listdir("/proc/self/fd")) == before
    assert synced == [len(WHOLE)]


# --- Reading ----------------------------------------------------------------------------------------------------------


def test_verifying_an_unchained_journal_names_it() -> None:
    """The refusal says which journal, and what makes one chained."""
    files, _ = make_journal([1])
    with (
        on_disk(files) as session,
        pytest.raises(NotChained, match=r"/session is not chained.*meta\.json.*chain: true"),
    ):
        verify(session)


def test_a_reading_knows_how_much_it_read() -> None:
    """All bytes of all segments, blank lines included."""
    files, _ = make_journal(["x" * 9000] * 7, per_segment=3)
    files[FIRST] = b"\n\n" + files[FIRST]
    with on_disk(files) as session:
        assert read(session).bytes_read == sum(path.stat().st_size for path in (session / "journal").iterdir())


@pytest.mark.parametrize(
    ("first", "second", "warned"),
    [
        ('"hash":"a","prev_hash":"b"', "", True),
        ("", '"hash":"a","prev_hash":"b"', False),
        ('"hash":"a"', "", False),
        ('"prev_hash":"b"', "", False),
    ],
)
def test_hashes_that_nobody_checks_are_told(first: str, second: str, *, warned: bool) -> None:
    """A journal whose first record carries both hashes, and that has no meta.json, gets a warning; no other does."""
    lines = [
        f'{{{more}{"," if more else ""}"id":{number}}}\n'.encode() for number, more in enumerate((first, second), 1)
    ]
    with on_disk({FIRST: lines[0], SECOND: lines[1], "HEAD": b'{"offset":2}'}) as session:
        health = inspect(session)
    assert (health.state, health.warning is not None) == ("healthy", warned)


def test_a_line_without_newline_before_any_content_is_damage() -> None:
    """What follows an unterminated line may be any bytes but newlines: then the line is not the torn tail."""
    for later in (b"X", b"X\n", b" \n"):
        with on_disk({FIRST: b'{"id":1}\n{"id":2', SECOND: later}) as session:
            found = scan(session)
            assert found.damage is not None
            assert (found.damage.place, found.damage.line, found.torn) == (FIRST, 2, False)


def test_a_later_segment_that_cannot_be_read_is_named() -> None:
    """It is looked into to tell whether an unterminated line is the tail."""
    with on_disk({FIRST: b'{"id":1}\n{"id":2'}) as session:
        (session / SECOND).mkdir()
        with pytest.raises(JournalUnreadable, match="Is a directory") as caught:
            scan(session)
        assert caught.value.path == session / SECOND


@pytest.mark.parametrize(("order", "cause"), [("hash", "chain_hash"), ("bytes", "chain_bytes")])
def test_a_chained_line_has_its_keys_in_order(order: str, cause: str) -> None:
    """A line in another order is a break, whether its hash is over what stands there or over the canonical text."""
    zeros = "0" * 64
    sorted_text, text = f'{{"id":1,"prev_hash":"{zeros}"}}', f'{{"prev_hash":"{zeros}","id":1}}'
    digest = sha256((text if order == "hash" else sorted_text).encode()).hexdigest()
    line = f'{{"hash":"{digest}",{text[1:]}\n'
    with on_disk({FIRST: line.encode(), "meta.json": b'{"chain":true}'}) as session:
        found = scan(session)
    assert (found.records, found.damage and found.damage.cause) == ([], cause)


GOOD = b'{"id":1}\n'
SAID = [
    (b"{", "unparsable (Expecting property name enclosed in double quotes at character 1)"),
    (b'{"id":2}}', "unparsable (Extra data at character 8)"),
    (b'{"id":"', "unparsable (Unterminated string at character 6)"),
    (b'{"a":"\xff"}', "invalid_utf8 (invalid UTF-8 at byte 6)"),
    (b'{"a":"\\ud800"}', "unparsable (lone surrogate escape at character 6)"),
    (b'{"a":NaN}', "unparsable (NaN is not JSON)"),
    (b'{"a":1e999}', "unparsable (a number too large for a float)"),
    (b'{"a":' + b"1" * 1025 + b"}", "unparsable (an integer of 1025 bytes; at most 1024 are read)"),
    (b"[" * 401, "unparsable (the text ends too early)"),
    (b"\0" * 3, "nul_run (Expecting value at character 0)"),
    (b'{"a":"\0\0\0\0"}', "nul_run (Invalid control character at character 6)"),
    (b'{"id":2}{"id":3}', "spliced (Extra data at character 8)"),
    (b' {"id":2}{"id":3}', "spliced (Extra data at character 9)"),
    (b'{"a":{"b":1}', "unparsable (Expecting ',' delimiter at character 12)"),
    (b"X", "unparsable (Expecting value at character 0)"),
    (b"null", "not_object (the line is null)"),
    (b"true", "not_object (the line is a boolean)"),
    (b"7", "not_object (the line is an integer)"),
    (b"7.5", "not_object (the line is a float)"),
    (b'"x"', "not_object (the line is a text)"),
    (b"[]", "not_object (the line is an array)"),
    (b"{}", "id_missing (there is no id)"),
    (b'{"id":{}}', "id_missing (the id is an object)"),
    (b'{"id":"2"}', "id_missing (the id is a text)"),
    (b'{"id":null}', "id_missing (the id is null)"),
    (b'{"id":2.0}', "id_missing (the id is a float)"),
    (b'{"id":true}', "id_missing (the id is a boolean)"),
    (b'{"id":1}', "id_repeated (expected offset 2, found 1)"),
    (b'{"id":0}', "id_repeated (expected offset 2, found 0)"),
    (b'{"id":3}', "id_gap (expected offset 2, found 3)"),
    (b'{"id":999999999999999999}', "id_gap (expected offset 2, found 999999999999999999)"),
    (b'{"id":1000000000000000000}', "id_gap (offsets out of order)"),
    (b'{"id":-1000000000000000000}', "id_repeated (offsets out of order)"),
]


@pytest.mark.parametrize(("line", "said"), SAID, ids=range(len(SAID)))
def test_what_damage_says(line: bytes, said: str) -> None:
    """The place, the cause, why, and the last good offset, in one line; and never the content."""
    with on_disk({FIRST: GOOD + b"\n" + line + b"\n" + GOOD}) as session:
        found = scan(session)
    assert str(found.damage) == f"damaged at {FIRST} line 3, byte 10: {said}; last good offset 1"
    assert said.split(" ", maxsplit=1)[0] in CAUSES


def test_damage_without_details_says_no_more() -> None:
    """Nothing stands in brackets then."""
    damage = Damage("nul_run", Path("s", "journal", "000007.jsonl"), 3, 90, 41)
    assert str(damage) == "damaged at journal/000007.jsonl line 3, byte 90: nul_run; last good offset 41"


@pytest.mark.parametrize(
    ("line", "cause"),
    [
        (b'{"' * 2000 + b'{"id":1}', "spliced"),
        (b'{"' * 5000 + b'{"id":1}', "unparsable"),
        (b'{"' * 5000 + b'}{"', "spliced"),
    ],
    ids=["soon found", "too deep in garbage", "glued"],
)
def test_a_record_within_garbage_is_looked_for_a_while(line: bytes, cause: str) -> None:
    """Each place where one could begin costs the rest of the line; after 8 MiB only the seam of two is looked for."""
    with on_disk({FIRST: line + b"\n"}) as session:
        damage = scan(session).damage
    assert damage is not None
    assert damage.cause == cause


def test_what_damage_by_head_says() -> None:
    """Another hash than HEAD's, and fewer records than HEAD's offset, are told of HEAD itself."""
    files, _ = make_journal([1, 2, 3], chained=True)
    for head, said in (
        (b'{"offset":2,"tip_hash":"x"}', "head_hash (HEAD names another hash for offset 2); last good offset 1"),
        (b'{"offset":4}', "below_head (HEAD names offset 4, the last record is 3); last good offset 3"),
    ):
        with on_disk(files | {"HEAD": head}) as session:
            assert str(scan(session).damage) == f"damaged at HEAD line 1, byte 0: {said}"


def test_what_a_torn_record_below_head_says() -> None:
    """It is told of the segment, with the line's place: HEAD has promised the record."""
    files, _ = make_journal([1, 2, 3], chained=True)
    end = files[FIRST].rindex(b"\n", 0, -1) + 1
    with on_disk(files | {FIRST: files[FIRST][:-1], "HEAD": b'{"offset":3}'}) as session:
        found = scan(session)
    said = "below_head (the unterminated record 3 is at or below HEAD's offset 3)"
    assert str(found.damage) == f"damaged at {FIRST} line 3, byte {end}: {said}; last good offset 2"


def test_what_a_broken_chain_says() -> None:
    """The cause, and the offset that does not link."""
    files, records = make_journal([1, 2, 3], chained=True)
    broken = files[FIRST].replace(records[1]["hash"].encode(), b"0" * 64)
    with on_disk(files | {FIRST: broken}) as session:
        found = scan(session)
    assert ": chain_hash (offset 2 does not link); last good offset 1" in str(found.damage)


# --- Blocks -----------------------------------------------------------------------------------------------------------


def test_a_large_segment_is_read_in_little_memory(tmp_path: Path) -> None:
    """Neither its lines nor its blank lines are ever in memory together."""
    (tmp_path / "lines").write_bytes(b'{"id":1}\n' * 2**16)
    (tmp_path / "blank").write_bytes(b"\n" * 2**20)
    tracemalloc.start()
    try:
        assert sum(block.size for block in blocks(tmp_path / "lines")) == 9 * 2**16
        assert not has_content(tmp_path / "blank")
        assert tracemalloc.get_traced_memory()[1] < 2**18
    finally:
        tracemalloc.stop()


def test_damage_far_into_a_segment_keeps_its_place() -> None:
    """The line and the byte count over many blocks, each with lines of other lengths."""
    lines = [b'{"id":%d,"text":"%b"}\n' % (number, b"x" * (number % 97)) for number in range(1, 3001)]
    with on_disk({FIRST: b"".join(lines) + b"\n{}\n"}) as session:
        damage = scan(session).damage
    assert damage is not None
    assert (damage.line, damage.byte, damage.last_offset) == (3002, sum(map(len, lines)) + 1, 3000)


def test_a_block_has_no_place_for_a_line_that_it_lacks(tmp_path: Path) -> None:
    """Blank lines are no lines to ask for; beyond the last there is an error, with what was left to count."""
    path = tmp_path / "segment"
    path.write_bytes(b'\n{"id":1}\n\n\n{"id":2}\n')
    (block,) = blocks(path)
    assert [block.place(index) for index in range(2)] == [(2, 1), (5, 12)]
    with pytest.raises(IndexError, match=r"^1$"):
        block.place(3)


# --- The chain --------------------------------------------------------------------------------------------------------


def test_a_float_is_not_sealed() -> None:
    """Refused with its path, since a chain holds no floats; hashing what somebody else has sealed takes them."""
    with pytest.raises(FloatRefused) as caught:
        seal({"id": 1, "payload": {"cost": 1.5}}, GENESIS)
    assert caught.value.path == "payload.cost"
    assert record_hash({"cost": 1.5, "hash": "x"}) == sha256(b'{"cost":1.5}').hexdigest()


# --- The codec --------------------------------------------------------------------------------------------------------


def test_lines_that_only_parse_together_are_no_records() -> None:
    """Two values on one line are refused, whatever the lines around them would make of it."""
    values, proven, error = decode_lines([b'{"id":1}\n', b'{"id":2},{"id":3}\n', b'{"id":4}\n'])
    assert (values, proven, str(error)) == ([{"id": 1}], [True], "Extra data at character 8")
    values, proven, error = decode_lines([b'{"a":[1\n', b"2]}\n", b"{},{}\n"])
    assert (values, proven, str(error)) == ([], [], "Expecting ',' delimiter at character 7")


def test_a_float_of_another_spelling_keeps_its_line_proven() -> None:
    """What differs is the spelling of floats and the case of escapes only: the line needs no second writing."""
    lines = [b'{"a":1.0e-7,"b":[-2.50]}\n', b'{"a":"\\u001F"}\n', b'{"b":1,"a":2}\n', b'{"a": 1}\n']
    values = [{"a": 1e-7, "b": [-2.5]}, {"a": "\x1f"}, {"b": 1, "a": 2}, {"a": 1}]
    assert decode_lines(lines) == (values, [True, True, True, False], None)
    assert decode_lines(lines, sort_keys=True) == (values, [True, True, False, False], None)


@pytest.mark.parametrize("size", [0, 2000])
def test_the_first_of_repeated_keys_counts(size: int) -> None:
    """In a short text and in a long one, which another scanner reads."""
    assert decode(b'{"a":1,"pad":"%b","a":2,"b":{"c":1,"c":2}}' % (b"x" * size))["a"] == 1
    assert decode(b'{"pad":"%b","b":{"c":1,"c":2}}' % (b"x" * size))["b"] == {"c": 1}


@pytest.mark.parametrize(
    "inside", [b"X", b"X}", b"[}", b"{]", b'{"a"]', b'{"a":1,]', b"[1,", b"[1}", b'{"a":1]', b"[1]x"]
)
def test_deep_garbage_is_refused(inside: bytes) -> None:
    """What opens, closes and separates is looked at in deep texts too."""
    with pytest.raises(DecodeError):
        decode(b"[" * 401 + inside + b"]" * 401)
