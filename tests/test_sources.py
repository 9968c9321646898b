"""Where sessions are read from: folders, links, odd names, and archives that want to get out."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
import tempfile
import tracemalloc
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.errors import UsageError
from raxol_otel.exporters.replay import replay
from raxol_otel.exporters.sources import DEPTH_MAX, open_sources
from raxol_otel.journal import scan
from tests.conftest import photograph, unprivileged
from tests.exporter_contract import BoomError, Recorder, turn_records, write_session

if TYPE_CHECKING:
    from collections.abc import Callable, Generator

MIB: Final = 2**20
ODD_NAMES: Final = [".hidden", " a b ", "a\nb", "-n", "*", "~", "ünï", os.fsdecode(b"\xff\xfe"), "\x1b[2J", "a" * 255]


@pytest.fixture
def unpacking(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which archives are unpacked."""
    (tmp_path / "unpacking").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "unpacking"))
    return tmp_path / "unpacking"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder for the test's own."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


@pytest.fixture
def public() -> Generator[Path]:
    """An empty folder that another user can reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        yield Path(name)


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


def packed(
    path: Path, *members: tarfile.TarInfo | tuple[str, bytes], compress: Callable[[bytes], bytes] = bytes
) -> Path:
    """An archive with these members; a name and bytes make a file."""
    with io.BytesIO() as tar:
        with tarfile.open(fileobj=tar, mode="w", format=tarfile.PAX_FORMAT) as archive:
            for one in members:
                info = one if isinstance(one, tarfile.TarInfo) else tarfile.TarInfo(one[0])
                data = b"" if isinstance(one, tarfile.TarInfo) else one[1]
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        path.write_bytes(compress(tar.getvalue()))
    return path


def member(name: str, kind: bytes, target: str = "") -> tarfile.TarInfo:
    """A member that is no file."""
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


def files_of(directory: Path, prefix: str = "s") -> list[tuple[str, bytes]]:
    """The files of a session as members below a folder of the archive."""
    paths = sorted(path for path in directory.rglob("*") if path.is_file())
    return [(f"{prefix}/{path.relative_to(directory)}", path.read_bytes()) for path in paths]


def test_a_folder_is_searched_to_a_bounded_depth(place: Path) -> None:
    """Sessions lie up to five levels below the folder; deeper ones are not looked for."""
    near = session(place / "1" / "2" / "3" / "4" / "five")
    session(place / "1" / "2" / "3" / "4" / "5" / "six")
    assert DEPTH_MAX == 5
    assert found(place) == [near]


@pytest.mark.parametrize("has", [("journal/",), ("journal/", "meta.json"), ("meta.json", "HEAD")])
def test_what_makes_a_session_directory(place: Path, has: tuple[str, ...]) -> None:
    """The folder `journal`, or both small files where it is missing; one of them alone is not enough."""
    for name in (*(f"s/{name}" for name in has), "not/HEAD", "neither/meta.json"):
        path = place / name
        path.parent.mkdir(exist_ok=True)
        path.mkdir() if name.endswith("/") else path.touch()
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


@pytest.mark.parametrize("target", ["link", "nothing", "."])
def test_a_link_that_leads_to_itself_nowhere_or_up(place: Path, target: str) -> None:
    """It is no folder, or one that was seen: it hides nothing beside it, and nothing is unreadable."""
    (place / "link").symlink_to(target)
    with open_sources([session(place / "one").parent]) as sources:
        assert (sources.sessions, sources.unreadable) == ([place / "one"], [])


@pytest.mark.parametrize("target", ["link", "nothing"])
def test_a_link_to_nothing_named_by_itself(place: Path, target: str) -> None:
    """A path that is only a loop, or leads nowhere, is refused by name."""
    (place / "link").symlink_to(target)
    assert str(place / "link") in refused(place / "link")


def test_one_unreadable_folder_among_many(public: Path) -> None:
    """It is told, with the reason, and all others are found."""
    first, last = session(public / "a"), session(public / "c")
    session(public / "b0").chmod(0o000)
    session(public / "b4").chmod(0o444)
    with unprivileged(public), open_sources([public]) as sources:
        assert sources.sessions == [first, last]
        assert sources.unreadable == [(public / "b0", "Permission denied"), (public / "b4", "Permission denied")]


def test_a_link_into_a_folder_that_is_closed(public: Path) -> None:
    """It may be told as unreadable, but what lies beside it is found."""
    session(public / "closed").chmod(0o000)
    session(public / "folder" / "one")
    (public / "folder" / "link").symlink_to(public / "closed" / "journal")
    with unprivileged(public):
        assert found(public / "folder") == [public / "folder" / "one"]


def test_a_path_without_permission(public: Path) -> None:
    """A folder, an archive, and what lies in a closed folder are refused by name."""
    closed = session(public / "closed")
    archive = packed(public / "x.tar", *files_of(closed))
    archive.chmod(0)
    closed.chmod(0)
    with unprivileged(public):
        assert refused(closed) == f"cannot read {closed}: Permission denied"
        assert refused(archive) == f"cannot unpack {archive}: Permission denied"
        assert str(closed / "inner") in refused(closed / "inner")


@pytest.mark.parametrize("name", ODD_NAMES)
def test_a_folder_may_have_any_name(place: Path, name: str) -> None:
    """A leading dot, blanks, newlines, bytes that are no text: found, and in an archive too."""
    directory = session(place / name)
    assert found(place) == [directory]
    archive = packed(place / "x.tar", *files_of(directory, name))
    assert names(archive) == [f"{archive}:{name}"]


@pytest.mark.parametrize("inside", [(), ("sub",), ("sub/sub", "other"), (".hidden",)])
def test_a_folder_without_a_session_is_refused(place: Path, inside: tuple[str, ...]) -> None:
    """Also when it has folders: nothing to do is a mistake worth telling."""
    for name in ("", *inside):
        (place / "empty" / name).mkdir(parents=True, exist_ok=True)
    assert refused(place / "empty") == f"no session journal in {place / 'empty'}"


def test_a_path_that_does_not_exist(place: Path) -> None:
    """It is refused before anything is read, wherever it stands among the paths."""
    assert refused(session(place / "s"), place / "missing") == f"{place / 'missing'} does not exist"


@pytest.mark.parametrize("spelling", ["{s}", "{s}/.", "{s}/journal/..", "{place}/link", ".", "..", "{place}/bare.tar"])
def test_ids_do_not_depend_on_how_the_session_was_named(
    place: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    """Records without a session id take the directory's own name: a second replay gives the same ids."""
    recorder = Recorder()
    directory = session(place / "s")
    (place / "link").symlink_to(directory)
    packed(place / "bare.tar", *files_of(directory, "."))
    monkeypatch.chdir(directory / "journal" if spelling == ".." else directory)
    for path in (directory, spelling.format(s=directory, place=place), spelling.format(s=directory, place=place)):
        replay([path], recorder)
    sessions = [(span.session_id, span.span_id) for span in recorder.spans]
    if not spelling.endswith(".tar"):
        assert sessions[:2] == sessions[2:4]
        assert {name for name, _ in sessions} == {"s"}
    assert sessions[2:4] == sessions[4:]


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_archives_of_a_session_and_of_a_folder(place: Path, compress: Callable[[bytes], bytes]) -> None:
    """A tar of either is as good as the folder, compressed or not, whatever it is called."""
    one, two = files_of(session(place / "1"), "in/one"), files_of(session(place / "2"), "./in/deep/two")
    of_session = packed(place / "a", *files_of(place / "1", "one"), compress=compress)
    of_folder = packed(place / "b", *one, *two, compress=compress)
    assert names(of_session) == [f"{of_session}:one"]
    assert names(of_folder, of_session) == [f"{of_folder}:in/deep/two", f"{of_folder}:in/one", f"{of_session}:one"]
    with open_sources([of_folder]) as sources:
        assert [scan(directory).records for directory in sources.sessions] == [turn_records()] * 2


