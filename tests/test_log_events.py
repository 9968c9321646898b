"""The core's signals as OpenTelemetry log events: names, severities, attributes, and that nobody feels a failure."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

import pytest
from opentelemetry._logs import LoggerProvider, NoOpLoggerProvider, SeverityNumber
from opentelemetry.sdk.trace import TracerProvider

from raxol_otel import catalogue, signals
from raxol_otel.errors import WriteFailed
from raxol_otel.journal import checkpoint, open_journal, scan
from raxol_otel.journal.files import Files
from raxol_otel.live import LogEvents
from raxol_otel.signals import Signal, publish
from tests.conftest import ROOT, make_journal, on_disk
from tests.live_sdk import Logs
from tests.metrics_scrape import Agent, damaged, write_failed

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from raxol_otel.catalogue_entries import SignalEntry

ENTRIES: Final = {entry.name: entry for entry in catalogue.SIGNALS}
EVENT: Final = {"kind": "event", "family": "loop", "tier": "durable", "type": "turn_started", "turn_id": "t1"}


@pytest.fixture
def logs() -> Iterator[Logs]:
    """A provider of the SDK that remembers what it is given, attached for a while."""
    made = Logs()
    LogEvents(made.provider).attach()
    yield made
    for name in signals.handlers():
        signals.detach(name)


def surrogate(op: Any, tip_offset: Any) -> None:
    """Publish what a checkpoint of the built-in fold publishes."""
    publish(Signal(signals.SIGNAL_SURROGATE, {"op": op, "session_id": "s", "tip_offset": tip_offset}))


def test_damage_is_an_error_event(logs: Logs) -> None:
    """Its name, severity and attributes; of the path only what is inside the session's directory."""
    before = time.time_ns()
    damaged(dir="/var/lib/agent/d", segment="/var/lib/agent/d/journal/000003.jsonl", last_offset=41, cause="id_gap")
    (event,) = logs.events()
    assert event.event_name == "raxol.agent.journal.damaged"
    assert (event.severity_number, event.severity_text) == (SeverityNumber.ERROR, "ERROR")
    assert event.attributes == {
        "raxol.session.id": "d",
        "raxol.journal.segment": "journal/000003.jsonl",
        "raxol.journal.damage.cause": "id_gap",
        "raxol.journal.last_offset": 41,
    }
    assert event.body is None
    assert event.timestamp is not None
    assert before <= event.timestamp <= time.time_ns()


@pytest.mark.parametrize(
    ("stage", "severity"),
    [
        ("append", "ERROR"),
        ("datasync", "ERROR"),
        *((stage, "WARN") for stage in ("rotate", "head", "meta", "snapshot", "lock", "invented")),
    ],
)
def test_a_failed_write_is_grave_where_records_are_lost(logs: Logs, stage: str, severity: str) -> None:
    """Appending and syncing are errors, all else is a warning; a stage nobody knows is `other`."""
    write_failed(stage, "enospc")
    (event,) = logs.events()
    assert event.event_name == "raxol.agent.journal.write_failed"
    assert event.severity_text == severity
    assert event.severity_number == {"ERROR": SeverityNumber.ERROR, "WARN": SeverityNumber.WARN}[severity]
    assert event.attributes == {
        "raxol.session.id": "s",
        "raxol.journal.stage": "other" if stage == "invented" else stage,
        "error.type": "ENOSPC",
    }


@pytest.mark.parametrize("reason", catalogue.WRITE_REASONS)
def test_the_error_type_is_the_name_of_the_errno(logs: Logs, reason: str) -> None:
    """In upper case, as the system's headers have it; what is no errno's name is `_OTHER`."""
    write_failed("append", reason)
    (said,) = [event.attributes["error.type"] for event in logs.events()]
    assert said == ("_OTHER" if reason == "other" else errno.errorcode[getattr(errno, reason.upper())])


