"""Replay into a real backend and read back what it made of it: arize-phoenix, over both protocols.

Phoenix lives in an environment of its own (it is large); RAXOL_PHOENIX names its executable. `.ci/run` installs it.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import time
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.error import URLError
from urllib.parse import urlencode
from urllib.request import urlopen

import pytest

from raxol_otel.journal import iter_records
from raxol_otel.turns import Span, fold
from tests.conftest import ROOT, SHARED

if TYPE_CHECKING:
    from collections.abc import Generator, Sequence
    from pathlib import Path

START_SECONDS: Final = 180.0
INGEST_SECONDS: Final = 60.0
TOUR: Final = ROOT / "golden" / "tour"
CORPORA: Final = [path.parent for path in sorted((SHARED / "golden").glob("*/*/meta.json"))]


class Phoenix(NamedTuple):
    """A running Phoenix."""

    http: str
    grpc: str

    def spans(self, project: str) -> list[dict[str, Any]]:
        """All spans of a project, as its REST API gives them; none while there is no such project."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while True:
            query = urlencode({"limit": 1000, **({"cursor": cursor} if cursor else {})})
            try:
                with urlopen(f"{self.http}/v1/projects/{project}/spans?{query}", timeout=10) as answer:  # noqa: S310
                    page = json.load(answer)
            except URLError:
                return []
            found += page["data"]
            cursor = page.get("next_cursor")
            if not cursor:
                return found

    def settled(self, project: str, count: int) -> list[dict[str, Any]]:
        """The project's spans, once there are `count` of them (it inserts in the background)."""
        deadline = time.monotonic() + INGEST_SECONDS
        while len(found := self.spans(project)) < count and time.monotonic() < deadline:
            time.sleep(0.3)
        return found


def free_ports(count: int) -> list[int]:
    """Ports that were free a moment ago."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(one.getsockname()[1]) for one in sockets]
    for one in sockets:
        one.close()
    return ports


@pytest.fixture
def phoenix(tmp_path: Path) -> Generator[Phoenix]:
    """A Phoenix of our own, empty (it keys on span ids over all projects); a skip where it is not installed."""
    executable = os.environ.get("RAXOL_PHOENIX") or shutil.which("phoenix")
    if not executable:
        pytest.skip("arize-phoenix is not installed: RAXOL_PHOENIX does not name its executable")
    port, grpc_port = free_ports(2)
    folder = tmp_path / "phoenix"
    folder.mkdir()
    variables = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port),
        "PHOENIX_GRPC_PORT": str(grpc_port),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_TELEMETRY_ENABLED": "false",
        "PATH": os.environ["PATH"],
        "HOME": str(folder),
    }
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen([executable, "serve"], env=variables, stdout=log, stderr=log)
    try:
        running = Phoenix(f"http://127.0.0.1:{port}", f"http://127.0.0.1:{grpc_port}")
        deadline = time.monotonic() + START_SECONDS
        while True:
            try:
                urlopen(f"{running.http}/healthz", timeout=2).close()  # noqa: S310
                break
            except OSError:
                assert process.poll() is None, (folder / "log").read_text(errors="replace")[-2000:]
                assert time.monotonic() < deadline, "phoenix did not start in time"
                time.sleep(0.5)
        yield running
    finally:
        process.terminate()
        process.wait(30)


def replay(paths: Sequence[Path], project: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a user would; the project is a resource attribute that Phoenix knows."""
    variables = {**os.environ, "OTEL_RESOURCE_ATTRIBUTES": f"openinference.project.name={project}"}
    command = [sys.executable, "-c", "import sys; from raxol_otel.cli import main; sys.exit(main())"]
    arguments = ["replay", *map(str, paths), "--to", "otlp", *options]
    return subprocess.run(
        [*command, *arguments], env=variables, capture_output=True, text=True, check=True, timeout=120, cwd=ROOT
    )


def expected(paths: Sequence[Path]) -> dict[str, Span]:
    """The spans of the sessions by their ids; the fold itself is held by trees made by hand."""
    return {span.span_id: span for path in paths for span in fold(iter_records(path), path.name)}


def nanoseconds(text: str) -> int:
    """A time of the REST API, to the microsecond that it keeps."""
    moment = datetime.fromisoformat(text)
    return int(moment.timestamp()) * 10**9 + moment.microsecond * 1000


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_real_sessions_arrive_whole_and_only_once(phoenix: Phoenix, protocol: str, tmp_path: Path) -> None:
    """Counts, names, parents, sessions, tokens and times are those of the journals; a second replay adds nothing."""
    paths = [TOUR, *CORPORA]
    spans = expected(paths)
    project = f"whole-{protocol[:4]}"
    endpoint = phoenix.grpc if protocol == "grpc" else phoenix.http
    sent = replay(paths, project, "--protocol", protocol, "--endpoint", endpoint)
    assert f"replayed {len(spans)} spans" in sent.stderr
    found = {span["context"]["span_id"]: span for span in phoenix.settled(project, len(spans))}
    assert found.keys() == spans.keys()
    for span_id, span in spans.items():
        check(found[span_id], span)
    state = ["--state", str(tmp_path / "state")]
    replay(paths, project, "--protocol", protocol, "--endpoint", endpoint, *state)
    again = replay(paths, project, "--protocol", protocol, "--endpoint", endpoint, *state, "--jobs", "2")
    assert f"replayed 0 spans of {sum(span.role == 'turn' for span in spans.values())} turns" in again.stderr
    time.sleep(2)
    assert len(phoenix.spans(project)) == len(spans)


def check(found: dict[str, Any], span: Span) -> None:
    """One span as the backend keeps it."""
    assert found["name"] == span.name
    assert found["context"]["trace_id"] == span.trace_id
    assert (found["parent_id"] or "") == span.parent_id
    assert nanoseconds(found["start_time"]) == span.start_ns
    assert nanoseconds(found["end_time"]) == span.end_ns
    assert (found["status_code"] == "ERROR") is span.error
    assert [event["name"] for event in found["events"]] == [event.name for event in span.events]
    attributes = found["attributes"]
    for key, value in span.attributes.items():
        assert attributes[key] == value, key
    if span.role == "turn":
        assert attributes["session.id"] == span.session_id
        for ours, theirs in (("input", "prompt"), ("output", "completion")):
            counted = span.attributes.get(f"gen_ai.usage.{ours}_tokens")
            if counted is not None:
                assert attributes[f"llm.token_count.{theirs}"] == counted
