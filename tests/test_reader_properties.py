"""Reading journals that something has been done to: cut, flipped, spliced, zeroed, reordered, with odd HEADs.

Whatever the bytes, reading tells the truth about them and leaves them alone; `tests.naive_reader` says what is true.
"""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raxol_otel import signals
from raxol_otel.errors import JournalDamaged, JournalUnreadable, NotChained
from raxol_otel.journal import iter_records, last_offset, resume_scan, scan, verify
from raxol_otel.journal.chain import GENESIS, seal
from raxol_otel.journal.codec import encode
from tests import naive_reader
from tests.conftest import BYTE_FATES, LINE_FATES, json_values, make_journal, mutate, on_disk, photograph, unprivileged
from tests.naive_reader import exactly

if TYPE_CHECKING:
    from pathlib import Path

    from raxol_otel.journal import Scan

    Record = dict[str, Any]

FIRST: Final = "journal/000001.jsonl"
CAUSES: Final = {
    *("unparsable", "nul_run", "spliced", "invalid_utf8", "not_object", "id_missing", "id_gap", "id_repeated"),
    *("chain_link", "chain_hash", "chain_bytes", "below_head", "head_hash"),
}
BOTH: Final = pytest.mark.parametrize("chained", [False, True], ids=["unchained", "chained"])


def check_damage(session: Path, found: Scan, reading: naive_reader.Reading) -> None:
    """The damage is where the naive reader sees it, and that is where a line begins."""
    damage = found.damage
    if reading.segment is None:
        assert damage is None
        return
    assert damage is not None
    assert damage.segment == session / reading.segment
    assert damage.byte == reading.byte
    before = damage.segment.read_bytes()[: damage.byte] if damage.byte else b""
    assert before[-1:] in {b"", b"\n"}
    assert damage.line == before.count(b"\n") + 1
    assert damage.cause in CAUSES
    assert damage.last_offset == (found.records[-1]["id"] if found.records else 0)


def check_the_other_reads(session: Path, found: Scan) -> None:
    """`iter_records`, `last_offset` and `verify` say what the scan says."""
    one_by_one: list[Record] = []
    damage = None
    try:
        one_by_one.extend(iter_records(session))  # keeps those before the error
    except JournalDamaged as error:
        damage = error.damage
    assert damage == found.damage
    assert exactly(one_by_one) == exactly(found.records)
    last = found.records[-1]["id"] if found.records else 0
    assert last_offset(session) == (last if found.ok else 0)
    if naive_reader.is_chained(session):
        assert verify(session) == (None if found.ok else last + 1)
    else:
        with pytest.raises(NotChained):
            verify(session)


def examine(session: Path) -> Scan:
    """Read a journal in every way: all agree, with the naive reader too, and nothing is touched."""
    before = photograph(session)
    found = scan(session)
    reading = naive_reader.read(session)
    assert found.ok == (reading.verdict == "ok")
    assert exactly(found.records) == exactly(reading.records)
    assert found.torn == reading.torn
    check_damage(session, found, reading)
    check_the_other_reads(session, found)
    assert photograph(session) == before
    return found


def check_prefix(found: Scan, records: list[Record], *, untouched: int, chained: bool) -> None:
    """What is returned are original records: all of them in a chained journal, else those before the change."""
    sure = len(found.records) if chained else untouched
    assert exactly(found.records[:sure]) == exactly(records[:sure])
    assert chained or len(found.records) >= untouched


@pytest.mark.parametrize("per_segment", [1, 9])
@pytest.mark.parametrize("head", [0, 1, 3])
@BOTH
def test_cut_at_every_byte(*, chained: bool, head: int, per_segment: int) -> None:
    """A journal cut anywhere keeps its whole lines; only an anchor makes the loss damage."""
    files, records = make_journal(["\u00e9", {"b": 1}, []], chained=chained, per_segment=per_segment)
    files["HEAD"] = encode({"offset": head, "tip_hash": records[head - 1].get("hash") if head else None})
    *whole, last = sorted(name for name in files if name.startswith("journal/"))
    data = files[last]
    with on_disk(files) as session:
        for at in range(len(data) + 1):
            (session / last).write_bytes(data[:at])
            found = examine(session)
            kept = data[:at].count(b"\n") + sum(files[name].count(b"\n") for name in whole)
            inside = at > 0 and data[at - 1 : at] != b"\n"
            assert exactly(found.records) == exactly(records[:kept])
            assert found.torn == (found.damage is None and inside)
            if chained and kept < head:
                assert found.damage is not None
                assert found.damage.cause == "below_head"
                assert found.damage.segment == session / (last if inside else "HEAD")
            else:
                assert found.damage is None
            again = resume_scan(session)
            assert (again.ok, again.torn, len(again.records)) == (found.ok, found.torn, len(found.records))
            line_end = data.rfind(b"\n", 0, at) + 1
            assert (session / last).read_bytes() == data[: line_end if found.torn else at]


