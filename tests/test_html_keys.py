"""The HTML page in use: keys, the filter, what assistive technology is told, and how it bears many spans."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from tests import chromium
from tests.chromium import row, session_of, texts
from tests.exporter_contract import SECOND, child_span, turn_span

if TYPE_CHECKING:
    from playwright.sync_api import Page

    from raxol_otel.turns import Span
    from tests.chromium import Opener

# Fixtures are found by their names here.
browser, opened, tour = chromium.browser, chromium.opened, chromium.tour

# The machine may be slow, and others may be at work on it.
LONG_TASK_MS: Final = 200
SCROLL: Final = """() => new Promise((done) => {
    const tree = document.querySelector('#tree');
    const seen = new Set();
    const step = () => {
        document.querySelectorAll('.row.span').forEach((row) => seen.add(row.getAttribute('aria-rowindex')));
        const before = tree.scrollTop;
        tree.scrollTop += tree.clientHeight / 2;
        tree.scrollTop === before ? done(seen.size) : requestAnimationFrame(step);
    };
    step();
})"""


def active(page: Page) -> str:
    """The title of the row that has the keyboard's focus, by what assistive technology is told."""
    return str(
        page.evaluate(
            """() => {
                const tree = document.activeElement;
                const row = document.getElementById(tree.getAttribute('aria-activedescendant'));
                const [box, outer] = [row.getBoundingClientRect(), tree.getBoundingClientRect()];
                const seen = box.top >= outer.top && box.bottom <= outer.bottom + 1;
                const marked = getComputedStyle(row).outlineStyle === 'solid';
                return `${row.querySelector('.title').textContent}${seen ? '' : ' unseen'}${marked ? '' : ' unmarked'}`;
            }"""
        )
    )


def press(page: Page, *keys: str) -> str:
    """Press the keys; the title of the row that is active then."""
    for key in keys:
        page.keyboard.press(key)
    return active(page)


# -- keys


def test_the_arrows_move_open_and_close(opened: Opener) -> None:
    """Down and up move; right opens, then goes in; left goes out, then closes; the active row is seen and marked."""
    with opened(session_of("completed", "error"), session_of("canceled", session="s2")) as page:
        for _ in range(10):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "tree":
                break
        assert active(page) == "s1"
        assert press(page, "ArrowDown") == "t1"
        assert press(page, "ArrowDown") == "t2"
        assert press(page, "ArrowRight") == "t2"
        assert row(page, "t2").get_attribute("aria-expanded") == "true"
        assert press(page, "ArrowRight") == "tool_2"
        assert press(page, "ArrowRight") == "tool_2"
        assert press(page, "ArrowDown") == "s2"
        assert press(page, "ArrowUp") == "tool_2"
        assert press(page, "ArrowLeft") == "t2"
        assert press(page, "ArrowLeft") == "t2"
        assert row(page, "t2").get_attribute("aria-expanded") == "false"
        assert press(page, "ArrowLeft") == "s1"
        assert press(page, "ArrowUp") == "s1"
        assert press(page, "ArrowLeft") == "s1"
        assert texts(page, ".row .title") == ["s1", "s2", "t1"]
        assert press(page, "ArrowDown", "ArrowDown", "ArrowDown") == "t1"


def test_letters_enter_and_space_do_the_same(opened: Opener) -> None:
    """`j` and `k` move, Enter and Space open and close, Home and End go to the ends, pages are turned."""
    with opened(session_of(*["completed"] * 200)) as page:
        page.locator("#tree").focus()
        assert press(page, "j", "j", "k") == "t1"
        for key in ("Enter", "Space"):
            assert press(page, key) == "t1"
            assert texts(page, ".span .title") == ["tool_1"]
            assert press(page, key) == "t1"
            assert page.locator(".span").count() == 0
        assert press(page, "End") == "t200"
        assert press(page, "j") == "t200"
        assert 160 < int(press(page, "PageUp").removeprefix("t")) < 190
        assert press(page, "PageDown") == "t200"
        assert press(page, "Home") == "s1"


