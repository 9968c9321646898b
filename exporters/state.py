"""What was delivered where, in a SQLite file, so that a second run sends nothing twice and a cut one resumes.

A span is known by its id and its outcome: an incomplete turn that completes later is sent again. It is remembered after
the endpoint took it and never before, so a run that is killed in between sends it once more, with the same id.
A file that is corrupt or from a newer version is set aside under another name with a notice, never trusted and never
deleted. One replay holds the file at a time.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Final, Self

from raxol_otel import catalogue as names
from raxol_otel.errors import ExportError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from types import TracebackType

    from raxol_otel.turns import Span

__all__ = ["APPLICATION_ID", "DeliveryState", "StateLock"]

APPLICATION_ID: Final = 0x52584F54  # "RXOT"
_VERSION: Final = 1
_BUSY_SECONDS: Final = 60.0
# SQLite takes at least 999 parameters a statement.
_KEYS_A_QUERY: Final = 400
_SCHEMA: Final = """
CREATE TABLE destination (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE delivered (
    destination INTEGER NOT NULL, span BLOB NOT NULL, outcome TEXT NOT NULL,
    PRIMARY KEY (destination, span, outcome)
) WITHOUT ROWID;
CREATE TABLE position (
    destination INTEGER NOT NULL, session TEXT NOT NULL, last_offset TEXT NOT NULL,
    PRIMARY KEY (destination, session)
) WITHOUT ROWID;
"""


class StateLock:
    """Holds a state file for one replay. Raises `UsageError` when another replay holds it."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        # By its real name: the same file may be named in several ways.
        self.path = Path(f"{os.path.realpath(path)}.lock")
        try:
            self._descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            hint = None if self.path.parent.is_dir() else f"mkdir -p {self.path.parent}"
            raise UsageError(f"cannot lock the state file {path}: {error.strerror}", hint) from error
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._descriptor)
            raise UsageError(
                f"the state file {path} is in use by another raxol-otel", "wait for it, or give each its own --state"
            ) from error

    def release(self) -> None:
        """Let others have it; the lock file stays, an empty file."""
        os.close(self._descriptor)


