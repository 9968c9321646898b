"""The runbooks: a page for every alert, and every command of every page is run, against real journals and programs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from raxol_otel.demo import SESSIONS, write_demo
from raxol_otel.metrics import Metrics
from tests.alerting import Exposition, World, alerting, fleet_exporter
from tests.conftest import photograph
from tests.exporter_contract import environment, raxol
from tests.rules_files import ALERT_NAMES, ALERT_RULES, ALERTS, RULES, RUNBOOKS, check_expression

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

SECTIONS: Final = ("What it means", "How bad it is", "How to look", "How to mend it", "When to worry")
README: Final = (RUNBOOKS / "README.md").read_text(encoding="utf-8")
NAMES: Final = frozenset(re.findall(r"^\| `\$([A-Z]+)` \|", README, re.MULTILINE))
# What a shell has anyway.
OUTSIDE: Final = frozenset({"USER"})
SECONDS_MAX: Final = 60
# The session that a page is about; the others are about one that is intact.
SUBJECTS: Final = {
    "RaxolJournalDamaged": "glued-lines",
    "RaxolJournalDamagedOmitted": "glued-lines",
    "RaxolJournalTailLost": "lost-tail",
}
INTACT: Final = "checkout-bug"
# Commands whose answer may be that something is not intact.
JUDGES: Final = ("raxol-otel verify ", "raxol-otel show ", "raxol-otel replay ")
# Commands that change a session, each after a copy was made; all others leave every byte as it is.
CHANGES: Final = ("mv ", "python3 -c ")
PROGRAMS: Final = {"amtool": "prometheus-alertmanager", "curl": "curl", "promtool": "prometheus"}
US_NOW: Final = 1_000


def page(alert: str) -> str:
    """The text of an alert's page."""
    return (RUNBOOKS / f"{alert}.md").read_text(encoding="utf-8")


def commands(text: str) -> list[str]:
    """The commands of a page, in order."""
    blocks = re.findall(r"^```console\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line.removeprefix("$ ") for block in blocks for line in block.splitlines() if line.startswith("$ ")]


def asks_the_exporter(command: str) -> bool:
    """Whether a command needs a running fleet exporter."""
    return "$EXPORTER" in command


PAGES: Final = {alert: commands(page(alert)) for alert in ALERT_NAMES}
OF_EXPORTER: Final = [alert for alert, said in PAGES.items() if any(map(asks_the_exporter, said))]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[World, Exposition]]:
    """Prometheus with the shipped rules, Alertmanager, and the metrics of an agent."""
    with Exposition(generate_latest(_registry()).decode()) as agent:
        folder = tmp_path_factory.mktemp("runbooks")
        with alerting(folder, {"raxol-agent": [agent.address]}, [RULES, ALERTS]) as made:
            yield made, agent


