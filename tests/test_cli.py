"""The command as its users meet it: real processes, exit codes, one line for each mistake, data apart from words."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import __version__
from raxol_otel.canonical import encode
from raxol_otel.cli.common import when
from raxol_otel.journal import scan, tip
from tests.conftest import NOBODY, ROOT, make_journal, unprivileged
from tests.exporter_contract import (
    MAIN,
    SECONDS_MAX,
    environment,
    held_lock,
    in_own_mounts,
    raxol,
    turn_records,
    turns_records,
    write_session,
)
from tests.test_sources import member, packed

if TYPE_CHECKING:
    from collections.abc import Generator

TOUR: Final = ROOT / "golden" / "tour"
GARBAGE: Final = b'{"id":oops}\n'
# Everything is loaded first: the Python that runs this may be out of another user's reach.
DROP: Final = f"""
import importlib, os, pkgutil, raxol_otel
for module in pkgutil.walk_packages(raxol_otel.__path__, "raxol_otel."):
    importlib.import_module(module.name)
if os.geteuid() == 0:
    os.seteuid({NOBODY})
"""
DOCUMENT: Final = (ROOT / "docs" / "reference" / "cli.md").read_text(encoding="utf-8")


def listing(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Every path below the folder, when it was last changed, and the bytes of a file."""
    paths = [folder, *folder.rglob("*")]
    return {str(path): (path.lstat().st_mtime_ns, path.read_bytes() if path.is_file() else b"") for path in paths}


def errors(text: str) -> list[str]:
    """The lines of standard error that tell a mistake, after checking that nothing else went wrong."""
    assert "Traceback" not in text
    return [line for line in text.splitlines() if line.startswith("Error: ")]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions of every health, and what is no session at all. Not to be changed."""
    folder = tmp_path_factory.mktemp("place")
    write_session(folder / "one", turns_records(2))
    for name in ("a", "b"):
        write_session(folder / "many" / name, turn_records())
    write_session(folder / "torn", turn_records(), tail=b'{"id":5')
    write_session(folder / "cut", turn_records(), head=9)
    write_session(folder / "damaged", turn_records(), tail=GARBAGE)
    files, _ = make_journal([1, 2, 3], chained=True, per_segment=2)
    for name, data in files.items():
        (folder / "chained" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "chained" / name).write_bytes(data)
    shutil.copytree(folder / "one", folder / "closed")
    (folder / "closed" / "journal" / "000001.jsonl").unlink()
    (folder / "closed" / "journal" / "000001.jsonl").mkdir()
    (folder / "empty" / "nested").mkdir(parents=True)
    (folder / "folder.out").mkdir()
    (folder / "file").write_bytes(b"text\n")
    (folder / "loop").symlink_to("loop")
    packed(folder / "up.tar", ("../evil", b"x"))
    packed(folder / "out.tar", member("s/link", b"2", "/etc/passwd"))
    return folder


MISTAKES: Final = {
    2: "replay missing, verify missing, show missing, replay one missing --to file:new, replay missing --to file:new, "
    "replay file, verify one/HEAD, show file, replay empty/nested, replay empty, verify empty, show empty, "
    "replay up.tar, verify out.tar, show up.tar, replay loop, verify loop, show many, show closed, "
    "replay one --to kafka, replay one --to file:, replay one --to, replay one --since yesterday, "
    "replay one --since 2026-13-01, replay one --until 999999d, replay one --settle -1, replay one --settle nan, "
    "replay one --unknown, show one many, show one --from x, replay, verify, show, frobnicate one, ",
    3: "replay one --to file:folder.out, replay one --to file:missing/new, replay one --to file:file/new, "
    "replay one --to file:loop/new",
    1: "show damaged, show damaged --from 1, show damaged --tip",
}


@pytest.mark.parametrize(
    ("command", "code"), [(command, code) for code in MISTAKES for command in MISTAKES[code].split(", ")]
)
def test_a_mistake_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch, command: str, code: int) -> None:
    """One `Error:` line and at most one `Try:`, the right code, no data, no traceback, nothing half-written."""
    monkeypatch.chdir(place)
    before = listing(place)
    done = raxol(*command.split())
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    assert [line.partition(" ")[0] for line in done.stderr.splitlines()] in (["Error:"], ["Error:", "Try:"]), (
        done.stderr
    )
    assert listing(place) == before


def test_no_permission() -> None:
    """A closed session is a mistake when it is named, and one unreadable session among others when it is not."""
    with TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        write_session(root / "a", turn_records())
        closed = write_session(root / "b", turn_records())
        closed.chmod(0)
        with unprivileged(root):
            pass  # or a skip
        named, among = raxol("replay", closed, before=DROP), raxol("replay", root, before=DROP)
        assert (named.returncode, errors(named.stderr)) == (2, [f"Error: cannot read {closed}: Permission denied"])
        assert (among.returncode, len(errors(among.stderr))) == (1, 1)
        assert "turn t1  completed" in among.stdout
        assert str(closed) in errors(among.stderr)[0]


@pytest.mark.parametrize(("command", "code"), [("replay", {3}), ("verify", {2, 3}), ("show", {2, 3})])
def test_standard_output_on_a_full_disk(place: Path, command: str, code: set[int]) -> None:
    """What could not be written is told in one line, also at the very end, and the code says so."""
    done = subprocess.run(
        ["/bin/sh", "-c", 'exec "$@" >/dev/full', "sh", sys.executable, "-c", MAIN, command, str(place / "one")],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert len(errors(done.stderr)) == 1, done.stderr
    assert "No space left on device" in errors(done.stderr)[0]
    assert done.returncode in code
    assert "Exception ignored" not in done.stderr


@contextmanager
def started(*arguments: str | Path) -> Generator[subprocess.Popen[bytes]]:
    """The command as it runs, its outputs not read yet."""
    command = [sys.executable, "-c", MAIN, *map(str, arguments)]
    with subprocess.Popen(
        command, env=environment(measured=False), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session that takes a while: 80,000 records."""
    folder = write_session(tmp_path_factory.mktemp("big") / "s", [])
    lines = [encode({**one, "id": 12345}).replace(b"12345", b"%d") + b"\n" for one in turn_records()]
    data = b"".join(lines) * 20_000 % tuple(range(1, 80_001))
    (folder / "journal" / "000001.jsonl").write_bytes(data)
    return folder


