"""The HTML page's sessions in a browser: all of them, also without turns, with what is wrong where; nothing is lost."""

from __future__ import annotations

import re
import shutil
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.exporters.base import BaseExporter, ExportResult, SessionSummary
from raxol_otel.exporters.replay import replay
from raxol_otel.turns.span import Link
from tests import chromium
from tests.chromium import row, session_of, texts
from tests.conftest import ROOT
from tests.exporter_contract import turn_records, turn_span, turns_records, write_session
from tests.html_page import HOSTILE_TEXTS, readable, summary
from tests.test_html_chromium import CONTRASTS
from tests.test_html_keys import press

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from playwright.sync_api import Page

    from raxol_otel.turns import Span
    from tests.chromium import Opener

# Fixtures are found by their names here.
browser, opened = chromium.browser, chromium.opened

TROUBLE: Final = "damaged at journal/000001.jsonl line 9, byte 1266: unparsable; last good offset 8"
# Texts that their cells cut, of which neither a title nor a title around them has all.
LOST: Final = """() => [...document.querySelectorAll('.canvas .row :is(.title, .quiet, .tag, .evidence, .remark)')]
    .filter((one) => one.scrollWidth > one.clientWidth + 1 || one.scrollHeight > one.clientHeight + 1)
    .filter((one) => !one.closest('[title]')?.title.includes(one.textContent))
    .map((one) => one.textContent)"""
CUT: Final = """() => [...document.querySelectorAll('.turn .cell > *')].filter((one) => one.checkVisibility())
    .filter((one) => one.scrollWidth > one.clientWidth + 1 ||
        one.getBoundingClientRect().right > one.parentElement.getBoundingClientRect().right + 0.5)
    .map((one) => one.textContent)"""


class Told(BaseExporter):
    """Keeps what it is told: batches of spans, and sessions."""

    def __init__(self) -> None:
        self.parts: list[Sequence[Span] | SessionSummary] = []

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Keep the batch."""
        self.parts.append(spans)
        return ExportResult(len(spans))

    def session_done(self, session: SessionSummary) -> None:
        """Keep the session."""
        self.parts.append(session)

    def finish(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Nothing to do."""


def replayed(*paths: Path) -> list[Sequence[Span] | SessionSummary]:
    """What a replay of these paths tells an exporter."""
    told = Told()
    replay(paths, told)
    return told.parts


def folder_of_all_states(folder: Path) -> Path:
    """A session in each state, with turns and without."""
    write_session(folder / "a-damaged", turns_records(2), tail=b"garbage\n")
    write_session(folder / "b-damaged", [], tail=b"garbage\n")
    write_session(folder / "c-empty", [])
    write_session(folder / "d-healthy", turns_records(1))
    write_session(folder / "e-torn", turns_records(1), tail=b'{"id":')
    write_session(folder / "f-truncated", turns_records(1), head=17)
    shutil.rmtree(write_session(folder / "g-unreadable", []) / "journal")
    (folder / "g-unreadable" / "journal").write_text("no folder")
    return folder


def sessions(page: Page) -> list[list[str]]:
    """Of each session's row the title, the state and the remark."""
    return [
        [
            entry.locator(".title").inner_text(),
            " ".join(texts(entry.page, f"#{entry.get_attribute('id')} .c-notes > :first-child")),
            " ".join(texts(entry.page, f"#{entry.get_attribute('id')} .remark")),
        ]
        for entry in page.locator(".row.session").all()
    ]


def facts(page: Page) -> dict[str, str]:
    """The facts in the details."""
    names, values = texts(page, "#details .facts dt"), texts(page, "#details .facts dd")
    return dict(zip(names, values, strict=True))


# -- all of them


def test_every_session_of_a_replay_is_listed(opened: Opener, tmp_path: Path) -> None:
    """In the order of the replay, in a word what state it is in, and where it is damaged, also without any turn."""
    with opened(*replayed(folder_of_all_states(tmp_path / "all"))) as page:
        found = sessions(page)
        assert [one[:2] for one in found] == [
            ["a-damaged", "damaged"],
            ["b-damaged", "damaged"],
            ["c-empty", "healthy"],
            ["d-healthy", "healthy"],
            ["e-torn", "torn"],
            ["f-truncated", "truncated"],
            ["g-unreadable", "unreadable"],
        ]
        remarks = [one[2] for one in found]
        assert remarks[0].startswith("damaged at journal/000001.jsonl line 9, byte 1266: unparsable")
        assert remarks[0].endswith("last good offset 8")
        assert remarks[1].startswith("damaged at journal/000001.jsonl line 1, byte 0: unparsable")
        assert remarks[2:5] == ["", "", ""]
        assert remarks[5:] == ["HEAD names offset 17, the last record is 4", "cannot read journal: Not a directory"]
        assert texts(page, ".session .c-name > .quiet") == [
            *("2 turns, 4 spans", "no turns here", "no turns here", "1 turn, 2 spans", "1 turn, 2 spans"),
            *("1 turn, 2 spans", "no turns here"),
        ]
        assert texts(page, ".turn .title") == ["t1", "t2", "t1", "t1", "t1"]
        summary_text = "7 sessions (2 damaged, 1 truncated, 1 unreadable), 5 turns, 10 spans"
        assert page.locator("#summary").inner_text() == summary_text


