"""Every exporter against the one contract."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Final

import pytest

from raxol_otel.exporters.base import NullExporter
from raxol_otel.exporters.console import ConsoleExporter
from raxol_otel.exporters.file import FileExporter
from raxol_otel.exporters.otlp_json import Envelope
from tests.exporter_contract import ExporterContract, Subject, batch, turn_span

if TYPE_CHECKING:
    from pathlib import Path

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
