"""Journals into traces: the main job.

Replay knows a session's verdict before its first span leaves: the spans of most sessions are held until it is read, a
large one is read twice. It hands batches to the exporter itself and looks at each result.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from raxol_otel import catalogue as names
from raxol_otel.errors import JournalDamaged, JournalUnreadable
from raxol_otel.exporters.base import BaseExporter, SessionSummary
from raxol_otel.exporters.limits import Limits
from raxol_otel.exporters.sources import open_sources
from raxol_otel.journal.health import State, measure, state_of
from raxol_otel.journal.lock import probe
from raxol_otel.journal.reader import Walk, read_batches
from raxol_otel.turns import FoldConfig, TurnFold

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from raxol_otel.exporters.base import Exporter, ExportResult
    from raxol_otel.exporters.sources import Found
    from raxol_otel.exporters.state import DeliveryState
    from raxol_otel.journal.damage import Damage
    from raxol_otel.turns import Counts, Span

__all__ = ["ReplayOptions", "ReplayReport", "SessionReport", "replay", "replay_found"]

# What is held in memory until a session's verdict is known: the spans (about 1 KiB each) of so many bytes of journal,
# fewer where spans carry content, and so many spans. A session with more is read twice.
HOLD_BYTES_MAX: Final = 64 * 2**20
HOLD_CONTENT_BYTES_MAX: Final = 8 * 2**20
HOLD_SPANS_MAX: Final = 50_000
# A large session's spans leave in batches of this many.
BATCH_SPANS: Final = 2_000
# So many children may wait for their turn before they leave without it.
WAITING_SPANS_MAX: Final = 10_000
# Different messages of an exporter that a report keeps.
MESSAGES_MAX: Final = 20
# A turn of a journal whose writer cannot be told is held back until its last record is this old.
SETTLE_SECONDS: Final = 3600.0


@dataclass(frozen=True, slots=True)
class ReplayOptions:
    """What to replay and how.

    `since` and `until` bound a turn's start (nanoseconds since the epoch, `until` excluded); `turn` is one turn's id.
    `settle_seconds`: see `SETTLE_SECONDS`; 0 holds nothing back but turns of a live writer. `state` knows what was
    delivered before, and is told what is delivered now.
    """

    config: FoldConfig = field(default_factory=FoldConfig)
    since: int | None = None
    until: int | None = None
    turn: str | None = None
    settle_seconds: float = SETTLE_SECONDS
    limits: Limits = field(default_factory=Limits)
    state: DeliveryState | None = None


@dataclass(slots=True)
class SessionReport:
    """What became of one session. `held` are turns that may still be written to, `already` spans delivered before."""

    name: str
    state: State
    records: int = 0
    turns: int = 0
    spans: int = 0
    held: int = 0
    already: int = 0
    warning: str | None = None
    damage: Damage | None = None
    error: str | None = None
    last_offset: int = 0
    head_offset: int | None = None
    counts: Counts | None = None


@dataclass(slots=True)
class ReplayReport:
    """What became of a replay. `accepted` and `rejected` count spans as the exporter's results did."""

    sessions: list[SessionReport] = field(default_factory=list[SessionReport])
    accepted: int = 0
    rejected: int = 0
    # What the exporter had to say, and how often.
    words: dict[str, int] = field(default_factory=dict[str, int])

    def say(self, message: str, count: int = 1) -> None:
        """Note what the exporter said; the same words are counted, and of different ones only so many are kept."""
        if message in self.words or len(self.words) < MESSAGES_MAX:
            self.words[message] = self.words.get(message, 0) + count

    @property
    def messages(self) -> list[str]:
        """What the exporter said, each with how often."""
        return [text if count == 1 else f"{text} ({count} times)" for text, count in self.words.items()]

    @property
    def is_intact(self) -> bool:
        """Whether every session's record is whole."""
        return all(session.state in {"healthy", "torn"} for session in self.sessions)

    def total(self, what: str) -> int:
        """The sum of one of `records`, `turns`, `spans`, `held`, `already` over all sessions."""
        return sum(getattr(session, what) for session in self.sessions)


