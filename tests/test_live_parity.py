"""Traced live, then replayed: the same spans, compared whole."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Any, Final

import orjson
import pytest
from opentelemetry.sdk.trace import sampling

from raxol_otel.exporters.replay import ReplayOptions
from raxol_otel.journal import iter_records, open_journal
from raxol_otel.turns import FoldConfig, TurnFold
from tests.conftest import ROOT, SHARED, require_shared
from tests.live_sdk import Plain, Traces, instrumented, replayed
from tests.prometheus_agent import event, turn
from tests.test_trees import CORPORA, STREAMS

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

STAMPED: Final = ("id", "hash", "prev_hash")


def by_id(spans: Iterable[Plain]) -> dict[str, Plain]:
    """The spans by their ids; none comes twice."""
    listed = list(spans)
    found = {span["span_id"]: span for span in listed}
    assert len(found) == len(listed)
    return found


def ended(folder: Path) -> set[str]:
    """The ids of the spans that have ended, of all sessions in the folder."""
    return {
        span.span_id
        for session in folder.iterdir()
        for span in TurnFold(session.name).feed_many(list(iter_records(session)))
    }


def check(folder: Path, traces: Traces, options: ReplayOptions | None = None) -> dict[str, Plain]:
    """What was traced is what a replay gives of the turns that ended; both, by id."""
    live, again = by_id(traces.own()), by_id(replayed(folder, options))
    assert live == {span_id: span for span_id, span in again.items() if span_id in ended(folder)}
    return live


def source(name: str) -> list[dict[str, Any]]:
    """The events of a stream, of a frozen corpus, or of the tour, as they were before they were written."""
    if name == "tour":
        records: Iterable[dict[str, Any]] = iter_records(ROOT / "golden" / "tour")
    elif name in CORPORA:
        require_shared()
        records = iter_records(SHARED / "golden" / CORPORA[name] / name)
    else:
        lines = [orjson.loads(line) for line in (require_shared("sessions", f"{name}.jsonl")).read_bytes().splitlines()]
        records = [line["body"] for line in lines if line["record"] == "envelope"]
    return [{key: value for key, value in record.items() if key not in STAMPED} for record in records]


@pytest.mark.parametrize("name", [*STREAMS, *CORPORA, "tour"])
@pytest.mark.parametrize("batch", [1, 7])
def test_a_stream_through_a_writer_is_traced_as_it_is_replayed(
    name: str, batch: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One by one and in batches; what a turn leaves open ends when the journal is opened again."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    events = source(name)
    said = {"agent_name": "Ana", "provider_name": "acme", "model": "m-1"}
    options = ReplayOptions(FoldConfig(**said, capture_content=True))  # type: ignore[arg-type]  # texts, all of them
    with instrumented(**said) as traces:
        with open_journal("s", base_dir=tmp_path, segment_cap=4096) as journal:
            for start in range(0, len(events), batch):
                journal.append_many(events[start : start + batch])
        assert check(tmp_path, traces, options)
        with open_journal("s", base_dir=tmp_path) as journal:
            for branch in sorted({str(one.get("branch_id", "main")) for one in events}):
                for one in (
                    event(99, "turn_started"),
                    event(99, "turn_canceled"),
                    event(98, "observed", "meta", step="prompted"),
                    event(98, "observed", "meta", step="turn_ended"),
                ):
                    journal.append({**one, "branch_id": branch})
        # Nothing is open now. Calls and items that were when the journal was closed are with who opened it next.
        assert by_id(traces.own()) == by_id(replayed(tmp_path, options))


def test_a_new_journals_first_time_is_that_of_its_meta(tmp_path: Path) -> None:
    """Records without a time take `created_at`, which is written after the journal is opened."""
    with instrumented() as traces:
        with open_journal("s", base_dir=tmp_path) as journal:
            journal.append_many([{key: value for key, value in one.items() if key != "ts"} for one in turn(1)])
        live = check(tmp_path, traces)
    assert {span["times"][0] > 10**18 for span in live.values()} == {True}


def test_several_sessions_of_many_threads(tmp_path: Path) -> None:
    """Eight threads append to three journals at once, with spans of their own around: no id goes astray."""
    with instrumented() as traces:
        tracer = traces.provider.get_tracer("user")
        journals = [open_journal(f"s{number}", base_dir=tmp_path) for number in range(3)]

        def work(number: int) -> None:
            for step in range(20):
                with tracer.start_as_current_span("around"):
                    branch = {"branch_id": f"b{number}"}
                    for one in turn(number * 100 + step):
                        journals[number % 3].append({**one, **branch}, sync=step % 3 == 0)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for journal in journals:
            journal.close()
        live = check(tmp_path, traces)
    assert len(live) == 8 * 20 * 2
    contexts = [span.get_span_context() for span in traces.all() if span.name == "around"]
    around = {f"{context.span_id:016x}" for context in contexts if context is not None}
    turns = [span for span in live.values() if span["name"] == "invoke_agent"]
    assert {span["parent_id"] for span in turns} == around


def test_tasks_of_asyncio(tmp_path: Path) -> None:
    """Concurrent tasks append through threads, each in its own span: each turn is in the span of its task."""
    with instrumented() as traces:
        tracer = traces.provider.get_tracer("user")
        with open_journal("s", base_dir=tmp_path) as journal:

            async def work(number: int) -> tuple[str, str]:
                with tracer.start_as_current_span("task") as span:
                    for one in turn(number):
                        await asyncio.to_thread(journal.append, {**one, "branch_id": f"b{number}"})
                return f"b{number}", f"{span.get_span_context().span_id:016x}"

            async def together() -> list[tuple[str, str]]:
                return await asyncio.gather(*(work(number) for number in range(10)))

            parents = dict(asyncio.run(together()))
        live = check(tmp_path, traces)
    found = {
        span["attributes"]["raxol.branch.id"]: span["parent_id"]
        for span in live.values()
        if span["name"] == "invoke_agent"
    }
    assert found == parents


def test_a_turn_inside_an_active_span_joins_its_trace(tmp_path: Path) -> None:
    """The record says so, the caller's event does not change; a caller's own traceparent is left as it is."""
    given = {**event(2, "turn_started"), "traceparent": "00-" + "a" * 32 + "-" + "b" * 16 + "-01"}
    invalid = {**event(3, "turn_started"), "traceparent": "nonsense"}
    with instrumented() as traces:
        with open_journal("s", base_dir=tmp_path, chain=True) as journal:
            with traces.provider.get_tracer("user").start_as_current_span("request") as span:
                started = event(1, "turn_started")
                before = dict(started)
                journal.append(started)
                assert started == before
                journal.append_many([given, invalid, event(4, "turn_completed", final=True)])
            journal.append(event(5, "turn_started"))
            journal.append(event(5, "turn_canceled"))
            assert journal.verify() is None
        live = check(tmp_path, traces)
    context = span.get_span_context()
    stored = [record.get("traceparent") for record in iter_records(tmp_path / "s")]
    assert stored == [
        f"00-{context.trace_id:032x}-{context.span_id:016x}-01",
        given["traceparent"],
        "nonsense",
        *(None, None, None),
    ]
    parents = {span["attributes"]["raxol.turn.id"]: span["parent_id"] for span in live.values()}
    assert parents == {
        "t1": f"{context.span_id:016x}",
        "t2": "b" * 16,
        **dict.fromkeys(("t3", "t4", "t5"), ""),
    }


@pytest.mark.parametrize("ratio", [0.0, 0.5])
def test_sampling_is_the_users(ratio: float, tmp_path: Path) -> None:
    """Children follow their turn; what is exported is what a replay gives, and a replay gives all."""
    traces = Traces(sampler=sampling.ParentBased(sampling.TraceIdRatioBased(ratio)))
    with instrumented(traces=traces), open_journal("s", base_dir=tmp_path) as journal:
        for number in range(40):
            journal.append_many(turn(number))
    live, again = by_id(traces.own()), by_id(replayed(tmp_path))
    assert len(again) == 80
    assert live == {span_id: span for span_id, span in again.items() if span_id in live}
    kept = {span["trace_id"] for span in live.values()}
    assert len(live) == 2 * len(kept)
    assert (0 < len(kept) < 40) == (ratio > 0)
    # The lower half of a trace id decides, as for everybody else's.
    assert kept == {
        span["trace_id"] for span in again.values() if int(span["trace_id"][16:], 16) < round(ratio * 2**64)
    }


def test_an_unsampled_span_around_is_not_followed_by_a_sampled_turn(tmp_path: Path) -> None:
    """The record says that its trace is not sampled; nothing is exported, and a replay gives the turn."""
    traces = Traces(sampler=sampling.ParentBased(sampling.ALWAYS_OFF))
    with instrumented(traces=traces), open_journal("s", base_dir=tmp_path) as journal:
        with traces.provider.get_tracer("user").start_as_current_span("request"):
            journal.append_many(turn(1))
        (stored,) = [record["traceparent"] for record in journal.read() if "traceparent" in record]
    assert stored.endswith("-00")
    assert traces.all() == ()
    assert len(replayed(tmp_path)) == 2
