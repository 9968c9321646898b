"""Chromium for the tests of the HTML page, driven by playwright: fixtures, and how to find what is shown."""

from __future__ import annotations

import re
import shutil
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.exporters.base import BaseExporter, ExportResult
from raxol_otel.exporters.replay import replay
from tests.conftest import ROOT
from tests.exporter_contract import SECOND, START_NS, child_span, turn_span
from tests.html_page import written

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from playwright.sync_api import Browser, Locator, Page

    from raxol_otel.turns import Span

    Opener = Callable[..., AbstractContextManager[Page]]

FLAGS: Final = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)
OBSERVE: Final = """
window.longTasks = [];
new PerformanceObserver((list) => list.getEntries().forEach((entry) => window.longTasks.push(entry.duration)))
    .observe({type: 'longtask', buffered: true});
"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A Chromium for all tests of this file."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright, which drives the browser, is missing")
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("there is no Chromium here")
    with playwright.sync_playwright() as driver:
        started: Browser = driver.chromium.launch(executable_path=path, args=list(FLAGS))
        yield started
        started.close()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Opener:
    """Opens the page of some spans; at the end no error was told, nothing was asked of a network, no text ran."""

    @contextmanager
    def opener(*batches: Sequence[Span], **context: Any) -> Generator[Page]:
        path = tmp_path / "out.html"
        written(path, *batches)
        told: list[str] = []
        asked: list[str] = []
        options: dict[str, Any] = {"viewport": {"width": 1440, "height": 900}, "timezone_id": "Asia/Kolkata"}
        with browser.new_context(**options | context) as own:
            page = own.new_page()
            page.set_default_timeout(10_000)
            page.on("console", lambda message: told.append(message.text))
            page.on("pageerror", lambda error: told.append(str(error)))
            page.on("dialog", lambda dialog: told.append(dialog.message))
            page.on("request", lambda request: asked.append(request.url))
            page.add_init_script(OBSERVE)
            page.goto(path.as_uri())
            yield page
            assert page.evaluate("window.__pwned") is None
            assert told == []
            assert asked == [path.as_uri()]

    return opener


class Recorder(BaseExporter):
    """Keeps the spans."""

    def __init__(self) -> None:
        self.spans: list[Span] = []

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Keep them."""
        self.spans += spans
        return ExportResult(len(spans))

    def finish(self) -> None:
        """Nothing to do."""

    def abort(self) -> None:
        """Nothing to do."""


@pytest.fixture(scope="module")
def tour() -> list[Span]:
    """The spans of the tour in golden/."""
    recorder = Recorder()
    replay([ROOT / "golden" / "tour"], recorder)
    return recorder.spans


def row(page: Page, name: str, kind: str = "turn") -> Locator:
    """The row with this title."""
    return page.locator(f".row.{kind}").filter(has=page.locator(".title", has_text=re.compile(f"^{re.escape(name)}$")))


def texts(page: Page, selector: str) -> list[str]:
    """The texts of all that match."""
    return [text.strip() for text in page.locator(selector).all_inner_texts()]


def session_of(*outcomes: str, session: str = "s1") -> list[Span]:
    """A session of turns of these outcomes, a minute apart, with one call each, `t1` and so on."""
    spans: list[Span] = []
    for number, outcome in enumerate(outcomes, 1):
        turn = turn_span(
            number,
            session_id=session,
            start_ns=START_NS + number * 60 * SECOND,
            end_ns=START_NS + (number * 60 + 10) * SECOND,
            attributes={"raxol.turn.id": f"t{number}", "raxol.turn.outcome": outcome},
        )
        spans += [child_span(turn, name=f"execute_tool tool_{number}"), turn]
    return spans
