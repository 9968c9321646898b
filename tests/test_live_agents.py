"""Agents in processes of their own: under `opentelemetry-instrument`, killed, forked, with a collector that is gone."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import tomllib
from collections import Counter
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.journal import open_journal
from tests.conftest import ROOT
from tests.live_sdk import instrumented, replayed
from tests.otlp_receiver import Receiver
from tests.prometheus_agent import event, turn
from tests.test_live_parity import by_id

if TYPE_CHECKING:
    from collections.abc import Mapping

GROUP: Final = "opentelemetry_instrumentor"
EXIT_SECONDS: Final = 5
has_instrument = pytest.mark.skipif(
    find_spec("opentelemetry.distro") is None, reason="opentelemetry-distro is not installed"
)


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """The environment of an agent; where the package is not installed, what says where its instrumentor is."""
    path = [str(ROOT)]
    if not entry_points(group=GROUP, name="raxol"):
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        told = tmp_path / "installed" / "raxol_otel_checkout-0.dist-info"
        told.mkdir(parents=True)
        (told / "METADATA").write_text("Metadata-Version: 2.1\nName: raxol-otel-checkout\nVersion: 0\n")
        (told / "entry_points.txt").write_text(f"[{GROUP}]\nraxol = {project['entry-points'][GROUP]['raxol']}\n")
        path.append(str(told.parent))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("OTEL_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(path), "OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf"}


def run(command: list[str], environment: Mapping[str, str]) -> tuple[int, str, float]:
    """The exit code, what was written on standard error, and the seconds it took."""
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stderr, time.monotonic() - began


def agent(what: str, folder: Path) -> list[str]:
    """The command of an agent that knows nothing of telemetry, or does."""
    return [sys.executable, "-m", "tests.live_agent", what, str(folder)]


def under_instrument(folder: Path) -> list[str]:
    """The plain agent, under OpenTelemetry's own command."""
    return [str(Path(sys.executable).with_name("opentelemetry-instrument")), *agent("plain", folder)]


def received(receiver: Receiver) -> Counter[str]:
    """How often each span of ours came, by its id."""
    return Counter(one.span.span_id.hex() for one in receiver.spans if one.scope.name == "raxol_otel")


@has_instrument
def test_under_opentelemetry_instrument(tmp_path: Path, environment: dict[str, str]) -> None:
    """An agent that is not changed at all: its turns arrive, with the ids of a replay, the scope and the resource."""
    with Receiver(others=True) as receiver:
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint, "OTEL_SERVICE_NAME": "my-agent"}
        code, said, _ = run(under_instrument(tmp_path / "j"), {**environment, **more})
        assert (code, said) == (0, "")
        assert received(receiver) == Counter(by_id(replayed(tmp_path / "j")).keys())
        one = receiver.spans[0]
    assert one.schema_url == "https://opentelemetry.io/schemas/gen-ai/0.1.0"
    assert {pair.key: pair.value.string_value for pair in one.resource.attributes}["service.name"] == "my-agent"


@has_instrument
@pytest.mark.parametrize(
    "more", [{"OTEL_SDK_DISABLED": "true"}, {"OTEL_PYTHON_DISABLED_INSTRUMENTATIONS": "raxol, urllib3"}]
)
def test_what_is_disabled_is_off(more: dict[str, str], tmp_path: Path, environment: dict[str, str]) -> None:
    """The standard variables turn it off, and the agent runs as ever."""
    with Receiver(others=True) as receiver:
        endpoint = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint}
        code, said, _ = run(under_instrument(tmp_path / "j"), {**environment, **endpoint, **more})
        assert (code, said) == (0, "")
        assert receiver.spans == []
    assert len(replayed(tmp_path / "j")) == 4


