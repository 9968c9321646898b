"""The hash chain: sealing and checking, and where the fast way of following it must not be trusted."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest

from raxol_otel.canonical import encode
from raxol_otel.errors import FloatRefused, Unencodable
from raxol_otel.journal import chain, codec, scan
from raxol_otel.journal.chain import GENESIS, canonical, check, follow, seal
from tests.conftest import make_journal, on_disk


def by_hand(record: dict[str, Any]) -> str:
    """The hash of a record of plain ASCII text and integers, by the standard library."""
    text = json.dumps(record, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def test_a_sealed_record_names_the_hash_before_and_its_own() -> None:
    """`prev_hash` goes in first and is covered by `hash`; the caller's record stays as it was."""
    record = {"id": 1, "payload": {"b": 2, "a": [1, None, True]}}
    sealed = seal(record, GENESIS)
    assert sealed == {**record, "prev_hash": "0" * 64, "hash": by_hand({**record, "prev_hash": "0" * 64})}
    assert "hash" not in record
    assert check(sealed, GENESIS)
    assert not check(sealed, sealed["hash"])
    assert not check({**sealed, "id": 2}, GENESIS)


def test_the_callers_hashes_are_overwritten() -> None:
    """What the caller put under the reserved keys counts for nothing."""
    assert seal({"id": 1, "hash": "x", "prev_hash": 5}, GENESIS) == seal({"id": 1}, GENESIS)


def test_a_float_is_refused_with_its_path() -> None:
    """A chain carries no floats; the error names the place."""
    with pytest.raises(FloatRefused) as refused:
        seal({"payload": {"items": [1, {"score": 0.5}]}}, GENESIS)
    assert refused.value.path == "payload.items[1].score"
    with pytest.raises(Unencodable):
        seal({"payload": object()}, GENESIS)


def lines_of(*records: dict[str, Any]) -> list[bytes]:
    """The records as lines of a chained journal, sealed one to the next, floats allowed."""
    lines: list[bytes] = []
    previous = GENESIS
    for record in records:
        linked = {**record, "prev_hash": previous}
        previous = hashlib.sha256(encode(linked)).hexdigest()
        lines.append(encode({**linked, "hash": previous}) + b"\n")
    return lines


@pytest.mark.parametrize("spelling", [b"1e16", b"1e+16", b"1.0e+16", b"10000000000000000.0"])
@pytest.mark.parametrize("is_signed", [True, False], ids=["signs exponents", "writes 1e16"])
def test_another_spelling_of_a_float_is_a_break(
    monkeypatch: pytest.MonkeyPatch, spelling: bytes, *, is_signed: bool
) -> None:
    """A resealed line whose float is spelled as one version of orjson or another does is no canonical text."""
    monkeypatch.setattr(chain, "_EXPONENTS_ARE_SIGNED", is_signed)
    if is_signed and spelling == b"1e16":
        pytest.skip("an orjson that signs exponents never proves such a line")
    good = lines_of({"id": 1, "payload": 1e16})[0]
    unsealed = b'{"id":1,"payload":%b,"prev_hash":"%b"}' % (spelling, GENESIS.encode())
    digest = hashlib.sha256(unsealed).hexdigest().encode()
    line = b'{"hash":"%b","id":1,"payload":%b,"prev_hash":"%b"}\n' % (digest, spelling, GENESIS.encode())
    assert follow([good], [codec.decode(good)], [True], GENESIS) == (1, None)
    count, cause = follow([line], [codec.decode(line)], [True], GENESIS)
    assert count == 0
    assert cause in {"chain_hash", "chain_bytes"}


@pytest.mark.parametrize(
    "payload",
    [
        {'"hash': "0" * 64},
        {"\\hash": "f" * 64, "hash": "a" * 64},
        {"text": '"hash":"' + "0" * 64 + '",'},
        {"nested": {"hash": "b" * 64, "prev_hash": "c" * 64}},
        {"hash": {"hash": [{"hash": ""}]}},
    ],
)
def test_what_looks_like_the_hash_elsewhere_confuses_nobody(payload: dict[str, Any]) -> None:
    """Keys and texts that look like the `hash` member, before and after it, neither break a chain nor mend one."""
    contents: list[Any] = [{"actor": payload}, payload, "last"]
    files, records = make_journal(contents, chained=True)
    with on_disk(files) as session:
        assert scan(session).records == records
    lines = lines_of({"actor": payload, "id": 1}, {"id": 2, "zone": payload})
    parsed = [codec.decode(line) for line in lines]
    assert follow(lines, parsed, [True, True], GENESIS) == (2, None)
    for index, line in enumerate(lines):
        forged = line.replace(b'"id":', b'"ie":')
        changed = [*lines[:index], forged, *lines[index + 1 :]]
        assert follow(changed, [codec.decode(text) for text in changed], [True, True], GENESIS)[0] == index


def test_canonical_is_the_writing_rules() -> None:
    """The chain hashes what the writer writes."""
    assert canonical({"b": 1, "a": "\x1b"}) == b'{"a":"\\u001B","b":1}'


def test_explaining_deep_garbage_decodes_it_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A damaged line of many open brackets is explained without decoding each of its parts exactly."""
    calls: list[int] = []
    exact = codec.decode_exact

    def counted(text: bytes) -> Any:
        calls.append(len(text))
        return exact(text)

    monkeypatch.setattr(codec, "decode_exact", counted)
    files, _ = make_journal(["first"], chained=False)
    name = next(name for name in files if name.endswith(".jsonl"))
    files[name] += b'{"id":[' * 20_000 + b"}" * 20_000 + b"\n"
    with on_disk(files) as session:
        found = scan(session)
    assert found.damage is not None
    assert found.damage.cause == "unparsable"
    assert len(calls) == 1