def test_states_are_told_by_word_and_shape_too(opened: Opener) -> None:
    """Each state has a word and a shape of its own, in the row and in the details; an unheard-of one has both too."""
    states = ["healthy", "torn", "truncated", "damaged", "unreadable", "unheard-of"]
    with opened(*(summary(f"s{number}", state) for number, state in enumerate(states))) as page:
        assert texts(page, ".session .c-notes") == states
        shapes = page.locator(".session .c-notes svg").evaluate_all("all => all.map((icon) => icon.innerHTML)")
        assert len(set(shapes)) == len(states)
        for number, state in enumerate(states):
            row(page, f"s{number}", "session").click()
            assert texts(page, "#details .kind") == [f"Session\n{state}"]
            assert page.locator("#details .kind svg").evaluate("icon => icon.innerHTML") == shapes[number]


def test_what_is_wrong_is_in_the_details(opened: Opener) -> None:
    """All of it, however long; what the state means; turns held back; and no times where there are no turns."""
    long = f"{TROUBLE} {'x' * 3000} the end"
    with opened(
        *(summary("broken", "damaged", long, records=8), summary("torn", "torn")),
        *(turn_spans := session_of("completed"), summary("live", held=2)),
    ) as page:
        row(page, "broken", "session").click()
        assert page.locator("#details .trouble").inner_text() == long
        assert "what stands behind the damage is not here" in page.locator("#details").inner_text()
        assert facts(page) == {"Directory": "broken", "Records": "8", "Turns": "0", "Spans": "0"}
        row(page, "torn", "session").click()
        assert "all records before it are here" in page.locator("#details").inner_text()
        row(page, "live", "session").click()
        assert page.locator("#details .trouble").count() == 0
        assert "What is wrong" not in page.locator("#details").inner_text()
        told = facts(page)
        assert told["Still open"].startswith("2 turns, not shown")
        assert (told["Turns"], told["Spans"]) == ("1", str(len(turn_spans)))
        assert row(page, "live", "session").locator(".remark").inner_text().startswith("2 turns still open, not shown")


# -- names


def test_copies_of_a_session_are_sessions_of_their_own(opened: Opener, tmp_path: Path) -> None:
    """Both are there with all their turns, the second with a number; a link stays in its own copy."""
    for folder in ("one", "two"):
        shutil.copytree(ROOT / "golden" / "tour", tmp_path / folder / "tour")
    with opened(*replayed(tmp_path)) as page:
        assert texts(page, ".session .title") == ["tour", "tour (2)"]
        assert page.locator("#summary").inner_text() == "2 sessions, 24 turns, 94 spans"
        for number, title in enumerate(("tour", "tour (2)")):
            row(page, "turn-02").nth(number).click()
            assert facts(page)["Session"] == title
            page.get_by_role("button", name="previous turn: turn-01").click()
            assert page.locator("#details h2").inner_text() == "turn-01"
            assert facts(page)["Session"] == title


def test_a_number_never_takes_another_sessions_name(opened: Opener) -> None:
    """A directory may be called as a copy would be."""
    names = ["s", "s (2)", "s", "s", "s (2)"]
    with opened(*map(summary, names)) as page:
        assert texts(page, ".session .title") == ["s", "s (2)", "s (3)", "s (4)", "s (2) (2)"]


