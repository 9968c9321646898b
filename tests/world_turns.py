"""Turns of the generated world: conversations of an agent with a model, drawn from a seed and played in real time."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from raxol_otel.observed import Cancelled, Decision, Prompted, Selected, Status, ToolCall, TurnEnded, record

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

    from raxol_otel.journal import Journal

__all__ = ["FAILING_TOOL", "Conversation", "event", "observe"]


@dataclass(frozen=True, slots=True)
class Tool:
    """How long a tool takes, in seconds; the share of its calls that fail; how often it is used."""

    name: str
    fastest: float
    slowest: float
    failing: float
    weight: int


FAILING_TOOL: Final = "deploy_preview"
TOOLS: Final = (
    Tool("read_file", 0.005, 0.05, 0.01, 6),
    Tool("search", 0.05, 0.4, 0.02, 5),
    Tool("apply_patch", 0.02, 0.2, 0.08, 3),
    Tool("run_tests", 0.6, 4.0, 0.25, 3),
    Tool("fetch_page", 0.2, 1.5, 0.1, 2),
)
FAILING: Final = Tool(FAILING_TOOL, 0.05, 0.3, 0.85, 0)
PROMPTS: Final = (
    "the checkout total is wrong when a coupon is used",
    "why is the build red?",
    "write a test for the new parser",
    "update the changelog and open a pull request",
)
# How turns end, of a hundred.
ENDINGS: Final = {"completed": 76, "error": 9, "canceled": 8, "incomplete": 7}
# What a model's provider says when it refuses, and how often.
REASONS: Final = {"rate_limited": 4, "timeout": 3, "%RuntimeError{message: no route}": 1, "it broke, nobody knows": 1}
OUTAGE_REASON: Final = "overloaded"
EVIDENCE: Final = {"accepted": 50, "rejected": 20, "absent": 25, "unknown": 5}
EVIDENCE_FAULTS: Final = ("missing_ref", "stale_evidence", "foreign_turn")
# While a provider is out, so many turns ask in vain.
IN_VAIN: Final = 0.9
# Of all turns: slow ones, those that wait for a human, and those with something odd in them.
SLOW: Final = 0.05
ASKING: Final = 0.08
ODD: Final = 0.15
DOLLARS_IN: Final = 3e-6
DOLLARS_OUT: Final = 15e-6


def event(turn: str, kind: str, *, at: float | None = None, **payload: Any) -> dict[str, Any]:
    """A record of a turn's, as of now or of another time in seconds since the epoch."""
    now_us = round((time.time() if at is None else at) * 1_000_000)
    common = {"kind": "event", "family": "loop", "tier": "durable", "type": kind, "turn_id": turn}
    return {**common, "ts": now_us, "payload": payload}


