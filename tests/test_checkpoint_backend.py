"""An application's backend for its own models, and the boundary that is looked at again at the commit."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from raxol_otel import signals
from raxol_otel.errors import CheckpointError, MidReserve, MidTurn
from raxol_otel.journal import checkpoint, open_journal

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from raxol_otel.journal import Journal

LOOP = {"family": "loop", "type": "item_completed"}


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    """An open, empty journal."""
    with open_journal("s", base_dir=tmp_path) as opened:
        yield opened


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    signals.attach("test_checkpoint_backend", found.append)
    yield found
    signals.detach("test_checkpoint_backend")


class Words:
    """An application whose model is a list of words; each record says one more. `during` runs while one is dumped."""

    def __init__(self, journal: Journal, during: list[dict[str, Any]]) -> None:
        self.journal = journal
        self.during = during

    def dump(self, model: Any) -> Mapping[str, Any]:
        """The words."""
        for event in self.during:
            self.journal.append(event)
        return {"words": model}

    def load(self, snapshot: Mapping[str, Any]) -> Any:
        """The words, or none."""
        return list(snapshot.get("words", ["(none)"]))

    def step(self, model: Any, record: Mapping[str, Any]) -> Any:
        """One more."""
        return [*model, record["word"]]


@pytest.fixture
def backend(journal: Journal) -> Iterator[Words]:
    """A registered backend, for a while."""
    words = Words(journal, [])
    checkpoint.set_backend(words)
    yield words
    checkpoint.set_backend(None)


@pytest.mark.usefixtures("backend")
def test_a_backend_does_the_work_and_no_signal_says_otherwise(journal: Journal, heard: list[signals.Signal]) -> None:
    """Its models are dumped, loaded and stepped; the surrogate is neither used nor told of, until it is again."""
    journal.append({**LOOP, "word": "a"})
    checkpoint.write(journal, ["a"])
    assert [path.read_bytes() for path in (journal.path / "snapshots").iterdir()] == [b'{"words":["a"]}']
    journal.append_many([{**LOOP, "word": "b"}, {**LOOP, "word": "c"}])
    assert checkpoint.restore(journal) == ["a", "b", "c"]
    checkpoint.write(journal, None)
    assert checkpoint.restore(journal) == ["(none)", "a", "b", "c"]
    assert heard == []
    checkpoint.set_backend(None)
    assert checkpoint.restore(journal) == {"applied": [1, 3, 4]}
    assert len(heard) == 1


@pytest.mark.parametrize(("event", "refusal"), [("turn_started", MidTurn), ("reserve", MidReserve)])
def test_the_boundary_is_looked_at_again_at_the_commit(
    journal: Journal, backend: Words, event: str, refusal: type[CheckpointError]
) -> None:
    """What was appended since, while the model was dumped, may have opened a turn: then nothing is appended."""
    journal.append(LOOP)
    backend.during = [{"type": event}]
    with pytest.raises(refusal):
        checkpoint.write(journal, ["a"])
    assert [record.get("type") for record in journal.read()] == ["item_completed", event]


def test_what_was_appended_meanwhile_is_counted_once(journal: Journal, backend: Words) -> None:
    """A turn that ends and begins while the model is dumped is over at the commit: the checkpoint stands."""
    journal.append(LOOP)
    backend.during = [{"type": name} for name in ("turn_started", "reserve", "settle", "turn_completed")]
    assert checkpoint.write(journal, ["a"]) == 6
