"""Spans as one HTML page that needs nothing else: sessions, turns, and each turn's spans over its time.

The page is written as the spans come. They stand in it as JSON, turns apart from their children: a browser reads all
turns when the page opens, and children when their turn is opened. Each session that is told with `session_done` is one
of the page, also without turns; turns that no session was told of are put together by their session's id. Nothing in a
span is markup, and the page's policy lets no script and no style run but its own.
"""

from __future__ import annotations

import base64
import hashlib
import html
import math
import re
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel import __version__
from raxol_otel.canonical import without_surrogates
from raxol_otel.exporters.atomic import AtomicFile
from raxol_otel.exporters.base import BaseExporter, ExportResult

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Sequence

    from raxol_otel.exporters.base import SessionSummary
    from raxol_otel.turns import Span
    from raxol_otel.turns.span import Attributes, AttributeValue

__all__ = ["HtmlExporter"]

DEFAULT_TITLE: Final = "Agent sessions"
# Put together in this order they are the page's one style sheet and its one script.
STYLES: Final = ("replay.css", "tree.css", "details.css", "places.css")
SCRIPTS: Final = ("text.js", "model.js", "rows.js", "details.js", "tree.js", "replay.js")
# A block of JSON is ended when it is this long; a browser parses one at a time.
BLOCK_BYTES: Final = 128 * 1024
# Children that wait for their turn are written out when all of them together are this long.
WAITING_BYTES_MAX: Final = 2**20
# The names of a turn's children by which the page's filter finds the turn.
NAMES_MAX: Final = 64
NAME_CHARS_MAX: Final = 128
# JavaScript's numbers are exact up to here.
_SAFE_INTEGER: Final = 2**53 - 1
# What could end a script element or begin a comment in it, and what old scripts took for the end of a line.
_UNSAFE: Final = (
    (b"<", b"\\u003c"),
    (b">", b"\\u003e"),
    (b"&", b"\\u0026"),
    ("\u2028".encode(), b"\\u2028"),
    ("\u2029".encode(), b"\\u2029"),
)
_PLACE: Final = re.compile(r"\{\{(\w+)\}\}")

_Key = tuple[str, str, str]


class HtmlExporter(BaseExporter):
    """Writes a page to `path`, which is replaced when all went well.

    Raises `ExportError` when the file cannot be made or written.
    """

    def __init__(self, path: str | os.PathLike[str], *, title: str = DEFAULT_TITLE) -> None:
        head, self._tail = _frame(title)
        self._file = AtomicFile(path, example="html:OUT.html")
        self.path = self._file.path
        self._children = _Blocks(self._file.write, "spans")
        self._turns = _Blocks(self._file.write, "turns")
        self._sessions = _Blocks(self._file.write, "sessions")
        # How many turns were written since the last session was done.
        self._fresh = 0
        self._waiting: dict[_Key, _Group] = {}
        self._waiting_bytes = 0
        self._file.write(head)

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Write the turns; children wait for theirs, as JSON, or in the file when there are many."""
        for span in spans:
            if span.role == "turn":
                group = self._waiting.pop((span.session_id, span.trace_id, span.span_id), None) or _Group()
                self._waiting_bytes -= len(group.waiting)
                self._add_turn(group, _turn(span))
            else:
                self._add_child(span)
        return ExportResult(len(spans))

    def session_done(self, session: SessionSummary) -> None:
        """List the session; the turns since the last one are its own, and none of its children comes any more."""
        self._add_strays()
        self._sessions.add(
            _json(
                {
                    "name": session.name,
                    "state": session.state,
                    "trouble": session.trouble,
                    "records": session.records,
                    "held": session.held,
                    "entries": self._fresh,
                }
            )
        )
        self._fresh = 0

    def _add_child(self, span: Span) -> None:
        key = (span.session_id, span.trace_id, span.parent_id)
        group = self._waiting.get(key)
        if group is None:
            group = self._waiting[key] = _Group()
        self._waiting_bytes += group.add(span)
        if self._waiting_bytes >= WAITING_BYTES_MAX:
            for one in self._waiting.values():
                one.write(self._children)
            self._waiting_bytes = 0

    def _add_turn(self, group: _Group, record: dict[str, Any]) -> None:
        group.write(self._children)
        if group.count:
            record |= {"at": group.places, "count": group.count, "failed": group.failed, "names": list(group.names)}
        self._turns.add(_json(record))
        self._fresh += 1

    def _add_strays(self) -> None:
        """Children whose turn never came are shown all the same, under a line that says so."""
        for (session, trace, parent), group in self._waiting.items():
            times = {"start": str(group.start_ns), "end": str(group.end_ns)}
            self._add_turn(group, {"session": session, "trace": trace, "span": parent, **times, "stray": True})
        self._waiting.clear()
        self._waiting_bytes = 0

    def finish(self) -> None:
        """Write what is left, make it durable and give it its name."""
        if not self._file.is_open:
            return
        self._add_strays()
        for blocks in (self._children, self._turns, self._sessions):
            blocks.flush()
        self._file.write(self._tail)
        self._file.finish()

    def abort(self) -> None:
        """Remove what was written so far; after `finish` do nothing."""
        self._waiting.clear()
        self._file.abort()


class _Blocks:
    """JSON arrays, each in an element of its own; whoever opens the page finds them by their number."""

    def __init__(self, write: Callable[[bytes], None], kind: str) -> None:
        self._write = write
        self._kind = kind.encode()
        self._number = 0
        self._entries: list[bytes | bytearray] = []
        self._size = 0

    def add(self, entry: bytes | bytearray) -> tuple[int, int]:
        """Add an entry and tell its place: the block's number, and which entry in it."""
        place = (self._number, len(self._entries))
        self._entries.append(entry)
        self._size += len(entry)
        if self._size >= BLOCK_BYTES:
            self.flush()
        return place

    def flush(self) -> None:
        """Write the block that is being filled."""
        if self._entries:
            content = b",\n".join(self._entries)
            self._write(
                b'<script type="application/json" class="%b" id="%b-%d">[%b]</script>\n'
                % (self._kind, self._kind, self._number, content)
            )
            self._number += 1
            self._entries.clear()
            self._size = 0


