"""Every exporter against the one contract; and what the environment has to say about all that is exported."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel.exporters.base import NullExporter
from raxol_otel.exporters.console import ConsoleExporter
from raxol_otel.exporters.file import FileExporter
from raxol_otel.exporters.otlp_json import Envelope
from tests.exporter_contract import ExporterContract, Subject, batch, raxol, turn_span, turns_records, write_session

if TYPE_CHECKING:
    from pathlib import Path

CAPTURE: Final = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT"
ENVELOPE: Final = Envelope({}, scope_name="tests", scope_version="1", schema_url="")


def text_stream(encoding: str = "utf-8") -> tuple[io.BytesIO, io.TextIOWrapper]:
    """What was written, and the stream to write it with, as strict as standard output is."""
    written = io.BytesIO()
    return written, io.TextIOWrapper(written, encoding=encoding, newline="\n", write_through=True)


class TestNull(ExporterContract):
    """The dry run."""

    @pytest.fixture
    def subject(self) -> Subject:
        """It takes all and delivers nothing."""
        return Subject(NullExporter, dict, delivers=False)


class TestConsole(ExporterContract):
    """The tree in the terminal, as plain text."""

    @pytest.fixture
    def subject(self) -> Subject:
        """Prints into a stream in memory."""
        written, stream = text_stream()
        return Subject(lambda: ConsoleExporter(stream), lambda: {"stream": written.getvalue()})


class TestStyledConsole(ExporterContract):
    """The tree with styles."""

    @pytest.fixture
    def subject(self) -> Subject:
        """Prints into a stream in memory."""
        written, stream = text_stream()
        return Subject(lambda: ConsoleExporter(stream, styled=True), lambda: {"stream": written.getvalue()})


class TestAsciiConsole(ExporterContract):
    """The tree where only ASCII can be written."""

    @pytest.fixture
    def subject(self) -> Subject:
        """Prints into a stream in memory that refuses all other letters."""
        written, stream = text_stream("ascii")
        return Subject(lambda: ConsoleExporter(stream), lambda: {"stream": written.getvalue()})


class TestFile(ExporterContract):
    """OTLP JSON lines."""

    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        """Writes into an empty folder."""
        return Subject(
            lambda: FileExporter(tmp_path / "out.jsonl", ENVELOPE),
            lambda: {path.name: path.read_bytes() for path in tmp_path.iterdir()},
        )


def test_what_the_console_printed_before_an_abort_stays() -> None:
    """A turn is printed as soon as it is there; giving up takes nothing back and prints nothing more."""
    written, stream = text_stream()
    exporter = ConsoleExporter(stream)
    exporter.export([*batch(1), *batch(2)[:2]])
    printed = written.getvalue()
    exporter.abort()
    assert b"turn-1" in printed
    assert written.getvalue() == printed


def test_children_that_wait_when_the_console_is_aborted_are_forgotten() -> None:
    """A turn that comes after an abort shows no child from before it."""
    written, stream = text_stream()
    exporter = ConsoleExporter(stream)
    exporter.export(batch()[:2])
    exporter.abort()
    exporter.export([turn_span()])
    assert b"turn-1" in written.getvalue()
    assert b"tool-1" not in written.getvalue()


def test_an_aborted_file_with_whole_lines_leaves_nothing(tmp_path: Path) -> None:
    """Also lines that were written already, and turns, are gone with the temporary file."""
    exporter = FileExporter(tmp_path / "out.jsonl", ENVELOPE)
    exporter.export([turn_span(number) for number in range(1, 2000)])
    exporter.abort()
    assert list(tmp_path.iterdir()) == []


def attributes_of(path: Path) -> dict[str, Any]:
    """All attributes in a file of OTLP JSON lines, of the resource and of the spans; the last value of each key."""
    found: dict[str, Any] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        for around in json.loads(line)["resourceSpans"]:
            spans = [span for scope in around["scopeSpans"] for span in scope["spans"]]
            for holder in (around["resource"], *spans):
                found |= {pair["key"]: next(iter(pair["value"].values())) for pair in holder["attributes"]}
    return found


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A healthy session of two turns."""
    return write_session(tmp_path / "in" / "one", turns_records(2))


@pytest.mark.parametrize(("value", "wanted"), [(None, False), ("", False), ("true", False), ("SPAN_ONLY", True)])
def test_content_leaves_only_when_asked_for(session: Path, tmp_path: Path, value: str | None, wanted: bool) -> None:  # noqa: FBT001 - a column of the table
    """Prompts, arguments and results stay where they are, unless the one variable says SPAN_ONLY."""
    variables = {} if value is None else {CAPTURE: value}
    raxol("replay", session, "--to", f"file:{tmp_path / 'new'}", variables=variables)
    text = (tmp_path / "new").read_text(encoding="utf-8")
    assert ("please" in text, "fine" in text) == (wanted, wanted)


def test_the_user_s_settings_are_honoured(session: Path, tmp_path: Path) -> None:
    """The service, resource attributes and value lengths of the environment; without them `raxol`, and replayed."""
    said = {"OTEL_SERVICE_NAME": "cart", "OTEL_RESOURCE_ATTRIBUTES": "team=a%20b,service.name=x"}
    for name, variables in (("set", {**said, "OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "6"}), ("unset", {})):
        assert raxol("replay", session, "--to", f"file:{tmp_path / name}", variables=variables).returncode == 0
    ours, default = attributes_of(tmp_path / "set"), attributes_of(tmp_path / "unset")
    assert (ours["service.name"], ours["team"], ours["raxol.replayed"]) == ("cart", "a b", True)
    assert (default["service.name"], default["raxol.replayed"]) == ("raxol", True)
    assert (ours["gen_ai.operation.name"], default["gen_ai.operation.name"]) == ("invoke", "invoke_agent")


@pytest.mark.parametrize(
    "variables",
    [{"OTEL_ATTRIBUTE_VALUE_LENGTH_LIMIT": "many"}, {"OTEL_SPAN_ATTRIBUTE_COUNT_LIMIT": "-1"}],
    ids=lambda variables: next(iter(variables)),
)
def test_a_setting_that_makes_no_sense(session: Path, tmp_path: Path, variables: dict[str, str]) -> None:
    """A mistake in the environment is told like one on the command line."""
    done = raxol("replay", session, "--to", f"file:{tmp_path / 'new'}", variables=variables)
    lines = done.stderr.splitlines()
    assert (done.returncode, done.stdout, len(lines)) == (2, "", 1), done.stderr
    assert lines[0].startswith("Error: ")
    assert next(iter(variables)) in lines[0]
    assert not (tmp_path / "new").exists()
