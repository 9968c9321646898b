"""What is no regular file in a journal's place is told, and never waited for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from raxol_otel.errors import JournalUnreadable
from raxol_otel.journal import scan
from raxol_otel.journal.health import inspect
from tests.conftest import make_journal, on_disk

if TYPE_CHECKING:
    from pathlib import Path


def with_pipe(session: Path, name: str) -> None:
    """A named pipe in the file's place, at whose other end nobody is."""
    (session / name).unlink()
    os.mkfifo(session / name)


@pytest.mark.parametrize("name", ["journal/000001.jsonl", "meta.json"])
def test_a_pipe_in_a_files_place_is_unreadable(name: str) -> None:
    """The file is named; nobody waits for a writer that never comes."""
    files, _ = make_journal(["first", "second"])
    with on_disk(files) as session:
        with_pipe(session, name)
        with pytest.raises(JournalUnreadable, match="not a regular file") as caught:
            scan(session)
        assert caught.value.path == session / name
        assert inspect(session).state == "unreadable"


def test_a_pipe_in_heads_place_is_no_anchor() -> None:
    """As with any HEAD that cannot be read."""
    files, records = make_journal(["first", "second"], chained=True)
    with on_disk(files) as session:
        with_pipe(session, "HEAD")
        assert scan(session).records == records
