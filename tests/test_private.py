"""Private journals: only their owner can look in, whatever the umask, and nowhere that others could have touched."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.errors import JournalError, UntrustedDirectory
from raxol_otel.journal import open_journal, scan
from raxol_otel.journal.files import Files
from tests.conftest import NOBODY, unprivileged
from tests.lock_processes import EVENT

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

SESSION: Final = "s"
LARGE: Final = {**EVENT, "payload": {"text": "x" * 3000}}
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a directory to another account")


@pytest.fixture(autouse=True)
def _usual_umask() -> Iterator[None]:
    """Tests begin with the umask that most systems have."""
    with umask(0o022):
        yield


@contextmanager
def umask(mask: int) -> Generator[None]:
    """Inside, files are made with this umask."""
    before = os.umask(mask)
    try:
        yield
    finally:
        os.umask(before)


def write(base: Path, *, private: bool = True) -> None:
    """Open the journal, append across a rotation, and close it."""
    with open_journal(SESSION, base_dir=base, private=private, segment_cap=4096) as journal:
        journal.append_many([EVENT, LARGE])
        journal.append_many([LARGE, EVENT], sync=True)


def modes(top: Path) -> dict[str, int]:
    """The permissions of a directory and everything in it."""
    paths = [top, *top.rglob("*")]
    return {path.relative_to(top).as_posix(): stat.S_IMODE(path.lstat().st_mode) for path in paths}


def portrait(top: Path) -> dict[str, tuple[object, ...]]:
    """Everything about a directory and what is in it: kind, owner, mode, time, bytes."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [top, *top.rglob("*")]:
        status = path.lstat()
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else None
        found[str(path)] = (status.st_ino, status.st_mode, status.st_uid, status.st_gid, status.st_mtime_ns, content)
    return found


def assert_private(base: Path) -> None:
    """Directories 0700, files 0600, without exception."""
    for name, mode in modes(base).items():
        assert mode == (0o700 if (base / name).is_dir() else 0o600), f"{name} is {mode:o}"


# --- What is made -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [0, 0o002, 0o022, 0o077, 0o177, 0o277, 0o777], ids=oct)
def test_everything_is_private_under_any_umask(tmp_path: Path, mask: int) -> None:
    """A missing base, the session, its folders and files, while it is open and after it."""
    base = tmp_path / "sessions"
    with umask(mask), open_journal(SESSION, base_dir=base, private=True, segment_cap=4096) as journal:
        journal.append_many([LARGE, LARGE])
        journal.append(EVENT, sync=True)
        assert {"s/writer.lock", "s/HEAD", "s/meta.json", "s/journal/000002.jsonl"} <= modes(base).keys()
        assert_private(base)
    assert_private(base)
    assert scan(base / SESSION).ok
    with umask(mask):
        write(base)
    assert_private(base)


def test_no_file_is_ever_open_to_others(tmp_path: Path) -> None:
    """Not even for a moment: each is made with its mode, temporary ones too."""
    seen: dict[str, int] = {}

    class Watched(Files):
        def open(self, path: Path, flags: int, mode: int = 0o666) -> int:
            descriptor = super().open(path, flags, mode)
            seen[path.name] = stat.S_IMODE(os.fstat(descriptor).st_mode)
            return descriptor

        def make_directory(self, path: Path, mode: int) -> bool:
            is_new = super().make_directory(path, mode)
            seen[path.name] = stat.S_IMODE(path.stat().st_mode)
            return is_new

    with umask(0), open_journal(SESSION, base_dir=tmp_path / "b", private=True, files=Watched()) as journal:
        journal.append(EVENT)
    assert {"b", SESSION, "journal", "snapshots", "000001.jsonl"} <= seen.keys()
    assert {name for name in seen if name.startswith("HEAD.tmp.")}
    assert [f"{name}: {mode:o}" for name, mode in seen.items() if mode & 0o077] == []


