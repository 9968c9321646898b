"""Where sessions are read from: folders, links, odd names, and archives that want to get out."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import re
import stat
import tarfile
import tempfile
import tracemalloc
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.errors import UsageError
from raxol_otel.exporters.base import ExportResult, NullExporter
from raxol_otel.exporters.replay import replay
from raxol_otel.exporters.sources import DEPTH_MAX, open_sources
from raxol_otel.journal import scan
from tests.conftest import NOBODY, photograph, unprivileged
from tests.exporter_contract import BoomError, turn_records, write_session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from raxol_otel.turns import Span

MIB: Final = 2**20
ODD_NAMES: Final = (" a b ", "a\nb", "-n", "*", "~", "{}", "ünï", os.fsdecode(b"\xff\xfe"), "\x1b[2J", "a" * 255)


@pytest.fixture(autouse=True)
def unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which archives are unpacked; it must be empty again at the end of every test."""
    folder = tmp_path / "unpacking"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder for the test's own."""
    folder = tmp_path / "place"
    folder.mkdir()
    return folder


def session(directory: Path) -> Path:
    """A small healthy session."""
    return write_session(directory, turn_records())


def found(*paths: Path) -> list[Path]:
    """The sessions found below the paths."""
    with open_sources(paths) as sources:
        return sources.sessions


def names(*paths: Path) -> list[str]:
    """How the user is told the sessions found below the paths."""
    with open_sources(paths) as sources:
        return [sources.name(directory) for directory in sources.sessions]


def refused(*paths: Path) -> str:
    """The message with which the paths are refused."""
    with pytest.raises(UsageError) as caught, open_sources(paths):
        pass
    return str(caught.value)


def packed(path: Path, *members: tarfile.TarInfo | tuple[str, bytes], mode: str = "w") -> Path:
    """An archive with these members; a name and bytes make a file."""
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType, reportUnknownVariableType]
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return path


def member(name: str, kind: bytes, target: str = "", **more: Any) -> tarfile.TarInfo:
    """A member that is no file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    for key, value in more.items():
        setattr(info, key, value)
    return info


def files_of(directory: Path, prefix: str = "s") -> list[tuple[str, bytes]]:
    """The files of a session as members below a folder of the archive."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(f"{prefix}/{path.relative_to(directory)}", path.read_bytes()) for path in paths]


# -- folders


def test_a_session_directory_is_itself(place: Path) -> None:
    """Named directly it is taken as it was named."""
    assert found(session(place / "s")) == [place / "s"]


def test_a_folder_is_searched_to_a_bounded_depth(place: Path) -> None:
    """Sessions lie up to five levels below the folder; deeper ones are not looked for."""
    near = session(place / "1" / "2" / "3" / "4" / "five")
    session(place / "1" / "2" / "3" / "4" / "5" / "six")
    assert DEPTH_MAX == 5
    assert found(place) == [near]


def test_sessions_come_in_the_order_of_their_paths(place: Path) -> None:
    """The order does not depend on the file system."""
    for name in ("b/z", "a/y", "c", "b/a"):
        session(place / name)
    assert found(place) == [place / "a" / "y", place / "b" / "a", place / "b" / "z", place / "c"]


@pytest.mark.parametrize("has", [("journal",), ("journal", "meta.json"), ("meta.json", "HEAD")])
def test_what_makes_a_session_directory(place: Path, has: tuple[str, ...]) -> None:
    """The folder `journal`, or both small files where it is missing, as after a crash while opening."""
    (place / "s").mkdir()
    for name in has:
        if name == "journal":
            (place / "s" / name).mkdir()
        else:
            (place / "s" / name).write_bytes(b"{}")
    (place / "not").mkdir()
    (place / "not" / "HEAD").write_bytes(b"{}")
    assert found(place) == [place / "s"]


def test_a_session_behind_links_is_taken_once(place: Path) -> None:
    """However many links lead to it, from wherever."""
    session(place / "folder" / "real")
    (place / "folder" / "zz-link").symlink_to(place / "folder" / "real")
    (place / "folder" / "again").symlink_to(place / "folder")
    (place / "outside").symlink_to(place / "folder" / "real")
    assert len(found(place / "folder", place / "outside", place)) == 1
    assert found(place / "outside") == [place / "outside"]


def test_the_same_path_twice_is_once(place: Path) -> None:
    """Spelled alike or not, and also when a folder and a session in it are both named."""
    one = session(place / "one")
    two = session(place / "two")
    assert found(one, one, place / "two" / ".." / "one") == [one]
    assert found(place, place) == [one, two]
    assert found(two, place, one) == [two, one]


