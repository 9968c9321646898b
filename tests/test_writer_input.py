"""What the writer is given that cannot be written: refused with its place, nothing of it stays, and it goes on."""

from __future__ import annotations

import json
import math
from collections import ChainMap, OrderedDict
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.contract import Event
from raxol_otel.errors import (
    CheckRefused,
    EncodeError,
    FloatRefused,
    InvalidSessionId,
    JournalUnreadable,
    NotChained,
    Unencodable,
    WriteFailed,
)
from raxol_otel.journal import open_journal, scan
from tests.conftest import photograph
from tests.writer_files import Bench, event, segment_sizes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raxol_otel.journal.records import Records

DEPTH: Final = 5_000
CYCLE: Final[list[Any]] = []
CYCLE.append(CYCLE)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    """A journal."""
    with Bench(tmp_path) as bench:
        yield bench


# --- Where it is to stand ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "session_id",
    [
        *("", ".", "..", "/", "a/b", "../x", "../../etc", "/etc/x", "a/../b", "./a", "a/", "~/x", "a\\b"),
        *("a b", " a", "a\n", "a\0b", "\0", "\u00e9", "\uff0e\uff0e", "a\u2044b", "a:b", "$HOME", "a%2fb", "\u0661"),
    ],
)
def test_a_session_id_that_escapes_is_refused(tmp_path: Path, session_id: str) -> None:
    """Nothing is made, neither there nor elsewhere."""
    base = tmp_path / "base"
    with pytest.raises(InvalidSessionId):
        open_journal(session_id, base_dir=base)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("session_id", ["a", "...", "-", "_", "A.b_c-1", ".a", "a..b", "0", "-rf", "x" * 255])
def test_other_ids_are_names(tmp_path: Path, session_id: str) -> None:
    """Letters, digits, dot, dash and underscore."""
    with open_journal(session_id, base_dir=tmp_path) as journal:
        assert (journal.session_id, journal.path) == (session_id, tmp_path / session_id)
        assert journal.append(event(1)) == 1


@pytest.mark.parametrize("place", ["base", "base/deeper", "base/deeper/still"])
def test_a_base_directory_that_is_a_file(tmp_path: Path, place: str) -> None:
    """Or lies below one: `WriteFailed`, naming it, and the file stays."""
    (tmp_path / "base").write_bytes(b"a file")
    with pytest.raises(WriteFailed, match="base") as failed:
        open_journal("s", base_dir=tmp_path / place)
    assert failed.value.reason in {"enotdir", "other"}
    assert (tmp_path / "base").read_bytes() == b"a file"


@pytest.mark.parametrize("name", ["s", "s/journal", "s/snapshots"])
def test_a_file_in_the_place_of_a_directory(tmp_path: Path, name: str) -> None:
    """The session's, `journal/` or `snapshots/`: not opened, the file stays, and the lock is given back."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"a file")
    expected = JournalUnreadable if name == "s/journal" else WriteFailed
    with pytest.raises(expected, match=name.rpartition("/")[2]):
        open_journal("s", base_dir=tmp_path)
    assert path.read_bytes() == b"a file"
    assert not (tmp_path / "s" / "writer.lock").exists()


def test_where_journals_live_without_a_base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`$RAXOL_SESSIONS_DIR`, else below the home directory; what is missing on the way is made."""
    monkeypatch.setenv("RAXOL_SESSIONS_DIR", str(tmp_path / "a" / "b"))
    with open_journal("s") as journal:
        assert journal.path == tmp_path / "a" / "b" / "s"
    monkeypatch.delenv("RAXOL_SESSIONS_DIR")
    monkeypatch.setenv("HOME", str(tmp_path))
    with open_journal("s") as journal:
        assert journal.path == tmp_path / ".raxol" / "sessions" / "s"


@pytest.mark.parametrize("options", [{"segment_cap": 0}, {"segment_cap": -1}, {"sync_ceiling_ms": -1}])
def test_options_out_of_range(tmp_path: Path, options: dict[str, Any]) -> None:
    """`ValueError`, and nothing is made."""
    with pytest.raises(ValueError, match="at least"):
        open_journal("s", base_dir=tmp_path, **options)
    assert list(tmp_path.iterdir()) == []


# --- A chain on what has none -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("missing", [None, "meta.json", "HEAD", "records"])
def test_a_chain_does_not_begin_in_an_unchained_journal(bench: Bench, missing: str | None) -> None:
    """Whether meta.json or any record says that there is none: refused, and every byte stays."""
    journal = bench.open()
    if missing != "records":
        bench.append(1)
    journal.close()
    if missing not in {None, "records"}:
        (bench.session / str(missing)).unlink()
    before = photograph(bench.session)
    with pytest.raises(NotChained):
        bench.open(chain=True)
    after = photograph(bench.session)
    assert {name: data for name, (_, data) in after.items()} == {name: data for name, (_, data) in before.items()}
    bench.open()
    bench.append(2)
    assert scan(bench.session).ok


