"""The fuzzer: a short run of each target, what its runs have found, and proof that it sees what is broken."""

from __future__ import annotations

import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest.mock import ANY

import orjson
import pytest

from benchmarks import fuzz, fuzz_reader
from raxol_otel import canonical, observed
from raxol_otel.canonical import is_object
from raxol_otel.errors import InvalidStep, JournalDamaged
from raxol_otel.journal import blocks, chain, checkpoint, codec, layout, opening, reader
from raxol_otel.journal.records import Records

if TYPE_CHECKING:
    from benchmarks.fuzz_inputs import Case

SEED: Final = 5
# As many inputs are tried before a planted fault counts as overlooked.
MOST: Final = 3000
ITERATIONS: Final = {"codec": 120, "observed": 150, "reader": 40, "writer": 40, "checkpoint": 40}
PLAN: Final = json.dumps({"chain": False, "cap": 200, "block": 7, "reopen": True, "sync": None, "seed": 3}).encode()


def look_for(target: str, folder: Path, iterations: int) -> fuzz.Run:
    """A run of so many iterations, until something is found."""
    run = fuzz.Run(target, SEED)
    with fuzz.quiet():
        while run.iterations < iterations and not run.findings:
            run.step(folder)
    return run


@pytest.mark.parametrize("target", fuzz.TARGETS)
def test_a_short_run_finds_nothing(target: str, tmp_path: Path) -> None:
    """Some dozens of inputs break nothing, and leave nothing behind."""
    run = look_for(target, tmp_path, ITERATIONS[target])
    assert not run.findings, run.findings[0].trace
    assert run.iterations == ITERATIONS[target]
    assert not list(tmp_path.iterdir())


def first(more: int) -> bytes:
    """Three records from an offset on."""
    return b"".join(b'{"id":%d}\n' % (more + number) for number in range(3))


FOUND: Final[dict[str, tuple[str, Case]]] = {
    "a record before the torn line is not terminated": (
        "reader writer checkpoint",
        {"journal/000001.jsonl": b'{"id":1}\n{"id":2}', "journal/000002.jsonl": b'{"id":3'},
    ),
    "a record without a newline in an earlier segment": (
        "reader writer",
        {"journal/000001.jsonl": b'{"id":1}\n{"id":2}', "journal/000002.jsonl": b'{"id":3}\n'},
    ),
    "a blank torn line in a later segment": (
        "reader writer",
        {"journal/000001.jsonl": b'{"id":1}', "journal/000003.jsonl": b"", "journal/000004.jsonl": b"\n "},
    ),
    "offsets beyond what a machine counts with": ("writer checkpoint", {"journal/000001.jsonl": first(2**63)}),
    "offsets beyond what fits into memory": ("writer checkpoint", {"journal/000001.jsonl": first(2**61)}),
    "offsets before 1, and a damaged line": ("writer", {"journal/000001.jsonl": first(-9) + b"?\n"}),
}


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_stays_mended(name: str, tmp_path: Path) -> None:
    """The inputs that once broke something, in short, through the checks of the targets that they broke."""
    targets, case = FOUND[name]
    for target in targets.split():
        with fuzz.quiet():
            fuzz.TARGETS[target].check({**case, "plan": PLAN}, tmp_path / target)


def test_an_input_follows_from_seed_target_and_iteration() -> None:
    """The same input comes out again; another seed, target or iteration gives another."""
    case = fuzz.case_of("reader", 7, 3)
    assert fuzz.case_of("reader", 7, 3) == case
    for other in (("reader", 8, 3), ("writer", 7, 3), ("reader", 7, 4)):
        assert fuzz.case_of(*other) != case


# --- broken on purpose


def _last_key_wins(text: bytes) -> Any:
    """As `codec.decode`, but with what orjson makes of repeated keys and large integers."""
    value = codec.decode_exact(text)
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        return value


def _takes_anything(text: bytes) -> Any:
    """As `codec.decode`, but with the standard library's leniency."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise codec.DecodeError(str(error)) from None


def _never_ends(_text: bytes) -> None:
    """As a decoder in an endless loop."""
    while True:
        pass


def _any_fields(value: Any, tag: str, variants: dict[str, tuple[str, ...]]) -> tuple[str, Any]:
    """As the check of a step's members, but unknown ones are taken."""
    name = str(value.get(tag)) if is_object(value) else ""
    if name not in variants or any(key not in value for key in variants[name]):
        raise InvalidStep(tag, "no")
    return name, value


def _any_text(value: Any, path: str) -> Any:
    """As the check that a member is text, but what the agent says may be anything."""
    if isinstance(value, str) or path in {"call", "reason"}:
        return value
    raise InvalidStep(path, "no")


def _touching_scan(directory: Path) -> reader.Scan:
    """A reader that leaves a trace."""
    os.utime(directory, ns=(1, 1))
    return reader.scan(directory)


def _jumping(_walk: reader.Walk, values: list[Any]) -> tuple[list[Any], None]:
    """As the check of offsets, but they may be anything."""
    return values, None


def _no_head(_directory: Path) -> None:
    """As a reader of HEAD, but there is none."""


def _any_spelling(_line: bytes, record: dict[str, Any], previous: str) -> str | None:
    """As the check of a chained record, but it may be spelled in any way."""
    return None if chain.check(record, previous) else "chain_hash"


