"""The oracle's scenarios, played with our writer: what was done, and what came of it, in the words of the recording.

`python -m tests.writer_scenarios NAME DIRECTORY` plays one there and prints it; with `--as-nobody` as another user,
whom permissions bind.
"""

from __future__ import annotations

import argparse
import contextlib
import errno
import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.errors import (
    InvalidSessionId,
    JournalDamaged,
    JournalLocked,
    JournalUnreadable,
    NotChained,
    RaxolError,
    Unencodable,
    WriteFailed,
    WriterClosed,
)
from raxol_otel.journal import open_journal, scan, verify
from raxol_otel.signals import SIGNAL_DAMAGED, Signal
from tests.writer_files import NEVER, PROBE, WatchedFiles, listen

if TYPE_CHECKING:
    from collections.abc import Callable

    from raxol_otel.journal import Journal

__all__ = ["NOT_OPEN", "Step", "play"]

Step = dict[str, Any]

NOT_OPEN: Final = "not open"
NOBODY: Final = 65534
# What JSON cannot carry: text that is not UTF-8; the reference's tuple, for which a set stands: our tuples are arrays.
BAD: Final[dict[str, Any]] = {"invalid UTF-8": {"text": "\udcff"}, "a tuple": {"text": {1}}}
# Our errors, as the recording calls them.
WORDS: Final[dict[type[Exception], Any]] = {
    InvalidSessionId: "invalid_session_id",
    Unencodable: ["unencodable", "<message>"],
    WriterClosed: ["writer_down", "noproc"],
    JournalDamaged: "damaged",
    NotChained: "unchained",
}
SIX_KILOBYTES: Final = {**PROBE, "payload": {"prompt": "x" * 6_000}}


@dataclass
class Setting:
    """What is there before the first step. `prepare` is given the session's directory.

    `faults` are made before the step of that number: the operation, where, the errno and how often.
    """

    records: int = 2
    options: dict[str, Any] = field(default_factory=dict[str, Any])
    prepare: Callable[[Path], object] = field(default=lambda _: None)
    faults: dict[int, tuple[str, str, int, int]] = field(default_factory=dict[int, tuple[str, str, int, int]])


def head_as_directory(session: Path, *names: str) -> None:
    """HEAD is a directory, with files in it."""
    (session / "HEAD").unlink()
    (session / "HEAD").mkdir()
    for name in names:
        (session / "HEAD" / name).touch()


def chmod(name: str, mode: int) -> Callable[[Path], object]:
    """Change the mode of something in the session's directory."""
    return lambda session: (session / name).chmod(mode)


CHAIN: Final = {"chain": True}
FOR_GOOD: Final = 10**6
NEW: Final = 0
SETTINGS: Final = {
    "lock_same_process_joins": Setting(1),
    "write_failed_head_is_directory": Setting(prepare=head_as_directory),
    "write_failed_head_is_full_directory": Setting(prepare=lambda session: head_as_directory(session, "keep")),
    "write_failed_head_chained": Setting(options=CHAIN, prepare=head_as_directory),
    "write_failed_rotate_directory_in_the_way": Setting(NEW, {"segment_cap": 300}),
    "open_session_ids": Setting(NEW),
    "unencodable_invalid_utf8_unchained": Setting(1),
    "unencodable_chained": Setting(1, CHAIN),
    "unencodable_batch_unchained": Setting(1),
    "open_segment_read_only": Setting(prepare=chmod("journal/000001.jsonl", 0o444)),
    "scan_segment_unreadable": Setting(prepare=chmod("journal/000001.jsonl", 0)),
    "scan_journal_dir_unreadable": Setting(prepare=chmod("journal", 0)),
    "scan_meta_unreadable_chained": Setting(options=CHAIN, prepare=chmod("meta.json", 0)),
    "scan_head_unreadable_chained": Setting(options=CHAIN, prepare=chmod("HEAD", 0)),
    "write_failed_datasync_once": Setting(NEW, faults={2: ("sync", "journal/", errno.EIO, 1)}),
    "write_failed_datasync_for_good": Setting(NEW, faults={2: ("sync", "journal/", errno.EIO, FOR_GOOD)}),
    "write_failed_meta_sync": Setting(NEW, faults={0: ("sync", "meta.json.tmp", errno.ENOSPC, 1)}),
    "write_failed_sync_while_rotating": Setting(
        NEW, {"segment_cap": 300}, faults={2: ("sync", "000001.jsonl", errno.EIO, 1)}
    ),
    "disk_full_during_append": Setting(NEW),
}


