"""Agents whose journals are followed, and what a replay from scratch says that must have arrived.

As a process of its own: `python -m tests.follow_agents DIR --name N --sessions K --turns T --seconds S --seed X` writes
so many turns, in all, spread over so long.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from raxol_otel.exporters.otlp_config import OtlpConfig
from raxol_otel.exporters.otlp_proto import span_proto
from raxol_otel.exporters.replay import ReplayOptions, replay
from raxol_otel.fleet.delivery import Delivery
from raxol_otel.fleet.follow import Follow
from raxol_otel.fleet.state import FleetState
from raxol_otel.journal import open_journal
from tests.exporter_contract import Recorder

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from raxol_otel.exporters.prometheus import EndpointFacts
    from raxol_otel.fleet.delivery import DeliveryOptions
    from raxol_otel.journal import Journal
    from tests.otlp_receiver import Received, Receiver

# A span is known by its id and its outcome.
Key = tuple[str, str]
_OUTCOMES: Final = ("raxol.turn.outcome", "raxol.tool.outcome")


class Agent:
    """One session's writer: whole turns, or their parts."""

    def __init__(self, journal: Journal, seed: int | str = 0) -> None:
        self.journal = journal
        self.turns = 0
        self._drawn = random.Random(seed)  # noqa: S311 - the same turns every time

    def say(self, kind: str, **payload: Any) -> int:
        """Append a record of the turn; its offset."""
        event = {"v": 0, "family": "loop", "tier": "durable", "type": kind, "turn_id": f"turn-{self.turns}"}
        return self.journal.append({**event, "ts": time.time_ns() // 1000, "payload": payload}, sync=False)

    def start(self) -> None:
        """Begin a turn."""
        self.turns += 1
        self.say("turn_started")

    def message(self, text: str = "hello") -> None:
        """Two records, one span."""
        item = f"i{self._drawn.getrandbits(48)}"
        self.say("item_started", item_id=item, item_type="message", role="assistant")
        self.say("item_completed", item_id=item, item_type="message", role="assistant", content=text)

    def tool(self, name: str = "search") -> None:
        """Two records, one span."""
        call = f"c{self._drawn.getrandbits(48)}"
        self.say("item_completed", item_id=f"u{call}", item_type="tool_use", name=name, call_id=call)
        self.say("item_completed", item_id=f"r{call}", item_type="tool_result", name=name, call_id=call)

    def end(self, outcome: str = "completed") -> None:
        """Close the turn."""
        if outcome == "completed":
            self.say("turn_completed", final=True, usage={"input_tokens": 7, "output_tokens": 2})
        elif outcome == "error":
            self.say("error", reason="timeout")
        else:
            self.say("turn_canceled")

    def turn(self, outcome: str | None = None, items: int | None = None) -> None:
        """A whole turn of that many children, or of some."""
        self.start()
        for _ in range(self._drawn.randint(0, 8) if items is None else items):
            self._drawn.choice((self.message, self.tool))()
        self.end(outcome or self._drawn.choice(("completed", "completed", "completed", "error", "canceled")))


@contextmanager
def agent(folder: Path, name: str = "one", seed: int | str = 0) -> Generator[Agent]:
    """The writer of a session of that name."""
    with open_journal(name, base_dir=folder) as journal:
        yield Agent(journal, f"{name}{seed}")


@dataclass
class Following:
    """What follows, what it said, and at its end which deliveries did not deliver all that they had read."""

    deliveries: list[Delivery]
    said: list[str]
    failed: list[Delivery] | None = None

    @property
    def facts(self) -> EndpointFacts:
        """Of the first delivery."""
        return self.deliveries[0].facts


@contextmanager
def following(
    folder: Path, *configs: OtlpConfig, options: DeliveryOptions | None = None, state: Path | None = None
) -> Generator[Following]:
    """Deliveries of the sessions in a folder, looked at ten times a second, with the state beside it."""
    said: list[str] = []
    kept = FleetState(state or folder.parent / "state")
    deliveries = [Delivery(config, kept, options, notice=said.append) for config in configs]
    follow = Follow([folder], deliveries, kept, poll=True, notice=said.append)
    stop = threading.Event()

    def wait(seconds: float) -> bool:
        return stop.wait(min(seconds, 0.1))

    thread = threading.Thread(target=follow.run, args=(wait,))
    thread.start()
    found = Following(deliveries, said)
    try:
        yield found
    finally:
        stop.set()
        thread.join()
        found.failed = follow.stop()
        kept.close()


def http(receiver: Receiver, **more: Any) -> OtlpConfig:
    """The receiver as an endpoint, whose patience is short."""
    fields: dict[str, Any] = {"timeout": 2.0, **more}
    return OtlpConfig(receiver.http_endpoint, **fields)


def replayed(folder: Path, options: ReplayOptions | None = None) -> dict[Key, SpanMessage]:
    """What a replay from scratch gives, by id and outcome."""
    memory = Recorder()
    replay([folder], memory, options or ReplayOptions(settle_seconds=0))
    return keyed(SpanMessage.FromString(span_proto(span)) for span in memory.spans)


def keyed(spans: Iterable[SpanMessage]) -> dict[Key, SpanMessage]:
    """Spans by id and outcome; where one is there twice, both are the same."""
    found: dict[Key, SpanMessage] = {}
    for span in spans:
        key = key_of(span)
        assert found.setdefault(key, span) == span, f"two spans of {key}"
    return found


def key_of(span: SpanMessage) -> Key:
    """The id and the outcome."""
    outcomes = [pair.value.string_value for pair in span.attributes if pair.key in _OUTCOMES]
    return span.span_id.hex(), "".join(outcomes)


def arrived(received: Iterable[Received]) -> dict[Key, SpanMessage]:
    """What a receiver took, by id and outcome; whatever came twice was the same."""
    return keyed(one.span for one in received)


def main() -> None:
    """Write turns in several sessions, one after the other, and close them; says each moment that a turn ends at."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--name", default="s")
    parser.add_argument("--sessions", type=int, default=3)
    parser.add_argument("--turns", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=0.0)
    parser.add_argument("--seed", default="0")
    options = parser.parse_args()
    with ExitStack() as stack:
        agents = [
            stack.enter_context(agent(options.folder, f"{options.name}-{number}", options.seed))
            for number in range(options.sessions)
        ]
        begun = time.monotonic()
        for number in range(options.turns):
            time.sleep(max(0.0, begun + number / options.turns * options.seconds - time.monotonic()))
            agents[number % len(agents)].turn()
    sys.stdout.write("done\n")


if __name__ == "__main__":
    main()
