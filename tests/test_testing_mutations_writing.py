"""The rules of writing and of checkpoints that matter most, each with its line; see the rules of reading."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import (
    CheckRefused,
    InvalidTip,
    JournalDamaged,
    MalformedPointer,
    MidTurn,
    SnapshotCorrupt,
    Unencodable,
    WriteFailed,
)
from raxol_otel.journal import checkpoint, open_journal
from raxol_otel.journal.files import Files
from raxol_otel.testing import FaultJournal
from tests import test_testing_mutations as reading
from tests.test_testing_mutations import Rule, Rules, line, put, text

if TYPE_CHECKING:
    from pathlib import Path

RULES: Final = Rules()
rule: Final = RULES.rule
RULES_MIN: Final = 20
# A ceiling that does not come while a test runs, in milliseconds.
NEVER: Final = 600_000
TURN: Final[dict[str, Any]] = {"type": "turn_started", "family": "loop", "payload": {}}
DONE: Final[dict[str, Any]] = {"type": "turn_completed", "family": "loop", "payload": {}}


# --- Writing ----------------------------------------------------------------------------------------------------------


class Log(Files):
    """The real files, and what was done with them; the next sync may be made to fail."""

    def __init__(self) -> None:
        self.done: list[str] = []
        self.is_failing = False

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """Write."""
        self.done.append(f"write {position}")
        return super().write(descriptor, data, position)

    def sync(self, descriptor: int) -> None:
        """Sync."""
        self.done.append("sync")
        if self.is_failing:
            self.is_failing = False
            raise OSError(5, os.strerror(5))
        super().sync(descriptor)

    def rename(self, source: Path, target: Path) -> None:
        """Rename."""
        self.done.append(f"rename {target.name}")
        super().rename(source, target)


@rule("segment", "self._cut_quietly()", "pass", within="Segment.append")
def a_short_write_leaves_nothing_behind(base: Path) -> None:
    """Half a line, with the next record glued on to it, is how a journal destroys itself."""
    with FaultJournal(base) as journal:
        journal.append({"type": "note"})
        journal.arm("short_write")
        with pytest.raises(WriteFailed):
            journal.append({"type": "note"})
        assert [record["id"] for record in journal.raw_records()] == [1]
        assert all(one.endswith(b"\n") for one in journal.raw_lines())


@rule("segment", "if self.is_suspect:", "if False:", within="Segment.sync")
def what_a_failed_sync_left_unsure_is_written_again(base: Path) -> None:
    """The kernel may have dropped the pages: a later sync alone would be a lie."""
    files = Log()
    with open_journal("session", base_dir=base, files=files, sync_ceiling_ms=NEVER) as journal:
        files.is_failing = True
        with pytest.raises(WriteFailed):
            journal.append({"type": "note"}, sync=True)
        files.done.clear()
        journal.flush()
        assert files.done[:2] == ["write 0", "sync"]


@rule("durability", "self._head.write(*self._output.durable)", "self._head.write(self._output.end, 1)")
def head_names_only_what_is_durable(base: Path) -> None:
    """HEAD is a promise that outlives a power loss."""
    with FaultJournal(base, sync_ceiling_ms=NEVER) as journal:
        journal.open().arm("sync_fail", times="for good")
        journal.append({"type": "note"}, sync=False)
        with pytest.raises(WriteFailed):
            journal.flush()
        assert (journal.raw_head() or {})["offset"] == 0


@rule("segment", "self.files.sync(self.descriptor)", "pass", within="Segment.sync")
def durable_means_synced(base: Path) -> None:
    """`sync=True` does not return before the system has said so."""
    with FaultJournal(base, sync_ceiling_ms=NEVER) as journal:
        journal.open().arm("sync_fail")
        with pytest.raises(WriteFailed):
            journal.append({"type": "note"}, sync=True)


@rule("writer", "if not self.options.immediate_sync_types.isdisjoint(types):", "if False:")
def some_types_never_wait_for_a_sync(base: Path) -> None:
    """An approval that was acted on must not be lost."""
    files = Log()
    with open_journal("session", base_dir=base, files=files, sync_ceiling_ms=NEVER) as journal:
        files.done.clear()
        journal.append({"type": "approval"}, sync=False)
        assert files.done == ["write 0", "sync"]


@rule("writer", "if check is not None and check() is False:", "if check is not None and check() is None:")
def a_check_that_says_no_is_heard(base: Path) -> None:
    """Nothing is appended then."""
    with FaultJournal(base) as journal:
        with pytest.raises(CheckRefused):
            journal.append_checked({"type": "note"}, lambda _: False)
        assert journal.raw_lines() == []


FULL: Final = "return segment.end.size >= self._cap and self._next is None and segment.number < SEGMENT_NUMBER_MAX"


@rule("output", FULL, FULL.replace(">=", ">"))
def a_segment_ends_when_it_reaches_its_cap(base: Path) -> None:
    """The next record begins a new one."""
    size = len(text({"id": 1, "schema_version": "1.2.0", "type": "note"})) + 1
    with FaultJournal(base, segment_cap=size) as journal:
        journal.append_many([{"type": "note"}])
        journal.append({"type": "note"})
        first = journal.path / "journal" / "000001.jsonl"
        assert first.stat().st_size == size


@rule("opening", "if damage is not None:", "if False:", within="_open")
def a_damaged_journal_is_not_written_to(base: Path) -> None:
    """What is left of it is evidence."""
    session = put(base, line(1) + b"garbage\n")
    with open_journal("session", base_dir=base) as journal, pytest.raises(JournalDamaged):
        journal.append({"type": "note"})
    assert not (session / "HEAD").exists()


@rule("opening", "if head is None or head <= last:", "if True:")
def a_journal_that_lost_its_tail_is_not_written_to(base: Path) -> None:
    """Its offsets would be used a second time."""
    put(base, line(1), head={"offset": 2})
    with open_journal("session", base_dir=base) as journal, pytest.raises(JournalDamaged):
        journal.append({"type": "note"})


@rule("files", "files.sync(descriptor)", "pass", within="replace_file")
def a_small_file_is_synced_before_it_is_renamed(base: Path) -> None:
    """Otherwise a power loss leaves the new name with nothing in it."""
    files = Log()
    with open_journal("session", base_dir=base, files=files) as journal:
        journal.flush()
    renames = [number for number, what in enumerate(files.done) if what.startswith("rename")]
    assert renames
    assert {files.done[number - 1] for number in renames} == {"sync"}


# --- Checkpoints ------------------------------------------------------------------------------------------------------


@rule("checkpoint", "if self.turns > 0:", "if self.turns > 1:")
def no_checkpoint_in_the_middle_of_a_turn(base: Path) -> None:
    """It would be restored to half a turn."""
    with FaultJournal(base) as journal:
        journal.append(TURN)
        with pytest.raises(MidTurn):
            checkpoint.write(journal.journal, None)


class Interrupting:
    """A backend; while it writes a model down, a turn begins."""

    def __init__(self, journal: FaultJournal) -> None:
        self.journal = journal

    def dump(self, model: Any) -> dict[str, Any]:
        """The model as an object."""
        self.journal.append(TURN)
        return dict(model)

    def load(self, snapshot: Any) -> Any:
        """The model of an object."""
        return snapshot

    def step(self, model: Any, record: Any) -> Any:
        """The model after a record."""
        return {**model, "last": record["id"]}


@rule("checkpoint", "boundary.count(records.after(boundary.last))", "pass")
def a_turn_that_begins_meanwhile_is_seen(base: Path) -> None:
    """The boundary is looked at again inside the writer."""
    with FaultJournal(base) as journal:
        journal.append_many([TURN, DONE])
        checkpoint.set_backend(Interrupting(journal))
        try:
            with pytest.raises(MidTurn):
                checkpoint.write(journal.journal, {})
        finally:
            checkpoint.set_backend(None)


@rule("checkpoint", "if tip_offset is not None and not boundary.is_given_tip:", "if False:")
def a_given_tip_is_a_conversational_record(base: Path) -> None:
    """Any other has no state to restore."""
    with FaultJournal(base) as journal:
        journal.append_many([TURN, DONE, {"type": "note"}])
        with pytest.raises(InvalidTip):
            checkpoint.write(journal.journal, None, tip_offset=3)


def nested(levels: int) -> dict[str, Any]:
    """An object of so many levels."""
    model: dict[str, Any] = {}
    for _ in range(levels - 1):
        model = {"in": model}
    return model


@rule("checkpoint", "for _ in range(SNAPSHOT_DEPTH_MAX):", "for _ in range(SNAPSHOT_DEPTH_MAX + 1):")
def a_snapshot_has_at_most_64_levels(base: Path) -> None:
    """The snapshot itself is the first."""
    with FaultJournal(base) as journal:
        journal.append_many([TURN, DONE])
        checkpoint.write(journal.journal, nested(64))
        with pytest.raises(Unencodable):
            checkpoint.write(journal.journal, nested(65))


@rule("checkpoint", "if sha256(text).hexdigest() != name:", "if False:")
def a_changed_snapshot_is_not_restored(base: Path) -> None:
    """Its name is its hash."""
    with FaultJournal(base) as journal:
        journal.append_many([TURN, DONE])
        checkpoint.write(journal.journal, {"applied": [1, 2]})
        (snapshot,) = (journal.path / "snapshots").iterdir()
        snapshot.write_bytes(b'{"applied":[1]}')
        with pytest.raises(SnapshotCorrupt):
            checkpoint.restore(journal.journal)


MATCH: Final = "match = _POINTER.fullmatch(pointer) if type(pointer) is str else None"


@rule("checkpoint", MATCH, MATCH.replace("fullmatch", "match"))
def a_pointer_is_a_snapshots_name_and_no_more(base: Path) -> None:
    """Nothing outside, beside or below the folder is read."""
    with FaultJournal(base) as journal:
        journal.append_many([TURN, DONE])
        pointer = f"snapshots/{'0' * 64}.json/../../HEAD"
        journal.append({"kind": "checkpoint", "tip_offset": 2, "snapshot_ref": pointer})
        with pytest.raises(MalformedPointer):
            checkpoint.restore(journal.journal)


# --- All of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.check.__name__)
def test_the_rule_is_checked(one: Rule) -> None:
    """The check holds, and fails once the line that the rule rests on is changed."""
    one.prove()


def test_there_are_rules_enough() -> None:
    """Each has a check of its own."""
    checks = [one.check for one in (*RULES, *reading.RULES)]
    assert len(set(checks)) == len(checks) >= RULES_MIN
