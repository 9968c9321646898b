"""pytest's fixtures: `fault_journal`, `foreign_writer`, `mutation_anchor`.

pytest imports this module whenever it starts where the package is installed, so nothing else is imported before a
fixture is used. The entry point has the module's name: whoever also says `-p raxol_otel.testing.plugin` means the
same plugin, and gets it once.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING, Protocol

import pytest

if TYPE_CHECKING:
    import os
    from collections.abc import Generator
    from pathlib import Path
    from types import ModuleType

    from raxol_otel.testing import FaultJournal, ForeignWriter, MutationAnchor

__all__ = ["ForeignWriterMaker", "MutationAnchorMaker", "fault_journal", "foreign_writer", "mutation_anchor"]


class ForeignWriterMaker(Protocol):
    """What the fixture `foreign_writer` is."""

    def __call__(
        self, base_dir: str | os.PathLike[str], session_id: str = "session", *, holds: bool = True
    ) -> ForeignWriter:
        """Start a process; it has ended when the test has."""
        ...


class MutationAnchorMaker(Protocol):
    """What the fixture `mutation_anchor` is."""

    def __call__(self, module: str | ModuleType, line: str, *, within: str | None = None) -> MutationAnchor:
        """Find a line, or fail the test."""
        ...


@pytest.fixture
def fault_journal(tmp_path: Path) -> Generator[FaultJournal]:
    """A journal with faults, in a directory of its own. At the end every fault that was armed must have fired."""
    from raxol_otel.testing import FaultJournal  # noqa: PLC0415 - see above

    with FaultJournal(tmp_path / "sessions") as journal:
        yield journal


@pytest.fixture
def foreign_writer() -> Generator[ForeignWriterMaker]:
    """Starts second processes: `foreign_writer(base_dir, session_id)`. At the end they are closed."""
    from raxol_otel.testing import ForeignWriter  # noqa: PLC0415

    with ExitStack() as stack:

        def start(
            base_dir: str | os.PathLike[str], session_id: str = "session", *, holds: bool = True
        ) -> ForeignWriter:
            return stack.enter_context(ForeignWriter(base_dir, session_id, holds=holds))

        yield start


@pytest.fixture
def mutation_anchor() -> MutationAnchorMaker:
    """Finds lines of source: `mutation_anchor(module, line)`."""
    from raxol_otel.testing import MutationAnchor  # noqa: PLC0415

    return MutationAnchor
