r"""The journals that the benchmarks read: `python -m benchmarks.journals DIR --records N [--chained]`.

The same seed gives the same bytes. A turn is 20 records: `turn_started`, nine items that start and complete (reasoning,
three tool calls with their results by call id, reasoning, a message), `turn_completed` with its usage. One record in 20
carries, beside that, a float whose spelling here is not orjson's (`1.0e-7`) or a control character (`\u001B`); a
chained journal, which holds no floats, always the latter. An unchained one also has a cost in every `turn_completed`.

Lines are filled into templates, since millions are needed; those of the first turns are compared with the codec's.
"""

from __future__ import annotations

import argparse
import random
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import orjson

from raxol_otel.journal.chain import GENESIS
from raxol_otel.journal.codec import decode, encode
from raxol_otel.journal.layout import HEAD, JOURNAL, META, check_session_id

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["RECORDS_PER_TURN", "SPANS_PER_TURN", "Journal", "make", "whole_turns"]

SEED: Final = 20260914
RECORDS_PER_TURN: Final = 20
# Three tool calls, two pieces of reasoning, a message, and the turn itself.
SPANS_PER_TURN: Final = 7
SEGMENT_CAP: Final = 8 * 2**20
LINE_BYTES_MIN: Final = 300
LINE_BYTES_MAX: Final = 400

_ODD_SHARE: Final = 0.05
_FAILED_SHARE: Final = 1 / 32
_FIRST_TS: Final = 1_785_800_000_000_000
# How many turns' lines are compared with what the codec writes.
_CHECKED_TURNS: Final = 200
_POOL_BITS: Final = 12

_SCHEMA_VERSION: Final = "1.2.0"
_STARTED: Final = b'{"family":"loop",'
_REST: Final = (
    b'"id":%d,"payload":{%b},%b"schema_version":"1.2.0",%b"session_id":"%b","tier":"durable","ts":%d,'
    b'"turn_id":"turn-%d","type":"%b","v":0}'
)
_PROVENANCE: Final = b'"provenance":{"source":"primary","trust":"trusted"},'
_TOOLS: Final = (b'"read_file"', b'"search"', b'"run_tests"', b'"apply_patch"')
# ASCII words, and some others: one text in eight has one.
_ASCII_WORDS: Final = (
    "about adds after again all amount api because before branch build cart check client code commit config coupon "
    "default error expected failed file first fix found handler index item list main message module next number order "
    "parse passes path price query request result returns second server session still table test the this token total "
    "updated value version wait when why with write wrong year zero"
)
_OTHER_WORDS: Final = ("crème", "größe", "—", "合計", "✓")


@dataclass(frozen=True, slots=True)
class Journal:
    """What was made. `size` is that of all segments, in bytes."""

    directory: Path
    records: int
    size: int
    segments: int

    @property
    def paths(self) -> list[Path]:
        """The segments in order."""
        return sorted((self.directory / JOURNAL).iterdir())

    @property
    def spans(self) -> int:
        """How many spans the records fold into."""
        return self.records // RECORDS_PER_TURN * SPANS_PER_TURN


def whole_turns(text: str) -> int:
    """A number of records given on a command line."""
    records = int(text.replace(",", "").replace("_", ""))
    if records < RECORDS_PER_TURN or records % RECORDS_PER_TURN:
        message = f"{text} is no multiple of {RECORDS_PER_TURN}: turns are whole"
        raise argparse.ArgumentTypeError(message)
    return records


class _Turns:
    """Payloads of one turn after the other, as the inside of a JSON object."""

    def __init__(self, *, chained: bool) -> None:
        self._random = random.Random(SEED)  # noqa: S311 - to be repeatable is the point
        self._chained = chained
        self._bits = self._random.getrandbits
        pool = range(2**_POOL_BITS)
        # JSON texts, quotes included, that payloads are put together from.
        self._short = [encode(self._text(40, 60)) for _ in pool]
        self._title = [encode(self._text(76, 106)) for _ in pool]
        self._long = [encode(self._text(130, 180)) for _ in pool]
        self._output = [encode(self._text(30, 60) + '\n\t"' + self._text(60, 100) + '"\n') for _ in pool]
        self._odd = [b',"weight":' + encode(self._odd_float()) for _ in pool]
        self._control = [
            b',"written":' + encode(self._random.choice("\x01\x07\x0b\x1a\x1b\x1f") + self._text(4, 12)) for _ in pool
        ]

    def _text(self, low: int, high: int) -> str:
        """Some words, with a full stop here and there."""
        words: list[str] = []
        ascii_words = _ASCII_WORDS.split()
        size = self._random.randint(low, high)
        while sum(map(len, words)) + len(words) < size:
            words.append(self._random.choice(ascii_words) + "." * (self._bits(4) == 0))
        if self._bits(3) == 0:
            words[-1] = self._random.choice(_OTHER_WORDS)
        return " ".join(words)

    def _odd_float(self) -> float:
        """A float that orjson spells in another way: a small one of few digits, or a large one."""
        exponent = self._random.choice((-9, -7, -6, 15, 16, 18))
        while True:
            digits = self._random.randint(0, 2 if exponent < 0 else 15)
            value = float(f"{self._random.uniform(1, 9.4):.{digits}f}e{exponent}")
            if encode(value) != orjson.dumps(value):
                return value

    def payloads(self, turn: int, first: int) -> Iterator[tuple[bytes, bytes]]:
        """The record types and payloads of the turn whose first record has the offset `first`."""
        for kind, payload in self._regular(turn, first):
            if self._random.random() >= _ODD_SHARE:
                yield kind, payload
            elif self._chained or self._bits(1):
                yield kind, payload + self._control[self._bits(_POOL_BITS)]
            else:
                yield kind, payload + self._odd[self._bits(_POOL_BITS)]

    def _regular(self, turn: int, first: int) -> Iterator[tuple[bytes, bytes]]:
        bits, titles = self._bits, self._title
        yield (
            b"turn_started",
            b'"model":"birch-large-3","prompt":%b,"provider":"birch"' % self._short[bits(_POOL_BITS)],
        )
        tool, call = b"", b""
        for item, kind in enumerate(_ITEMS, 1):
            yield (
                b"item_started",
                b'"item_id":"i%d","item_type":"%b","title":%b' % (item, kind, titles[bits(_POOL_BITS)]),
            )
            if kind == b"tool_use":
                tool, call = _TOOLS[bits(2)], b"call-%d-%d" % (turn, item)
                arguments = b'"path":"src/cart/%x.py","query":%b' % (bits(12), self._short[bits(_POOL_BITS)])
                payload = b'"arguments":{%b},"call_id":"%b","item_id":"i%d","item_type":"tool_use","name":%b' % (
                    arguments,
                    call,
                    item,
                    tool,
                )
            elif kind == b"tool_result":
                failed = b'"error":"timeout","is_error":true,' if self._random.random() < _FAILED_SHARE else b""
                output = self._output[bits(_POOL_BITS)]
                payload = b'"call_id":"%b",%b"item_id":"i%d","item_type":"tool_result","name":%b,"result":%b' % (
                    call,
                    failed,
                    item,
                    tool,
                    output,
                )
            else:
                payload = b'"content":%b,"item_id":"i%d","item_type":"%b"' % (self._long[bits(_POOL_BITS)], item, kind)
            yield b"item_completed", payload
        cost = b"" if self._chained else b'"cost":%b,' % encode((1 + bits(16)) / 10**6)
        yield (
            b"turn_completed",
            b'%b"evidence":"accepted","final":true,"iteration":1,"refs":[%d],'
            b'"usage":{"cache_read_input_tokens":%d,"input_tokens":%d,"output_tokens":%d}'
            % (cost, first + 14, bits(14), bits(13), bits(10)),
        )

    def gap(self) -> int:
        """Microseconds between two records."""
        return 500 + self._bits(17)


