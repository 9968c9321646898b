"""The shape of the source: what may import what, how long a file or a function may be, what is public."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
FILE_LINES_MAX: Final = 400
FUNCTION_LINES_MAX: Final = 70
LINKS: Final = frozenset({"dashboards", "exporters", "golden"})
# From the ground up: a room imports only rooms before it. A new room takes its place here.
ROOMS: Final = (
    "errors",
    "canonical",
    "catalogue_entries",
    "catalogue_fleet",
    "catalogue",
    "contract",
    "observed",
    "signals",
    "journal",
    "turns",
    "bounds",
    "metrics_instruments",
    "metrics_facts",
    "metrics",
    "live",
    "exporters",
    "fleet",
    "testing",
    "demo",
    "cli",
    "__main__",
)
# The core: journals can be written and read without any of the telemetry libraries.
CORE: Final = frozenset(ROOMS[: ROOMS.index("turns") + 1])
CORE_LIBRARIES: Final = frozenset({"orjson"})
TELEMETRY: Final = ("opentelemetry", "prometheus_client", "rich")
TEXT_SUFFIXES: Final = frozenset({".cfg", ".html", ".json", ".md", ".py", ".toml", ".txt", ".yaml", ".yml"})


def modules() -> dict[str, Path]:
    """Every module of the package by its name; those in exporters/ under the name they are imported by."""
    found: dict[str, Path] = {}
    for folder, prefix in ((ROOT / "raxol_otel", ("raxol_otel",)), (ROOT / "exporters", ("raxol_otel", "exporters"))):
        for path in sorted(folder.rglob("*.py")):
            inside = path.relative_to(folder).with_suffix("").parts
            if prefix == ("raxol_otel",) and inside[0] in LINKS:
                continue  # seen at the link's end
            parts = inside[:-1] if inside[-1] == "__init__" else inside
            found[".".join((*prefix, *parts))] = path
    return found


MODULES: Final = modules()


@cache
def tree(path: Path) -> ast.Module:
    """The parsed source of a file."""
    return ast.parse(path.read_bytes(), filename=str(path))


def runtime_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """All nodes but those under `if TYPE_CHECKING:`, which never run."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and isinstance(child.test, ast.Name) and child.test.id == "TYPE_CHECKING":
            continue
        yield child
        yield from runtime_nodes(child)


def imported(module: str) -> set[str]:
    """What a module imports when it runs, early or late; `from a import b` is `a.b` if that is a module."""
    found: set[str] = set()
    for node in runtime_nodes(tree(MODULES[module])):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import in line {node.lineno}"
            base = node.module or ""
            names = [f"{base}.{alias.name}" for alias in node.names]
            found.update(name if name in MODULES else base for name in names)
    return found


def room(module: str) -> str:
    """The room that a module of the package stands in; the package itself is the ground under all."""
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else ""


def python_files() -> list[Path]:
    """Every Python file of the repository, each once."""
    folders = ("raxol_otel", "exporters", "dashboards", "golden", "tests", "benchmarks")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*.py")]
    return [path for path in files if not (path.is_relative_to(ROOT / "raxol_otel") and path.resolve() != path)]


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function and method of a file, nested ones too."""
    return (node for node in ast.walk(tree(path)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def exported(path: Path) -> list[str] | None:
    """The names in a module's `__all__`; None when it has none."""
    for node in tree(path).body:
        if isinstance(node, ast.Assign) and "__all__" in {ast.unparse(target) for target in node.targets}:
            return list(ast.literal_eval(node.value))
    return None


def bound(path: Path) -> set[str]:
    """The names that a module's top level binds when it runs."""
    names: set[str] = set()
    for node in runtime_nodes(tree(path)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Import | ast.ImportFrom):
            names.update((alias.asname or alias.name).split(".")[0] for alias in node.names)
    return names


def sort_key(name: str) -> tuple[int, list[tuple[int, int | str]]]:
    """The order that ruff sorts `__all__` by: CONSTANTS, Classes, the rest; numbers in names by their value."""
    kind = 0 if len(name) > 1 and name.isupper() else 1 if name[:1].isupper() else 2
    pieces: list[tuple[int, int | str]] = [
        (0, int(piece)) if piece.isdigit() else (1, piece) for piece in re.split(r"(\d+)", name) if piece
    ]
    return kind, pieces


