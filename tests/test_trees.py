"""The fold against trees worked out by hand from the records, compared as whole texts."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import pytest

from raxol_otel.journal import iter_records
from raxol_otel.turns import TurnFold
from tests.conftest import SHARED, require_shared
from tests.tree_text import tree_text

if TYPE_CHECKING:
    from collections.abc import Iterable

TREES = Path(__file__).parent / "trees"
STREAMS = [
    "adversarial",
    "approval-gate",
    "boundary-widths",
    "error-turn",
    "evidence-done",
    "long-folds",
    "markdown-stream",
    "multi-tool-turn",
    "projection-panels",
    "simple-chat",
    "speaker-roles",
    "taint-propagation",
    "unicode-heavy",
    "unknown-kind",
]
CORPORA = {"golden-v1": "v1.0.0", "golden-v11": "v1.1.0", "golden-v12": "v1.2.0"}


def check(name: str, session_id: str, records: Iterable[dict[str, Any]]) -> None:
    """The tree of the records is the expected one, folded one by one and all at once."""
    expected = (TREES / f"{name}.txt").read_text(encoding="utf-8")
    listed = list(records)
    at_once, one_by_one = TurnFold(session_id), TurnFold(session_id)
    spans = at_once.feed_many(listed) + at_once.close()
    assert tree_text(session_id, spans, at_once.counts) == expected
    each = [span for record in listed for span in one_by_one.feed(record)] + one_by_one.close()
    assert each == spans
    assert one_by_one.counts == at_once.counts


@pytest.mark.parametrize("name", STREAMS)
def test_a_real_event_stream_folds_into_its_tree(name: str) -> None:
    """Each of the frozen event streams gives the spans that its records say."""
    require_shared()
    lines = [orjson.loads(line) for line in (SHARED / "sessions" / f"{name}.jsonl").read_bytes().splitlines()]
    envelopes = [line for line in lines if line["record"] == "envelope"]
    check(name, envelopes[0]["session_id"], (envelope["body"] for envelope in envelopes))


@pytest.mark.parametrize("name", CORPORA)
def test_a_frozen_corpus_folds_into_its_tree(name: str) -> None:
    """Each of the frozen journals gives the spans that its records say."""
    require_shared()
    check(name, name, iter_records(SHARED / "golden" / CORPORA[name] / name))


def test_the_tour_folds_into_its_tree() -> None:
    """The shipped tour gives the spans that its records say."""
    check("tour", "tour", iter_records(Path(__file__).parent.parent / "golden" / "tour"))


def test_every_tree_is_tested() -> None:
    """No expected text lies around unread."""
    assert {path.stem for path in TREES.iterdir()} == {*STREAMS, *CORPORA, "tour"}
