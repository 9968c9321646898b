"""What every store of a session's journal promises, as one suite.

A test class of a store inherits `JournalStoreContract` and says how to make one, empty and open.
"""

from __future__ import annotations

import copy
import math
import threading
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.contract import Event
from raxol_otel.errors import CheckRefused, EncodeError, WriterClosed
from raxol_otel.journal import JournalStore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

THREADS: Final = 4
APPENDS: Final = 25
# What JSON cannot carry, and where it stands.
UNENCODABLE: Final[dict[str, tuple[Any, str]]] = {
    "not a number": ({"payload": {"x": math.nan}}, "payload.x"),
    "infinity": ({"payload": [1, -math.inf]}, "payload[1]"),
    "an object": ({"payload": {"a": [0, {"b": object()}]}}, "payload.a[1].b"),
    "a set": ({"payload": set[int]()}, "payload"),
    "bytes": ({"payload": b"x"}, "payload"),
    "a lone surrogate": ({"payload": "\ud800"}, "payload"),
    "a key that is no text": ({"payload": {1: 2}}, "payload"),
    "an integer beyond 1024 digits": ({"payload": 10**1024}, "payload"),
    "no mapping": (["payload"], ""),
    "nothing": (None, ""),
}


class BoomError(Exception):
    """A check's own error."""


def note(number: int = 1) -> dict[str, Any]:
    """An event, each time a new one."""
    return {"type": "note", "family": "meta", "payload": {"number": number, "list": [1, {"deep": "ä"}]}}


