"""An agent to scrape: `python -m tests.prometheus_agent FOLDER` keeps a journal there, folds it and serves /metrics.

It writes a line of JSON, its port; then, for every line that it reads, it plays a turn and writes the ids of the turn's
span and of its tool call's. It ends with its standard input.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, start_http_server

from raxol_otel.journal import Journal, checkpoint, open_journal, scan
from raxol_otel.metrics import Following, Metrics
from raxol_otel.turns import TurnFold
from tests.conftest import make_journal


def event(number: int, kind: str, family: str = "loop", **payload: Any) -> dict[str, Any]:
    """An event of turn `number`, now."""
    own = {"kind": "event", "family": family, "tier": "durable", "ts": time.time_ns() // 1000}
    return {**own, "type": kind, "turn_id": f"t{number}", "payload": payload}


def turn(number: int) -> list[dict[str, Any]]:
    """A turn that calls a tool, asks for an approval and pays."""
    usage = {"input_tokens": 30, "cache_read_input_tokens": 60, "output_tokens": 40}
    return [
        event(number, "turn_started"),
        event(number, "item_completed", item_type="tool_use", item_id="i", name="sh", call_id="1"),
        event(number, "approval_requested", request_id="r", risk="low"),
        event(number, "item_completed", item_type="tool_result", item_id="j", name="sh", call_id="1"),
        event(number, "turn_completed", final=True, usage=usage, cost=0.25),
    ]


def play(journal: Journal, fold: TurnFold, following: Following, records: list[dict[str, Any]]) -> dict[str, str]:
    """Write records, and count what was written; the ids of the spans."""
    first = journal.append_many(records)[0]
    written = [record for record in journal.read() if record["id"] >= first]
    spans = fold.feed_many(written)
    following.observe(written, spans, exemplar=True)
    return {span.role: f"{span.trace_id} {span.span_id}" for span in spans}


def damaged(folder: Path) -> None:
    """Scan a journal that is damaged."""
    files, _ = make_journal([1, 2, 3])
    files["journal/000001.jsonl"] = files["journal/000001.jsonl"].replace(b'"id":2', b'"id":7')
    for name, data in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    assert not scan(folder).ok


def main(folder: Path) -> None:
    """Keep a journal while there is anybody to read about it."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)
    metrics.attach()
    server, thread = start_http_server(0, "127.0.0.1", registry)
    damaged(folder / "damaged")
    with open_journal("scraped", base_dir=folder) as journal:
        fold = TurnFold("scraped")
        following = metrics.follow(fold)
        say({"port": server.server_port})
        for number, _line in enumerate(sys.stdin):
            ids = play(journal, fold, following, turn(number))
            if number == 0:
                checkpoint.write(journal, {})
            say(ids)
    server.shutdown()
    server.server_close()
    thread.join()


def say(what: dict[str, Any]) -> None:
    """Write a line of JSON at once."""
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