def test_the_ids_in_the_records_are_shown_where_they_differ(opened: Opener, tmp_path: Path) -> None:
    """A directory that was renamed has both names, in its row, its details and its turns' details."""
    records = [{**record, "session_id": "the-old-id"} for record in turn_records()]
    write_session(tmp_path / "renamed", records)
    write_session(tmp_path / "same", turn_records())
    with opened(*replayed(tmp_path)) as page:
        assert [one[2] for one in sessions(page)] == ["session id in its records: the-old-id", ""]
        page.locator(".row.session").first.click()
        assert (facts(page)["Directory"], facts(page)["Session id"]) == ("renamed", "the-old-id")
        page.locator(".row.session").last.click()
        assert (facts(page)["Directory"], "Session id" in facts(page)) == ("same", False)
        page.locator(".row.session").first.click()
        page.locator(".row.turn").first.click()
        assert (facts(page)["Session"], facts(page)["Session id"]) == ("renamed", "the-old-id")


def test_turns_that_no_session_was_told_of_are_grouped_by_their_id(opened: Opener) -> None:
    """After the sessions that were told; nothing is said of their state but what a turn says."""
    damaged = session_of("error", session="s2")
    damaged[-1].attributes["raxol.journal.damaged"] = True
    with opened(
        session_of("completed"), summary("s1"), session_of("completed"), damaged, session_of("canceled", session="s1")
    ) as page:
        assert sessions(page) == [["s1", "healthy", ""], ["s1 (2)", "2023-11-15 03:44", ""], ["s2", "damaged", ""]]
        assert texts(page, ".session .c-name > .quiet") == ["1 turn, 2 spans", "2 turns, 4 spans", "1 turn, 2 spans"]
        assert page.locator("#summary").inner_text() == "3 sessions (1 damaged), 4 turns, 8 spans"


# -- sealed


def test_no_text_of_a_session_becomes_markup(opened: Opener) -> None:
    """Names, states and troubles of any kind are shown as text, and nothing in them runs."""
    told = [summary(text[:4000], text[:4000], text[:4000], held=1) for text in HOSTILE_TEXTS.values()]
    with opened(*told, viewport={"width": 1440, "height": 3000}) as page:
        rows = page.locator(".row.session")
        assert rows.count() == len(HOSTILE_TEXTS)
        for entry, text in zip(rows.all(), HOSTILE_TEXTS.values(), strict=True):
            entry.click()
            beginning = readable(text).split("\n")[0][:40]
            hidden = "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in beginning)
            assert hidden in entry.locator(".title").inner_text()
            assert hidden in entry.locator(".remark").inner_text()
            assert hidden in page.locator("#details .trouble").inner_text()
            entry.locator(".remark").hover()
        assert page.locator("img, b, svg[onload], iframe, link, base, object, embed").count() == 0


# -- keys and the filter


def test_keys_reach_a_session_without_turns(opened: Opener) -> None:
    """It is a row as any other: it has its place, nothing to open, and its details when it is reached."""
    with opened(summary("a", "damaged", TROUBLE), session_of("completed"), summary("b"), summary("c")) as page:
        page.locator("#tree").focus()
        assert press(page, "Home") == "a"
        assert page.locator("#details .trouble").inner_text() == TROUBLE
        for key in ("ArrowRight", "ArrowLeft", "Enter", "Space"):
            assert press(page, key) == "a"
        assert press(page, "j", "j", "j") == "c"
        assert press(page, "ArrowLeft", "k", "k") == "b"
        told = ("aria-level", "aria-posinset", "aria-setsize", "aria-rowindex", "aria-expanded")
        found = page.locator(".row.session").evaluate_all(
            "(all, names) => all.map((row) => names.map((name) => row.getAttribute(name)))", list(told)
        )
        assert found == [["1", "1", "3", "2", None], ["1", "2", "3", "3", "true"], ["1", "3", "3", "5", None]]
        assert page.locator("[role=row] > :not([role=gridcell], [role=columnheader])").count() == 0
        assert page.get_by_role("button", name="Collapse sessions").count() == 0


def test_sessions_without_turns_are_found_by_the_filter(opened: Opener) -> None:
    """By name, state and trouble; their states are switches with counts; what does not fit is hidden and counted."""
    spans = session_of("completed", "error")
    with opened(
        *(spans, summary("good"), summary("bad", "damaged", TROUBLE)),
        *(session_of("error"), summary("worse", "damaged", "nul_run"), summary("gone", "unreadable")),
    ) as page:
        for text, titles, left in (
            ("byte 1266", ["bad"], "0 of 3 turns"),
            ("DAMAGED", ["bad", "worse", "t1"], "1 of 3 turns"),
            ("gone", ["gone"], "0 of 3 turns"),
            ("t2", ["good", "t2"], "1 of 3 turns"),
            ("healthy", [], "0 of 3 turns"),
            ("nowhere", [], "0 of 3 turns"),
            ("", ["good", "t1", "t2", "bad", "worse", "t1", "gone"], ""),
        ):
            page.fill("#filter", text)
            page.wait_for_function("(left) => document.querySelector('#status').textContent === left", arg=left)
            assert texts(page, ".row .title") == titles
        switches = [" ".join(name.split()) for name in texts(page, "#outcomes button")]
        assert switches == ["completed 1", "error 2", "damaged 2 sessions", "unreadable 1 session"]
        page.locator("#outcomes button", has_text="damaged").click()
        assert texts(page, ".row .title") == ["bad", "worse", "t1"]
        page.locator("#outcomes button", has_text="unreadable").click()
        assert texts(page, ".row .title") == ["bad", "worse", "t1", "gone"]


