"""The file of OTLP JSON lines: read back with the protobuf library, its form, and when it is there."""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import resource
import stat
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final

import pytest
from google.protobuf import json_format
from opentelemetry.proto.trace.v1.trace_pb2 import TracesData

from raxol_otel.canonical import is_array, is_object
from raxol_otel.errors import ExportError
from raxol_otel.exporters.file import FileExporter
from raxol_otel.exporters.otlp_json import Envelope
from raxol_otel.exporters.replay import replay
from raxol_otel.turns.span import Link, SpanEvent
from tests.conftest import ROOT, unprivileged
from tests.exporter_contract import (
    MAIN,
    ODD_SPANS,
    Recorder,
    child_span,
    in_own_mounts,
    raxol,
    turn_span,
    turns_records,
    write_session,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from opentelemetry.proto.common.v1.common_pb2 import AnyValue
    from opentelemetry.proto.trace.v1 import trace_pb2

    from raxol_otel.turns import Span

ENVELOPE: Final = Envelope(
    {"service.name": "cart", "raxol.replayed": True, "n": 7},
    scope_name="raxol_otel",
    scope_version="1.2.3",
    schema_url="https://example.org/schema",
)
IDS: Final = ("traceId", "spanId", "parentSpanId")
FILE_BYTES_MAX: Final = 16 * 1024


def exported(path: Path, *batches: Sequence[Span], envelope: Envelope = ENVELOPE) -> list[dict[str, Any]]:
    """The lines of the finished file, each as the object that it is."""
    with FileExporter(path, envelope) as exporter:
        for spans in batches:
            exporter.export(spans)
        exporter.finish()
    text = path.read_bytes()
    assert text == b"" or text.endswith(b"\n")
    return [json.loads(line) for line in text.split(b"\n")[:-1]]


def with_base64_ids(value: Any) -> Any:
    """The same JSON with its hex ids as the protobuf library wants them."""
    if is_array(value):
        return [with_base64_ids(item) for item in value]
    if not is_object(value):
        return value
    return {
        key: base64.b64encode(bytes.fromhex(item)).decode() if key in IDS else with_base64_ids(item)
        for key, item in value.items()
    }


def parsed(lines: Sequence[Any]) -> list[TracesData]:
    """The lines as protobuf messages; an unknown or misspelt field is an error."""
    return [json_format.ParseDict(with_base64_ids(line), TracesData()) for line in lines]


def spans_of(lines: Sequence[Any]) -> list[trace_pb2.Span]:
    """All spans of all lines, in order."""
    found = [scope for data in parsed(lines) for around in data.resource_spans for scope in around.scope_spans]
    return [span for scope in found for span in scope.spans]


def plain(value: AnyValue) -> str:
    """The value in its own type, as text that also tells NaN, 1, 1.0 and True apart."""
    kind = value.WhichOneof("value")
    assert kind is not None
    return f"{kind} {getattr(value, kind)!r}"


def expected_value(value: str | float) -> str:
    """The same for a span's attribute."""
    kind = {str: "string_value", bool: "bool_value", int: "int_value", float: "double_value"}[type(value)]
    text = re.sub("[\ud800-\udfff]", "\ufffd", value) if isinstance(value, str) else value
    return f"{kind} {text!r}"


def expected_attributes(attributes: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The attributes as they are to be read back, in their order."""
    return [(re.sub("[\ud800-\udfff]", "\ufffd", key), expected_value(value)) for key, value in attributes.items()]


def check_span(found: trace_pb2.Span, span: Span) -> None:
    """Every field that was exported is the span's, and no other is set."""
    assert (found.trace_id.hex(), found.span_id.hex()) == (span.trace_id, span.span_id)
    assert found.parent_span_id.hex() == span.parent_id
    assert found.name == re.sub("[\ud800-\udfff]", "\ufffd", span.name)
    assert found.kind == 1
    assert (found.start_time_unix_nano, found.end_time_unix_nano) == (span.start_ns, span.end_ns)
    assert [(pair.key, plain(pair.value)) for pair in found.attributes] == expected_attributes(span.attributes)
    assert [(event.name, event.time_unix_nano) for event in found.events] == [
        (re.sub("[\ud800-\udfff]", "\ufffd", event.name), event.time_ns) for event in span.events
    ]
    for read, event in zip(found.events, span.events, strict=True):
        assert [(pair.key, plain(pair.value)) for pair in read.attributes] == expected_attributes(event.attributes)
    assert [(link.trace_id.hex(), link.span_id.hex()) for link in found.links] == [
        (link.trace_id, link.span_id) for link in span.links
    ]
    assert found.status.code == (2 if span.error else 0)
    assert found.status.message == ""
    assert found.dropped_events_count == span.dropped_events
    assert (found.dropped_attributes_count, found.dropped_links_count, found.trace_state) == (0, 0, "")


# -- the content


def test_a_line_is_what_the_specification_says(tmp_path: Path) -> None:
    """Hex ids in lower case, 64-bit integers as decimal text, enumerations as numbers, lowerCamelCase names."""
    span = turn_span(
        name="invoke_agent",
        trace_id="0af7651916cd43dd8448eb211c80319c",
        span_id="b7ad6b7169203331",
        parent_id="00f067aa0ba902b7",
        start_ns=1,
        end_ns=1789411200214000001,
        attributes={"text": 'a"b', "yes": True, "number": -5, "share": 0.5},
        events=[SpanEvent("exception", 2, {"exception.type": "_OTHER"})],
        links=(Link("f" * 32, "e" * 16),),
        dropped_events=3,
        error=True,
    )
    found = {
        "traceId": "0af7651916cd43dd8448eb211c80319c",
        "spanId": "b7ad6b7169203331",
        "parentSpanId": "00f067aa0ba902b7",
        "name": "invoke_agent",
        "kind": 1,
        "startTimeUnixNano": "1",
        "endTimeUnixNano": "1789411200214000001",
        "attributes": [
            {"key": "text", "value": {"stringValue": 'a"b'}},
            {"key": "yes", "value": {"boolValue": True}},
            {"key": "number", "value": {"intValue": "-5"}},
            {"key": "share", "value": {"doubleValue": 0.5}},
        ],
        "events": [
            {
                "timeUnixNano": "2",
                "name": "exception",
                "attributes": [{"key": "exception.type", "value": {"stringValue": "_OTHER"}}],
            }
        ],
        "links": [{"traceId": "f" * 32, "spanId": "e" * 16}],
        "droppedEventsCount": 3,
        "status": {"code": 2},
    }
    attributes = [
        {"key": "service.name", "value": {"stringValue": "cart"}},
        {"key": "raxol.replayed", "value": {"boolValue": True}},
        {"key": "n", "value": {"intValue": "7"}},
    ]
    scope = {
        "scope": {"name": "raxol_otel", "version": "1.2.3"},
        "spans": [found],
        "schemaUrl": "https://example.org/schema",
    }
    assert exported(tmp_path / "out.jsonl", [span]) == [
        {"resourceSpans": [{"resource": {"attributes": attributes}, "scopeSpans": [scope]}]}
    ]


def test_a_line_reads_back_as_the_same_spans(tmp_path: Path) -> None:
    """The protobuf library finds every field of ordinary spans as it was, and what stands around them."""
    turn = turn_span()
    lines = exported(tmp_path / "out.jsonl", [child_span(turn), turn])
    (data,) = parsed(lines)
    (around,) = data.resource_spans
    (scope,) = around.scope_spans
    assert [(pair.key, plain(pair.value)) for pair in around.resource.attributes] == [
        ("service.name", "string_value 'cart'"),
        ("raxol.replayed", "bool_value True"),
        ("n", "int_value 7"),
    ]
    assert (scope.scope.name, scope.scope.version) == ("raxol_otel", "1.2.3")
    assert (scope.schema_url, around.schema_url) == ("https://example.org/schema", "")
    check_span(scope.spans[0], child_span(turn))
    check_span(scope.spans[1], turn)


@pytest.mark.parametrize("what", ODD_SPANS)
def test_an_odd_span_reads_back(tmp_path: Path, what: str) -> None:
    """A reader takes the line of any span, with lone surrogates replaced and all else as it was."""
    (found,) = spans_of(exported(tmp_path / "out.jsonl", [ODD_SPANS[what]]))
    check_span(found, ODD_SPANS[what])


def test_the_tour_reads_back(tmp_path: Path) -> None:
    """All spans of a real journal come back, in the order in which they were exported."""
    recorder = Recorder()
    replay([ROOT / "golden" / "tour"], recorder)
    sent = recorder.spans
    found = spans_of(exported(tmp_path / "out.jsonl", sent))
    assert len(found) == len(sent) > 40
    for read, span in zip(found, sent, strict=True):
        check_span(read, span)


def test_no_name_of_the_message_is_in_snake_case(tmp_path: Path) -> None:
    """Also where the protobuf library would take both spellings; and every name starts in lower case."""

    def keys(value: Any) -> set[str]:
        items = value.values() if is_object(value) else value if is_array(value) else ()
        return {*(value if is_object(value) else ()), *(key for item in items for key in keys(item))}

    found = keys(exported(tmp_path / "out.jsonl", list(ODD_SPANS.values()), [child_span(turn_span())]))
    assert all(re.fullmatch("[a-z][A-Za-z]*", key) for key in found)
    assert {"resourceSpans", "droppedEventsCount", "parentSpanId"} <= found


def test_a_line_holds_512_spans_at_most(tmp_path: Path) -> None:
    """However the batches come, lines are full ones and a rest, and no span is lost or moved."""
    spans = [turn_span(number) for number in range(1, 1301)]
    lines = exported(tmp_path / "out.jsonl", spans[:1], [], spans[1:600], spans[600:])
    counts = [len(data.resource_spans[0].scope_spans[0].spans) for data in parsed(lines)]
    assert counts == [512, 512, 276]
    assert [span.span_id.hex() for span in spans_of(lines)] == [span.span_id for span in spans]


def test_a_resource_that_is_no_text_is_made_text(tmp_path: Path) -> None:
    """A lone surrogate in the user's resource attributes does not cost every line."""
    envelope = Envelope({"a\udcff": "b\udcff"}, scope_name="s", scope_version="1", schema_url="")
    (data,) = parsed(exported(tmp_path / "out.jsonl", [turn_span()], envelope=envelope))
    (pair,) = data.resource_spans[0].resource.attributes
    assert (pair.key, pair.value.string_value) == ("a\ufffd", "b\ufffd")


# -- when the file is there


def test_the_file_appears_when_all_is_done(tmp_path: Path) -> None:
    """Until `finish` there is only a hidden file beside it, and an old file is as it was; afterwards only the new."""
    path = tmp_path / "out.jsonl"
    path.write_bytes(b"old\n")
    exporter = FileExporter(path, ENVELOPE)
    exporter.export([turn_span(number) for number in range(1, 2000)])
    (waiting,) = [entry.name for entry in tmp_path.iterdir() if entry != path]
    assert waiting.startswith(".out.jsonl.")
    assert waiting.endswith(".tmp")
    assert path.read_bytes() == b"old\n"
    exporter.finish()
    assert [entry.name for entry in tmp_path.iterdir()] == ["out.jsonl"]
    assert path.read_bytes().startswith(b'{"resourceSpans":')


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600), (0o002, 0o664), (0o000, 0o666)])
def test_permissions_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    """The file has the permissions that a file of its own would have had, and the umask is as before."""
    before = os.umask(mask)
    try:
        exported(tmp_path / "out.jsonl", [turn_span()])
    finally:
        assert os.umask(before) == mask
    assert stat.S_IMODE((tmp_path / "out.jsonl").stat().st_mode) == mode