def replay(
    paths: Iterable[str | os.PathLike[str]],
    exporter: Exporter,
    options: ReplayOptions | None = None,
    *,
    progress: Callable[[int], None] | None = None,
    now: Callable[[], float] = time.time,
) -> ReplayReport:
    """Replay all sessions below the paths into the exporter, and finish it.

    `progress` is called with the number of bytes of journal done since the last call, `now` gives the time in seconds
    since the epoch. Raises `UsageError` for a path without sessions and `ExportError` from the exporter, which is then
    aborted.
    """
    try:
        with open_sources(paths) as found:
            report = replay_found(found, exporter, options or ReplayOptions(), progress=progress, now=now)
        exporter.finish()
    except BaseException:
        exporter.abort()
        raise
    return report


def replay_found(
    found: Found,
    exporter: Exporter,
    options: ReplayOptions,
    *,
    progress: Callable[[int], None] | None = None,
    now: Callable[[], float] = time.time,
) -> ReplayReport:
    """As `replay`, of sessions already found; the exporter is neither finished nor aborted."""
    report = ReplayReport()
    tell = exporter.session_done if isinstance(exporter, BaseExporter) else _tell_nobody
    for path, reason in found.unreadable:
        report.sessions.append(SessionReport(str(path), "unreadable", error=f"cannot read {path}: {reason}"))
        tell(SessionSummary(path.name, "unreadable", 0, 0, 0, reason))
    for directory in found.sessions:
        session = _Session(directory, found.name(directory), exporter=exporter, options=options, totals=report)
        session.key = found.shown.get(directory, session.key)
        session.is_foreign = directory in found.shown
        session.progress = progress or _no_progress
        session.now = now
        report.sessions.append(session.run())
        tell(session.summary())
    report.sessions.sort(key=lambda session: session.name)
    return report


def _no_progress(_bytes: int) -> None:
    return


def _tell_nobody(_session: SessionSummary) -> None:
    return


