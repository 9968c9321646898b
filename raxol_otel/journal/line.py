"""An event becomes the line that is written: stamped, encoded by the writing rules, and sealed in a chained journal."""

from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.canonical import encode, is_mapping
from raxol_otel.contract import Event
from raxol_otel.errors import EncodeError, Unencodable
from raxol_otel.journal.chain import seal

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

__all__ = ["encode_events"]

# Stands in a line where its hash will; a record that contains it by chance is sealed the slow way.
_NO_HASH: Final = "hash-of-this-record-not-known-yet".center(64, "-")
_MEMBER: Final = f'"hash":"{_NO_HASH}",'.encode()
_PLACE: Final = _NO_HASH.encode()


def encode_events(
    events: Sequence[Mapping[str, Any] | Event],
    first: int,
    *,
    schema_version: str,
    tip: str | None,
    stamp: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[bytes, list[str], str | None]:
    """The events' lines, the `type` of each (empty where it is no text), and the last one's hash.

    `first` is the offset of the first; `tip` the hash before it, None in an unchained journal. `stamp` may change each
    record before it is encoded. The caller's events are not changed. Raises `Unencodable` and `FloatRefused`, whose
    path begins with `[N]` in a batch.
    """
    lines: list[bytes] = []
    types: list[str] = []
    offset = first
    for event in events:
        try:
            record: dict[str, Any] = {**event} if type(event) is dict else _copied(event)
            record["id"] = offset
            if "schema_version" not in record:
                record["schema_version"] = schema_version
            if stamp is not None:
                stamp(record)
            if tip is None:
                line = encode(record)
            else:
                line, tip = _sealed(record, tip)
            lines.append(line)
        except EncodeError as error:
            if len(events) == 1:
                raise
            place = f"[{offset - first}]"
            separator = "." if error.path and not error.path.startswith("[") else ""
            raise type(error)(place + separator + error.path, error.reason) from None
        kind = record.get("type")
        types.append(kind if type(kind) is str else "")
        offset += 1
    lines.append(b"")
    return b"\n".join(lines), types, tip


def _copied(event: object) -> dict[str, Any]:
    if isinstance(event, Event):
        return event.to_dict()
    if not is_mapping(event):
        raise Unencodable("", f"an event is a mapping, not a value of type {type(event).__name__}")
    return dict(event)


def _sealed(record: dict[str, Any], tip: str) -> tuple[bytes, str]:
    """The record's line without its newline, and its hash."""
    record["prev_hash"] = tip
    record["hash"] = _NO_HASH
    line = encode(record, floats=False)
    if line.count(_PLACE) == 1 and _MEMBER in line:
        # What is hashed is the line without the member: `id` always follows it.
        digest = sha256(line.replace(_MEMBER, b"", 1)).hexdigest()
        return line.replace(_PLACE, digest.encode(), 1), digest
    sealed = seal(record, tip)
    return encode(sealed, floats=False), sealed["hash"]
