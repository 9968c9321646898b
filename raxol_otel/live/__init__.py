"""Journals of this process as OpenTelemetry: what is given here goes to the providers of the user, through the API.

JournalInstrumentor().instrument()             # turns as spans while they happen, log events, instruments, Prometheus
with use_turn(journal): ...                    # the user's own spans nest in the open turn

And the parts of it:

LogEvents(logger_provider).attach()            # the core's signals as log events
TurnInstruments(meter_provider).observe_spans(spans)
"""

from __future__ import annotations

from raxol_otel.live.current import use_turn
from raxol_otel.live.instrumentor import JournalInstrumentor
from raxol_otel.live.instruments import TurnInstruments
from raxol_otel.live.log_events import LogEvents

__all__ = ["JournalInstrumentor", "LogEvents", "TurnInstruments", "use_turn"]