def test_a_session_inside_a_session_is_not_found_twice(place: Path) -> None:
    """What lies in a session's folder belongs to it; named by itself it is one more."""
    outer = session(place / "outer")
    inner = session(outer / "inner")
    session(outer / "snapshots" / "copy")
    assert found(place) == [outer]
    assert found(place, inner, inner) == [outer, inner]


def test_a_link_that_leads_to_itself_or_nowhere(place: Path) -> None:
    """It is no folder and hides nothing beside it."""
    (place / "a-loop").symlink_to("a-loop")
    (place / "b-nowhere").symlink_to("nowhere")
    (place / "c-up").symlink_to(place)
    one = session(place / "one")
    with open_sources([place]) as sources:
        assert sources.sessions == [one]
        assert sources.unreadable == []


def test_a_link_loop_named_by_itself(place: Path) -> None:
    """The path that is only a loop, or leads nowhere, is refused by name."""
    (place / "loop").symlink_to("loop")
    (place / "nowhere").symlink_to("nothing")
    assert str(place / "loop") in refused(place / "loop")
    assert str(place / "nowhere") in refused(place / "nowhere")


def test_one_unreadable_folder_among_many() -> None:
    """It is told, with the reason; all others are found. As the path itself it is refused."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # noqa: S108 - one that another user can reach
        root = Path(name)
        root.chmod(0o755)
        first, last = session(root / "a"), session(root / "c")
        for closed, mode in (("b0", 0o000), ("b4", 0o444)):
            session(root / closed).chmod(mode)
        (root / "to-closed").symlink_to(root / "b0" / "journal")
        with unprivileged(root):
            with open_sources([root]) as sources:
                assert sources.sessions == [first, last]
                assert sources.unreadable == [(root / "b0", "Permission denied"), (root / "b4", "Permission denied")]
            assert refused(root / "b0") == f"cannot read {root / 'b0'}: Permission denied"
            assert str(root / "b0" / "x") in refused(root / "b0" / "x")


def test_hidden_names_are_names(place: Path) -> None:
    """A session id may begin with a dot."""
    assert found(session(place / ".hidden" / ".s").parent.parent) == [place / ".hidden" / ".s"]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_may_have_any_name(place: Path, name: str) -> None:
    """Blanks, newlines, bytes that are no text: found, and in an archive too."""
    directory = session(place / name)
    assert found(place) == [directory]
    archive = packed(place / "x.tar", *files_of(directory, name))
    assert names(archive) == [f"{archive}:{name}"]


@pytest.mark.parametrize("inside", [(), ("sub",), ("sub/sub", "other"), (".hidden",)])
def test_a_folder_without_a_session_is_refused(place: Path, inside: tuple[str, ...]) -> None:
    """Also when it has folders: nothing to do is a mistake worth telling."""
    for name in inside:
        (place / "empty" / name).mkdir(parents=True)
    (place / "empty").mkdir(exist_ok=True)
    assert refused(place / "empty") == f"no session journal in {place / 'empty'}"


def test_a_path_that_does_not_exist(place: Path) -> None:
    """It is refused before anything is read, wherever it stands among the paths."""
    assert refused(session(place / "s"), place / "missing") == f"{place / 'missing'} does not exist"


@pytest.mark.parametrize("spelling", ["{s}", "{s}/.", "{s}/journal/..", "{place}/link", ".", "..", "{place}/bare.tar"])
def test_ids_do_not_depend_on_how_the_session_was_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Records without a session id take the directory's own name: a second replay gives the same ids."""

    class Recorder(NullExporter):
        def export(self, spans: Sequence[Span]) -> ExportResult:
            sessions.extend((span.session_id, span.span_id) for span in spans)
            return super().export(spans)

    sessions: list[tuple[str, str]] = []
    directory = session(place / "s")
    (place / "link").symlink_to(directory)
    packed(place / "bare.tar", *files_of(directory, "."))
    monkeypatch.chdir(directory / "journal" if spelling == ".." else directory)
    for path in (directory, spelling.format(s=directory, place=place), spelling.format(s=directory, place=place)):
        replay([path], Recorder())
    if not spelling.endswith(".tar"):
        assert sessions[:2] == sessions[2:4]
        assert {name for name, _ in sessions} == {"s"}
    assert sessions[2:4] == sessions[4:]


# -- archives


