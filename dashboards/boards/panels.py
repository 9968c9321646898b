"""The kinds of panels that the boards are made of, as Grafana's JSON without id and place."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Final, Literal

from raxol_otel.dashboards.boards.fields import (
    colored,
    defaults,
    graph_defaults,
    link,
    mappings,
    of_series,
    stacked_apart,
)
from raxol_otel.dashboards.links import runbook_url

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from raxol_otel.dashboards.boards.fields import Steps

__all__ = [
    "PROMETHEUS",
    "TEMPO",
    "Panel",
    "Query",
    "bars",
    "heatmap",
    "lines",
    "link",
    "stat",
    "table",
    "traces",
]

PROMETHEUS: Final = {"type": "prometheus", "uid": "${datasource}"}
TEMPO: Final = {"type": "tempo", "uid": "${tempo_datasource}"}
# A failure that happens now and then stays visible as a bar of its own step, which is never shorter than this.
_BAR_STEP: Final = "1m"
_TRACES_MAX: Final = 100
_SPANS_A_TRACE: Final = 3


@dataclass(frozen=True, slots=True)
class Query:
    """A PromQL query of a panel. `legend` names its series: `{{outcome}} ({{source}})`."""

    expr: str
    legend: str = ""
    _: KW_ONLY
    exemplar: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of so many columns (24 a line) and rows; its place in the board comes later."""

    width: int
    height: int
    json: Mapping[str, Any]


def stat(
    title: str,
    description: str,
    expr: str,
    *,
    unit: str,
    no_value: str,
    base: str = "green",
    steps: Steps = (),
    width: int = 4,
    legend: str = "",
    runbook: str = "",
    decimals: int | None = None,
    texts: Mapping[str, str] | None = None,
) -> Panel:
    """One large figure of now; coloured by thresholds. `texts` are said instead of these values."""
    fields = defaults(unit, no_value, base, steps)
    fields["color"] = {"mode": "thresholds"}
    if decimals is not None:
        fields["decimals"] = decimals
    fields["mappings"] = mappings(no_value, texts or {})
    options = {
        "reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False},
        "colorMode": "background" if steps else "value",
        "graphMode": "none",
        "textMode": "auto",
        "justifyMode": "auto",
        "orientation": "auto",
        "wideLayout": True,
    }
    target = {**_target("A", Query(expr, legend)), "instant": True, "range": False}
    return _panel(
        "stat",
        title,
        description,
        targets=[target],
        fields=fields,
        options=options,
        size=(width, 4),
        runbook=runbook,
    )


def lines(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    no_value: str,
    steps: Steps = (),
    width: int = 8,
    height: int = 8,
    stacked: bool = False,
    colors: Mapping[str, str] | None = None,
    right: Mapping[str, str] | None = None,
    runbook: str = "",
    limits: tuple[float, float | None] = (0, None),
    decimals: int | None = None,
) -> Panel:
    """Curves over time, or areas on each other.

    `colors` are by the beginning of a series' name; `right` names those that have an axis of their own, with its unit.
    """
    custom: dict[str, Any] = {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if stacked else 8,
        "showPoints": "never",
        "spanNulls": False,
        "stacking": {"mode": "normal" if stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "dashed" if steps else "off"},
    }
    fields = graph_defaults(unit, no_value, steps, custom=custom, limits=limits, decimals=decimals)
    overrides = [
        of_series(beginning, custom__axisPlacement="right", unit=its_unit)
        for beginning, its_unit in (right or {}).items()
    ]
    return _graph(
        title,
        description,
        queries=queries,
        fields=fields,
        overrides=[
            *colored(colors),
            *(stacked_apart(query.legend for query in queries) if stacked else ()),
            *overrides,
        ],
        size=(width, height),
        runbook=runbook,
    )


def bars(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    no_value: str,
    width: int = 8,
    height: int = 8,
    colors: Mapping[str, str] | None = None,
    runbook: str = "",
) -> Panel:
    """How often something happened in each step, as bars on each other: for what is rare."""
    custom: dict[str, Any] = {
        "drawStyle": "bars",
        "lineWidth": 0,
        "fillOpacity": 80,
        "stacking": {"mode": "normal", "group": "A"},
        "thresholdsStyle": {"mode": "off"},
    }
    fields = graph_defaults(unit, no_value, (), custom=custom)
    panel = _graph(
        title,
        description,
        queries=queries,
        fields=fields,
        overrides=[*colored(colors), *stacked_apart((query.legend for query in queries), beside=True)],
        size=(width, height),
        runbook=runbook,
    )
    return Panel(panel.width, panel.height, {**panel.json, "interval": _BAR_STEP})


