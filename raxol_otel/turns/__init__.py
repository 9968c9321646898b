"""Records in, spans out: a pure fold. No I/O, no clock, no OpenTelemetry."""

from __future__ import annotations

from raxol_otel.turns.config import FoldConfig
from raxol_otel.turns.counts import Counts
from raxol_otel.turns.fold import TurnFold
from raxol_otel.turns.span import Link, Span, SpanEvent
from raxol_otel.turns.state import OpenTurn
from raxol_otel.turns.whole import fold

__all__ = ["Counts", "FoldConfig", "Link", "OpenTurn", "Span", "SpanEvent", "TurnFold", "fold"]
