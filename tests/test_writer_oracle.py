"""Our writer and the reference's: the same bytes, the same replies; every difference is named in `DIFFERENCES`.

Each difference changes what the reference was seen to do into what is expected here, for the cases it names and no
others (docs/adr/0009-where-we-differ-from-the-reference.md is the same table for people). Anything else that differs
fails.
"""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import signals
from raxol_otel.errors import FloatRefused, JournalDamaged, JournalUnreadable, NotChained
from raxol_otel.journal import open_journal, scan
from raxol_otel.journal.layout import segments
from tests.conftest import SHARED, SHARED_ABSENT
from tests.test_oracle import place, tree
from tests.writer_files import NEVER, PROBE, listen

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from raxol_otel.journal import Journal

    Verdict = dict[str, Any]
    Said = dict[str, Any]

STEPS_OF_A_LATER_PART: Final = {"checkpoint", "restore"}
# A difference of its own: the path of what is refused in a batch begins with the event's place. The reference leaves
# out which event it was.
IN_A_BATCH: Final = {"chain_float_refused": "[1]."}


@pytest.fixture
def heard() -> Iterator[list[signals.Signal]]:
    """Every signal published during the test, in order."""
    found: list[signals.Signal] = []
    stop = listen("test_writer_oracle", found)
    yield found
    stop()


def told(heard: list[signals.Signal], session: Path) -> list[Said]:
    """What was heard, as the verdicts have it, and forgotten: paths relative to the journal, no session id."""
    found: list[Said] = []
    for signal in heard:
        metadata = dict(signal.metadata)
        assert metadata.pop("session_id") == session.name
        if signal.name == signals.SIGNAL_DAMAGED:
            metadata = {key: metadata[key].removeprefix(f"{session}/") for key in ("dir", "segment")}
            metadata["dir"] = "." if metadata["dir"] == str(session) else metadata["dir"]
        found.append({"event": signal.name, "metadata": metadata})
    heard.clear()
    return found


def events(telemetry: list[Said]) -> list[Said]:
    """The reference's events without their measurements, which our signals do not carry."""
    return [{"event": event["event"], "metadata": event["metadata"]} for event in telemetry]