def test_a_chain_is_one_for_life(bench: Bench) -> None:
    """Opened without `chain`, or with it again, the records link on."""
    bench.open(chain=True)
    bench.append(1)
    bench.finish()
    for number, options in ((2, {}), (3, {"chain": False}), (4, {"chain": True})):
        bench.open(**options)
        bench.append(number)
        bench.finish()


def test_a_chain_may_begin_in_a_directory_without_a_journal(tmp_path: Path) -> None:
    """Only an empty segment is there, and no meta.json: nothing says that there is no chain."""
    (tmp_path / "s" / "journal").mkdir(parents=True)
    (tmp_path / "s" / "journal" / "000001.jsonl").touch()
    with open_journal("s", base_dir=tmp_path, chain=True) as journal:
        journal.append(event(1))
        assert journal.verify() is None


# --- Events -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [None, 1, 0.5, "text", b"bytes", [], [("type", "x")], {"set"}, object(), True])
@pytest.mark.parametrize("chain", [False, True])
def test_an_event_that_is_no_mapping(bench: Bench, bad: Any, *, chain: bool) -> None:
    """Refused; nothing is written, and the next one takes the id."""
    journal = bench.open(chain=chain)
    with pytest.raises(Unencodable, match="mapping"):
        journal.append(bad)
    assert segment_sizes(bench.session) == [0]
    with pytest.raises(Unencodable, match=r"\[1\].*mapping"):
        journal.append_many([event(1), bad])
    assert bench.append(2) == [1]
    bench.finish()


@pytest.mark.parametrize("kind", [dict, OrderedDict, MappingProxyType, ChainMap])
def test_any_mapping_is_an_event(bench: Bench, kind: Any) -> None:
    """And the caller's own is not changed."""
    journal = bench.open(chain=True)
    given = kind({"type": "note", "payload": kind({"number": 1, "list": (1, 2)})})
    assert journal.append(given) == 1
    assert sorted(given) == ["payload", "type"]
    assert journal.read()[0]["payload"] == {"number": 1, "list": [1, 2]}


def test_an_event_of_the_contract(bench: Bench) -> None:
    """As its dictionary."""
    journal = bench.open()
    given = Event(type="turn_started", payload={"prompt": "hi"})
    journal.append(given)
    assert journal.read() == [{**given.to_dict(), "id": 1, "schema_version": "1.2.0"}]


def test_the_callers_id_and_hashes_are_overwritten_and_its_version_kept(bench: Bench) -> None:
    """What the writer stamps is the writer's."""
    journal = bench.open(chain=True)
    journal.append({"id": 99, "hash": "x", "prev_hash": "y", "schema_version": "0.9.0"})
    record = journal.read()[0]
    assert (record["id"], record["prev_hash"], record["schema_version"]) == (1, "0" * 64, "0.9.0")
    assert journal.verify() is None


BAD_VALUES: Final[dict[str, tuple[Any, str]]] = {
    "NaN": ({"a": [1, math.nan]}, "payload.a[1]"),
    "Infinity": ({"a": {"b": -math.inf}}, "payload.a.b"),
    "bytes": ({"a": b"x"}, "payload.a"),
    "a set": ({"a": [{1}]}, "payload.a[0]"),
    "an object": ({"a": object()}, "payload.a"),
    "a complex number": ({"a": 1j}, "payload.a"),
    "a lone surrogate": ({"a": ["x", {"b": "\ud800"}]}, "payload.a[1].b"),
    "reversed surrogates": ({"a": "\udc00\ud800"}, "payload.a"),
    "an integer of 1025 digits": ({"a": 10**1024}, "payload.a"),
    "a negative integer of 1024 digits": ({"a": -(10**1023)}, "payload.a"),
    "an integer of a million bits": ({"a": 1 << 10**6}, "payload.a"),
    "a cycle": ({"a": CYCLE}, "payload.a"),
}


@pytest.mark.parametrize("what", BAD_VALUES)
@pytest.mark.parametrize("chain", [False, True])
def test_a_value_that_json_cannot_carry(bench: Bench, what: str, *, chain: bool) -> None:
    """The path is in the error and in its text; nothing is written, nothing is published, the writer lives on."""
    value, path = BAD_VALUES[what]
    journal = bench.open(chain=chain)
    bench.append(1)
    before = segment_sizes(bench.session)
    with pytest.raises(EncodeError) as refused:
        journal.append(event(2, payload=value))
    assert refused.value.path.startswith(path)
    assert refused.value.path in str(refused.value)
    with pytest.raises(EncodeError) as refused:
        journal.append_many([event(2), event(3), event(4, payload=value)])
    assert refused.value.path.startswith(f"[2].{path}")
    assert segment_sizes(bench.session) == before
    assert (bench.told(), journal.last_offset) == ([], 1)
    assert bench.append(5) == [2]
    bench.finish()


@pytest.mark.parametrize("key", [1, 1.5, None, True, b"x", ("a",), "\ud800"])
@pytest.mark.parametrize("depth", [0, 1, 300])
def test_a_key_that_is_no_text(bench: Bench, key: Any, depth: int) -> None:
    """It would come back as another key, or not at all: refused, at any depth."""
    journal = bench.open()
    value: Any = {key: 1, "b": 2}
    for _ in range(depth):
        value = {"a": value}
    with pytest.raises(Unencodable) as refused:
        journal.append(value)
    assert refused.value.path.startswith(".".join(["a"] * depth))
    assert bench.append(1) == [1]
    bench.finish()


