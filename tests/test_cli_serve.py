"""The command `raxol-otel serve`: how it begins, what it refuses, how it ends."""

from __future__ import annotations

import http.client
import os
import re
import select
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from raxol_otel.cli import main
from tests.conftest import ROOT
from tests.fleet_server import config_file, hashed

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path


@contextmanager
def program(kind: str, folder: Path, *options: str) -> Generator[subprocess.Popen[bytes]]:
    """The command with an engine of this kind; killed at the end, should it still run."""
    arguments = ["serve", "--sessions-dir", str(folder), "--listen", "127.0.0.1:0", *options]
    with subprocess.Popen(
        [sys.executable, "-m", "tests.fleet_program", kind, *arguments],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told_url(process: subprocess.Popen[bytes], seconds: float = 20.0) -> tuple[str, int]:
    """What the command said until it serves, and its port."""
    assert process.stderr is not None
    deadline = time.monotonic() + seconds
    said = b""
    while (match := re.search(rb"serving .* on https?://[^:]+:([0-9]+)/\n", said)) is None:
        ready, _, _ = select.select([process.stderr], [], [], max(0.0, deadline - time.monotonic()))
        assert ready, said
        more = os.read(process.stderr.fileno(), 4096)
        assert more, said
        said += more
    return said.decode(), int(match[1])


def scraped(port: int) -> tuple[int, bytes]:
    """Status and body of /metrics, as soon as there is a view."""
    deadline = time.monotonic() + 10
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        body = answer.read()
        connection.close()
        if answer.status != 503 or time.monotonic() > deadline:
            return answer.status, body


def ended(process: subprocess.Popen[bytes], seconds: float = 10.0) -> tuple[int, str, str]:
    """Exit code, standard output, and what is left of standard error."""
    out, told = process.communicate(timeout=seconds)
    return process.returncode, out.decode(), told.decode()


def failed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Exit code and standard error of a command that does not begin to serve."""
    try:
        code = main(["serve", *arguments])
    except SystemExit as stop:
        code = int(str(stop.code))
    out, told = capsys.readouterr()
    assert out == ""
    return code, told


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    """SIGTERM and Ctrl-C end it within 5 seconds and with exit code 0, also while clients hold connections."""
    with program("good", tmp_path) as process:
        said, port = told_url(process)
        assert scraped(port) == (200, b"up 1\n")
        with socket.create_connection(("127.0.0.1", port), timeout=10) as held:
            held.sendall(b"GET /met")
            began = time.monotonic()
            process.send_signal(number)
            assert ended(process) == (0, "", "")
            assert time.monotonic() - began < 5
    assert re.fullmatch(rf"serving {re.escape(str(tmp_path))} on http://127.0.0.1:{port}/\n", said)


def test_an_engine_that_does_not_stop_is_left(tmp_path: Path) -> None:
    """What does not end in time is left behind after less than 5 seconds, told, with exit code 3."""
    with program("stuck", tmp_path) as process:
        _, port = told_url(process)
        scraped(port)
        began = time.monotonic()
        process.terminate()
        assert ended(process) == (3, "", "Error: what was being done did not end in time, and was left\n")
        assert time.monotonic() - began < 5


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    """Who cannot wait sends the signal again."""
    with program("stuck", tmp_path) as process:
        _, port = told_url(process)
        scraped(port)
        process.terminate()
        time.sleep(0.5)
        process.terminate()
        began = time.monotonic()
        assert ended(process)[0] == -signal.SIGTERM
        assert time.monotonic() - began < 1.5


@pytest.mark.parametrize(
    ("kind", "code", "told"),
    [
        ("fails", 2, "Error: the folder is gone\nTry: bring it back\n"),
        ("breaks", 3, "Error: the engine failed: RuntimeError: nobody expected this\n"),
        ("refused", 2, "Error: the state is of a newer version\nTry: another --state\n"),
    ],
)
def test_an_engine_that_ends_ends_the_command(tmp_path: Path, kind: str, code: int, told: str) -> None:
    """An error of the engine is told in one line, with an exit code that makes a supervisor start it again."""
    with program(kind, tmp_path) as process:
        returned, out, said = ended(process, 20)
    assert (returned, out) == (code, "")
    assert said.endswith(told)
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("listen", "web", "told"),
    [
        ("127.0.0.1:0", "", ""),
        ("0.0.0.0:0", "", "Warning: 0.0.0.0:0 can be reached from other machines"),
        (":0", "http_server_config:\n", "Warning: :0 can be reached from other machines"),
        ("0.0.0.0:0", "users", "Warning: passwords come to 0.0.0.0:0 without encryption"),
    ],
)
def test_an_open_address_is_warned_of_once(tmp_path: Path, listen: str, web: str, told: str) -> None:
    """Beyond loopback, without anybody being asked who they are, or without TLS, there is one warning."""
    options = ["--listen", listen]
    if web:
        text = f"basic_auth_users:\n  anna: {hashed('a')}\n" if web == "users" else web
        options += ["--web-config", str(config_file(tmp_path, text))]
    with program("good", tmp_path, *options) as process:
        said, _ = told_url(process)
        process.terminate()
        assert ended(process)[0] == 0
    assert said.count("Warning") == (1 if told else 0)
    assert said.startswith(told)


def test_a_port_in_use(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A port that another process has is told in one line with a way out; exit code 2."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        state = tmp_path / "state.db"
        sessions = str(tmp_path / "sessions")
        code, told = failed(capsys, "--sessions-dir", sessions, "--listen", address, "--state", str(state))
    assert code == 2
    assert told.startswith(f"Error: cannot listen on {address}: address already in use\nTry: another process listens")
    assert not state.exists()


def test_a_bad_web_config(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A web config that cannot be used is told with its field; exit code 2, and nothing listens."""
    path = config_file(tmp_path, "basic_auth_users:\n  anna: hunter2\n")
    code, told = failed(capsys, "--sessions-dir", str(tmp_path), "--web-config", str(path))
    assert code == 2
    assert told.startswith(f"Error: {path}: basic_auth_users.anna is no bcrypt hash")
    assert "hunter2" not in told
    code, told = failed(capsys, "--sessions-dir", str(tmp_path), "--web-config", str(tmp_path / "none.yml"))
    assert (code, told) == (2, f"Error: the web config: there is no {tmp_path / 'none.yml'}\n")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--jobs", "0"], "'0' is no number of processes from 1 to 64"),
        (["--jobs", "x"], "'x' is no number of processes from 1 to 64"),
        (["--interval", "0"], "'0' is no number of seconds from 0.1 to 3600"),
        (["--interval", "nan"], "'nan' is no number of seconds from 0.1 to 3600"),
        (["--listen", "9464"], "'9464' is no address to listen on"),
        (["--sessions-dir", __file__], "is no directory"),
        (["more"], "unrecognized arguments: more"),
    ],
)
def test_what_is_no_option_is_refused(capsys: pytest.CaptureFixture[str], arguments: list[str], told: str) -> None:
    """A wrong value is one line that says what is right; exit code 2."""
    code, said = failed(capsys, *arguments)
    assert code == 2
    assert told in said
    assert said.count("Error: ") == 1


