"""A line of source that a rule rests on, and the proof that a check notices when it is changed.

anchor = MutationAnchor("shop.cart", "if quantity < 1:")
anchor.assert_caught(check_that_nothing_is_refused, "if quantity < 0:")
"""

from __future__ import annotations

import ast
import difflib
import importlib
import importlib.util
import linecache
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Final

from raxol_otel.testing.swap import swapped_in

if TYPE_CHECKING:
    from collections.abc import Callable, Generator
    from importlib.machinery import ModuleSpec

__all__ = ["AnchorLost", "MutationAnchor"]

_SIMILAR_MAX: Final = 3


class AnchorLost(AssertionError):
    """The line is not there, or there more than once: what was proved about it is not proved any more."""


class MutationAnchor:
    """One line of a module's source, given whole but for its indentation.

    `module` is a module or its name. Where a line stands more than once, `within` names the function or class that is
    meant, as `name` or `Class.name`. Raises `AnchorLost` unless there is exactly one such line.
    """

    def __init__(self, module: str | ModuleType, line: str, *, within: str | None = None) -> None:
        self.module = module if isinstance(module, str) else module.__name__
        self.line = line.strip()
        self.within = within
        self._spec = _spec_of(self.module)
        self._path = _path_of(self.module, self._spec)
        self._source = importlib.util.decode_source(self._path.read_bytes())
        self.line_number = 0
        self.line_number = self._find()

    def _find(self) -> int:
        lines = self._source.split("\n")
        first, last = (1, len(lines)) if self.within is None else self._range(self.within)
        found = [number for number in range(first, last + 1) if lines[number - 1].strip() == self.line]
        if len(found) == 1:
            return found[0]
        where = self.module if self.within is None else f"{self.module}, {self.within}"
        if found:
            message = f"{where} has {self.line!r} {len(found)} times, in lines {', '.join(map(str, found))}"
            raise AnchorLost(f"{message}; name the function with `within`")
        near = difflib.get_close_matches(self.line, [line.strip() for line in lines], _SIMILAR_MAX)
        hint = f"; like it: {', '.join(map(repr, near))}" if near else ""
        raise AnchorLost(f"{where} has no line {self.line!r}{hint}")

    def _range(self, name: str) -> tuple[int, int]:
        """The first and the last line of a function or class."""
        body: list[ast.stmt] = ast.parse(self._source).body
        node: ast.stmt | None = None
        for part in name.split("."):
            node = next((one for one in body if _name_of(one) == part), None)
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                raise AnchorLost(f"{self.module} has no function or class {name}")
            body = node.body
        if node is None:
            raise AnchorLost(f"{self.module} has no function or class {name}")
        return node.lineno, node.end_lineno or node.lineno

    def mutated(self, replacement: str = "pass") -> ModuleType:
        """A copy of the module with the line replaced; the replacement is indented like the line, and may be several.

        The copy has the module's name and package, so that its imports work, and stands in no table of modules: nobody
        else sees it. What the module does when it is imported is done again. Raises `SyntaxError` when the mutation is
        none, `ValueError` when it changes nothing.
        """
        lines = self._source.split("\n")
        text = lines[self.line_number - 1]
        indent = text[: len(text) - len(text.lstrip())]
        lines[self.line_number - 1] = "\n".join(indent + line for line in replacement.split("\n"))
        source = "\n".join(lines)
        if ast.dump(ast.parse(source)) == ast.dump(ast.parse(self._source)):
            message = f"{replacement!r} in the place of {self.line!r} changes nothing"
            raise ValueError(message)
        return self._load(source)

    def _load(self, source: str) -> ModuleType:
        # Another name than the file's: coverage must not count what runs here, and tracebacks show the mutation.
        name = f"{self._path} (mutated line {self.line_number})"
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
        module = ModuleType(self.module)
        module.__file__ = str(self._path)
        module.__spec__ = self._spec
        module.__loader__ = self._spec.loader
        module.__package__ = self._spec.parent
        if self._spec.submodule_search_locations is not None:
            module.__path__ = self._spec.submodule_search_locations
        exec(compile(source, name, "exec", dont_inherit=True), module.__dict__)  # noqa: S102 - the module's own source
        return module

    @contextmanager
    def swapped(self, replacement: str = "pass") -> Generator[ModuleType]:
        """While it is entered, the mutated copy stands in the module's place, for everybody. Not for several threads.

        It is put into the table of modules, and wherever a loaded module has the real one, or its functions, classes
        or constants, under a name of its own. Not reached are default arguments, closures, containers, and objects that
        were made before. Afterwards everything is as it was; modules of its package that were imported meanwhile are
        forgotten.
        """
        importlib.import_module(self.module)
        mutated = self.mutated(replacement)
        with swapped_in(self.module, mutated):
            yield mutated

    def assert_caught(self, check: Callable[[], object], replacement: str = "pass") -> BaseException:
        """Prove that `check()`, which raises nothing now, fails once the line is replaced; what it raised then.

        `check` must also be content with an unchanged copy, or it would catch anything. Raises `AssertionError` when
        it fails before or does not fail after, and `NameError` where the mutation is no more than a slip of the pen.
        """
        importlib.import_module(self.module)
        check()
        with swapped_in(self.module, self._load(self._source)):
            try:
                check()
            except Exception as error:
                message = f"the check fails with an unchanged copy of {self.module} too: it cannot tell mutations"
                raise AssertionError(message) from error
        with self.swapped(replacement):
            try:
                check()
            except NameError:
                raise
            except BaseException as error:
                # pytest's own failures are no `Exception`, nor is its skip, which is no catch.
                if isinstance(error, Exception) or type(error).__name__ == "Failed":
                    return error
                raise
        message = f"survived: {replacement!r} in the place of {self.line!r} ({self.module}, line {self.line_number})"
        raise AssertionError(message)

    def __repr__(self) -> str:
        return f"<MutationAnchor {self.module}:{self.line_number} {self.line!r}>"


def _spec_of(name: str) -> ModuleSpec:
    spec = importlib.util.find_spec(name)
    if spec is None:
        message = f"there is no module {name}"
        raise ModuleNotFoundError(message, name=name)
    return spec


def _path_of(name: str, spec: ModuleSpec) -> Path:
    if spec.origin is None or not spec.origin.endswith(".py"):
        message = f"{name} has no file of source"
        raise ValueError(message)
    return Path(spec.origin)


def _name_of(node: ast.stmt) -> str | None:
    return node.name if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) else None