def test_a_page_without_any_turn(opened: Opener) -> None:
    """Its sessions are there, and the filter speaks of sessions."""
    with opened(summary("a", "damaged", TROUBLE), summary("b")) as page:
        assert texts(page, ".row .title") == ["a", "b"]
        assert page.locator("#nothing").is_hidden()
        page.fill("#filter", "a")
        page.wait_for_function("() => document.querySelector('#status').textContent === '1 of 2 sessions'")
        page.fill("#filter", "nowhere")
        page.wait_for_function("() => document.querySelector('#status').textContent === '0 of 2 sessions'")
        assert page.locator("#nothing").inner_text() == "No session matches the filter."
    with opened() as page:
        assert page.locator("#nothing").inner_text() == "There are no sessions on this page."


# -- looks


@pytest.mark.parametrize("width", [1280, 1366, 1440])
def test_no_note_of_the_tour_is_cut_in_a_usual_window(opened: Opener, width: int) -> None:
    """Evidence, failed calls and models of the shipped session stand there in full."""
    with opened(*replayed(ROOT / "golden" / "tour"), viewport={"width": width, "height": 800}) as page:
        assert page.locator(".turn").count() == 12
        assert page.evaluate(CUT) == []


@pytest.mark.parametrize("width", [360, 700, 1000, 1100, 1220, 1280])
def test_what_a_row_cuts_can_be_read(opened: Opener, tmp_path: Path, width: int) -> None:
    """Nothing leaves its row or the window; a text that is cut is whole in its title."""
    shutil.copytree(ROOT / "golden" / "tour", tmp_path / "all" / f"tour-{'long' * 20}")
    costly = turn_span(attributes={**turn_span().attributes, "raxol.turn.cost_usd": 12.5, "raxol.turn.id": "t" * 100})
    told = [
        *replayed(folder_of_all_states(tmp_path / "all")),
        *([costly], summary("s", "damaged", f"{TROUBLE} {'and more ' * 20}", held=3)),
    ]
    with opened(*told, viewport={"width": width, "height": 6000}) as page:
        assert page.locator(".row.turn").count() == 18
        assert page.evaluate(LOST) == []
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        out = page.locator(".canvas .cell").evaluate_all(
            """(all) => all.filter((one) => one.checkVisibility()).filter((one) => {
                const [box, row] = [one.getBoundingClientRect(), one.closest('.row').getBoundingClientRect()];
                return box.top < row.top - 0.5 || box.bottom > row.bottom + 0.5 || box.right > row.right + 0.5;
            }).map((one) => one.textContent)"""
        )
        assert out == []


def test_states_can_be_read_in_light_and_in_dark(opened: Opener, tmp_path: Path) -> None:
    """Every text of the sessions, their remarks and their details has a contrast of at least 4.5 to its ground."""
    live = summary("live", held=2)
    with opened(*replayed(folder_of_all_states(tmp_path / "all")), live) as page:
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
            for name in ("b-damaged", "live"):
                row(page, name, "session").click()
                contrasts = page.evaluate(CONTRASTS)
                assert any(re.search("last good offset", text) for text, _ in contrasts)
                assert [(text, contrast) for text, contrast in contrasts if contrast < 4.5] == []


def test_a_link_finds_its_turn_in_its_own_copy_or_elsewhere(opened: Opener) -> None:
    """Of three copies each leads to itself; a turn that only another session has is found there."""
    first, second = turn_span(1), turn_span(2, links=(Link(turn_span(1).trace_id, turn_span(1).span_id),))
    with opened(
        *([first, second], summary("a"), [second], summary("b"), [first, second], summary("c")),
    ) as page:
        for number, title in enumerate(("a", "c", "c")):
            row(page, "turn-2").nth(number).click()
            page.get_by_role("button", name="previous turn: turn-1").click()
            assert facts(page)["Session"] == title
