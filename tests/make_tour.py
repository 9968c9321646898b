"""Writes the tour: a small session that shows everything this project can show, for the README, demos and tests.

    python -m tests.make_tour golden

rewrites `golden/tour` and `golden/MANIFEST.json`. The bytes are always the same. It stands on the codec and the chain
alone, so that a fault of the journal's writer cannot hide in it.

An agent works for an evening on a small tea shop's web site. The journal is chained, and a chained journal carries no
floats, so its records say nothing of `cost`.
"""

from __future__ import annotations

import json
import sys
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from raxol_otel.journal.chain import GENESIS, seal
from raxol_otel.journal.codec import encode

__all__ = ["manifest", "tour_files", "write_tour"]

SESSION: Final = "tour"
SCHEMA_VERSION: Final = "1.2.0"
SEGMENT_CAP: Final = 8 * 2**20
# 2026-09-14 18:40:00 UTC; the story's times are milliseconds after it.
EVENING_US: Final = 1_789_411_200_000_000
TRACEPARENT: Final = "00-5f0c2a9be41d4c6f8a3b7e5d90c1f264-7d3e8a1c5b924f06-01"
TRUSTED: Final = {"source": "primary", "trust": "trusted"}
TAINTED: Final = {"source": "tool:web_fetch", "trust": "tainted"}

Payload = dict[str, Any]


class Journal:
    """The sealed records, segment by segment."""

    def __init__(self) -> None:
        self.segments: list[list[bytes]] = [[]]
        self.offset = 0
        self.tip_hash = GENESIS

    def append(self, at_ms: int, **fields: Any) -> int:
        """Seal a record and give its offset. A field that is None is left out, `turn_id` and snapshots apart."""
        self.offset += 1
        stamped = {"id": self.offset, "schema_version": SCHEMA_VERSION, "session_id": SESSION}
        record = {"ts": EVENING_US + at_ms * 1000, **fields, **stamped}
        nullable = {"turn_id", "snapshot_ref", "snapshot_hash"}
        kept = {key: value for key, value in record.items() if value is not None or key in nullable}
        sealed = seal(kept, self.tip_hash)
        self.tip_hash = sealed["hash"]
        self.segments[-1].append(encode(sealed) + b"\n")
        return self.offset

    def event(self, at_ms: int, family: str, what: str, payload: Payload, **fields: Any) -> int:
        """One event's record, `what` being its type."""
        common = {"family": family, "payload": payload, "tier": "durable", "turn_id": None, "type": what, "v": 0}
        return self.append(at_ms, **common | fields)

    def rotate(self) -> None:
        """Go on in the next segment."""
        self.segments.append([])


class Turn:
    """The records of one turn. Times are milliseconds after its start; what `fields` names goes beside the payload."""

    def __init__(self, journal: Journal, turn_id: str, begins_ms: int, branch: str | None = None) -> None:
        self.journal = journal
        self.turn_id = turn_id
        self.begins_ms = begins_ms
        self.branch = branch
        self.items = 0
        self.iterations = 0

    def record(self, at_ms: int, what: str, payload: Payload, fields: Payload | None = None) -> int:
        """One record of the turn; its offset."""
        own = {"branch_id": self.branch, "turn_id": self.turn_id, **(fields or {})}
        return self.journal.event(self.begins_ms + at_ms, "loop", what, payload, **own)

    def starts(self, prompt: str, *, fields: Payload | None = None, **more: Any) -> None:
        """The turn begins."""
        fields = {"provenance": TRUSTED, "scope": "session", **(fields or {})}
        self.record(0, "turn_started", {"prompt": prompt, **more}, fields)

    def begins(self, at_ms: int, item_type: str) -> Payload:
        """An item begins; what its two records have in common."""
        self.items += 1
        item = {"item_id": f"i{self.items}", "item_type": item_type}
        self.record(at_ms, "item_started", item)
        return item

    def item(self, from_ms: int, to_ms: int, item_type: str, fields: Payload | None = None, **more: Any) -> int:
        """A whole item; the offset of its completion."""
        item = self.begins(from_ms, item_type)
        return self.record(to_ms, "item_completed", item | more, fields)

    def thinks(self, from_ms: int, to_ms: int, content: str) -> None:
        """A piece of reasoning."""
        self.item(from_ms, to_ms, "reasoning", content=content)

    def says(self, from_ms: int, to_ms: int, content: str, **more: Any) -> None:
        """A message."""
        self.item(from_ms, to_ms, "message", content=content, **more)

    def calls(self, from_ms: int, to_ms: int, call_id: str, name: str, **arguments: Any) -> None:
        """The model asks for a tool."""
        self.item(from_ms, to_ms, "tool_use", arguments=arguments, call_id=call_id, name=name)

    def gets(
        self, from_ms: int, to_ms: int, name: str, content: str, fields: Payload | None = None, **more: Any
    ) -> int:
        """A tool's result; its offset, for evidence."""
        return self.item(from_ms, to_ms, "tool_result", fields, content=content, name=name, **more)

    def completes(self, at_ms: int, usage: Payload, *, fields: Payload | None = None, **more: Any) -> int:
        """One call of the model is over."""
        self.iterations += 1
        payload = {"final": False, "iteration": self.iterations, "usage": usage, **more}
        return self.record(at_ms, "turn_completed", payload, fields)


