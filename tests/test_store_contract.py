"""The stores that pass the suite of `JournalStore`: the files, unchained and chained, and one in memory.

The one in memory proves that the suite asks for nothing that only files can do.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, Literal

import pytest

from raxol_otel.contract import Event
from raxol_otel.errors import CheckRefused, EncodeError, Unencodable, WriterClosed
from raxol_otel.journal import JournalStore, open_journal, scan, verify
from raxol_otel.journal.codec import decode, encode
from tests.journal_store_contract import JournalStoreContract, note

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from pathlib import Path

    Record = dict[str, Any]


class MemoryStore:
    """A journal as a list of encoded lines."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        self._lines: list[bytes] = []
        self._lock = threading.RLock()
        self._is_closed = False

    def append(self, event: Mapping[str, Any] | Event, *, sync: bool | None = None) -> int:
        """Append one event; its offset."""
        return self._append([event], sync)[0]

    def append_many(self, events: Iterable[Mapping[str, Any] | Event], *, sync: bool | None = None) -> list[int]:
        """Append all events or none; their offsets."""
        return self._append(list(events), sync)

    def append_checked(
        self, event: Mapping[str, Any] | Event, check: Callable[[Any], object], *, sync: bool | None = None
    ) -> int:
        """Append one event unless `check` objects; its offset."""
        with self._lock:
            if check(self.read()) is False:
                raise CheckRefused("the check refused")
            return self._append([event], sync)[0]

    def _append(self, events: Sequence[Mapping[str, Any] | Event], _sync: bool | None) -> list[int]:  # noqa: FBT001 - all is durable, or nothing is
        with self._lock:
            self._check()
            first = len(self._lines) + 1
            lines: list[bytes] = []
            for place, event in enumerate(events):
                try:
                    lines.append(self._line(event, first + place))
                except EncodeError as error:
                    if len(events) == 1:
                        raise
                    raise Unencodable(f"[{place}].{error.path}", error.reason) from None
            self._lines += lines
            return list(range(first, first + len(lines)))

    @staticmethod
    def _line(event: object, offset: int) -> bytes:
        if isinstance(event, Event):
            event = event.to_dict()
        if not isinstance(event, dict):
            raise Unencodable("", "an event is a mapping")
        return encode({"schema_version": "1.2.0", **event, "id": offset})

    def read(self, from_offset: int | None = None) -> list[Record]:
        """The records, or those from an offset on."""
        with self._lock:
            self._check()
            return [decode(line) for line in self._lines[max((from_offset or 1) - 1, 0) :]]

    def status(self) -> Literal["ok", "damaged"]:
        """Memory does not rot."""
        self._check()
        return "ok"

    def flush(self) -> None:
        """There is nothing to do."""
        self._check()

    def close(self) -> None:
        """Give the journal up."""
        self._is_closed = True

    def _check(self) -> None:
        if self._is_closed:
            raise WriterClosed("the store is closed")


class TestMemoryStore(JournalStoreContract):
    """The store above."""

    def make_store(self, folder: Path) -> JournalStore:
        """A new one; it keeps nothing in the folder."""
        return MemoryStore(folder.name)


class TestFileStore(JournalStoreContract):
    """The package's own store, unchained."""

    def make_store(self, folder: Path) -> JournalStore:
        """A journal opened for writing."""
        return open_journal("session", base_dir=folder)


class TestFileStoreThatRotates(JournalStoreContract):
    """The same with segments of a record or two, and syncs that may come late."""

    def make_store(self, folder: Path) -> JournalStore:
        """A journal opened for writing."""
        return open_journal("session", base_dir=folder, segment_cap=300, sync_ceiling_ms=5)


class TestFileStoreJoined(JournalStoreContract):
    """A second handle of a journal that is open in this process."""

    @pytest.fixture(autouse=True)
    def _first(self, tmp_path: Path) -> Iterator[None]:
        """The first handle, open all the time."""
        with open_journal("session", base_dir=tmp_path):
            yield

    def make_store(self, folder: Path) -> JournalStore:
        """The second one."""
        return open_journal("session", base_dir=folder)


class TestFileStoreChained(JournalStoreContract):
    """The package's own store, chained; in the end the chain verifies."""

    def make_store(self, folder: Path) -> JournalStore:
        """A chained journal opened for writing."""
        return open_journal("session", base_dir=folder, chain=True, private=True)

    def test_the_chain_verifies(self, tmp_path: Path) -> None:
        """Whatever was appended in whichever way."""
        store = self.make_store(tmp_path)
        store.append_many([note(), {**note(), "hash": "x", "prev_hash": "y"}])
        store.append_checked(note(), lambda records: len(records) == 2)
        store.close()
        assert verify(tmp_path / "session") is None
        assert len(scan(tmp_path / "session").records) == 3