def heatmap(title: str, description: str, expr: str, *, unit: str, no_value: str, width: int = 8) -> Panel:
    """The buckets of a histogram over time. `unit` is that of the bounds."""
    fields = defaults("short", no_value, "green", ())
    fields["custom"] = {"scaleDistribution": {"type": "linear"}}
    options = {
        "calculate": False,
        "cellValues": {"unit": "short"},
        "cellGap": 1,
        "color": {"mode": "scheme", "scheme": "Blues", "fill": "blue", "exponent": 0.5, "steps": 64, "reverse": False},
        "exemplars": {"color": "rgba(255,0,255,0.7)"},
        "filterValues": {"le": 1e-9},
        "legend": {"show": True},
        "rowsFrame": {"layout": "auto"},
        "tooltip": {"mode": "single", "showColorScale": False, "yHistogram": True},
        "yAxis": {"axisPlacement": "left", "reverse": False, "unit": unit},
    }
    target = {**_target("A", Query(expr, "{{le}}", exemplar=True)), "format": "heatmap"}
    return _panel("heatmap", title, description, targets=[target], fields=fields, options=options, size=(width, 8))


def table(
    title: str,
    description: str,
    *queries: Query,
    unit: str,
    no_value: str,
    columns: Mapping[str, str],
    width: int = 12,
    height: int = 8,
    overrides: Sequence[Mapping[str, Any]] = (),
    sort_by: str = "",
    runbook: str = "",
) -> Panel:
    """The labels and values of now, a row for each set of labels. `columns` are the ones shown, with their titles."""
    fields = defaults(unit, no_value, "text", ())
    fields["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True}
    targets = [
        {**_target(chr(ord("A") + place), query), "instant": True, "range": False, "format": "table"}
        for place, query in enumerate(queries)
    ]
    transformations: list[dict[str, Any]] = [{"id": "merge", "options": {}}] if len(queries) > 1 else []
    hidden = [name for name in ("Time", "Value") if name not in columns]
    organize = {
        "excludeByName": dict.fromkeys(hidden, True),
        "indexByName": {name: place for place, name in enumerate(columns)},
        "renameByName": dict(columns),
    }
    transformations.append({"id": "organize", "options": organize})
    options: dict[str, Any] = {"showHeader": True, "cellHeight": "sm"}
    if sort_by:
        options["sortBy"] = [{"displayName": sort_by, "desc": True}]
    panel = _panel(
        "table",
        title,
        description,
        targets=targets,
        fields=fields,
        options=options,
        size=(width, height),
        runbook=runbook,
    )
    field_config = {"defaults": fields, "overrides": list(overrides)}
    return Panel(width, height, {**panel.json, "fieldConfig": field_config, "transformations": transformations})


def traces(
    title: str, description: str, traceql: str, *, rows: Literal["traces", "spans"], no_value: str, width: int = 24
) -> Panel:
    """What Tempo finds: a row for each trace or span, with a link to the trace."""
    fields = defaults("none", no_value, "text", ())
    fields["custom"] = {"align": "auto", "cellOptions": {"type": "auto"}, "filterable": True}
    target: dict[str, Any] = {
        "refId": "A",
        "datasource": TEMPO,
        "queryType": "traceql",
        "query": traceql,
        "filters": [],
        "limit": _TRACES_MAX,
        "spss": _SPANS_A_TRACE,
        "tableType": rows,
    }
    options = {"showHeader": True, "cellHeight": "sm"}
    panel = _panel("table", title, description, targets=[target], fields=fields, options=options, size=(width, 9))
    return Panel(width, 9, {**panel.json, "datasource": TEMPO})


def _panel(
    kind: str,
    title: str,
    description: str,
    *,
    targets: Sequence[Mapping[str, Any]],
    fields: Mapping[str, Any],
    options: Mapping[str, Any],
    size: tuple[int, int],
    runbook: str = "",
) -> Panel:
    links = [link("Runbook", runbook_url(runbook))] if runbook else []
    json: dict[str, Any] = {
        "type": kind,
        "title": title,
        "description": description,
        "datasource": PROMETHEUS,
        "links": links,
        "targets": list(targets),
        "fieldConfig": {"defaults": fields, "overrides": []},
        "options": options,
    }
    return Panel(*size, json)


def _graph(
    title: str,
    description: str,
    *,
    queries: Sequence[Query],
    fields: Mapping[str, Any],
    overrides: Sequence[Mapping[str, Any]],
    size: tuple[int, int],
    runbook: str,
) -> Panel:
    options: dict[str, Any] = {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }
    targets = [{**_target(chr(ord("A") + place), query), "range": True} for place, query in enumerate(queries)]
    panel = _panel(
        "timeseries",
        title,
        description,
        targets=targets,
        fields=fields,
        options=options,
        size=size,
        runbook=runbook,
    )
    return Panel(*size, {**panel.json, "fieldConfig": {"defaults": fields, "overrides": list(overrides)}})


def _target(ref: str, query: Query) -> dict[str, Any]:
    target: dict[str, Any] = {"refId": ref, "datasource": PROMETHEUS, "editorMode": "code", "expr": query.expr}
    if query.legend:
        target["legendFormat"] = query.legend
    if query.exemplar:
        target["exemplar"] = True
    return target
