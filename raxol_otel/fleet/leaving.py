"""The spans of one session on their way to one endpoint: what has left, what waits for its turn, what was told."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel import catalogue as names
from raxol_otel.exporters.otlp_logs import DamageEvent
from raxol_otel.exporters.replay import WAITING_SPANS_MAX
from raxol_otel.fleet.followed import Followed
from raxol_otel.turns import TurnFold
from raxol_otel.turns.span import Link, Span, SpanEvent

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from raxol_otel.fleet.followed import Observer
    from raxol_otel.fleet.wanted import Wanted
    from raxol_otel.turns import FoldConfig

__all__ = ["Leaving"]

# Closed turns remembered of each session, to tell a late record: a thousand sessions of each endpoint are in memory.
CLOSED_TURNS_MAX: Final = 256
# So many distinct damages of one session are remembered as told.
DAMAGES_MAX: Final = 64
_VERSION: Final = 1

_Held = dict[str, list[Span]]
_DamageKey = tuple[str, str, int]


class Leaving:
    """One session, read for one endpoint.

    `read` gives the spans that may leave now. With a choice by outcome children wait for their turn, up to
    `WAITING_SPANS_MAX` of them: those of a larger turn leave without it. `saved` is what `save` gave.
    """

    def __init__(self, directory: Path, wanted: Wanted, config: FoldConfig, *, saved: bytes | None = None) -> None:
        self.directory = directory
        self._wanted = wanted
        self._config = config
        self._held: _Held = {}
        self._held_count = 0
        self._out: list[Span] = []
        # The journal's last offset when its open turns left as incomplete.
        self._ended_at: int | None = None
        # When each damage was found, in nanoseconds since the epoch; None once it was told.
        self._damages: dict[_DamageKey, int | None] = {}
        head, followed = _parted(saved)
        self.followed = Followed(
            directory,
            saved=followed,
            config=config,
            listen=self._listen,
            has_silent_past=False,
            select=wanted.has_turn,
            closed_turns_max=CLOSED_TURNS_MAX,
        )
        # The fold that all of this is of.
        self._fold = self.followed.fold
        self._load(head)

    # -- what leaves

    def read(self, bytes_max: int) -> list[Span]:
        """Read what is new, about so many bytes; the spans that may leave. Raises `JournalUnreadable`."""
        out: list[Span] = []
        self._out = out
        self.followed.catch_up(bytes_max)
        self._begin_anew()
        damage = self.followed.tail.damage
        if damage is not None:
            self._damages.setdefault((damage.cause, damage.place, damage.last_offset), time.time_ns())
            while len(self._damages) > DAMAGES_MAX:
                del self._damages[next(iter(self._damages))]
        return out

    def unfinished(self) -> list[Span]:
        """The spans of the open turns as the journal's end would close them, once for each end; the turns stay open."""
        fold, tail = self.followed.fold, self.followed.tail
        if fold is None or not self.is_open:
            return []
        self._ended_at = tail.last_offset
        copy = TurnFold.restore(
            fold.snapshot(), session_id=fold.session_id, created_at=tail.created_at, config=self._config
        )
        out: list[Span] = []
        self._out = out
        self._take(copy.close(), {turn: list(spans) for turn, spans in self._held.items()})
        return out

    @property
    def is_open(self) -> bool:
        """Whether turns are open that have not left as incomplete."""
        fold = self.followed.fold
        return fold is not None and self._ended_at != self.followed.tail.last_offset and fold.open_turns > 0

    @property
    def is_damaged(self) -> bool:
        """Whether the journal is known to be damaged now."""
        return self.followed.tail.damage is not None

    @property
    def last_ns(self) -> int:
        """The time of the last record, in nanoseconds since the epoch."""
        return self.followed.fold.last_ns if self.followed.fold is not None else 0

    def untold(self) -> dict[_DamageKey, DamageEvent]:
        """The damages that the endpoint was not told of."""
        session = self.followed.tail.session_id
        return {key: DamageEvent(session, *key, found) for key, found in self._damages.items() if found is not None}

    def told(self, key: _DamageKey) -> None:
        """The endpoint was told of a damage."""
        if key in self._damages:
            self._damages[key] = None

    # -- the choice

    def _listen(self, _fold: TurnFold) -> Observer:
        self._begin_anew()
        return lambda _records, spans: self._take(spans, None)

    def _begin_anew(self) -> None:
        """Another fold: the journal is read from its beginning."""
        if self._fold is not self.followed.fold:
            self._fold = self.followed.fold
            self._held, self._held_count, self._ended_at = {}, 0, None

    def _take(self, spans: Sequence[Span], held: _Held | None) -> None:
        """Let the wanted ones leave. `held`: the children that wait, None for those that are kept here."""
        wanted = self._wanted
        if wanted.sample < 1:
            spans = [span for span in spans if wanted.has_trace(span.trace_id)]
        if not wanted.outcomes:
            self._out += spans
            return
        waiting = self._held if held is None else held
        for span in spans:
            if span.role != "turn":
                waiting.setdefault(span.parent_id, []).append(span)
                self._held_count += held is None
                continue
            children = waiting.pop(span.span_id, [])
            self._held_count -= len(children) if held is None else 0
            if span.attributes.get(names.TURN_OUTCOME) in wanted.outcomes:
                self._out += [*children, span]
        if held is None and self._held_count > WAITING_SPANS_MAX:
            # Too many to wait: rather more than was asked for than less.
            self._out += [child for children in self._held.values() for child in children]
            self._held, self._held_count = {}, 0

    # -- the position

    def save(self) -> bytes:
        """Where this stands, to go on from, once all that `read` gave was delivered."""
        damages = [[cause, place, str(last), found] for (cause, place, last), found in self._damages.items()]
        head: dict[str, Any] = {
            "v": _VERSION,
            "ended_at": None if self._ended_at is None else str(self._ended_at),
            "damages": damages,
            "held": [asdict(span) for children in self._held.values() for span in children],
        }
        try:
            line = orjson.dumps(head)
        except orjson.JSONEncodeError:  # a lone surrogate, or an offset beyond 64 bits
            line = json.dumps(head).encode()
        return line + b"\n" + self.followed.save()

    def _load(self, head: Mapping[str, Any]) -> None:
        if not head or self.followed.fold is None:
            return
        ended_at = head["ended_at"]
        self._ended_at = None if ended_at is None else int(ended_at)
        self._damages = {(cause, place, int(last)): found for cause, place, last, found in head["damages"]}
        for span in map(_span, head["held"]):
            self._held.setdefault(span.parent_id, []).append(span)
            self._held_count += 1


def _parted(saved: bytes | None) -> tuple[Mapping[str, Any], bytes | None]:
    """Our own part of what was saved, and that of `Followed`; nothing when it is not ours."""
    line, _, followed = (saved or b"").partition(b"\n")
    try:
        # Not orjson: it takes no offset beyond 64 bits.
        head = json.loads(line)
        good = head["v"] == _VERSION and all(len(damage) == len(_DAMAGE_FIELDS) for damage in head["damages"])
        for span in head["held"]:
            _span(span)
        int(head["ended_at"] or 0)
    except (ValueError, KeyError, TypeError, AttributeError):
        return {}, None
    return (head, followed) if good and followed else ({}, None)


_DAMAGE_FIELDS: Final = ("cause", "place", "last_offset", "found")


def _span(plain: Mapping[str, Any]) -> Span:
    events = [SpanEvent(**event) for event in plain["events"]]
    fields: dict[str, Any] = {**plain, "events": events, "links": tuple(Link(**link) for link in plain["links"])}
    return Span(**fields)
