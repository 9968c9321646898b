"""What every exporter promises, as one suite; and the hand-made spans, sessions and child processes to test with.

A test class of an exporter inherits `ExporterContract` and gives it a `Subject`.
"""

from __future__ import annotations

import copy
import math
import os
import select
import shutil
import subprocess
import sys
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import pytest

from raxol_otel.canonical import encode
from raxol_otel.exporters.base import BaseExporter, Exporter, ExportResult, NullExporter, SessionSummary
from raxol_otel.turns import Span
from raxol_otel.turns.span import Link, SpanEvent
from tests.conftest import ROOT

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

    from raxol_otel.turns.span import Attributes

    Record = dict[str, Any]

# 2023-11-14T22:13:20Z: in microseconds as a record has it, in nanoseconds as a span does.
START_US: Final = 1_700_000_000_000_000
START_NS: Final = START_US * 1000
SECOND: Final = 10**9
SECONDS_MAX: Final = 30
MOUNT_REFUSED: Final = 99


def turn_span(number: int = 1, **changes: Any) -> Span:
    """A completed turn of one second, called `turn-{number}`."""
    attributes: Attributes = {"raxol.turn.id": f"turn-{number}", "raxol.turn.outcome": "completed", "n": number}
    trace_id, span_id, end_ns = f"{number:032x}", f"{number:016x}", START_NS + SECOND
    span = Span("invoke_agent", "turn", "s1", number, trace_id, span_id, "", START_NS, end_ns, attributes)
    return replace(span, **changes)


def child_span(turn: Span, number: int = 1, **changes: Any) -> Span:
    """A tool call of half a second within the turn, called `tool-{number}`."""
    span = replace(
        turn,
        name=f"execute_tool tool-{number}",
        role="tool",
        offset=turn.offset + number,
        span_id=f"{turn.offset * 2**32 + number:016x}",
        parent_id=turn.span_id,
        end_ns=turn.start_ns + SECOND // 2,
        attributes={"raxol.tool.outcome": "ok"},
    )
    return replace(span, **changes)


def with_attributes(**more: Any) -> Attributes:
    """A turn's attributes and these beside them; `_` in a name stands for a dot."""
    return {**turn_span(5).attributes, **{key.replace("_", "."): value for key, value in more.items()}}


ODD_TEXTS: Final = {
    "lone surrogates": "a\ud800b\udfffc",
    "control characters": "\0\a\b\t\n\r\x1b[2J\x1b]0;title\a\x7f\x9b31m",
    "bidi overrides": "\u202egnp.exe\u2066\u200b\ufeff",
    "an empty text": "",
    "a huge text": "x" * 2_000_000,
    "astral letters": "\U0001f600\U0010ffff\u2028",
}
ODD_SPANS: Final[dict[str, Span]] = {
    **{f"{what} in the name": turn_span(5, name=text) for what, text in ODD_TEXTS.items()},
    **{
        f"{what} in values": turn_span(5, attributes=with_attributes(gen_ai_request_model=text, raxol_turn_id=text))
        for what, text in ODD_TEXTS.items()
    },
    **{
        f"{what} in a key": turn_span(5, attributes=with_attributes(**{text: text})) for what, text in ODD_TEXTS.items()
    },
    **{f"{what} as the session": turn_span(5, session_id=text) for what, text in ODD_TEXTS.items()},
    **{
        f"{what} in an event": turn_span(5, events=[SpanEvent(text, START_NS, {text: text})])
        for what, text in ODD_TEXTS.items()
    },
    "odd floats": turn_span(
        5, attributes=with_attributes(raxol_a=math.nan, raxol_b=math.inf, raxol_c=-math.inf, raxol_d=5e-324, e=-0.0)
    ),
    "edges of int64": turn_span(5, attributes=with_attributes(low=-(2**63), high=2**63 - 1, zero=0, minus=-1)),
    "no attributes": turn_span(5, attributes={}),
    "no length": turn_span(5, end_ns=START_NS),
    "an end before its start": turn_span(5, end_ns=START_NS - SECOND),
    "a start at the epoch": turn_span(5, start_ns=0, end_ns=2**63 - 1),
    "events and links": turn_span(
        5,
        events=[SpanEvent("exception", START_NS - SECOND, {"exception.type": "_OTHER", "n": 1, "b": False})] * 128,
        links=(Link("a" * 32, "b" * 16),) * 128,
        dropped_events=2**32 - 1,
        error=True,
    ),
    "a thousand attributes": turn_span(5, attributes=with_attributes(**{f"key{n}": n for n in range(1000)})),
}