@pytest.mark.parametrize("library", ["uvicorn", "httptools", "bcrypt", "yaml"])
def test_a_missing_library_is_told(tmp_path: Path, library: str) -> None:
    """Without the extra `serve` the command says how to install it."""
    config = config_file(tmp_path, "")
    script = (
        f"import sys; sys.modules[{library!r}] = None\nfrom raxol_otel.cli import main\n"
        f"sys.exit(main(['serve', '--sessions-dir', {str(tmp_path)!r}, '--web-config', {str(config)!r}]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert done.stderr == (
        f'Error: this needs the library {library}, which is not installed\nTry: pip install "raxol-otel[serve]"\n'
    )


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--state", "{sessions}/s/fleet.db"], "lies inside the sessions directory"),
        (["--state", "{sessions}/fleet.db"], "lies inside the sessions directory"),
        (["--state", "{other}/fleet.db"], "lies inside the session"),
        (["--otlp-sample", "0.3"], "--otlp-sample goes with --otlp-endpoint"),
        (["--otlp-session", "a", "--otlp-since", "1h"], "--otlp-session, --otlp-since goes with --otlp-endpoint"),
    ],
)
def test_options_that_would_do_harm_or_nothing_are_refused(tmp_path: Path, options: list[str], said: str) -> None:
    """Evidence is never added to, and what would be ignored is said; nothing is written."""
    for name in ("sessions/s", "elsewhere/other"):
        (tmp_path / name / "journal").mkdir(parents=True)
    places = {"sessions": tmp_path / "sessions", "other": tmp_path / "elsewhere" / "other"}
    before = sorted(tmp_path.rglob("*"))
    given = [option.format(**places) for option in options]
    command = [sys.executable, "-m", "raxol_otel", "serve", "--sessions-dir", str(places["sessions"]), *given]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert done.returncode == 2
    assert said in done.stderr
    assert sorted(tmp_path.rglob("*")) == before