class Conversation:
    """One session's turns, one after another. `pause` waits so many seconds, and raises when the world ends.

    The same seed asks, calls and fails in the same way; only an outage, which comes by the clock, ends turns early.
    """

    def __init__(
        self, journal: Journal, random: Random, pause: Callable[[float], None], is_out: Callable[[], bool]
    ) -> None:
        self._journal = journal
        self._random = random
        self._pause = pause
        self._is_out = is_out
        self._turn = ""
        self._items = 0

    def have(self, number: int) -> None:
        """Have a turn."""
        random = self._random
        self._turn, self._items = f"turn-{number}", 0
        ending = self._drawn(ENDINGS)
        provider_calls = random.choice((1, 1, 2, 2, 3, 5))
        is_slow, is_asking, is_odd, is_vain = (random.random() < share for share in (SLOW, ASKING, ODD, IN_VAIN))
        self._say("turn_started", prompt=random.choice(PROMPTS), model="claude-sonnet-4-5", provider="anthropic")
        self._think()
        if is_vain and self._is_out():
            self._fail()
            return
        for call in range(provider_calls - 1):
            self._work()
            self._spend(final=False)
            if is_asking and call == 0:
                self._ask()
        if is_slow:
            self._call(Tool("run_tests", 8, 20, 0.3, 0))
        if is_odd:
            self._be_odd()
        self._end(ending)
        if is_odd:
            # Too late: nobody waits for it any more.
            self._item("message", role="assistant", content="and one more thing")

    def deploy(self, number: int) -> None:
        """Have a turn that tries again and again what fails."""
        self._turn, self._items = f"turn-{number}", 0
        self._say("turn_started", prompt="show me a preview", model="claude-haiku-4-5", provider="anthropic")
        if self._random.random() < IN_VAIN and self._is_out():
            self._fail()
            return
        for _ in range(self._random.randint(2, 4)):
            self._call(FAILING)
        self._spend(final=True, evidence="absent")

    # -- parts of a turn

    def _say(self, kind: str, **payload: Any) -> None:
        self._journal.append(event(self._turn, kind, **payload))

    def _drawn(self, weights: dict[str, int]) -> str:
        return self._random.choices(list(weights), list(weights.values()))[0]

    def _item(self, kind: str, **payload: Any) -> None:
        self._items += 1
        self._say("item_completed", item_type=kind, item_id=f"item-{self._items}", **payload)

    def _think(self) -> None:
        """What a model does first."""
        self._say("item_started", item_type="reasoning", item_id="thought")
        self._pause(self._random.uniform(0.1, 0.6))
        self._say("item_completed", item_type="reasoning", item_id="thought", content="Let me see.")

    def _fail(self) -> None:
        """What comes of asking a provider that is out."""
        self._pause(self._random.uniform(0.5, 1.5))
        self._say("error", reason=OUTAGE_REASON)

    def _work(self) -> None:
        for tool in self._random.choices(TOOLS, [tool.weight for tool in TOOLS], k=self._random.randint(1, 3)):
            self._call(tool)

    def _call(self, tool: Tool) -> None:
        seconds = self._random.uniform(tool.fastest, tool.slowest)
        fails = self._random.random() < tool.failing
        own = {"name": tool.name, "call_id": f"call-{self._items}"}
        self._item("tool_use", **own, arguments={"path": "shop/cart.py"})
        self._pause(seconds)
        self._items += 1
        said: dict[str, Any] = {**own, "item_type": "tool_result", "item_id": f"item-{self._items}"}
        said["result"] = "{:error, timeout}" if fails else "fine"
        # What comes from elsewhere is not trusted.
        trust = {"provenance": {"trust": "tainted"}} if tool.name == "fetch_page" else {}
        self._journal.append({**event(self._turn, "item_completed", **said), **trust})

    def _ask(self) -> None:
        risk = self._random.choice(("low", "medium", "high"))
        self._say("approval_requested", request_id=f"ask-{self._turn}", risk=risk, action="git push")
        self._pause(self._random.uniform(0.5, 2))

    def _spend(self, *, final: bool, **more: Any) -> None:
        """What the provider counts, and charges."""
        random = self._random
        fresh, read, written = random.randint(200, 2_000), random.randint(2_000, 20_000), random.randint(0, 3_000)
        out, reasoning = random.randint(100, 1_200), random.randint(0, 90)
        usage = {
            "input_tokens": fresh,
            "cache_read_input_tokens": read,
            "cache_creation_input_tokens": written,
            "output_tokens": out,
            "output_tokens_details": {"reasoning_tokens": reasoning},
        }
        cost = round((fresh + read / 10 + written * 1.25) * DOLLARS_IN + out * DOLLARS_OUT, 6)
        self._say("turn_completed", usage=usage, cost=cost, final=final, **more)

    def _be_odd(self) -> None:
        """What a later version, or a wrong one, might write: each is counted, and does no harm."""
        own = event(self._turn, "state_change")
        for odd in (
            {**own, "type": "dreamt"},
            {**own, "family": "weather"},
            {**own, "kind": "telegram"},
            event(self._turn, "item_completed", item_type="hologram", item_id="odd"),
            event(self._turn, "item_completed", item_type="tool_result", item_id="orphan", call_id="nobody", result=""),
            event(self._turn, "reserve", amount=1),
            event(self._turn, "settle", amount=1),
        ):
            self._journal.append(odd, sync=False)

    def _end(self, ending: str) -> None:
        if ending == "error":
            self._say("error", reason=self._drawn(REASONS))
        elif ending == "canceled":
            # A call is never answered.
            self._item("tool_use", name="run_tests", call_id="call-last")
            self._pause(self._random.uniform(0.2, 1))
            self._say("turn_canceled")
        elif ending == "completed":
            status = self._drawn(EVIDENCE)
            fault = {"evidence_rejected": {"reason": self._random.choice(EVIDENCE_FAULTS)}}
            more = fault if status == "rejected" else {}
            self._item("message", role="assistant", content="It is done.")
            self._spend(final=True, evidence=status, **more)
        # An incomplete turn just stops, and the next one begins.


def observe(journal: Journal, random: Random, pause: Callable[[float], None], number: int) -> None:
    """What an agent elsewhere reports of a turn of its own, and what a person answered it."""
    call = f"call-{number}"
    answer = Cancelled() if random.random() < 0.2 else Selected("yes", random.choice(("allow_once", "allow_always")))
    ended = ToolCall(call, Status.FAILED if random.random() < 0.3 else Status.COMPLETED)
    record(journal, Prompted(), turn_id=f"review-{number}")
    for step in (ToolCall(call, Status.PENDING), Decision(call, answer), ToolCall(call, Status.IN_PROGRESS), ended):
        pause(random.uniform(0.05, 0.5))
        record(journal, step)
    record(journal, TurnEnded("end_turn"))
