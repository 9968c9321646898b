"""The landing page: what is wrong with which session, and where. HTML that needs nothing else, and of bounded size.

Names come from whoever wrote the directories. They are text: no markup, no control character and no change of the
writing direction comes out of one.
"""

from __future__ import annotations

import html
import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from raxol_otel import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from raxol_otel.fleet.facts import FleetFacts, FleetState, SessionFacts

__all__ = ["render_page"]

ROWS_MAX: Final = 300
_NAME_CHARS_MAX: Final = 256
_PATH_CHARS_MAX: Final = 1024
_TEXT_CHARS_MAX: Final = 500
# The worst first.
_STATES: Final[tuple[FleetState, ...]] = ("damaged", "unreadable", "torn", "healthy")
_UNITS: Final = ("B", "KiB", "MiB", "GiB", "TiB")
_THOUSAND: Final = 1024

_STYLE: Final = """
:root { --page: #f6f7f7; --surface: #fff; --ink: #1c2328; --quiet: #566069; --line: #dfe4e7; --accent: #1f5f99;
  --good: #1b6e46; --bad: #b3261e; --open: #8f4a00; color-scheme: light dark; }
@media (prefers-color-scheme: dark) { :root { --page: #14181b; --surface: #1a1f23; --ink: #e5e9ec; --quiet: #a0abb4;
  --line: #30383e; --accent: #86b9ea; --good: #6cc99a; --bad: #ff9389; --open: #eeaf6a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; }
main, header, footer { max-width: 72rem; margin: 0 auto; padding: 0 1rem; }
header { padding-top: 1.25rem; }
h1 { font-size: 1.35rem; margin: 0; } h2 { font-size: 1.05rem; margin: 1.75rem 0 .5rem; }
p { margin: .25rem 0; } a { color: var(--accent); } nav a { display: inline-block; padding: .5rem 1rem .5rem 0; }
.quiet, footer, dt, th { color: var(--quiet); } .bad { color: var(--bad); } .good { color: var(--good); }
.open { color: var(--open); } .verdict { font-size: 1.15rem; font-weight: 600; margin: .75rem 0 .25rem; }
code, .name { font-family: ui-monospace, "SF Mono", "Cascadia Mono", "DejaVu Sans Mono", monospace; font-size: .9em; }
code, .name, td { overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: repeat(auto-fill, minmax(8rem, 1fr)); gap: .5rem; margin: .75rem 0; }
dl div { background: var(--surface); border: 1px solid var(--line); border-radius: 6px; padding: .5rem .75rem; }
dt { font-size: .85rem; } dd { margin: 0; font-size: 1.2rem; font-variant-numeric: tabular-nums; }
table { width: 100%; border-collapse: collapse; background: var(--surface); border: 1px solid var(--line); }
th, td { text-align: left; vertical-align: top; padding: .5rem .75rem; border-top: 1px solid var(--line); }
th { font-size: .85rem; font-weight: 500; border-top: 0; } td.name { width: 34%; }
td.when { white-space: nowrap; width: 12rem; } .where { display: block; }
footer { padding-top: 1rem; padding-bottom: 2rem; font-size: .85rem; }
@media (max-width: 44rem) { table, tbody, tr, td { display: block; width: auto !important; } thead { display: none; }
  tr { border-top: 1px solid var(--line); padding: .5rem 0; } tr:first-child { border-top: 0; }
  td { border: 0; padding: .125rem .75rem; } }
"""


def render_page(facts: FleetFacts) -> bytes:
    """The page of what one look found; at most `ROWS_MAX` sessions are listed, the others counted."""
    listed = facts.troubles[:ROWS_MAX]
    omitted = facts.troubles_omitted + len(facts.troubles) - len(listed)
    parts = [_head(facts)]
    parts += [_group(title, text, found) for title, text, found in _groups(listed) if found]
    if omitted > 0:
        parts.append(f'<p class="bad">And {omitted:,} more that are not listed.</p>\n')
    version = html.escape(__version__)
    parts.append(f"</main>\n<footer>raxol-otel {version}. Reload the page for the newest look.</footer>\n")
    parts.append("</body>\n</html>\n")
    return "".join(parts).encode()


def _groups(listed: Sequence[SessionFacts]) -> Iterable[tuple[str, str, list[SessionFacts]]]:
    """Each session once: by what is worst about it, or among those that the operator knows."""
    news = [one for one in listed if not one.is_acknowledged]
    damaged = [one for one in news if one.state == "damaged"]
    behind = [one for one in news if one.state != "damaged" and one.is_behind_head]
    unreadable = [one for one in news if one.state == "unreadable" and not one.is_behind_head]
    yield "Damaged", "Nothing at or after the damage is counted. <code>raxol-otel verify</code> tells more.", damaged
    yield "Truncated", "HEAD names more records than there are: what was written last is lost.", behind
    yield "Unreadable", "A file or folder could not be read, so nothing else is known.", unreadable
    yield "Acknowledged", "Known to the operator.", [one for one in listed if one.is_acknowledged]


