"""The catalogue: one place for every public name, and no name in it that nobody uses."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Any, Final

import pytest

from raxol_otel import catalogue
from raxol_otel.catalogue_entries import Instrument, Label, Metric, SignalEntry
from tests import make_telemetry
from tests.test_repo import MODULES, ROOT, tree
from tests.test_trees import TREES

if TYPE_CHECKING:
    from collections.abc import Iterator

CATALOGUE: Final = "raxol_otel.catalogue"
NAMES: Final[dict[str, Any]] = {
    name: value for name, value in vars(catalogue).items() if name.isupper() and name[0] != "_"
}
USERS: Final = {module: path for module, path in MODULES.items() if module not in {CATALOGUE, f"{CATALOGUE}_fleet"}}
# A name of the telemetry: at least two words, in small letters, with dots.
DOTTED: Final = re.compile(r"\b(?:gen_ai|raxol)\.[a-z]")
# A name of a metric; the package's own begins like one.
METRIC: Final = re.compile(r"\braxol_(?!otel\b)[a-z]")
# What the catalogue promises before anybody uses it, and who will.
FOR_LATER: Final[dict[str, str]] = {}
# What the catalogue itself is made of, and what tests and the reference walk.
PARTS: Final = {
    *("GENAI_REVISION", "SIGNALS", "TURN_OUTCOMES", "TOOL_OUTCOMES", "EVIDENCE_STATUSES", "RECORD_TYPES"),
    *("UNKNOWN_PARTS", "CACHE_PARTS", "OUTPUT_PARTS", "INSTRUMENTS", "METRICS", "FLEET_METRICS"),
}


def docstrings(module: ast.Module) -> set[int]:
    """The nodes that are docstrings, by identity: they may tell of any name."""
    found: set[int] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr):
                found.add(id(first.value))
    return found


def spelled(module: ast.Module) -> Iterator[tuple[int, str]]:
    """The line and text of every string in the code, parts of f-strings too, docstrings apart."""
    told = docstrings(module)
    for node in ast.walk(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in told:
            yield node.lineno, node.value


def used(module: ast.Module) -> set[str]:
    """The constants that a module uses: importing one, or listing it in `__all__`, is no use.

    The bus hands on the names of its signals, so `signals.SIGNAL_DAMAGED` is one of them as well.
    """
    own: dict[str, str] = {}
    rooms: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module in {CATALOGUE, "raxol_otel.signals"}:
            own.update({alias.asname or alias.name: alias.name for alias in node.names if alias.name in NAMES})
        elif isinstance(node, ast.ImportFrom) and node.module == "raxol_otel":
            rooms.update(alias.asname or alias.name for alias in node.names if alias.name in {"catalogue", "signals"})
    found: set[str] = set()
    for node in ast.walk(module):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in rooms:
            found.add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id in own:
            found.add(own[node.id])
    return {name for name in found if name.isupper()}


def test_every_name_of_the_catalogue_is_used() -> None:
    """A name that nobody emits promises what never comes; one that is for later says so, and only until then."""
    found = set[str]().union(*(used(tree(path)) for path in USERS.values()))
    assert sorted(NAMES.keys() - found - PARTS - FOR_LATER.keys()) == []
    assert sorted(found & FOR_LATER.keys()) == []
    assert FOR_LATER.keys() <= NAMES.keys()


def test_only_names_of_the_catalogue_are_asked_for() -> None:
    """A typing error in a name shows here, and not when the code is first run."""
    assert sorted({name for path in USERS.values() for name in used(tree(path))} - NAMES.keys()) == []


@pytest.mark.parametrize("module", USERS)
def test_no_name_is_spelled_outside_the_catalogue(module: str) -> None:
    """Whoever emits or reads a name takes it from the catalogue, so that it is spelled once."""
    dotted = {value for value in NAMES.values() if isinstance(value, str) and "." in value}
    said = [
        f"line {line}: {text!r}"
        for line, text in spelled(tree(USERS[module]))
        if DOTTED.search(text) or METRIC.search(text) or text in dotted - {catalogue.GENAI_REVISION}
    ]
    assert said == []


def test_the_search_for_spelled_names_finds_them() -> None:
    """The tests above see a literal, a key, a part of an f-string, an attribute, a name; and not a docstring."""
    told = '"""raxol.doc"""\nx = {"gen_ai.key": f"raxol.{x}.y", "fine": b"raxol.z"}\ndef f():\n    "raxol.told"\n'
    assert [text for _, text in spelled(ast.parse(told)) if DOTTED.search(text)] == ["gen_ai.key"]
    assert [text for _, text in spelled(ast.parse('y = f"raxol.turn.{x}"')) if DOTTED.search(text)] == ["raxol.turn."]
    assert [bool(METRIC.search(text)) for text in ("raxol_turns_total", "raxol_otel.turns", "raxol_otel")] == [
        *(True, False, False)
    ]
    for source in (
        "from raxol_otel import catalogue as c\nc.TURN_ID\nd.ITEM_ID\nc.x.ITEM_TYPE",
        "from raxol_otel.catalogue import TURN_ID as t, ITEM_ID\nt\n",
    ):
        assert used(ast.parse(source)) == {"TURN_ID"}


def test_names_are_told_apart() -> None:
    """No name is given twice, and each is in the form of its kind."""
    texts = [value for value in NAMES.values() if isinstance(value, str)]
    assert len(set(texts)) == len(texts)
    entries: list[Instrument | Metric] = [*catalogue.INSTRUMENTS, *catalogue.METRICS]
    assert len({entry.name for entry in entries} | set(texts)) == len(entries) + len(texts)
    free = {"SCHEMA_URL", "GENAI_REVISION", "UNNAMED"}
    for name, value in NAMES.items():
        if isinstance(value, str):
            assert name in free or re.fullmatch(r"[a-z][a-z_]*(?:\.[a-z][a-z_]*)*", value), name
        elif name not in {"FLEET_METRICS", "INSTRUMENTS", "METRICS", "PROCESS_METRICS", "SIGNALS"} and not isinstance(
            value, Instrument | Label | Metric
        ):
            assert all(re.fullmatch(r"[a-z][a-z0-9_]*", str(member)) for member in value), name


def test_the_reference_of_signals_and_metrics_is_made_from_the_catalogue() -> None:
    """Whoever changes the catalogue makes it anew: `python -m tests.make_telemetry`."""
    assert make_telemetry.PATH.read_text(encoding="utf-8") == make_telemetry.text()


def test_the_signals_are_those_of_the_bus() -> None:
    """Each name of a signal is described once."""
    described = [entry.name for entry in catalogue.SIGNALS]
    assert described == [value for name, value in NAMES.items() if name.startswith("SIGNAL_")]


def test_attributes_of_events_and_instruments_are_in_the_catalogue() -> None:
    """Each is a name of its own there, and every instrument is listed once."""
    entries: list[Instrument | SignalEntry] = [*catalogue.SIGNALS, *catalogue.INSTRUMENTS]
    assert {name for entry in entries for name in entry.attributes} <= {
        value for value in NAMES.values() if isinstance(value, str)
    }
    listed = [value for name, value in NAMES.items() if name.startswith("INSTRUMENT_")]
    assert listed == list(catalogue.INSTRUMENTS)


def test_every_attribute_that_a_span_ever_carried_is_in_the_catalogue() -> None:
    """The catalogue only grows: what stands in an expected tree is still a name of it."""
    carried: set[str] = set()
    for path in TREES.glob("*.txt"):
        carried.update(re.findall(r"^ {4,6}([a-z_.]+) = ", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
        carried.update(re.findall(r"^ *event: ([a-z_.]+) ", path.read_text(encoding="utf-8"), flags=re.MULTILINE))
    assert "gen_ai.operation.name" in carried
    assert "raxol.decision.outcome" in carried
    assert sorted(carried - set(map(str, NAMES.values()))) == []


def test_the_reference_names_every_attribute() -> None:
    """Whoever reads docs/reference/spans.md finds each attribute and event of a span there; the rest is made."""
    text = (ROOT / "docs" / "reference" / "spans.md").read_text(encoding="utf-8")
    others = {value for name, value in NAMES.items() if name.startswith(("SIGNAL_", "SCHEMA_", "GENAI_"))}
    others |= {catalogue.REPLAYED, catalogue.METRICS_HANDLER, catalogue.LOG_EVENTS_HANDLER}
    others |= {catalogue.INSTRUMENTS_HANDLER, catalogue.TRACING_HANDLER, catalogue.MODALITY, catalogue.USAGE_TYPE}
    others |= {catalogue.JOURNAL_SEGMENT, catalogue.JOURNAL_STAGE, catalogue.DAMAGE_CAUSE, catalogue.CHECKPOINT_OP}
    made = make_telemetry.text()
    spans = {str(value) for value in NAMES.values() if isinstance(value, str)} - others
    assert sorted(name for name in spans if "." in name and f"`{name}" not in text) == []
    own = {"raxol.replayed", catalogue.GENAI_REVISION, catalogue.SCHEMA_URL}
    assert sorted(name for name in others - own if f"`{name}" not in made) == []
