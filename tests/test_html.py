"""The HTML page as a file: self-contained, sealed against whatever a journal holds, whole or not there.

What a browser makes of it is in test_html_chromium.py.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import os
import re
import resource
import stat
import tracemalloc
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import ExportError
from raxol_otel.exporters.html import HtmlExporter
from raxol_otel.turns.span import Link, SpanEvent
from tests.exporter_contract import (
    ODD_SPANS,
    SECOND,
    START_NS,
    ExporterContract,
    Subject,
    batch,
    child_span,
    turn_span,
)
from tests.html_page import HOSTILE_TEXTS, hostile_spans, parsed, readable, sessions_of, summary, turns_of, written

if TYPE_CHECKING:
    from collections.abc import Generator
    from pathlib import Path

MIB: Final = 2**20


class TestHtml(ExporterContract):
    """The page keeps what every exporter promises."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        """Writes into an empty folder; of the page only the spans are looked at, its script speaks of turns too."""

        def seen() -> dict[str, bytes]:
            pages = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
            return {name: "".join(block.text for block in parsed(page).blocks).encode() for name, page in pages.items()}

        return Subject(lambda: HtmlExporter(tmp_path / "out.html"), seen)


# -- what the page is made of


def test_the_page_refers_to_nothing_outside(tmp_path: Path) -> None:
    """No element, style or script of the page names anything to load; there is no address in it at all."""
    page = parsed(written(tmp_path / "out.html", batch()))
    loading = {"src", "srcset", "href", "xlink:href", "data", "action", "formaction", "poster", "background", "ping"}
    assert [element for element in page.elements if loading & element.attributes.keys()] == []
    own = "".join(element.text for element in page.rest)
    assert re.findall(r"\w+://|url\(|@import|\bimport\b|fetch\(|XMLHttp|WebSocket|EventSource|sendBeacon", own) == []


def test_the_page_has_no_inline_handlers_or_styles(tmp_path: Path) -> None:
    """Behaviour stands in the one script and looks in the one style sheet, never on an element."""
    page = parsed(written(tmp_path / "out.html", batch()))
    inline = [name for element in page.elements for name in element.attributes if name.startswith("on")]
    assert inline == []
    assert [element for element in page.elements if "style" in element.attributes] == []
    assert len(page.named("style")) == 1
    assert len([script for script in page.named("script") if script not in page.blocks]) == 1


def test_the_policy_allows_this_script_and_this_style_and_nothing_else(tmp_path: Path) -> None:
    """Both hashes are those of what stands in the page; everything else is forbidden before anything is read."""
    page = parsed(written(tmp_path / "out.html", batch()))
    names = [element.name for element in page.elements]
    (policy,) = [meta for meta in page.named("meta") if meta.attributes.get("http-equiv") == "Content-Security-Policy"]
    rules = dict(rule.split(" ", 1) for rule in policy.attributes["content"].split("; "))
    (script,) = [script for script in page.named("script") if script not in page.blocks]
    (style,) = page.named("style")
    hashes = [
        f"'sha256-{base64.b64encode(hashlib.sha256(element.text.encode()).digest()).decode()}'"
        for element in (style, script)
    ]
    assert rules == {
        "default-src": "'none'",
        "style-src": hashes[0],
        "script-src": hashes[1],
        "base-uri": "'none'",
        "form-action": "'none'",
        "require-trusted-types-for": "'script'",
        "trusted-types": "'none'",
    }
    assert page.elements.index(policy) < min(names.index("style"), names.index("script"))


def test_the_page_says_its_encoding_and_language_at_once(tmp_path: Path) -> None:
    """A browser knows both from the first bytes, also from a file."""
    page = written(tmp_path / "out.html", batch())
    assert page.startswith(b'<!doctype html>\n<html lang="en">')
    assert b'<meta charset="utf-8">' in page[:1024]


def test_every_field_of_a_span_is_in_the_page(tmp_path: Path) -> None:
    """Whatever a span carries can be read from the page's data, exactly, however large the numbers."""
    attributes: dict[str, Any] = {
        "text": "t",
        "big": 2**63 - 1,
        "low": -(2**53),
        "float": 0.1,
        "none": math.nan,
        "yes": True,
        "1": 1,
        "0": 0,
    }
    turn = turn_span(
        attributes=attributes,
        parent_id="f" * 16,
        error=True,
        events=[SpanEvent("exception", START_NS + 1, {"exception.type": "kaboom"})],
        links=(Link("a" * 32, "b" * 16),),
        dropped_events=3,
    )
    ((record, (child,)),) = turns_of(written(tmp_path / "out.html", [child_span(turn, error=True), turn]))
    assert record["attributes"] == [
        *("text", "t"),
        *("big", {"number": str(2**63 - 1)}),
        *("low", {"number": str(-(2**53))}),
        *("float", 0.1),
        *("none", {"number": "nan"}),
        *("yes", True),
        *("1", 1),
        *("0", 0),
    ]
    told = {key: record[key] for key in ("name", "session", "trace", "span", "parent", "error", "links", "dropped")}
    assert told == {
        "name": "invoke_agent",
        "session": "s1",
        "trace": turn.trace_id,
        "span": turn.span_id,
        "parent": "f" * 16,
        "error": True,
        "links": [["a" * 32, "b" * 16]],
        "dropped": 3,
    }
    assert (record["start"], record["end"]) == (str(START_NS), str(START_NS + SECOND))
    assert record["events"] == [
        {"name": "exception", "time": str(START_NS + 1), "attributes": ["exception.type", "kaboom"]}
    ]
    assert (record["count"], record["failed"], record["names"]) == (1, 1, ["execute_tool tool-1"])
    assert (child["name"], child["role"], child["error"]) == ("execute_tool tool-1", "tool", True)
    assert (child["start"], child["end"]) == (str(START_NS), str(START_NS + SECOND // 2))


# -- sealed


@pytest.mark.parametrize("what", HOSTILE_TEXTS)
def test_no_text_of_a_span_becomes_markup(tmp_path: Path, what: str) -> None:
    """With the text in every field the page has the same elements as without, and the text comes out as it went in."""
    text = HOSTILE_TEXTS[what]
    page, harmless_page = (
        written(tmp_path / f"{name}.html", hostile_spans(one), summary(one, one, one))
        for name, one in (("hostile", text), ("harmless", "harmless"))
    )
    found, harmless = parsed(page), parsed(harmless_page)
    assert found.rest == harmless.rest
    assert found.comments == harmless.comments
    assert [block.attributes for block in found.blocks] == [block.attributes for block in harmless.blocks]
    assert not {"<", ">", "&", "\u2028", "\u2029", "\0"} & set("".join(block.text for block in found.blocks))
    ((turn, (child,)),) = turns_of(page)
    text = readable(text)
    assert {turn[key] for key in ("name", "session", "trace", "span")} == {text}
    assert turn["attributes"] == [text, text, "raxol.turn.id", text, "raxol.turn.outcome", text, "error.type", text]
    assert (child["name"], child["span"], child["attributes"][:2]) == (text, f"{text}2", [text, text])
    (session,) = sessions_of(page)
    assert {session[key] for key in ("name", "state", "trouble")} == {text}
    assert turn["links"] == [[text, text]]
    assert turn["events"] == child["events"] == [{"name": text, "time": str(START_NS), "attributes": [text, text]}]


@pytest.mark.parametrize("what", HOSTILE_TEXTS)
def test_no_title_becomes_markup(tmp_path: Path, what: str) -> None:
    """The page's title is text too, in the head and on the page."""
    title = HOSTILE_TEXTS[what]
    found = parsed(written(tmp_path / "hostile.html", batch(), title=title))
    harmless = parsed(written(tmp_path / "harmless.html", batch()))
    assert [(one.name, one.attributes) for one in found.elements] == [
        (one.name, one.attributes) for one in harmless.elements
    ]
    expected = readable(title).replace("\0", "\ufffd")
    assert [one.text for name in ("title", "h1") for one in found.named(name)] == [expected] * 2


@pytest.mark.parametrize("what", ODD_SPANS)
def test_odd_spans_are_strict_json(tmp_path: Path, what: str) -> None:
    """A browser's parser takes no NaN and no surrogate half: the data has neither."""

    def refuse(constant: str) -> None:
        pytest.fail(f"{constant} is no JSON")

    for block in parsed(written(tmp_path / "out.html", [ODD_SPANS[what]])).blocks:
        json.loads(block.text, parse_constant=refuse)
        assert not re.search("[\ud800-\udfff]", block.text)


# -- written as the spans come


def test_children_find_their_turn_whatever_comes_between(tmp_path: Path) -> None:
    """Turns of several sessions may overlap; each has its own children, also where ids are the same."""
    one, other = turn_span(1), turn_span(1, session_id="s2")
    mixed = [child_span(one, 1), child_span(other, 2), child_span(one, 3), other, child_span(one, 4), one]
    found = turns_of(written(tmp_path / "out.html", *([span] for span in mixed)))
    assert [(turn["session"], [child["name"][-1] for child in children]) for turn, children in found] == [
        ("s2", ["2"]),
        ("s1", ["1", "3", "4"]),
    ]


def test_children_whose_turn_never_came_are_not_lost(tmp_path: Path) -> None:
    """They stand under an entry that is marked as no turn."""
    turn = turn_span()
    late = child_span(turn, 2, start_ns=START_NS + SECOND, end_ns=START_NS + 2 * SECOND)
    ((record, children),) = turns_of(written(tmp_path / "out.html", [late, child_span(turn, 1)]))
    assert record["stray"] is True
    assert (record["start"], record["end"]) == (str(START_NS), str(START_NS + 2 * SECOND))
    assert [child["name"] for child in children] == ["execute_tool tool-2", "execute_tool tool-1"]


def test_sessions_stand_in_the_order_in_which_they_were_done(tmp_path: Path) -> None:
    """Each with what was told of it and the number of its turns, also none; what follows the last one is nobody's."""
    one, other = turn_span(1), turn_span(2)
    page = written(
        tmp_path / "out.html",
        *([child_span(one)], [one, other], summary("b", records=8), summary("a", "damaged", "at line 1", records=0)),
        *([turn_span(3)], summary("b", held=2, records=5), [turn_span(4)]),
    )
    assert sessions_of(page) == [
        {"name": "b", "state": "healthy", "trouble": "", "records": 8, "held": 0, "entries": 2},
        {"name": "a", "state": "damaged", "trouble": "at line 1", "records": 0, "held": 0, "entries": 0},
        {"name": "b", "state": "healthy", "trouble": "", "records": 5, "held": 2, "entries": 1},
    ]
    assert [turn["span"][-1] for turn, _ in turns_of(page)] == ["1", "2", "3", "4"]


def test_children_without_their_turn_stay_in_their_session(tmp_path: Path) -> None:
    """A copy of the session that follows has the turn; the first has the stray, and no child changes sides."""
    turn = turn_span()
    page = written(
        tmp_path / "out.html", [child_span(turn, 1)], summary("s1"), [child_span(turn, 2), turn], summary("s1")
    )
    assert [session["entries"] for session in sessions_of(page)] == [1, 1]
    assert [(turn.get("stray"), [child["name"][-1] for child in children]) for turn, children in turns_of(page)] == [
        (True, ["1"]),
        (None, ["2"]),
    ]


def test_memory_does_not_grow_with_the_sessions(tmp_path: Path) -> None:
    """However many there are, and however much there is to say of each."""
    exporter = HtmlExporter(tmp_path / "out.html")
    tracemalloc.start()
    try:
        for number in range(20_000):
            exporter.session_done(summary(f"s{number}", "damaged", f"{number} {'x' * 500}"))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    exporter.finish()
    page = (tmp_path / "out.html").read_bytes()
    assert peak < 4 * MIB < 10 * MIB < len(page)
    assert [session["name"] for session in sessions_of(page)] == [f"s{number}" for number in range(20_000)]


def test_memory_does_not_grow_with_the_page(tmp_path: Path) -> None:
    """Not even when all spans are children of one turn that comes last."""
    turn = turn_span()
    big: dict[str, Any] = {"text": "x" * 2000}
    exporter = HtmlExporter(tmp_path / "out.html")
    tracemalloc.start()
    try:
        for first in range(1, 8001, 100):
            exporter.export([child_span(turn, number, attributes=big) for number in range(first, first + 100)])
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    exporter.export([turn])
    exporter.finish()
    ((record, children),) = turns_of((tmp_path / "out.html").read_bytes())
    assert peak < 8 * MIB < (tmp_path / "out.html").stat().st_size
    assert record["count"] == len({child["span"] for child in children}) == 8000
    assert len(record["names"]) < 100


# -- whole or not there


def test_the_page_appears_when_all_is_done(tmp_path: Path) -> None:
    """Until `finish` there is only a hidden file beside it, and an old page is as it was."""
    path = tmp_path / "out.html"
    path.write_bytes(b"old\n")
    exporter = HtmlExporter(path)
    exporter.export([turn_span(number) for number in range(1, 2000)])
    (waiting,) = [entry.name for entry in tmp_path.iterdir() if entry != path]
    assert (waiting.startswith(".out.html."), waiting.endswith(".tmp")) == (True, True)
    assert path.read_bytes() == b"old\n"
    exporter.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.html"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~os.umask(os.umask(0o022))
    assert path.read_bytes().endswith(b"</html>\n")


@contextmanager
def file_size_limit(size: int) -> Generator[None]:
    """Inside, no file of this process grows past the size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("turns", [1, 10_000], ids=["at the end", "on the way"])
def test_a_page_that_may_not_grow(tmp_path: Path, turns: int) -> None:
    """When the disk is full the old page is as it was, and nothing is beside it."""
    path = tmp_path / "out.html"
    path.write_bytes(b"old\n")
    spans = [replace(turn_span(number), name="n" * 200) for number in range(1, turns + 1)]
    with file_size_limit(30_000), pytest.raises(ExportError, match=r"cannot write .*out\.html: File too large"):
        written(path, spans)
    assert {entry.name: entry.read_bytes() for entry in tmp_path.iterdir()} == {"out.html": b"old\n"}


@pytest.mark.parametrize("target", [".", "missing/out.html"])
def test_a_page_that_cannot_be_is_told_at_once(tmp_path: Path, target: str) -> None:
    """A directory or a missing folder: an `ExportError` before the first span, nothing left."""
    with pytest.raises(ExportError, match="cannot write"):
        HtmlExporter(tmp_path / target)
    assert list(tmp_path.iterdir()) == []