class Managed(Exporter, Protocol):
    """An exporter that is a context manager."""

    def __enter__(self) -> Exporter: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...


@dataclass(frozen=True)
class Subject:
    """An exporter under test: how to make one, and everything that it has left for others to see, by its place."""

    make: Callable[[], Managed]
    seen: Callable[[], dict[str, bytes]]
    delivers: bool = True

    def shows(self, text: str) -> bool:
        """Whether the text was delivered; what delivers nothing cannot tell."""
        return not self.delivers or any(text.encode() in data for data in self.seen().values())


class Recorder(NullExporter):
    """Remembers the spans, in order."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Take the spans."""
        self.spans += spans
        return ExportResult(len(spans))


class BoomError(Exception):
    """Something unrelated went wrong."""


def batch(number: int = 1) -> list[Span]:
    """A turn with two children, in the order in which spans come: the turn last."""
    turn = turn_span(number)
    return [child_span(turn, 1), child_span(turn, 2), turn]


def fail_inside(exporter: Managed, spans: Sequence[Span]) -> None:
    """Leave the exporter's `with` block by an exception, after these spans if there are any."""
    with exporter:
        if spans:
            exporter.export(spans)
        raise BoomError


class ExporterContract:
    """One suite that every exporter passes."""

    def test_is_an_exporter(self, subject: Subject) -> None:
        """It has the interface, and `with` gives the exporter itself."""
        exporter = subject.make()
        assert isinstance(exporter, Exporter)
        with exporter as entered:
            assert entered is exporter
            entered.finish()

    def test_every_span_is_counted(self, subject: Subject) -> None:
        """A batch answers how many spans were taken; none is refused."""
        exporter = subject.make()
        results = [exporter.export(batch(number)) for number in (1, 2)] + [exporter.export([turn_span(3)])]
        exporter.finish()
        assert [(result.accepted, result.rejected, result.message) for result in results] == [
            (3, 0, ""),
            (3, 0, ""),
            (1, 0, ""),
        ]
        assert all(subject.shows(f"turn-{number}") for number in (1, 2, 3))

    def test_an_empty_batch_is_fine(self, subject: Subject) -> None:
        """Nothing to export, at any time, is taken as nothing."""
        exporter = subject.make()
        assert exporter.export([]).accepted == 0
        assert exporter.export(batch()).accepted == 3
        assert exporter.export([]).accepted == 0
        exporter.finish()
        assert subject.shows("turn-1")

    def test_nothing_at_all_can_be_finished(self, subject: Subject) -> None:
        """A replay without a single span ends well."""
        subject.make().finish()
        assert not any(b"turn" in data for data in subject.seen().values())

    def test_children_come_in_batches_before_their_turn(self, subject: Subject) -> None:
        """A turn's children are delivered with it, however they were spread over earlier batches."""
        exporter = subject.make()
        first, second, turn = batch()
        assert [exporter.export([span]).accepted for span in (first, second, turn)] == [1, 1, 1]
        exporter.finish()
        assert all(subject.shows(text) for text in ("tool-1", "tool-2", "turn-1"))

    def test_being_told_of_sessions_costs_nothing(self, subject: Subject) -> None:
        """A session with spans and one without are done, whatever their names: all spans are delivered."""
        exporter = subject.make()
        assert isinstance(exporter, BaseExporter)
        for number, name in ((1, "s1"), (2, "\ud800\0\x1b[2J")):
            exporter.export(batch(number))
            exporter.session_done(SessionSummary(name, "healthy", 9, 1, 0))
            exporter.session_done(SessionSummary(name, "unreadable", 0, 0, 0, name))
        exporter.finish()
        assert all(map(subject.shows, ("turn-1", "turn-2")))

    def test_finishing_twice_is_finishing_once(self, subject: Subject) -> None:
        """The second `finish` changes nothing."""
        exporter = subject.make()
        exporter.export(batch())
        exporter.finish()
        once = subject.seen()
        exporter.finish()
        assert subject.seen() == once

    def test_aborting_after_the_end_does_nothing(self, subject: Subject) -> None:
        """What was finished stays, also when a `with` block is left by an exception afterwards."""
        exporter = subject.make()
        exporter.export(batch())
        exporter.finish()
        delivered = subject.seen()
        with pytest.raises(BoomError):
            fail_inside(exporter, [])
        exporter.abort()
        assert subject.seen() == delivered
        assert subject.shows("turn-1")

    def test_aborting_leaves_nothing_behind(self, subject: Subject) -> None:
        """What waits for its turn or its file is forgotten, and aborting twice is no error."""
        before = subject.seen()
        exporter = subject.make()
        exporter.export(batch()[:2])
        exporter.abort()
        exporter.abort()
        assert subject.seen() == before

    def test_an_exception_in_the_block_aborts(self, subject: Subject) -> None:
        """The exception comes out as it is, and nothing is left behind."""
        before = subject.seen()
        with pytest.raises(BoomError):
            fail_inside(subject.make(), batch()[:2])
        assert subject.seen() == before

    def test_a_block_left_unfinished_aborts(self, subject: Subject) -> None:
        """Only `finish` makes it final; forgetting it is giving up."""
        before = subject.seen()
        with subject.make() as exporter:
            exporter.export(batch()[:2])
        assert subject.seen() == before

    def test_spans_are_not_changed(self, subject: Subject) -> None:
        """The caller's spans are as they were, and so is the list that held them."""
        spans = [*batch(), *ODD_SPANS.values()]
        copies = copy.deepcopy(spans)
        exporter = subject.make()
        exporter.export(spans)
        exporter.finish()
        assert repr(spans) == repr(copies)  # the text, because NaN equals nothing

    @pytest.mark.parametrize("what", ODD_SPANS)
    def test_an_odd_span_never_costs_the_batch(self, subject: Subject, what: str) -> None:
        """The odd span is taken, as a turn and as a child, and those around it are delivered."""
        odd = ODD_SPANS[what]
        before, after = turn_span(1), turn_span(2)
        as_child = replace(odd, role="item", parent_id=before.span_id)
        exporter = subject.make()
        assert exporter.export([as_child, before, odd, after]).accepted == 4
        exporter.finish()
        assert subject.shows("turn-1")
        assert subject.shows("turn-2")


