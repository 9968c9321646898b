"""Spans as the readable text of tests/trees: what a person can work out from the records and compare."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raxol_otel.turns import Counts, Span, SpanEvent

__all__ = ["tree_text"]


def tree_text(session_id: str, spans: Sequence[Span], counts: Counts) -> str:
    """One session's spans: turns in the order in which they were opened, children by start and first offset."""
    turns = sorted((span for span in spans if span.role == "turn"), key=lambda span: span.offset)
    numbers = {turn.span_id: number for number, turn in enumerate(turns, 1)}
    lines = [f"session {session_id}"]
    placed = len(turns)
    for turn in turns:
        lines += ["", f"turn {numbers[turn.span_id]}: {turn.name}"]
        lines.append(f"  time: {_seconds(turn.start_ns)} +{_seconds(turn.end_ns - turn.start_ns)}")
        lines.append(f"  status: {'ERROR' if turn.error else 'UNSET'}")
        if turn.parent_id:
            lines.append(f"  parent: {turn.parent_id}")
        lines += _attributes(turn.attributes, "  ")
        lines += _events(turn.events, turn.start_ns, "  ")
        lines += [f"  link: turn {numbers[link.span_id]}" for link in turn.links]
        children = [span for span in spans if span.parent_id == turn.span_id and span.trace_id == turn.trace_id]
        placed += len(children)
        for child in sorted(children, key=lambda span: (span.start_ns, span.offset)):
            lines.append(f"  span: {child.name}")
            lines.append(
                f"    time: {_offset(child.start_ns - turn.start_ns)} +{_seconds(child.end_ns - child.start_ns)}"
            )
            lines.append(f"    status: {'ERROR' if child.error else 'UNSET'}")
            lines += _attributes(child.attributes, "    ")
            lines += _events(child.events, turn.start_ns, "    ")
    assert placed == len(spans), "a span without its turn"
    return "\n".join([*lines, "", f"counted: {_counted(counts)}", ""])


def _attributes(attributes: dict[str, Any], indent: str) -> list[str]:
    shown = (f"{indent}  {key} = {json.dumps(attributes[key], ensure_ascii=False)}" for key in sorted(attributes))
    return [f"{indent}attributes:", *shown]


def _events(events: Sequence[SpanEvent], start_ns: int, indent: str) -> list[str]:
    lines: list[str] = []
    for event in events:
        lines.append(f"{indent}event: {event.name} {_offset(event.time_ns - start_ns)}")
        lines += _attributes(event.attributes, indent)[1:]
    return lines


def _seconds(nanoseconds: int) -> str:
    assert nanoseconds % 1000 == 0, "finer than a microsecond"
    return f"{nanoseconds // 10**9}.{nanoseconds % 10**9 // 1000:06d}"


def _offset(nanoseconds: int) -> str:
    return f"-{_seconds(-nanoseconds)}" if nanoseconds < 0 else f"+{_seconds(nanoseconds)}"


def _counted(counts: Counts) -> str:
    found = {
        "unfolded": counts.unfolded,
        **{f"unknown {what}": number for what, number in counts.unknown.items()},
        "late": counts.late,
        "duplicate": counts.duplicate,
        "user": counts.user,
    }
    return ", ".join(f"{what} {number}" for what, number in found.items() if number) or "nothing"
