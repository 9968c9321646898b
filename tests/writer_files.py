"""A file layer whose operations can be made to fail, with a model of what a power loss would leave; and a bench.

The model is the worst that the system may do: what was not synced is lost, and so is what a failed sync was to cover,
unless it is written again. `WatchedFiles.wrong` collects each HEAD that named more than that.
"""

from __future__ import annotations

import json
import os
import threading
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Self

import pytest

from raxol_otel import signals
from raxol_otel.errors import WriteFailed
from raxol_otel.journal import open_journal, scan, verify
from raxol_otel.journal.codec import decode
from raxol_otel.journal.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from raxol_otel.journal import Journal

__all__ = ["NEVER", "PROBE", "Bench", "WatchedFiles", "event", "head_of", "listen", "segment_sizes"]

# A ceiling that does not come while a test runs, in milliseconds: whatever is synced then, a call has synced.
NEVER: Final = 600_000
# A failed operation stays so until it is repaired.
FOR_GOOD: Final = 10**9
# What the oracle's runs append.
PROBE: Final[dict[str, Any]] = {
    "v": 0,
    "session_id": "sess-probe",
    "turn_id": "turn-next",
    "ts": 1785900000000000,
    "family": "loop",
    "type": "turn_started",
    "tier": "durable",
    "payload": {"prompt": "next"},
}


@dataclass
class Fault:
    """The next `times` operations of this name fail, on paths that contain `where`, after `skip` that do not.

    `error`: the errno; None for a write that writes only `count` bytes.
    """

    operation: str
    where: str
    error: int | None
    times: int
    skip: int
    count: int = 0


@dataclass
class _File:
    """What would survive of one file: `kept` for sure; `pending` are changes that a sync has yet to cover."""

    kept: bytearray = field(default_factory=bytearray)
    pending: list[tuple[int, bytes | None]] = field(default_factory=list[tuple[int, "bytes | None"]])

    def settle(self, count: int, *, is_kept: bool) -> None:
        """The first changes are kept, or lost; one without bytes is a cut."""
        if is_kept:
            for position, data in self.pending[:count]:
                if len(self.kept) < position:
                    self.kept.extend(bytes(position - len(self.kept)))
                end = len(self.kept) if data is None else position + len(data)
                self.kept[position:end] = data or b""
        del self.pending[:count]


class WatchedFiles(Files):
    """The real files. Operations can be made to fail; what a power loss would leave is known at each HEAD."""

    def __init__(self) -> None:
        self.faults: list[Fault] = []
        # Every operation on a file, in order: its name, the last two parts of the path, where, and the bytes.
        self.log: list[tuple[str, str, int, bytes]] = []
        self.wrong: list[str] = []
        self._paths: dict[int, Path] = {}
        self._model: dict[Path, _File] = defaultdict(_File)
        self._unnamed: set[Path] = set()
        self._guard = threading.RLock()

    def fail(self, operation: str, where: str, error: int, *, times: int = FOR_GOOD, skip: int = 0) -> None:
        """Make an operation fail on the paths that contain `where`."""
        self.faults.append(Fault(operation, where, error, times, skip))

    def shorten(self, where: str, count: int, *, times: int = 1) -> None:
        """Make writes write only so many bytes."""
        self.faults.append(Fault("write", where, None, times, 0, count))

    def repair(self) -> None:
        """From now on nothing fails."""
        self.faults.clear()

    def operations(self, *names: str) -> list[tuple[str, str]]:
        """What was done since `forget`, without positions: the operation and the path."""
        return [(name, where) for name, where, _, _ in self.log if not names or name in names]

    def _meet(self, operation: str, path: Path, position: int = 0, data: bytes = b"") -> Fault | None:
        with self._guard:
            self.log.append((operation, "/".join(path.parts[-2:]), position, data))
            for fault in self.faults:
                if fault.operation == operation and fault.where in str(path) and fault.times > 0:
                    if fault.skip > 0:
                        fault.skip -= 1
                        continue
                    fault.times -= 1
                    if fault.error is None:
                        return fault
                    raise OSError(fault.error, os.strerror(fault.error), str(path))
        return None

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """Open; what a file holds that was not seen before is not known to be durable."""
        self._meet("open", path)
        is_known = path in self._model
        descriptor = super().open(path, flags, mode)
        with self._guard:
            self._paths[descriptor] = path
            if flags & os.O_EXCL:
                self._model[path] = _File()
                self._unnamed.add(path)
            elif not is_known:
                self._model[path].pending.append((0, path.read_bytes()))
        return descriptor

    def close(self, descriptor: int) -> None:
        """Close, which it is also where that fails."""
        super().close(descriptor)
        self._meet("close", self._paths[descriptor])

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """Write, all or as little as a fault says."""
        path = self._paths[descriptor]
        fault = self._meet("write", path, position, data)
        written = super().write(descriptor, data if fault is None else data[: fault.count], position)
        with self._guard:
            self._model[path].pending.append((position, data[:written]))
        return written

    def truncate(self, descriptor: int, size: int) -> None:
        """Cut."""
        path = self._paths[descriptor]
        self._meet("truncate", path, size)
        super().truncate(descriptor, size)
        with self._guard:
            self._model[path].pending.append((size, None))

    def sync(self, descriptor: int) -> None:
        """Sync: covers what was written before it began; where it fails, that is lost."""
        file = self._model[self._paths[descriptor]]
        count = len(file.pending)
        try:
            self._meet("sync", self._paths[descriptor])
            super().sync(descriptor)
        except OSError:
            with self._guard:
                file.settle(count, is_kept=False)
            raise
        with self._guard:
            file.settle(count, is_kept=True)

    def sync_directory(self, path: Path) -> None:
        """Sync a directory: the names in it are durable."""
        with self._guard:
            names = {name for name in self._unnamed if name.parent == path}
        self._meet("sync_directory", path)
        super().sync_directory(path)
        with self._guard:
            self._unnamed -= names

    def rename(self, source: Path, target: Path) -> None:
        """Rename; HEAD's content is compared with what would survive."""
        self._meet("rename", target)
        with self._guard:
            super().rename(source, target)
            self._model[target] = self._model.pop(source)
            if target.name == "HEAD":
                self._check_head(target)

    def _check_head(self, target: Path) -> None:
        text = bytes(self._model[target].kept)
        durable = self.durable_offset(target.parent)
        if not text or json.loads(text)["offset"] > durable:
            self.wrong.append(f"HEAD said {text.decode()!r} when {durable} was durable")

    def unlink(self, path: Path) -> None:
        """Remove."""
        self._meet("unlink", path)
        super().unlink(path)

    def make_directory(self, path: Path, mode: int) -> bool:
        """Make a directory."""
        self._meet("make_directory", path)
        return super().make_directory(path, mode)

    def durable(self, session: Path) -> bytes:
        """What would survive of the journal now, all segments in one."""
        with self._guard:
            found = sorted(path for path in self._model if path.parent == session / "journal")
            return b"".join(bytes(self._model[path].kept) for path in found if path not in self._unnamed)

    def durable_offset(self, session: Path) -> int:
        """The last offset that would survive now, with all before it."""
        last = 0
        for line in self.durable(session).split(b"\n")[:-1]:
            if not line.startswith(b"{"):
                break  # a hole: what was there is lost
            last = int(decode(line)["id"])
        return last