def tokens(sent: int, read: int, written: int, received: int, reasoning: int = 0) -> Payload:
    """Usage as a provider with a prompt cache reports it; zeros are not reported."""
    counts = {"cache_creation_input_tokens": written, "cache_read_input_tokens": read, "input_tokens": sent}
    usage: Payload = {key: count for key, count in counts.items() if count}
    usage["output_tokens"] = received
    return usage | ({"output_tokens_details": {"reasoning_tokens": reasoning}} if reasoning else {})


def coupon(journal: Journal) -> None:
    """A bug is found and fixed: two parallel calls, a test that fails and then passes, evidence accepted."""
    turn = Turn(journal, "turn-01", 214)
    prompt = "The cart total is wrong when a coupon is used. Please find out why and fix it."
    turn.starts(prompt, model="birch-large-3", provider="birch")
    turn.says(2, 3, prompt, role="user")
    turn.thinks(1_120, 2_874, "I will read the cart and the coupons side by side.")
    turn.calls(2_905, 3_310, "call_01", "read_file", path="src/cart.js")
    turn.calls(3_318, 3_702, "call_02", "read_file", path="src/coupons.js")
    turn.gets(3_760, 3_781, "read_file", "export const apply = (total, coupon) => ...", call_id="call_02")
    turn.gets(3_790, 3_806, "read_file", "export const total = (cart) => ...", call_id="call_01")
    turn.completes(3_812, tokens(1_240, 0, 6_144, 186, 92))
    turn.thinks(5_044, 7_391, "The coupon is applied to each line and then to the sum again.")
    turn.calls(7_420, 7_906, "call_03", "run_tests", path="test/cart.test.js")
    turn.gets(7_930, 11_572, "run_tests", "18 passed, 1 failed: a coupon counts once", call_id="call_03", exit_code=1)
    turn.completes(11_580, tokens(214, 6_144, 1_426, 133, 61))
    turn.calls(13_201, 15_088, "call_04", "edit_file", path="src/cart.js")
    turn.calls(15_096, 15_402, "call_05", "run_tests", path="test/cart.test.js")
    turn.gets(15_410, 15_433, "edit_file", "1 line changed", call_id="call_04")
    proof = turn.gets(15_440, 18_977, "run_tests", "19 passed", call_id="call_05", exit_code=0)
    turn.completes(18_984, tokens(187, 7_570, 0, 205))
    turn.says(19_866, 22_540, "The coupon was applied twice. It counts once now, and all 19 tests pass.")
    turn.completes(22_551, tokens(96, 7_570, 512, 58), evidence="accepted", final=True, refs=[proof])