@pytest.mark.parametrize("reason", ["OTHER", "ENOSPC", "no space left on /dev/sda", 28, None, ["eio"], "ebadf"])
def test_a_reason_outside_the_closed_set_is_other(logs: Logs, reason: Any) -> None:
    """Whatever it says, it goes nowhere."""
    write_failed("append", reason)
    assert [event.attributes["error.type"] for event in logs.events()] == ["_OTHER"]


def test_a_surrogate_is_for_information(logs: Logs) -> None:
    """With the tip's offset where there is one."""
    surrogate("write", 12)
    surrogate("restore", None)
    first, second = logs.events()
    assert first.event_name == second.event_name == "raxol.agent.journal.checkpoint.surrogate"
    assert (first.severity_number, first.severity_text) == (SeverityNumber.INFO, "INFO")
    session = {"raxol.session.id": "s"}
    assert first.attributes == {**session, "raxol.checkpoint.op": "write", "raxol.checkpoint.tip_offset": 12}
    assert second.attributes == {**session, "raxol.checkpoint.op": "restore"}


@pytest.mark.parametrize("entry", catalogue.SIGNALS, ids=lambda entry: entry.name)
def test_an_event_says_what_the_catalogue_says(logs: Logs, entry: SignalEntry) -> None:
    """All attributes of its entry and no other; and all signals have an event."""
    damaged()
    write_failed("append", "eio")
    surrogate("write", 1)
    assert [event.event_name for event in logs.events()] == list(ENTRIES)
    (event,) = [event for event in logs.events() if event.event_name == entry.name]
    assert set(event.attributes) == set(entry.attributes)
    assert str(event.severity_text) in entry.severity


def test_the_scope_says_who_emits(logs: Logs) -> None:
    """Name, version and the schema of the conventions."""
    damaged()
    scope = logs.scopes()[0]
    assert (scope.name, scope.schema_url) == ("raxol_otel", "https://opentelemetry.io/schemas/gen-ai/0.1.0")
    assert scope.version


def test_each_distinct_damage_is_one_event_as_it_is_one_count(logs: Logs) -> None:
    """However often a scan meets it; another place, segment, cause or journal is another damage."""
    agent = Agent()
    agent.metrics.attach()
    for _ in range(3):
        damaged()
        damaged(cause="id_gap")
        damaged(last_offset=2)
        damaged(segment="/d/HEAD")
        damaged(dir="/other")
    assert len(logs.events()) == sum(agent.counted("raxol_journal_damaged").values()) == 5
    write_failed("append", "eio")
    write_failed("append", "eio")
    assert len(logs.events()) == 7


@pytest.mark.parametrize(
    ("segment", "shown"),
    [
        ("/a/s/journal/000001.jsonl", "journal/000001.jsonl"),
        ("/a/s/HEAD", "HEAD"),
        ("s/HEAD", "HEAD"),
        ("HEAD", "HEAD"),
        ("journal/000009.jsonl", "journal/000009.jsonl"),
        ("/home/jane/secret\n/s/journal/000001.jsonl", "journal/000001.jsonl"),
        ("/a/s/journal/secret.jsonl", None),
        ("/a/s/meta.json", None),
        ("/a/s/MYHEAD", None),
        ("/a/s/notajournal/000001.jsonl", None),
        ("/a/s/HEAD/", None),
        ("", None),
        (None, None),
        (7, None),
    ],
)
def test_no_absolute_path_leaves(logs: Logs, segment: Any, shown: str | None) -> None:
    """A segment is told by its place in the session's directory; what is no segment is not told."""
    damaged(dir="/a/s", segment=segment, session_id="/a/s")
    (event,) = logs.events()
    assert event.attributes.get("raxol.journal.segment") == shown
    assert event.attributes["raxol.session.id"] == "s"
    assert not any("/a" in str(value) or "jane" in str(value) for value in event.attributes.values())


def test_the_damage_of_a_real_journal(logs: Logs) -> None:
    """What a scan meets arrives, once over two scans, without where the journal is."""
    files, _ = make_journal([1, 2, 3], per_segment=2)
    files["journal/000002.jsonl"] = files["journal/000002.jsonl"].replace(b'"id":3', b'"id":7')
    with on_disk(files) as session:
        for _ in range(2):
            assert not scan(session).ok
        (event,) = logs.events()
        assert event.attributes == {
            "raxol.session.id": "session",
            "raxol.journal.segment": "journal/000002.jsonl",
            "raxol.journal.damage.cause": "id_gap",
            "raxol.journal.last_offset": 2,
        }


