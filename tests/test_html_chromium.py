"""The HTML page in a real browser: what it shows, in which looks, and that nothing in a journal runs."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.turns.span import Link, SpanEvent
from tests import chromium
from tests.chromium import row, session_of, texts
from tests.exporter_contract import SECOND, START_NS, child_span, turn_span
from tests.html_page import HOSTILE_TEXTS, hostile_spans, readable, written

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser

    from raxol_otel.turns import Span
    from tests.chromium import Opener

# Fixtures are found by their names here.
browser, opened, tour = chromium.browser, chromium.opened, chromium.tour

# The contrast of each text that is seen, against the first background below it that is not transparent.
CONTRASTS: Final = """() => {
    const channels = (colour) => colour.match(/[\\d.]+/g).map(Number);
    const light = (colour) => channels(colour).slice(0, 3).map((value) => value / 255)
        .map((value) => (value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4))
        .reduce((sum, value, index) => sum + value * [0.2126, 0.7152, 0.0722][index], 0);
    const ground = (node) => {
        const colour = getComputedStyle(node).backgroundColor;
        return (channels(colour)[3] ?? 1) === 0 && node.parentElement ? ground(node.parentElement) : colour;
    };
    const found = [];
    const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    while (walk.nextNode()) {
        const node = walk.currentNode.parentElement;
        if (walk.currentNode.data.trim() && node.checkVisibility() && !node.closest('script')) {
            const [one, other] = [light(getComputedStyle(node).color), light(ground(node))].sort((a, b) => b - a);
            found.push([walk.currentNode.data.trim(), (one + 0.05) / (other + 0.05)]);
        }
    }
    return found;
}"""


# -- what is shown


def test_every_turn_is_listed_with_what_is_known_of_it(opened: Opener, tour: list[Span]) -> None:
    """Turns stand in the order of their starts, each with its outcome in words, its tokens and its duration."""
    turns = sorted((span for span in tour if span.role == "turn"), key=lambda turn: turn.start_ns)
    with opened(tour) as page:
        assert page.locator("#summary").inner_text() == f"1 session, {len(turns)} turns, {len(tour)} spans"
        assert texts(page, ".turn .title") == [str(turn.attributes["raxol.turn.id"]) for turn in turns]
        assert texts(page, ".turn .c-outcome") == [str(turn.attributes["raxol.turn.outcome"]) for turn in turns]
        tokens = [turn.attributes.get("gen_ai.usage.input_tokens") for turn in turns]
        assert texts(page, ".turn .c-in") == ["" if count is None else f"{count:,}" for count in tokens]
        assert row(page, "turn-01").locator(".c-duration").inner_text() == "22.5 s"
        assert row(page, "turn-02").locator(".c-evidence").inner_text() == "rejected: stale_evidence"
        assert "http_error" in row(page, "turn-05").inner_text()
        assert "tainted" in row(page, "turn-04").inner_text()
        assert "on try-avif" in row(page, "side-01").inner_text()
        assert "observed" in row(page, "review-1").inner_text()
        session = page.locator(".row.session").inner_text()
        assert re.sub(r"\s+", " ", session).startswith("tour 12 turns, 47 spans 9 completed 1 error 1 canceled 1")


def test_a_turn_opens_into_its_spans_at_their_times(opened: Opener, tour: list[Span]) -> None:
    """Children come in the order of their starts; each bar begins and ends at its part of the turn's time."""
    turn = next(span for span in tour if span.attributes.get("raxol.turn.id") == "turn-01")
    children = sorted((span for span in tour if span.parent_id == turn.span_id), key=lambda child: child.start_ns)
    whole = turn.end_ns - turn.start_ns
    with opened(tour) as page:
        assert page.locator(".row.span").count() == 0
        row(page, "turn-01").click()
        assert texts(page, ".span .title") == [child.name.removeprefix("execute_tool ") for child in children]
        bars = page.locator(".row.span .bar").all()
        for child, bar in zip(children, bars, strict=True):
            box, track = bar.bounding_box(), bar.locator("xpath=..").bounding_box()
            assert box is not None
            assert track is not None
            start, end = (child.start_ns - turn.start_ns) / whole, (child.end_ns - turn.start_ns) / whole
            assert (box["x"] - track["x"]) / track["width"] == pytest.approx(start, abs=0.01)
            assert (box["x"] + box["width"] - track["x"]) / track["width"] == pytest.approx(end, abs=0.01)
        row(page, "turn-01").click()
        assert page.locator(".row.span").count() == 0