def record(offset: int, kind: str, at: float = 0.0, /, **payload: Any) -> Record:
    """One record of turn `t1`, `at` seconds after the start; `turn=` names another turn."""
    return {
        "id": offset,
        "family": "loop",
        "payload": {key: value for key, value in payload.items() if key != "turn"},
        "tier": "durable",
        "ts": START_US + round(at * 10**6),
        "turn_id": payload.get("turn", "t1"),
        "type": kind,
    }


def turn_records(first: int = 1, turn: str = "t1", at: float = 0.0, *, is_open: bool = False) -> list[Record]:
    """A turn's four records, or three of an open one: a call of half a second, and after two seconds the end."""
    call: Record = {"item_type": "tool_use", "item_id": "i1", "call_id": "c1", "name": "read_file"}
    result: Record = {"item_type": "tool_result", "item_id": "i2", "call_id": "c1", "result": "fine"}
    records = [
        record(first, "turn_started", at, turn=turn, prompt="please"),
        record(first + 1, "item_completed", at + 1, turn=turn, **call),
        record(first + 2, "item_completed", at + 1.5, turn=turn, **result),
        record(first + 3, "turn_completed", at + 2, turn=turn, final=True),
    ]
    return records[:3] if is_open else records


def turns_records(count: int, start: int = 0) -> list[Record]:
    """Turns `t1`, `t2`, ... of four records each, a minute apart; two spans each."""
    return [one for n in range(start, start + count) for one in turn_records(1 + 4 * n, f"t{n + 1}", 60.0 * n)]