def test_a_full_disk(logs: Logs, tmp_path: Path) -> None:
    """What the writer of a real journal meets arrives, with the name of the errno and the ids of the active span."""

    class Full(Files):
        is_full = False

        def sync(self, descriptor: int) -> None:
            if self.is_full:
                raise OSError(errno.ENOSPC, "no space left", str(tmp_path))
            super().sync(descriptor)

    files = Full()
    journal = open_journal("s1", base_dir=tmp_path, files=files)
    files.is_full = True
    with (
        TracerProvider().get_tracer("agent").start_as_current_span("work") as span,
        pytest.raises(WriteFailed),
    ):
        journal.append({**EVENT, "payload": {}}, sync=True)
    event = logs.events()[0]
    assert event.attributes == {
        "raxol.session.id": "s1",
        "raxol.journal.stage": "datasync",
        "error.type": "ENOSPC",
    }
    assert event.severity_text == "ERROR"
    assert event.trace_id == span.get_span_context().trace_id
    files.is_full = False
    journal.close()
    assert not any(str(tmp_path) in str(one.attributes) for one in logs.events())


def test_a_real_checkpoint_in_an_active_span(logs: Logs, tmp_path: Path) -> None:
    """The event carries the ids of the span in which the journal was written; without one, none."""
    tracer = TracerProvider().get_tracer("agent")
    with open_journal("s1", base_dir=tmp_path) as journal:
        journal.append({**EVENT, "payload": {}})
        journal.append({**EVENT, "type": "turn_completed", "payload": {"final": True}})
        with tracer.start_as_current_span("work") as span:
            checkpoint.write(journal, {})
        checkpoint.write(journal, {})
    inside, outside = logs.events()
    context = span.get_span_context()
    assert (inside.trace_id, inside.span_id) == (context.trace_id, context.span_id)
    assert not outside.trace_id
    assert inside.attributes["raxol.session.id"] == "s1"
    assert inside.attributes["raxol.checkpoint.op"] == "write"


@pytest.mark.parametrize("odd", [None, 5, ["x"], {"a": 1}, "a whole sentence", "\ud800", b"append", object(), 2**80])
def test_a_signal_with_odd_metadata_is_an_event_all_the_same(logs: Logs, odd: Any) -> None:
    """What is outside a closed set is `other`, and every value is one that can be sent."""
    damaged(dir=odd, segment=odd, session_id=odd, cause=odd, last_offset=odd)
    write_failed(odd, odd)
    publish(Signal(signals.SIGNAL_SURROGATE, {"op": odd, "session_id": odd, "tip_offset": odd}))
    publish(Signal(signals.SIGNAL_DAMAGED))
    publish(Signal("somebody.elses", {"session_id": odd}))
    events = logs.events()
    assert [event.severity_text for event in events[:3]] == ["ERROR", "WARN", "INFO"]
    # Where all is absent, no metadata at all is the same damage.
    assert len(events) == (3 if odd is None else 4)
    assert events[0].attributes["raxol.journal.damage.cause"] == "other"
    assert events[1].attributes["raxol.journal.stage"] == "other"
    assert events[2].attributes["raxol.checkpoint.op"] == "other"
    for event in events:
        for value in event.attributes.values():
            json.dumps(value).encode().decode()
            str(value).encode()
    assert events[2].attributes.get("raxol.checkpoint.tip_offset") == {5: 5, 2**80: str(2**80)}.get(
        odd if type(odd) is int else -1
    )


def test_attached_by_name_and_detached(logs: Logs) -> None:
    """There is one handler of that name: attaching another takes its place, detaching ends it."""
    other = Logs()
    events = LogEvents(other.provider)
    events.attach()
    events.attach()
    assert signals.handlers() == ("raxol_otel.log_events",)
    damaged()
    assert (len(logs.events()), len(other.events())) == (0, 1)
    assert events.detach()
    assert not events.detach()
    damaged(cause="id_gap")
    assert len(other.events()) == 1


