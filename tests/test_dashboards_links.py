"""From an alert to its panel and its runbook, from a board to another, from a session's row to the session."""

from __future__ import annotations

import re
from typing import Any, Final
from urllib.parse import parse_qs, urlsplit

import pytest

from raxol_otel.dashboards.links import RUNBOOK_BASE, runbook_url
from tests.boards import BOARDS, JOURNAL_HEALTH, PANELS, SESSION, TURNS, Panel, named, panel
from tests.rules_files import ALERT_NAMES, ALERT_RULES, RUNBOOKS

# What no board has: it is made by Grafana when a link is followed.
MADE: Final = frozenset({"__url_time_range", "__data"})


def links_of(case: Panel) -> dict[str, str]:
    """The links of a panel itself: titles and addresses."""
    return {link["title"]: link["url"] for link in case.json["links"]}


def cell_links(case: Panel) -> dict[str, dict[str, Any]]:
    """The links of a table's cells, by the column."""
    return {
        override["matcher"]["options"]: link
        for override in case.json["fieldConfig"]["overrides"]
        for prop in override["properties"]
        if prop["id"] == "links"
        for link in prop["value"]
    }


@pytest.mark.parametrize("uid", BOARDS)
def test_a_board_leads_to_the_others_and_keeps_what_is_chosen(uid: str) -> None:
    """Time and variables go along; the runbooks are elsewhere, and neither means anything there."""
    *boards, runbooks = BOARDS[uid]["links"]
    assert {link["url"] for link in boards} == {f"/d/{other}" for other in (JOURNAL_HEALTH, TURNS, SESSION)} - {
        f"/d/{uid}"
    }
    assert all(link["keepTime"] and link["includeVars"] and not link["targetBlank"] for link in boards)
    assert (runbooks["url"], runbooks["keepTime"], runbooks["includeVars"]) == (RUNBOOK_BASE, False, False)


def test_a_damaged_sessions_row_leads_to_the_session_and_to_its_runbook() -> None:
    """The session's id goes along with the time and all that was chosen; the cause leads to what to do."""
    links = cell_links(panel(JOURNAL_HEALTH, "Damaged sessions by name"))
    assert links.keys() == {"Session", "Cause"}
    assert links["Session"]["url"] == (
        "/d/raxol-session?var-session_id=${__data.fields.Session:percentencode}"
        "&${datasource:queryparam}&${cluster:queryparam}&${job:queryparam}&${instance:queryparam}&${source:queryparam}"
        "&${__url_time_range}"
    )
    assert links["Cause"]["url"] == RUNBOOK_BASE + "RaxolJournalDamaged.md"
    assert (links["Session"]["targetBlank"], links["Cause"]["targetBlank"]) == (False, True)


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_a_link_names_variables_and_columns_that_are_there(case: Panel) -> None:
    """A name that is not there would stand in the address as it is written."""
    own = {variable["name"] for variable in BOARDS[case.board]["templating"]["list"]}
    columns = {
        title
        for step in case.json.get("transformations", [])
        for title in step["options"].get("renameByName", {}).values()
    }
    for link in cell_links(case).values():
        used = re.findall(r"\$\{(\w+)(?:\.fields\.(\w+))?(?::\w+)?\}", link["url"])
        assert {name for name, _ in used} <= own | MADE
        assert {column for _, column in used if column} <= columns


@pytest.mark.parametrize("case", PANELS, ids=named)
def test_a_runbook_that_is_linked_is_there(case: Panel) -> None:
    """Each page is that of an alert."""
    urls = [*links_of(case).values(), *(link["url"] for link in cell_links(case).values())]
    for url in urls:
        if url.startswith(RUNBOOK_BASE):
            page = url.removeprefix(RUNBOOK_BASE)
            assert page.removesuffix(".md") in ALERT_NAMES
            assert (RUNBOOKS / page).is_file()


@pytest.mark.parametrize("alert", ALERT_NAMES)
def test_an_alert_leads_to_a_panel_that_leads_to_its_runbook(alert: str) -> None:
    """Who is paged and who looks at the board come to the same page."""
    for rule in ALERT_RULES:
        if rule["alert"] != alert:
            continue
        address = urlsplit(str(rule["annotations"]["dashboard_url"]))
        uid = address.path.removeprefix("/d/")
        (shown,) = parse_qs(address.query)["viewPanel"]
        (found,) = (case for case in PANELS if case.board == uid and case.json["id"] == int(shown))
        assert links_of(found) == {"Runbook": runbook_url(alert)}, found.name
        assert rule["annotations"]["runbook_url"] == runbook_url(alert)


def test_a_runbooks_address_is_the_base_and_the_alerts_name() -> None:
    """One place says where runbooks are read."""
    assert RUNBOOK_BASE == "https://github.com/raxol-otel/raxol-otel/blob/main/dashboards/runbooks/"
    assert runbook_url("RaxolTurnStuck").endswith("/dashboards/runbooks/RaxolTurnStuck.md")


def test_the_session_board_leads_back() -> None:
    """From one session to the fleet, and to the runbook of its damage."""
    assert "/d/raxol-journal-health" in {link["url"] for link in BOARDS[SESSION]["links"]}
    assert cell_links(panel(SESSION, "Cause"))["Cause"]["url"] == runbook_url("RaxolJournalDamaged")