def _head(facts: FleetFacts) -> str:
    sessions = sum(facts.states.values())
    counts = [
        ("sessions", f"{sessions:,}"),
        *((state, f"{facts.states.get(state, 0):,}") for state in _STATES),
        ("of them truncated", f"{facts.behind_head:,}"),
        *((f"{state} writers", f"{count:,}") for state, count in sorted(facts.writers.items())),
        ("open turns", f"{facts.open_turns:,}"),
        ("scan errors", f"{facts.scan_errors:,}"),
        ("journals", _size(facts.size_bytes)),
    ]
    boxes = "".join(f"<div><dt>{_text(name)}</dt><dd>{value}</dd></div>" for name, value in counts)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_title(facts)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n<header>\n"
        f'<h1>Agent journals</h1>\n<p class="quiet">in <code>{_text(facts.sessions_dir, _PATH_CHARS_MAX)}</code></p>\n'
        f'<nav><a href="metrics">/metrics</a><a href="healthz">/healthz</a><a href="readyz">/readyz</a></nav>\n'
        f'</header>\n<main>\n{_verdict(facts)}\n<p class="quiet">{_looked(facts)}</p>\n<dl>{boxes}</dl>\n'
    )


def _title(facts: FleetFacts) -> str:
    bad = _troubled(facts)
    return "Agent journals: not ready" if not facts.is_ready else f"Agent journals: {bad or 'none'} not intact"


def _verdict(facts: FleetFacts) -> str:
    if not facts.is_ready:
        what = _text(facts.waiting_for, _TEXT_CHARS_MAX) or "the first look"
        return f'<p class="verdict open">Not ready: waiting for {what}</p>'
    bad = _troubled(facts)
    if not bad and not sum(facts.states.values()):
        return '<p class="verdict">There are no sessions yet.</p>'
    if not bad:
        return '<p class="verdict good">Every session is intact.</p>'
    known = sum(one.is_acknowledged for one in facts.troubles)
    also = f" {known:,} of them acknowledged." if known else ""
    what = f"{bad:,} session{'s are' if bad != 1 else ' is'} not intact.{also}"
    return f'<p class="verdict {"open" if known == bad else "bad"}">{what}</p>'


def _troubled(facts: FleetFacts) -> int:
    """How many sessions are not intact: those that are listed, and those that are not."""
    return len(facts.troubles) + facts.troubles_omitted


def _looked(facts: FleetFacts) -> str:
    when = _time(facts.looked_at)
    if not when:
        return "Nothing was looked at yet."
    return f"Last look {when}, in {facts.duration_seconds:.3f} s."


def _group(title: str, text: str, sessions: Sequence[SessionFacts]) -> str:
    rows = "".join(_row(one) for one in sessions)
    lead = f'<p class="quiet">{text}</p>\n' if text else ""
    return (
        f'<section>\n<h2>{title} <span class="quiet">{len(sessions):,}</span></h2>\n{lead}<table>\n<thead><tr>'
        f"<th>session</th><th>what is wrong</th><th>since</th></tr></thead>\n<tbody>\n{rows}</tbody>\n</table>\n"
        "</section>\n"
    )


def _row(one: SessionFacts) -> str:
    name, where = _text(one.name, _NAME_CHARS_MAX), _text(one.where, _PATH_CHARS_MAX)
    below = f'<span class="where quiet"><bdi>{where}</bdi></span>' if one.where != one.name else ""
    what = "<br>".join(_wrong(one))
    return (
        f'<tr><td class="name"><bdi>{name}</bdi>{below}</td><td>{what}</td>'
        f'<td class="when">{_time(one.since) or "unknown"}</td></tr>\n'
    )


def _wrong(one: SessionFacts) -> Iterable[str]:
    """What is wrong with a session, a line each."""
    if one.state == "damaged":
        cause, place = _text(one.cause, _TEXT_CHARS_MAX), _text(one.place, _TEXT_CHARS_MAX)
        yield f"<b>{cause or 'damaged'}</b>{' at ' + place if place else ''}; the last good record is {one.last_offset}"
    elif one.state == "unreadable":
        yield "<b>unreadable</b>"
    if one.is_behind_head:
        head = "more records" if one.head_offset is None else f"offset {one.head_offset}"
        yield f"HEAD names {head}, the last record is {one.last_offset}"
    if one.error:
        yield f"<bdi>{_text(one.error, _TEXT_CHARS_MAX)}</bdi>"


def _text(text: str, most: int = _TEXT_CHARS_MAX) -> str:
    """The text as it can stand in a page: cut in its middle, all that is not printable spelt out, escaped."""
    if len(text) > most:
        text = f"{text[: most // 2]}…{text[-(most // 2) :]}"
    shown = "".join(letter if letter.isprintable() else f"\\u{{{ord(letter):x}}}" for letter in text)
    return html.escape(shown)


def _time(seconds: float) -> str:
    """A moment as a `time` element, in UTC; empty where there is none."""
    if not math.isfinite(seconds) or seconds <= 0:
        return ""
    try:
        moment = datetime.fromtimestamp(int(seconds), UTC)
    except (ValueError, OverflowError, OSError):
        return ""
    return f'<time datetime="{moment:%Y-%m-%dT%H:%M:%SZ}">{moment:%Y-%m-%d %H:%M:%S} UTC</time>'


def _size(size: float) -> str:
    for unit in _UNITS[:-1]:
        if size < _THOUSAND:
            return f"{size:.1f} {unit}" if unit != "B" else f"{size:.0f} {unit}"
        size /= _THOUSAND
    return f"{size:.1f} {_UNITS[-1]}"
