"""A second process that writes a session, or would like to."""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final, Self, cast

import raxol_otel

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType

__all__ = ["ForeignWriter", "Wanted"]

_PROGRAM: Final = "raxol_otel.testing.foreign_process"
# How long an answer, or the end, is waited for.
_SECONDS_MAX: Final = 30.0


@dataclass(frozen=True, slots=True)
class Wanted:
    """What became of wanting to be the writer. `error` is the name of what `open_journal` raised, `holder` its pid."""

    is_writer: bool
    error: str | None = None
    message: str = ""
    holder: int | None = None


class ForeignWriter:
    """A process of its own that holds the lock of a session; with `holds=False` it holds none until `wants()`.

        with ForeignWriter(base_dir, "session") as foreign:
            with pytest.raises(JournalLocked):
                open_journal("session", base_dir=base_dir)
            foreign.kill()
            open_journal("session", base_dir=base_dir)

    Raises `RuntimeError` when it is to hold the lock and does not get it, or says nothing any more.
    """

    def __init__(self, base_dir: str | os.PathLike[str], session_id: str = "session", *, holds: bool = True) -> None:
        place = str(Path(raxol_otel.__file__).parent.parent)
        paths = os.pathsep.join(filter(None, (place, os.environ.get("PYTHONPATH"))))
        command = [sys.executable, "-m", _PROGRAM, os.fspath(Path(base_dir).absolute()), session_id]
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter, this package, no shell
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            env={**os.environ, "PYTHONPATH": paths},
        )
        self._stdin, self._stdout = cast("IO[bytes]", self._process.stdin), cast("IO[bytes]", self._process.stdout)
        try:
            self.pid: int = self._hear()["pid"]
            if holds:
                self._must_become_writer()
        except BaseException:
            self.kill()
            raise

    def _must_become_writer(self) -> None:
        wanted = self.wants()
        if not wanted.is_writer:
            message = f"the foreign writer was refused: {wanted.message}"
            raise RuntimeError(message)

    def wants(self) -> Wanted:
        """Have it become the writer, which it stays until `release`; or be refused."""
        return Wanted(**self._ask(do="want"))

    def append(self, event: Mapping[str, Any]) -> int:
        """Have it append an event, durably; the offset. Raises `RuntimeError` when it cannot."""
        answer = self._ask(do="append", event=dict(event))
        if "offset" not in answer:
            message = f"the foreign writer did not append: {answer.get('message', 'it holds no lock')}"
            raise RuntimeError(message)
        offset: int = answer["offset"]
        return offset

    def release(self) -> None:
        """Have it close the journal, and give the lock back."""
        self._ask(do="release")

    @property
    def is_running(self) -> bool:
        """Whether the process lives."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it with SIGKILL: the lock file stays, and names a process that is no more."""
        self._process.kill()
        self._process.wait()
        self._shut()

    def close(self) -> None:
        """End it in good order: the journal closed, the lock given back. Twice is once."""
        if self._stdin.closed:
            return
        self._stdin.close()
        try:
            self._process.wait(_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        self._shut()

    def _shut(self) -> None:
        for stream in (self._stdin, self._stdout):
            stream.close()

    def _ask(self, **order: Any) -> dict[str, Any]:
        if self._stdin.closed:
            message = "the foreign writer has ended"
            raise RuntimeError(message)
        try:
            self._stdin.write(json.dumps(order).encode() + b"\n")
        except BrokenPipeError as error:
            message = "the foreign writer has ended"
            raise RuntimeError(message) from error
        return self._hear()

    def _hear(self) -> dict[str, Any]:
        line = self._stdout.readline() if select.select([self._stdout], [], [], _SECONDS_MAX)[0] else b""
        if not line:
            message = "the foreign writer says nothing"
            raise RuntimeError(message)
        answer: dict[str, Any] = json.loads(line)
        return answer

    def __enter__(self) -> Self:
        """Itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Close."""
        self.close()