def empty_cart(journal: Journal) -> None:
    """The tests ran before the last edit: evidence rejected. A result without a call id finds its call by name."""
    turn = Turn(journal, "turn-02", 61_400)
    turn.starts("Add a test for a cart that is empty.", model="birch-large-3", provider="birch")
    turn.calls(1_530, 2_011, "call_06", "run_tests", path="test/cart.test.js")
    stale = turn.gets(2_025, 5_620, "run_tests", "19 passed", call_id="call_06", exit_code=0)
    turn.calls(7_144, 9_380, "call_07", "edit_file", path="test/cart.test.js")
    turn.gets(9_391, 9_412, "edit_file", "9 lines added")
    turn.completes(9_420, tokens(310, 8_082, 0, 172))
    turn.says(10_655, 12_020, "There is a test for the empty cart now, and all tests pass.")
    rejected = {"reason": "stale_evidence", "ref": stale, "refs": [stale]}
    usage = tokens(141, 8_082, 256, 44)
    turn.completes(12_031, usage, evidence="rejected", evidence_rejected=rejected, final=True)


def page_weight(journal: Journal) -> None:
    """A question from a program that is traced itself: the turn joins its trace. No evidence was asked for."""
    turn = Turn(journal, "turn-03", 118_050)
    turn.starts("How heavy is the start page? A guess will do.", fields={"traceparent": TRACEPARENT})
    turn.thinks(940, 2_215, "The pictures decide; the rest is small.")
    answer = "About 3 MB, nearly all of it pictures."
    turn.record(3_377, "item_completed", {"content": answer, "item_id": "i2", "item_type": "message"})
    usage = {
        "completion_tokens": 71,
        "completion_tokens_details": {"reasoning_tokens": 38},
        "prompt_tokens": 2_905,
        "prompt_tokens_details": {"cached_tokens": 2_304},
    }
    turn.completes(3_384, usage, evidence="absent", final=True, model="birch-small-3", provider="birch")


def pictures(journal: Journal) -> None:
    """Three calls of the model and no last word: open until main's next turn starts."""
    turn = Turn(journal, "turn-04", 171_300)
    turn.starts("Make the product pictures load faster.", model="birch-large-3", provider="birch")
    turn.thinks(1_288, 3_015, "First I need to know how large they are.")
    turn.calls(3_040, 3_422, "call_08", "du -sh public/pictures")
    turn.gets(3_430, 3_498, "du -sh public/pictures", "48M public/pictures", call_id="call_08", exit_code=0)
    turn.completes(3_505, tokens(402, 8_338, 0, 88, 41))
    turn.calls(4_890, 5_316, "call_09", "web_fetch", url="https://example.com/picture-formats")
    page = "WebP is understood by every browser of the last years."
    turn.gets(5_340, 7_862, "web_fetch", page, {"provenance": TAINTED}, call_id="call_09")
    tip = turn.completes(7_870, tokens(655, 8_338, 768, 64))
    pointer: Payload = {"snapshot_hash": None, "snapshot_ref": None, "tip_offset": tip}
    journal.append(179_320, branch_id="main", kind="checkpoint", reason="compaction", **pointer)
    turn.item(9_105, 9_640, "checklist", content="shrink, rename, measure")
    turn.record(9_648, "plan_updated", {"done": 1, "steps": 3})
    turn.calls(9_660, 10_233, "call_10", "run_command", command="npx shrink public/pictures")
    request = {"action": "npx shrink public/pictures", "request_id": "apr-1", "risk": "medium"}
    turn.record(10_241, "approval_requested", request)
    turn.gets(17_902, 49_758, "run_command", "48M before, 9M after", call_id="call_10", exit_code=0)
    turn.completes(49_766, tokens(233, 9_106, 384, 97))


def between_turns(journal: Journal) -> None:
    """What is not of any turn, and what a later version may write: nothing here makes a span."""
    journal.event(238_411, "editor", "file_saved", {"path": "src/product.js"})
    journal.event(239_075, "meta", "note", {"text": "before the new pictures"}, kind="bookmark")
    journal.event(251_590, "loop", "idle", {"after_ms": 30_000})