class _Session:
    """The replay of one session."""

    progress: Callable[[int], None]
    now: Callable[[], float]

    def __init__(
        self, directory: Path, name: str, *, exporter: Exporter, options: ReplayOptions, totals: ReplayReport
    ) -> None:
        self.directory = directory
        self.exporter = exporter
        self.options = options
        self.totals = totals
        self.key = str(directory.resolve())
        self.is_foreign = False
        self.report = SessionReport(name, "healthy")
        self.held: list[Span] = []
        self.is_large = False
        self.damaged = False
        self.trouble = ""

    def run(self) -> SessionReport:
        """Replay the session; what is wrong with it is told in the report, not raised."""
        # Before the journal: a writer that leaves while we read leaves its last records behind.
        writer = probe(self.directory, is_foreign=self.is_foreign)
        _, size = measure(self.directory)
        walk = Walk(self.directory)
        try:
            if size > (HOLD_CONTENT_BYTES_MAX if self.options.config.capture_content else HOLD_BYTES_MAX):
                self._look_ahead()
            fold = self._fold(walk, size)
        except JournalUnreadable as unreadable:
            self.progress(max(size - walk.bytes_read, 0))
            self.report.state, self.report.error = "unreadable", str(unreadable)
            self.trouble = f"cannot read {unreadable.path.name}: {unreadable.reason}"
            return self.report
        report = self.report
        if walk.damage is None and writer.state in {"live", "unknown"} and fold.open_turns:
            hold = writer.state == "live" or not self._is_settled(fold)
            report.held = fold.open_turns if hold else 0
        # Children of a turn that is held back are held back with it.
        open_turns = fold.open_span_ids() if report.held else set[str]()
        self.held += fold.close(hold_open=report.held > 0)
        self._release(open_turns)
        report.state = state_of(walk)
        report.damage = walk.damage
        report.records = walk.records
        report.turns = fold.counts.turns
        report.last_offset, report.head_offset = walk.last_id or 0, walk.head_offset
        report.counts = fold.counts
        self._keep_position()
        return report

    def summary(self) -> SessionSummary:
        """What exporters are told of the session once it is done."""
        report, trouble = self.report, self.trouble
        if report.damage is not None:
            trouble = str(report.damage)
        elif report.state == "truncated":
            trouble = f"HEAD names offset {report.head_offset}, the last record is {report.last_offset}"
        name = self.directory.resolve().name
        return SessionSummary(name, report.state, report.records, report.turns, report.held, trouble)

    def _keep_position(self) -> None:
        state, report = self.options.state, self.report
        if state is None or report.state not in {"healthy", "torn"}:
            return
        key = self.key
        before = state.position(key)
        if before is not None and report.last_offset < before:
            report.warning = (
                f"it ended at offset {before} when it was replayed last, and now ends at {report.last_offset}"
            )
        if before is None or report.last_offset > before:
            state.advance(key, report.last_offset)

    def _look_ahead(self) -> None:
        """Read the journal for its verdict alone; from now on spans need not be held."""
        self.is_large = True
        try:
            for _ in read_batches(Walk(self.directory, quiet=True)):
                pass
        except JournalDamaged:
            self.damaged = True

    def _fold(self, walk: Walk, size: int) -> TurnFold:
        options = self.options
        chosen = options.since is not None or options.until is not None or options.turn is not None
        walk.open()
        fold = TurnFold(
            walk.session_id,
            created_at=walk.meta.get("created_at"),
            config=options.config,
            select=self._is_wanted if chosen else None,
        )
        done = 0
        try:
            for batch in read_batches(walk):
                self.progress(walk.bytes_read - done)
                done = walk.bytes_read
                self.held += fold.feed_many(batch)
                if not self.is_large and len(self.held) > HOLD_SPANS_MAX:
                    self._look_ahead()
                if self.is_large and len(self.held) >= BATCH_SPANS:
                    self._release(fold.open_span_ids())
        except JournalDamaged:
            self.damaged = True
        self.progress(max(size - done, 0))
        return fold

    def _is_wanted(self, turn_id: str, start_ns: int) -> bool:
        options = self.options
        return (
            (options.turn is None or turn_id == options.turn)
            and (options.since is None or start_ns >= options.since)
            and (options.until is None or start_ns < options.until)
        )

    def _is_settled(self, fold: TurnFold) -> bool:
        return self.now() - fold.last_ns / 1e9 >= self.options.settle_seconds

    def _release(self, open_turns: set[str]) -> None:
        """Send what is held; children of open turns wait for them, as long as they are not too many."""
        spans = self.held
        self.held = [span for span in spans if span.parent_id in open_turns] if open_turns else []
        if len(self.held) > WAITING_SPANS_MAX:
            self.held = []
        elif self.held:
            spans = [span for span in spans if span.parent_id not in open_turns]
        if spans:
            self._export(spans)

    def _export(self, spans: list[Span]) -> None:
        if self.damaged:
            for span in spans:
                if span.role == "turn":
                    span.attributes[names.JOURNAL_DAMAGED] = True
        state = self.options.state
        if state is not None:
            unsent = state.undelivered(spans)
            self.report.already += len(spans) - len(unsent)
            spans = unsent
        if not spans:
            return
        result = self._delivered(spans, state)
        self.report.spans += result.accepted
        totals = self.totals
        totals.accepted += result.accepted
        totals.rejected += result.rejected
        if result.message:
            totals.say(result.message)

    def _delivered(self, spans: list[Span], state: DeliveryState | None) -> ExportResult:
        """Hand the spans to the exporter; what it delivers is remembered, part by part where it says so."""
        limits, exporter = self.options.limits, self.exporter
        if state is None:
            limits.apply(spans)
            return exporter.export(spans)
        # Before limits leave nothing to know a span by.
        keys = {id(span): state.key(span) for span in spans}
        limits.apply(spans)
        if isinstance(exporter, BaseExporter):
            exporter.on_delivered = lambda part: state.remember_keys(keys[id(span)] for span in part)
        result = exporter.export(spans)
        # Refused spans too: they were refused for good.
        state.remember_keys(keys.values())
        return result
