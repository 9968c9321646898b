"""`raxol-otel replay --to otlp` as its users meet it: exit codes, waiting, one at a time, what grows, archives."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tarfile
import threading
import time
from collections import Counter
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.canonical import encode
from raxol_otel.journal import iter_records
from raxol_otel.turns import fold
from tests.conftest import ROOT
from tests.exporter_contract import MAIN, environment, raxol, turn_records, turns_records, write_session
from tests.otlp_receiver import Action, Partial, Receiver, Request, Status, Warn, attributes
from tests.test_otlp_transport import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

PATIENCE_SECONDS: Final = 30.0
JOBS: Final = pytest.mark.parametrize("jobs", ["1", "2"])


@dataclass(frozen=True)
class Child:
    """A started command in a session of its own, with all that it starts; `log` is its standard error."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        """What it said so far."""
        return self.log.read_text(encoding="utf-8")

    def alive(self) -> list[int]:
        """The processes of its session that are not over."""
        found: list[int] = []
        for path in Path("/proc").glob("[0-9]*/stat"):
            with suppress(OSError):
                fields = path.read_bytes().rpartition(b")")[2].split()
                if int(fields[3]) == self.process.pid and fields[0] not in b"ZX":
                    found.append(int(path.parent.name))
        return found

    def workers(self) -> list[int]:
        """Its worker processes."""
        return [pid for pid in self.alive() if pid != self.process.pid]

    def gone(self, seconds: float) -> bool:
        """Whether nothing of it is left, at the latest after so long."""
        return wait_for(lambda: not self.alive(), seconds)


def wait_for(condition: Callable[[], bool], seconds: float = PATIENCE_SECONDS) -> bool:
    """Whether it came true in time."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.005)
    return True


def to(receiver: Receiver, *, grpc: bool = False) -> list[str]:
    """The options that lead to the receiver."""
    return (
        ["--endpoint", receiver.grpc_endpoint, "--protocol", "grpc"] if grpc else ["--endpoint", receiver.http_endpoint]
    )


@contextmanager
def started(folder: Path, *options: str) -> Generator[Child]:
    """A running replay of the folder's sessions `s` with its state; at the end nothing of it is left."""
    log = folder / f"log-{time.monotonic_ns()}"
    command = [
        sys.executable,
        "-c",
        MAIN,
        "replay",
        str(folder / "s"),
        "--to",
        "otlp",
        "--state",
        str(folder / "state"),
    ]
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [*command, *options],
            env=environment(measured=False),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
        )
    child = Child(process, log)
    try:
        yield child
    finally:
        for pid in child.alive():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        assert child.gone(PATIENCE_SECONDS)