def side_branch(journal: Journal) -> None:
    """A try on another branch, while main's last turn is still open."""
    turn = Turn(journal, "side-01", 256_000, "try-avif")
    turn.starts("Try AVIF instead, on a branch of its own.", model="birch-small-3", provider="birch")
    turn.calls(1_015, 1_467, "call_11", "shrink_pictures", folder="public/pictures", format="avif")
    proof = turn.gets(1_480, 20_733, "shrink_pictures", "48M before, 7M after", call_id="call_11")
    turn.says(21_902, 23_118, "AVIF saves 2 MB more, but some older browsers cannot show it.")
    turn.completes(23_127, tokens(1_180, 0, 2_048, 109), evidence="accepted", final=True, refs=[proof])


def overloaded(journal: Journal) -> None:
    """The model's provider turns the agent away."""
    turn = Turn(journal, "turn-05", 291_750)
    turn.starts("Use the smaller pictures on the product page.", model="birch-large-3", provider="birch")
    turn.thinks(1_402, 2_960, "The page takes its pictures from one list.")
    turn.record(14_318, "error", {"reason": "{:http_error, 503}", "retryable": True})


def preview(journal: Journal) -> None:
    """Canceled while a tool still runs and a message is half said; the tool's result comes too late."""
    turn = Turn(journal, "turn-06", 330_120)
    turn.starts("Try again, please, and show me a preview.", model="birch-large-3", provider="birch")
    turn.calls(1_611, 3_874, "call_12", "edit_file", path="src/product.js")
    turn.gets(3_883, 3_902, "edit_file", "4 lines changed", call_id="call_12")
    turn.completes(3_910, tokens(288, 9_490, 0, 141))
    turn.calls(5_233, 5_690, "call_13", "start_preview", port=4173)
    journal.rotate()
    turn.begins(5_702, "message")
    turn.record(41_015, "turn_canceled", {"reason": "user"})
    turn.gets(43_100, 43_111, "start_preview", "stopped", call_id="call_13")


def lid_closed(journal: Journal) -> None:
    """The laptop falls asleep in mid-turn: one call without a result, another that was never finished."""
    turn = Turn(journal, "turn-07", 401_000)
    turn.starts("Look at the pages on a narrow screen.", model="birch-large-3", provider="birch")
    turn.thinks(1_190, 2_433, "Three pages have pictures.")
    turn.calls(2_460, 2_951, "call_14", "open_page", page="/tea", width=360)
    turn.begins(2_960, "tool_use")
    journal.event(611_210, "loop", "woken", {})


def narrow_screen(journal: Journal) -> None:
    """After the sleep: the clock is set back 2.4 s within the first item, and three calls fail, each its own way."""
    turn = Turn(journal, "turn-08", 612_400)
    prompt = "I am back. Look at the pages on a narrow screen, then ask for a review."
    turn.starts(prompt, model="birch-large-3", provider="birch")
    turn.thinks(1_310, 815, "I will open the page again.")
    turn.calls(840, 1_205, "call_15", "open_page", page="/tea", width=360)
    page = "no answer from the page"
    turn.gets(1_214, 11_230, "open_page", page, call_id="call_15", error="timeout", is_error=True)
    turn.completes(11_238, tokens(118, 9_490, 450, 83, 29))
    turn.calls(12_706, 13_118, "call_16", "measure_layout", page="/tea")
    failed: Payload = {"reason": {"type": "no_viewport"}, "status": "failed"}
    # This tool's host writes its times as text, and the record after it has none: it takes the time before it.
    iso = {"ts": "2026-09-14T18:50:26.015Z"}
    turn.gets(13_126, 13_615, "measure_layout", "nothing to measure", iso, call_id="call_16", **failed)
    turn.completes(13_620, tokens(120, 9_940, 0, 47), fields={"ts": None})
    turn.calls(15_077, 15_460, "call_17", "read_file", path="styles/narrow.css")
    turn.gets(15_468, 15_489, "read_file", "{:error, :enoent}", call_id="call_17")
    turn.completes(15_497, tokens(131, 9_940, 0, 39))
    turn.calls(17_020, 17_644, "call_18", "ask_reviewer", page="/tea")
    reviewer(journal)
    proof = turn.gets(56_902, 56_930, "ask_reviewer", "Looks right at 360 pixels.", call_id="call_18")
    turn.completes(56_938, tokens(204, 9_940, 320, 51))
    turn.says(58_377, 60_844, "The style for narrow screens was missing, but the page looks right without it.")
    turn.completes(60_853, tokens(77, 10_260, 0, 46), evidence="accepted", final=True, refs=[proof])


