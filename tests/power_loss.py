"""A disk that loses what was not synced: it records what a writer does to its files, and makes every crash of it.

Each file keeps an arbitrary beginning of its unsynced writes, whatever the others keep: the last one torn at any byte,
and perhaps zeros instead of the rest, where the size reached the disk before the data. Each directory keeps an
arbitrary beginning of its unsynced changes of names. A failed sync may have dropped what it should have written.
What a successful sync covered is kept: data and size for `sync`, names for `sync_directory`.
"""

from __future__ import annotations

import errno
import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from raxol_otel.journal.files import Files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    # A decision of the crash: from the least to the most that is kept.
    Pick = Callable[[int, int], int]

__all__ = ["Crash", "Disk", "Killed", "RecordingFiles"]


class Killed(BaseException):
    """The process ended here; nothing it does afterwards reaches a file."""


class Operation(NamedTuple):
    """What was done: `what` to the file `node`, or to the name `name` in `folder`."""

    what: str
    node: int = 0
    position: int = 0
    data: bytes = b""
    folder: str = ""
    name: str = ""
    target: str = ""


@dataclass(slots=True)
class _Change:
    """A write (or, without data, a cut) whose fate is open: `is_doubtful` when a failed sync may have dropped it."""

    operation: Operation
    is_doubtful: bool = False
    is_durable: bool = False


@dataclass(slots=True)
class _File:
    base: bytes
    changes: list[_Change] = field(default_factory=list[_Change])

    def sync(self) -> None:
        for change in self.changes:
            # Later syncs say nothing of what a failed one has dropped; a cut is no data, and is not dropped.
            change.is_durable = change.is_durable or not change.is_doubtful

    def fail(self) -> None:
        for change in self.changes:
            change.is_doubtful |= not change.is_durable and change.operation.what == "write"

    def after(self, pick: Pick) -> bytes:
        """What the disk holds after a crash."""
        content = bytearray(self.base)
        pending = [change for change in self.changes if not change.is_durable and not change.is_doubtful]
        kept = pick(0, len(pending))
        torn = pending[kept] if kept < len(pending) else None
        lost = {id(change) for change in pending[kept:]}
        for change in self.changes:
            done = change.operation
            if change is torn and done.what == "write":
                apply(content, done._replace(data=done.data[: pick(0, len(done.data))]))
            elif id(change) not in lost and (change.is_durable or not change.is_doubtful or pick(0, 1)):
                apply(content, done)
        grown = max([len(content), *(c.operation.position + len(c.operation.data) for c in pending[kept:])])
        if grown > len(content) and pick(0, 1):
            content.extend(bytes(pick(1, grown - len(content))))
        return bytes(content)


@dataclass(slots=True)
class _Folder:
    # Name to file number; 0 is a folder.
    names: dict[str, int] = field(default_factory=dict[str, int])
    changes: list[Operation] = field(default_factory=list[Operation])

    def after(self, kept: int) -> dict[str, int]:
        names = dict(self.names)
        for change in self.changes[:kept]:
            if change.what == "rename":
                names[change.target] = names.pop(change.name)
            elif change.what == "unlink":
                names.pop(change.name, None)
            else:
                names[change.name] = change.node
        return names

    def sync(self) -> None:
        self.names = self.after(len(self.changes))
        self.changes.clear()


def apply(content: bytearray, done: Operation) -> None:
    """Do a write, or a cut, to a file's content."""
    if done.what == "truncate":
        del content[done.position :]
        return
    if done.data:
        content.extend(bytes(max(0, done.position - len(content))))
        content[done.position : done.position + len(done.data)] = done.data


class Disk:
    """The state of a directory tree, of which some is durable and some is not."""

    def __init__(self, root: Path) -> None:
        """Everything there is durable at first."""
        self.root = root
        self.files: dict[int, _File] = {}
        self.folders: dict[str, _Folder] = {}
        self.first: dict[str, int] = {}
        for folder, folders, names in os.walk(root):
            entries = dict.fromkeys(folders, 0)
            for name in sorted(names):
                path = root / folder / name
                if name != "writer.lock":
                    entries[name] = self.first[str(path)] = len(self.files) + 1
                    self.files[entries[name]] = _File(path.read_bytes())
            self.folders[folder] = _Folder(entries)

    def do(self, done: Operation) -> None:
        """Follow an operation."""
        if done.what in ("write", "truncate"):
            self.files[done.node].changes.append(_Change(done))
        elif done.what == "sync":
            self.files[done.node].sync()
        elif done.what == "failed_sync":
            self.files[done.node].fail()
        elif done.what == "sync_directory":
            self.folders[done.folder].sync()
        elif done.what != "promise":
            if done.what == "create":
                self.files[done.node] = _File(b"")
            elif done.what == "mkdir":
                self.folders[f"{done.folder}/{done.name}"] = _Folder()
            self.folders[done.folder].changes.append(done)

    def crash(self, pick: Pick, into: Path) -> None:
        """Write what is left after a crash to a new directory."""
        self._crash(str(self.root), pick, into)

    def _crash(self, folder: str, pick: Pick, into: Path) -> None:
        into.mkdir()
        state = self.folders[folder]
        for name, node in sorted(state.after(pick(0, len(state.changes))).items()):
            if node:
                (into / name).write_bytes(self.files[node].after(pick))
            else:
                self._crash(f"{folder}/{name}", pick, into / name)


