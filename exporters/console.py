"""Spans as a tree in the terminal: a line a turn, a line a child with a bar that shows when it ran.

Styled on a terminal; elsewhere the same lines as plain text. Outcomes are words first, colours second. Whatever the
journal holds, no control character reaches the terminal.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from raxol_otel import catalogue as names
from raxol_otel.exporters.base import BaseExporter, ExportResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from typing import TextIO

    from rich.console import Console

    from raxol_otel.exporters.base import SessionSummary
    from raxol_otel.turns import Span

__all__ = ["ConsoleExporter", "printable"]

_BAR_CELLS: Final = 20
_NAME_CELLS: Final = 30
_TEXT_CELLS_MAX: Final = 60
_TROUBLE_CELLS_MAX: Final = 200
# Sessions of which nothing is to be said beyond their turns.
_INTACT: Final = frozenset({"healthy", "torn"})
# Children of one turn shown; the rest is counted in one line.
CHILDREN_SHOWN_MAX: Final = 200

_STYLES: Final = {
    "completed": "green",
    "ok": "green",
    "error": "bold red",
    "canceled": "yellow",
    "incomplete": "yellow",
    "unanswered": "yellow",
    "orphan": "magenta",
    "damaged": "bold red",
}
_UNICODE: Final = {"branch": "├─ ", "last": "└─ ", "bar": "█", "point": "▏", "edge": "│", "event": "◆"}
_ASCII: Final = {"branch": "|- ", "last": "`- ", "bar": "#", "point": ".", "edge": "|", "event": "*"}

Segment = tuple[str, str]
Line = list[Segment]


class ConsoleExporter(BaseExporter):
    """Prints each turn with its children as soon as the turn is there, and at a session's end what is wrong with it."""

    def __init__(self, stream: TextIO, *, styled: bool | None = None) -> None:
        self._stream = stream
        self._console = (
            _rich_console(stream, forced=styled) if (stream.isatty() if styled is None else styled) else None
        )
        self._glyphs = _UNICODE if _can_encode(stream, "".join(_UNICODE.values())) else _ASCII
        self._children: dict[str, list[Span]] = {}
        self._session: str | None = None
        self._is_first = True

    def export(self, spans: Sequence[Span]) -> ExportResult:
        """Print the turns among the spans; children wait for theirs."""
        for span in spans:
            if span.role == "turn":
                self._print(self._turn(span, self._children.pop(span.span_id, [])))
            else:
                self._children.setdefault(span.parent_id, []).append(span)
        return ExportResult(len(spans))

    def session_done(self, session: SessionSummary) -> None:
        """Say what is wrong with the session; what comes next is another, whatever its id."""
        if session.state not in _INTACT:
            self._print(self._trouble(session))
        self._session = None
        self._children.clear()

    def finish(self) -> None:
        """Flush what was printed."""
        self._children.clear()
        self._stream.flush()

    def abort(self) -> None:
        """What was printed stays; what waits is forgotten."""
        self._children.clear()

    def _print(self, lines: Iterable[Line]) -> None:
        if self._console is None:
            for line in lines:
                self._stream.write(self._encodable("".join(text for text, _ in line).rstrip()) + "\n")
            return
        from rich.text import Text  # noqa: PLC0415 - only on a terminal

        for line in lines:
            self._console.print(
                Text.assemble(*((self._encodable(text), style) for text, style in line)), soft_wrap=True
            )

    def _encodable(self, text: str) -> str:
        encoding = self._stream.encoding or "utf-8"
        return text if text.isascii() else text.encode(encoding, "backslashreplace").decode(encoding)

    def _turn(self, turn: Span, children: list[Span]) -> Iterator[Line]:
        if turn.session_id != self._session:
            yield from self._heading(turn.session_id)
        yield [("", "")]
        yield self._turn_line(turn)
        children.sort(key=lambda child: (child.start_ns, child.offset))
        rows: list[Span] = children[:CHILDREN_SHOWN_MAX]
        hidden = len(children) - len(rows)
        for event in turn.events:
            yield self._event_line(turn, event.name, event.time_ns, event.attributes.values())
        for index, child in enumerate(rows):
            yield self._child_line(turn, child, is_last=index == len(rows) - 1 and not hidden)
        if hidden:
            yield [(f"  {self._glyphs['last']}and {hidden} more", "dim")]

    def _heading(self, name: str) -> Iterator[Line]:
        if not self._is_first:
            yield []
        self._is_first, self._session = False, name
        yield [("session ", ""), (printable(name), "bold")]

    def _trouble(self, session: SessionSummary) -> Iterator[Line]:
        """The state and what is wrong; the directory too where the heading has another name."""
        if self._session is None:
            yield from self._heading(session.name)
        yield [("", "")]
        state, trouble = printable(session.state), printable(session.trouble, _TROUBLE_CELLS_MAX)
        # A damage says itself that it is one.
        rest = trouble.removeprefix(state) if trouble.startswith(f"{state} ") else f": {trouble}" if trouble else ""
        where = "" if self._session == session.name else f" (directory {printable(session.name)})"
        yield [(state, _STYLES["damaged"]), (rest + where, "")]

    def _turn_line(self, turn: Span) -> Line:
        attributes = turn.attributes
        outcome = printable(str(attributes.get(names.TURN_OUTCOME, "")))
        line: Line = [
            (turn_title(turn), "bold"),
            ("  ", ""),
            (outcome, _STYLES.get(outcome, "")),
            (f"  {duration(turn.end_ns - turn.start_ns)}", ""),
        ]
        notes = list(_notes(turn))
        if notes:
            line.append((f"  {'  '.join(notes)}", "dim"))
        if attributes.get(names.JOURNAL_DAMAGED) is True:
            line.append(("  journal damaged", _STYLES["damaged"]))
        return line

    def _child_line(self, turn: Span, child: Span, *, is_last: bool) -> Line:
        outcome = str(child.attributes.get(names.TOOL_OUTCOME, ""))
        error = child.attributes.get(names.ERROR_TYPE)
        name = printable(child.name)
        line: Line = [
            (f"  {self._glyphs['last' if is_last else 'branch']}", "dim"),
            (f"{name:<{_NAME_CELLS}} ", ""),
            (f"{outcome:<10} ", _STYLES.get(outcome, "")),
            (f"{duration(child.end_ns - child.start_ns):>8} ", ""),
            (self._bar(turn, child), _STYLES.get(outcome, "cyan")),
        ]
        if error is not None and error != "_OTHER":
            line.append((f" {printable(str(error))}", _STYLES["error"]))
        return line

    def _event_line(self, turn: Span, name: str, time_ns: int, values: Iterable[object]) -> Line:
        shown = " ".join(printable(str(value)) for value in values)
        at = duration(max(0, time_ns - turn.start_ns))
        return [(f"  {self._glyphs['event']} {printable(name)} {shown} at {at}", "magenta")]

    def _bar(self, turn: Span, child: Span) -> str:
        """The child's share of the turn's time, at its place."""
        edge = self._glyphs["edge"]
        whole = max(turn.end_ns - turn.start_ns, 1)
        start = min(max((child.start_ns - turn.start_ns) * _BAR_CELLS // whole, 0), _BAR_CELLS - 1)
        end = min(max(-((turn.start_ns - child.end_ns) * _BAR_CELLS // whole), start), _BAR_CELLS)
        filled = (self._glyphs["bar"] * (end - start)) if child.end_ns > child.start_ns else self._glyphs["point"]
        filled = filled or self._glyphs["point"]
        return f"{edge}{' ' * start}{filled}{' ' * (_BAR_CELLS - start - len(filled))}{edge}"


def turn_title(turn: Span) -> str:
    """What a turn is called for people: its id, its branch where it is not main, and whether it was observed."""
    attributes = turn.attributes
    title = "observed turn" if attributes.get(names.OBSERVED) is True else "turn"
    turn_id = attributes.get(names.TURN_ID)
    if turn_id is not None:
        title += f" {printable(str(turn_id))}"
    branch = attributes.get(names.BRANCH_ID)
    return title if branch is None else f"{title} on {printable(str(branch))}"


def _notes(turn: Span) -> Iterator[str]:
    attributes = turn.attributes
    model = attributes.get(names.REQUEST_MODEL)
    if model is not None:
        yield printable(str(model))
    tokens = [
        f"{attributes[key]} {word}"
        for key, word in ((names.INPUT_TOKENS, "in"), (names.OUTPUT_TOKENS, "out"))
        if key in attributes
    ]
    if tokens:
        yield f"{', '.join(tokens)} tokens"
    if names.TURN_COST in attributes:
        yield f"${attributes[names.TURN_COST]}"
    if attributes.get(names.TURN_EVIDENCE, "unknown") != "unknown":
        reason = attributes.get(names.TURN_EVIDENCE_REASON)
        yield f"evidence {attributes[names.TURN_EVIDENCE]}" + (f" ({reason})" if reason else "")
    for key, word in (
        (names.ERROR_TYPE, ""),
        (names.OBSERVED_REASON, ""),
        (names.TURN_SYNTHESIZED, "start lost"),
        (names.PROVENANCE_TRUST, "tainted"),
        (names.CLOCK_SKEW, "clock skew"),
    ):
        if key in attributes:
            yield word or printable(str(attributes[key]))


def duration(nanoseconds: int) -> str:
    """A time for people: `0`, `4 us`, `120 ms`, `3.4 s`, `2m 05s`, `1h 02m`."""
    if nanoseconds <= 0:
        return "0"
    if nanoseconds < 10**6:
        return f"{max(nanoseconds // 1000, 1)} us"
    if nanoseconds < 10**9:
        return f"{nanoseconds // 10**6} ms"
    seconds = nanoseconds / 10**9
    if seconds < 60:  # noqa: PLR2004 - a minute
        return f"{int(seconds * 10) / 10:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    if minutes < 60:  # noqa: PLR2004 - an hour
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    return f"{hours}h {minutes:02d}m"


def printable(text: str, limit: int = _TEXT_CELLS_MAX) -> str:
    """The text without anything that could move a terminal's cursor or hide what follows, and not too long."""
    if len(text) > limit:
        text = text[: limit - 3] + "..."
    if text.isascii() and text.isprintable():
        return text
    return "".join(letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}" for letter in text)


def _rich_console(stream: TextIO, *, forced: bool | None) -> Console:
    from rich.console import Console  # noqa: PLC0415 - only on a terminal

    return Console(file=stream, force_terminal=forced or None, highlight=False, markup=False, emoji=False)


def _can_encode(stream: TextIO, text: str) -> bool:
    try:
        text.encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True