@pytest.mark.parametrize("command", ["show", "replay"])
def test_a_reader_that_has_seen_enough(big: Path, command: str) -> None:
    """`| head -1`: the first line comes, and then the command ends without a word, as one killed by SIGPIPE."""
    with started(command, big) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(SECONDS_MAX) == 128 + signal.SIGPIPE


@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, b"interrupted"), (signal.SIGTERM, b"terminated")])
def test_ctrl_c_while_a_file_is_written(big: Path, tmp_path: Path, number: int, word: bytes) -> None:
    """Exit code 128 + the signal, one line, no temporary file, the old file as it was."""
    out = tmp_path / "out.jsonl"
    out.write_bytes(b"old\n")
    with started("replay", big, "--to", f"file:{out}") as process:
        deadline = time.monotonic() + SECONDS_MAX
        while not any(path != out and path.stat().st_size for path in tmp_path.iterdir()):
            assert time.monotonic() < deadline, "nothing is written"
            time.sleep(0.001)
        process.send_signal(number)
        assert process.communicate(timeout=SECONDS_MAX) == (b"", b"Error: " + word + b"\n")
        assert process.returncode == 128 + number
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("out.jsonl", b"old\n")]


def test_help_and_version() -> None:
    """Both are data, and every command and exit code is named."""
    assert raxol("--version").stdout == f"raxol-otel {__version__}\n"
    done = raxol("--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert all(word in done.stdout for word in ("replay", "verify", "show", "0 fine", "3 could not export"))


@pytest.mark.parametrize("command", ["--help", "--version", "replay --help", "verify --help", "show --help"])
def test_help_is_quick(command: str) -> None:
    """Asking for help loads neither the telemetry libraries nor the rooms that read journals."""
    script = (
        f"import sys\nbefore = set(sys.modules)\nfrom raxol_otel.cli import main\n"
        f"try: main({command.split()!r})\nexcept SystemExit: pass\n"
        "print(*set(sys.modules) - before, file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=environment(measured=False),
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=True,
    )
    loaded = done.stderr.split()
    heavy = {"opentelemetry", "rich", "orjson", "prometheus_client", "google", "grpc", "asyncio", "multiprocessing"}
    assert heavy & {name.split(".")[0] for name in loaded} == set()
    rooms = {name.split(".")[1] for name in loaded if name.startswith("raxol_otel.")}
    assert rooms <= {"cli", "errors", "catalogue", "catalogue_entries", "catalogue_fleet"}


def test_data_and_words_are_kept_apart(place: Path) -> None:
    """The tree on standard output; on standard error what was done, or what is wrong."""
    done = raxol("replay", place / "one")
    assert done.stdout.startswith("session one\n\nturn t1  completed  2.0 s\n")
    assert (done.returncode, done.stderr) == (0, "replayed 4 spans of 2 turns in 1 session\n")
    bad = raxol("replay", place / "damaged")
    assert bad.returncode == 1
    assert "turn t1  completed  2.0 s  journal damaged\n" in bad.stdout
    (line,) = errors(bad.stderr)
    assert "journal/000001.jsonl line 5" in line
    assert "unparsable" in line


@pytest.mark.parametrize("state", ["one", "torn", "cut", "damaged", "closed", "many"])
def test_exit_codes_of_every_health(place: Path, state: str) -> None:
    """0 where the record is whole or only torn, 1 where it is not; the same for replay and verify."""
    code = {"one": 0, "torn": 0, "many": 0}.get(state, 1)
    assert [raxol(command, place / state).returncode for command in ("replay", "verify")] == [code, code]


def test_what_verify_says(place: Path) -> None:
    """A line a session: its state, the cause and place of damage, what there is, who writes it."""
    done = raxol("verify", *(place / name for name in ("one", "chained", "torn", "cut", "damaged", "closed")))
    lines = [re.sub(" +", " ", line.replace(f"{place}/", "")) for line in done.stdout.splitlines()]
    segment = place / "closed" / "journal" / "000001.jsonl"
    assert lines[:4] == [
        "healthy one: 8 records, 1 segment, unchained, no writer",
        "healthy chained: 3 records, 2 segments, chained, no writer",
        "torn torn: 4 records, 1 segment, unchained, no writer",
        "truncated cut: HEAD names offset 9, the last record is 4, 4 records, 1 segment, unchained, no writer",
    ]
    place_of_damage = (place / "one" / "journal" / "000001.jsonl").read_bytes().split(b"\n")
    byte = sum(len(line) + 1 for line in place_of_damage[:4])
    assert lines[4].startswith(f"damaged damaged: unparsable at journal/000001.jsonl line 5, byte {byte} (")
    assert lines[4].endswith("), 4 records, 1 segment, unchained, no writer")
    assert lines[5] == f"unreadable closed: cannot read {segment.relative_to(place)}: Is a directory"
    assert done.returncode == 1
    assert done.stderr == "1 damaged, 2 healthy, 1 torn, 1 truncated, 1 unreadable\n"


KEYS: Final = {
    "replay": "sessions records turns held spans messages intact",
    "session": "session state records turns spans held last_offset head_offset damage error counts",
    "damage": "cause segment line byte last_offset detail",
    "counts": "unfolded late duplicate user unknown",
    "verify": "session state chained records last_offset head_offset segments bytes writer pid damage error",
}


def assert_keys(value: dict[str, Any], what: str) -> None:
    """The promised keys are there, and whatever was added since is documented."""
    assert set(KEYS[what].split()) <= set(value)
    assert [key for key in value if f"`{key}`" not in DOCUMENT] == []


def test_the_report_of_replay_as_json(place: Path) -> None:
    """One object on standard output, no tree; the keys are a contract that only grows."""
    done = raxol("replay", "--json", place / "one", place / "damaged")
    report = json.loads(done.stdout)
    assert (done.returncode, done.stdout.count("\n"), len(errors(done.stderr))) == (1, 1, 1)
    assert_keys(report, "replay")
    damaged, one = report["sessions"]
    for what, value in (("session", damaged), ("damage", damaged["damage"]), ("counts", one["counts"])):
        assert_keys(value, what)
    assert set(one["counts"]["unknown"]) == {"kind", "family", "type", "item_type"}
    assert (report["records"], report["turns"], report["held"], report["intact"]) == (12, 3, 0, False)
    assert report["spans"] == {"accepted": 6, "rejected": 0}
    assert (one["session"], one["state"], one["damage"], one["spans"]) == (str(place / "one"), "healthy", None, 4)
    assert {key: damaged["damage"][key] for key in ("cause", "segment", "line", "last_offset")} == {
        "cause": "unparsable",
        "segment": "journal/000001.jsonl",
        "line": 5,
        "last_offset": 4,
    }


def test_the_health_of_sessions_as_json(place: Path) -> None:
    """One object a session and a line, for every health."""
    done = raxol("verify", "--json", *(place / name for name in ("one", "chained", "torn", "cut", "damaged", "closed")))
    found = [json.loads(line) for line in done.stdout.splitlines()]
    for value in found:
        assert_keys(value, "verify")
    states = ["healthy", "healthy", "torn", "truncated", "damaged", "unreadable"]
    assert [value["state"] for value in found] == states
    assert [value["chained"] for value in found] == [False, True, False, False, False, False]
    assert [value["head_offset"] for value in found] == [8, 3, 4, 9, 4, 8]
    assert found[0]["bytes"] == (place / "one" / "journal" / "000001.jsonl").stat().st_size
    assert (found[0]["writer"], found[0]["pid"], found[0]["segments"]) == ("none", None, 1)
    assert (found[4]["damage"]["cause"], found[5]["damage"]) == ("unparsable", None)
    assert "Is a directory" in found[5]["error"]


def test_a_dry_run_sends_nothing(place: Path, tmp_path: Path) -> None:
    """Everything is read and told, nothing is printed or written."""
    done = raxol("replay", "--dry-run", place / "one", "--to", f"file:{tmp_path / 'new'}")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("would send 4 spans of 2 turns in 1 session")
    assert list(tmp_path.iterdir()) == []
    assert raxol("replay", "--dry-run", place / "damaged").returncode == 1


def test_a_turn_that_is_held_back_is_told(tmp_path: Path) -> None:
    """On standard error, with the way to have it; verify names the writer."""
    session = write_session(tmp_path / "s", turn_records(is_open=True))
    (session / "writer.lock").write_bytes(b"4194305")
    with held_lock(session / "writer.lock"):
        replayed, verified = raxol("replay", session), raxol("verify", session)
    assert "held back: 1 open turn " in replayed.stderr
    assert (replayed.returncode, replayed.stdout) == (0, "")
    assert verified.stdout.endswith("unchained, live writer (pid 4194305)\n")


def test_what_show_prints() -> None:
    """The records as they are; from an offset on; or only the tip of a branch."""
    records = scan(TOUR).records
    whole, late = raxol("show", TOUR), raxol("show", TOUR, "--from", "149")
    assert (whole.returncode, whole.stderr) == (0, "")
    assert whole.stdout.encode() == b"".join(path.read_bytes() for path in sorted((TOUR / "journal").iterdir()))
    assert [json.loads(line) for line in late.stdout.splitlines()] == records[148:]
    for branch in ("main", "nowhere", *{one["branch_id"] for one in records if "branch_id" in one}):
        done = raxol("show", TOUR, "--tip", "--branch", branch)
        expected = [encode(one).decode() + "\n" for one in records if one["id"] == tip(records, branch)]
        assert (done.returncode, done.stdout) == (0, "".join(expected))


@pytest.mark.parametrize("command", ["replay", "verify", "show"])
def test_read_only_media(command: str) -> None:
    """Folders and files without write permission, and a read-only mount: everything can be read, nothing changes."""
    with TemporaryDirectory() as name:
        root = Path(name)
        root.chmod(0o755)
        session = write_session(root / "s", turn_records(), tail=b"torn")
        paths = [session, *session.rglob("*")]
        before = listing(session)
        for path in paths:
            path.chmod(0o555 if path.is_dir() else 0o444)
        try:
            with unprivileged(root):
                pass  # or a skip
            assert raxol(command, session, before=DROP).returncode == 0
        finally:
            for path in paths:
                path.chmod(0o755)
        assert listing(session) == before
        script = 'mount --bind "$1" "$1" && mount -o remount,ro,bind "$1" || exit 99; "$2" -c "$3" "$4" "$1"; echo $?'
        assert in_own_mounts(script, session, sys.executable, MAIN, command).stdout.endswith("\n0\n")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-09-14T20:00:00Z", 1789416000),
        ("2026-09-14", 1789344000),
        ("2026-09-14T20:00:00.000001+02:00", 1789408800),
    ],
)
def test_times_on_the_command_line(text: str, seconds: int) -> None:
    """ISO 8601, UTC where no zone is said, to the microsecond; or so long ago."""
    assert when(text) == seconds * 10**9 + (1000 if "." in text else 0)
    assert abs(time.time() - 90 * 60 - when("90m") / 10**9) < 5