def test_without_private_the_umask_decides(tmp_path: Path) -> None:
    """The mode is asked for, not the default."""
    base = tmp_path / "sessions"
    with umask(0o022):
        write(base, private=False)
    assert {mode for name, mode in modes(base).items() if (base / name).is_file()} == {0o644}
    assert {mode for name, mode in modes(base).items() if (base / name).is_dir()} == {0o755}


def test_the_base_of_the_environment_is_made_private(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`$RAXOL_SESSIONS_DIR`, and without it `~/.raxol/sessions`, also several levels deep."""
    monkeypatch.setenv("RAXOL_SESSIONS_DIR", str(tmp_path / "one" / "two"))
    open_journal(SESSION, private=True).close()
    assert_private(tmp_path / "one" / "two")
    monkeypatch.delenv("RAXOL_SESSIONS_DIR")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    open_journal(SESSION, private=True).close()
    assert_private(tmp_path / "home" / ".raxol" / "sessions")


# --- What is there already --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [0o700, 0o755, 0o744, 0o711, 0o1755], ids=oct)
def test_an_own_directory_is_tightened(tmp_path: Path, mode: int) -> None:
    """The base and the session's: others could look in, but not write. What stands beside is none of ours."""
    base = tmp_path / "sessions"
    (base / SESSION).mkdir(parents=True)
    (base / "other").mkdir(mode=0o755)
    for place in (base, base / SESSION):
        place.chmod(mode)
    write(base)
    found = modes(base)
    assert found.pop("other") == 0o755
    assert (found["."] & 0o777, found[SESSION] & 0o777) == (0o700, 0o700)
    assert_private(base / SESSION)


def test_a_journal_made_without_private_is_tightened(tmp_path: Path) -> None:
    """Every file of it, and every folder; its bytes stay and it is written on."""
    base = tmp_path / "sessions"
    write(base, private=False)
    (base / SESSION / "snapshots" / "0.json").write_bytes(b"{}")
    before = (base / SESSION / "journal" / "000001.jsonl").read_bytes()
    write(base)
    assert_private(base)
    assert (base / SESSION / "journal" / "000001.jsonl").read_bytes() == before
    assert len(scan(base / SESSION).records) == 8


def test_files_that_all_may_write_are_tightened(tmp_path: Path) -> None:
    """Files are 0600 after it, those that could be executed as well; a folder within is 0700."""
    base = tmp_path / "sessions"
    write(base, private=False)
    for path in (base / SESSION).rglob("*"):
        path.chmod(0o777)
    write(base)
    assert {name: mode & 0o077 for name, mode in modes(base).items() if mode & 0o077} == {}


def test_what_a_link_in_the_session_points_to_is_left_alone(tmp_path: Path) -> None:
    """Nothing outside is tightened, neither a file nor a folder."""
    base = tmp_path / "sessions"
    write(base, private=False)
    outside = tmp_path / "outside"
    outside.mkdir(mode=0o755)
    (outside / "file").write_bytes(b"")
    (base / SESSION / "link").symlink_to(outside / "file")
    (base / SESSION / "folder").symlink_to(outside)
    before = portrait(outside)
    write(base)
    assert portrait(outside) == before


def test_a_damaged_private_journal_keeps_its_bytes(tmp_path: Path) -> None:
    """It opens for reading; nothing in it is written."""
    base = tmp_path / "sessions"
    write(base)
    with (base / SESSION / "journal" / "000001.jsonl").open("ab") as file:
        file.write(b"garbage\n")
    before = {path: path.read_bytes() for path in base.rglob("*") if path.is_file()}
    with open_journal(SESSION, base_dir=base, private=True) as journal:
        assert journal.status() == "damaged"
    assert {path: path.read_bytes() for path in base.rglob("*") if path.is_file()} == before


def test_what_is_above_the_base_does_not_matter(tmp_path: Path) -> None:
    """Its parent may be a link or anybody's to write, as /tmp is."""
    (tmp_path / "real").mkdir()
    (tmp_path / "real").chmod(0o1777)
    (tmp_path / "link").symlink_to("real")
    write(tmp_path / "link" / "sessions")
    assert_private(tmp_path / "real" / "sessions")
    assert stat.S_IMODE((tmp_path / "real").stat().st_mode) == 0o1777


def test_a_base_whose_parent_may_only_be_entered() -> None:
    """As /home is in places: nobody can list it, and that is no reason not to open, twice, privately or not."""
    with tempfile.TemporaryDirectory() as name:
        base = Path(name, "sessions")
        base.mkdir()
        if os.geteuid() == 0:
            os.chown(base, NOBODY, NOBODY)
        Path(name).chmod(0o711 if os.geteuid() == 0 else 0o311)
        try:
            with unprivileged(base):
                write(base, private=False)
                write(base)
                with open_journal("other", base_dir=base, private=True) as journal:
                    assert journal.append(EVENT, sync=True) == 1
        finally:
            Path(name).chmod(0o700)


# --- What is refused --------------------------------------------------------------------------------------------------


def assert_refused(base: Path, top: Path) -> None:
    """The journal is not opened, and nothing under `top` was touched: no name, mode, owner, time or byte."""
    before = portrait(top)
    with pytest.raises(UntrustedDirectory) as caught:
        open_journal(SESSION, base_dir=base, private=True)
    assert str(base) in str(caught.value)
    assert portrait(top) == before


@pytest.fixture(params=["base", "session"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The base or the session directory of a journal that others may read: `tmp_path/sessions/s`."""
    base = tmp_path / "sessions"
    write(base, private=False)
    return base if request.param == "base" else base / SESSION


@pytest.mark.parametrize("mode", [0o770, 0o720, 0o775, 0o702, 0o757, 0o777, 0o1777, 0o2775], ids=oct)
def test_what_others_may_write_to_is_refused(tmp_path: Path, place: Path, mode: int) -> None:
    """They could have put anything there; a sticky bit does not help."""
    place.chmod(mode)
    assert_refused(tmp_path / "sessions", tmp_path)


@needs_root
@pytest.mark.parametrize("mode", [0o700, 0o755], ids=oct)
def test_another_accounts_directory_is_refused(tmp_path: Path, place: Path, mode: int) -> None:
    """It can change what is in it at any time; for root, too."""
    place.chmod(mode)
    os.chown(place, NOBODY, NOBODY)
    assert_refused(tmp_path / "sessions", tmp_path)


def test_a_symbolic_link_is_refused(tmp_path: Path, place: Path) -> None:
    """Even to an own, private directory."""
    real = tmp_path / "real"
    place.rename(real)
    real.chmod(0o700)
    place.symlink_to(real)
    assert_refused(tmp_path / "sessions", tmp_path)


def test_a_symbolic_link_to_nothing_is_refused(tmp_path: Path, place: Path) -> None:
    """What it points to is not made."""
    place.rename(tmp_path / "away")
    place.symlink_to(tmp_path / "nothing")
    assert_refused(tmp_path / "sessions", tmp_path)


def test_a_file_in_its_place_is_refused(tmp_path: Path, place: Path) -> None:
    """It is not touched, and the error says what it is."""
    place.rename(tmp_path / "away")
    place.write_bytes(b"a file")
    before = portrait(tmp_path)
    with pytest.raises(JournalError, match="director"):
        open_journal(SESSION, base_dir=tmp_path / "sessions", private=True)
    assert portrait(tmp_path) == before


def test_a_refusal_makes_nothing(tmp_path: Path) -> None:
    """No session, no lock, where the base is not trusted; a base that is trusted is not tightened either."""
    base = tmp_path / "sessions"
    base.mkdir()
    base.chmod(0o777)
    assert_refused(base, tmp_path)
    assert list(base.iterdir()) == []


def test_without_private_none_of_it_is_asked(tmp_path: Path, place: Path) -> None:
    """A shared directory, or a link to one, is the caller's business."""
    place.chmod(0o777)
    write(tmp_path / "sessions", private=False)
    assert stat.S_IMODE(place.stat().st_mode) == 0o777
