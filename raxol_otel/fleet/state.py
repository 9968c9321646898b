"""What a fleet exporter knows, kept in a SQLite file over restarts: of each session where following stands.

A file that is corrupt is set aside under another name, with a notice, and begun anew; one of a newer version is
refused. One exporter holds the file at a time. Without a path it is a private temporary file, gone at the end.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.errors import ExportError, UsageError
from raxol_otel.exporters.sources import refuse_inside_session
from raxol_otel.exporters.state import APPLICATION_ID as REPLAY_ID
from raxol_otel.exporters.state import StateLock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

__all__ = ["FleetState"]

_APPLICATION_ID: Final = 0x52584F46  # "RXOF"
_VERSION: Final = 1
_SCHEMA: Final = """
CREATE TABLE about (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE session (place TEXT PRIMARY KEY, facts BLOB NOT NULL);
CREATE TABLE follow (reader TEXT NOT NULL, place TEXT NOT NULL, saved BLOB NOT NULL, PRIMARY KEY (reader, place));
"""
_BUSY_SECONDS: Final = 5.0


class FleetState:
    """The state file. `reader` names who follows: the exporter itself, or an endpoint, each with positions of its own.

    Raises `UsageError` when the file cannot be opened, is another program's, or of a newer version; `ExportError` when
    it cannot be written later. For several threads.
    """

    def __init__(self, path: str | os.PathLike[str] | None, *, notice: Callable[[str], None] | None = None) -> None:
        self.path = None if path is None else Path(path)
        self._lock: StateLock | None = None
        # The connection is one thread's at a time.
        self._turns = threading.RLock()
        if self.path is not None:
            refuse_inside_session(self.path, "the state file")
            if self.path.is_dir():
                raise UsageError(f"the state file {self.path} is a directory")
            self._lock = StateLock(self.path)
        try:
            self._database = self._open(notice or (lambda _message: None))
        except BaseException:
            self._release()
            raise

    def close(self) -> None:
        """Close the file, and let others have it."""
        with self._turns, contextlib.suppress(sqlite3.Error):
            self._database.close()
        self._release()

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.release()
            self._lock = None

    # -- what is kept

    @property
    def began_at(self) -> float | None:
        """When the first look at all sessions was done, in seconds since the epoch; None before it."""
        row = self._one("SELECT value FROM about WHERE key = 'began_at'", ())
        return None if row is None else float(str(row[0]))

    def begin(self, now: float) -> None:
        """The first look is done."""
        self._write([("INSERT OR REPLACE INTO about VALUES ('began_at', ?)", [(str(now),)])])

    def sessions(self) -> Iterator[tuple[str, bytes]]:
        """All sessions, by their path below the sessions directory, with what is known of them."""
        try:
            with self._turns:
                rows: list[tuple[bytes, bytes]] = self._database.execute("SELECT place, facts FROM session").fetchall()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        for place, facts in rows:
            yield os.fsdecode(place), facts

    def saved(self, reader: str, where: str) -> bytes | None:
        """Where a reader stands in a session."""
        row = self._one("SELECT saved FROM follow WHERE reader = ? AND place = ?", (reader, os.fsencode(where)))
        return None if row is None else bytes(row[0])

    def keep(
        self,
        facts: Iterable[tuple[str, bytes]] = (),
        follow: Iterable[tuple[str, str, bytes | None]] = (),
    ) -> None:
        """Keep what is known of sessions, and where readers stand (None: nowhere), in one transaction."""
        kept = list(follow)
        self._write(
            [
                (
                    "INSERT OR REPLACE INTO session VALUES (?, ?)",
                    [(os.fsencode(where), known) for where, known in facts],
                ),
                (
                    "INSERT OR REPLACE INTO follow VALUES (?, ?, ?)",
                    [(reader, os.fsencode(where), saved) for reader, where, saved in kept if saved is not None],
                ),
                (
                    "DELETE FROM follow WHERE reader = ? AND place = ?",
                    [(reader, os.fsencode(where)) for reader, where, saved in kept if saved is None],
                ),
            ]
        )

    def forget(self, gone: Iterable[str]) -> None:
        """Sessions that are no longer there."""
        places = [(os.fsencode(where),) for where in gone]
        self._write([("DELETE FROM session WHERE place = ?", places), ("DELETE FROM follow WHERE place = ?", places)])

    # -- SQLite

    def _one(self, query: str, values: tuple[str | bytes, ...]) -> tuple[Any, ...] | None:
        try:
            with self._turns:
                row: tuple[Any, ...] | None = self._database.execute(query, values).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return row

    def _write(self, statements: list[tuple[str, list[tuple[Any, ...]]]]) -> None:
        try:
            with self._turns:
                try:
                    for statement, rows in statements:
                        if rows:
                            self._database.executemany(statement, rows)
                    self._database.commit()
                except sqlite3.Error:
                    # Or half of it would be written with the next one.
                    with contextlib.suppress(sqlite3.Error):
                        self._database.rollback()
                    raise
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def _failed(self, error: sqlite3.Error) -> ExportError:
        return ExportError(f"cannot use the state file {self.path or '(temporary)'}: {error}")

    def _open(self, notice: Callable[[str], None]) -> sqlite3.Connection:
        try:
            return self._connect()
        except sqlite3.DatabaseError as error:
            if isinstance(error, sqlite3.OperationalError) or self.path is None:
                raise UsageError(f"cannot open the state file {self.path or '(temporary)'}: {error}") from error
            aside = self.path.with_name(f"{self.path.name}.corrupt-{int(time.time())}")
            try:
                self.path.rename(aside)
                for ending in ("-wal", "-shm", "-journal"):
                    self.path.with_name(self.path.name + ending).unlink(missing_ok=True)
                database = self._connect()
            except (OSError, sqlite3.Error) as again:
                raise UsageError(f"cannot set the corrupt state file {self.path} aside: {again}") from again
            notice(
                f"the state file {self.path} is corrupt ({error}); it is kept as {aside.name}, and begun anew: "
                "what is there now is the baseline"
            )
            return database

    def _connect(self) -> sqlite3.Connection:
        # An empty name is a temporary file of SQLite's own.
        path = "" if self.path is None else self.path.absolute()
        database = sqlite3.connect(path, timeout=_BUSY_SECONDS, check_same_thread=False)
        try:
            self._prepare(database)
        except BaseException:
            database.close()
            raise
        return database

    def _prepare(self, database: sqlite3.Connection) -> None:
        """Make the tables where there are none. Raises `UsageError`, and `sqlite3.DatabaseError` for a corrupt file."""
        (application,) = database.execute("PRAGMA application_id").fetchone()
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if tables and application == REPLAY_ID:
            raise UsageError(f"{self.path} is the state of a replay without --follow", "name another state file")
        if tables and application != _APPLICATION_ID:
            raise UsageError(f"{self.path} is a database of another program", "name another state file")
        if version > _VERSION:
            raise UsageError(
                f"the state file {self.path} is of version {version}, this program knows {_VERSION}",
                "use the newer raxol-otel, or name another state file",
            )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        if not tables:
            database.executescript(
                f"BEGIN IMMEDIATE; PRAGMA application_id = {_APPLICATION_ID}; PRAGMA user_version = {_VERSION};"
                f" {_SCHEMA} COMMIT;"
            )
        (found,) = database.execute("PRAGMA quick_check(1)").fetchone()
        if found != "ok":
            raise sqlite3.DatabaseError(found)
