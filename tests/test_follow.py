"""`raxol-otel replay --follow` as its users meet it: real processes, signals, kill -9, restarts."""

from __future__ import annotations

import os
import pty
import random
import re
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from benchmarks.journals import make
from tests.conftest import ROOT
from tests.exporter_contract import MAIN, environment, raxol
from tests.follow_agents import agent, arrived, replayed
from tests.otlp_receiver import Action, Hang, Receiver, Request, Status
from tests.test_otlp_cli import PATIENCE_SECONDS, errors, started, to, wait_for
from tests.test_otlp_transport import free_port

if TYPE_CHECKING:
    from collections.abc import Generator

STOP_SECONDS = 5.0


@contextmanager
def writing(folder: Path, *options: str) -> Generator[subprocess.Popen[bytes]]:
    """Agents at work in a process of their own."""
    command = [sys.executable, "-m", "tests.follow_agents", str(folder), *options]
    process = subprocess.Popen(command, cwd=ROOT, env=environment(measured=False), stdout=subprocess.DEVNULL)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


# -- the point of it


def test_a_turn_arrives_within_two_seconds_of_its_closing(tmp_path: Path) -> None:
    """From the record that closes it to the receiver, in a folder that was not there at first."""
    with Receiver() as receiver, started(tmp_path, *to(receiver), "--follow") as child:
        assert wait_for(lambda: "which does not exist yet" in child.said)
        with agent(tmp_path / "s") as writer:
            for number in range(6):
                writer.turn("completed", 2)
                closed = time.monotonic()
                receiver.wait_spans(3 * (number + 1))
                # The first one may still find the folder unwatched.
                assert time.monotonic() - closed < 2
                time.sleep(0.17)
        child.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        assert child.process.wait(PATIENCE_SECONDS) == 0
        assert time.monotonic() - begun < STOP_SECONDS
        assert child.said.splitlines()[-1] == f"sent 18 spans to {receiver.http_endpoint}"
    assert arrived(receiver.spans) == replayed(tmp_path / "s")


def test_whenever_it_is_killed_nothing_is_missing(tmp_path: Path) -> None:
    """Kill -9 at 20 random points under load: in the end the receiver has what a replay from scratch gives.

    What came twice is the same to the last attribute.
    """
    drawn = random.Random("follow")  # noqa: S311 - the same points every time
    folder = tmp_path / "s"
    with Receiver() as receiver:
        with writing(folder, "--sessions", "6", "--turns", "900", "--seconds", "40") as writer:
            for kill in range(20):
                with started(tmp_path, *to(receiver), "--follow") as child:
                    if kill % 3:
                        receiver.wait_requests(len(receiver.requests) + 1, PATIENCE_SECONDS)
                        time.sleep(drawn.choice((drawn.uniform(0, 0.05), drawn.uniform(0, 3.2))))
                    else:
                        time.sleep(drawn.uniform(0.3, 2.5))
                    os.kill(child.process.pid, signal.SIGKILL)
                    assert child.process.wait(PATIENCE_SECONDS) == -signal.SIGKILL
            assert writer.wait(PATIENCE_SECONDS * 2) == 0
        expected = replayed(folder)
        with started(tmp_path, *to(receiver), "--follow") as child:
            assert wait_for(lambda: "traces go to" in child.said)
            assert wait_for(lambda: len(arrived(receiver.spans)) >= len(expected))
            child.process.send_signal(signal.SIGTERM)
            assert child.process.wait(PATIENCE_SECONDS) == 0
            assert errors(child.said) == []
        assert arrived(receiver.spans) == expected
        assert len(expected) > 3000
        # Not everything was sent every time: positions are kept.
        assert len(receiver.spans) < 6 * len(expected)


def test_a_restart_sends_nothing_twice(tmp_path: Path) -> None:
    """After SIGTERM the next run goes on where the last one stood."""
    with Receiver() as receiver:
        for number in range(2):
            with agent(tmp_path / "s", seed=number) as writer:
                writer.turn("completed", 2)
            with started(tmp_path, *to(receiver), "--follow") as child:
                receiver.wait_spans(3 * (number + 1))
                child.process.send_signal(signal.SIGINT)
                assert child.process.wait(PATIENCE_SECONDS) == 0
        assert len(receiver.spans) == 6


