"""All sessions below a folder, looked at again and again; each look costs what has changed since.

What was there at the very first look is the baseline: it is in the gauges and in no counter. From then on turns that
end and damage that comes are counted once, over restarts too where the state is kept.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import time
from collections import OrderedDict
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import ExportError, JournalUnreadable
from raxol_otel.fleet.acknowledged import Acknowledged
from raxol_otel.fleet.census import census
from raxol_otel.fleet.discovery import Discovery, folder_of, is_there, sessions_of, shown
from raxol_otel.fleet.entry import Entry
from raxol_otel.fleet.facts import FleetFacts
from raxol_otel.fleet.followed import KNOWN_PAST, Followed
from raxol_otel.fleet.kept import Kept
from raxol_otel.fleet.workers import Answer, read_sessions, size_of
from raxol_otel.journal.files_seen import NOTHING, Seen, look
from raxol_otel.journal.lock import probe
from raxol_otel.journal.reader import Walk, publish_damage

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection, Iterable, Mapping
    from pathlib import Path

    from raxol_otel.fleet.followed import Observer
    from raxol_otel.fleet.state import FleetState
    from raxol_otel.metrics import Metrics
    from raxol_otel.turns import TurnFold

__all__ = ["Fleet"]

# Who follows, in the state: the exporter's own metrics.
READER: Final = "metrics"
# So many sessions' tails and folds are kept in memory; others are taken up again from the state.
HOT_MAX: Final = 1_024
# A look reads about so much of one journal, and of all; what is left is read by the next looks.
SESSION_BYTES: Final = 4 * 2**20
LOOK_BYTES: Final = 32 * 2**20
# What cannot be read, and locks whose writers are dead, are looked at again after so many seconds.
RETRY_SECONDS: Final = 10.0
# Where changes are told by the system, everything is looked at all the same after so many seconds.
EVERYTHING_SECONDS: Final = 60.0
# What is known is written to the state this often, in seconds.
KEEP_SECONDS: Final = 5.0
# So many sessions of a first look are written at once.
_PART: Final = 256

_log = logging.getLogger(__name__)


class Fleet:
    """The sessions below `root`. Not for several threads, but `facts`, which any may call.

    `metrics` counts what is new; `beat` is called again and again during a long look.
    """

    def __init__(
        self,
        root: Path,
        state: FleetState,
        *,
        metrics: Metrics | None = None,
        acknowledged: Path | None = None,
        jobs: int = 1,
        beat: Callable[[], object] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self.root = root
        self._kept = Kept(state, READER)
        self._metrics = metrics
        self._acknowledged = Acknowledged(acknowledged)
        self._jobs = jobs
        self._beat = beat
        self._now = now
        self._discovery = Discovery(root)
        self._entries = _known(state.sessions())
        self._hot: OrderedDict[str, Followed] = OrderedDict()
        self._dirty: set[str] = set()
        self._waiting: set[str] = set()
        self._refused: dict[str, str] = {}
        self._root_trouble = ""
        # What could not be looked into at the first look: what is in it belongs to the baseline, too.
        self._closed: set[str] = set()
        self._scan_errors = 0
        self._everything_at = self._retry_at = self._keep_at = 0.0
        self._facts = FleetFacts(str(root), is_ready=False, waiting_for="the first look")

    def facts(self) -> FleetFacts:
        """What the last look found."""
        return self._facts

    @property
    def sessions(self) -> Mapping[str, Path]:
        """The sessions that the last look found, by their path below the root."""
        return self._discovery.sessions

    def sessions_in(self, changed: set[str] | None) -> set[str] | None:
        """The sessions that these changed paths lie in, and those whose changes are not told; None for any of them."""
        return None if changed is None else sessions_of(changed, self._discovery.sessions) | self._discovery.linked

    # -- looking

    def first_look(self, stop: threading.Event) -> bool:
        """Read every session that the state does not know, by other processes; says whether all were read.

        Only the very first look, before the state began, is a baseline. Raises `FileNotFoundError` while the folder
        is not there, `OSError` while it cannot be listed.
        """
        begun = time.monotonic()
        self._find()
        if self._kept.began_at is None:
            unknown = [where for where in self._discovery.sessions if where not in self._entries]
            sizes = {where: size_of(self._discovery.sessions[where]) for where in unknown}
            part: list[Answer] = []
            for answer in read_sessions(self.root, sizes, self._jobs, stop, self._now(), beat=self._beat):
                self._beat()
                part.append(answer)
                if len(part) >= _PART:
                    self._take(part)
                    part = []
            self._take(part)
            if stop.is_set():
                return False
            self._kept.begin(self._now())
            self._closed = set(self._discovery.refused)
        for where, directory in self._discovery.sessions.items():
            if where in self._entries:
                self._entries[where].writer = probe(directory).state
        self._look_at(list(self._discovery.sessions))
        self._tell(begun)
        return True

    def _take(self, answers: list[Answer]) -> None:
        """Take over what was read of sessions by others."""
        for answer in answers:
            entry = self._entries[answer.where] = Entry.restored(answer.where, answer.facts)
            self._scan_errors += entry.state == "unreadable"
        self._kept.keep(
            [(answer.where, answer.facts) for answer in answers],
            [(answer.where, answer.saved) for answer in answers],
        )

    def look(self, changed: set[str] | None) -> None:
        """Look again: at what `changed` (paths below the root), at everything when it is None.

        Raises `FileNotFoundError` when the folder is no longer there.
        """
        begun = time.monotonic()
        try:
            new = self._find()
        except FileNotFoundError:
            raise
        except OSError as error:
            new = set[str]()
            self._root_error(error.strerror or str(error))
        else:
            self._root_trouble = ""
        if changed is None or begun >= self._everything_at:
            self._everything_at = begun + EVERYTHING_SECONDS
            candidates = {*self._entries, *self._discovery.sessions}
        else:
            candidates = self._waiting | new | sessions_of(changed, self._discovery.sessions) | self._discovery.linked
            candidates |= {where for where, entry in self._entries.items() if entry.writer == "live"}
        again: set[str] = set()
        if begun >= self._retry_at:
            self._retry_at = begun + RETRY_SECONDS
            again = {where for where, entry in self._entries.items() if entry.error}
            candidates |= again | {where for where, entry in self._entries.items() if entry.writer != "none"}
        self._look_at(candidates, again)
        self._tell(begun)

    def keep(self) -> None:
        """Write what is known to the state. Raises `ExportError`."""
        self._keep(self._dirty & self._entries.keys())
        self._kept.flush()

    def _keep(self, wheres: set[str]) -> None:
        self._kept.keep(
            [(where, self._entries[where].saved()) for where in sorted(wheres)],
            [(where, self._hot[where].save()) for where in sorted(wheres) if where in self._hot],
        )
        self._dirty -= wheres

    def _find(self) -> set[str]:
        """Find new sessions and lose those that are gone; the new ones, and others to look at. Raises `OSError`."""
        new, gone = self._discovery.look()
        gone |= self._entries.keys() - self._discovery.sessions.keys()
        refused = self._discovery.refused
        gone -= self._hide(gone) if refused else set()
        if gone and len(gone) == len(self._entries) and self._is_unmounted():
            raise FileNotFoundError(errno.ENOENT, "a file system is not mounted there", str(self.root))
        for where in gone:
            self._entries.pop(where, None)
            self._hot.pop(where, None)
        if gone:
            self._dirty -= gone
            self._waiting -= gone
            self._kept.forget(gone)
        opened = self._closed - refused.keys()
        if opened:
            self._closed -= opened
            self._kept.keep((), [(where, KNOWN_PAST) for where in new if folder_of(where, opened)])
        for where, reason in refused.items():
            if self._refused.get(where) != reason and where not in self._entries:
                self._error(where, reason)
                # Of what is in it no change will be told.
                new |= {known for known in self._entries if folder_of(known, {where})}
        self._refused = {where: reason for where, reason in refused.items() if where not in self._entries}
        return new

    def _is_unmounted(self) -> bool:
        """Whether the folder is empty, and on another device than the sessions were that are known."""
        device = self.root.stat().st_dev
        devices = {entry.seen.files[0][0] for entry in self._entries.values() if entry.seen.files}
        return bool(devices) and device not in devices and not any(self.root.iterdir())

    def _hide(self, gone: set[str]) -> set[str]:
        """Those sessions that may be there still, in folders that cannot be looked into."""
        hidden = {where: folder for where in gone if (folder := folder_of(where, self._discovery.refused))}
        for where, folder in hidden.items():
            entry = self._entries.get(where) or Entry(where)
            self._refuse(entry, self._discovery.refused[folder])
            entry.writer, entry.seen = "unknown", Seen()
        return set(hidden)

    def _look_at(self, candidates: Iterable[str], again: Collection[str] = ()) -> None:
        """Read what is new in these sessions, as much as a look may; and `again` what could not be read."""
        left = LOOK_BYTES
        if self._kept.began_at is None:
            return
        # Those that had to wait come first.
        ordered = [where for where in candidates if where in self._waiting]
        ordered += [where for where in candidates if where not in self._waiting]
        self._waiting = set()
        for number, where in enumerate(ordered):
            if where not in self._discovery.sessions:
                continue
            if number % 256 == 0:
                self._beat()
            entry = self._entries.get(where) or Entry(where)
            if left <= 0:
                self._waiting.add(where)
                continue
            try:
                left -= self._read(entry, is_again=where in again)
            except ExportError as error:
                # The state, which is no fault of the session's.
                _log.warning("%s: %s waits", error, shown(where))
                self._waiting.add(where)
            except Exception as error:  # noqa: BLE001 - one session never hides the others
                self._hot.pop(where, None)
                # Where it stands is not known: nothing of it is counted twice.
                self._kept.keep((), [(where, KNOWN_PAST)])
                self._refuse(entry, f"cannot be read: {type(error).__name__}")
            if entry.has_more or not entry.seen.is_settled:
                self._waiting.add(where)

    def _read(self, entry: Entry, *, is_again: bool) -> int:
        """Read what is new in one session; how many bytes that was."""
        where = entry.where
        directory = self._discovery.sessions[where]
        is_known = where in self._entries
        writer = probe(directory).state if not is_known or entry.writer != "none" else None
        seen = entry.seen
        try:
            seen = look(directory, entry.seen)
            if seen.files[0] == NOTHING:
                if not is_there(directory):
                    self._discovery.forget(where)
                    self._waiting.add(where)
                    return 0
                # Its files cannot be looked at: that is told by whoever opens one, and by no status.
                seen = Seen()
            is_same = is_known and not entry.has_more and not is_again and seen.is_as(entry.seen)
            if is_same and entry.seen.is_settled:
                entry.writer = writer or entry.writer
                return 0
            entry.writer = writer or probe(directory).state
            followed = self._followed(where)
            before = followed.tail.consumed_bytes
            restart = followed.catch_up(SESSION_BYTES)
        except JournalUnreadable as unreadable:
            # It stays in memory, since what was read of it was counted: it goes on when it can be read again.
            self._refuse(entry, unreadable.reason, unreadable.path.name)
            entry.seen, entry.writer = seen, writer or probe(directory).state
            return 0
        damage = followed.tail.damage
        if entry.take(followed, self._now()) and damage is not None:
            publish_damage(Walk(directory), damage)
        self._entries[where] = entry
        self._dirty.add(where)
        read = followed.tail.consumed_bytes
        return read if restart is not None else max(read - before, 0)

    def _followed(self, where: str) -> Followed:
        followed = self._hot.pop(where, None)
        if followed is None:
            followed = Followed(self._discovery.sessions[where], saved=self._kept.saved(where), listen=self._listen)
        self._hot[where] = followed
        if len(self._hot) > HOT_MAX:
            cold = next(iter(self._hot))
            if cold in self._dirty and cold in self._entries:
                self._keep({cold})
            del self._hot[cold]
        return followed

    def _listen(self, fold: TurnFold) -> Observer:
        metrics = self._metrics
        if metrics is None:
            return lambda _records, _spans: None
        following = metrics.follow(fold)
        return lambda records, spans: following.observe(records, spans, exemplar=True)

    # -- trouble

    def _refuse(self, entry: Entry, reason: str, place: str = "") -> None:
        if entry.refuse(reason, self._now()):
            self._error(entry.where, f"{place}: {reason}" if place else reason)
        entry.place = place
        self._entries[entry.where] = entry
        self._dirty.add(entry.where)

    def _root_error(self, reason: str) -> None:
        """The folder cannot be listed: each such look counts, and one is told."""
        if reason == self._root_trouble:
            self._scan_errors += 1
        else:
            self._error(str(self.root), reason)
        self._root_trouble = reason

    def _error(self, where: str, reason: str) -> None:
        self._scan_errors += 1
        _log.warning("cannot read %s: %s", shown(where), reason)

    # -- telling

    def _tell(self, begun: float) -> None:
        moment = time.monotonic()
        self._facts = census(
            self.root,
            self._entries.values(),
            self._refused,
            self._acknowledged.names(),
            now=self._now(),
            duration_seconds=moment - begun,
            scan_errors=self._scan_errors,
        )
        if moment >= self._keep_at and self._dirty:
            self._keep_at = moment + KEEP_SECONDS
            self._keep(self._dirty & self._entries.keys())

    def wait_for(self, what: str) -> None:
        """There is nothing to look at yet: say why."""
        self._facts = FleetFacts(str(self.root), is_ready=False, waiting_for=what, scan_errors=self._scan_errors)


def _known(saved: Iterable[tuple[str, bytes]]) -> dict[str, Entry]:
    """The sessions of a state, but for what is none of ours."""
    entries: dict[str, Entry] = {}
    for where, facts in saved:
        with contextlib.suppress(ValueError):
            entries[where] = Entry.restored(where, facts)
    return entries