_ITEMS: Final = (
    b"reasoning",
    *(b"tool_use", b"tool_result") * 3,
    b"reasoning",
    b"message",
)


def make(
    directory: Path, records: int, *, chained: bool = False, progress: Callable[[int], None] = lambda _: None
) -> Journal:
    """Write a journal into a new directory, whose name is the session's id. A turn is appended as one batch."""
    session = check_session_id(directory.name).encode()
    folder = directory / JOURNAL
    folder.mkdir(parents=True)
    turns = _Turns(chained=chained)
    segment, size, total, tip, ts = 1, 0, 0, GENESIS.encode(), _FIRST_TS
    file = (folder / "000001.jsonl").open("wb")
    for turn in range(1, records // RECORDS_PER_TURN + 1):
        first = (turn - 1) * RECORDS_PER_TURN + 1
        lines: list[bytes] = []
        for offset, (kind, payload) in enumerate(turns.payloads(turn, first), first):
            ts += turns.gap()
            middle, scope = (_PROVENANCE, b'"scope":"session",') if offset == first else (b"", b"")
            if chained:
                middle = b'"prev_hash":"%b",%b' % (tip, middle)
            rest = _REST % (offset, payload, middle, scope, session, ts, turn, kind)
            if chained:
                tip = sha256(_STARTED + rest).hexdigest().encode()
                rest = b'"hash":"%b",%b' % (tip, rest)
            lines.append(b"%b%b\n" % (_STARTED, rest))
        if turn <= _CHECKED_TURNS:
            assert [encode(decode(line)) + b"\n" for line in lines] == lines, "a line is not as the codec writes it"
        text = b"".join(lines)
        file.write(text)
        size += len(text)
        total += len(text)
        if size >= SEGMENT_CAP:
            segment, size = segment + 1, 0
            file.close()
            file = (folder / f"{segment:06d}.jsonl").open("wb")
            progress(first)
    file.close()
    assert chained or LINE_BYTES_MIN <= total / records <= LINE_BYTES_MAX, f"lines of {total / records} bytes"
    _write_small(directory, records, segment, tip.decode() if chained else None)
    return Journal(directory, records, total, segment)


def _write_small(directory: Path, offset: int, segment: int, tip_hash: str | None) -> None:
    """meta.json and HEAD, as a writer leaves them that has closed."""
    meta: dict[str, Any] = {
        "created_at": "2026-08-03T23:33:20.000000Z",
        "cwd": None,
        "git_branch": None,
        "schema_version": _SCHEMA_VERSION,
        "title": "A benchmark",
    }
    head: dict[str, Any] = {
        "offset": offset,
        "schema_version": _SCHEMA_VERSION,
        "segment": segment,
        "segment_cap": SEGMENT_CAP,
    }
    if tip_hash is not None:
        meta["chain"] = True
        head["tip_hash"] = tip_hash
    (directory / META).write_bytes(encode(meta))
    (directory / HEAD).write_bytes(encode(head))


def main() -> None:
    """Make one journal and say what it is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.journals", description="Make a journal to measure on.")
    parser.add_argument("directory", type=Path, help="the session directory to make")
    parser.add_argument("--records", type=whole_turns, default=1_000_000)
    parser.add_argument("--chained", action="store_true")
    options = parser.parse_args()
    made = make(options.directory, options.records, chained=options.chained)
    print(
        f"{made.records} records, {made.size} bytes ({made.size / made.records:.1f} a record), {made.segments} segments"
    )


if __name__ == "__main__":
    main()