class Play:
    """One scenario, step by step."""

    def __init__(self, name: str, base: Path, foreign_pid: int) -> None:
        self.setting = SETTINGS.get(name, Setting())
        self.base = base
        self.session = base / "session"
        self.files = WatchedFiles()
        self.foreign_pid = str(foreign_pid)
        self.heard: list[Signal] = []
        self.journals: list[Journal] = []
        if self.setting.records:
            with open_journal("session", base_dir=base, **self.setting.options) as journal:
                journal.append_many([PROBE] * self.setting.records)
            self.setting.prepare(self.session)

    def step(self, number: int, step: Step) -> Step:
        """Do it; the step with our result and our signals, in the words of the recording."""
        if number in self.setting.faults:
            operation, where, error, times = self.setting.faults[number]
            self.files.fail(operation, where, error, times=times)
        played: Step = {"do": step["do"]}
        if "content" in step:
            self.put(step["content"])
            return {**played, "content": step["content"]}
        try:
            played["result"] = self.do(step["do"])
        except (RaxolError, IndexError) as error:
            played["result"] = said(error, self.session)
        if "telemetry" in step:
            played["telemetry"] = [self.told(signal) for signal in self.heard]
            self.heard.clear()
        return played

    def told(self, signal: Signal) -> Step:
        """A signal as the recording has it."""
        metadata = {key: signal.metadata[key] for key in ("stage", "reason") if key in signal.metadata}
        if signal.name == SIGNAL_DAMAGED:
            segment = os.path.relpath(signal.metadata["segment"], self.session)
            metadata = {"dir": ".", "segment": segment}
        return {"event": signal.name, "metadata": metadata}

    def put(self, content: str) -> None:
        """Put something in the place of the lock file."""
        lock = self.session / "writer.lock"
        if content == "<directory>":
            lock.mkdir()
        elif content == "<link to a missing file>":
            lock.symlink_to("missing")
        else:
            text = content.replace("<live foreign pid>", self.foreign_pid).replace("\\u0000", "\0")
            lock.write_text(text, encoding="utf-8")

    def do(self, what: str) -> Any:
        """One step."""
        doing: dict[str, Callable[[], Any]] = {
            "open": self.open,
            "open again in the same process": self.open,
            "close": lambda: self.close(0),
            "close the first": lambda: self.close(0),
            "close the second handle": lambda: self.close(1),
            "append": lambda: self.append(PROBE),
            "append through the first": lambda: self.append(PROBE),
            "append through the second": lambda: self.append(PROBE, 1),
            "append through the second handle": lambda: self.append(PROBE, 1),
            "append a record of 6 KB": lambda: self.append(SIX_KILOBYTES),
            "append_many good, bad": lambda: ["ok", self.journals[0].append_many([PROBE, bad_event("invalid UTF-8")])],
            "look": self.look,
            "scan": lambda: scanned(self.session),
            "verify": lambda: verified(self.session),
            "make journal/000002.jsonl a directory": (self.session / "journal" / "000002.jsonl").mkdir,
            "remove that directory": (self.session / "journal" / "000002.jsonl").rmdir,
            "fill the disk": self.fill,
            "free space": (self.base / "fill").unlink,
        }
        if what in doing:
            result = doing[what]()
            return "ok" if result is None else result
        action, _, rest = what.partition(" ")
        if action == "append":
            return self.append(bad_event(rest))
        self.open_id(rest)
        return "ok"

    def open(self) -> None:
        """Open, once more."""
        options: dict[str, Any] = {"base_dir": self.base, "sync_ceiling_ms": NEVER, "files": self.files}
        self.journals.append(open_journal("session", **options, **self.setting.options))

    def open_id(self, text: str) -> None:
        """Open another session by its id, and close it at once."""
        ids = {"<<97, 0, 98>>": "a\0b", "255 letters x": "x" * 255, "256 letters x": "x" * 256}
        open_journal(ids[text] if text in ids else json.loads(text), base_dir=self.base).close()

    def close(self, which: int) -> None:
        """Close a handle; a journal that is closed can be opened anew."""
        self.journals[which].close()
        if len(self.journals) == 1:
            self.journals.clear()

    def append(self, event: dict[str, Any], which: int = 0) -> Any:
        """Append, and then what the ceiling would do: HEAD catches up, unless it is a sync or HEAD that just failed."""
        offset = self.journals[which].append(event)
        if not {signal.metadata.get("stage") for signal in self.heard} & {"datasync", "head"}:
            self.journals[which]._writer.due()  # pyright: ignore[reportPrivateUsage]
        return ["ok", offset]

    def fill(self) -> None:
        """Write until there is no more space."""
        with contextlib.suppress(OSError), (self.base / "fill").open("wb", buffering=0) as file:
            while file.write(b"x" * 1_024):
                pass

    def look(self) -> Step:
        """HEAD, the lock and the segments' sizes."""
        lock = read(self.session / "writer.lock")
        if isinstance(lock, str):
            own = "<own pid>" if lock == str(os.getpid()) else lock.replace(self.foreign_pid, "<live foreign pid>")
            lock = own.replace("\0", "\\u0000")
        head = read(self.session / "HEAD")
        paths = sorted((self.session / "journal").glob("*.jsonl"))
        return {
            "head": head if isinstance(head, str) else {"error": head[1]},
            "lock": lock,
            "segment_sizes": {path.name: path.stat().st_size for path in paths if path.is_file()},
        }