def replayed(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """A whole replay of the folder's sessions with its state."""
    return raxol("replay", folder / "s", "--to", "otlp", "--state", folder / "state", *options)


def errors(said: str) -> list[str]:
    """The lines that tell a mistake, after checking that nothing else went wrong."""
    assert "Traceback" not in said, said
    return [line for line in said.splitlines() if line.startswith("Error: ")]


def sessions(folder: Path, count: int, turns: int = 2) -> set[tuple[str, str]]:
    """Make so many sessions; their spans by id and outcome."""
    for number in range(count):
        write_session(folder / "s" / f"{number:03}", turns_records(turns))
    return expected(folder)


def expected(folder: Path) -> set[tuple[str, str]]:
    """The spans of the folder's sessions, as a replay from scratch has them."""
    return {
        (span.span_id, str(span.attributes.get("raxol.turn.outcome", span.attributes.get("raxol.tool.outcome"))))
        for path in sorted((folder / "s").iterdir())
        for span in fold(iter_records(path), path.name)
    }


def delivered(receiver: Receiver) -> Counter[tuple[str, str]]:
    """The spans the receiver has, and how often; a repeated one is the same each time."""
    found: Counter[tuple[str, str]] = Counter()
    contents: dict[tuple[str, str], bytes] = {}
    for received in receiver.spans:
        told = attributes(received.span.attributes)
        key = received.span.span_id.hex(), str(told.get("raxol.turn.outcome", told.get("raxol.tool.outcome")))
        found[key] += 1
        content = received.span.SerializeToString(deterministic=True)
        assert contents.setdefault(key, content) == content
    return found


# -- exit codes


@pytest.mark.parametrize(
    ("grpc", "jobs"), [(False, "1"), (False, "2"), (True, "2")], ids=["http-1", "http-2", "grpc-2"]
)
def test_all_is_well(tmp_path: Path, jobs: str, *, grpc: bool) -> None:
    """Exit code 0, everything delivered once, a second run sends nothing."""
    spans = sessions(tmp_path, 5)
    with Receiver(grpc=grpc) as receiver:
        first = replayed(tmp_path, *to(receiver, grpc=grpc), "--jobs", jobs)
        second = replayed(tmp_path, *to(receiver, grpc=grpc), "--jobs", jobs)
        assert delivered(receiver) == dict.fromkeys(spans, 1)
    assert (first.returncode, first.stdout) == (0, "")
    assert first.stderr == "replayed 20 spans of 10 turns in 5 sessions to OTLP\n"
    assert (second.returncode, second.stdout) == (0, "")
    assert second.stderr == "replayed 0 spans of 10 turns in 5 sessions to OTLP; 20 were delivered before\n"


@JOBS
def test_damage_is_told_and_what_stands_before_it_is_delivered(tmp_path: Path, jobs: str) -> None:
    """Exit code 1, one Error line that names the session."""
    spans = sessions(tmp_path, 2)
    write_session(tmp_path / "s" / "bad", turn_records(), tail=b'{"id":oops}\n')
    with Receiver() as receiver:
        done = replayed(tmp_path, *to(receiver), "--jobs", jobs)
        assert spans < {*delivered(receiver)}
        assert len(receiver.spans) == 10
    assert done.returncode == 1
    (error,) = errors(done.stderr)
    assert error.startswith(f"Error: {tmp_path}/s/bad is ")


@JOBS
@pytest.mark.parametrize(
    ("action", "said"),
    [(Status(400, message="bad\nspans"), "HTTP 400: bad spans"), (Partial(1, "no room"), "no room")],
    ids=["all", "one"],
)
def test_what_the_receiver_refuses_is_told(tmp_path: Path, jobs: str, action: Action, said: str) -> None:
    """Exit code 3, one Error line with endpoint and reason."""
    sessions(tmp_path, 3)
    with Receiver(script=[action]) as receiver:
        done = replayed(tmp_path, *to(receiver), "--jobs", jobs)
        (error,) = errors(done.stderr)
        assert receiver.http_endpoint in error
    assert (done.returncode, done.stdout) == (3, "")
    assert said in error


@JOBS
def test_a_receiver_that_stays_away(tmp_path: Path, jobs: str) -> None:
    """After --retry-for seconds exit code 3 and one Error line; nothing counts as delivered."""
    spans = sessions(tmp_path, 2)
    receiver = Receiver(port=free_port())
    began = time.monotonic()
    done = replayed(tmp_path, *to(receiver), "--jobs", jobs, "--retry-for", "1")
    assert time.monotonic() - began < PATIENCE_SECONDS
    assert done.returncode == 3
    (error,) = errors(done.stderr)
    assert receiver.http_endpoint in error
    assert "within 1 s" in error
    with receiver:
        assert replayed(tmp_path, *to(receiver), "--jobs", jobs).returncode == 0
        assert delivered(receiver) == dict.fromkeys(spans, 1)


@JOBS
@pytest.mark.parametrize("grpc", [False, True], ids=["http", "grpc"])
def test_a_receiver_that_comes_back(tmp_path: Path, jobs: str, *, grpc: bool) -> None:
    """Down at first: the waiting is told, then everything is delivered, exit code 0."""
    spans = sessions(tmp_path, 2)
    receiver = Receiver(grpc=grpc, port=free_port())
    with (
        ExitStack() as stack,
        started(tmp_path, *to(receiver, grpc=grpc), "--jobs", jobs, "--retry-for", "20") as child,
    ):
        told = wait_for(lambda: "; trying again in " in child.said, 8.0)
        stack.enter_context(receiver)
        assert child.process.wait(PATIENCE_SECONDS) == 0
        assert delivered(receiver) == dict.fromkeys(spans, 1)
    assert errors(child.said) == []
    assert told


@JOBS
def test_what_the_receiver_says_forges_no_line(tmp_path: Path, jobs: str) -> None:
    """Neither a line of ours nor anything that a terminal would obey, whichever process tells it."""
    sessions(tmp_path, 1)
    evil = "wait\x1b[31m\nError: forged\r\u202e"
    with Receiver(script=[Status(503, "0", evil), Partial(1, evil)]) as receiver:
        done = replayed(tmp_path, *to(receiver), "--jobs", jobs)
    assert "trying again in" in done.stderr
    assert done.returncode == 3
    assert [error for error in errors(done.stderr) if "forged" in error[:20]] == []
    assert all(letter.isprintable() or letter == "\n" for letter in done.stderr)


@pytest.mark.parametrize("action", [Warn("please upgrade"), Partial(1, "no room")], ids=["warning", "refusal"])
def test_the_same_words_forty_times_are_no_flood(tmp_path: Path, action: Action) -> None:
    """A night has hundreds of requests, and the receiver may say the same to each."""
    sessions(tmp_path, 40, turns=1)
    with Receiver(script=lambda _: action) as receiver:
        said = replayed(tmp_path, *to(receiver)).stderr
    assert ("please upgrade" in said) is isinstance(action, Warn)
    assert len(said) < 2_000


def test_a_password_in_the_endpoint_is_not_told(tmp_path: Path) -> None:
    """Whatever becomes of it: error texts end up in logs."""
    sessions(tmp_path, 1)
    with Receiver(script=[Status(401)]) as receiver:
        done = replayed(tmp_path, "--endpoint", f"http://me:hunter2@{receiver.address}")
    assert done.returncode in {2, 3}
    assert "hunter2" not in done.stderr


def test_the_libraries_say_nothing_of_their_own(tmp_path: Path) -> None:
    """Standard error has our lines only, also where gRPC fails in a handshake."""
    sessions(tmp_path, 1)
    with Receiver(grpc=True) as receiver:
        endpoint = receiver.grpc_endpoint.replace("http://", "https://")
        done = replayed(tmp_path, "--protocol", "grpc", "--endpoint", endpoint, "--retry-for", "0.5")
    assert done.returncode == 3
    known = (endpoint, "Error: ", "Try: ")
    assert [line for line in done.stderr.splitlines() if not line.startswith(known)] == []
    assert len(errors(done.stderr)) == 1


@JOBS
def test_a_second_replay_with_the_same_state_is_refused(tmp_path: Path, jobs: str) -> None:
    """While the first runs: exit code 2 and one Error line, nothing sent; the first is not disturbed."""
    spans = sessions(tmp_path, 2)
    go_on = threading.Event()

    def script(_request: Request) -> None:
        go_on.wait(PATIENCE_SECONDS)

    with Receiver(script=script) as receiver, started(tmp_path, *to(receiver), "--jobs", jobs) as first:
        assert wait_for(lambda: (tmp_path / "state.lock").exists() and (tmp_path / "state").exists())
        second = replayed(tmp_path, *to(receiver), "--jobs", jobs)
        go_on.set()
        assert first.process.wait(PATIENCE_SECONDS) == 0
        assert delivered(receiver) == dict.fromkeys(spans, 1)
    assert second.returncode == 2
    assert errors(second.stderr) == [f"Error: the state file {tmp_path}/state is in use by another raxol-otel"]


# -- what grows, what is packed, and a receiver of its own


@JOBS
def test_a_journal_that_grows_while_it_is_replayed(tmp_path: Path, jobs: str) -> None:
    """Written to in halves of lines all the time; in the end every span is there with its last outcome."""
    sessions(tmp_path, 1, turns=1)
    path = tmp_path / "s" / "000" / "journal" / "000001.jsonl"
    enough = threading.Event()

    def write() -> None:
        for record in turns_records(2_000, start=1):
            line = encode(record) + b"\n"
            with path.open("ab", buffering=0) as file:
                file.write(line[: len(line) // 2])
                time.sleep(0.001)
                file.write(line[len(line) // 2 :])
            if enough.is_set():
                return

    with Receiver() as receiver:
        writer = threading.Thread(target=write)
        writer.start()
        try:
            runs = [replayed(tmp_path, *to(receiver), "--jobs", jobs) for _ in range(2)]
        finally:
            enough.set()
            writer.join()
        runs.append(replayed(tmp_path, *to(receiver), "--jobs", jobs))
        found = delivered(receiver)
    assert [(run.returncode, errors(run.stderr)) for run in runs] == [(0, [])] * 3
    assert expected(tmp_path) <= {*found}
    assert {span_id for span_id, _ in found} == {span_id for span_id, _ in expected(tmp_path)}
    assert {*found.values()} == {1}


@JOBS
def test_a_tar_is_remembered_too(tmp_path: Path, jobs: str) -> None:
    """A second run of the archive sends nothing; one that has grown under the same name only what is new."""
    sessions(tmp_path, 2, turns=1)

    def pack() -> None:
        with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as archive:
            archive.add(tmp_path / "s", "night")

    options = ("replay", tmp_path / "s.tar.gz", "--to", "otlp", "--state", tmp_path / "state", "--jobs", jobs)
    with Receiver() as receiver:
        pack()
        first, second = (raxol(*options, *to(receiver)) for _ in range(2))
        spans = sessions_of_three(tmp_path)
        pack()
        third = raxol(*options, *to(receiver))
        assert delivered(receiver) == dict.fromkeys(spans, 1)
    assert [done.returncode for done in (first, second, third)] == [0, 0, 0]
    assert [done.stderr.split(" of ")[0] for done in (first, second, third)] == [
        "replayed 4 spans",
        "replayed 0 spans",
        "replayed 6 spans",
    ]
    assert third.stderr.endswith("; 4 were delivered before\n")


def sessions_of_three(folder: Path) -> set[tuple[str, str]]:
    """The folder's two sessions with a second turn each, and a third; all their spans."""
    shutil.rmtree(folder / "s")
    for name, turns in (("000", 2), ("001", 2), ("002", 1)):
        write_session(folder / "s" / name, turns_records(turns))
    return expected(folder)


@pytest.mark.parametrize("grpc", [False, True], ids=["http", "grpc"])
def test_a_receiver_in_a_process_of_its_own(tmp_path: Path, *, grpc: bool) -> None:
    """What it writes down are the ids of all spans, each once."""
    spans = sessions(tmp_path, 4)
    command = [sys.executable, "-m", "tests.otlp_receiver", "--spans-file", str(tmp_path / "ids")]
    with subprocess.Popen(
        [*command, *(["--grpc"] if grpc else [])],
        cwd=ROOT,
        env=environment(measured=False),
        stdout=subprocess.PIPE,
        text=True,
    ) as receiver:
        try:
            assert receiver.stdout is not None
            endpoint = f"http://127.0.0.1:{int(receiver.stdout.readline())}"
            protocol = "grpc" if grpc else "http/protobuf"
            done = replayed(tmp_path, "--endpoint", endpoint, "--protocol", protocol, "--jobs", "2")
        finally:
            receiver.terminate()
    assert (done.returncode, errors(done.stderr)) == (0, [])
    assert sorted((tmp_path / "ids").read_text().split()) == sorted(span_id for span_id, _ in spans)