def test_memory_is_bounded_while_the_endpoint_is_down(tmp_path: Path) -> None:
    """80 MB of journal wait in their file; then all of it is sent, by a process that stays small."""
    journal = make(tmp_path / "s" / "big", 200_000)
    port = free_port()
    with started(tmp_path, "--endpoint", f"http://127.0.0.1:{port}", "--follow") as child:
        assert wait_for(lambda: "takes no spans" in child.said)
        time.sleep(3)
        assert peak_mib(child.process.pid) < 150
        with Receiver(port=port, keep=False) as receiver:
            assert wait_for(lambda: receiver.counts.spans >= journal.spans, 120)
            assert peak_mib(child.process.pid) < 150
            child.process.send_signal(signal.SIGTERM)
            assert child.process.wait(PATIENCE_SECONDS) == 0
            assert receiver.counts.spans == journal.spans


def peak_mib(pid: int) -> float:
    """The largest resident set of a process so far."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text(encoding="ascii"))
    assert found
    return int(found[1]) / 1024


# -- its end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_endpoint_that_is_down_at_the_end_is_told(tmp_path: Path, number: signal.Signals) -> None:
    """Exit code 3 within 5 seconds, and one line that says what was not delivered; the next run delivers it."""
    port = free_port()
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 2)
    with started(tmp_path, "--endpoint", f"http://127.0.0.1:{port}", "--follow") as child:
        assert wait_for(lambda: "takes no spans" in child.said)
        child.process.send_signal(number)
        begun = time.monotonic()
        assert child.process.wait(PATIENCE_SECONDS) == 3
        assert time.monotonic() - begun < STOP_SECONDS
        endpoint = f"http://127.0.0.1:{port}/v1/traces"
        said = f"Error: stopped with at least 3 spans not taken by {endpoint}; the next run sends them"
        assert errors(child.said) == [said]
    with Receiver(port=port) as receiver, started(tmp_path, *to(receiver), "--follow"):
        receiver.wait_spans(3)


def test_an_endpoint_that_hangs_at_the_end_is_left(tmp_path: Path) -> None:
    """A request that is never answered does not hold the command up for more than 5 seconds."""
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 2)
    with Receiver(script=[Hang(30.0)]) as receiver, started(tmp_path, *to(receiver), "--follow") as child:
        receiver.wait_requests(1, PATIENCE_SECONDS)
        child.process.send_signal(signal.SIGTERM)
        begun = time.monotonic()
        assert child.process.wait(PATIENCE_SECONDS) == 3
        assert time.monotonic() - begun < STOP_SECONDS


def test_what_was_read_is_delivered_at_the_end(tmp_path: Path) -> None:
    """A busy endpoint that has its last chance at the signal: exit code 0, nothing is left."""
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 2)
    busy = [True]

    def answer(_request: Request) -> Action | None:
        return Status(503, retry_after="600") if busy[0] else None

    with Receiver(script=answer) as receiver, started(tmp_path, *to(receiver), "--follow") as child:
        receiver.wait_requests(1, PATIENCE_SECONDS)
        time.sleep(0.3)
        busy[0] = False
        child.process.send_signal(signal.SIGTERM)
        assert child.process.wait(PATIENCE_SECONDS) == 0
        assert len(receiver.spans) == 3


# -- beside metrics


def test_serve_sends_traces_beside_its_metrics(tmp_path: Path) -> None:
    """What was there before, too; what became of the spans is among the metrics; it ends within 5 seconds."""
    log = tmp_path / "log"
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 2)
    with Receiver() as receiver, log.open("wb") as stderr:
        state = str(tmp_path / "state")
        command = ["serve", "--sessions-dir", str(tmp_path / "s"), "--listen", "127.0.0.1:0", "--state", state]
        options = ["--otlp-endpoint", receiver.http_endpoint, "--otlp-header", "x-team=tea", "--otlp-sample", "1"]
        process = subprocess.Popen(
            [sys.executable, "-c", MAIN, *command, *options], env=environment(measured=False), stderr=stderr
        )
        try:
            receiver.wait_spans(3, PATIENCE_SECONDS)
            with agent(tmp_path / "s", "two") as writer:
                writer.turn("completed", 2)
            receiver.wait_spans(6)
            assert receiver.requests[0].headers["x-team"] == "tea"
            found = re.search(r"on (http://127\.0\.0\.1:\d+)", log.read_text(encoding="utf-8"))
            assert found
            accepted = f'raxol_exporter_spans_total{{endpoint="{receiver.http_endpoint}",result="accepted"}} 6.0'
            assert wait_for(lambda: accepted in scraped(found[1]).splitlines())
            assert f'raxol_exporter_backlog_spans{{endpoint="{receiver.http_endpoint}"}} 0.0' in scraped(found[1])
            process.send_signal(signal.SIGTERM)
            begun = time.monotonic()
            assert process.wait(PATIENCE_SECONDS) == 0
            assert time.monotonic() - begun < STOP_SECONDS
        finally:
            process.kill()
            process.wait()
    assert arrived(receiver.spans) == replayed(tmp_path / "s")


def scraped(url: str) -> str:
    """The metrics as text."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:  # noqa: S310 - our own
        return bytes(answer.read()).decode()


