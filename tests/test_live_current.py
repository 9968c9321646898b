"""The open turn as current span: what the user traces nests in it, and the next turn does not."""

from __future__ import annotations

import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
import urllib3
from opentelemetry import trace

from raxol_otel.journal import open_journal
from raxol_otel.live import use_turn
from tests.live_sdk import instrumented, replayed
from tests.prometheus_agent import event, turn
from tests.test_live_parity import by_id

if TYPE_CHECKING:
    from pathlib import Path


def test_the_users_spans_nest_in_the_open_turn(tmp_path: Path) -> None:
    """Inside `use_turn` what the user traces is part of the turn, and the next turn is not part of this one."""
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        tracer = traces.provider.get_tracer("user")
        journal.append(turn(1)[0])
        with use_turn(journal) as current:
            assert trace.get_current_span() is current
            current.set_attribute("user.key", "kept")
            with tracer.start_as_current_span("mine"):
                journal.append_many(turn(1)[1:])
                journal.append_many(turn(2))
        assert trace.get_current_span() is trace.INVALID_SPAN
    spans = {span.name: span for span in traces.all() if span.name == "mine"}
    one, two = (span for span in traces.own() if span["name"] == "invoke_agent")
    (mine,) = spans.values()
    assert mine.parent is not None
    assert f"{mine.parent.span_id:016x}" == one["span_id"]
    assert one["attributes"]["user.key"] == "kept"
    assert two["parent_id"] == ""


class _Hello(BaseHTTPRequestHandler):
    """Answers every request."""

    def do_GET(self) -> None:
        """Say it."""
        self.send_response(200)
        self.send_header("Content-Length", "5")
        self.end_headers()
        self.wfile.write(b"hello")

    def log_message(self, *_: Any) -> None:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Say nothing."""


def test_a_real_instrumentations_spans_nest_in_the_open_turn(tmp_path: Path) -> None:
    """The requests of urllib3, traced by OpenTelemetry's instrumentation: children of the turn they were made in."""
    http = pytest.importorskip("opentelemetry.instrumentation.urllib3").URLLib3Instrumentor()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Hello)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/"
    try:
        with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal, urllib3.PoolManager() as pool:
            http.instrument(tracer_provider=traces.provider)
            for number in (1, 2):
                journal.append(turn(number)[0])
                with use_turn(journal):
                    assert pool.request("GET", url).data == b"hello"
                    journal.append_many(turn(number)[1:])
            pool.request("GET", url)
    finally:
        http.uninstrument()
        server.shutdown()
        server.server_close()
        thread.join()
    requests = [(span.get_span_context(), span.parent) for span in traces.all() if span.name == "GET"]
    turns = [span for span in traces.own() if span["name"] == "invoke_agent"]
    parents = [parent and f"{parent.span_id:016x}" for _, parent in requests]
    assert parents == [turns[0]["span_id"], turns[1]["span_id"], None]
    assert [f"{context.trace_id:032x}" for context, _ in requests if context][:2] == [one["trace_id"] for one in turns]
    assert by_id(traces.own()) == by_id(replayed(tmp_path))


def test_another_sessions_turn_nests_in_the_open_turn(tmp_path: Path) -> None:
    """An agent that a turn starts, with a journal of its own, is part of that turn, live and on replay."""
    with instrumented() as traces:
        with open_journal("outer", base_dir=tmp_path) as outer, open_journal("inner", base_dir=tmp_path) as inner:
            outer.append(turn(1)[0])
            with use_turn(outer):
                inner.append(turn(7)[0])
                with use_turn(inner):
                    outer.append_many(turn(1)[1:])
                    outer.append_many(turn(2))
                    inner.append_many(turn(7)[1:])
        spans = {span["attributes"].get("raxol.turn.id"): span for span in traces.own()}
    assert spans["t7"]["parent_id"] == spans["t1"]["span_id"]
    assert spans["t2"]["parent_id"] == ""
    assert by_id(traces.own()) == by_id(replayed(tmp_path))


def test_which_turn_is_current(tmp_path: Path) -> None:
    """The one that began last, or of a branch; none where none is open or nothing is instrumented."""
    with open_journal("s", base_dir=tmp_path) as journal, use_turn(journal) as current:
        assert current is trace.INVALID_SPAN
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        journal.append({**turn(1)[0], "branch_id": "b"})
        journal.append(turn(2)[0])
        for branch, turn_id in ((None, "t2"), ("main", "t2"), ("b", "t1")):
            with use_turn(journal, branch=branch) as current:
                assert current.attributes["raxol.turn.id"] == turn_id  # type: ignore[attr-defined]  # the SDK's
        with use_turn(journal, branch="c") as current:
            assert current is trace.INVALID_SPAN
        with pytest.raises(KeyError), use_turn(journal):
            raise KeyError("passes through")
        journal.append_many([event(2, "turn_canceled"), {**event(1, "turn_canceled"), "branch_id": "b"}])
        with use_turn(journal) as current:
            assert current is trace.INVALID_SPAN
    assert {(span["status"], len(span["events"])) for span in traces.own()} == {(("UNSET", None), 0)}


def test_a_turn_that_another_process_left_open_is_current_at_once(tmp_path: Path) -> None:
    """Before anything is appended: the turn's span is started for it, and ends as one."""
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append(turn(1)[0])
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        with use_turn(journal), traces.provider.get_tracer("user").start_as_current_span("mine"):
            pass
        journal.append_many(turn(1)[1:])
    mine = next(span for span in traces.all() if span.name == "mine")
    assert mine.parent is not None
    assert f"{mine.parent.span_id:016x}" in {span["span_id"] for span in traces.own()}
    assert by_id(traces.own()) == by_id(replayed(tmp_path))
