"""The mutants of a module: mutmut's operators, and three of ours.

Left alone: annotations, decorators, imports, `__all__`, docstrings, and texts for people, which are literals with a
space in them and what is named `message`.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import libcst as cst
from libcst import matchers as m
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation import mutators

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    Operator = tuple[type[cst.CSTNode], Callable[[Any], Iterable[cst.CSTNode]]]

__all__ = ["Mutant", "mutants"]

# Calls of a literal's own type or length: without the argument they raise, and tell nothing about the tests.
_PLAIN: Final = ("cast", "isinstance", "len")
_SKIPPED: Final = (cst.Annotation, cst.Decorator, cst.Import, cst.ImportFrom, cst.ConcatenatedString)
_TYPE_CHECKING: Final = m.If(test=m.Name("TYPE_CHECKING"))
_ALL: Final = m.Assign(targets=[m.AssignTarget(m.Name("__all__"))])
_DOCSTRING: Final = m.Expr(m.SimpleString())


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of a module. `first` is the first line of the statement that holds `line`, where the change is.

    The key stays the same while the text that is changed does, and its turn among equal ones.
    """

    key: str
    first: int
    line: int
    before: str
    after: str
    module: cst.Module
    old: cst.CSTNode
    new: cst.CSTNode

    def code(self) -> str:
        """The text of the whole module with the change."""
        return cst.ensure_type(self.module.deep_replace(self.old, self.new), cst.Module).code


def mutants(source: str) -> list[Mutant]:
    """All mutants of a module, in the order of its lines."""
    wrapper = MetadataWrapper(cst.parse_module(source))
    collector = _Collector()
    wrapper.visit(collector)
    found: list[Mutant] = []
    seen: Counter[tuple[str, str]] = Counter()
    for first, line, old, new in collector.changes:
        before, after = _text(wrapper.module, old), _text(wrapper.module, new)
        if before != after:
            seen[before, after] += 1
            what = f"{before}\0{after}\0{seen[before, after]}"
            key = hashlib.sha256(what.encode()).hexdigest()[:16]
            found.append(Mutant(key, first, line, before, after, wrapper.module, old, new))
    return found


def _text(module: cst.Module, node: cst.CSTNode) -> str:
    if isinstance(node, cst.If | cst.While):
        return f"if {module.code_for_node(node.test)}"
    return module.code_for_node(node).strip()


def _spoken(node: cst.CSTNode) -> bool:
    """Whether a literal is a text for people."""
    if isinstance(node, cst.SimpleString):
        return " " in node.value
    if isinstance(node, cst.FormattedString):
        return any(isinstance(part, cst.FormattedStringText) and " " in part.value for part in node.parts)
    return isinstance(node, cst.ConcatenatedString) or m.matches(node, m.Name("message"))


def _literal(node: cst.SimpleString) -> Iterable[cst.CSTNode]:
    """Mutmut's first string only: one that differs in its case tells nothing more."""
    return [] if _spoken(node) else list(mutators.operator_string(node))[:1]


def _arguments(node: cst.Call) -> Iterable[cst.CSTNode]:
    """Mutmut's, but a positional argument is not also left out, and no text for people becomes None."""
    if isinstance(node.func, cst.Name) and node.func.value in _PLAIN:
        return
    for changed in mutators.operator_arg_removal(node):
        gone = [old for old in node.args if old not in changed.args]
        if len(changed.args) < len(node.args) and gone[0].keyword is None:
            continue
        if not _spoken(gone[0].value):
            yield changed


def _assigned(node: cst.Assign | cst.AnnAssign) -> Iterable[cst.CSTNode]:
    """Mutmut's, where what is assigned is no text for people."""
    if node.value is not None and not _spoken(node.value):
        yield from mutators.operator_assignment(node)


def _left_out(node: cst.Expr | cst.Raise) -> Iterable[cst.CSTNode]:
    """A call or a `raise` that does not happen."""
    if isinstance(node, cst.Raise) or isinstance(node.value, cst.Call):
        yield cst.Pass()


def _negated(node: cst.If | cst.While) -> Iterable[cst.CSTNode]:
    """The condition turned round, where no other operator gets at it."""
    if isinstance(node.test, cst.Name | cst.Attribute | cst.Call | cst.NamedExpr):
        inner = node.test.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])
        yield node.with_changes(test=cst.UnaryOperation(cst.Not(), inner))


_REPLACED: Final = {mutators.operator_string, mutators.operator_arg_removal, mutators.operator_assignment}
_OPERATORS: Final[list[Operator]] = [
    *((kind, operator) for kind, operator in mutators.mutation_operators if operator not in _REPLACED),
    (cst.SimpleString, _literal),
    (cst.Assign, _assigned),
    (cst.AnnAssign, _assigned),
    (cst.Call, _arguments),
    (cst.Expr, _left_out),
    (cst.Raise, _left_out),
    (cst.If, _negated),
    (cst.While, _negated),
]


class _Collector(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[tuple[int, int, cst.CSTNode, cst.CSTNode]] = []
        self._statements: list[int] = []

    def on_visit(self, node: cst.CSTNode) -> bool:
        """Collect what can be changed here; False where nothing below is looked at."""
        if isinstance(node, _SKIPPED) or any(m.matches(node, kind) for kind in (_TYPE_CHECKING, _ALL, _DOCSTRING)):
            return False
        line = self._line(node)
        if isinstance(node, cst.BaseSmallStatement | cst.BaseCompoundStatement):
            self._statements.append(line)
        first = self._statements[-1] if self._statements else line
        for kind, operator in _OPERATORS:
            if isinstance(node, kind):
                self.changes += ((first, line, node, changed) for changed in operator(node))
        return True

    def on_leave(self, original_node: cst.CSTNode) -> None:
        """A statement ends."""
        skipped = isinstance(original_node, _SKIPPED)
        if isinstance(original_node, cst.BaseSmallStatement | cst.BaseCompoundStatement) and not skipped:
            ends = any(m.matches(original_node, kind) for kind in (_TYPE_CHECKING, _ALL, _DOCSTRING))
            if not ends:
                self._statements.pop()

    def _line(self, node: cst.CSTNode) -> int:
        position = self.get_metadata(PositionProvider, node, None)
        return position.start.line if position is not None else (self._statements[-1] if self._statements else 1)
