"""What panels say of their fields: units, thresholds, colours, axes, links; for all of them, and where one differs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from raxol_otel.catalogue_entries import SOURCES

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

__all__ = ["Steps", "colored", "column", "defaults", "graph_defaults", "link", "mappings", "of_series", "stacked_apart"]

# From a value on, a colour. The first step has no lower end.
Steps = tuple[tuple[float, str], ...]
_GREY: Final = "#6e7077"
# Before its time, and after it; of the way to the next bar each takes so much.
_SIDES: Final = (-1, 1)
_HALF_WIDTH: Final = 0.4


def column(title: str, **properties: Any) -> dict[str, Any]:
    """What is different in one column of a table; a property's dots are written as `__`."""
    return {"matcher": {"id": "byName", "options": title}, "properties": _properties(properties)}


def link(words: str, url: str, *, is_elsewhere: bool = True) -> dict[str, Any]:
    """A link of a panel or of a table's cells."""
    return {"title": words, "url": url, "targetBlank": is_elsewhere}


def colored(colors: Mapping[str, str] | None) -> list[dict[str, Any]]:
    """The colours of series, by the beginning of their names."""
    return [
        of_series(beginning, color={"mode": "fixed", "fixedColor": color})
        for beginning, color in (colors or {}).items()
    ]


def stacked_apart(legends: Iterable[str], *, beside: bool = False) -> list[dict[str, Any]]:
    """What agents and the exporter both count makes two stacks: on each other they would look like a sum.

    `beside`: of bars, which would hide each other, one stack stands on the left of its time and the other on the right.
    """
    if not any("{{source}}" in legend for legend in legends):
        return []
    found: list[dict[str, Any]] = []
    for source, side in zip(SOURCES, _SIDES, strict=True):
        properties = _properties({"custom__stacking": {"mode": "normal", "group": source}})
        if beside:
            properties += _properties({"custom__barAlignment": side, "custom__barWidthFactor": _HALF_WIDTH})
        found.append({"matcher": {"id": "byRegexp", "options": f"/\\b{source}\\)?$/"}, "properties": properties})
    return found


def defaults(unit: str, no_value: str, base: str, steps: Steps) -> dict[str, Any]:
    """What is true of all fields of a panel; `steps` colour from a value on, `base` below the first."""
    colors = [{"color": base, "value": None}, *({"color": color, "value": value} for value, color in steps)]
    return {"unit": unit, "noValue": no_value, "thresholds": {"mode": "absolute", "steps": colors}}


def graph_defaults(
    unit: str,
    no_value: str,
    steps: Steps,
    *,
    custom: Mapping[str, Any],
    limits: tuple[float, float | None] = (0, None),
    decimals: int | None = None,
) -> dict[str, Any]:
    """What is true of all curves of a panel. `limits` are those of the axis, where they are fixed."""
    fields = defaults(unit, no_value, "green", steps)
    fields["color"] = {"mode": "palette-classic"}
    fields["custom"] = custom
    low, high = limits
    fields["min"] = low
    if high is not None:
        fields["max"] = high
    if decimals is not None:
        fields["decimals"] = decimals
    return fields


def mappings(no_value: str, texts: Mapping[str, str]) -> list[dict[str, Any]]:
    """What is said instead of values. Of nothing, too, and in grey: in the first step's colour it would look well."""
    nothing = {"match": "null+nan", "result": {"text": no_value, "color": _GREY, "index": 0}}
    said = {value: {"text": text, "index": index} for index, (value, text) in enumerate(texts.items(), start=1)}
    found: list[dict[str, Any]] = [{"type": "special", "options": nothing}]
    return [*found, {"type": "value", "options": said}] if said else found


def of_series(beginning: str, **properties: Any) -> dict[str, Any]:
    """What is different in the series whose name begins so; a property's dots are written as `__`."""
    matcher = {"id": "byRegexp", "options": f"/^{beginning}\\b/"}
    return {"matcher": matcher, "properties": _properties(properties)}


def _properties(properties: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A name's `__` stands for a dot."""
    return [{"id": name.replace("__", "."), "value": value} for name, value in properties.items()]
