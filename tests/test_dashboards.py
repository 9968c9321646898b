"""The boards as files: current, of Grafana's schema, laid out well, filtered and linked as promised."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from importlib import resources
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.dashboards.boards import __main__ as program
from raxol_otel.dashboards.boards import texts
from tests.boards import BOARDS, FOLDER, JOURNAL_HEALTH, PANELS, SESSION, TURNS, Panel, named, panel
from tests.conftest import ROOT, require_shared

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

COLUMNS: Final = 24
SECONDS_MAX: Final = 300
PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
TEMPO: Final = {"type": "tempo", "uid": "${tempo_datasource}"}
TITLES: Final = {JOURNAL_HEALTH: "Journal health", TURNS: "Agent turns", SESSION: "Session"}


def stray(folder: Path) -> list[str]:
    """The names in a folder, in order."""
    return sorted(path.name for path in folder.iterdir())


def test_the_boards_are_current(capsys: pytest.CaptureFixture[str]) -> None:
    """What the program would write is what is there: `python -m raxol_otel.dashboards.boards` was run."""
    assert program.main(["--check"]) == 0
    assert capsys.readouterr() == ("", "")
    assert stray(FOLDER) == ["agent-turns.json", "journal-health.json", "session.json"]


def test_the_program_writes_the_boards_and_says_nothing(tmp_path: Path) -> None:
    """As people call it; the folder is made, and the files are those that are shipped."""
    folder = tmp_path / "new" / "boards"
    command = (sys.executable, "-m", "raxol_otel.dashboards.boards", "--folder", folder)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert {path.name: path.read_text(encoding="utf-8") for path in folder.iterdir()} == texts()


def test_a_board_that_is_not_current_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Changed by hand, missing, or none of ours: exit code 1, a line for each file, and nothing is written."""
    program.main(["--folder", str(tmp_path)])
    (tmp_path / "session.json").write_text("{}", encoding="utf-8")
    (tmp_path / "agent-turns.json").unlink()
    (tmp_path / "mine.json").write_text("{}", encoding="utf-8")
    assert program.main(["--check", "--folder", str(tmp_path)]) == 1
    said = capsys.readouterr().err.splitlines()
    assert said == [
        f"{tmp_path}/mine.json: is no board of ours: remove it",
        f"{tmp_path}/agent-turns.json: is missing: run `python -m raxol_otel.dashboards.boards`",
        f"{tmp_path}/session.json: is not current: run `python -m raxol_otel.dashboards.boards`",
    ]
    assert stray(tmp_path) == ["journal-health.json", "mine.json", "session.json"]


def test_a_folder_that_cannot_be_written_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No traceback, exit code 2, and the way out."""
    (tmp_path / "file").write_text("", encoding="utf-8")
    assert program.main(["--folder", str(tmp_path / "file")]) == 2
    assert capsys.readouterr().err == f"Error: {tmp_path}/file: File exists\nTry: name another folder with --folder\n"


def test_the_boards_ship_with_the_package() -> None:
    """An installed package gives the boards as resources."""
    folder = resources.files("raxol_otel.dashboards") / "grafana"
    assert {name: (folder / name).read_text(encoding="utf-8") for name in texts()} == texts()


def test_grafanas_own_types_accept_the_boards() -> None:
    """Every property is known to the schema that Grafana publishes, and of the right type."""
    check = require_shared("tools", "dashboard-schema", "check")
    if shutil.which("npm") is None:
        pytest.skip("npm is not here: Debian's package `npm` has it")
    command = (check, *sorted(FOLDER.glob("*.json")))
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("uid", BOARDS)
def test_a_board_is_known_by_a_name_that_never_changes(uid: str) -> None:
    """Addresses that people and alerts keep hold the uid; a board is classic JSON that needs no questions at import."""
    board = BOARDS[uid]
    assert (board["uid"], board["title"]) == (uid, TITLES[uid])
    assert board["schemaVersion"] == 42
    assert board["tags"][0] == "raxol"
    assert len(board["tags"]) == 2
    assert board["description"]
    assert not {"__inputs", "__requires", "__elements", "id"} & board.keys()
    assert (board["time"], board["refresh"]) == ({"from": "now-1h", "to": "now"}, "30s")


@pytest.mark.parametrize("uid", BOARDS)
def test_rows_tell_a_story_in_questions(uid: str) -> None:
    """Panels stand under headings, which ask what the panels answer; none is folded away."""
    panels = BOARDS[uid]["panels"]
    assert panels[0]["type"] == "row"
    headings = [panel for panel in panels if panel["type"] == "row"]
    assert all(heading["title"].endswith("?") and not heading["collapsed"] for heading in headings)
    assert all(left["type"] != "row" or right["type"] != "row" for left, right in itertools.pairwise(panels))


def test_journal_health_goes_from_symptom_to_cause() -> None:
    """First whether anything is lost, last whether one may believe it."""
    headings = [panel["title"] for panel in BOARDS[JOURNAL_HEALTH]["panels"] if panel["type"] == "row"]
    assert headings == [
        "Is anything lost?",
        "Which sessions, and how?",
        "Can agents write?",
        "Do they sync in time?",
        "Do HEAD, locks and turns keep up?",
        "Can the exporter be believed?",
    ]


@pytest.mark.parametrize("uid", BOARDS)
def test_panels_have_ids_of_their_own_and_lie_side_by_side(uid: str) -> None:
    """No id twice; no panel leaves the grid or lies on another; no line has a gap on its right."""
    panels = BOARDS[uid]["panels"]
    ids = [panel["id"] for panel in panels]
    assert len(set(ids)) == len(ids)
    cells = [cell for panel in panels for cell in cells_of(panel["gridPos"])]
    assert len(set(cells)) == len(cells)
    assert {column for column, _ in cells} == set(range(COLUMNS))
    bottom = 1 + max(line for _, line in cells)
    assert len(cells) == COLUMNS * bottom


def cells_of(grid: dict[str, int]) -> Iterator[tuple[int, int]]:
    """The cells that a panel covers."""
    columns = range(grid["x"], grid["x"] + grid["w"])
    return itertools.product(columns, range(grid["y"], grid["y"] + grid["h"]))


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_a_panel_says_what_it_shows_even_when_it_shows_nothing(case: Panel) -> None:
    """A title, a sentence for a description, a unit, a text for no value, and a data source that can be chosen."""
    assert case.json["title"]
    assert case.json["description"].endswith(".")
    assert case.defaults["unit"]
    assert case.defaults["noValue"]
    source = TEMPO if "queryType" in case.json["targets"][0] else PROMETHEUS
    assert {json.dumps(one["datasource"]) for one in (case.json, *case.json["targets"])} == {json.dumps(source)}


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_thresholds_rise_from_a_base(case: Panel) -> None:
    """Grafana colours a value by the last step that it reaches."""
    first, *steps = case.defaults["thresholds"]["steps"]
    assert first["value"] is None
    values = [step["value"] for step in steps]
    assert values == sorted(set(values))


@pytest.mark.parametrize("case", [case for case in PANELS if case.json["type"] == "stat"], ids=named)
def test_a_figure_that_is_missing_is_grey(case: Panel) -> None:
    """Green would say that all is well, where nobody knows."""
    nothing = case.defaults["mappings"][0]
    assert (nothing["type"], nothing["options"]["match"]) == ("special", "null+nan")
    assert nothing["options"]["result"]["text"] == case.defaults["noValue"]
    assert nothing["options"]["result"]["color"] == "#6e7077"


def variables(uid: str) -> dict[str, dict[str, Any]]:
    """A board's variables by their names."""
    return {variable["name"]: variable for variable in BOARDS[uid]["templating"]["list"]}