class _Group:
    """The children of one turn that has not come yet."""

    __slots__ = ("count", "end_ns", "failed", "names", "places", "start_ns", "waiting")

    def __init__(self) -> None:
        # One array: each text that the encoder gives occupies far more than its length.
        self.waiting = bytearray()
        self.places: list[tuple[int, int]] = []
        self.count = self.failed = 0
        self.names: dict[str, None] = {}
        self.start_ns = self.end_ns = 0

    def add(self, span: Span) -> int:
        """Take a child; how many bytes it has."""
        before = len(self.waiting)
        self.waiting += b",\n" if self.waiting else b"["
        self.waiting += _json(_span(span))
        self.start_ns = min(self.start_ns, span.start_ns) if self.count else span.start_ns
        self.end_ns = max(self.end_ns, span.end_ns) if self.count else span.end_ns
        self.count += 1
        self.failed += span.error
        if len(self.names) < NAMES_MAX:
            self.names[span.name[:NAME_CHARS_MAX]] = None
        return len(self.waiting) - before

    def write(self, blocks: _Blocks) -> None:
        """Write the children that wait, and remember where."""
        if self.waiting:
            self.waiting += b"]"
            self.places.append(blocks.add(self.waiting))
            self.waiting = bytearray()


def _turn(span: Span) -> dict[str, Any]:
    record = _span(span) | {"session": span.session_id, "trace": span.trace_id}
    if span.parent_id:
        record["parent"] = span.parent_id
    return record


def _span(span: Span) -> dict[str, Any]:
    """What the page shows of any span. Times are text: JavaScript's numbers are too small for them."""
    record: dict[str, Any] = {
        "name": span.name,
        "role": span.role,
        "span": span.span_id,
        "offset": str(span.offset),
        "start": str(span.start_ns),
        "end": str(span.end_ns),
        "attributes": _pairs(span.attributes),
    }
    if span.error:
        record["error"] = True
    if span.events:
        record["events"] = [
            {"name": event.name, "time": str(event.time_ns), "attributes": _pairs(event.attributes)}
            for event in span.events
        ]
    if span.dropped_events:
        record["dropped"] = span.dropped_events
    if span.links:
        record["links"] = [[link.trace_id, link.span_id] for link in span.links]
    return record


def _pairs(attributes: Attributes) -> list[Any]:
    """Keys and values in turn: in a JavaScript object some keys would change their order or their meaning."""
    return [part for key, value in attributes.items() for part in (key, _value(value))]


def _value(value: AttributeValue) -> Any:
    """The value; a number that JavaScript cannot hold as its text, and told apart from text."""
    if isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return value if -_SAFE_INTEGER <= value <= _SAFE_INTEGER else {"number": str(value)}
    return value if math.isfinite(value) else {"number": str(value)}


def _json(value: Any) -> bytes:
    """The value as JSON that can stand in a script element."""
    try:
        text = orjson.dumps(value)
    except orjson.JSONEncodeError:
        text = orjson.dumps(_clean(value))
    for letter, escape in _UNSAFE:
        if letter in text:
            text = text.replace(letter, escape)
    return text


def _clean(value: Any) -> Any:
    """The value with its texts free of lone surrogates. A span is three levels deep."""
    if isinstance(value, str):
        return without_surrogates(value)
    if isinstance(value, list):
        return [_clean(one) for one in value]  # pyright: ignore[reportUnknownVariableType] - JSON of any shape
    if isinstance(value, dict):
        return {key: _clean(one) for key, one in value.items()}  # pyright: ignore[reportUnknownVariableType] - as above
    return value


def _frame(title: str) -> tuple[bytes, bytes]:
    """What stands before the spans and what after them."""
    style = f"\n{_assets(STYLES)}"
    script = f"\n(() => {{\n'use strict';\n\n{_assets(SCRIPTS)}}})();\n"
    words = {
        "policy": _policy(style, script),
        "title": html.escape(without_surrogates(title).replace("\0", "\ufffd")),
        "version": __version__,
        "style": style,
        "script": script,
    }
    # In one pass: whatever stands in a title is not looked at again.
    before, _, after = _assets(["replay.html"]).partition("{{spans}}\n")
    head, tail = (_PLACE.sub(lambda place: words[place[1]], part).encode() for part in (before, after))
    return head, tail


def _assets(names: Iterable[str]) -> str:
    folder = files("raxol_otel.exporters").joinpath("assets")
    return "\n".join(folder.joinpath(name).read_text("utf-8") for name in names)


def _policy(style: str, script: str) -> str:
    return "; ".join(
        (
            "default-src 'none'",
            f"style-src '{_hash(style)}'",
            f"script-src '{_hash(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
            "require-trusted-types-for 'script'",
            "trusted-types 'none'",
        )
    )


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
