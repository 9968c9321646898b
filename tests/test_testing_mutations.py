"""The rules of reading and of chains that matter most, each with its line: change it, and a check must notice.

A rule is a check that takes an empty directory. Its line, and what is put in its place, stand above it. Where the line
is rewritten, say the new one here; where the rule is gone, so is the check.
"""

from __future__ import annotations

import json
import tempfile
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pytest

from raxol_otel.errors import FloatRefused, JournalUnreadable
from raxol_otel.journal import resume_scan, scan
from raxol_otel.journal.chain import seal
from raxol_otel.testing import MutationAnchor

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[[Path], None]


class Rule(NamedTuple):
    """A line of a module, what is put in its place, and the check that must notice."""

    module: str
    line: str
    mutation: str
    within: str | None
    check: Check

    def prove(self) -> None:
        """The check holds, and fails once the line is changed."""

        def check() -> None:
            with tempfile.TemporaryDirectory() as base:
                self.check(Path(base))

        MutationAnchor(self.module, self.line, within=self.within).assert_caught(check, self.mutation)


class Rules(list[Rule]):
    """Rules, each added by `@rule(...)` above its check."""

    def rule(self, module: str, line: str, mutation: str, *, within: str | None = None) -> Callable[[Check], Check]:
        """Make a check a rule; `module` is one of `raxol_otel.journal`."""

        def add(check: Check) -> Check:
            self.append(Rule(f"raxol_otel.journal.{module}", line, mutation, within, check))
            return check

        return add


RULES: Final = Rules()
rule: Final = RULES.rule


def text(value: Any) -> bytes:
    """The canonical JSON of simple values, by other means than the package's."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def line(offset: Any, **more: Any) -> bytes:
    """A record's line."""
    return text({"id": offset, "type": "note", **more}) + b"\n"


def links(*payloads: Any) -> list[dict[str, Any]]:
    """Records of a chained journal."""
    found: list[dict[str, Any]] = []
    for offset, payload in enumerate(payloads, 1):
        record = {"id": offset, "payload": payload, "prev_hash": found[-1]["hash"] if found else "0" * 64}
        found.append({**record, "hash": sha256(text(record)).hexdigest()})
    return found


def put(base: Path, *segments: bytes, head: Any = None, chained: bool = False) -> Path:
    """A session with these segments."""
    session = base / "session"
    (session / "journal").mkdir(parents=True)
    for number, content in enumerate(segments, 1):
        (session / "journal" / f"{number:06}.jsonl").write_bytes(content)
    if head is not None:
        (session / "HEAD").write_bytes(text(head))
    if chained:
        (session / "meta.json").write_bytes(text({"chain": True}))
    return session


def found(session: Path) -> tuple[bool, list[Any]]:
    """The verdict and the ids."""
    result = scan(session)
    return result.ok, [record["id"] for record in result.records]


# --- Reading ----------------------------------------------------------------------------------------------------------

TORN: Final = (
    "if not block.terminated and not any(size and has_content(later) for later, size in segments[index + 1 :]):"
)


@rule("reader", TORN, "if not block.terminated:")
def unterminated_line_before_others_is_a_record(base: Path) -> None:
    """Only the last line of all can be torn."""
    assert found(put(base, line(1).strip(), line(2))) == (True, [1, 2])


@rule("reader", TORN, "if False:")
def torn_line_is_left_out_even_when_it_is_json(base: Path) -> None:
    """What was not terminated was not acknowledged."""
    assert found(put(base, line(1) + line(2).strip())) == (True, [1])


@rule("reader", "raise _report(walk, damage)", "continue")
def nothing_after_damage_is_returned(base: Path) -> None:
    """Records after damage are not to be trusted."""
    assert found(put(base, line(1) + b"garbage\n", line(2))) == (False, [1])


@rule("blocks", r'return [line for line in self.lines if line != b"\n"]', "return [x for x in self.lines if x.strip()]")
def blanks_are_damage(base: Path) -> None:
    """Only an exactly empty line is skipped."""
    assert found(put(base, line(1) + b"\n" + line(2) + b" \n" + line(3))) == (False, [1, 2])


