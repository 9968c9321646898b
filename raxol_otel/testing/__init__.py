"""For those who test against journals: faults on purpose, a second process, rules that are proved to be checked.

* `FaultJournal`: a real journal whose operations fail, or kill the process, where a test says;
* `ForeignWriter`: a second process that holds a session's lock, or wants it;
* `MutationAnchor`: a line of source, and what happens to a check when it is changed.

pytest is not needed, but for the fixtures in `raxol_otel.testing.plugin`. As pytest imports that module whenever it
starts, nothing is imported here before it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from raxol_otel.testing.anchor import AnchorLost, MutationAnchor
    from raxol_otel.testing.child import Ended
    from raxol_otel.testing.fault_journal import FaultJournal
    from raxol_otel.testing.faults import FOR_GOOD, SITES
    from raxol_otel.testing.foreign import ForeignWriter, Wanted

__all__ = [
    "FOR_GOOD",
    "SITES",
    "AnchorLost",
    "Ended",
    "FaultJournal",
    "ForeignWriter",
    "MutationAnchor",
    "Wanted",
]

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        """A public name, and with it the modules they all stand in."""
        if name not in __all__:
            message = f"module {__name__!r} has no attribute {name!r}"
            raise AttributeError(message)
        from raxol_otel.testing.anchor import AnchorLost, MutationAnchor  # noqa: PLC0415 - see above
        from raxol_otel.testing.child import Ended  # noqa: PLC0415
        from raxol_otel.testing.fault_journal import FaultJournal  # noqa: PLC0415
        from raxol_otel.testing.faults import FOR_GOOD, SITES  # noqa: PLC0415
        from raxol_otel.testing.foreign import ForeignWriter, Wanted  # noqa: PLC0415

        public = (FOR_GOOD, SITES, AnchorLost, Ended, FaultJournal, ForeignWriter, MutationAnchor, Wanted)
        globals().update(zip(__all__, public, strict=True))
        return globals()[name]