@pytest.mark.parametrize("name", ["o" * 255, "ö" * 127, " ", "-", "a\nb", os.fsdecode(b"\xff.jsonl")])
def test_the_file_may_have_any_name_that_the_system_takes(tmp_path: Path, name: str) -> None:
    """A long or odd name is as good as another."""
    assert len(exported(tmp_path / name, [turn_span()])) == 1


@pytest.mark.parametrize("target", [".", "missing/out.jsonl", "file/out.jsonl", "o" * 256, "loop/out.jsonl"])
def test_a_target_that_cannot_be_is_told_at_once(tmp_path: Path, target: str) -> None:
    """A directory, a missing folder, a file for a folder, an impossible name: an `ExportError`, nothing left."""
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ExportError, match="cannot write"):
        FileExporter(tmp_path / target, ENVELOPE)
    assert sorted(tmp_path.iterdir()) == before


def test_a_pipe_or_device_is_not_replaced(tmp_path: Path) -> None:
    """A target that is no file (`/dev/null`, say) is refused or written to; never renamed over."""
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ExportError):
        exported(tmp_path / "pipe", [turn_span()])
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)


@pytest.mark.parametrize("mode", [0o555, 0o444, 0o000], ids=["read-only", "not to be entered", "closed"])
def test_a_folder_that_cannot_be_written(mode: int) -> None:
    """A folder that is read-only, or cannot even be entered: an `ExportError`, the old file as it was."""
    with TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name, "inner")
        folder.mkdir()
        (folder / "out.jsonl").write_bytes(b"old\n")
        folder.chmod(mode)
        try:
            with unprivileged(Path(name)), pytest.raises(ExportError, match=r"cannot write .*: Permission denied"):
                FileExporter(folder / "out.jsonl", ENVELOPE)
        finally:
            folder.chmod(0o700)
        assert [(path.name, path.read_bytes()) for path in folder.iterdir()] == [("out.jsonl", b"old\n")]