def test_an_error_is_counted_and_never_felt_by_the_writer(tmp_path: Path) -> None:
    """A provider that raises is the bus's to catch: the journal goes on, and the failure is a metric."""

    class Broken:
        def emit(self, _record: object) -> None:
            raise RuntimeError("no")

    class Provider(NoOpLoggerProvider):
        def get_logger(self, *_arguments: Any, **_options: Any) -> Any:
            return Broken()

    agent = Agent()
    name = 'raxol_telemetry_handler_errors_total{handler="raxol_otel.log_events"}'
    provider: LoggerProvider = Provider()
    LogEvents(provider).attach()
    try:
        before = agent.series()[name]
        with open_journal("s1", base_dir=tmp_path) as journal:
            journal.append({**EVENT, "payload": {}})
            journal.append({**EVENT, "type": "turn_completed", "payload": {"final": True}})
            assert checkpoint.write(journal, {}) > 0
            assert journal.append({**EVENT, "payload": {}}) > 0
            assert journal.status() == "ok"
        assert agent.series()[name] == before + 1
    finally:
        signals.detach("raxol_otel.log_events")


def test_threads_emit_each_damage_once(logs: Logs) -> None:
    """Many sessions at once, all of which meet the same damages: each is one event, none is lost."""

    def session(who: int) -> None:
        for number in range(50):
            damaged(last_offset=number)
            damaged(dir=f"/{who}", last_offset=number)

    threads = [threading.Thread(target=session, args=(who,)) for who in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(logs.events()) == 50 + 8 * 50


WITHOUT_SDK: Final = """
import sys
from raxol_otel import signals
from raxol_otel.live import LogEvents, TurnInstruments
from raxol_otel.turns import fold
LogEvents().attach()
signals.publish(signals.Signal(signals.SIGNAL_DAMAGED, {"cause": "nul_run"}))
own = {"ts": 1_785_801_600_000_000, "family": "loop", "turn_id": "t", "payload": {"final": True}}
records = [{**own, "id": 1, "type": "turn_started"}, {**own, "id": 2, "type": "turn_completed"}]
spans = list(fold(records, "s"))
TurnInstruments(legacy=True).observe_spans(spans, exemplar=True)
print(len(spans), signals.handler_errors(), sorted(name for name in sys.modules if name.startswith(NOT_WANTED)))
"""


def test_without_an_sdk_nothing_happens() -> None:
    """The API alone takes everything and does nothing; neither the SDK nor the client of Prometheus is imported."""
    script = WITHOUT_SDK.replace("NOT_WANTED", repr(("opentelemetry.sdk", "prometheus_client", "rich")))
    environment = {name: value for name, value in os.environ.items() if not name.startswith("OTEL_")}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "1 {} []\n", "")


GLOBAL: Final = """
from opentelemetry import metrics
from opentelemetry._logs import set_logger_provider
from raxol_otel import signals
from raxol_otel.live import LogEvents, TurnInstruments
from tests.live_sdk import Logs, Meters
from tests.test_instruments import TURN, spans_of
LogEvents().attach()
instruments = TurnInstruments()
logs, meters = Logs(), Meters()
set_logger_provider(logs.provider)
metrics.set_meter_provider(meters.provider)
signals.publish(signals.Signal(signals.SIGNAL_DAMAGED, {"cause": "nul_run"}))
instruments.observe_spans(spans_of(*TURN))
print([event.event_name for event in logs.events()], len(meters.points("gen_ai.invoke_agent.duration")))
logs.provider.shutdown()
meters.provider.shutdown()
"""


def test_the_global_providers_may_be_set_later() -> None:
    """What is made first, and attached, finds the providers of the process once they are there."""
    done = subprocess.run(
        [sys.executable, "-c", GLOBAL], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "['raxol.agent.journal.damaged'] 1\n", "")