# --- The differences --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """`expected` turns what the reference did at `reopen` and `append_after_reopen` into what we do.

    `cases`: their names, or a condition on the verdict.
    """

    why: str
    cases: frozenset[str] | Callable[[dict[str, Any]], bool]
    expected: Callable[[Verdict, Said, Said], None]

    def is_for(self, verdict: Verdict) -> bool:
        """Whether the case is one of those."""
        return self.cases(verdict) if callable(self.cases) else verdict["case"] in self.cases


def stored_head(verdict: Verdict) -> str | None:
    """HEAD as the case has it, None without one."""
    path = SHARED / "oracle" / "cases" / verdict["case"] / "session" / "HEAD"
    return path.read_text(encoding="utf-8") if path.is_file() else None


def untouched(verdict: Verdict, reopen: Said, append: Said) -> None:
    """Opened for reading only: refused, and every byte stays."""
    head = stored_head(verdict)
    reopen |= {"head_after_open": head, "head_after_close": head}
    reopen["files"] = {name: file for name, file in verdict["tree"].items() if name != "meta.json"}
    append |= {"reply": ["error", "damaged"], "added": {}, "head": head}


def untouched_below_head(verdict: Verdict, reopen: Said, append: Said) -> None:
    """The same, where it is HEAD that knows of the loss; `scan` says ok before and after."""
    untouched(verdict, reopen, append)
    damaged = {"event": signals.SIGNAL_DAMAGED, "metadata": {"dir": ".", "segment": "HEAD"}}
    reopen |= {"status": ["damaged", (verdict["scan"]["last_id"] or 0) + 1], "telemetry": [damaged]}
    append |= {"telemetry_open_append_close": [damaged], "scan_after": verdict["scan"]["verdict"]}
    append["scan_after_records"] = verdict["scan"]["records_returned"]


def not_opened(error: str) -> Callable[[Verdict, Said, Said], None]:
    """An error at opening: no file is touched, no lock stays."""

    def expected(verdict: Verdict, reopen: Said, append: Said) -> None:
        reopen.clear()
        append.clear()
        files = {name: file for name, file in verdict["tree"].items() if name != "meta.json"}
        reopen |= {"open": ["error", error], "files": files, "telemetry": [], "lock_after_close": False}
        append |= {"reply": ["open_error", error]}

    return expected


DIFFERENCES: Final = {
    "damaged unchained": Difference(
        "the reference appends to a damaged unchained journal and rewrites its HEAD: more damage, and evidence lost",
        lambda verdict: not verdict["chained"] and verdict["scan"]["verdict"] == "damaged",
        untouched,
    ),
    "HEAD ahead": Difference(
        "the reference goes on after HEAD's offset, which leaves a gap in the ids: damage where there was a lost tail",
        frozenset(
            {
                *("empty_journal_dir", "missing_journal_dir", "segment_missing_last", "id_negative_zero"),
                *("torn_cr_tail", "torn_complete_json_below_head"),
            }
        ),
        untouched_below_head,
    ),
    "chain=True on records": Difference(
        "the reference takes a healthy unchained journal without meta.json for a damaged chained one",
        frozenset({"chain_option_on_unchained_without_meta"}),
        not_opened("not_chained"),
    ),
    "unreadable": Difference(
        "the reference lets the bare file error out; here it is JournalUnreadable, naming the file",
        frozenset({"segment_is_directory"}),
        not_opened("unreadable journal/000002.jsonl"),
    ),
}


def expected(verdict: Verdict) -> tuple[Said, Said]:
    """What is to happen at `reopen` and at `append_after_reopen`: what the reference did, but for the differences."""
    reopen, append = copy.deepcopy((verdict["reopen"], verdict["append_after_reopen"]))
    for said, key in ((reopen, "telemetry"), (append, "telemetry_open_append_close")):
        if key in said:
            said[key] = events(said[key])
    for difference in DIFFERENCES.values():
        if difference.is_for(verdict):
            difference.expected(verdict, reopen, append)
    return reopen, append


def every_verdict() -> list[Verdict]:
    """All verdicts, or none where they are absent."""
    path = SHARED / "oracle" / "verdicts.json"
    return json.loads(path.read_bytes()) if path.exists() else []


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_one(shared: Path, name: str) -> None:
    """Each is needed: the reference did something else in every case it is for. No case has two."""
    assert (shared / "oracle").is_dir()
    difference = DIFFERENCES[name]
    cases = [verdict for verdict in every_verdict() if difference.is_for(verdict)]
    assert len(cases) == {"damaged unchained": 54, "HEAD ahead": 6}.get(name, 1)
    for verdict in cases:
        reopen, append = expected(verdict)
        assert events(verdict["reopen"]["telemetry"]) != reopen["telemetry"] or (
            verdict["append_after_reopen"]["reply"] != append["reply"]
        )
        assert sum(other.is_for(verdict) for other in DIFFERENCES.values()) == 1


# --- The writer's own journals ----------------------------------------------------------------------------------------


def path_text(path: list[str | int]) -> str:
    """A path of the reference as we write it."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).removeprefix(".")


def reply(journal: Journal, step: Said) -> list[Any]:
    """What a step gives, as the verdicts have it."""
    try:
        if "append" in step:
            return ["ok", journal.append(step["append"])]
        return ["ok", journal.append_many(step["append_many"])]
    except FloatRefused as error:
        return ["error", ["float", error.path]]


def reference_reply(case: str, step: Said, said: list[Any]) -> list[Any]:
    """The reference's reply, its path written as ours."""
    if said[0] == "ok":
        return said
    kind, path = said[1]
    return ["error", [kind, IN_A_BATCH[case] * ("append_many" in step) + path_text(path)]]


def written_cases() -> list[Any]:
    """The cases that the reference's writer made by appends alone; one to skip where they are absent."""
    found: list[Any] = []
    for verdict in every_verdict():
        steps = SHARED / "oracle" / "cases" / verdict["case"] / "steps.json"
        if steps.exists() and not any(step.keys() & STEPS_OF_A_LATER_PART for step in json.loads(steps.read_bytes())):
            found.append(pytest.param(verdict, id=verdict["case"]))
    return found or [pytest.param(None, id="absent", marks=pytest.mark.skip(reason=SHARED_ABSENT))]


