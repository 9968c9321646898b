"""What the tests of the HTML page share: writing one, reading one without a browser, spans that would break one."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.exporters.base import SessionSummary
from raxol_otel.exporters.html import HtmlExporter
from raxol_otel.turns.span import Link, SpanEvent
from tests.exporter_contract import START_NS, child_span, turn_span

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from raxol_otel.turns import Span

HOSTILE_TEXTS: Final = {
    "a script": "<script>window.__pwned = 1</script>",
    "the end of a script": "</script><img src=x onerror='window.__pwned = 1'>",
    "a comment": "<!--<script>",
    "the end of a comment": "--></script>",
    "cdata": "]]><svg onload=window.__pwned=1>",
    "quotes": "\"'`><b onmouseover=window.__pwned=1>",
    "references": "&lt;b&gt;&#60;script&#62;&amp;",
    "backslashes": '\\u003cscript>\\"\\',
    "a place of the template": "{{script}}{{title}}{{spans}}",
    "line separators": "a\u2028b\u2029c",
    "lone surrogates": "a\ud800<b\udfff>",
    "NUL and other controls": "\0\x01\x1b[31m\x7f\x9b\r\n",
    "the name of a prototype": "__proto__",
    "a megabyte": "<b>" + "x" * 2**20,
}


@dataclass
class Element:
    """An element of the page: its attributes, and the text right inside it."""

    name: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Parsed(HTMLParser):
    """A page as a parser sees it that knows nothing of ours."""

    elements: list[Element] = field(default_factory=list[Element])
    comments: list[str] = field(default_factory=list[str])

    def __post_init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self._is_inside = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember the element."""
        self._is_inside = True
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:  # noqa: ARG002 - whichever it is
        """What follows is not the element's."""
        self._is_inside = False

    def handle_data(self, data: str) -> None:
        """Text belongs to the element that began last: nothing that is looked for here has more than text in it."""
        if self._is_inside:
            self.elements[-1].text += data

    def handle_comment(self, data: str) -> None:
        """Remember the comment."""
        self.comments.append(data)

    def named(self, name: str) -> list[Element]:
        """All elements of this name."""
        return [element for element in self.elements if element.name == name]

    @property
    def blocks(self) -> list[Element]:
        """The elements that hold the spans."""
        return [script for script in self.named("script") if script.attributes.get("type") == "application/json"]

    @property
    def rest(self) -> list[Element]:
        """The elements that hold no spans."""
        blocks = {id(block) for block in self.blocks}
        return [element for element in self.elements if id(element) not in blocks]


def written(path: Path, *batches: Iterable[Span] | SessionSummary, **options: Any) -> bytes:
    """The page of these batches, and of these sessions, each told after its batches."""
    exporter = HtmlExporter(path, **options)
    with exporter:
        for one in batches:
            if isinstance(one, SessionSummary):
                exporter.session_done(one)
            else:
                exporter.export(list(one))
        exporter.finish()
    return path.read_bytes()


def parsed(page: bytes) -> Parsed:
    """The page, parsed."""
    parser = Parsed()
    parser.feed(page.decode())
    parser.close()
    return parser


def blocks_of(page: bytes) -> dict[str, Any]:
    """The JSON of each block by the block's id."""
    return {block.attributes["id"]: json.loads(block.text) for block in parsed(page).blocks}


def turns_of(page: bytes) -> list[tuple[dict[str, Any], list[dict[str, Any]]]]:
    """Each turn's record with its children's, put together as the page says."""
    blocks = blocks_of(page)
    turns = [turn for name, block in blocks.items() if name.startswith("turns-") for turn in block]
    return [
        (turn, [child for block, entry in turn.get("at", []) for child in blocks[f"spans-{block}"][entry]])
        for turn in turns
    ]


def sessions_of(page: bytes) -> list[dict[str, Any]]:
    """The record of each session that was told, in order."""
    return [one for name, block in blocks_of(page).items() if name.startswith("sessions-") for one in block]


def summary(name: str, state: str = "healthy", trouble: str = "", *, records: int = 9, held: int = 0) -> SessionSummary:
    """What an exporter is told of a session that is done; how many turns it had, the page knows itself."""
    return SessionSummary(name, state, records, 0, held, trouble)


def hostile_spans(text: str) -> list[Span]:
    """A turn and a child with this text in every field that is text."""
    attributes: dict[str, Any] = {text: text, "raxol.turn.id": text, "raxol.turn.outcome": text, "error.type": text}
    events = [SpanEvent(text, START_NS, {text: text})]
    turn = turn_span(
        name=text,
        session_id=text,
        trace_id=text,
        span_id=text,
        attributes=attributes,
        events=events,
        links=(Link(text, text),),
    )
    child: dict[str, Any] = {text: text, "raxol.tool.outcome": text, "error.type": text, "raxol.item.type": text}
    return [child_span(turn, name=text, span_id=f"{text}2", attributes=child, events=events), turn]


def readable(text: str) -> str:
    """The text as UTF-8 can carry it."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)