@BOTH
def test_flip_every_byte(*, chained: bool) -> None:
    """Any byte changed to some others: a chained journal always notices, none ever returns what comes after."""
    files, records = make_journal(["a", 1], chained=chained)
    data = files[FIRST]
    with on_disk(files) as session:
        for at, byte in enumerate(data):
            for value in {byte ^ 1, byte ^ 0x20, byte ^ 0x80, 0, *b'\n\r "0'} - {byte}:
                (session / FIRST).write_bytes(data[:at] + bytes([value]) + data[at + 1 :])
                found = examine(session)
                check_prefix(found, records, untouched=data[:at].count(b"\n"), chained=chained)
                assert not (chained and found.ok)


FATE = st.tuples(st.sampled_from(LINE_FATES + BYTE_FATES), st.integers(0, 10**6), st.integers(0, 255))
ODD: Final[list[Any]] = [
    {"text": "h\u00e9llo \u2028 \U0001f600 e\u0301"},
    {"text": '\0\x1f\n\t"\\/\x7f', "\u00e9": 10**40, "n": -(2**63) - 1},
    {"a": [[], {}, [{"b": [{"c": None}]}]], "hash": "x", "id": 7, "ok": True},
    '}{"id":3,',
]
# Lines that lie across several reads of the file.
WIDE: Final[list[Any]] = ["x" * 5000, {"n": list(range(3000))}, "y" * 16384, [], "\u00e9" * 9000, 1, 2, 3]
LISTS = {flag: st.sampled_from([ODD, WIDE]) | st.lists(json_values(floats=flag), max_size=6) for flag in (False, True)}
CONTENTS = st.tuples(LISTS[True], st.just(value=False)) | st.tuples(LISTS[False], st.just(value=True))
SHAPES = st.tuples(
    st.sampled_from([1, 2, 99]), st.sampled_from([1, 1, 1, 5, 0, -3]), st.sampled_from([None, b"", b"\n\n"])
)


@given(CONTENTS, SHAPES, st.integers(0, 9), st.lists(FATE, max_size=2))
def test_any_damage_to_a_segment(
    made: tuple[list[Any], bool], shape: tuple[int, int, bytes | None], victim: int, fates: list[tuple[str, int, int]]
) -> None:
    """Whatever happens to a segment, or nothing: all readers agree, and only original records come back."""
    per_segment, first, empty_segment = shape
    files, records = make_journal(made[0], chained=made[1], per_segment=per_segment, first=first)
    segments = sorted(name for name in files if name.startswith("journal/"))
    files |= {
        f"journal/{odd}": b"?\n" for odd in ("0000001.jsonl", "00001.jsonl", "\u0660" * 6 + ".jsonl", "000001.jsonl~")
    }
    files |= {} if empty_segment is None else {"journal/999999.jsonl": empty_segment}
    name = segments[victim % len(segments)]
    before = b"".join(files[earlier] for earlier in segments[: segments.index(name)])
    original, same = files[name], len(files[name])
    for fate in fates:
        files[name], kept = mutate(files[name], *fate)
        same = min(same, kept)
    with on_disk(files) as session:
        found = examine(session)
    untouched = (before + original[:same]).count(b"\n")
    check_prefix(found, records, untouched=untouched, chained=made[1])
    if files[name] == original:
        bad_start = made[1] and first != 1 and bool(records)
        assert (found.ok, len(found.records)) == (not bad_start, 0 if bad_start else len(records))


@given(st.binary(max_size=60) | FATE)
def test_any_damage_to_head(fate: bytes | tuple[str, int, int]) -> None:
    """Whatever HEAD says: an unchained journal reads in full, a chained one returns original records only."""
    for chained in (False, True):
        files, records = make_journal(ODD, chained=chained)
        files["HEAD"] = fate if isinstance(fate, bytes) else mutate(files["HEAD"], *fate)[0]
        with on_disk(files) as session:
            found = examine(session)
        check_prefix(found, records, untouched=len(records), chained=chained)
        assert found.ok or chained