def _first_line(block: blocks.Block, index: int) -> tuple[int, int]:
    """As the place of a line, but of the first one in the block."""
    return block.line + index, block.byte


def _not_cut(_walk: reader.Walk) -> bool:
    """As the cut of a torn tail, but nothing is done."""
    return True


def _only_read(walk: reader.Walk, _feed: object) -> Any:
    """As the search for damage, but for what HEAD names."""
    try:
        list(reader.read_batches(walk))
    except JournalDamaged as error:
        return error.damage
    return None


def _last_offset(records: Records) -> int:
    """As the number of records, but counted by their offsets."""
    return abs(records.last_offset)


def _any_hash(_text: bytes, _name: str, _claimed: object) -> None:
    """As the check of a snapshot's hash, but any is right."""


# The target that sees it, and what is broken: the attribute of an object, and what is put in its place.
FAULTS: Final[dict[str, tuple[str, object, str, object]]] = {
    "the last of repeated keys wins": ("codec", codec, "decode", _last_key_wins),
    "NaN and lone surrogates are read": ("codec", codec, "decode", _takes_anything),
    "what was read at once is not proven": ("codec", codec, "upper_escapes", bytes.upper),
    "floats are spelled by another library": ("codec", canonical, "float_text", repr),
    "unknown fields are taken": ("observed", observed, "_variant", _any_fields),
    "what an agent says may be anything": ("observed", observed, "_text", _any_text),
    "a reader writes": ("reader", fuzz_reader, "scan", _touching_scan),
    "offsets may jump": ("reader", reader, "_in_sequence", _jumping),
    "HEAD is no anchor": ("reader", layout, "read_head", _no_head),
    "any digits make a segment": ("reader", layout, "_SEGMENT", re.compile(r"\d+\.jsonl")),
    "a chain takes any spelling": ("reader", chain, "_fault", _any_spelling),
    "damage is placed at its block": ("reader", blocks.Block, "place", _first_line),
    "a torn tail is left": ("writer", opening, "cut_torn_tail", _not_cut),
    "what HEAD names is not looked for": ("writer", opening, "_damage", _only_read),
    "records are counted by their offsets": ("writer", Records, "__len__", _last_offset),
    "a snapshot's hash is not looked at": ("checkpoint", checkpoint, "_text_fault", _any_hash),
    "a snapshot may have any key": ("checkpoint", checkpoint, "RESERVED_KEY", "another"),
    "any pointer with a hash will do": (
        "checkpoint",
        checkpoint,
        "_POINTER",
        re.compile(r"[\s\S]*([0-9a-f]{64})[\s\S]*"),
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule that is broken on purpose is found by the target that should see it, and again by its number."""
    target, broken, attribute, replacement = FAULTS[name]
    monkeypatch.setattr(broken, attribute, replacement)
    run = look_for(target, tmp_path, MOST)
    assert run.findings, f"not found in {run.iterations} iterations"
    found = run.findings[0]
    assert fuzz.Run(target, SEED).step(tmp_path, found.iteration) == replace(found, trace=ANY)
    assert found.case == fuzz.case_of(target, SEED, found.iteration)
    monkeypatch.undo()
    assert fuzz.Run(target, SEED).step(tmp_path, found.iteration) is None


def test_an_endless_loop_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An input that keeps the processor busy for too long is stopped, and told."""
    monkeypatch.setattr(fuzz, "SECONDS_MAX", 0.05)
    monkeypatch.setattr(codec, "decode", _never_ends)
    run = look_for("codec", tmp_path, 1)
    assert run.findings[0].kind.startswith("TooSlow")


def test_the_command_tells_and_keeps_what_it_finds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ends with 1, says how to see each again, and keeps the input; the same kind is kept three times at most."""
    monkeypatch.setattr(codec, "decode", _takes_anything)
    monkeypatch.setattr(fuzz, "_SAVED_PER_KIND", 1)
    assert fuzz.main(["--target", "codec", "--seconds", "0.5", "--seed", "9", "--save", str(tmp_path)]) == 1
    said = capsys.readouterr().out
    again = re.findall(r"again: (.*)", said)
    kept = re.findall(r"input: (.*)", said)
    assert len(kept) == len(again) == len(set(re.findall(r"FOUND (.*)", said)))
    assert all((Path(place) / "why.txt").read_text() and (Path(place) / "text").exists() for place in kept)
    assert fuzz.main([*again[0].split(), "--save", str(tmp_path)]) == 1
    assert "Traceback" in capsys.readouterr().out
    monkeypatch.undo()
    assert fuzz.main([*again[0].split(), "--save", str(tmp_path)]) == 0


def test_the_command_counts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Without a finding it ends with 0 and tells for each target how much was tried, and how fast."""
    assert fuzz.main(["--seconds", "0.3", "--save", str(tmp_path / "kept")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines] == list(fuzz.TARGETS)
    assert all(re.search(r"[0-9,]+ iterations +[0-9,]+/s +0 findings$", line) for line in lines)
    assert not (tmp_path / "kept").exists()
    with pytest.raises(SystemExit):
        fuzz.main(["--iteration", "3"])
