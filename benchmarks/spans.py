"""Turns into OTLP, beside the OpenTelemetry SDK: `python -m benchmarks.spans [--records N]`.

In memory: each chunk of the journal is decoded first, in nobody's time. Then, in turns,
* ours: the records are folded and the spans written as a file of OTLP JSON lines;
* the SDK's: the same spans, finished and grouped by turn in nobody's time, are made again with `start_span` and `end`
  (ids of the SDK's making; the same names, times, attributes, events, links and status), go through a
  `BatchSpanProcessor` whose queue is longer than a chunk and which is flushed at its end, are encoded by the OTLP
  encoder and written to a file. Every span is counted at the exporter: none was lost;
* parsing alone: the chunk's lines are read and given to orjson.

End to end: `replay` from the journal to the file, which reads a large session twice to know its verdict first; beside
it the SDK's way reading once, with our reader and fold in front.
"""

from __future__ import annotations

from functools import partial
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, Final

import orjson
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import Link, SpanContext, Status, StatusCode, set_span_in_context

from benchmarks.common import Row, Times, alternate, command_line, note, settled
from benchmarks.journals import RECORDS_PER_TURN, SPANS_PER_TURN, make
from raxol_otel import __version__
from raxol_otel import catalogue as names
from raxol_otel.exporters.file import FileExporter
from raxol_otel.exporters.replay import HOLD_BYTES_MAX, replay
from raxol_otel.exporters.resource import replay_envelope, replay_resource
from raxol_otel.journal.reader import Walk, read_batches
from raxol_otel.turns import TurnFold

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator, Sequence
    from pathlib import Path

    from opentelemetry.sdk.trace import ReadableSpan

    from benchmarks.journals import Journal
    from raxol_otel.exporters.base import Exporter
    from raxol_otel.turns import Span

__all__ = ["run"]

# Turns decoded at a time: their spans are seven whole lines of the file and seven whole batches of the SDK, whose queue
# holds more than it is ever given between two flushes.
_CHUNK_TURNS: Final = 512
_CHUNK_RECORDS: Final = _CHUNK_TURNS * RECORDS_PER_TURN
_FLUSH_SPANS: Final = _CHUNK_TURNS * SPANS_PER_TURN
_QUEUE_SPANS: Final = 2 * _FLUSH_SPANS
_END_TO_END_ROUNDS: Final = 3

_Turn = tuple["Span", "list[Span]"]


class _FileOfProtobuf(SpanExporter):
    """Encodes each batch as an OTLP exporter does, and writes it to a file instead of sending it."""

    def __init__(self, path: Path) -> None:
        self.spans = 0
        self._file = path.open("wb")

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Encode and write."""
        self._file.write(encode_spans(spans).SerializeToString())
        self.spans += len(spans)
        return SpanExportResult.SUCCESS

    def shutdown(self) -> None:
        """Close the file."""
        self._file.close()


class _Sdk:
    """The SDK's way for spans whose values are known."""

    def __init__(self, path: Path) -> None:
        self.exporter = _FileOfProtobuf(path)
        self._processor = BatchSpanProcessor(self.exporter, max_queue_size=_QUEUE_SPANS)
        self._provider = TracerProvider(resource=Resource(replay_resource()), shutdown_on_exit=False)
        self._provider.add_span_processor(self._processor)
        self._tracer = self._provider.get_tracer(names.SCOPE_NAME, __version__, schema_url=names.SCHEMA_URL)
        self._previous: SpanContext | None = None
        self._unflushed = 0

    def make(self, turns: Iterable[_Turn]) -> None:
        """Make the spans of the turns."""
        for root, children in turns:
            link = self._previous if root.links else None
            parent = self._started(root, None, [] if link is None else [Link(link)])
            self._previous = parent.get_span_context()
            context = set_span_in_context(parent)
            for child in children:
                self._ended(self._started(child, context, ()), child)
            self._ended(parent, root)
            self._unflushed += 1 + len(children)
            if self._unflushed >= _FLUSH_SPANS:
                self.flush()

    def make_all(self, turns: Iterable[_Turn]) -> None:
        """Make the spans of the turns, and let the processor export them all."""
        self.make(turns)
        self.flush()

    def flush(self) -> None:
        """Let the processor export what is queued. Its own thread alone would fall behind and lose spans."""
        assert self._processor.force_flush()
        self._unflushed = 0

    def _started(self, span: Span, context: Any, links: Sequence[Link]) -> Any:
        return self._tracer.start_span(
            span.name, context=context, attributes=span.attributes, links=links, start_time=span.start_ns
        )

    @staticmethod
    def _ended(made: Any, span: Span) -> None:
        for event in span.events:
            made.add_event(event.name, event.attributes, event.time_ns)
        if span.error:
            made.set_status(Status(StatusCode.ERROR))
        made.end(span.end_ns)

    def close(self) -> None:
        """Shut the provider down."""
        self._provider.shutdown()


def run(folder: Path, records: int) -> list[Row]:
    """Measure in memory, then end to end."""
    journal = make(folder / "turns", records)
    note(f"spans: {journal.spans} of {records} records, in memory")
    rows = _in_memory(journal, folder)
    note(f"spans: {journal.spans} of {records} records, end to end")
    return [*rows, _end_to_end(journal, folder)]