# -- how it is asked for


def test_several_paths_and_endpoints(tmp_path: Path) -> None:
    """A session that is named itself, beside the folder that it lies in, is sent once to each endpoint."""
    for name in ("one", "two"):
        with agent(tmp_path / "s", name) as writer:
            writer.turn("completed", 2)
    with agent(tmp_path / "elsewhere") as writer:
        writer.turn("completed", 0)
    with Receiver() as first, Receiver() as second:
        paths = (str(tmp_path / "s"), str(tmp_path / "s" / "one"), str(tmp_path / "elsewhere" / "one"))
        command = [sys.executable, "-c", MAIN, "replay", *paths, "--follow", "--to", "otlp", *to(first), *to(second)]
        process = subprocess.Popen(command, env=environment(measured=False), stderr=subprocess.DEVNULL)
        try:
            first.wait_spans(7)
            second.wait_spans(7)
            with agent(tmp_path / "elsewhere") as writer:
                writer.turn("completed", 0)
            first.wait_spans(8)
            second.wait_spans(8)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
        assert (len(first.spans), len(second.spans)) == (8, 8)


TO_OTLP = ("--follow", "--to", "otlp")
BOTH = ("--endpoint", "http://a", "--endpoint")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (("--follow",), "--follow sends to an endpoint only", "add --to otlp"),
        (("--follow", "--to", "console"), "--follow sends to an endpoint only", "add --to otlp"),
        ((*TO_OTLP, "--turn", "t"), "--turn does not go with --follow", "replay without --follow"),
        ((*TO_OTLP, "--jobs", "2"), "--jobs does not go with --follow", "replay without --follow"),
        (("--sample", "0.5"), "--sample goes with --follow", "add --follow --to otlp"),
        (("--session", "a*", "--poll"), "--session, --poll goes with --follow", "add --follow --to otlp"),
        (
            ("--to", "otlp", *BOTH, "http://b"),
            "several --endpoint go with --follow",
            "replay once for each, or add --follow",
        ),
        ((*TO_OTLP, *BOTH, "http://a/v1/traces"), "http://a/v1/traces is named twice", "name each endpoint once"),
        (
            (*TO_OTLP, "--endpoint", "ftp://a"),
            "--endpoint: 'ftp://a' is no http or https URL",
            "use http://localhost:4318 or the like",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(
    tmp_path: Path, options: tuple[str, ...], message: str, hint: str
) -> None:
    """Exit code 2, one line that says why and one that leads on."""
    done = raxol("replay", str(tmp_path), *options)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [f"Error: {message}", f"Try: {hint}"]


@pytest.mark.parametrize(
    ("option", "value"), [("--sample", "2"), ("--sample", "nan"), ("--sample", "x"), ("--outcome", "completed,done")]
)
def test_values_that_mean_nothing_are_refused(tmp_path: Path, option: str, value: str) -> None:
    """Exit code 2, naming the value."""
    done = raxol("replay", str(tmp_path), "--follow", "--to", "otlp", option, value)
    assert done.returncode == 2
    assert repr(value) in done.stderr


def test_a_file_is_not_followed(tmp_path: Path) -> None:
    """Nothing is ever added to an archive."""
    path = tmp_path / "a.tar"
    path.write_bytes(b"")
    done = raxol("replay", str(path), "--follow", "--to", "otlp")
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == f"Error: {path} is no directory, and nothing is ever added to it"


def test_a_terminal_shows_what_goes_on(tmp_path: Path) -> None:
    """A line that is written over again and again, on a terminal only."""
    with agent(tmp_path / "s") as writer:
        writer.turn("completed", 2)
    ours, theirs = pty.openpty()
    with Receiver() as receiver:
        command = [sys.executable, "-c", MAIN, "replay", str(tmp_path / "s"), "--to", "otlp", *to(receiver), "--follow"]
        process = subprocess.Popen(command, env=environment(measured=False), stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while b"1 sessions; " not in shown or b": 3 spans" not in shown:
                shown += os.read(ours, 4096)
            process.send_signal(signal.SIGTERM)
            assert process.wait(PATIENCE_SECONDS) == 0
        finally:
            process.kill()
            process.wait()
            os.close(ours)
