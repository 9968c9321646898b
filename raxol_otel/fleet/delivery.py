"""The spans of followed sessions to one OTLP endpoint, in a thread of its own: at least once, in bounded memory.

    delivery = Delivery(config, state)
    delivery.start()
    delivery.offer(sessions, changed)        # after each look; never blocks
    delivery.stop(); delivery.join(4.0)

While the endpoint takes nothing, nothing is read: what waits are the journals, and the positions in them. A position is
kept only when all that was read up to it was delivered, so a crash sends some spans again and loses none.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from typing import TYPE_CHECKING, Final

from raxol_otel.errors import ExportError, JournalUnreadable
from raxol_otel.fleet.outbox import Outbox
from raxol_otel.fleet.reading import DeliveryOptions, Known, Reading
from raxol_otel.journal.files_seen import look

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from raxol_otel.exporters.otlp_config import OtlpConfig
    from raxol_otel.exporters.prometheus import EndpointFacts
    from raxol_otel.fleet.state import FleetState

__all__ = ["Delivery", "DeliveryOptions"]

# Spans of one request, at least where there are so many.
BATCH_SPANS: Final = 512
# Positions are kept this often, in seconds, and never in more than this part of the time.
COMMIT_SECONDS: Final = 2.0
_COMMIT_SHARE: Final = 0.03
# From the begin of one round to the next at least so many seconds, and so many that no more than this share of the
# processor is used: the busier the fleet, the more records are read at once.
REST_SECONDS: Final = 0.5
_BUSY_SHARE: Final = 0.2
PAUSE_FIRST: Final = 0.5
PAUSE_LONGEST: Final = 30.0
# Where changes are told by the system, everything is looked at all the same after so many seconds.
EVERYTHING_SECONDS: Final = 60.0
# Logs that were not taken are sent again after so many seconds.
TELL_SECONDS: Final = 10.0
# What has waited for less is not looked for, and what waits is measured anew after so many seconds, or more rarely.
_BACKLOG_SECONDS: Final = 3.0
_BACKLOG_SHARE: Final = 0.01
# Spans per byte of journal, before anything was read.
_DENSITY: Final = 1 / 1_000
# One request, and all of them, at the end.
_LAST_REQUEST_SECONDS: Final = 1.5
_LAST_SECONDS: Final = 2.5

_log = logging.getLogger(__name__)


class Delivery:
    """One endpoint. `state` keeps its positions under the endpoint's name; `notice` is told what is new, in one line.

    Raises `ExportError` where a library that the endpoint needs is missing.
    """

    def __init__(
        self,
        config: OtlpConfig,
        state: FleetState,
        options: DeliveryOptions | None = None,
        *,
        notice: Callable[[str], None] = _log.warning,
    ) -> None:
        self.options = options or DeliveryOptions()
        self._notice = notice
        self._outbox = Outbox(config, notice)
        self._reading = Reading(f"otlp {config.protocol} {config.endpoint}", state, self.options, notice)
        self._thread = threading.Thread(target=self._run, name="raxol-otel-delivery", daemon=True)
        self._lock = threading.Condition()
        # Under the lock: what was offered, since when and whether it is known to have changed; the sessions there are;
        # when to have ended.
        self._offered: dict[str, tuple[float, bool]] = {}
        self._sessions: Mapping[str, Path] = {}
        self._everything_at = 0.0
        self._end_at: float | None = None
        # The thread's own from here on.
        self._pause = PAUSE_FIRST
        self._retry_at = self._commit_at = self._tell_at = self._measure_at = self._rest_until = 0.0
        self._trouble = ""
        self._read_at: float | None = None
        self._unread: tuple[int, float | None] = (0, None)
        self._is_delivered = True

    # -- from other threads

    @property
    def facts(self) -> EndpointFacts:
        """What became of the spans."""
        return self._outbox.facts

    @property
    def endpoint(self) -> str:
        """The endpoint's URL."""
        return self._outbox.endpoint

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def offer(self, sessions: Mapping[str, Path], changed: set[str] | None) -> None:
        """Say which sessions there are, and which may have something new (None: any). Returns at once."""
        wanted = self.options.wanted
        there = {where: path for where, path in sessions.items() if wanted.has_session(path)}
        now = time.time()
        with self._lock:
            if time.monotonic() >= self._everything_at:
                # Whoever tells of changes may have missed one.
                self._everything_at, changed = time.monotonic() + EVERYTHING_SECONDS, None
            new = there.keys() - self._sessions.keys()
            self._sessions = there
            for where in there if changed is None else (changed & there.keys()) | new:
                since, _ = self._offered.get(where, (now, False))
                self._offered[where] = since, changed is not None
            self._lock.notify()

    def stop(self) -> None:
        """Ask the thread to end: what was read is delivered, if the endpoint takes it at once."""
        with self._lock:
            self._end_at = time.monotonic() + _LAST_SECONDS
            self._outbox.seconds_max = _LAST_REQUEST_SECONDS
            self._lock.notify()

    def join(self, seconds: float) -> bool:
        """Wait for the end; whether it came, and all that was read was delivered and kept."""
        if self._thread.ident is None:
            self._outbox.close()
            return True
        self._thread.join(seconds)
        return not self._thread.is_alive() and self._is_delivered

    @property
    def left(self) -> str:
        """What was read and not delivered, in words."""
        count = len(self._reading.buffer)
        return f"{count} span{'s' * (count != 1)} not taken by {self.endpoint}"

    # -- the thread

    def _run(self) -> None:
        while self._wait():
            try:
                self._round()
            except ExportError as error:
                self._later(str(error))
            except Exception as error:  # noqa: BLE001 - whatever happens, the rest is delivered
                self._later(f"delivery to {self.endpoint}: {type(error).__name__}: {error}")
        try:
            self._is_delivered = self._flush() and self._settle(everything=True)
            self._reading.flush()
        except ExportError as error:
            self._is_delivered = False
            self._notice(str(error))
        finally:
            self._outbox.close()

    @property
    def _is_stopping(self) -> bool:
        return self._end_at is not None

    def _wait(self) -> bool:
        """Wait until there is something to do; False when it is time to stop."""
        while not self._is_stopping:
            self._measure()
            with self._lock:
                now = time.monotonic()
                due = self._due(now)
                if due <= now:
                    return True
                if not self._is_stopping:
                    self._lock.wait(min(due - now, _BACKLOG_SECONDS))
        return False

    def _due(self, now: float) -> float:
        """When the next round is due, on the monotonic clock."""
        reading = self._reading
        times = [now + TELL_SECONDS]
        if self._offered or reading.buffer:
            times.append(now)
        if reading.is_dirty:
            times.append(self._commit_at)
        if reading.untold and self._outbox.takes_logs:
            times.append(self._tell_at)
        look_at = reading.next_at()
        if look_at is not None:
            times.append(look_at)
        return max(min(times), self._retry_at, self._rest_until)

    def _round(self) -> None:
        """Read what was offered, deliver it, look after turns whose writers are gone."""
        if not self._flush():
            return
        began, used = time.monotonic(), time.thread_time()
        reading, there = self._reading, self._sessions
        if len(reading.known) > len(there):
            reading.forget_all_but(there)
        for where in reading.take_again():
            if where in there:
                self._offer_again(where, time.time())
        is_behind = False
        for _ in range(len(self._offered)):
            offer = self._next_offer()
            if offer is None:
                break
            where, since, is_told = offer
            try:
                has_more = where in there and reading.read(where, there[where], self._make_room, is_told=is_told)
            except ExportError:
                self._offer_again(where, since)
                raise
            if has_more:
                is_behind = True
                self._offer_again(where, since)
            if not self._make_room():
                return
        for where in reading.quiet():
            if where in there:
                reading.look_after(where, there[where], self._make_room)
            if not self._make_room():
                return
        if self._flush():
            self._tell()
            self._settle(everything=time.monotonic() >= self._commit_at)
            rest = max(REST_SECONDS, (time.thread_time() - used) / _BUSY_SHARE)
            self._rest_until = 0.0 if is_behind else began + rest

    def _make_room(self) -> bool:
        """Deliver when there is a batch, keep positions when it is time; whether reading may go on."""
        reading = self._reading
        if reading.buffer and self._read_at is None:
            self._read_at = time.time()
        is_time = time.monotonic() >= self._commit_at and reading.is_dirty
        if is_time or reading.has_too_many:
            return self._flush() and self._settle(everything=is_time) and not self._is_stopping
        return (len(reading.buffer) < BATCH_SPANS or self._flush()) and not self._is_stopping

    def _next_offer(self) -> tuple[str, float, bool] | None:
        with self._lock:
            if not self._offered:
                return None
            where = next(iter(self._offered))
            return where, *self._offered.pop(where)

    def _offer_again(self, where: str, since: float) -> None:
        with self._lock:
            self._offered.setdefault(where, (since, True))

    # -- delivering

    def _flush(self) -> bool:
        """Deliver what was read; whether all of it was."""
        buffer = self._reading.buffer
        while buffer:
            self._measure()
            if self._end_at is not None and time.monotonic() > self._end_at:
                return False
            if not self._outbox.send([span for _, span in buffer[:BATCH_SPANS]]):
                jittered = self._pause * (0.5 + random.random() / 2)  # noqa: S311 - no secret
                self._later("", max(jittered, self._outbox.wait_seconds or 0.0))
                return False
            del buffer[:BATCH_SPANS]
            self._pause, self._retry_at = PAUSE_FIRST, 0.0
        self._read_at = None
        return True

    def _later(self, trouble: str, pause: float | None = None) -> None:
        """Something failed: go on after a while."""
        if trouble and trouble != self._trouble:
            self._notice(trouble)
            self._trouble = trouble
        self._retry_at = time.monotonic() + (self._pause if pause is None else pause)
        self._pause = min(self._pause * 2, PAUSE_LONGEST)

    def _tell(self) -> None:
        """Tell the endpoint of damage; what it does not take now is told later."""
        reading = self._reading
        if not reading.untold or not self._outbox.takes_logs or time.monotonic() < self._tell_at:
            return
        for where in list(reading.untold):
            path = self._sessions.get(where)
            if path is not None:
                leaving = reading.leaving(where, path)
                untold = leaving.untold()
                if untold and not self._outbox.tell(list(untold.values())):
                    self._tell_at = time.monotonic() + TELL_SECONDS
                    return
                for key in untold:
                    leaving.told(key)
            reading.untold.discard(where)

    def _settle(self, *, everything: bool) -> bool:
        """All that was read is delivered: keep positions."""
        begun = time.monotonic()
        self._reading.settle(everything=everything)
        if everything:
            self._trouble = ""
            self._commit_at = begun + max(COMMIT_SECONDS, (time.monotonic() - begun) / _COMMIT_SHARE)
        return True

    # -- what waits

    def _measure(self) -> None:
        """Tell how much waits: what was read, and an estimate of what was not."""
        facts, reading = self._outbox.facts, self._reading
        with self._lock:
            oldest, _ = next(iter(self._offered.values()), (None, False))
            is_late = oldest is not None and time.time() - oldest >= _BACKLOG_SECONDS
            is_due = is_late and time.monotonic() >= self._measure_at
            offered = [(where, since) for where, (since, _) in self._offered.items()] if is_due else []
        if not is_late:
            self._unread = (0, None)
        elif is_due:
            begun = time.monotonic()
            self._unread = self._look_at(offered)
            took = time.monotonic() - begun
            self._measure_at = begun + max(_BACKLOG_SECONDS, took / _BACKLOG_SHARE)
        density = reading.spans / reading.bytes if reading.bytes else _DENSITY
        size, since = self._unread
        facts.backlog = len(reading.buffer) + (max(round(size * density), 1) if size else 0)
        facts.waiting_since = min((at for at in (self._read_at, since) if at is not None), default=None)

    def _look_at(self, offered: list[tuple[str, float]]) -> tuple[int, float | None]:
        """How many bytes of these sessions are unread, and since when."""
        there, known = self._sessions, self._reading.known
        unread, oldest = 0, None
        for where, since in offered:
            read = known.get(where) or Known()
            if where not in there or read.error:
                continue
            try:
                seen = look(there[where], read.seen)
            except JournalUnreadable:
                continue
            size = seen.size_bytes - read.consumed
            if size > 0 and (read.has_more or not seen.is_as(read.seen)):
                unread += size
                oldest = since if oldest is None else min(oldest, since)
        return unread, oldest