def _in_memory(journal: Journal, folder: Path) -> list[Row]:
    ours, theirs, parsing = Times(), Times(), Times()
    sdk, lines = _Sdk(folder / "spans.pb"), _lines(journal)
    path = folder / "spans.jsonl"
    counts: list[int] = []
    with FileExporter(path, replay_envelope()) as exporter:
        fold, shadow = TurnFold("turns"), TurnFold("turns")
        waiting: dict[str, list[Span]] = {}
        for number, batches in enumerate(_chunks(journal)):
            turns = _turns(chain.from_iterable(map(shadow.feed_many, batches)), waiting)
            contenders = (
                (ours, partial(_fold_and_export, fold, batches, exporter)),
                (theirs, partial(sdk.make_all, turns)),
                (parsing, partial(_parse, lines, sum(map(len, batches)))),
            )
            for step in range(3):
                times, work = contenders[(number + step) % 3]
                with settled(), times.measured():
                    work()
            counts.append(sum(map(len, batches)))
        assert not fold.close()
        exporter.finish()
    sdk.close()
    assert next(lines, None) is None
    assert sdk.exporter.spans == _written(path) == journal.spans
    size = counts[0]
    if counts[-1] != size:
        for times in (ours, theirs, parsing):
            times.forget_last()
        counts.pop()
    part = size // RECORDS_PER_TURN * SPANS_PER_TURN
    return [
        Row(
            "fold and file exporter, from decoded records",
            f"{ours.rate(part)} spans",
            f"SDK and OTLP encoder: {theirs.rate(part)}",
            ours.ratio(theirs),
            "at least 4",
        ),
        Row(
            "the same, all of it, on the clock",
            f"{part * len(counts) / sum(ours.walls):,.0f}/s spans",
            f"{part * len(counts) / sum(theirs.walls):,.0f}/s",
            f"{sum(theirs.walls) / sum(ours.walls):.2f}",
        ),
        Row(
            "the same by records",
            f"{ours.rate(size)} records",
            f"loads: {parsing.rate(size)}",
            ours.ratio(parsing),
            "0.5 aimed for",
        ),
    ]


def _fold_and_export(fold: TurnFold, batches: Iterable[Sequence[dict[str, Any]]], exporter: Exporter) -> None:
    for batch in batches:
        exporter.export(fold.feed_many(batch))


def _end_to_end(journal: Journal, folder: Path) -> Row:
    def ours() -> None:
        with FileExporter(folder / "replayed.jsonl", replay_envelope()) as exporter:
            assert replay([journal.directory], exporter).accepted == journal.spans

    def theirs() -> None:
        sdk, fold = _Sdk(folder / "replayed.pb"), TurnFold("turns")
        waiting: dict[str, list[Span]] = {}
        for batch in read_batches(Walk(journal.directory)):
            sdk.make(_turns(fold.feed_many(batch), waiting))
        sdk.make(_turns(fold.close(), waiting))
        sdk.close()
        assert sdk.exporter.spans == journal.spans

    replayed, made = alternate((ours, theirs), _END_TO_END_ROUNDS)
    times = "twice" if journal.size > HOLD_BYTES_MAX else "once"
    return Row(
        f"`replay` into a file, end to end (the journal read {times})",
        f"{replayed.rate(journal.spans)} spans",
        f"read once, SDK and OTLP encoder: {made.rate(journal.spans)}",
        replayed.ratio(made),
    )


def _chunks(journal: Journal) -> Generator[list[list[dict[str, Any]]]]:
    """The journal's records, some thousand at a time, in batches as the reader gives them; chunks end with a turn."""
    batches: list[list[dict[str, Any]]] = []
    room = _CHUNK_RECORDS
    for batch in read_batches(Walk(journal.directory)):
        rest = batch
        while len(rest) >= room:
            yield [*batches, rest[:room]]
            rest = rest[room:]
            batches, room = [], _CHUNK_RECORDS
        if rest:
            batches.append(rest)
            room -= len(rest)
    if batches:
        yield batches


def _turns(spans: Iterable[Span], waiting: dict[str, list[Span]]) -> list[_Turn]:
    """Each turn's span with its children, which come before it; those of a turn still to come are left waiting."""
    turns: list[_Turn] = []
    for span in spans:
        if span.role == "turn":
            turns.append((span, waiting.pop(span.span_id, [])))
        else:
            waiting.setdefault(span.parent_id, []).append(span)
    return turns


def _lines(journal: Journal) -> Iterator[bytes]:
    return chain.from_iterable(path.open("rb") for path in journal.paths)


def _parse(lines: Iterator[bytes], count: int) -> None:
    for line in islice(lines, count):
        orjson.loads(line)


def _written(path: Path) -> int:
    """How many spans a file of OTLP JSON lines holds."""
    count = 0
    with path.open("rb") as file:
        for line in file:
            for resource in orjson.loads(line)["resourceSpans"]:
                count += sum(len(scope["spans"]) for scope in resource["scopeSpans"])
    return count


if __name__ == "__main__":
    command_line("spans", run)