def reviewer(journal: Journal) -> None:
    """Another agent, not run here: what it reported doing. Its second prompt ends with a question nobody answered."""

    def observed(at_ms: int, turn_id: str, step: str, **more: Any) -> None:
        journal.event(at_ms, "meta", "observed", {"step": step, **more}, actor="reviewer", turn_id=turn_id)

    allowed = {"kind": "allow_once", "option": "opt-1", "outcome": "selected"}
    observed(630_510, "review-1", "prompted")
    observed(632_074, "review-1", "tool_call", call="look-1", status="pending")
    observed(634_980, "review-1", "decision", call="look-1", outcome=allowed)
    observed(635_002, "review-1", "tool_call", call="look-1", status="in_progress")
    observed(641_377, "review-1", "tool_call", call="look-1", status="completed")
    observed(644_815, "review-1", "turn_ended", reason="end_turn")
    observed(645_230, "review-2", "prompted")
    observed(646_902, "review-2", "tool_call", call="look-2", status="pending")
    observed(666_905, "review-2", "decision", call="look-2", outcome={"outcome": "cancelled"})
    observed(666_931, "review-2", "tool_call", call="look-2", status="failed")
    observed(669_240, "review-2", "turn_ended", reason="cancelled")


def lost_start(journal: Journal) -> None:
    """The record of this turn's start and of its call could not be written: a synthesized turn with an orphan."""
    turn = Turn(journal, "turn-09", 858_600)
    turn.gets(0, 27, "git_commit", "1 commit", call_id="call_19")
    turn.says(1_466, 2_903, "Everything is committed. Good night!")
    turn.completes(2_911, tokens(164, 10_260, 0, 33), final=True)


def tour_files() -> dict[str, bytes]:
    """The files of the session, by their names below its directory."""
    journal = Journal()
    turns = (coupon, empty_cart, page_weight, pictures, between_turns, side_branch, overloaded, preview, lid_closed)
    for part in (*turns, narrow_screen, lost_start):
        part(journal)
    meta = {
        "chain": True,
        "created_at": "2026-09-14T18:39:58.902114Z",
        "cwd": "/home/ana/shop",
        "git_branch": "cart-and-pictures",
        "schema_version": SCHEMA_VERSION,
        "title": "An evening in the tea shop",
    }
    head = {
        "offset": journal.offset,
        "schema_version": SCHEMA_VERSION,
        "segment": len(journal.segments),
        "segment_cap": SEGMENT_CAP,
        "tip_hash": journal.tip_hash,
    }
    files = {f"journal/{number:06}.jsonl": b"".join(lines) for number, lines in enumerate(journal.segments, 1)}
    return {"HEAD": encode(head), **files, "meta.json": encode(meta)}


def write_tour(folder: Path) -> None:
    """Write the session directory `tour` in the folder."""
    for name, data in tour_files().items():
        path = folder / SESSION / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def manifest(folder: Path) -> bytes:
    """Size and SHA-256 of every file below the folder, its own MANIFEST.json apart, as readable JSON."""
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path != folder / "MANIFEST.json")
    entries = {
        path.relative_to(folder).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": sha256(path.read_bytes()).hexdigest(),
        }
        for path in paths
    }
    return json.dumps(entries, indent=2, sort_keys=True).encode() + b"\n"


def main() -> None:
    """Write the tour and the manifest into the folder named on the command line."""
    folder = Path(sys.argv[1])
    write_tour(folder)
    (folder / "MANIFEST.json").write_bytes(manifest(folder))


if __name__ == "__main__":
    main()
