"""What a scrape says of the writers of this process: real journals, one of them made to fail."""

from __future__ import annotations

import errno
from typing import TYPE_CHECKING

import pytest
from prometheus_client import CollectorRegistry

from raxol_otel.journal import open_journal
from raxol_otel.journal.files import Files
from raxol_otel.metrics import Metrics

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EVENT: dict[str, object] = {"type": "turn_started", "payload": {}}


class FailingSync(Files):
    """Syncs fail while `is_failing`."""

    is_failing = False

    def sync(self, descriptor: int) -> None:
        """Sync, or fail as a broken disk does."""
        if self.is_failing:
            raise OSError(errno.EIO, "Input/output error")
        super().sync(descriptor)


@pytest.fixture
def registry() -> Iterator[CollectorRegistry]:
    """A registry with attached metrics."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.attach()
    yield registry
    metrics.detach()


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    """One sample."""
    return registry.get_sample_value(name, {"source": "agent", **labels})


def test_syncs_are_timed(registry: CollectorRegistry, tmp_path: Path) -> None:
    """Each sync of records is one observation of the histogram, of less than a minute."""
    before = value(registry, "raxol_journal_sync_duration_seconds_count") or 0
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append(EVENT, sync=True)
        journal.append(EVENT, sync=True)
    assert value(registry, "raxol_journal_sync_duration_seconds_count") == before + 2
    assert 0 < (value(registry, "raxol_journal_sync_duration_seconds_sum") or 0) < 60


def test_a_torn_tail_that_is_cut_counts(registry: CollectorRegistry, tmp_path: Path) -> None:
    """The repair at opening is one of `raxol_journal_torn_repairs_total`."""
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append(EVENT)
    with (journal.path / "journal" / "000001.jsonl").open("ab") as segment:
        segment.write(b'{"id":2')
    open_journal("s", base_dir=tmp_path).close()
    assert value(registry, "raxol_journal_torn_repairs_total") == 1


def test_a_failing_writer_shows_until_it_works_again(registry: CollectorRegistry, tmp_path: Path) -> None:
    """The gauges say that a sync fails and how long records have waited; both fall back when it works."""
    files = FailingSync()
    with open_journal("s", base_dir=tmp_path, files=files) as journal:
        journal.append(EVENT, sync=True)
        assert value(registry, "raxol_journal_writer_failing") == 0
        assert value(registry, "raxol_journal_unsynced_seconds") == 0
        files.is_failing = True
        journal.append(EVENT)
        assert value(registry, "raxol_journal_writer_failing") == 1
        assert (value(registry, "raxol_journal_unsynced_seconds") or 0) > 0
        assert value(registry, "raxol_journal_write_failed_total", stage="datasync", reason="eio") == 1
        files.is_failing = False
        journal.append(EVENT)
        assert value(registry, "raxol_journal_writer_failing") == 0
        assert value(registry, "raxol_journal_unsynced_seconds") == 0


def test_a_closed_writer_is_not_asked(registry: CollectorRegistry, tmp_path: Path) -> None:
    """A writer that failed to the end and was closed no longer says that this process has a failing one."""
    files = FailingSync()
    journal = open_journal("s", base_dir=tmp_path, files=files)
    files.is_failing = True
    journal.append(EVENT)
    journal.close()
    assert value(registry, "raxol_journal_writer_failing") == 0


def test_a_writer_at_work_is_not_failing(registry: CollectorRegistry, tmp_path: Path) -> None:
    """Whatever of it a scrape meets: records or HEAD half written, a sync or a rename that is not over."""
    seen: list[float | None] = []

    class Watched(Files):
        """Scraped in the middle of everything."""

        def sync(self, descriptor: int) -> None:
            seen.append(value(registry, "raxol_journal_writer_failing"))
            super().sync(descriptor)

        def rename(self, source: Path, target: Path) -> None:
            seen.append(value(registry, "raxol_journal_writer_failing"))
            super().rename(source, target)

    with open_journal("s", base_dir=tmp_path, files=Watched(), segment_cap=200) as journal:
        for _ in range(5):
            journal.append(EVENT, sync=True)
            journal.flush()
    assert set(seen) == {0}
    assert len(seen) > 10