class JournalStoreContract:
    """One suite that every store passes."""

    def make_store(self, folder: Path) -> JournalStore:
        """A store of an empty journal, open; `folder` is its to keep things in."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[JournalStore]:
        """The store under test, closed in the end."""
        store = self.make_store(tmp_path)
        yield store
        store.close()

    def test_is_a_store(self, store: JournalStore) -> None:
        """It has the interface, and a session's id, which is text."""
        assert isinstance(store, JournalStore)
        assert isinstance(store.session_id, str)
        assert store.session_id

    def test_begins_empty_and_well(self, store: JournalStore) -> None:
        """There is nothing to read, and nothing is wrong."""
        assert store.read() == []
        assert store.status() == "ok"

    def test_offsets_begin_at_1_and_follow_each_other(self, store: JournalStore) -> None:
        """One by one, in batches, and checked: all count together, and the records say the same."""
        assert [store.append(note()), store.append(note(), sync=True), store.append(note(), sync=False)] == [1, 2, 3]
        assert store.append_many([note(), note()]) == [4, 5]
        assert store.append_checked(note(), lambda _: None) == 6
        assert store.append(note()) == 7
        assert [record["id"] for record in store.read()] == [1, 2, 3, 4, 5, 6, 7]

    def test_what_was_appended_is_read(self, store: JournalStore) -> None:
        """Every field as it was given, in order, beside those that the store stamps; at once, without a flush."""
        for number in (1, 2):
            store.append(note(number), sync=False)
            last = store.read()[-1]
            assert {key: last[key] for key in note()} == note(number)
            assert last["id"] == number

    def test_the_store_stamps_the_offset_and_the_schema(self, store: JournalStore) -> None:
        """A caller's `id` is overwritten, its `schema_version` kept; without one there is one."""
        assert store.append({**note(), "id": 77, "schema_version": "1.0.0"}) == 1
        assert store.append(note()) == 2
        first, second = store.read()
        assert (first["id"], first["schema_version"]) == (1, "1.0.0")
        assert second["id"] == 2
        assert isinstance(second["schema_version"], str)

    def test_an_event_object_is_appended(self, store: JournalStore) -> None:
        """The contract's own envelope, alone and in a batch."""
        event = Event(type="turn_started", payload={"prompt": "hi"}, turn_id="t", ts=5)
        assert store.append(event) == 1
        assert store.append_many([event, note()]) == [2, 3]
        record = store.read()[1]
        found = record["type"], record["payload"], record["turn_id"], record["ts"]
        assert found == ("turn_started", {"prompt": "hi"}, "t", 5)

    def test_tuples_are_arrays(self, store: JournalStore) -> None:
        """What is read is JSON."""
        store.append({"type": "note", "payload": {"pair": (1, (2, "x"))}})
        assert store.read()[0]["payload"] == {"pair": [1, [2, "x"]]}

    @pytest.mark.parametrize("name", ["append", "append_many", "append_checked"])
    def test_the_callers_event_is_not_changed(self, store: JournalStore, name: str) -> None:
        """Nor is the record changed when the caller goes on to change the event."""
        event: dict[str, Any] = {**note(), "id": 9}
        before = copy.deepcopy(event)
        ways: dict[str, Callable[[], object]] = {
            "append": lambda: store.append(event),
            "append_many": lambda: store.append_many([event, event]),
            "append_checked": lambda: store.append_checked(event, lambda _: True),
        }
        ways[name]()
        assert event == before
        event["payload"]["list"].append("later")
        assert store.read()[0]["payload"] == before["payload"]

    def test_what_was_read_is_the_readers(self, store: JournalStore) -> None:
        """Whoever changes it changes nothing in the journal."""
        store.append(note())
        first = store.read()
        first[0]["payload"]["number"] = "changed"
        first.clear()
        assert store.read()[0]["payload"]["number"] == 1

    # --- Batches ---

    def test_an_empty_batch_is_nothing(self, store: JournalStore) -> None:
        """No offsets, no records."""
        assert store.append_many([]) == []
        assert store.append_many([], sync=True) == []
        assert store.append(note()) == 1

    def test_a_batch_may_be_any_iterable(self, store: JournalStore) -> None:
        """A generator is read once."""
        assert store.append_many(note(number) for number in (1, 2, 3)) == [1, 2, 3]
        assert [record["payload"]["number"] for record in store.read()] == [1, 2, 3]

    @pytest.mark.parametrize("place", [0, 1, 2])
    def test_a_batch_is_appended_whole_or_not_at_all(self, store: JournalStore, place: int) -> None:
        """One event that cannot be written keeps the others out; the error says which, and no offset is used up."""
        store.append(note())
        events: list[Any] = [note(2), note(3)]
        events.insert(place, {"payload": math.nan})
        with pytest.raises(EncodeError) as caught:
            store.append_many(events)
        assert caught.value.path == f"[{place}].payload"
        assert len(store.read()) == 1
        assert store.append_many([note(), note()]) == [2, 3]

    @pytest.mark.parametrize("kind", UNENCODABLE)
    def test_what_cannot_be_written_is_refused(self, store: JournalStore, kind: str) -> None:
        """By its path, however it is appended; nothing is appended, and the store lives on."""
        event, path = UNENCODABLE[kind]
        ways: list[Callable[[], object]] = [
            lambda: store.append(event),
            lambda: store.append(event, sync=True),
            lambda: store.append_checked(event, lambda _: None),
        ]
        for way in ways:
            with pytest.raises(EncodeError) as caught:
                way()
            assert caught.value.path.startswith(path)
        assert store.read() == []
        assert store.append(note()) == 1
        assert store.status() == "ok"

    # --- Checked ---

    def test_a_check_sees_everything_appended(self, store: JournalStore) -> None:
        """Also what is not durable yet: how many there are, and each of them, as often as it likes."""
        store.append_many([note(1), note(2)], sync=False)
        store.append(note(3), sync=False)
        seen: list[Any] = []

        def check(records: Any) -> None:
            seen.append(len(records))
            seen.extend([record["payload"]["number"] for record in records] for _ in range(2))

        assert store.append_checked(note(4), check) == 4
        assert seen == [3, [1, 2, 3], [1, 2, 3]]

    @pytest.mark.parametrize("answer", [None, True, 0, "", []], ids=repr)
    def test_a_check_that_does_not_object_lets_it_pass(self, store: JournalStore, answer: object) -> None:
        """Only `False` is a no: a check that merely looks, and returns nothing, is none."""
        assert store.append_checked(note(), lambda _: answer) == 1

    def test_a_check_objects_by_returning_false(self, store: JournalStore) -> None:
        """Nothing is appended, no offset used."""
        store.append(note())
        with pytest.raises(CheckRefused):
            store.append_checked(note(), lambda _: False)
        assert len(store.read()) == 1
        assert store.append(note()) == 2

    def test_a_check_objects_by_raising(self, store: JournalStore) -> None:
        """Its own error comes out, and nothing is appended."""

        def check(_: object) -> None:
            raise BoomError

        with pytest.raises(BoomError):
            store.append_checked(note(), check)
        assert store.read() == []
        assert store.append(note()) == 1

    def test_nothing_slips_between_check_and_append(self, store: JournalStore) -> None:
        """Several threads append, each after looking: every one gets the offset after what it saw."""
        wrong: list[tuple[int, int]] = []

        def work() -> None:
            seen: list[int] = []

            def check(records: Any) -> None:
                seen.append(len(records))

            for _ in range(APPENDS):
                offset = store.append_checked(note(), check)
                if offset != seen[-1] + 1:
                    wrong.append((offset, seen[-1]))

        self.run_threads(work)
        assert wrong == []
        assert [record["id"] for record in store.read()] == list(range(1, THREADS * APPENDS + 1))

    def test_threads_share_the_offsets(self, store: JournalStore) -> None:
        """Each offset is given once, and a batch's follow each other."""
        given: list[list[int]] = []

        def work() -> None:
            for _ in range(APPENDS):
                given.append([store.append(note())])
                given.append(store.append_many([note(), note(), note()]))

        self.run_threads(work)
        assert all(batch == list(range(batch[0], batch[0] + len(batch))) for batch in given)
        assert sorted(offset for batch in given for offset in batch) == list(range(1, THREADS * APPENDS * 4 + 1))
        assert [record["id"] for record in store.read()] == list(range(1, THREADS * APPENDS * 4 + 1))

    def run_threads(self, work: Callable[[], None]) -> None:
        """Run it in several threads to the end."""
        threads = [threading.Thread(target=work) for _ in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    # --- Reading from an offset ---

    @pytest.mark.parametrize(
        ("from_offset", "expected"),
        [(None, [1, 2, 3]), (0, [1, 2, 3]), (-5, [1, 2, 3]), (1, [1, 2, 3]), (2, [2, 3]), (3, [3]), (4, []), (99, [])],
    )
    def test_reads_from_an_offset(self, store: JournalStore, from_offset: int | None, expected: list[int]) -> None:
        """That record and those after it; all for None, none beyond the end."""
        store.append_many([note(), note(), note()])
        assert [record["id"] for record in store.read(from_offset)] == expected

    def test_reads_from_an_offset_among_many(self, store: JournalStore) -> None:
        """Wherever it lies, nothing is left out or twice."""
        store.append_many([note(number) for number in range(1, 301)])
        for offset in range(1, 302, 20):
            assert [record["id"] for record in store.read(offset)] == list(range(offset, 301))

    # --- The end ---

    def test_flush(self, store: JournalStore) -> None:
        """At any time, as often as one likes; it changes nothing that can be read."""
        store.flush()
        store.append(note(), sync=False)
        store.flush()
        store.flush()
        assert len(store.read()) == 1
        assert store.append(note()) == 2

    def test_closing_twice_is_closing_once(self, store: JournalStore) -> None:
        """Whatever was appended before, and whoever closes."""
        store.append(note(), sync=False)
        store.close()
        store.close()
        assert store.session_id

    @pytest.mark.parametrize("name", ["append", "append_many", "append_checked", "read", "status", "flush"])
    def test_a_closed_store_cannot_be_used(self, store: JournalStore, name: str) -> None:
        """Every method says so; a check is not even asked."""
        store.append(note())
        store.close()
        asked: list[object] = []
        ways: dict[str, Callable[[], object]] = {
            "append": lambda: store.append(note()),
            "append_many": lambda: store.append_many([note()]),
            "append_checked": lambda: store.append_checked(note(), asked.append),
            "read": store.read,
            "status": store.status,
            "flush": store.flush,
        }
        for _ in range(2):
            with pytest.raises(WriterClosed):
                ways[name]()
        assert asked == []