def test_every_module_stands_in_a_known_room() -> None:
    """A new room is given its place in the order before anything is put in it."""
    assert {room(module) for module in MODULES} <= {"", *ROOMS}


@pytest.mark.parametrize("module", MODULES)
def test_a_room_imports_only_rooms_below_it(module: str) -> None:
    """Imports point down: what stands lower never needs what stands higher."""
    below = {"", *ROOMS[: ROOMS.index(room(module)) + 1]} if room(module) else {""}
    own = {name for name in imported(module) if name.split(".")[0] == "raxol_otel"}
    assert [name for name in sorted(own) if room(name) not in below] == []


def test_no_module_imports_itself_in_a_circle() -> None:
    """Modules can be read one after the other, each resting on those before."""
    graph = {module: {name for name in imported(module) if name in MODULES and name != module} for module in MODULES}
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(f"import circle: {' -> '.join(error.args[1])}")


@pytest.mark.parametrize("module", [module for module in MODULES if room(module) in CORE])
def test_the_core_needs_the_standard_library_and_orjson_only(module: str) -> None:
    """Nothing from journal and turns down imports a telemetry library, not even late in a function."""
    tops = {name.split(".")[0] for name in imported(module)}
    assert tops <= sys.stdlib_module_names | CORE_LIBRARIES | {"raxol_otel"}


@pytest.mark.parametrize("module", ["raxol_otel", "raxol_otel.journal", "raxol_otel.turns"])
def test_importing_the_core_loads_no_telemetry(module: str) -> None:
    """A program that only writes journals pays for no telemetry library, however deep the import."""
    script = (
        f"import sys, {module}; print(*sorted({{name.split('.')[0] for name in sys.modules}} & set({TELEMETRY!r})))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == []


def test_nothing_imports_a_top_level_folder_by_its_bare_name() -> None:
    """`import exporters` works in a checkout and fails in a wheel; so nobody says it."""
    said: list[str] = []
    for path in python_files():
        for node in ast.walk(tree(path)):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
                names = [node.module]
            said.extend(f"{path.relative_to(ROOT)}: {name}" for name in names if name.split(".")[0] in LINKS)
    assert said == []


@pytest.mark.parametrize("module", MODULES)
def test_a_file_is_short_enough_to_read_at_once(module: str) -> None:
    """A file that grows past the limit is two files."""
    assert len(MODULES[module].read_bytes().splitlines()) <= FILE_LINES_MAX


@pytest.mark.parametrize("module", MODULES)
def test_a_function_is_short_enough_to_see_whole(module: str) -> None:
    """A function that grows past the limit is two functions."""
    lengths = {node.name: (node.end_lineno or node.lineno) - node.lineno + 1 for node in functions(MODULES[module])}
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


@pytest.mark.parametrize("module", MODULES)
def test_the_public_names_of_a_module_are_listed_in_order(module: str) -> None:
    """A module that defines anything public has `__all__`: sorted, without repeats, and every name in it is there."""
    path = MODULES[module]
    names = exported(path)
    if names is None:
        defined = [node for node in tree(path).body if isinstance(node, ast.FunctionDef | ast.ClassDef)]
        assert [node.name for node in defined if not node.name.startswith("_")] == [], "`__all__` is missing"
        return
    assert names == sorted(names, key=sort_key)
    assert len(names) == len(set(names))
    assert set(names) <= bound(path)


def test_no_text_of_ours_has_a_carriage_return() -> None:
    """Lines end in a line feed; only the recorded journals in golden/ are bytes of their own."""
    folders = ("raxol_otel", "exporters", "dashboards", "tests", "benchmarks", "docs")
    files = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in TEXT_SUFFIXES]
    files += [path for path in ROOT.iterdir() if path.is_file()] + [ROOT / ".ci" / "run"]
    assert [str(path.relative_to(ROOT)) for path in files if path.is_file() and b"\r\n" in path.read_bytes()] == []
