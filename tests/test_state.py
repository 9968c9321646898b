"""What was delivered is remembered: nothing twice, nothing lost, and a state file that is none is never trusted."""

from __future__ import annotations

import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import ExportError, UsageError
from raxol_otel.exporters.base import ExportResult
from raxol_otel.exporters.limits import Limits
from raxol_otel.exporters.otlp import OtlpExporter, RetryPolicy
from raxol_otel.exporters.replay import ReplayOptions, ReplayReport, replay
from raxol_otel.exporters.state import DeliveryState, StateLock
from tests.conftest import unprivileged
from tests.exporter_contract import (
    MAIN,
    Recorder,
    child_span,
    in_own_mounts,
    turn_records,
    turn_span,
    turns_records,
    write_session,
)
from tests.otlp_receiver import Receiver, Request, Status
from tests.test_otlp_exporter import ENVELOPE, config_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raxol_otel.turns import Span

HERE: Final = "http://127.0.0.1:4318/v1/traces"


class Run:
    """One replay of a folder's sessions with its state file: what was sent, reported and noticed."""

    def __init__(self, folder: Path, destination: str = HERE, exporter: Recorder | None = None, **options: Any) -> None:
        recorder = exporter or Recorder()
        self.notices: list[str] = []
        with DeliveryState(folder / "state", destination, notice=self.notices.append) as state:
            self.report: ReplayReport = replay([folder / "s"], recorder, ReplayOptions(state=state, **options))
        self.sent = [(span.name, outcome(span)) for span in recorder.spans]
        self.ids = [span.span_id for span in recorder.spans]


def outcome(span: Span) -> str:
    """The outcome in the span's attributes."""
    return str(span.attributes.get("raxol.turn.outcome", span.attributes.get("raxol.tool.outcome", "")))


def rewritten(folder: Path, records: Sequence[dict[str, Any]]) -> Path:
    """The session `s` of the folder with these records now."""
    shutil.rmtree(folder / "s", ignore_errors=True)
    return write_session(folder / "s", records)


TURN: Final = [("execute_tool read_file", "ok"), ("invoke_agent", "completed")]

# -- nothing twice


def test_a_second_run_sends_nothing(tmp_path: Path) -> None:
    """Everything is known as delivered; the report says how much."""
    rewritten(tmp_path, turns_records(3))
    first, second = Run(tmp_path), Run(tmp_path)
    assert first.sent == TURN * 3
    assert second.sent == []
    assert [(run.report.accepted, run.report.total("already")) for run in (first, second)] == [(6, 0), (0, 6)]
    assert [run.report.total("turns") for run in (first, second)] == [3, 3]


def test_what_was_added_is_sent_alone(tmp_path: Path) -> None:
    """A journal that has grown costs only what is new."""
    rewritten(tmp_path, turns_records(2))
    before = Run(tmp_path).ids
    rewritten(tmp_path, turns_records(5))
    after = Run(tmp_path)
    assert after.sent == TURN * 3
    assert not {*before} & {*after.ids}
    assert after.report.total("already") == 4


@pytest.mark.parametrize(
    ("first", "sent", "again"),
    [
        (3, [("execute_tool read_file", "ok"), ("invoke_agent", "incomplete")], [("invoke_agent", "completed")]),
        (2, [("execute_tool read_file", "unanswered"), ("invoke_agent", "incomplete")], TURN),
    ],
    ids=["a call that was answered", "a call that was not"],
)
@pytest.mark.parametrize("attributes", [None, 1], ids=["all attributes", "one attribute"])
def test_an_incomplete_turn_that_completes_is_sent_again(
    tmp_path: Path, first: int, sent: list[tuple[str, str]], again: list[tuple[str, str]], attributes: int | None
) -> None:
    """Under the same id with its new outcome, also where limits leave no attribute to see it; the rest is not."""
    limits = Limits(attributes=attributes)
    rewritten(tmp_path, turn_records()[:first])
    before = Run(tmp_path, limits=limits)
    rewritten(tmp_path, turn_records())
    after, then = Run(tmp_path, limits=limits), Run(tmp_path, limits=limits)
    assert [name for name, _ in before.sent] == [name for name, _ in sent]
    assert [name for name, _ in after.sent] == [name for name, _ in again]
    assert {*after.ids} <= {*before.ids}
    assert then.sent == []
    if attributes is None:
        assert (before.sent, after.sent) == (sent, again)