class Crash(NamedTuple):
    """A moment of a run: the disk then, and the last offset that was promised to be durable."""

    disk: Disk
    promised: int


class RecordingFiles(Files):
    """Does everything to the real files, syncs aside, and records it.

    `faults` names operations by kind and number, as in `("sync", 2)`, that fail: a write after half its bytes.
    `stop_at`: the process "ends" before that operation, counted from 0.
    """

    def __init__(self, root: Path, *, faults: Mapping[tuple[str, int], int] | None = None) -> None:
        self.root = root
        self.log: list[Operation] = []
        self.faults = dict(faults or {})
        self.stop_at = -1
        self.count = 0
        self._first = Disk(root)
        self._kinds: Counter[str] = Counter()
        self._nodes = dict(self._first.first)
        self._descriptors: dict[int, int] = {}
        self._next = len(self._first.files)

    def promise(self, offset: int) -> None:
        """The writer has said that everything up to this offset is durable."""
        self.log.append(Operation("promise", position=offset))

    def at(self, moment: int) -> Crash:
        """The disk after so many operations."""
        disk = Disk.__new__(Disk)
        disk.root = self.root
        disk.files = {node: _File(file.base) for node, file in self._first.files.items()}
        disk.folders = {name: _Folder(dict(folder.names)) for name, folder in self._first.folders.items()}
        promised = 0
        for done in self.log[:moment]:
            disk.do(done)
            if done.what == "promise":
                promised = max(promised, done.position)
        return Crash(disk, promised)

    def _begin(self, kind: str) -> int:
        """Count the operation; the error number it is to fail with, or 0."""
        self.count += 1
        if 0 <= self.stop_at < self.count:
            raise Killed
        self._kinds[kind] += 1
        return self.faults.get((kind, self._kinds[kind]), 0)

    def _fail(self, kind: str) -> None:
        number = self._begin(kind)
        if number:
            raise OSError(number, os.strerror(number))

    def _seek(self) -> None:
        """See what was cut outside of this layer: a torn tail, and that was synced at once."""
        for path, node in self._nodes.items():
            content = self._current(node)
            size = os.stat(path).st_size if os.path.exists(path) else len(content)  # noqa: PTH110, PTH116 - texts
            if size < len(content):
                self.log += [Operation("truncate", node, size), Operation("sync", node)]

    def _current(self, node: int) -> bytearray:
        first = self._first.files.get(node)
        content = bytearray(first.base if first is not None else b"")
        for done in self.log:
            if done.node == node and done.what in ("write", "truncate"):
                apply(content, done)
        return content

    def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
        """As the real one; knows new files from old ones."""
        self._fail("open")
        self._seek()
        is_new = not os.path.lexists(path)
        descriptor = super().open(path, flags, mode)
        if is_new:
            self._next += 1
            self._nodes[str(path)] = self._next
            self.log.append(Operation("create", self._next, folder=str(path.parent), name=path.name))
        self._descriptors[descriptor] = self._nodes[str(path)]
        return descriptor

    def close(self, descriptor: int) -> None:
        """As the real one; not counted, nothing depends on it."""
        self._descriptors.pop(descriptor, None)
        super().close(descriptor)

    def write(self, descriptor: int, data: bytes, position: int) -> int:
        """As the real one; short where it is to fail."""
        number = self._begin("write")
        if number:
            data = data[: len(data) // 2]
        written = super().write(descriptor, data, position)
        self.log.append(Operation("write", self._descriptors[descriptor], position, data))
        if number == errno.EIO:
            raise OSError(number, os.strerror(number))
        return written

    def truncate(self, descriptor: int, size: int) -> None:
        """As the real one."""
        self._fail("truncate")
        super().truncate(descriptor, size)
        self.log.append(Operation("truncate", self._descriptors[descriptor], size))

    def sync(self, descriptor: int) -> None:
        """Only recorded."""
        number = self._begin("sync")
        self.log.append(Operation("failed_sync" if number else "sync", self._descriptors[descriptor]))
        if number:
            raise OSError(number, os.strerror(number))

    def sync_directory(self, path: Path) -> None:
        """Only recorded."""
        self._fail("sync_directory")
        self.log.append(Operation("sync_directory", folder=str(path)))

    def rename(self, source: Path, target: Path) -> None:
        """As the real one."""
        self._fail("rename")
        super().rename(source, target)
        self._nodes[str(target)] = self._nodes.pop(str(source))
        self.log.append(Operation("rename", folder=str(source.parent), name=source.name, target=target.name))

    def unlink(self, path: Path) -> None:
        """As the real one."""
        self._fail("unlink")
        super().unlink(path)
        self._nodes.pop(str(path))
        self.log.append(Operation("unlink", folder=str(path.parent), name=path.name))

    def make_directory(self, path: Path, mode: int) -> bool:
        """As the real one."""
        self._fail("make_directory")
        is_new = super().make_directory(path, mode)
        if is_new:
            self.log.append(Operation("mkdir", folder=str(path.parent), name=path.name))
        return is_new