# -- no space


def big_session(folder: Path, turns: int) -> Path:
    """A session whose OTLP lines are far larger than the disk of these tests."""
    return write_session(folder / "session", turns_records(turns))


@pytest.mark.parametrize("turns", [100, 1000], ids=["at the end", "on the way"])
def test_a_file_that_may_not_grow(tmp_path: Path, turns: int) -> None:
    """At the limit for files: exit code 3, one line, no temporary file, the old file as it was."""
    session, out = big_session(tmp_path, turns), tmp_path / "out"
    out.mkdir()
    (out / "out.jsonl").write_bytes(b"old\n")
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({FILE_BYTES_MAX}, {FILE_BYTES_MAX}))"
    done = raxol("replay", session, "--to", f"file:{out / 'out.jsonl'}", before=limit)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"Error: cannot write {out / 'out.jsonl'}: File too large\n"
    assert [(path.name, path.read_bytes()) for path in out.iterdir()] == [("out.jsonl", b"old\n")]


@pytest.mark.parametrize(
    ("options", "turns"),
    [("size=64k", 100), ("size=64k", 1000), ("nr_inodes=2", 1)],
    ids=["at the end", "on the way", "from the start"],
)
def test_a_full_disk(tmp_path: Path, options: str, turns: int) -> None:
    """On a disk without space: exit code 3, one line, no temporary file, the old file as it was."""
    session, disk = big_session(tmp_path, turns), tmp_path / "disk"
    disk.mkdir()
    script = (
        f'mount -t tmpfs -o {options} none "$1" || exit 99; shift; echo old >"$1"; '
        f'"$2" -c "$3" replay "$4" --to "file:$1"; echo $?; ls -A "$(dirname "$1")"; cat "$1"'
    )
    done = in_own_mounts(script, disk, disk / "out.jsonl", sys.executable, MAIN, session)
    assert done.stdout == "3\nout.jsonl\nold\n"
    assert done.stderr == f"Error: cannot write {disk / 'out.jsonl'}: No space left on device\n"


def test_what_follows_a_failed_export_makes_nothing_final(tmp_path: Path) -> None:
    """The failing batch raises `ExportError` and takes the file away; neither `abort` nor `finish` brings it back."""
    exporter = FileExporter(tmp_path / "out.jsonl", ENVELOPE)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (FILE_BYTES_MAX, before[1]))
    try:
        with pytest.raises(ExportError, match="File too large"):
            exporter.export([turn_span(number) for number in range(1, 5000)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []
    exporter.abort()
    with contextlib.suppress(ExportError):
        exporter.finish()
    assert list(tmp_path.iterdir()) == []
