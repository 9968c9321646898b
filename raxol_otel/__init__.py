"""Makes the journals of Raxol agents observable.

Rooms, from the ground up; each imports only rooms above its own line (tests/test_repo.py holds them to it):

    errors, catalogue, contract, observed, signals
    journal      the journal core: standard library and orjson only
    turns        records in, spans out: a pure fold
    bounds       what keeps telemetry small and true: names, amounts, damage
    metrics      folded turns and signals as Prometheus metrics
    live         a journal that is being written, as OpenTelemetry
    fleet        many journals
    exporters    where spans go
    testing      for those who test against journals
    cli          the command `raxol-otel`

Importing the package imports none of them and registers nothing.
"""

from __future__ import annotations

__all__ = ["__version__"]

# The build reads it here, so that asking for it costs no look into the installed metadata.
__version__ = "0.1.0"
