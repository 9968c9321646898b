"""What was said stays where it is: canaries in every place of a journal, looked for in everything that leaves."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any, Final

from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from raxol_otel.exporters.console import ConsoleExporter
from raxol_otel.exporters.html import HtmlExporter
from raxol_otel.exporters.replay import ReplayOptions, replay
from raxol_otel.journal import checkpoint, open_journal
from raxol_otel.turns import FoldConfig
from tests.live_sdk import Logs, Meters, Traces, instrumented
from tests.prometheus_agent import event

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

PLACES: Final = (
    *("prompt", "message", "reasoning", "arguments", "result", "title", "errortext", "toolerror", "action", "command"),
    *("detail", "basedir", "cwd", "gitbranch", "sessiontitle", "role", "delta", "snapshot", "details"),
)
# With capture on, what of it telemetry.md lets out, and where.
CAPTURED: Final = {
    "prompt": "gen_ai.input.messages",
    "message": "gen_ai.output.messages",
    "reasoning": "gen_ai.output.messages",
    "arguments": "gen_ai.tool.call.arguments",
    "result": "gen_ai.tool.call.result",
}


def canaries(place: str) -> str:
    """A sentence, a single word and a path, of one place."""
    return f"the canary{place}s sentence is long canary{place}w /home/canary{place}p/x"


def keep(folder: Path) -> Path:
    """A journal with canaries in every place; the folder of its sessions."""
    base = folder / "canarybasedirp"
    said = {place: canaries(place) for place in PLACES}
    word = {place: f"canary{place}w" for place in PLACES}
    with open_journal(
        "s", base_dir=base, cwd=said["cwd"], git_branch=said["gitbranch"], title=said["sessiontitle"]
    ) as journal:
        call = {"item_type": "tool_use", "item_id": "i", "name": "sh", "call_id": "1"}
        answer = {**call, "item_type": "tool_result", "item_id": "j"}
        failed = {"status": "failed", "error": said["toolerror"], "reason": said["toolerror"]}
        for number, text in enumerate((said, word)):
            for one in (
                event(number, "turn_started", prompt=text["prompt"]),
                event(number, "item_delta", item_id="m", delta=text["delta"]),
                event(number, "item_completed", item_type="message", item_id="m", content=text["message"]),
                event(number, "item_completed", item_type="reasoning", item_id="q", content=text["reasoning"]),
                event(number, "item_completed", **call, arguments={"x": text["arguments"]}, title=text["title"]),
                event(number, "approval_requested", request_id="r", risk="low", action=text["action"], command=text),
                event(number, "item_completed", **answer, result=text["result"]),
                event(number, "item_completed", **call, arguments=text["arguments"], title=text["title"]),
                event(number, "item_completed", **answer, result="", **failed),
                event(number, "error", reason=said["errortext"], message=text["errortext"], details=text["details"]),
                event(number, "observed", "meta", step="prompted", detail=text["detail"], prompt=text["prompt"]),
                *(
                    event(
                        number,
                        "observed",
                        "meta",
                        step="tool_call",
                        call="c",
                        status=status,
                        title=text["title"],
                        detail=text["detail"],
                    )
                    for status in ("pending", "completed")
                ),
                event(number, "observed", "meta", step="decision", call="c", outcome={"outcome": "selected"}),
                event(number, "observed", "meta", step="turn_ended", reason=said["detail"], detail=text["detail"]),
            ):
                journal.append(one)
        checkpoint.write(journal, {"messages": [said["snapshot"]]})
    return base


def everything(folder: Path, log: pytest.LogCaptureFixture, config: FoldConfig) -> dict[str, str]:
    """All that leaves, by where."""
    log.set_level(logging.DEBUG)
    logs, meters, registry, traces = Logs(), Meters(), CollectorRegistry(), Traces()
    with instrumented(
        traces=traces, logger_provider=logs.provider, meter_provider=meters.provider, registry=registry, legacy=True
    ):
        base = keep(folder)
        metrics = choose_encoder("application/openmetrics-text; version=1.0.0")[0](registry).decode()
    out = io.StringIO()
    options = ReplayOptions(config)
    replay([base], ConsoleExporter(out), options)
    replay([base], HtmlExporter(folder / "out.html"), options)
    return {
        "spans": "".join(span.to_json() for span in traces.all()),
        "events": str([str(one) for one in logs.events()]),
        "instruments": repr(meters.metrics()),
        "metrics": metrics,
        "log": log.text,
        "console": out.getvalue(),
        "html": (folder / "out.html").read_text(encoding="utf-8"),
    }


def test_nothing_that_was_said_leaves(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Without capture: in no span, event, metric, exemplar, log line, page or line of the console."""
    for where, text in everything(tmp_path, caplog, FoldConfig()).items():
        assert "canary" not in text, where
    assert "execute_tool" in (tmp_path / "out.html").read_text(encoding="utf-8")


def test_what_is_captured_stands_where_it_is_said_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With SPAN_ONLY: in the four attributes for it, of spans; nowhere else, and nothing that is not content."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "SPAN_ONLY")
    left = everything(tmp_path, caplog, FoldConfig(capture_content=True))
    for where in ("events", "instruments", "metrics", "log"):
        assert "canary" not in left[where], where
    assert "canaryprompt" in left["html"]
    found: set[tuple[str, str]] = set()
    decoder, text = json.JSONDecoder(), left["spans"]
    while text:
        span, end = decoder.raw_decode(text)
        text = text[end:]
        attributes: dict[str, Any] = span.pop("attributes")
        assert "canary" not in json.dumps(span)
        found |= {
            (place, key) for key, value in attributes.items() for place in PLACES if f"canary{place}" in str(value)
        }
    assert found == set(CAPTURED.items())


def test_a_capture_that_is_not_known_is_none(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another value of the variable is told of, once, and captures nothing."""
    monkeypatch.setenv("OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT", "true")
    with instrumented() as traces:
        keep(tmp_path)
    assert "canary" not in "".join(span.to_json() for span in traces.all())
    assert [record.message for record in caplog.records if "SPAN_ONLY" in record.message] == [
        "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT=true is not SPAN_ONLY: no content is exported"
    ]