def test_focus_shows_the_details_and_escape_closes_them(opened: Opener) -> None:
    """What a pointer sees the keyboard sees too; Escape closes, and the next step opens again."""
    with opened(session_of("completed", "error")) as page:
        page.locator("#tree").focus()
        press(page, "j", "j", "ArrowRight", "j")
        assert page.locator("#details h2").inner_text() == "tool_2"
        assert "execute_tool tool_2" in page.locator("#details").inner_text()
        assert press(page, "Escape") == "tool_2"
        assert page.locator("#details h2").count() == 0
        press(page, "k")
        assert page.locator("#details h2").inner_text() == "t2"
        page.locator("#close").focus()
        page.keyboard.press("Enter")
        assert page.locator("#details h2").count() == 0
        assert page.evaluate("document.activeElement.id") == "tree"


def test_keys_with_modifiers_are_the_browsers(opened: Opener) -> None:
    """Ctrl, Alt and Meta are not ours: with them no row moves."""
    with opened(session_of("completed", "error")) as page:
        page.locator("#tree").focus()
        assert press(page, "Control+j", "Alt+ArrowDown", "Meta+End") == "s1"


def test_many_sessions_begin_closed_and_open_together(opened: Opener) -> None:
    """With hundreds of turns the page begins as a list of sessions; one button opens and closes all."""
    sessions = [session_of(*["completed"] * 200, session=name) for name in ("s1", "s2")]
    with opened(*sessions) as page:
        assert (texts(page, ".row .title"), page.locator(".turn").count()) == (["s1", "s2"], 0)
        assert "200 turns, 400 spans" in page.locator(".session").first.inner_text()
        page.get_by_role("button", name="Expand sessions").click()
        assert page.locator(".turn").count() > 10
        page.get_by_role("button", name="Collapse sessions").click()
        assert page.locator(".turn").count() == 0


# -- the filter


def filtered(page: Page, text: str, count: int) -> list[str]:
    """Filter by the text, wait until so many of all turns are told to be left, give the titles in sight."""
    page.fill("#filter", text)
    page.wait_for_function(
        "(count) => document.querySelector('#status').textContent.startsWith(`${count} of `)", arg=count
    )
    return texts(page, ".turn .title")


def test_text_filters_turns(opened: Opener, tour: list[Span]) -> None:
    """By a turn's id, its model, its error, or the name of a call in it, in any case; and the rest is counted."""
    with opened(tour) as page:
        assert filtered(page, "TURN-05", 1) == ["turn-05"]
        assert page.locator("#status").inner_text() == "1 of 12 turns"
        assert filtered(page, "http_error", 1) == ["turn-05"]
        assert filtered(page, "birch-small", 2) == ["turn-03", "side-01"]
        assert filtered(page, "edit_file", 3) == ["turn-01", "turn-02", "turn-06"]
        assert filtered(page, "no such thing", 0) == []
        assert page.locator("#nothing").inner_text() == "No turn matches the filter."
        page.fill("#filter", "")
        page.wait_for_function("() => document.querySelectorAll('.row.turn').length === 12")
        assert page.locator("#status").inner_text() == ""


def test_the_filter_is_reached_and_left_by_keys(opened: Opener, tour: list[Span]) -> None:
    """`/` goes there and types nothing; Escape empties it, then leaves it; Enter goes to what was found."""
    with opened(tour) as page:
        page.keyboard.press("/")
        page.keyboard.type("turn-06")
        page.wait_for_function("() => document.querySelectorAll('.row.turn').length === 1")
        page.keyboard.press("Enter")
        assert press(page, "j", "ArrowRight", "j") == "edit_file"
        page.keyboard.press("/")
        page.keyboard.press("Escape")
        page.wait_for_function("() => document.querySelectorAll('.row.turn').length === 12")
        assert page.evaluate("document.activeElement.id") == "filter"
        page.keyboard.press("Escape")
        assert active(page) == "edit_file"