def write_session(directory: Path, records: Iterable[Record], *, head: int | None = None, tail: bytes = b"") -> Path:
    """A session directory of one segment with these records, and `tail` after them; HEAD names the last or `head`."""
    (directory / "journal").mkdir(parents=True)
    listed = list(records)
    lines = b"".join(encode(one) + b"\n" for one in listed)
    (directory / "journal" / "000001.jsonl").write_bytes(lines + tail)
    offset = head if head is not None else listed[-1]["id"] if listed else 0
    (directory / "HEAD").write_bytes(encode({"offset": offset, "schema_version": "1.2.0", "segment": 1}))
    (directory / "meta.json").write_bytes(encode({"schema_version": "1.2.0"}))
    return directory


MAIN: Final = "import sys\nfrom raxol_otel.cli import main\nsys.exit(main(sys.argv[1:]))"
# Holds an open-file-description lock on the file it is told until its standard input ends.
HOLD_LOCK: Final = """
import fcntl, os, struct, sys
descriptor = os.open(sys.argv[1], os.O_RDWR)
fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack("hhqqi", fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0))
print("held", flush=True)
sys.stdin.read()
"""


def environment(*, measured: bool = True, **more: str) -> dict[str, str]:
    """The environment for a child: this checkout, UTF-8, nothing of what the caller's shell says about telemetry.

    Unless `measured` is wanted, coverage stays out of it: it could not write where the child may not.
    """
    ours = (
        "OTEL_",
        "PYTHON",
        "PYTEST_",
        "RAXOL_",
        "LC_",
        "LANG",
        "NO_COLOR",
        *(() if measured else ("COVERAGE_", "COV_")),
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(ours)}
    return {**kept, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1", "LC_ALL": "C.UTF-8", **more}


def raxol(
    *arguments: str | os.PathLike[str], before: str = "", variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run the command in a process of its own, after the statements `before`."""
    return subprocess.run(
        [sys.executable, "-c", f"{before}\n{MAIN}", *arguments],
        env=environment(measured=not before, **(variables or {})),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="surrogateescape",
        timeout=SECONDS_MAX,
        check=False,
    )


@contextmanager
def held_lock(path: Path) -> Generator[subprocess.Popen[bytes]]:
    """A process that holds an open-file-description lock on the file."""
    command: Sequence[str] = [sys.executable, "-c", HOLD_LOCK, str(path)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment(measured=False)
    ) as process:
        assert process.stdout is not None
        try:
            assert select.select([process.stdout], [], [], SECONDS_MAX)[0], "the child says nothing"
            assert process.stdout.readline() == b"held\n"
            yield process
        finally:
            process.kill()


def in_own_mounts(script: str, *arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Run a shell script that may mount for itself, as `$1`, `$2`...; a skip where that is not allowed (exit 99)."""
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("there is no unshare to mount in private with")
    done = subprocess.run(
        [unshare, "--user", "--map-root-user", "--mount", "sh", "-c", f"echo in; {script}", "sh", *arguments],
        env=environment(measured=False),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    if done.returncode == MOUNT_REFUSED or not done.stdout.startswith("in\n"):
        pytest.skip(f"mounting is not allowed here: {done.stderr.strip()}")
    done.stdout = done.stdout.removeprefix("in\n")
    return done