class DeliveryState:
    """The state of deliveries to one destination.

    `notice` is told when an unusable file was set aside. Raises `UsageError` when the file cannot be made or opened,
    `ExportError` when it cannot be written later (a full disk).
    """

    def __init__(
        self, path: str | os.PathLike[str], destination: str, *, notice: Callable[[str], None] | None = None
    ) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise UsageError(f"the state file {path} is a directory")
        self._database = self._open(notice or (lambda _message: None))
        try:
            with self._database:
                self._database.execute("INSERT OR IGNORE INTO destination (name) VALUES (?)", (destination,))
            row = self._database.execute("SELECT id FROM destination WHERE name = ?", (destination,)).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        self._destination: int = row[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file."""
        with contextlib.suppress(sqlite3.Error):
            self._database.close()

    def undelivered(self, spans: Sequence[Span]) -> list[Span]:
        """Those of the spans that were not delivered with their outcome."""
        known: set[tuple[bytes, str]] = set()
        try:
            for start in range(0, len(spans), _KEYS_A_QUERY):
                part = [_span_key(span) for span in spans[start : start + _KEYS_A_QUERY]]
                marks = ",".join("?" * len(part))
                query = f"SELECT span, outcome FROM delivered WHERE destination = ? AND span IN ({marks})"  # noqa: S608 - only question marks
                known.update(self._database.execute(query, (self._destination, *part)))
        except sqlite3.Error as error:
            raise self._failed(error) from error
        if not known:
            return list(spans)
        return [span for span in spans if (_span_key(span), _outcome(span)) not in known]

    def remember(self, spans: Iterable[Span]) -> None:
        """The spans were delivered: keep that, durably against the end of this process."""
        self.remember_keys([self.key(span) for span in spans])

    @staticmethod
    def key(span: Span) -> tuple[bytes, str]:
        """What a span is known by: its id and its outcome."""
        return _span_key(span), _outcome(span)

    def remember_keys(self, keys: Iterable[tuple[bytes, str]]) -> None:
        """As `remember`, by the keys that the spans had."""
        rows = [(self._destination, *key) for key in keys]
        try:
            with self._database:
                self._database.executemany("INSERT OR IGNORE INTO delivered VALUES (?, ?, ?)", rows)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    def position(self, session: str) -> int | None:
        """The last offset that the session had when it was last replayed to the end."""
        try:
            row = self._database.execute(
                "SELECT last_offset FROM position WHERE destination = ? AND session = ?",
                (self._destination, _plain(session)),
            ).fetchone()
        except sqlite3.Error as error:
            raise self._failed(error) from error
        return None if row is None else int(row[0])

    def advance(self, session: str, last_offset: int) -> None:
        """The session was replayed to its end, which was at this offset."""
        row = (self._destination, _plain(session), str(last_offset))
        try:
            with self._database:
                self._database.execute("INSERT OR REPLACE INTO position VALUES (?, ?, ?)", row)
        except sqlite3.Error as error:
            raise self._failed(error) from error

    # -- opening

    def _open(self, notice: Callable[[str], None]) -> sqlite3.Connection:
        reason = self._connect_error()
        if reason is not None:
            aside = self._set_aside("newer" if "newer" in reason else "corrupt")
            notice(f"the state file {self.path} is {reason}; it was set aside as {aside} and a new one begun")
            reason = self._connect_error()
            if reason is not None:
                raise UsageError(f"cannot use the state file {self.path}: {reason}")
        return self._connection

    def _connect_error(self) -> str | None:
        """Open the file, making it where it is not there; why it is unusable, or None."""
        try:
            # As a path from the root no name means anything else to SQLite.
            database = sqlite3.connect(self.path.absolute(), timeout=_BUSY_SECONDS)
        except sqlite3.Error as error:
            raise self._unopened(error) from error
        try:
            version: int = database.execute("PRAGMA user_version").fetchone()[0]
            application: int = database.execute("PRAGMA application_id").fetchone()[0]
            tables: int = database.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if tables == 0 and application in {0, APPLICATION_ID}:
                database.execute("PRAGMA journal_mode = WAL")
                database.executescript(
                    f"BEGIN IMMEDIATE; {_SCHEMA} PRAGMA application_id = {APPLICATION_ID};"
                    f" PRAGMA user_version = {_VERSION}; COMMIT;"
                )
            elif application != APPLICATION_ID or not {"delivered", "destination", "position"} <= {
                row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
            }:
                return self._refused(database, "not a state file of ours")
            elif version > _VERSION:
                return self._refused(database, f"of a newer version ({version})")
            elif database.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                return self._refused(database, "corrupt")
            database.execute("PRAGMA synchronous = NORMAL")
        except sqlite3.OperationalError as error:
            database.close()
            raise self._unopened(error) from error
        except sqlite3.DatabaseError:
            return self._refused(database, "corrupt")
        self._connection = database
        return None

    @staticmethod
    def _refused(database: sqlite3.Connection, reason: str) -> str:
        database.close()
        return reason

    def _set_aside(self, what: str) -> Path:
        number = 1
        while (aside := self.path.with_name(f"{self.path.name}.{what}-{number}")).exists():
            number += 1
        for suffix in ("", "-wal", "-shm"):
            with contextlib.suppress(FileNotFoundError):
                Path(f"{self.path}{suffix}").rename(f"{aside}{suffix}")
        return aside

    def _unopened(self, error: sqlite3.Error) -> UsageError:
        return UsageError(f"cannot use the state file {self.path}: {error}")

    def _failed(self, error: sqlite3.Error) -> ExportError:
        return ExportError(
            f"cannot keep the state file {self.path}: {error}", "what was sent since is sent again by the next run"
        )


def _plain(name: str) -> str:
    # A path may hold bytes that are no text.
    return name.encode("utf-8", "backslashreplace").decode()


def _span_key(span: Span) -> bytes:
    return bytes.fromhex(span.span_id)


def _outcome(span: Span) -> str:
    return str(span.attributes.get(names.TURN_OUTCOME, span.attributes.get(names.TOOL_OUTCOME, "")))
