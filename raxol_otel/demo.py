"""A small set of real journals to play with: healthy, torn, damaged, chained, tampered with, short of its tail.

They are written by the journal's own writer; what is wrong with them is done to the files afterwards.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.errors import UsageError
from raxol_otel.journal import checkpoint, open_journal

if TYPE_CHECKING:
    from raxol_otel.journal import Journal

__all__ = ["SESSIONS", "write_demo"]

# What is written, and what `raxol-otel verify` says of it.
SESSIONS: Final = {
    "checkout-bug": "healthy",
    "audited": "healthy",
    "power-cut": "torn",
    "glued-lines": "damaged",
    "tampered": "damaged",
    "lost-tail": "truncated",
}
_HOUR_US: Final = 3_600_000_000


def write_demo(directory: str | os.PathLike[str], now_us: int) -> list[Path]:
    """Write the demo's sessions into a directory that is new or empty; their directories.

    `now_us` is the time in microseconds since the epoch; the sessions end some hours before it. Raises `UsageError`
    for a directory with something in it, and the errors of `open_journal`.
    """
    base = Path(directory)
    if os.path.lexists(base) and not (base.is_dir() and not any(base.iterdir())):
        raise UsageError(f"{base} is there already, and not an empty directory", "name another directory")
    for number, name in enumerate(SESSIONS):
        is_chained = name in {"audited", "tampered"}
        story = _Story(now_us - (len(SESSIONS) - number + 1) * _HOUR_US, is_chained=is_chained)
        with open_journal(name, base_dir=base, chain=is_chained, segment_cap=4096, title="raxol-otel demo") as journal:
            story.tell(journal)
    _tear(base / "power-cut")
    _glue(base / "glued-lines")
    _tamper(base / "tampered")
    _truncate(base / "lost-tail")
    return [base / name for name in SESSIONS]


class _Story:
    """Four turns of an agent: one that works, one that fails, one canceled, one that ends in a checkpoint."""

    def __init__(self, start_us: int, *, is_chained: bool) -> None:
        self._now = start_us
        self._is_chained = is_chained
        self._turn = ""

    def tell(self, journal: Journal) -> None:
        """Append everything."""
        self._journal = journal
        self._begin("turn-1", "the checkout total is wrong when a coupon is used")
        self._call("call-1", "search", {"query": "coupon"}, "3 files", seconds=0.4)
        self._call("call-2", "read_file", {"path": "shop/cart.py"}, "def total(items, coupon): ...", seconds=0.1)
        self._usage(1_840, 210, 0.0112)
        self._call("call-3", "run_tests", {"path": "tests"}, "{:error, 1 failed}", seconds=6.5)
        self._call("call-4", "apply_patch", {"path": "shop/cart.py"}, "applied", seconds=0.2)
        self._call("call-5", "run_tests", {"path": "tests"}, "12 passed", seconds=6.1)
        self._say("The coupon was taken off twice; fixed, and the tests pass.")
        self._usage(2_975, 388, 0.0207, final=True, evidence="accepted", refs=[journal.last_offset])
        self._begin("turn-2", "and deploy it")
        self._event("error", {"reason": "rate_limited"}, after=2.2)
        self._begin("turn-3", "try again")
        self._call("call-6", "deploy", {"to": "staging"}, None, seconds=30)
        self._event("turn_canceled", {}, after=0.1)
        self._begin("turn-4", "leave it, write down what is left to do")
        self._say("To do: deploy to staging once the rate limit is over.")
        self._usage(910, 64, 0.0039, final=True, evidence="absent")
        checkpoint.write(journal, {"applied": [], "todo": ["deploy to staging"]}, reason="compaction")

    def _event(self, kind: str, payload: dict[str, Any], *, after: float) -> None:
        self._now += round(after * 1_000_000)
        common = {"v": 0, "session_id": self._journal.session_id, "turn_id": self._turn, "tier": "durable"}
        self._journal.append({**common, "family": "loop", "type": kind, "ts": self._now, "payload": payload})

    def _begin(self, turn: str, prompt: str) -> None:
        self._turn = turn
        self._event("turn_started", {"prompt": prompt}, after=20)

    def _call(self, call: str, name: str, arguments: dict[str, Any], result: str | None, *, seconds: float) -> None:
        use = {"item_id": call, "item_type": "tool_use", "call_id": call, "name": name}
        self._event("item_started", {"item_id": call, "item_type": "tool_use"}, after=0.9)
        self._event("item_completed", {**use, "arguments": arguments}, after=0.3)
        if result is not None:
            answer = {"item_id": f"{call}-result", "item_type": "tool_result", "call_id": call, "name": name}
            self._event("item_completed", {**answer, "result": result}, after=seconds)

    def _say(self, text: str) -> None:
        self._event("item_started", {"item_id": f"{self._turn}-text", "item_type": "message"}, after=0.8)
        message = {"item_id": f"{self._turn}-text", "item_type": "message", "role": "assistant", "content": text}
        self._event("item_completed", message, after=1.7)

    def _usage(self, tokens_in: int, tokens_out: int, cost: float, *, final: bool = False, **more: Any) -> None:
        payload = {"usage": {"input_tokens": tokens_in, "output_tokens": tokens_out}, "final": final, **more}
        # A chained journal carries no floats.
        self._event("turn_completed", payload if self._is_chained else {**payload, "cost": cost}, after=0.2)


def _last(session: Path) -> Path:
    """The last segment with something in it."""
    return max(path for path in (session / "journal").iterdir() if path.stat().st_size)


def _tear(session: Path) -> None:
    """As a power cut leaves it: the last line is not all there."""
    with _last(session).open("ab") as segment:
        segment.write(b'{"family":"loop","id":999,"payl')


def _glue(session: Path) -> None:
    """As writers without a lock leave it: two records on one line."""
    path = session / "journal" / "000001.jsonl"
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], lines[4] + lines[5], *lines[6:]]))


def _tamper(session: Path) -> None:
    """As somebody leaves it who would rather have had fewer failures."""
    path = session / "journal" / "000001.jsonl"
    path.write_bytes(path.read_bytes().replace(b"{:error, 1 failed}", b"12 passed", 1))


def _truncate(session: Path) -> None:
    """As a copy leaves it that missed the last segment: HEAD knows better."""
    _last(session).unlink()
