"""Records in, spans out: a pure fold. No I/O, no clock, no OpenTelemetry."""

from __future__ import annotations

from raxol_otel.turns.counts import Counts
from raxol_otel.turns.fold import FoldConfig, TurnFold, fold
from raxol_otel.turns.span import Link, Span, SpanEvent

__all__ = ["Counts", "FoldConfig", "Link", "Span", "SpanEvent", "TurnFold", "fold"]