@rule("damage", "if type(found) is not int:", "if not isinstance(found, int):")
def an_id_is_an_integer(base: Path) -> None:
    """`true` is no id, though Python takes it for 1."""
    assert found(put(base, line(True))) == (False, [])  # noqa: FBT003 - JSON's


@rule("layout", r'_SEGMENT: Final = re.compile(r"[0-9]{6}\.jsonl", re.ASCII)', r'_SEGMENT = re.compile(r".*\.jsonl")')
def other_names_are_no_segments(base: Path) -> None:
    """A copy that somebody left in the folder is not part of the journal."""
    session = put(base, line(1))
    (session / "journal" / "000001 (copy).jsonl").write_bytes(line(1))
    assert found(session) == (True, [1])


@rule("codec", "result.setdefault(key, value)", "result[key] = value", within="_first_wins")
def the_first_of_repeated_keys_wins(base: Path) -> None:
    """As with the reference; orjson and json take the last."""
    assert scan(put(base, b'{"a":1,"id":1,"a":2}\n')).records == [{"a": 1, "id": 1}]


@rule("reader", "os.ftruncate(descriptor, torn.byte)", "os.ftruncate(descriptor, torn.byte + 1)")
def repair_cuts_where_the_torn_line_began(base: Path) -> None:
    """Not a byte more or less."""
    session = put(base, line(1) + b'{"id":2,"ty')
    resume_scan(session)
    assert (session / "journal" / "000001.jsonl").read_bytes() == line(1)


@rule("layout", "raise unreadable(directory / META, error) from error", "return None", within="read_meta")
def unreadable_meta_is_not_unchained(base: Path) -> None:
    """A chain must not go unchecked because meta.json cannot be read."""
    session = put(base, line(1))
    (session / "meta.json").mkdir()
    with pytest.raises(JournalUnreadable):
        scan(session)


# --- Chains -----------------------------------------------------------------------------------------------------------


def chained(base: Path, records: list[dict[str, Any]], *, head: Any = None) -> Path:
    """A chained session."""
    return put(base, b"".join(text(record) + b"\n" for record in records), head=head, chained=True)


@rule("reader", "if last < walk.head_offset:", "if last + 1 < walk.head_offset:")
def a_lost_tail_is_damage(base: Path) -> None:
    """HEAD names a record that is not there."""
    assert found(chained(base, links("a", "b"), head={"offset": 3})) == (False, [1, 2])


@rule("reader", 'if 0 <= anchor < count and values[anchor]["hash"] != walk.head_hash:', "if False:")
def another_history_is_damage(base: Path) -> None:
    """A chain that links, but is not the one that HEAD saw."""
    assert found(chained(base, links("a", "b"), head={"offset": 2, "tip_hash": "f" * 64})) == (False, [1])


@rule("chain", 'if record.get("prev_hash") != previous:', "if False:", within="_fault")
def each_record_links_to_the_one_before(base: Path) -> None:
    """A record whose own hash is right, out of another chain."""
    records = [links("a", "b")[0], links("other", "b")[1]]
    assert found(chained(base, records)) == (False, [1])


@rule("chain", 'if record.get("hash") != record_hash(record):', "if False:", within="_fault")
def a_changed_record_breaks_the_chain(base: Path) -> None:
    """The hash covers the payload."""
    records = links("a", "b")
    records[1]["payload"] = "c"
    assert found(chained(base, records)) == (False, [1])


@rule("chain", 'return None if encode(record) == line[:-1] else "chain_bytes"', "return None", within="_fault")
def another_spelling_breaks_the_chain(base: Path) -> None:
    """The line is the canonical JSON, to the byte."""
    session = put(base, b"".join(text(one) + b" \n" for one in links("a")), chained=True)
    assert found(session) == (False, [])


@rule("chain", 'sealed["hash"] = record_hash(sealed, floats=False)', 'sealed["hash"] = record_hash(sealed)')
def a_float_is_not_sealed(base: Path) -> None:
    """A float has several spellings, and the hash would depend on which."""
    assert not list(base.iterdir())
    with pytest.raises(FloatRefused):
        seal({"id": 1, "payload": {"cost": 0.5}}, "0" * 64)


# --- All of them ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("one", RULES, ids=lambda one: one.check.__name__)
def test_the_rule_is_checked(one: Rule) -> None:
    """The check holds, and fails once the line that the rule rests on is changed."""
    one.prove()