def test_large_objects_are_sorted(bench: Bench) -> None:
    """By the bytes of their keys, however many; so the same record has the same bytes."""
    journal = bench.open()
    keys = [f"k{n:02}" for n in range(100)] + ["Z", "\u00e9", "\U0001f600", "\uffff"]
    journal.append({"payload": dict.fromkeys(reversed(keys), 0)})
    found = list(json.loads((bench.session / "journal" / "000001.jsonl").read_bytes())["payload"])
    assert found == sorted(keys, key=str.encode)
    assert found[-2:] == ["\uffff", "\U0001f600"]


@pytest.mark.parametrize("number", [10**1023, -(10**1022), 2**64, -(2**63) - 1, 0, 2**53 + 1])
@pytest.mark.parametrize("chain", [False, True])
def test_long_integers_stay_exact(bench: Bench, number: int, *, chain: bool) -> None:
    """Up to 1024 bytes with the sign."""
    journal = bench.open(chain=chain)
    bench.append(number)
    assert journal.read()[0]["payload"]["number"] == number
    bench.finish()


def test_nesting_of_thousands_of_levels(bench: Bench) -> None:
    """No recursion error, in a batch neither."""
    journal = bench.open(chain=True)
    deep: Any = 1
    for _ in range(DEPTH):
        deep = [deep]
    assert journal.append_many([event(1), {"payload": deep}]) == [1, 2]
    assert len(journal.read()) == 2
    assert journal.verify() is None


@pytest.mark.parametrize(
    ("payload", "path"),
    [
        (0.5, "payload"),
        ({"cost": 1.0}, "payload.cost"),
        ({"a": [1, {"b": [2, -0.0]}]}, "payload.a[1].b[1]"),
        ({"a": (1, 2.5)}, "payload.a[1]"),
    ],
)
def test_a_float_in_a_chained_journal(bench: Bench, payload: Any, path: str) -> None:
    """Refused with its path; a batch with one appends nothing. An unchained journal takes it."""
    journal = bench.open(chain=True)
    with pytest.raises(FloatRefused) as refused:
        journal.append({"payload": payload})
    assert (refused.value.path, path in str(refused.value)) == (path, True)
    with pytest.raises(FloatRefused) as refused:
        journal.append_many([event(1), {"payload": payload}, event(2)])
    assert refused.value.path == f"[1].{path}"
    assert segment_sizes(bench.session) == [0]
    assert bench.append(3) == [1]
    bench.finish()
    with open_journal("unchained", base_dir=bench.base) as other:
        other.append({"payload": payload})
        assert json.loads(json.dumps(other.read()[0]["payload"])) == json.loads(json.dumps(payload))


def test_a_batch_that_breaks_while_it_is_read_appends_nothing(bench: Bench) -> None:
    """What its generator raises passes through."""

    def events() -> Iterator[dict[str, Any]]:
        yield event(1)
        message = "no more"
        raise LookupError(message)

    journal = bench.open()
    with pytest.raises(LookupError, match="no more"):
        journal.append_many(events())
    assert segment_sizes(bench.session) == [0]
    bench.append(2)
    bench.finish()


# --- Checks -----------------------------------------------------------------------------------------------------------


def test_a_check_sees_all_that_was_appended_and_may_refuse(bench: Bench) -> None:
    """By False or by raising; nothing is appended then. Anything else lets the event pass."""
    journal = bench.open()
    bench.append(1, 2, sync=False)
    seen: list[Any] = []

    def refuses(records: Records) -> bool:
        seen.extend(records)
        return len(records) == 0

    def breaks(_: Records) -> bool:
        message = "not now"
        raise LookupError(message)

    with pytest.raises(CheckRefused):
        journal.append_checked(event(3), refuses)
    assert [record["id"] for record in seen] == [1, 2]
    with pytest.raises(LookupError, match="not now"):
        journal.append_checked(event(3), breaks)
    assert len(scan(bench.session).records) == 2
    answers: dict[int, object] = {3: None, 4: 0, 5: ""}
    for number in answers:
        assert journal.append_checked(event(number), lambda records: answers[len(records) + 1]) == number
        bench.acknowledged[number] = number
    bench.finish()


@pytest.mark.parametrize("first", [1, 40, -3, 2**63, 10**300])
def test_records_can_be_counted_and_listed_wherever_they_begin(tmp_path: Path, first: int) -> None:
    """A prefix may have been dropped: how many records there are has nothing to do with their offsets."""
    session = tmp_path / "s" / "journal"
    session.mkdir(parents=True)
    (session / "000001.jsonl").write_bytes(b'{"id":%d}\n{"id":%d}\n' % (first, first + 1))
    with open_journal("s", base_dir=tmp_path) as journal:
        assert journal.append({"type": "note"}) == first + 2
        records = journal.records()
        assert (len(records), [record["id"] for record in list(records)]) == (3, [first, first + 1, first + 2])