def bad_event(what: str) -> dict[str, Any]:
    """An event that cannot be written."""
    return {**PROBE, "payload": BAD[what]}


def read(path: Path) -> str | list[str]:
    """A file's text, or the error's name."""
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        return ["error", errno.errorcode[error.errno or 0].lower()]


def scanned(session: Path) -> list[Any]:
    """A scan's verdict and how many records it gave."""
    found = scan(session)
    return ["ok" if found.ok else "damaged", len(found.records)]


def verified(session: Path) -> Any:
    """The chain's verdict."""
    broken = verify(session)
    return "ok" if broken is None else ["broken", broken]


def said(error: Exception, session: Path) -> Any:
    """An error in the words of the recording where it has some, else its name and what it tells."""
    match error:
        case IndexError():
            return NOT_OPEN
        case JournalLocked():
            return ["error", ["journal_locked", str(error.pid)]]
        case WriteFailed(stage="append"):
            return ["error", error.reason]
        case WriteFailed():
            return ["error", "write_failed", error.stage, error.reason]
        case JournalUnreadable():
            return ["raised", "unreadable", str(error.path.relative_to(session))]
        case _:
            return ["error", WORDS[type(error)]]


def play(name: str, steps: list[Step], base: Path, *, foreign_pid: int = -1) -> list[Step]:
    """Play a scenario in a directory."""
    scene = Play(name, base, foreign_pid)
    stop = listen("scenario", scene.heard)
    try:
        return [scene.step(number, step) for number, step in enumerate(steps)]
    finally:
        stop()
        scene.files.repair()
        for journal in scene.journals:
            journal.close()


def main() -> None:
    """Play the steps that come by standard input."""
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("directory", type=Path)
    parser.add_argument("--as-nobody", action="store_true")
    arguments = parser.parse_args()
    steps: list[Step] = json.load(sys.stdin)
    if arguments.as_nobody and os.geteuid() == 0:
        os.chown(arguments.directory, NOBODY, NOBODY)
        os.setgroups([])
        os.setgid(NOBODY)
        os.setuid(NOBODY)
    json.dump(play(arguments.name, steps, arguments.directory), sys.stdout)


if __name__ == "__main__":
    main()