METAS = [b'{"chain":%b}' % chain for chain in (b"1", b'"true"', b"[true]", b"false", b"true", b'true,"chain":false')]


@given(st.sampled_from(METAS) | FATE)
def test_any_damage_to_meta(fate: bytes | tuple[str, int, int]) -> None:
    """Whatever meta.json says: the healthy records come back, and both readers agree whether HEAD anchors them."""
    files, records = make_journal(ODD, chained=True)
    files["meta.json"] = fate if isinstance(fate, bytes) else mutate(files["meta.json"], *fate)[0]
    with on_disk(files | {"HEAD": b'{"offset":99}'}) as session:
        assert exactly(examine(session).records) == exactly(records)


@BOTH
def test_long_lines_keep_their_place(*, chained: bool) -> None:
    """Lines as long as a read, one byte around it, and of megabytes: the damage after them is placed to the byte."""
    sizes = [*range(16_380 - 40, 16_390), 3 * 2**20, 5, 2**20]
    files, records = make_journal(["x" * size for size in sizes], chained=chained)
    good = len(files[FIRST])
    files[FIRST] += b"\n\n?\n"
    with on_disk(files) as session:
        found = scan(session)
    assert exactly(found.records) == exactly(records)
    assert found.damage is not None
    assert (found.damage.line, found.damage.byte) == (len(sizes) + 3, good + 2)


# What is put in place of the third of five lines, by the cause it gives: a text, one text in it for another, or what
# is made of all the lines.
Edit = bytes | tuple[bytes, bytes] | Callable[[list[bytes]], bytes]
EDITS: dict[str, list[Edit]] = {
    "unparsable": [
        *(b"  ", b"\r", b"?", b"{", b'{"id":3\n"payload":1}', b'{"id":3},{"id":4\n"payload":1}'),
        *(lambda x: x[2][:20], lambda x: x[2] + b"x", lambda x: x[2][1:]),
    ],
    "nul_run": [b"\0" * 64, lambda x: b"\0" * 300 + x[2], lambda x: x[2][:20] + b"\0" * 300 + x[3][20:]],
    "spliced": [
        *(b'{"id":3},{"id":4}', b'{"id":3}{"id":4}', lambda x: b'{"id":3,"payload":[' + b'{"a":1},' * 50 + x[3]),
        *(lambda x: x[2] + x[3], lambda x: x[2][:20] + x[3], lambda x: x[2][:1] + x[3]),
    ],
    "invalid_utf8": [
        (b"\xc3\xa9", bad) for bad in (b"\xe9", b"\xc3", b"\xed\xa0\x80", b"\xc0\xaf", b"\xf4\x90\x80\x80")
    ],
    "not_object": [b"3", b"null", b"true", b'"id"', b"[]", b'[{"id":3}]', b"3.5"],
    "id_missing": [b'{"id":%b}' % odd for odd in (b"3.0", b"3e0", b'"3"', b"null", b"true", b"[3]", b'{"id":3}')],
    "id_gap": [b'{"id":4}', b'{"id":99,"id":3}', b'{"id":1' + b"0" * 1023 + b"}", lambda x: x[3]],
    "id_repeated": [b'{"id":2}', lambda x: x[1], lambda x: x[0]],
    # of chained journals only
    "chain_link": [encode(seal({"id": 3, "payload": "third"}, GENESIS))],
    "chain_hash": [(b"third", b"thirD"), (b"\xc3\xa9", b"e\xcc\x81")],
    "chain_bytes": [
        *((b":", b": "), (b"/", b"\\/"), (b"\\u001F", b"\\u001f"), (b'"n":0', b'"n":-0'), (b'"n":0', b'"n":0,"n":0')),
        *(lambda x: b" " + x[2], lambda x: x[2] + b"\r", lambda x: x[2][:-1] + b',"id":3}'),
    ],
}
TABLE = [(cause, chained, edit) for cause, edits in EDITS.items() for edit in edits for chained in (False, True)]


