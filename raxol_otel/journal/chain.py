"""The hash chain: each record names the hash before it.

`prev_hash` is the hash before, 64 zeros for the first record; one chain runs over all segments. `hash` is the
lower-case hex SHA-256 of the canonical JSON of the record without `hash`. The line on disk is the canonical JSON of
the whole record: every other spelling is a break.
"""

from __future__ import annotations

import re
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel.canonical import encode, upper_escapes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

__all__ = ["GENESIS", "canonical", "check", "follow", "record_hash", "seal"]

GENESIS: Final = "0" * 64

# Where a float ends in a compact text. A hit inside a string only costs the exact way.
_FRACTION: Final = re.compile(rb"\.[0-9]+(?:e[-+]?[0-9]+)?[],}]")
_NEGATIVE: Final = re.compile(rb"-[0-9]+[],}]")
_EXPONENT: Final = re.compile(rb"[0-9]e[-+]?[0-9]+[],}]")

# orjson before 3.11.7 writes 1e16 without a sign.
_EXPONENTS_ARE_SIGNED: Final = orjson.dumps(1e16) == b"1e+16"

canonical = encode


def record_hash(record: Mapping[str, Any], *, floats: bool = True) -> str:
    """The hash of a record: over its canonical JSON without `hash`."""
    unsealed = {key: value for key, value in record.items() if key != "hash"}
    return sha256(encode(unsealed, floats=floats)).hexdigest()


def seal(record: Mapping[str, Any], prev_hash: str) -> dict[str, Any]:
    """A copy of the record that links to `prev_hash`; the caller's `hash` and `prev_hash` are overwritten.

    Raises `FloatRefused` for a float, `Unencodable` for what JSON cannot carry, each naming the path.
    """
    sealed = {**record, "prev_hash": prev_hash}
    sealed["hash"] = record_hash(sealed, floats=False)
    return sealed


def check(record: Mapping[str, Any], prev_hash: str) -> bool:
    """Whether the record links to `prev_hash` and its hash is right."""
    return record.get("prev_hash") == prev_hash and record.get("hash") == record_hash(record)


def follow(
    lines: Sequence[bytes], records: Sequence[Mapping[str, Any]], proven: Sequence[bool], previous: str
) -> tuple[int, str | None]:
    """How many of the records link one to the next, the first to `previous`; and why the next does not, as a cause.

    `lines` are the records' lines, each with its newline. `proven` says that a line is canonical but for its floats
    and the case of its escapes. Then the text to hash is the line itself without its `hash` member (a cut at another
    place would have to contain its own hash), and most records need no second writing.
    """
    floats = _may_have_floats(b"".join(lines))
    for index, (line, record, is_proven) in enumerate(zip(lines, records, proven, strict=False)):
        claimed = record.get("hash")
        if (
            is_proven
            and type(claimed) is str
            and record.get("prev_hash") == previous
            and not (floats and _may_have_floats(line))
            and (b"\\u00" not in line or upper_escapes(line) == line)
            and sha256(line[:-1].replace(b'"hash":"%b",' % claimed.encode(), b"", 1)).hexdigest() == claimed
        ):
            previous = claimed
            continue
        cause = _fault(line, record, previous)
        if cause is not None:
            return index, cause
        previous = record["hash"]
    return len(records), None


def _fault(line: bytes, record: Mapping[str, Any], previous: str) -> str | None:
    if record.get("prev_hash") != previous:
        return "chain_link"
    if record.get("hash") != record_hash(record):
        return "chain_hash"
    return None if encode(record) == line[:-1] else "chain_bytes"


def _may_have_floats(text: bytes) -> bool:
    """Whether a text that orjson wrote may have a float, whose spelling is not to be trusted."""
    if _FRACTION.search(text):
        return True
    # Rare single characters first: looking for `e-` itself is slow in ordinary text.
    signed = b"+" in text or _NEGATIVE.search(text) is not None
    return (signed or not _EXPONENTS_ARE_SIGNED) and _EXPONENT.search(text) is not None