@has_instrument
@pytest.mark.skipif(find_spec("opentelemetry.configuration") is None, reason="opentelemetry-configuration is missing")
@pytest.mark.parametrize("section", ["{}", "{agent_name: Ana}", "{enabled: false}"])
def test_from_a_configuration_file(section: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """OTEL_CONFIG_FILE, section `instrumentation/development`: on, with what it says, or off."""
    with Receiver() as receiver:
        config = tmp_path / "otel.yaml"
        config.write_text(f"""
file_format: "1.0"
tracer_provider:
  processors:
    - simple:
        exporter:
          otlp_http:
            endpoint: {receiver.http_endpoint}
instrumentation/development:
  python:
    raxol: {section}
""")
        # The command turns on what is installed all the same: that is what the variable is for.
        more = {"OTEL_CONFIG_FILE": str(config)}
        if "false" in section:
            more["OTEL_PYTHON_DISABLED_INSTRUMENTATIONS"] = "raxol"
        code, said, _ = run(under_instrument(tmp_path / "j"), {**environment, **more})
        assert code == 0, said
        names = Counter(one.span.name for one in receiver.spans)
    agent_name = " Ana" if "Ana" in section else ""
    expected = {} if "false" in section else {"execute_tool sh": 2, f"invoke_agent{agent_name}": 2}
    assert names == expected


@pytest.mark.parametrize("ending", ["completed", "next", "nobody"])
def test_a_turn_whose_process_is_killed(ending: str, tmp_path: Path, environment: dict[str, str]) -> None:
    """The next process that opens the journal ends the turn, or a replay does: nothing is lost, nothing comes twice."""
    with Receiver() as receiver:
        more = {"OTEL_EXPORTER_OTLP_ENDPOINT": receiver.grpc_endpoint}
        code, _, _ = run(agent("killed", tmp_path), {**environment, **more})
        assert code == -9
        first = received(receiver)
    assert sorted(first.values()) == [1, 1, 1]
    with instrumented() as traces:
        if ending != "nobody":
            with open_journal("s", base_dir=tmp_path) as journal:
                if ending == "completed":
                    journal.append(event(2, "turn_completed", final=True))
                else:
                    journal.append(event(3, "turn_started"))
        second = by_id(traces.own())
    again = by_id(replayed(tmp_path))
    assert not first.keys() & second.keys()
    assert second == {span_id: again[span_id] for span_id in second}
    if ending == "nobody":
        assert not second
        assert len(again.keys() - first.keys()) == 2
        return
    outcome = {"completed": "completed", "next": "incomplete"}[ending]
    turns = [span["attributes"]["raxol.turn.outcome"] for span in second.values() if span["name"] == "invoke_agent"]
    assert turns == [outcome]
    rest = again.keys() - first.keys() - second.keys()
    assert {again[span_id]["attributes"]["raxol.turn.id"] for span_id in rest} == (
        {"t3"} if ending == "next" else set()
    )


def test_an_orderly_end_leaves_an_open_turn_open(tmp_path: Path) -> None:
    """Closing the journal, or turning the instrumentation off, exports no half of a turn; who opens it next goes on."""
    with instrumented() as traces:
        with open_journal("s", base_dir=tmp_path) as journal:
            journal.append(event(1, "turn_started"))
        with open_journal("s", base_dir=tmp_path) as journal:
            journal.append(event(1, "item_completed", item_type="message", item_id="m"))
            assert [span["name"] for span in traces.own()] == ["message"]
    with instrumented(traces=traces), open_journal("s", base_dir=tmp_path) as journal:
        journal.append(event(1, "turn_completed", final=True))
    assert by_id(traces.own()) == by_id(replayed(tmp_path))


def test_what_was_there_before_is_neither_kept_nor_exported(tmp_path: Path) -> None:
    """Of a long journal a follower keeps the turns that are open, and exports nothing that was closed."""
    with open_journal("s", base_dir=tmp_path) as journal:
        journal.append_many([one for number in range(2_000) for one in turn(number)])
        journal.append({**event(9_999, "turn_started"), "branch_id": "b"})
    with instrumented() as traces, open_journal("s", base_dir=tmp_path) as journal:
        journal.append(event(1, "idle"))
        tap: Any = vars(journal)["_writer"].feed.tap
        assert [one.turn.turn_id for one in tap._open.values()] == ["t9999"]
        assert len(tap._contexts) == 0
    assert traces.all() == ()


def test_a_collector_that_is_gone_does_not_hold_up_the_end(tmp_path: Path, environment: dict[str, str]) -> None:
    """Nobody listens: the agent writes everything, and is gone within seconds."""
    with Receiver() as receiver:
        endpoint = receiver.grpc_endpoint
    code, _, seconds = run(agent("gone", tmp_path), {**environment, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint})
    assert code == 0
    assert seconds < EXIT_SECONDS + 3  # it starts and writes as well
    with open_journal("s", base_dir=tmp_path) as journal:
        assert journal.last_offset == 1500


def test_a_forked_child_drops_what_is_open(tmp_path: Path, environment: dict[str, str]) -> None:
    """The parent's open turn ends in the parent only; the child's own journals are traced in the child."""
    done = subprocess.run(
        agent("forked", tmp_path), cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    child, parent = (json.loads(line) for line in done.stdout.splitlines())
    again: dict[str, Any] = by_id(replayed(tmp_path))
    assert len(child) == len(parent) == 2
    assert sorted(child + parent) == sorted(again)
    assert {again[span_id]["attributes"].get("raxol.session.id", "child") for span_id in child} == {"child"}


def test_the_example_runs_and_ends(environment: dict[str, str]) -> None:
    """Without any service: its spans, signals and metrics are printed, and it ends by itself."""
    command = [sys.executable, "-m", "raxol_otel.live.example"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0
    said = [line.split() for line in done.stdout.splitlines()]
    spans = [line[2:] for line in said if line[0] == "span"]
    assert [span[0] for span in spans].count("invoke_agent") == 3
    assert [" ".join(span[:2]) for span in spans if span[0] == "execute_tool"][:3] == [
        *("execute_tool run_tests", "execute_tool apply_patch", "execute_tool run_tests"),
    ]
    asked = next(line for line in said if line[2:5] == ["ask", "the", "model"])
    assert asked[-1] in {line[1] for line in said if line[2:4] == ["invoke_agent", "example"]}
    assert [line[1:] for line in said if line[0] == "signal"] == [
        ["raxol.agent.journal.checkpoint.surrogate"],
        ["raxol.agent.journal.damaged", "id_gap"],
    ]
    assert ["metric", 'raxol_turns_total{outcome="completed",source="agent"}', "2.0"] in said