@pytest.mark.parametrize("verdict", written_cases())
def test_the_same_appends_give_the_same_bytes(
    verdict: Verdict, shared: Path, tmp_path: Path, heard: list[signals.Signal]
) -> None:
    """Replies, segments, HEAD and meta.json are the reference's, for every case that it wrote."""
    case = shared / "oracle" / "cases" / verdict["case"]
    stored = case / "session"
    steps: list[Said] = json.loads((case / "steps.json").read_bytes())
    meta = json.loads((stored / "meta.json").read_bytes())
    described = {name: meta[name] for name in ("cwd", "git_branch", "title")}
    with open_journal("session", base_dir=tmp_path, **verdict["writer"]["options"], **described) as journal:
        for step, answer in zip(steps, verdict["writer"]["replies"], strict=True):
            assert reply(journal, step) == reference_reply(verdict["case"], step, answer["reply"])
            assert answer["telemetry"] == []
    assert heard == []
    for path in [*sorted((stored / "journal").iterdir()), stored / "HEAD"]:
        assert (tmp_path / "session" / path.relative_to(stored)).read_bytes() == path.read_bytes(), path.name
    ours = json.loads((tmp_path / "session" / "meta.json").read_bytes())
    assert ours | {"created_at": meta["created_at"]} == meta
    assert tree(tmp_path / "session").keys() == tree(stored).keys()


# --- Opened again -----------------------------------------------------------------------------------------------------


def head_text(session: Path) -> str | None:
    """HEAD as it is, None without one."""
    path = session / "HEAD"
    return path.read_text(encoding="utf-8") if path.exists() else None


def open_again(verdict: Verdict, session: Path) -> Journal | str:
    """The case's journal opened with its options, or the name of the error."""
    options: dict[str, Any] = {"base_dir": session.parent, "sync_ceiling_ms": NEVER, **verdict["open_options"]}
    try:
        return open_journal(session.name, **options)
    except NotChained:
        return "not_chained"
    except JournalUnreadable as error:
        return f"unreadable {error.path.relative_to(session)}"


def status_of(journal: Journal) -> Any:
    """The status as the verdicts have it: with the first offset that is not good."""
    return "ok" if journal.status() == "ok" else ["damaged", journal.last_offset + 1]


def test_a_journal_opened_again(
    oracle_verdict: Verdict, shared: Path, tmp_path: Path, heard: list[signals.Signal]
) -> None:
    """HEAD after opening and closing, status, lock, files and signals, without any append."""
    reopen, _ = expected(oracle_verdict)
    session = place(oracle_verdict, tmp_path / "session", shared / "oracle")
    journal = open_again(oracle_verdict, session)
    found: Said
    if isinstance(journal, str):
        found = {"open": ["error", journal]}
    else:
        found = {"open": "ok", "head_after_open": head_text(session), "status": status_of(journal)}
        found["lock_held_while_open"] = (session / "writer.lock").exists()
        journal.close()
        found |= {"close": ["ok", "ok"], "head_after_close": head_text(session)}
    found["lock_after_close"] = (session / "writer.lock").exists()
    found["telemetry"] = told(heard, session)
    found["files"] = {name: file for name, file in tree(session).items() if name != "meta.json"}
    assert found == reopen
    if "meta.json" in oracle_verdict["tree"]:
        assert tree(session)["meta.json"] == oracle_verdict["tree"]["meta.json"]


def contents(session: Path) -> dict[str, bytes]:
    """The segments' bytes by their names."""
    return {path.name: path.read_bytes() for path in segments(session)}


def test_an_append_to_a_journal_opened_again(
    oracle_verdict: Verdict, shared: Path, tmp_path: Path, heard: list[signals.Signal]
) -> None:
    """The offset, the very bytes, HEAD after a flush (it may lag before), signals and the verdict afterwards."""
    _, append = expected(oracle_verdict)
    session = place(oracle_verdict, tmp_path / "session", shared / "oracle")
    journal = open_again(oracle_verdict, session)
    if isinstance(journal, str):
        assert {"reply": ["open_error", journal]} == append
        return
    before, old_head = contents(session), head_text(session)
    try:
        answer = ["ok", journal.append(PROBE)]
    except JournalDamaged as refused:
        answer = ["error", "damaged" if "salvage" in (refused.hint or "") else "no way out"]
    after = contents(session)
    assert head_text(session) == old_head, "HEAD lags until the ceiling, a flush or the close"
    journal.flush()
    found: Said = {"reply": answer, "head": head_text(session)}
    found["added"] = {
        name: data.removeprefix(before.get(name, b"")).decode()
        for name, data in after.items()
        if data != before.get(name, b"")
    }
    assert all(data.startswith(before.get(name, b"")) for name, data in after.items())
    journal.close()
    assert contents(session) == after
    found["telemetry_open_append_close"] = told(heard, session)
    outcome = scan(session)
    found |= {"scan_after": "ok" if outcome.ok else "damaged", "scan_after_records": len(outcome.records)}
    assert found == append
