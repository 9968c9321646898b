"""The variables that boards are filtered by."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from raxol_otel.catalogue_entries import Metric

__all__ = ["data_source", "label_values", "text_box"]

# What "All" stands for. Many a Prometheus gives no `cluster`: there, no label at all has to match.
_ALL: Final = {"cluster": ".*"}
_ALL_ELSE: Final = ".+"
_SORTED_BY_NAME: Final = 1
_AT_EVERY_TIME_RANGE: Final = 2


def data_source(kind: str, name: str) -> dict[str, Any]:
    """A choice of data source, of the kind `prometheus` or `tempo`."""
    words = "Data source" if name == "datasource" else f"{kind.capitalize()} data source"
    return {
        **_variable("datasource", name, words),
        "query": kind,
        "refresh": 1,
        "regex": "",
        "multi": False,
        "includeAll": False,
        "current": {},
        "options": [],
    }


def label_values(name: str, metric: Metric, filters: Sequence[str], *, chosen: Sequence[str] = ()) -> dict[str, Any]:
    """The values of a label that a metric's series have, of what the variables before it leave; all, or the chosen."""
    before = filters[: filters.index(name)] if name in filters else filters
    matchers = ", ".join(f'{label}=~"${label}"' for label in before)
    selector = f"{metric.name}{{{matchers}}}" if matchers else metric.name
    query = f"label_values({selector}, {name})"
    current = {"text": list(chosen), "value": list(chosen)} if chosen else {"text": ["All"], "value": ["$__all"]}
    return {
        **_variable("query", name, name.capitalize()),
        "datasource": {"type": "prometheus", "uid": "${datasource}"},
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "refresh": _AT_EVERY_TIME_RANGE,
        "regex": "",
        "sort": _SORTED_BY_NAME,
        "multi": True,
        "includeAll": True,
        "allValue": _ALL.get(name, _ALL_ELSE),
        "current": current,
        "options": [],
    }


def text_box(name: str, words: str) -> dict[str, Any]:
    """A text that is typed in, or comes with a link."""
    empty = {"text": "", "value": ""}
    return {
        **_variable("textbox", name, words),
        "query": "",
        "current": empty,
        "options": [{**empty, "selected": True}],
    }


def _variable(kind: str, name: str, words: str) -> dict[str, Any]:
    return {"type": kind, "name": name, "label": words, "hide": 0, "skipUrlSync": False}