def test_what_is_unpacked_is_private_and_gone_afterwards(place: Path, unpacking: Path) -> None:
    """Only this user can look into it, it goes also on an error, and nothing is left beside the archive."""
    archive = packed(place / "x.tar", *files_of(session(place / "s")))
    before = photograph(place)

    def look_and_fail() -> None:
        with open_sources([archive, archive]) as sources:
            folders = list(unpacking.iterdir())
            assert [stat.S_IMODE(path.stat().st_mode) for path in folders] == [0o700, 0o700]
            assert all(directory.is_relative_to(unpacking) for directory in sources.sessions)
            raise BoomError

    with pytest.raises(BoomError):
        look_and_fail()
    assert list(unpacking.iterdir()) == []
    assert photograph(place) == before


OUTSIDE: Final[dict[str, tarfile.TarInfo | tuple[str, bytes]]] = {
    "a name that goes up": ("../evil", b"x"),
    "a name that goes up in the end": ("s/../../evil", b"x"),
    "an absolute name": ("/evil", b"x"),
    "an absolute name of two slashes": ("//evil", b"x"),
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
    """They lead nowhere, and the rest of the archive is read."""
    circles = [member(f"s/{name}", tarfile.SYMTYPE, target) for name, target in links.items()]
    archive = packed(place / "x.tar", *files_of(session(place / "s")), *circles)
    assert names(archive) == [f"{archive}:s"]


BROKEN: Final[dict[str, Callable[[bytes], bytes]]] = {
    "nothing": lambda _: b"",
    "text": lambda _: b"this is no archive\n" * 100,
    "one cut in a header": lambda tar: tar[:700],
    "one cut in a file": lambda tar: tar[:-9000],
    "a cut gzip": lambda tar: gzip.compress(tar, mtime=0)[:-300],
    "a cut xz": lambda tar: lzma.compress(tar)[:-200],
    "a cut bz2": lambda tar: bz2.compress(tar)[:-100],
    "a damaged gzip": lambda tar: _gzip_start(tar) + b"\x07" * 100,
    "a damaged xz": lambda tar: _damaged(lzma.compress(tar)),
    "a damaged bz2": lambda tar: _damaged(bz2.compress(tar)),
    "a gzip of a wrong checksum": lambda tar: gzip.compress(tar)[:-8] + b"\0\0\0\0" + gzip.compress(tar)[-4:],
    "a gzip of no archive": lambda _: gzip.compress(b"text"),
    "a zip": lambda _: b"PK\x03\x04" + b"\0" * 1000,
}


def _damaged(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes(byte ^ 0x55 for byte in data[middle : middle + 40]) + data[middle + 40 :]


def _gzip_start(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=31)
    return packer.compress(data[: len(data) // 2]) + packer.flush(zlib.Z_FULL_FLUSH)


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
    late = tarfile.TarInfo("s/late")
    late.pax_headers = {"mtime": mtime}
    archive = packed(place / "x.tar", *files_of(session(place / "s")), late)
    assert names(archive) == [f"{archive}:s"]


def test_an_archive_of_very_many_members_takes_bounded_memory(place: Path) -> None:
    """What is remembered does not grow with the number of members."""
    tar = packed(place / "small.tar", *files_of(session(place / "s"))).read_bytes()
    archive = place / "x.tar.gz"
    archive.write_bytes(gzip.compress(member("s", tarfile.DIRTYPE).tobuf() * 10_000 + tar, 1))
    tracemalloc.start()
    try:
        assert names(archive) == [f"{archive}:s"]
        assert tracemalloc.get_traced_memory()[1] < 2.5 * MIB
    finally:
        tracemalloc.stop()


def test_an_archive_without_a_place_to_unpack_it(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no room for it, it is refused by name."""
    archive = packed(place / "x.tar", *files_of(session(place / "s")))
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    assert refused(archive) == f"cannot unpack {archive}: No such file or directory"