@pytest.mark.parametrize(("cause", "chained", "edit"), [row for row in TABLE if row[1] or "chain" not in row[0]])
def test_causes(cause: str, chained: bool, edit: Edit, caplog: pytest.LogCaptureFixture) -> None:  # noqa: FBT001
    """Each kind of damage is called by its name, logged as one error and published as one signal."""
    contents = ["first", 2, {"n": 0, "text": "third \u00e9 a/b \x1f"}, {"four": 4}, 5]
    files, records = make_journal(contents, chained=chained)
    x = files[FIRST].split(b"\n")
    third = edit(x) if callable(edit) else edit if isinstance(edit, bytes) else x[2].replace(edit[0], edit[1], 1)
    assert third != x[2]
    files[FIRST] = b"\n".join([*x[:2], third, *x[3:]])
    heard: list[signals.Signal] = []
    with on_disk(files) as session:
        examine(session)
        caplog.clear()
        signals.attach("test_causes", heard.append)
        found = scan(session)
        signals.detach("test_causes")
    assert found.damage is not None
    assert (found.damage.cause, found.damage.line, found.damage.last_offset) == (cause, 3, 2)
    assert exactly(found.records) == exactly(records[:2])
    assert [record.levelno for record in caplog.records] == [logging.ERROR]
    assert [signal.name for signal in heard] == ["raxol.agent.journal.damaged"]
    keys = ("dir", "segment", "session_id", "cause", "last_offset")
    told = [heard[0].metadata[key] for key in keys]
    assert told == [str(session), str(session / FIRST), "session", cause, 2]


# Segments that make one journal of records 1, 2, ... without more in them; how many are read; torn, whole or damaged.
SEGMENTS: list[tuple[list[bytes], int, str]] = [
    *(([], 0, "whole"), ([b"", b"\n\n", b""], 0, "whole"), ([b"\n\n1\n", b"", b"\n\n2\n"], 2, "whole")),
    *(([b"1\n2", b"3\n"], 3, "whole"), ([b"1", b"2", b"", b"3"], 2, "torn"), ([b"1", b"", b"\n", b""], 0, "torn")),
    *(([b"1\n2", b"", b"\n\n"], 1, "torn"), ([b"1\n{", b"\n"], 1, "torn"), ([b"1\n", b"\n\n\n\0\0"], 1, "torn")),
    *(([b"1\n2", b" "], 2, "torn"), ([b"1\n2", b"\r"], 2, "torn"), ([b"1\n\xf0\x9f", b""], 1, "torn")),
    *(([b"1\n{", b" "], 1, "damaged"), ([b"1\n2", b" \n"], 2, "damaged"), ([b"1\n2", b"\r\n"], 2, "damaged")),
    *(([b"1\n3\n"], 1, "damaged"), ([b"1\n", b"\n2", b"2\n"], 2, "damaged"), ([b"1\n\0\n2\n"], 1, "damaged")),
]


@pytest.mark.parametrize(("segments", "count", "state"), SEGMENTS)
def test_segments(segments: list[bytes], count: int, state: str) -> None:
    """The torn tail is the last line of all that is not empty; an unterminated line before it is a line like others."""
    texts = [re.sub(rb"\d", rb'{"id":\g<0>}', text) for text in segments]
    with on_disk({f"journal/{number:06}.jsonl": text for number, text in enumerate(texts, 3)}) as session:
        found = examine(session)
    assert (len(found.records), found.ok, found.torn) == (count, state != "damaged", state == "torn")


# The canonical spellings; and others, which one library or another would write.
SPELLINGS = r"""
    0.5 100.0 1.0e3 1.0e16 -1.0e16 1.5e300 1.0e-5 0.0001 -0.0 5.0e-324 1234567.0 9.007199254740992e15 -7 0 "\u001F\b" "\\u001f"
    1e2 1e16 1e+16 1.0e+16 -1e16 1.5e+300 1e-5 0.00001 5e-324 1000.0 9007199254740992.0 1.50 -0 0e0 "\u001f" "\/" "\u0008"
""".strip().splitlines()  # noqa: E501


@pytest.mark.parametrize("right", [True, False], ids=["canonical", "another"])
def test_spellings_in_a_chain(*, right: bool) -> None:
    """A value in a chained journal verifies in its canonical spelling only, even where another was hashed."""
    for spelling in SPELLINGS[0 if right else 1].split():
        for payload in (spelling, f"[{spelling},-1]", f'{{"n":{spelling}}}', f'[{{"n":{spelling}}},"e+1"]'):
            rest = f'"id":1,"payload":{payload},"prev_hash":"{GENESIS}"}}'
            line = f'{{"hash":"{hashlib.sha256(b"{" + rest.encode()).hexdigest()}",{rest}\n'
            with on_disk({FIRST: line.encode(), "meta.json": b'{"chain":true}'}) as session:
                found = examine(session)
            assert found.ok == right, line
            assert found.damage is None or found.damage.cause in {"chain_bytes", "chain_hash"}