def _registry() -> CollectorRegistry:
    registry = CollectorRegistry()
    Metrics(registry)
    return registry


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Sessions of every kind, one of them with the lock of a dead writer; and a place to work."""
    write_demo(tmp_path / "sessions", time.time_ns() // US_NOW)
    dead = subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True, check=True)
    (tmp_path / "sessions" / INTACT / "writer.lock").write_bytes(dead.stdout.strip())
    (tmp_path / "work").mkdir()
    return tmp_path


def variables(alert: str, place: Path, world: tuple[World, Exposition], exporter: str = "") -> dict[str, str]:
    """The names of the README, bound to what is there."""
    made, agent = world
    return {
        "SESSIONS": str(place / "sessions"),
        "SESSION": SUBJECTS.get(alert, INTACT),
        "WORK": str(place / "work"),
        "ACKNOWLEDGED": str(place / "acknowledged"),
        "EXPORTER": exporter,
        "AGENT": f"http://{agent.address}",
        "PROMETHEUS": made.prometheus,
        "ALERTMANAGER": made.alertmanager,
        "USER": "operator",
    }


def run(command: str, bound: Mapping[str, str], place: Path) -> None:
    """Run a command as it stands in its page; fail unless it works, and changes no session unless it has to."""
    for name, package in PROGRAMS.items():
        if re.search(rf"\b{name} ", command) and shutil.which(name) is None:
            pytest.skip(f"{name} is not here: Debian's package `{package}` has it")
    before = photograph(place / "sessions")
    path = f"{place / 'bin'}{os.pathsep}{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["/bin/bash", "-c", command],
        cwd=place,
        env={**environment(), **bound, "PATH": path},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    told = f"{command}\nexit code {done.returncode}\n{done.stdout}{done.stderr}"
    assert done.returncode in ({0, 1} if command.startswith(JUDGES) else {0}), told
    assert "Traceback" not in done.stderr, told
    if not command.startswith(CHANGES):
        assert photograph(place / "sessions") == before, f"{command} has changed a session"


def raxol_on_path(place: Path) -> None:
    """The command of this checkout, installed or not, under its own name."""
    (place / "bin").mkdir()
    script = place / "bin" / "raxol-otel"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m raxol_otel "$@"\n', encoding="utf-8")
    script.chmod(0o755)


def test_every_alert_has_a_page_and_every_page_an_alert() -> None:
    """By its name, and nothing else stands there but the README."""
    assert sorted(path.stem for path in RUNBOOKS.iterdir()) == sorted([*ALERT_NAMES, "README"])


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_a_page_says_all_that_is_needed_at_night(alert: str) -> None:
    """Its title, its severities, the five sections in order, none empty; commands to look with."""
    text = page(alert)
    assert text.startswith(f"# {alert}\n\nSeverity: ")
    severities = {rule["labels"]["severity"] for rule in ALERT_RULES if rule["alert"] == alert}
    assert {word for word in ("critical", "warning") if word in text.split("\n")[2]} == severities
    parts = re.split(r"^## (.*)$", text, flags=re.MULTILINE)
    assert parts[1::2] == list(SECTIONS)
    assert all(part.strip() for part in parts[2::2])
    assert commands(parts[6])


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_a_page_links_only_to_pages_that_are_there(alert: str) -> None:
    """Other alerts' pages, and the README."""
    for target in re.findall(r"\]\(([^)]*)\)", page(alert)):
        assert (RUNBOOKS / target).is_file(), target


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_a_command_uses_documented_names_and_speaks_of_metrics_that_there_are(alert: str) -> None:
    """All of its variables stand in the README; its PromQL is of the catalogue's metrics and labels."""
    for command in PAGES[alert]:
        assert set(re.findall(r"\$\{?(\w+)", re.sub(r"'[^']*'", "", command))) <= NAMES | OUTSIDE
        if command.startswith("promtool query"):
            check_expression(shlex.split(command)[-1])


def test_the_names_of_the_readme_are_all_used() -> None:
    """None of them stands there for nothing."""
    told = " ".join(command for said in PAGES.values() for command in said)
    assert {name for name in NAMES if f"${name}" not in told} == set()


def test_evidence_is_copied_before_a_session_is_changed() -> None:
    """A page that moves or opens a session copies it first."""
    for alert, said in PAGES.items():
        first = next((number for number, command in enumerate(said) if command.startswith(CHANGES)), None)
        if first is not None:
            assert any(command.startswith('cp -a "$SESSIONS/$SESSION"') for command in said[:first]), alert


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_the_commands_of_a_page_run(alert: str, place: Path, world: tuple[World, Exposition]) -> None:
    """As they stand there, one after the other; none but those that have to changes a session."""
    raxol_on_path(place)
    bound = variables(alert, place, world)
    for command in PAGES[alert]:
        if not asks_the_exporter(command):
            run(command, bound, place)


@pytest.mark.parametrize("alert", OF_EXPORTER)
def test_the_commands_of_a_page_that_ask_the_exporter_run(
    alert: str, place: Path, world: tuple[World, Exposition]
) -> None:
    """Against a real fleet exporter of these sessions; one of them cannot be read."""
    raxol_on_path(place)
    (place / "sessions" / "not-readable" / "journal" / "000001.jsonl").mkdir(parents=True)
    with fleet_exporter(place, place / "sessions", place / "acknowledged") as address:
        bound = variables(alert, place, world, f"http://{address}")
        for command in PAGES[alert]:
            if asks_the_exporter(command):
                run(command, bound, place)


def test_a_damaged_session_is_salvaged_and_acknowledged_as_its_page_says(
    place: Path, world: tuple[World, Exposition]
) -> None:
    """What is left after its commands: the evidence as it was, a healthy new session, the name in the file."""
    raxol_on_path(place)
    alert = "RaxolJournalDamaged"
    before = photograph(place / "sessions" / SUBJECTS[alert])
    for command in PAGES[alert]:
        if not asks_the_exporter(command):
            run(command, variables(alert, place, world), place)
    assert SESSIONS[SUBJECTS[alert]] == "damaged"
    assert photograph(place / "sessions" / SUBJECTS[alert]) == before
    assert raxol("verify", place / "work" / "glued-lines-salvaged").returncode == 0
    assert (place / "acknowledged").read_text(encoding="utf-8").startswith("glued-lines ")