def test_events_are_marked_at_their_time(opened: Opener, tour: list[Span]) -> None:
    """An event of the turn is a row among the spans, with a mark at its time; after the turn's end, at the end."""
    events = [SpanEvent("late", START_NS + 9 * SECOND, {}), SpanEvent("half", START_NS + SECOND // 2, {"n": 7})]
    turn = turn_span(1, events=events)
    child = child_span(turn, 1, start_ns=START_NS + SECOND // 4, events=events[1:])
    with opened([child, turn], tour) as page:
        row(page, "turn-1").click()
        assert texts(page, ".row.span .title, .row.event .title") == ["tool-1", "half", "late"]
        for kind, place in (("span", [0.5]), ("event", [0.5, 1.0])):
            for at, mark in zip(place, page.locator(f".row.{kind} .marker").all(), strict=True):
                box, track = mark.bounding_box(), mark.locator("xpath=..").bounding_box()
                assert box is not None
                assert track is not None
                assert (box["x"] + box["width"] / 2 - track["x"]) / track["width"] == pytest.approx(at, abs=0.01)
        row(page, "half", "event").click()
        assert re.search(r"n\s+7$", page.locator("#details .attributes").inner_text())


def test_details_follow_the_pointer_and_stay_where_it_clicked(opened: Opener, tour: list[Span]) -> None:
    """Pointing at a row shows all of it; when the pointer leaves, the row that was clicked is shown again."""
    child = next(span for span in tour if span.name == "execute_tool edit_file")
    with opened(tour) as page:
        details = page.locator("#details")
        row(page, "turn-01").click()
        row(page, "edit_file", "span").hover()
        shown = details.inner_text()
        for key, value in child.attributes.items():
            assert re.search(rf"{re.escape(key)}\s+{re.escape(str(value))}", shown)
        assert {child.trace_id, child.span_id, child.parent_id} <= set(shown.split())
        assert re.search(r"Start, UTC\s+2026-09-14 18:40:\d\d\.\d{6} UTC", shown)
        assert re.search(r"Start, local\s+2026-09-15 00:10:\d\d\.\d{3} \+05:30", shown)
        page.mouse.move(700, 20)
        assert details.locator("h2").inner_text() == "turn-01"
        row(page, "edit_file", "span").click()
        row(page, "turn-02").hover()
        assert details.locator("h2").inner_text() == "turn-02"
        page.mouse.move(700, 20)
        assert details.locator("h2").inner_text() == "edit_file"
        page.locator("#close").click()
        assert details.locator("h2").count() == 0


def test_a_turn_leads_to_the_one_before_it(opened: Opener) -> None:
    """The link goes there whatever the filter hides; a turn that is not on the page is named by its id."""
    first, second = turn_span(1), turn_span(2, session_id="s2")
    second.links = (Link(first.trace_id, first.span_id), Link("e" * 32, "d" * 16))
    with opened([first, second]) as page:
        page.fill("#filter", "turn-2")
        page.wait_for_function("() => document.querySelectorAll('.row.turn').length === 1")
        row(page, "turn-2").click()
        assert "d" * 16 in page.locator("#details .links").inner_text()
        page.get_by_role("button", name="previous turn: turn-1").click()
        assert page.locator("#details h2").inner_text() == "turn-1"
        assert page.locator("#filter").input_value() == ""
        assert page.locator(".row.active .title").inner_text() == "turn-1"


def test_exact_numbers_and_odd_values_are_shown_as_they_are(opened: Opener) -> None:
    """64-bit integers keep their last digit; what is no number, empty, or true says so."""
    odd: dict[str, Any] = {"big": 2**63 - 1, "none": float("nan"), "empty": "", "yes": True, "__proto__": "p", "f": 0.1}
    with opened([turn_span(attributes=odd)]) as page:
        row(page, "turn").click()
        names, values = texts(page, ".attributes dt"), texts(page, ".attributes dd")
        assert dict(zip(names, values, strict=True)) == {
            "big": "9223372036854775807",
            "none": "nan",
            "empty": "(empty)",
            "yes": "true",
            "__proto__": "p",
            "f": "0.1",
        }
        assert row(page, "turn").locator(".c-outcome").inner_text() == "unknown"


# -- sealed


def test_nothing_that_a_journal_holds_runs(opened: Opener) -> None:
    """With such texts in every field they are shown as text, letter for letter; the page works, and no script runs."""
    with opened(*map(hostile_spans, HOSTILE_TEXTS.values()), viewport={"width": 1440, "height": 3000}) as page:
        turns = page.locator(".row.turn")
        assert turns.count() == page.locator(".row.session").count() == len(HOSTILE_TEXTS)
        for turn, text in zip(turns.all(), HOSTILE_TEXTS.values(), strict=True):
            turn.click()
            beginning = readable(text).split("\n")[0][:40]
            hidden = "".join(char if char.isprintable() else f"\\u{{{ord(char):x}}}" for char in beginning)
            assert hidden in turn.locator(".title").inner_text()
            for kind in ("dt", "dd"):
                assert hidden in page.locator(f"#details .attributes {kind}").first.inner_text()
        assert page.locator(".row.span, .row.event").count() == 2 * len(HOSTILE_TEXTS)
        for title in page.locator(".row .title").all():
            title.hover()
        assert page.locator("img, b:not(.events b), svg[onload], iframe, link, base, object, embed").count() == 0


def test_a_megabyte_is_shown_when_asked_for(opened: Opener) -> None:
    """A long value begins, says how long it is, and comes whole at the press of a button."""
    with opened([turn_span(attributes={"long": "x" * 2**20})]) as page:
        page.locator(".row.turn").click()
        assert len(page.locator("#details .attributes dd").last.inner_text()) < 5000
        page.get_by_role("button", name="Show all 1,048,576 characters").click()
        assert page.locator("#details .attributes dd").last.text_content() == "x" * 2**20


def test_the_policy_stops_a_script_that_got_in(browser: Browser, tmp_path: Path) -> None:
    """Were there ever a hole, the browser itself would refuse: neither an element nor a handler runs."""
    page = written(tmp_path / "out.html", [turn_span()])
    hole = b"<script>window.__pwned = 1</script><img src=x onerror='window.__pwned = 1'><b style='color: red'>"
    (tmp_path / "out.html").write_bytes(page.replace(b"<main>", hole + b"<main>"))
    with browser.new_context() as context:
        broken = context.new_page()
        told: list[str] = []
        broken.on("console", lambda message: told.append(message.text))
        broken.goto((tmp_path / "out.html").as_uri())
        assert texts(broken, ".turn .title") == ["turn-1"]
        assert broken.evaluate("window.__pwned") is None
        assert len([text for text in told if "violates the following Content Security Policy directive" in text]) >= 3


# -- looks


def test_every_text_can_be_read_in_light_and_in_dark(opened: Opener, tour: list[Span]) -> None:
    """The page takes the reader's scheme, and every text has a contrast of at least 4.5 to its ground."""
    with opened(tour) as page:
        for name in ("turn-01", "turn-04", "turn-06", "turn-08"):
            row(page, name).click()
        for scheme in ("light", "dark"):
            page.emulate_media(color_scheme="light" if scheme == "light" else "dark")
            ground = page.evaluate("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground))) > 384) == (scheme == "light")
            row(page, "measure_layout", "span").hover()
            contrasts = page.evaluate(CONTRASTS)
            assert len(contrasts) > 200
            assert [(text, contrast) for text, contrast in contrasts if contrast < 4.5] == []


def test_outcomes_are_told_by_word_and_shape_too(opened: Opener) -> None:
    """Each outcome has a word and a shape of its own, so that nobody needs the colours."""
    with opened(session_of("completed", "error", "canceled", "incomplete", "unheard-of")) as page:
        assert texts(page, ".turn .c-outcome") == ["completed", "error", "canceled", "incomplete", "unheard-of"]
        shapes = page.locator(".turn .c-outcome svg").evaluate_all("all => all.map((icon) => icon.innerHTML)")
        assert len(set(shapes)) == 5
        counts = [" ".join(text.split()) for text in texts(page, ".session .c-chips .outcome")]
        assert counts == ["1 completed", "1 error", "1 canceled", "1 incomplete", "1 unheard-of"]


def test_the_page_fits_small_windows(opened: Opener, tour: list[Span]) -> None:
    """Nothing reaches over the window's edge, with a turn and its details open; the chosen row stays in sight."""
    with opened(tour) as page:
        row(page, "turn-01").click()
        for width in (360, 700, 1000, 1280):
            page.set_viewport_size({"width": width, "height": 740})
            row(page, "run_tests", "span").last.click()
            assert page.locator("#details h2").inner_text() == "run_tests"
            assert page.evaluate("document.documentElement.scrollWidth") <= width
            over = page.locator(".canvas .cell, .top > *, #details *").evaluate_all(
                "(all, width) => all.filter((one) => one.getBoundingClientRect().right > width + 0.5).length", width
            )
            assert over == 0
            chosen, tree = page.locator(".row.active").bounding_box(), page.locator("#tree").bounding_box()
            assert chosen is not None
            assert tree is not None
            assert tree["y"] <= chosen["y"] <= chosen["y"] + chosen["height"] <= tree["y"] + tree["height"] + 1


def test_paper_has_every_row(opened: Opener) -> None:
    """Printed, the page holds all turns, not only those that a window shows, and afterwards it is as before."""
    with opened(session_of(*["completed"] * 300)) as page:
        rows = page.locator(".row.turn")
        assert rows.count() < 100
        page.evaluate(
            "addEventListener('beforeprint', () => { window.printed = document.querySelectorAll('.turn').length })"
        )
        assert page.pdf().count(b"/Type /Page\n") > 2
        assert page.evaluate("window.printed") == 300
        assert rows.count() < 100


def test_without_scripts_the_page_says_so(browser: Browser, tmp_path: Path) -> None:
    """A reader who forbids scripts sees a sentence, not an empty page."""
    written(tmp_path / "out.html", [turn_span()])
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto((tmp_path / "out.html").as_uri())
        assert page.locator(".noscript").is_visible()