ZEROS = b'"tip_hash":"%b"' % (b"0" * 64)
# HEAD of a journal of three records; what is damaged if it is chained, and how many records it leaves.
NO_ANCHOR = [
    *(b"", b" ", b"[]", b"3", b"null", b"{}", b"\0" * 80, b'{"offset":99', b'{"offset":99}x', b'{"offset":99,"a":NaN}'),
    *(b'{"offset":%b}' % odd for odd in (b'"99"', b"99.0", b"9e1", b"null", b"true", b"[99]", b"1" + b"0" * 1024)),
    *(b'{"offset":3,"offset":99}', b'\xef\xbb\xbf{"offset":99}', b'{"offset":99,"a":"\xff"}', b'{"Offset":99}'),
    *(b'{"offset":%b,' % low + ZEROS + b"}" for low in (b"0", b"-0", b"-7", b"3.0", b"true")),
    *(b'{"offset":3}', b'{"offset":1,"tip_hash":null}', b'{"offset":2,"tip_hash":7}', b'{"offset":3,"tip_hash":["x"]}'),
]
AHEAD = [
    *(b'{"offset":4}', b' {\t"offset" : 99 }\r\n', b'{"offset":99,"offset":3}', b'{"offset":1%b}' % (b"0" * 1023)),
    b'{"a":' + b"[" * 5000 + b"]" * 5000 + b',"offset":4}',
]
HEADS: list[tuple[bytes, str | None, int]] = [
    *[(text, None, 3) for text in NO_ANCHOR],
    *((text, "below_head", 3) for text in AHEAD),
    *((b'{"offset":%d,' % offset + ZEROS + b"}", "head_hash", offset - 1) for offset in (1, 2, 3)),
]


@pytest.mark.parametrize(("head", "cause", "kept"), HEADS)
def test_odd_heads(head: bytes, cause: str | None, kept: int) -> None:
    """HEAD anchors a chained journal when it is an object with an integer offset; it never hurts an unchained one."""
    for chained in (False, True):
        files, records = make_journal([1, 2, 3], chained=chained)
        with on_disk(files | {"HEAD": head}) as session:
            found = examine(session)
        expected = (cause, kept) if chained else (None, 3)
        assert (found.damage.cause if found.damage else None, len(found.records)) == expected
        assert exactly(found.records) == exactly(records[: expected[1]])
        assert found.damage is None or found.damage.segment == session / "HEAD"


def read_all(session: Path) -> list[object]:
    """What each way of reading says, in short; for one that refuses, the path it names."""
    reads: list[Callable[[Path], object]] = [
        *(lambda path: len(scan(path).records), lambda path: len(resume_scan(path).records)),
        *(lambda path: len(list(iter_records(path))), last_offset, verify),
    ]
    said: list[object] = []
    for read in reads:
        try:
            said.append(read(session))
        except JournalUnreadable as error:
            said.append(error.path.relative_to(session).as_posix())
    return said


def test_read_only_media() -> None:
    """Where nothing may be written every read works, and a torn tail is declined quietly."""
    files, _ = make_journal([1, 2, 3], chained=True)
    files[FIRST] += b'{"id":'
    with on_disk(files) as session:
        for path in (*session.rglob("*"), session):
            path.chmod(0o555 if path.is_dir() else 0o444)
        before = photograph(session)
        with unprivileged(session):
            said = read_all(session)
            torn = resume_scan(session).torn
        assert photograph(session) == before
        for path in (session, session / "journal"):
            path.chmod(0o755)  # so that it can be removed
    assert (said, torn) == ([3, 3, 3, 3, None], True)


@pytest.mark.parametrize("in_the_way", [False, True], ids=["forbidden", "in_the_way"])
@pytest.mark.parametrize("name", ["journal", FIRST, "meta.json", "HEAD"])
def test_what_cannot_be_read(name: str, *, in_the_way: bool) -> None:
    """What is there and cannot be read is told with its path, never taken for absent; only a HEAD does not anchor."""
    files, _ = make_journal([1, 2, 3], chained=True)
    with on_disk(files | {"HEAD": b'{"offset":99}'}) as session:
        path = session / name
        if in_the_way:
            path.rename(session / "away")
            path.touch() if name == "journal" else path.mkdir()
        else:
            path.chmod(0)
        with unprivileged(session):
            said = read_all(session)
        path.chmod(0o755)  # so that it can be removed
    assert said == ([3, 3, 3, 3, None] if name == "HEAD" else [name] * 5)
