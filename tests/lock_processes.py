"""Programs that contend for a journal in processes of their own: `python -m tests.lock_processes COMMAND ...`.

Each answers with lines of JSON. `--as=UID` before the command makes it another user's. Tests start them with `started`.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel import signals
from raxol_otel.errors import JournalLocked, RaxolError
from raxol_otel.journal import open_journal, salvage
from raxol_otel.journal.files import Files
from raxol_otel.journal.lock import acquire
from tests.exporter_contract import environment

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Sequence

    Reply = dict[str, Any]

EVENT: Final = {"type": "turn_started", "family": "loop", "payload": {"prompt": "hi"}}
SESSION: Final = "s"
SECONDS_MAX: Final = 30.0
SLEEPER: Final = "import time; time.sleep(300)"
SPIN_SECONDS: Final = 0.0004


# --- The test's side --------------------------------------------------------------------------------------------------


class Program:
    """A program that was started, and the lines it is told and answers."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self.pid = process.pid
        self._stdin, self._stdout = process.stdin, process.stdout

    def tell(self, line: object) -> None:
        """Send a line."""
        self._stdin.write(f"{line}\n".encode())
        self._stdin.flush()

    def hear(self) -> Reply:
        """The next answer."""
        assert select.select([self._stdout], [], [], SECONDS_MAX)[0], "the program says nothing"
        line = self._stdout.readline()
        assert line, "the program has ended"
        reply: Reply = json.loads(line)
        return reply

    def ask(self, line: object) -> Reply:
        """Send a line and wait for the answer."""
        self.tell(line)
        return self.hear()

    def kill(self, *, reap: bool = True) -> None:
        """End it without a chance to clean up. Unless it is reaped, its pid stays that of a zombie."""
        self.process.kill()
        if reap:
            self.process.wait()
        else:
            os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOWAIT)


@contextmanager
def started(*arguments: str | os.PathLike[str], before: Sequence[str] = ()) -> Generator[Program]:
    """A program that runs with these arguments, killed in the end; `before` is a command that starts it."""
    command: list[str] = [*before, sys.executable, "-m", "tests.lock_processes", *(os.fspath(one) for one in arguments)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, env=environment(measured=False)
    ) as process:
        try:
            yield Program(process)
        finally:
            process.kill()


def make_base(folder: Path) -> Path:
    """A base directory with a journal of two records, closed."""
    with open_journal(SESSION, base_dir=folder) as journal:
        journal.append_many([EVENT, EVENT])
    return folder


@contextmanager
def public_base() -> Generator[Path]:
    """The same where any user can write, for a while."""
    with tempfile.TemporaryDirectory() as name:
        before = os.umask(0)
        try:
            Path(name).chmod(0o777)
            yield make_base(Path(name))
        finally:
            os.umask(before)


def lock_of(base: Path) -> Path:
    """The lock file of the one session."""
    return base / SESSION / "writer.lock"


# --- The programs' side -----------------------------------------------------------------------------------------------


def say(**reply: Any) -> None:
    """Answer with one line."""
    sys.stdout.write(json.dumps(reply) + "\n")
    sys.stdout.flush()


def refusal(error: Exception) -> Reply:
    """An answer that tells of an error."""
    pid = error.pid if isinstance(error, JournalLocked) else None
    return {"error": type(error).__name__, "pid": pid, "message": str(error)}


def write(base: str, session: str) -> None:
    """Open the journal, answer how that went, and do as told, `append` or `close`, until the input ends."""
    failures: list[str] = []
    signals.attach("write", lambda signal: failures.append(str(signal.metadata.get("stage"))))
    try:
        journal = open_journal(session, base_dir=base)
    except RaxolError as error:
        say(**refusal(error))
        return
    say(open=os.getpid(), has_lock=is_locked_by_us(Path(base, session, "writer.lock")), failures=failures)
    for line in sys.stdin:
        if line.strip() == "append":
            say(offset=journal.append(EVENT))
        else:
            journal.close()
            say(closed=True)


def is_locked_by_us(path: Path) -> bool:
    """Whether the lock file says our pid, and nothing else."""
    return path.is_file() and path.read_bytes() == str(os.getpid()).encode()


