"""The fleet's landing page: what it tells, and that no name of a session can do anything in it."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.fleet.board import View
from raxol_otel.fleet.page import ROWS_MAX, render_page
from tests import chromium
from tests.fleet_server import fleet, serving, session
from tests.html_page import HOSTILE_TEXTS, parsed

if TYPE_CHECKING:
    from pathlib import Path

    from playwright.sync_api import Browser, Page

    from raxol_otel.fleet.facts import FleetFacts

PAGE_BYTES_MAX: Final = 2**20
BIDI: Final = "\u202egnp.exe\u2066\u200f"


def text_of(page: bytes) -> str:
    """What the page says, without its markup and style, white space as one space."""
    parser = parsed(page)
    said = (element.text for element in parser.elements if element.name != "style")
    return re.sub(r"\s+", " ", " ".join(said))


def sections(facts: FleetFacts) -> dict[str, str]:
    """The source of each section by its heading."""
    page = render_page(facts).decode()
    return {str(re.findall("<h2>([A-Z][a-z]+)", part)[0]): part for part in page.split("<section>")[1:]}


def test_each_trouble_stands_under_what_is_wrong_with_it() -> None:
    """Damaged with cause and place, truncated with both offsets, unreadable with the error, known ones apart."""
    found = sections(
        fleet(
            session("glued", where="team/glued", last_offset=41),
            session("lost", state="healthy", cause="", place="", is_behind_head=True, last_offset=7, head_offset=9),
            session("both", is_behind_head=True, last_offset=3, head_offset=5),
            session("closed", state="unreadable", cause="", place="", error="HEAD: Permission denied"),
            session("known", is_acknowledged=True),
        )
    )
    assert list(found) == ["Damaged", "Truncated", "Unreadable", "Acknowledged"]
    assert "<bdi>glued</bdi>" in found["Damaged"]
    assert "<bdi>team/glued</bdi>" in found["Damaged"]
    assert "<b>spliced</b> at 000002.jsonl line 7, byte 1234; the last good record is 41" in found["Damaged"]
    assert "2026-09-21 14:13:20 UTC" in found["Damaged"]
    assert "HEAD names offset 5, the last record is 3" in found["Damaged"]
    assert "HEAD names offset 9, the last record is 7" in found["Truncated"]
    assert "HEAD: Permission denied" in found["Unreadable"]
    for name, place in (
        ("lost", "Truncated"),
        ("both", "Damaged"),
        ("closed", "Unreadable"),
        ("known", "Acknowledged"),
    ):
        assert [heading for heading, part in found.items() if f"<bdi>{name}</bdi>" in part] == [place]


def test_the_head_tells_counts_the_time_and_where_to_go() -> None:
    """The directory, all counts, the time of the last look and links to the other paths."""
    page = render_page(fleet(session(), troubles_omitted=5))
    text = text_of(page)
    assert "in /srv/sessions" in text
    assert "6 sessions are not intact." in text
    assert "Last look 2026-09-21 14:15:00 UTC , in 0.250 s." in text or "2026-09-21 14:15:00 UTC" in text
    for said in (
        *("sessions 9,016", "damaged 3", "unreadable 1", "torn 12", "healthy 9,000", "truncated 2", "live writers 40"),
        *("stale writers 2", "unknown writers 1", "open turns 17", "scan errors 5", "journals 3.0 GiB"),
        "And 5 more that are not listed.",
    ):
        assert said in text
    assert [link.attributes["href"] for link in parsed(page).named("a")] == ["metrics", "healthz", "readyz"]


def test_before_it_is_ready_it_says_what_for() -> None:
    """What is waited for stands where the verdict will be; there was no look yet."""
    text = text_of(render_page(fleet(is_ready=False, waiting_for="/srv/sessions, which is not there", looked_at=0.0)))
    assert "Not ready: waiting for /srv/sessions, which is not there" in text
    assert "Nothing was looked at yet." in text


@pytest.mark.parametrize(
    ("facts", "verdict"),
    [
        (fleet(states={}), "There are no sessions yet."),
        (fleet(), "Every session is intact."),
        (fleet(session()), "1 session is not intact."),
        (fleet(session(), session("s2", is_acknowledged=True)), "2 sessions are not intact. 1 of them acknowledged."),
    ],
)
def test_the_verdict_is_one_sentence(facts: FleetFacts, verdict: str) -> None:
    """No sessions, all intact, or how many are not, and how many of them are known."""
    assert verdict in text_of(render_page(facts))


@pytest.mark.parametrize("text", [*HOSTILE_TEXTS.values(), BIDI, "x" * 255, "\udcff" * 255], ids=repr)
def test_no_text_is_markup(text: str) -> None:
    """Whatever stands in any field, the elements are those of a harmless page, and no control character is left."""

    def page(word: str) -> bytes:
        troubles = [
            session(word, where=f"a/{word}", state=state, cause=word, place=word, error=word, is_acknowledged=is_known)
            for state in ("damaged", "unreadable")
            for is_known in (False, True)
        ]
        return render_page(fleet(*troubles, sessions_dir=word, is_ready=False, waiting_for=word, writers={word: 1}))

    hostile, harmless = parsed(page(text)), parsed(page("word"))
    assert [(one.name, list(one.attributes)) for one in hostile.elements] == [
        (one.name, list(one.attributes)) for one in harmless.elements
    ]
    assert hostile.comments == []
    source = page(text).decode()
    assert [letter for letter in source if not letter.isprintable() and letter != "\n"] == []


def test_odd_letters_are_spelt_out() -> None:
    """What cannot be seen, or would turn the text around, stands there by its number."""
    text = text_of(render_page(fleet(session(f"a\n{BIDI}\udc80\x1b"))))
    assert "a\\u{a}\\u{202e}gnp.exe\\u{2066}\\u{200f}\\u{dc80}\\u{1b}" in text


def test_the_page_has_a_bound() -> None:
    """Ten thousand sessions with the longest texts are a page of bounded size; those left out are counted."""
    long = "\u202e" * 5_000
    troubles = [session(f"{number}{long}", where=long, cause=long, place=long, error=long) for number in range(10_000)]
    page = render_page(fleet(*troubles, troubles_omitted=1, sessions_dir=long, waiting_for=long))
    assert len(page) < 8 * PAGE_BYTES_MAX
    assert f"And {10_001 - ROWS_MAX:,} more that are not listed." in text_of(page)
    usual = [session(f"session-{number}", where=f"team/session-{number}") for number in range(10_000)]
    assert len(render_page(fleet(*usual))) < PAGE_BYTES_MAX // 8


@pytest.mark.parametrize("moment", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_a_time_that_is_none_is_unknown(moment: float) -> None:
    """A moment that no calendar has does not keep the page from being made."""
    text = text_of(render_page(fleet(session(since=moment), looked_at=moment)))
    assert "Nothing was looked at yet." in text
    assert "unknown" in text


browser = chromium.browser


SHOWN: Final = fleet(
    session("checkout-bug-2026-09", where="team-a/checkout-bug-2026-09", last_offset=4_211),
    session("<script>window.__pwned = 1</script>", cause="nul_run", last_offset=0),
    session("a" * 255, where="nested/" + "a" * 255, cause="chain_hash", last_offset=12),
    session("lost-tail", state="torn", cause="", place="", is_behind_head=True, last_offset=7, head_offset=9),
    session(f"odd {BIDI}\udcff", state="unreadable", cause="", place="", error="journal: Permission denied"),
    session("old-disk", is_acknowledged=True, last_offset=99),
    troubles_omitted=3,
)


def wrong_with(page: Page) -> list[str]:
    """What a browser finds wrong with a page: scripts that ran, and what sticks out to the right."""
    wrong = ["a script ran"] if page.evaluate("window.__pwned") else []
    if page.evaluate("document.documentElement.scrollWidth > document.documentElement.clientWidth"):
        wrong.append("it is wider than the window")
    return wrong


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 1280])
def test_a_browser_shows_it(browser: Browser, tmp_path: Path, scheme: str, width: int) -> None:
    """From the server, under its policy: styled, no wider than a phone, in both colour schemes; nothing runs."""
    told: list[str] = []
    asked: list[str] = []
    view = View(b"", b"", render_page(SHOWN), is_ready=True)
    with (
        serving(view) as (server, _),
        browser.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,  # type: ignore[arg-type] # pyright: ignore[reportArgumentType] - one of the two
        ) as own,
    ):
        page = own.new_page()
        page.on("console", lambda message: told.append(message.text))
        page.on("pageerror", lambda error: told.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(server.url)
        background = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert wrong_with(page) == []
        assert background == ("rgb(246, 247, 247)" if scheme == "light" else "rgb(20, 24, 27)")
        headings = [text.split()[0] for text in page.locator("h2").all_inner_texts()]
        assert headings == ["Damaged", "Truncated", "Unreadable", "Acknowledged"]
        assert page.locator("td").first.is_visible()
        page.screenshot(path=tmp_path / f"page-{scheme}-{width}.png", full_page=True)
        page.get_by_text("/healthz").click()
        assert page.url == f"{server.url}healthz"
        assert page.inner_text("body").strip() == "ok"
    assert [text for text in told if "favicon" not in text] == []
    assert {url.removeprefix(server.url) for url in asked} <= {"", "healthz", "favicon.ico"}