def test_two_destinations_do_not_mix(tmp_path: Path) -> None:
    """What one has, the other still wants; one file remembers both."""
    rewritten(tmp_path, turns_records(1))
    assert [Run(tmp_path, where).sent for where in ("http://a", "http://b")] == [TURN, TURN]
    assert [Run(tmp_path, where).sent for where in ("http://a", "http://b", "http://c")] == [[], [], TURN]


class Failing(Recorder):
    """Takes so many batches, then none."""

    def __init__(self, taken: int) -> None:
        super().__init__()
        self.left = taken

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Take the spans or fail."""
        if not self.left:
            raise ExportError("it is down")
        self.left -= 1
        return super().export(spans)


def test_what_could_not_be_delivered_is_not_remembered(tmp_path: Path) -> None:
    """A run that failed leaves as known what was taken before it failed, session by session."""
    for name in "abc":
        write_session(tmp_path / "s" / name, turn_records(turn=name))
    failing = Failing(2)
    with pytest.raises(ExportError, match="it is down"):
        Run(tmp_path, exporter=failing)
    assert [span.attributes.get("raxol.turn.id") for span in failing.spans] == [None, "a", None, "b"]
    rest = Recorder()
    Run(tmp_path, exporter=rest)
    assert [span.attributes.get("raxol.turn.id") for span in rest.spans] == [None, "c"]


def test_requests_that_were_taken_before_a_refusal_are_remembered(tmp_path: Path) -> None:
    """Of a session of three requests the first is taken, the second refused: the next run sends the other two."""
    rewritten(tmp_path, turns_records(2_500))

    def script(request: Request) -> Status | None:
        return Status(400) if request.number == 1 else None

    with Receiver(script=script) as receiver:
        for _ in range(2):
            exporter = OtlpExporter(config_of("http", receiver), ENVELOPE, policy=RetryPolicy(total=5.0))
            with DeliveryState(tmp_path / "state", HERE) as state, exporter, suppress(ExportError):
                replay([tmp_path / "s"], exporter, ReplayOptions(state=state))
        ids = [received.span.span_id for received in receiver.spans]
    assert len({*ids}) == 5_000
    assert len(ids) == 5_000


def test_refused_spans_are_refused_for_good(tmp_path: Path) -> None:
    """What the endpoint rejected is not sent again."""

    class Rejecting(Recorder):
        def export(self, spans: Sequence[Span]) -> ExportResult:
            super().export(spans)
            return ExportResult(len(spans) - 1, 1, "no")

    rewritten(tmp_path, turn_records())
    first = Run(tmp_path, exporter=Rejecting())
    assert (first.report.accepted, first.report.rejected) == (1, 1)
    assert Run(tmp_path).sent == []


def test_a_session_whose_path_is_no_text_is_remembered_too(tmp_path: Path) -> None:
    """A folder name of any bytes can be replayed with a state."""
    write_session(tmp_path / "s" / os.fsdecode(b"\xff\xfe"), turn_records())
    assert [Run(tmp_path).sent, Run(tmp_path).sent] == [TURN, []]


def test_many_spans_at_once(tmp_path: Path) -> None:
    """However many spans are asked about, known and unknown are told apart, in their order."""
    spans = [turn_span(number) for number in range(1, 3_001)]
    with DeliveryState(tmp_path / "state", HERE) as state, DeliveryState(tmp_path / "state", HERE) as other:
        state.remember(spans[::2])
        assert other.undelivered(spans) == spans[1::2]
        assert other.undelivered([]) == []
        other.remember(spans)
        assert state.undelivered(spans) == []
        assert state.undelivered([child_span(spans[0])]) == [child_span(spans[0])]


# -- positions


def test_a_journal_that_lost_records_is_told(tmp_path: Path) -> None:
    """Restored from an older copy, say: healthy, but it ended further on last time; each run says so."""
    rewritten(tmp_path, turns_records(3))
    Run(tmp_path)
    rewritten(tmp_path, turns_records(2))
    for _ in range(2):
        run = Run(tmp_path)
        assert [session.warning for session in run.report.sessions] == [
            "it ended at offset 12 when it was replayed last, and now ends at 8"
        ]
    rewritten(tmp_path, turns_records(4))
    assert [session.warning for session in Run(tmp_path).report.sessions] == [None]


def test_a_position_is_kept_for_each_destination_and_session(tmp_path: Path) -> None:
    """Of any size."""
    with DeliveryState(tmp_path / "state", HERE) as state, DeliveryState(tmp_path / "state", "else") as other:
        state.advance("a", 7)
        state.advance("b", 10**1000)
        other.advance("a", 1)
        state.advance("a", 8)
        assert [state.position("a"), state.position("b"), state.position("c")] == [8, 10**1000, None]
        assert other.position("a") == 1


# -- one at a time


def test_a_state_in_use_is_refused(tmp_path: Path) -> None:
    """To the second who wants it, by whichever name, until the first lets go."""
    path = tmp_path / "state"
    made_state(path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "link").symlink_to(path)
    names = [path, tmp_path / "other" / ".." / "state", tmp_path / "other" / "link"]
    held = StateLock(path)
    for name in names:
        with pytest.raises(UsageError, match=r"in use by another raxol-otel"):
            StateLock(name)
    held.release()
    for name in names:
        StateLock(name).release()


# -- no place to write


def made_state(path: Path) -> bytes:
    """A state file of three thousand spans; its bytes."""
    with DeliveryState(path, HERE) as state:
        state.remember(turn_span(number) for number in range(1, 3_001))
    assert not Path(f"{path}-wal").exists()
    return path.read_bytes()


@pytest.mark.parametrize("there", [False, True], ids=["no file yet", "a file"])
def test_a_folder_that_may_not_be_written_is_refused(*, there: bool) -> None:
    """A usage error that names the state file, before anything is sent."""
    with TemporaryDirectory() as name:
        folder = Path(name)
        if there:
            made_state(folder / "state")
        folder.chmod(0o555)
        with unprivileged(folder):
            with pytest.raises(UsageError, match=rf"the state file {folder}/state: "):
                StateLock(folder / "state")
            with pytest.raises(UsageError, match=rf"the state file {folder}/state: "):
                DeliveryState(folder / "state", HERE)
        folder.chmod(0o755)
        assert {path.name for path in folder.iterdir()} <= {"state"}


@pytest.mark.parametrize("jobs", ["1", "2"])
def test_a_full_disk_under_the_state_file(tmp_path: Path, jobs: str) -> None:
    """Exit code 3 and one line; once there is room the next run completes, and all is delivered."""
    for number in range(6):
        records = [record | {"turn_id": f"{number}-{record['turn_id']}"} for record in turns_records(500)]
        write_session(tmp_path / "s" / f"{number}", records)
    (tmp_path / "disk").mkdir()
    run = '"$2" -c "$3" replay "$4" --to otlp --endpoint "$5" --retry-for 5 --state "$1/state" --jobs "$6"; echo $?'
    script = (
        f'mount -t tmpfs -o size=200k none "$1" || exit 99; {run}; echo --- >&2; '
        f'mount -o remount,size=9m "$1" || exit 99; {run}'
    )
    with Receiver() as receiver:
        done = in_own_mounts(
            script, tmp_path / "disk", sys.executable, MAIN, tmp_path / "s", receiver.http_endpoint, jobs
        )
        ids = {received.span.span_id for received in receiver.spans}
    assert done.stdout == "3\n0\n"
    first, _, second = done.stderr.partition("---\n")
    assert f"Error: cannot keep the state file {tmp_path}/disk/state: " in first
    assert first.count("Error: ") == 1
    assert "Traceback" not in done.stderr
    assert second.startswith("replayed ")
    assert len(ids) == 6_000
