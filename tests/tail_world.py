"""A session's directory to which anything may happen, at random with a seed; see `GROWTH`, `HEADS` and `HARM`."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.journal.chain import GENESIS, seal
from raxol_otel.journal.codec import encode
from tests.tail_follow import Follower, append, seg

if TYPE_CHECKING:
    import random
    from pathlib import Path

__all__ = ["GROWTH", "HARM", "HEADS", "World"]

# What a writer does, and what changes no byte that was there.
GROWTH: Final = (
    *("grow", "grow", "grow", "piece", "piece", "piece", "blank", "rotate", "rotate_and_grow", "rotate_often"),
    *("end_unterminated", "junk", "head_right", "head_last", "touch", "chmod", "copy", "write_again"),
)
HEADS: Final = ("head_right", "head_last", "head_wrong", "head_ahead", "head_odd", "head_gone", "meta_odd", "meta_gone")
HARM: Final = (
    *("truncate", "truncate", "flip", "flip", "flip", "delete", "delete_first", "delete_folder", "delete_all"),
    *("insert", "grow_early", "reuse", "swap", "odd_file", "odd_meta"),
)


class World:
    """One session and whoever follows it. Each method that has a name in the tuples above is something that happens."""

    def __init__(self, folder: Path, rng: random.Random, *, chained: bool) -> None:
        self.rng, self.chained, self.directory = rng, chained, folder / "session"
        self.follower = Follower(self.directory)
        self.fresh()

    def fresh(self) -> None:
        """Another journal stands in the place of what was there."""
        shutil.rmtree(self.directory, ignore_errors=True)
        (self.directory / "journal").mkdir(parents=True)
        meta = {"created_at": "2026-01-01T00:00:00Z"} | ({"chain": True} if self.chained else {})
        (self.directory / "meta.json").write_bytes(encode(meta))
        self._begin()
        seg(self.directory).write_bytes(b"")
        for _ in range(self.rng.randrange(5)):
            self.grow()

    def _begin(self) -> None:
        self.offset, self.tip = 0, GENESIS
        self.hashes: dict[int, str] = {}
        # The rest of a record of which a piece is written.
        self.rest = b""

    def _record(self) -> bytes:
        rng = self.rng
        self.offset += 1
        text = "é\u2028" * rng.randrange(3) + "x" * rng.choice((0, 5, 200, 200, 700))
        record: dict[str, Any] = {"id": self.offset, "payload": {"n": rng.randrange(10**6), "text": text}}
        if self.chained:
            record = seal(record, self.tip)
            self.tip = self.hashes[self.offset] = record["hash"]
        return encode(record) + b"\n"

    def _records(self, count: int) -> bytes:
        return b"".join(self._record() for _ in range(count))

    def _segments(self) -> list[Path]:
        folder = self.directory / "journal"
        return sorted(path for path in folder.iterdir() if path.is_file()) if folder.is_dir() else []

    def _last(self) -> Path:
        if not self._segments():
            self._new(1).write_bytes(b"")
        return self._segments()[-1]

    def _any(self) -> Path:
        self._last()
        return self.rng.choice(self._segments())

    def _new(self, number: int) -> Path:
        (self.directory / "journal").mkdir(parents=True, exist_ok=True)
        return seg(self.directory, number)

    # -- growth

    def grow(self) -> None:
        """Records, of which the first may be the rest of one."""
        data = self.rest + self._records(self.rng.choice((1, 1, 2, 3, 60)))
        self.rest = b""
        append(self._last(), data)

    def piece(self) -> None:
        """A part of a record."""
        data = self.rest or self._record()
        cut = self.rng.randrange(1, len(data) + 1)
        self.rest = data[cut:]
        append(self._last(), data[:cut])

    def blank(self) -> None:
        """Empty lines."""
        append(self._last(), b"\n" * self.rng.randrange(1, 3))

    def rotate(self) -> None:
        """A next segment, still empty."""
        number = int(self._last().stem) + 1
        if number < 30:
            self._new(number).write_bytes(b"")

    def rotate_and_grow(self) -> None:
        """A next segment."""
        self.rotate()
        self.grow()

    def rotate_often(self) -> None:
        """Some next segments."""
        for _ in range(3):
            self.rotate_and_grow()

    def end_unterminated(self) -> None:
        """The last newline goes; a next segment may come."""
        path = self._last()
        data = path.read_bytes()
        if data.endswith(b"\n"):
            os.truncate(path, len(data) - 1)
        if self.rng.random() < 0.7:
            self.rotate_and_grow()

    def junk(self) -> None:
        """What no writer writes."""
        append(self._last(), self.rng.choice((b"\0" * 50, b"{}\n", b"x", b" \n", b'{"id":1}\n', b"\r\n")))

    def touch(self) -> None:
        """Another time of modification."""
        for path in self._segments():
            os.utime(path, (1, self.rng.randrange(10**9)))

    def chmod(self) -> None:
        """Another mode."""
        for path in self._segments():
            path.chmod(self.rng.choice((0o600, 0o644)))

    def copy(self) -> None:
        """Another file with the same bytes."""
        for path in self._segments():
            if self.rng.random() < 0.5:
                copy = path.with_suffix(".copy")
                shutil.copyfile(path, copy)
                copy.rename(path)

    def write_again(self) -> None:
        """The same bytes once more."""
        for path in self._segments():
            data = path.read_bytes()
            with path.open("r+b") as file:
                file.write(data)

    # -- HEAD and meta.json

    def _head(self, offset: int, tip_hash: str | None) -> None:
        self.directory.mkdir(exist_ok=True)
        temporary = self.directory / "HEAD.tmp.1.1"
        temporary.write_bytes(encode({"offset": offset} | ({} if tip_hash is None else {"tip_hash": tip_hash})))
        temporary.rename(self.directory / "HEAD")

    def head_right(self) -> None:
        """As it may lag."""
        offset = self.rng.randrange(self.offset + 1)
        self._head(offset, self.hashes.get(offset, GENESIS) if self.chained else None)

    def head_last(self) -> None:
        """As `close` leaves it."""
        self._head(self.offset, self.hashes.get(self.offset, GENESIS) if self.chained else None)

    def head_wrong(self) -> None:
        """Another hash."""
        self._head(self.rng.randrange(self.offset + 3), "f" * 64)

    def head_ahead(self) -> None:
        """More than there is."""
        self._head(self.offset + self.rng.randrange(1, 3), None)

    def head_odd(self) -> None:
        """No HEAD of ours."""
        odd = (b"", b"{", b"[]", b'{"offset":"3"}', b'{"offset":2.0}')
        (self.directory / "HEAD").write_bytes(self.rng.choice(odd))

    def head_gone(self) -> None:
        """None."""
        (self.directory / "HEAD").unlink(missing_ok=True)

    def meta_odd(self) -> None:
        """Chained, or not, or nothing that says."""
        (self.directory / "meta.json").write_bytes(self.rng.choice((b"{}", b'{"chain":true}', b"nonsense")))

    def meta_gone(self) -> None:
        """None."""
        (self.directory / "meta.json").unlink(missing_ok=True)

    # -- harm

    def truncate(self) -> None:
        """A segment loses its end."""
        path = self._any()
        size = path.stat().st_size
        os.truncate(path, self.rng.choice((0, self.rng.randrange(size + 1), max(size - 1, 0))))

    def flip(self) -> None:
        """One byte is another."""
        path = self._any()
        data = path.read_bytes()
        if data:
            place = self.rng.choice((0, len(data) - 1, self.rng.randrange(len(data))))
            with path.open("r+b") as file:
                file.seek(place)
                file.write(bytes([data[place] ^ self.rng.choice((1, 2, 4, 32))]))

    def delete(self) -> None:
        """A segment goes."""
        self._any().unlink()

    def delete_first(self) -> None:
        """The first segment goes."""
        self._last()
        self._segments()[0].unlink()

    def delete_folder(self) -> None:
        """All segments go."""
        shutil.rmtree(self.directory / "journal", ignore_errors=True)

    def delete_all(self) -> None:
        """Everything goes."""
        shutil.rmtree(self.directory)
        self.directory.mkdir()

    def insert(self) -> None:
        """A segment before, between or behind the others."""
        path = self._new(self.rng.randrange(32))
        if not path.exists():
            path.write_bytes(self.rng.choice((b"", b"\n", b"\n\n", b'{"id":1}\n', b"x", self._record())))

    def grow_early(self) -> None:
        """A segment grows that need not be the last."""
        append(self._any(), self.rng.choice((b"\n", b"\n\n", b"x", b" ", b'{"id":3}\n')))

    def reuse(self) -> None:
        """Other records in the same file: another journal's, or the same one's."""
        if self.rng.random() < 0.5:
            self._begin()
        data = self._records(self.rng.randrange(9))
        self._last()
        for path in self._segments()[1:]:
            path.unlink()
        self._last().write_bytes(data)

    def swap(self) -> None:
        """Two segments change places."""
        paths = self._segments()
        if len(paths) > 1:
            one, other = self.rng.sample(paths, 2)
            between = one.with_suffix(".between")
            one.rename(between)
            other.rename(one)
            between.rename(other)

    def odd_file(self) -> None:
        """Something that is no file stands in a segment's place for a while."""
        path = self._any()
        kept = path.with_suffix(".kept")
        path.rename(kept)
        kind = self.rng.choice(("pipe", "folder", "nowhere", "itself"))
        if kind == "pipe":
            os.mkfifo(path)
        elif kind == "folder":
            path.mkdir()
        else:
            path.symlink_to(path if kind == "itself" else "nowhere")
        for _ in range(self.rng.choice((1, 2))):
            self.follower.check()
        if kind == "folder":
            path.rmdir()
        else:
            path.unlink()
        kept.rename(path)

    def odd_meta(self) -> None:
        """A folder stands in the place of meta.json for a while."""
        meta = self.directory / "meta.json"
        meta.unlink(missing_ok=True)
        meta.mkdir()
        self.follower.check()
        meta.rmdir()
        meta.write_bytes(b'{"chain":true}' if self.chained else b"{}")