@pytest.mark.parametrize(
    ("uid", "names"),
    [
        (JOURNAL_HEALTH, ["datasource", "cluster", "job", "instance", "source"]),
        (TURNS, ["datasource", "cluster", "job", "instance", "source"]),
        (SESSION, ["datasource", "tempo_datasource", "session_id", "cluster", "job", "instance", "source"]),
    ],
)
def test_a_board_is_filtered_by_these(uid: str, names: list[str]) -> None:
    """The same on all boards, so that a link takes them along; one session's board also asks for it, and for Tempo."""
    found = variables(uid)
    assert list(found) == names
    assert (found["datasource"]["type"], found["datasource"]["query"]) == ("datasource", "prometheus")
    for name in ("cluster", "job", "instance", "source"):
        assert found[name]["type"] == "query"
        assert (found[name]["multi"], found[name]["includeAll"]) == (True, True)
    # Many a Prometheus has no label `cluster`, and what matches an absent label matches the empty text.
    assert found["cluster"]["allValue"] == ".*"
    assert {found[name]["allValue"] for name in ("job", "instance", "source")} == {".+"}


def test_a_session_is_typed_in_or_comes_with_a_link() -> None:
    """Sessions are no label of most metrics, so there is no list of them to choose from."""
    found = variables(SESSION)
    assert found["session_id"]["type"] == "textbox"
    assert (found["tempo_datasource"]["type"], found["tempo_datasource"]["query"]) == ("datasource", "tempo")


def test_turns_are_shown_of_one_source_at_first() -> None:
    """An agent and the exporter count the same turns; health needs both, for each sees what the other does not."""
    assert variables(TURNS)["source"]["current"]["value"] == ["agent"]
    assert variables(JOURNAL_HEALTH)["source"]["current"]["value"] == ["$__all"]


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_what_two_sources_count_is_no_single_stack(case: Panel) -> None:
    """On each other the two would look like a sum: each has a stack of its own."""
    custom = case.defaults.get("custom", {})
    legends = [target.get("legendFormat", "") for target in case.json["targets"]]
    if custom.get("stacking", {}).get("mode") != "normal" or not any("{{source}}" in legend for legend in legends):
        return
    groups = {
        override["matcher"]["options"]: prop["value"]["group"]
        for override in case.json["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if prop["id"] == "custom.stacking"
    }
    assert groups == {r"/\bagent\)?$/": "agent", r"/\bfleet\)?$/": "fleet"}


def test_a_session_shows_its_traces() -> None:
    """By TraceQL, through the Tempo that was chosen, and by the attribute that turns carry."""
    traces = panel(SESSION, "Traces").json["targets"][0]
    assert traces["query"] == '{ span.raxol.session.id = "$session_id" }'
    assert (traces["queryType"], traces["tableType"]) == ("traceql", "traces")
    turns = panel(SESSION, "Turns").json["targets"][0]
    assert turns["tableType"] == "spans"
    assert "span.raxol.turn.outcome" in turns["query"]
    failed = panel(SESSION, "Tool calls that failed").json["targets"][0]
    assert failed["query"] == (
        '{ span.raxol.session.id = "$session_id" }'
        ' >> { span.gen_ai.operation.name = "execute_tool" && status = error }'
        " | select(span.gen_ai.tool.name, span.raxol.tool.outcome, span.error.type)"
    )


def test_a_session_shows_its_damage() -> None:
    """By the metric of the fleet exporter that names sessions."""
    targets = [target for title in ("State", "Cause") for target in panel(SESSION, title).json["targets"]]
    assert all("raxol_journal_session_damaged{" in target["expr"] for target in targets)
    assert all('session_id="$session_id"' in target["expr"] for target in targets)
    (said,) = panel(SESSION, "State").defaults["mappings"][1:]
    assert said["options"]["1"]["text"] == "Damaged"