@pytest.mark.parametrize(("suffix", "mode"), [("", "w"), (".gz", "w:gz"), (".xz", "w:xz"), (".bz2", "w:bz2")])
def test_archives_of_a_session_and_of_a_folder(place: Path, suffix: str, mode: str) -> None:
    """A tar of either is as good as the folder, compressed or not, whatever it is called."""
    one, two = session(place / "in" / "one"), session(place / "in" / "deep" / "two")
    of_session = packed(place / f"session{suffix}", *files_of(one, "one"), mode=mode)
    of_folder = packed(place / f"folder{suffix}", *files_of(one, "in/one"), *files_of(two, "./in/deep/two"), mode=mode)
    assert names(of_session) == [f"{of_session}:one"]
    assert names(of_folder, of_session) == [f"{of_folder}:in/deep/two", f"{of_folder}:in/one", f"{of_session}:one"]
    with open_sources([of_folder]) as sources:
        assert [scan(directory).records for directory in sources.sessions] == [turn_records()] * 2


def test_what_is_unpacked_is_private_and_gone_afterwards(place: Path, unpacking: Path) -> None:
    """Only this user can look into it, it goes also on an error, and nothing is left beside the archive."""
    archive = packed(place / "x.tar", *files_of(session(place / "s")))
    before = photograph(place)
    with pytest.raises(BoomError), open_sources([archive, archive]) as sources:
        (folder, again) = unpacking.iterdir()
        assert {stat.S_IMODE(path.stat().st_mode) for path in (folder, again)} == {0o700}
        assert all(directory.is_relative_to(unpacking) for directory in sources.sessions)
        raise BoomError
    assert list(unpacking.iterdir()) == []
    assert photograph(place) == before


OUTSIDE: Final[dict[str, tarfile.TarInfo | tuple[str, bytes]]] = {
    "a name that goes up": ("../evil", b"x"),
    "a name that goes up in the end": ("s/../../evil", b"x"),
    "an absolute name": ("/tmp/evil", b"x"),  # noqa: S108 - it is refused
    "an absolute name of two slashes": ("//tmp/evil", b"x"),
    "a folder outside": member("../evil", tarfile.DIRTYPE),
    "a link up": member("s/link", tarfile.SYMTYPE, "../../secret"),
    "an absolute link": member("s/link", tarfile.SYMTYPE, "/etc/passwd"),
    "a hard link up": member("s/link", tarfile.LNKTYPE, "../secret"),
    "an absolute hard link": member("s/link", tarfile.LNKTYPE, "/etc/passwd"),
    "a character device": member("s/device", tarfile.CHRTYPE),
    "a block device": member("s/device", tarfile.BLKTYPE),
    "a pipe": member("s/pipe", tarfile.FIFOTYPE),
}


@pytest.mark.parametrize("what", OUTSIDE)
def test_an_archive_that_leads_outside_is_refused_whole(place: Path, unpacking: Path, what: str) -> None:
    """The message names the archive, nothing is written anywhere, and what came before is gone."""
    archive = packed(place / "x.tar", *files_of(session(place / "s")), OUTSIDE[what])
    (place / "secret").write_bytes(b"secret")
    before = photograph(place)
    assert refused(archive).startswith(f"refusing {archive}: ")
    assert list(unpacking.iterdir()) == []
    assert photograph(place) == before


def test_links_within_an_archive_are_followed(place: Path) -> None:
    """Hard-linked and linked segments are files; a folder that a link names is found once, as itself."""
    (head, segment, meta) = files_of(session(place / "s"))
    archive = packed(
        place / "x.tar",
        *(head, meta, ("store/blob", segment[1])),
        member("s/journal/000001.jsonl", tarfile.LNKTYPE, "store/blob"),
        *(("t/HEAD", head[1]), ("t/meta.json", meta[1])),
        member("t/journal/000001.jsonl", tarfile.SYMTYPE, "../../store/blob"),
        member("u", tarfile.SYMTYPE, "s"),
        member("v", tarfile.SYMTYPE, "nothing"),
    )
    with open_sources([archive]) as sources:
        assert [sources.name(directory) for directory in sources.sessions] == [f"{archive}:s", f"{archive}:t"]
        assert [scan(directory).records for directory in sources.sessions] == [turn_records()] * 2


@pytest.mark.parametrize("links", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "b/x", "b": "a/x"}])
def test_links_within_an_archive_that_lead_in_circles(place: Path, links: dict[str, str]) -> None:
    """They lead nowhere; the rest of the archive is read, or it is refused."""
    circles = [member(f"s/{name}", tarfile.SYMTYPE, target) for name, target in links.items()]
    archive = packed(place / "x.tar", *files_of(session(place / "s")), *circles)
    try:
        assert names(archive) == [f"{archive}:s"]
    except UsageError as error:
        assert str(archive) in str(error)


