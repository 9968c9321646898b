"""Journals of this process as OpenTelemetry: what is given here goes to the providers of the user, through the API.

LogEvents(logger_provider).attach()            # the core's signals as log events
TurnInstruments(meter_provider).observe_spans(spans)
"""

from __future__ import annotations

from raxol_otel.live.instruments import TurnInstruments
from raxol_otel.live.log_events import LogEvents

__all__ = ["LogEvents", "TurnInstruments"]
