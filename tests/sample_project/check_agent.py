# ruff: noqa: INP001 - a project of somebody's own
"""The sample project's tests: they use the public plugin and nothing else of the tests here.

Run by tests/test_testing_plugin.py, from a copy, as `pytest check_agent.py`.
"""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import agent  # type: ignore[import-not-found]  # it stands beside this file
from agent import Agent, may_spend

if TYPE_CHECKING:
    from raxol_otel.testing import FaultJournal
    from raxol_otel.testing.plugin import ForeignWriterMaker, MutationAnchorMaker


def test_what_cannot_be_written_down_is_not_done(fault_journal: FaultJournal) -> None:
    """The disk is full for one task; the next is done again."""
    worker = Agent(fault_journal)
    assert worker.work("sweep")
    fault_journal.arm("append_fail", error=errno.ENOSPC)
    assert not worker.work("mop")
    assert worker.work("dust")
    assert worker.done == [record["payload"]["task"] for record in fault_journal.raw_records()] == ["sweep", "dust"]


def work_and_die(fault_journal: FaultJournal) -> None:
    """Be killed in the middle of the second task."""
    worker = Agent(fault_journal)
    worker.work("sweep")
    fault_journal.arm("kill_after_write_before_head")
    worker.work("mop")


def test_what_was_done_before_a_crash_is_written_down(fault_journal: FaultJournal) -> None:
    """Whatever was acknowledged is there, and the journal goes on."""
    ended = fault_journal.run_in_child(work_and_die)
    assert ended.was_killed
    assert ended.acknowledged == [1]
    assert [record["id"] for record in fault_journal.raw_records()] == [1, 2]
    assert Agent(fault_journal).work("dust")


def test_another_agent_has_the_session(fault_journal: FaultJournal, foreign_writer: ForeignWriterMaker) -> None:
    """It is there first, and then it dies."""
    foreign = foreign_writer(fault_journal.base_dir, fault_journal.session_id)
    foreign.append({"type": "note", "payload": {"task": "theirs"}})
    foreign.kill()
    assert Agent(fault_journal).work("ours")
    assert [record["payload"]["task"] for record in fault_journal.raw_records()] == ["theirs", "ours"]


def check_the_limit() -> None:
    """Five is allowed, and not a cent more."""
    assert may_spend(500)
    assert not agent.may_spend(501)


def test_the_limit_is_really_checked(mutation_anchor: MutationAnchorMaker) -> None:
    """Were it ten, a test would fail."""
    mutation_anchor("agent", "return cents <= 500").assert_caught(check_the_limit, "return cents <= 1000")


def test_that_promises_a_fault_and_never_meets_it(fault_journal: FaultJournal) -> None:
    """Ends in an error, by the fixture: this one is meant to."""
    fault_journal.arm("sync_fail", times="for good")