BROKEN: Final[dict[str, Callable[[bytes], bytes]]] = {
    "nothing": lambda _: b"",
    "text": lambda _: b"this is no archive\n" * 100,
    "one cut in a header": lambda tar: tar[:700],
    "one cut in a file": lambda tar: tar[:-9000],
    "a cut gzip": lambda tar: gzip.compress(tar, mtime=0)[:-300],
    "a cut xz": lambda tar: lzma.compress(tar)[:-200],
    "a cut bz2": lambda tar: bz2.compress(tar)[:-100],
    "a damaged gzip": lambda tar: _damaged(gzip.compress(tar, mtime=0)),
    "a damaged xz": lambda tar: _damaged(lzma.compress(tar)),
    "a damaged bz2": lambda tar: _damaged(bz2.compress(tar)),
    "a wrong checksum": lambda tar: gzip.compress(tar, mtime=0)[:-8] + b"\0\0\0\0" + gzip.compress(tar)[-4:],
    "a gzip of no archive": lambda _: gzip.compress(b"text"),
    "a zip": lambda _: b"PK\x03\x04" + b"\0" * 1000,
}


def _damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 40]) + data[middle + 40 :]


@pytest.mark.parametrize("what", BROKEN)
def test_a_broken_archive_is_refused(place: Path, unpacking: Path, what: str) -> None:
    """Cut, damaged or no archive at all: one message that names it, and nothing is left."""
    noise = b"".join(os.urandom(100) + b"\n" for _ in range(400))
    tar = packed(place / "good.tar", *files_of(session(place / "s")), ("s/noise", noise)).read_bytes()
    (place / "bad.tar").write_bytes(BROKEN[what](tar))
    assert str(place / "bad.tar") in refused(place / "bad.tar")
    assert list(unpacking.iterdir()) == []


def test_an_archive_of_nothing_or_of_no_session(place: Path, unpacking: Path) -> None:
    """An empty archive, and one without a session, are refused as an empty folder is."""
    for archive in (packed(place / "a.tar"), packed(place / "b.tar", ("x/y", b"z"), member("d", tarfile.DIRTYPE))):
        assert refused(archive) == f"no session journal in {archive}"
    assert list(unpacking.iterdir()) == []


@pytest.mark.parametrize("mtime", ["1e300", "-1e300", "nan", "inf", "99999999999999", "-1"])
def test_a_member_of_an_impossible_time(place: Path, mtime: str) -> None:
    """A time that no file can have does not cost the archive."""
    (head, segment, meta) = files_of(session(place / "s"))
    info = tarfile.TarInfo(segment[0])
    info.size, info.pax_headers = len(segment[1]), {"mtime": mtime}
    with tarfile.open(place / "x.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(info, io.BytesIO(segment[1]))
    with tarfile.open(place / "x.tar", "a") as archive:
        for name, data in (head, meta):
            small = tarfile.TarInfo(name)
            small.size = len(data)
            archive.addfile(small, io.BytesIO(data))
    assert names(place / "x.tar") == [f"{place / 'x.tar'}:s"]


def test_an_archive_of_very_many_members_takes_bounded_memory(place: Path) -> None:
    """What is remembered does not grow with the number of members."""
    header = member("s", tarfile.DIRTYPE).tobuf()
    tar = packed(place / "small.tar", *files_of(session(place / "s"))).read_bytes()
    archive = place / "x.tar.gz"
    archive.write_bytes(gzip.compress(header * 10_000 + tar, 1))
    tracemalloc.start()
    try:
        assert names(archive) == [f"{archive}:s"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 4 * MIB


def test_an_archive_that_cannot_be_read() -> None:
    """No permission for the file, or no room to unpack it: refused by name."""
    assert NOBODY
    with tempfile.TemporaryDirectory(dir="/tmp") as name:  # noqa: S108 - one that another user can reach
        root = Path(name)
        root.chmod(0o755)
        archive = packed(root / "x.tar", *files_of(session(root / "s")))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(tempfile, "tempdir", str(root / "missing"))
            assert re.fullmatch(rf"cannot unpack {archive}: .*", refused(archive))
        archive.chmod(0)
        with unprivileged(root):
            assert refused(archive) == f"cannot unpack {archive}: Permission denied"
