"""A real journal that fails where it is told to, and is read back without the package's help."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

from raxol_otel.journal import open_journal
from raxol_otel.journal.layout import check_session_id
from raxol_otel.testing import raw
from raxol_otel.testing.child import Ended, Method, Report, run_process
from raxol_otel.testing.faults import KILLING, Fault, FaultFiles, Faults, Site, Times

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Mapping
    from types import TracebackType

    from raxol_otel.contract import Event
    from raxol_otel.journal import Journal

    Check = Callable[[Any], object]
    Record = dict[str, Any]

__all__ = ["FaultJournal"]


class FaultJournal:
    """One session's journal with faults in it; to the code under test, a `JournalStore` like any other.

        with FaultJournal(tmp_path) as journal:
            journal.arm("append_fail", error=errno.ENOSPC)
            with pytest.raises(WriteFailed):
                journal.append({"type": "note"})

    It is opened by the first use, or by `open`, which takes the options of `open_journal`. At the end of the `with`
    block, if all went well, `assert_all_fired` is called.

    `session_id` may be any valid one; `may_kill` lets the killing sites fire in this very process.
    """

    def __init__(
        self,
        base_dir: str | os.PathLike[str],
        session_id: str = "session",
        *,
        may_kill: bool = False,
        **options: Any,
    ) -> None:
        self.base_dir = Path(base_dir)
        self.session_id = check_session_id(session_id)
        self.options = options
        # The offsets that appends have returned, in this process or in a child's.
        self.acknowledged: list[int] = []
        self._may_kill = may_kill
        self._report: Report | None = None
        self._faults = Faults(self._observed)
        self.files = FaultFiles(self._faults)
        self._owner: Journal | None = None
        self._handle: Journal | None = None
        self._is_down = False

    # --- Faults ---

    def arm(self, site: Site, *, times: Times = 1, error: int | None = None) -> None:
        """Make a site fire the next `times` times, or `"for good"`. `error`: the errno, where a site has one.

        Raises `ValueError` for what there is not, and `RuntimeError` for a killing site while the journal is open here.
        """
        if site in KILLING and self._is_open:
            self._check_kill(site)
        self._faults.arm(site, times=times, error=error)

    def disarm(self, site: Site | None = None) -> None:
        """Forget what was armed at a site, or at all of them."""
        self._faults.disarm(site)

    def fired(self, site: Site) -> int:
        """How often the site has fired, here and in children, since it was armed first and not disarmed."""
        return sum(fault.fired for fault in self._faults.armed() if fault.site == site)

    def assert_all_fired(self) -> None:
        """Fail when a fault fired less often than it was armed for: the test did not try what it says."""
        owed = [str(fault) for fault in self._faults.armed() if fault.is_owed]
        if owed:
            message = f"armed, and never came to it: {'; '.join(owed)}"
            raise AssertionError(message)

    def _observed(self, what: str, fault: Fault) -> None:
        if self._report is not None:
            self._report.say(what=what, site=fault.site, times=fault.times, error=fault.error)

    def _check_kill(self, site: str) -> None:
        if not self._may_kill:
            message = f"{site} would kill this process: close the journal, arm the site and use `run_in_child`"
            raise RuntimeError(message)

    # --- The journal ---

    @property
    def path(self) -> Path:
        """The session's directory."""
        return self.base_dir.absolute() / self.session_id

    @property
    def journal(self) -> Journal:
        """The real journal, opened if need be; also what `checkpoint.write` and others want."""
        if self._handle is None:
            self.open()
        if not self._is_down and self._owner is not None and self._is_open and self._faults.fire("writer_down"):
            self._is_down = True
            self._owner.close()
        assert self._handle is not None  # noqa: S101 - `open` made it
        return self._handle

    @property
    def _is_open(self) -> bool:
        return self._owner is not None

    def open(self, **options: Any) -> Self:
        """Open the journal, anew if it is open; options add to those given before. Raises as `open_journal` does.

        Raises `RuntimeError` when it is open in this process already by other means, or a killing site is armed.
        """
        self.close()
        self.options = {**self.options, **options}
        for fault in self._faults.armed():
            if fault.site in KILLING and not fault.is_spent:
                self._check_kill(fault.site)
        self.files.is_used = False
        chosen: dict[str, Any] = {**self.options, "base_dir": self.base_dir, "files": self.files}
        owner = open_journal(self.session_id, **chosen)
        if not self.files.is_used:
            owner.close()
            message = f"{self.path} is open in this process already, without any faults"
            raise RuntimeError(message)
        # Others share the owner's writer, and lose it when the owner closes: `writer_down`.
        self._owner, self._is_down = owner, False
        self._handle = open_journal(self.session_id, base_dir=self.base_dir)
        return self

    def append(self, event: Mapping[str, Any] | Event, *, sync: bool | None = None) -> int:
        """Append one event; its offset."""
        return self._acknowledge(self.journal.append(event, sync=sync))[0]

    def append_many(self, events: Iterable[Mapping[str, Any] | Event], *, sync: bool | None = None) -> list[int]:
        """Append all events or none; their offsets."""
        return self._acknowledge(*self.journal.append_many(events, sync=sync))

    def append_checked(self, event: Mapping[str, Any] | Event, check: Check, *, sync: bool | None = None) -> int:
        """Append one event unless `check` objects; its offset."""
        return self._acknowledge(self.journal.append_checked(event, check, sync=sync))[0]

    def _acknowledge(self, *offsets: int) -> list[int]:
        self.acknowledged += offsets
        if self._report is not None:
            self._report.say(acknowledged=offsets)
        return list(offsets)

    def read(self, from_offset: int | None = None) -> list[Record]:
        """The records as the package reads them; see `raw_records`."""
        return self.journal.read(from_offset)

    def status(self) -> Literal["ok", "damaged"]:
        """Whether the record is intact."""
        return self.journal.status()

    def flush(self) -> None:
        """Make everything appended durable."""
        self.journal.flush()

    def close(self) -> None:
        """Close the journal. It is opened again by `open`, not by use."""
        owner, self._owner = self._owner, None
        if self._handle is not None:
            self._handle.close()
        if owner is not None:
            owner.close()

    def __enter__(self) -> Self:
        """Itself, not yet opened."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close; and if nothing was raised, every armed fault must have fired."""
        self.close()
        if kind is None:
            self.assert_all_fired()

    # --- What is there, read by other means ---

    def raw_lines(self) -> list[bytes]:
        """Every line on disk, with its newline where it has one."""
        return raw.raw_lines(self.path)

    def raw_records(self) -> list[Record]:
        """Every record on disk whose line is terminated. Raises `ValueError` for a line that is no JSON object."""
        return raw.raw_records(self.path)

    def raw_head(self) -> Record | None:
        """What HEAD says; None where there is none."""
        return raw.raw_head(self.path)

    # --- A process of its own ---

    def run_in_child(
        self, function: Callable[[FaultJournal], object], *, method: Method = "fork", seconds: float = 60
    ) -> Ended:
        """Run `function(journal)` in a child process and tell how that ended; `journal` is this one, there.

        What was armed here is armed there. Afterwards what was armed, fired and acknowledged there counts here too.
        `method` `"spawn"` starts a new interpreter; the function must be importable there. Only what is appended
        through `journal` itself is told as acknowledged. At the function's end the child closes the journal.

        Raises `RuntimeError` while the journal is open here, `TimeoutError` when the child has not ended in time.
        """
        if self._is_open:
            message = "close the journal first: a child cannot write it while this process does"
            raise RuntimeError(message)
        acknowledged: list[int] = []
        fired: dict[str, int] = {}

        def heard(message: Record) -> None:
            if "acknowledged" in message:
                acknowledged.extend(message["acknowledged"])
                return
            site: Site = message["site"]
            if message["what"] == "armed":
                self._faults.add(Fault(site, message["times"], message["error"]))
            elif message["what"] == "disarmed":
                self._faults.disarm(site)
            else:
                fired[site] = fired.get(site, 0) + 1
                self._faults.fire(site)

        setup = _Setup(function, self.base_dir, self.session_id, self.options, self._faults.armed())
        exit_code, error = run_process(FaultJournal._in_child, setup, method=method, seconds=seconds, heard=heard)
        self.acknowledged += acknowledged
        return Ended(exit_code, acknowledged, fired, error)

    @staticmethod
    def _in_child(report: Report, setup: _Setup) -> None:
        journal = FaultJournal(setup.base_dir, setup.session_id, may_kill=True, **setup.options)
        for fault in setup.faults:
            journal._faults.add(fault)
        journal._report = report
        try:
            setup.function(journal)
        finally:
            journal.close()


class _Setup(NamedTuple):
    """What a child needs to have the same journal."""

    function: Callable[[FaultJournal], object]
    base_dir: Path
    session_id: str
    options: dict[str, Any]
    faults: list[Fault]