def test_outcomes_filter_turns(opened: Opener, tour: list[Span]) -> None:
    """Each outcome is a switch with its count; several add up, and those of damaged journals are one more."""
    spans = session_of("completed", "error", "canceled", "incomplete", "error")
    spans[-1].attributes["raxol.journal.damaged"] = True
    with opened(spans) as page:
        names = texts(page, "#outcomes button")
        assert [name.split() for name in names] == [
            *(["completed", "1"], ["error", "2"], ["canceled", "1"], ["incomplete", "1"], ["damaged", "1", "session"])
        ]
        error, damaged = (page.locator("#outcomes button", has_text=word) for word in ("error", "damaged"))
        error.click()
        assert (texts(page, ".turn .title"), error.get_attribute("aria-pressed")) == (["t2", "t5"], "true")
        page.locator("#outcomes button", has_text="canceled").click()
        assert texts(page, ".turn .title") == ["t2", "t3", "t5"]
        for word in ("error", "canceled", "damaged"):
            page.locator("#outcomes button", has_text=word).click()
        assert (texts(page, ".turn .title"), damaged.get_attribute("aria-pressed")) == (["t5"], "true")
        assert "damaged" in page.locator(".session").inner_text()
    with opened(tour) as page:
        assert page.locator("#outcomes button", has_text="damaged").count() == 0


# -- what assistive technology is told


def test_the_tree_is_one_to_assistive_technology(opened: Opener) -> None:
    """Rows have their level, their place among their siblings and in the whole, and whether they are open."""
    with opened(session_of("completed", "error"), session_of("canceled", session="s2")) as page:
        row(page, "t2").click()
        told = ("aria-level", "aria-posinset", "aria-setsize", "aria-rowindex", "aria-expanded")
        rows = page.locator("[role=treegrid] .canvas [role=row]").evaluate_all(
            "(all, names) => all.map((row) => names.map((name) => row.getAttribute(name)))", list(told)
        )
        assert rows == [
            ["1", "1", "2", "2", "true"],
            ["2", "1", "2", "3", "false"],
            ["2", "2", "2", "4", "true"],
            ["3", "1", "1", "5", None],
            ["1", "2", "2", "6", "true"],
            ["2", "1", "1", "7", "false"],
        ]
        assert page.locator("#tree").get_attribute("aria-rowcount") == "7"
        assert page.locator("[role=row] > :not([role=gridcell], [role=columnheader])").count() == 0


def test_everything_that_takes_part_has_a_name(opened: Opener, tour: list[Span]) -> None:
    """Each control, region and row has a name that a screen reader can say; no id stands twice."""
    with opened(tour) as page:
        row(page, "turn-02").click()
        snapshot = page.locator("body").aria_snapshot()
        assert '- treegrid "Sessions, turns and spans"' in snapshot
        assert '- searchbox "Filter turns by text"' in snapshot
        assert '- button "Close details"' in snapshot
        roles = ("button", "searchbox", "treegrid", "row", "region", "complementary", "group", "search")
        nameless = [line for line in snapshot.splitlines() if line.strip(" -:") in roles]
        assert nameless == []
        ids = page.locator("[id]").evaluate_all("all => all.map((one) => one.id)")
        assert len(ids) == len(set(ids))


# -- many spans


def wide_turn(count: int) -> list[Span]:
    """A turn of so many calls, one after the other."""
    turn = turn_span(1, session_id="wide")
    starts = [turn.start_ns + number * SECOND // count for number in range(count)]
    return [*(child_span(turn, n, start_ns=start, end_ns=start + 1000) for n, start in enumerate(starts)), turn]


def test_2000_spans_open_and_scroll_without_a_pause(opened: Opener) -> None:
    """From opening the page to the last span, no task holds the page for long; and every span is shown."""
    with opened(wide_turn(2000)) as page:
        row(page, "turn-1").click()
        assert page.evaluate(SCROLL) == 2000
        assert page.locator(".row").count() < 100
        page.wait_for_timeout(100)
        assert [task for task in page.evaluate("longTasks") if task > LONG_TASK_MS] == []


def test_50000_spans_are_borne(opened: Opener) -> None:
    """A page with that many, most of them in one turn, opens, scrolls to its end and filters."""
    turns = [turn_span(number, session_id="long") for number in range(2, 10_002)]
    with opened(wide_turn(40_000), turns) as page:
        assert page.locator("#summary").inner_text() == "2 sessions, 10,001 turns, 50,001 spans"
        page.get_by_role("button", name="Expand sessions").click()
        row(page, "turn-1").click()
        page.locator("#tree").focus()
        assert press(page, "End") == "turn-10001"
        assert press(page, "Home", "j", "j", "j") == "tool-1"
        assert filtered(page, "turn-9999", 1) == ["turn-9999"]
