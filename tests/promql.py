"""PromQL taken apart: which series a query reads, by what they are filtered, and what is done to them.

A test may ask this of boards and of rules alike; Grafana's variables are put in before.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import promql_parser as promql

from raxol_otel.catalogue import METRICS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from raxol_otel.catalogue_entries import Metric

__all__ = [
    "OUTSIDE",
    "RANGE",
    "RATE_WINDOW",
    "Aggregation",
    "Selector",
    "Taken",
    "filled",
    "labels_of",
    "metric_of",
    "taken",
]

# Durations that nobody writes by hand: where one turns up, Grafana's variable stood.
RATE_WINDOW: Final = timedelta(minutes=11)
RANGE: Final = timedelta(minutes=61)
DURATIONS: Final = {"$__rate_interval": "11m", "$__range": "61m"}
# Labels that are none of ours: they come with the scrape, or with who runs Prometheus.
OUTSIDE: Final = frozenset({"cluster", "job", "instance"})
ENDINGS: Final = ("_bucket", "_count", "_sum")
BY_NAME: Final = {metric.name: metric for metric in METRICS}


@dataclass(frozen=True, slots=True)
class Selector:
    """One selector: its metric's name, its matchers (operator and value), its window, and the functions around it."""

    name: str
    matchers: dict[str, tuple[str, str]]
    window: timedelta | None
    functions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Aggregation:
    """One aggregation: how, by which labels, and the metrics that go in."""

    how: str
    by: tuple[str, ...]
    metrics: tuple[str, ...]


@dataclass(slots=True)
class Taken:
    """A query taken apart; `matched_on` are the labels by which two sides were matched."""

    selectors: list[Selector] = field(default_factory=list[Selector])
    aggregations: list[Aggregation] = field(default_factory=list[Aggregation])
    matched_on: set[str] = field(default_factory=set[str])


def metric_of(name: str) -> Metric | None:
    """The catalogue's metric that a series' name belongs to; None for others, and for a histogram without ending."""
    found = BY_NAME.get(name)
    if found is not None:
        return None if found.kind == "histogram" else found
    for ending in ENDINGS:
        found = BY_NAME.get(name.removesuffix(ending))
        if found is not None and found.kind == "histogram":
            return found
    return None


def labels_of(name: str) -> frozenset[str]:
    """The labels that a catalogue metric's series have."""
    metric = metric_of(name)
    assert metric is not None, f"{name} is not in the catalogue"
    bound = {"le"} if name.endswith("_bucket") else set[str]()
    return OUTSIDE | frozenset(metric.label_names) | bound


def filled(text: str, values: dict[str, str]) -> str:
    """The query with these values for its variables, and durations for Grafana's own."""
    for name, duration in DURATIONS.items():
        text = text.replace(name, duration)
    for name, value in values.items():
        text = re.sub(rf"\${name}\b|\$\{{{name}(:[a-z]+)?\}}", value.replace("\\", r"\\"), text)
    return text


def taken(text: str) -> Taken:
    """A query taken apart. Raises `ValueError` when it is no PromQL."""
    whole = Taken()
    _walk(promql.parse(filled(text, {})), (), whole)
    return whole


def _walk(node: object, functions: tuple[str, ...], whole: Taken, window: timedelta | None = None) -> list[str]:
    """Goes through a tree; the answer is the names of the metrics below."""
    if isinstance(node, promql.VectorSelector):
        matchers = {one.name: (_operator(one), one.value) for one in node.matchers.matchers}
        name = node.name or ""
        whole.selectors.append(Selector(name, matchers, window, functions))
        return [name]
    if isinstance(node, promql.MatrixSelector):
        return _walk(node.vector_selector, functions, whole, node.range)
    if isinstance(node, promql.Call):
        inside = (node.func.name, *functions)
        return [name for argument in node.args for name in _walk(argument, inside, whole)]
    if isinstance(node, promql.AggregateExpr):
        names = _walk(node.expr, functions, whole)
        by = () if node.modifier is None else tuple(node.modifier.labels)
        assert node.modifier is None or node.modifier.type == promql.AggModifierType.By, "say `by`, never `without`"
        whole.aggregations.append(Aggregation(str(node.op), by, tuple(names)))
        return names
    if isinstance(node, promql.BinaryExpr):
        if node.modifier is not None and node.modifier.matching is not None:
            whole.matched_on.update(node.modifier.matching.labels)
        return [*_walk(node.lhs, functions, whole), *_walk(node.rhs, functions, whole)]
    return [name for below in _below(node) for name in _walk(below, functions, whole)]


def _below(node: object) -> Iterator[object]:
    if isinstance(node, promql.ParenExpr | promql.UnaryExpr | promql.SubqueryExpr):
        yield node.expr
    else:
        assert isinstance(node, promql.NumberLiteral | promql.StringLiteral), f"not known: {node}"


def _operator(matcher: promql.Matcher) -> str:
    ops = promql.MatchOp
    known = ((ops.Equal, "="), (ops.NotEqual, "!="), (ops.Re, "=~"), (ops.NotRe, "!~"))
    return next(words for op, words in known if op == matcher.op)