def race(kind: str, base: str, session: str) -> None:
    """Told a time, try to become the writer just then; told `end`, stop being it. `kind`: lock or journal."""
    while line := sys.stdin.readline():
        wait_until(float(line))
        release: Callable[[], object] | None = None
        try:
            if kind == "lock":
                release = acquire(Path(base, session)).release
                say(won=os.getpid())
            else:
                journal = open_journal(session, base_dir=base)
                release = journal.close
                say(won=os.getpid(), offset=journal.append(EVENT, sync=False))
        except (RaxolError, OSError) as error:
            say(**refusal(error))
        sys.stdin.readline()
        if release is not None:
            release()
        say(ended=True)


def wait_until(moment: float) -> None:
    """Return at that time of the monotonic clock, as exactly as can be: sleep, then spin."""
    while (left := moment - time.monotonic()) > 0:
        if left > SPIN_SECONDS:
            time.sleep(left - SPIN_SECONDS)


def churn(base: str, session: str, seconds: str) -> None:
    """Open, append and close as often as it goes; answer with the offsets that were given, and what else happened."""
    offsets: list[int] = []
    odd: list[str] = []
    signals.attach("churn", lambda signal: odd.append(str(signal)))
    end = time.monotonic() + float(seconds)
    while time.monotonic() < end:
        try:
            with open_journal(session, base_dir=base, chain=True) as journal:
                offsets += journal.append_many([EVENT, EVENT], sync=False)
        except JournalLocked:
            continue
        except (RaxolError, OSError) as error:
            odd.append(repr(error))
    say(offsets=offsets, odd=odd)


def leave(how: str, base: str, session: str) -> None:
    """Open the journal, start a child that lives on, by `exec` or `fork`, and answer with its pid; then wait."""
    journal = open_journal(session, base_dir=base)
    journal.append(EVENT)
    if how == "exec":
        child = subprocess.Popen([sys.executable, "-c", SLEEPER], close_fds=False, stdout=subprocess.DEVNULL).pid
    else:
        child = os.fork()
        if not child:
            os.close(1)
            time.sleep(300)
            os._exit(0)
    say(child=child)
    sys.stdin.readline()
    journal.close()
    say(closed=True)


def fork_and_end(base: str, session: str) -> None:
    """A forked child closes the handle and ends in the ordinary way; the parent goes on writing."""
    journal = open_journal(session, base_dir=base)
    journal.append(EVENT)
    child = os.fork()
    if not child:
        journal.close()
        sys.exit(0)
    os.waitpid(child, 0)
    say(has_lock=is_locked_by_us(Path(base, session, "writer.lock")), offset=journal.append(EVENT))
    sys.stdin.readline()
    journal.close()
    say(closed=True)


def salvage_killed(old: str, new: str, count: str) -> None:
    """Salvage, and be killed at the sync, of a file or a directory, that is the `count`th; answer if there is none."""
    left = int(count)

    def counted(sync: Callable[[Any, Any], None]) -> Callable[[Any, Any], None]:
        def run(files: Files, what: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                os.kill(os.getpid(), signal.SIGKILL)
            sync(files, what)

        return run

    Files.sync = counted(Files.sync)  # type: ignore[method-assign, assignment]
    Files.sync_directory = counted(Files.sync_directory)  # type: ignore[method-assign, assignment]
    salvage_here(old, new)


def salvage_here(old: str, new: str) -> None:
    """Salvage; answer how many records there were, or why not."""
    try:
        say(count=salvage(old, new))
    except RaxolError as error:
        say(**refusal(error), reason=getattr(error, "reason", None))


COMMANDS: Final[dict[str, Callable[..., None]]] = {
    "write": write,
    "race": race,
    "churn": churn,
    "leave": leave,
    "fork_and_end": fork_and_end,
    "salvage": salvage_here,
    "salvage_killed": salvage_killed,
}


def main(arguments: list[str]) -> None:
    """Run one command."""
    if arguments[0].startswith("--as="):
        uid = int(arguments.pop(0).removeprefix("--as="))
        os.setgroups([])
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)
    COMMANDS[arguments[0]](*arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