def event(number: int, **more: Any) -> dict[str, Any]:
    """An event that can be told from others."""
    return {"type": "note", "payload": {"number": number}, **more}


def head_of(session: Path) -> dict[str, Any]:
    """What HEAD says."""
    found: dict[str, Any] = json.loads((session / "HEAD").read_bytes())
    return found


def segment_sizes(session: Path) -> list[int]:
    """The sizes of the segments, in order."""
    return [path.stat().st_size for path in sorted((session / "journal").glob("*.jsonl"))]


def listen(name: str, found: list[signals.Signal]) -> Callable[[], bool]:
    """Collect every signal; call what is returned to stop."""
    signals.attach(name, found.append)
    return lambda: signals.detach(name)


@dataclass
class Bench:
    """A journal that is written, and what was acknowledged of it."""

    base: Path
    files: WatchedFiles = field(default_factory=WatchedFiles)
    acknowledged: dict[int, int] = field(default_factory=dict[int, int])
    heard: list[signals.Signal] = field(default_factory=list[signals.Signal])
    journal: Journal | None = None
    _stop: Callable[[], bool] = field(default=lambda: False)

    def __enter__(self) -> Self:
        """Listen."""
        self._stop = listen(f"bench {id(self)}", self.heard)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Stop listening, and leave nothing open."""
        self.files.repair()
        if self.journal is not None:
            self.journal.close()
        self._stop()

    @property
    def session(self) -> Path:
        """The session's directory."""
        return self.base / "s"

    def open(self, **options: Any) -> Journal:
        """Open the journal; nothing is synced by itself unless `sync_ceiling_ms` is given."""
        chosen: dict[str, Any] = {"base_dir": self.base, "sync_ceiling_ms": NEVER, "files": self.files, **options}
        self.journal = open_journal("s", **chosen)
        return self.journal

    def append(self, *numbers: int, **options: Any) -> list[int]:
        """Append an event for each number, each with a call of its own; their offsets."""
        assert self.journal is not None
        offsets: list[int] = []
        for number in numbers:
            offset = self.journal.append(event(number), **options)
            self.acknowledged[offset] = number
            offsets.append(offset)
        return offsets

    def refused(self, number: int, stage: str, reason: str, **options: Any) -> WriteFailed:
        """An append that fails: no id is used, nothing more is in the journal, and it says why, as a signal too."""
        assert self.journal is not None
        before = self.journal.last_offset
        self.told()
        with pytest.raises(WriteFailed) as failed:
            self.journal.append(event(number), **options)
        assert (failed.value.stage, failed.value.reason, failed.value.offsets) == (stage, reason, ())
        assert self.told() == [(stage, reason)]
        assert self.journal.last_offset == before
        return failed.value

    def told(self) -> list[tuple[str, str]]:
        """The stage and reason of each `write_failed` since the last call; nothing else was said."""
        found = [(one.metadata["stage"], one.metadata["reason"]) for one in self.heard]
        assert {one.name for one in self.heard} <= {signals.SIGNAL_WRITE_FAILED}
        assert {one.metadata["session_id"] for one in self.heard} <= {"s"}
        self.heard.clear()
        return found

    def finish(self) -> None:
        """Close: exactly what was acknowledged is there and durable, HEAD says so, and never said more."""
        assert self.journal is not None
        self.journal.close()
        found = scan(self.session)
        assert (found.ok, found.torn) == (True, False)
        assert {record["id"]: record["payload"]["number"] for record in found.records} == self.acknowledged
        last = max(self.acknowledged, default=0)
        if found.records and "hash" in found.records[-1]:
            assert verify(self.session) is None
            assert head_of(self.session)["tip_hash"] == found.records[-1]["hash"]
        assert head_of(self.session)["offset"] == last == self.files.durable_offset(self.session)
        assert self.files.wrong == []
        assert not (self.session / "writer.lock").exists()
        assert list(self.session.glob("*.tmp.*")) == []
