"""PromQL for the boards: names and labels are the catalogue's, so a renamed metric cannot survive in a panel.

Every series is filtered by the board's variables. Where agents and the fleet exporter count the same thing, `source`
is kept in every sum: the two are never added up by accident.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from raxol_otel.catalogue_entries import Metric

__all__ = [
    "FILTERS",
    "buckets",
    "happened",
    "increase",
    "pace",
    "per_minute",
    "quantile",
    "rate",
    "ratio",
    "series",
    "total",
]

# Labels that Prometheus itself, or who runs it, gives to every series; each is a variable of every board.
FILTERS: Final = ("cluster", "job", "instance")
_RATE_WINDOW: Final = "$__rate_interval"


def series(metric: Metric, *, ending: str = "", **match: str | tuple[str, ...]) -> str:
    """The selector of a metric's series, or of a histogram's by their `ending`; `match` is of its own labels.

    Raises `ValueError` for a label that the metric has not, or a value that cannot be.
    """
    if (metric.kind == "histogram") != bool(ending):
        raise ValueError(f"{metric.name} is a {metric.kind}: its series do not end in {ending!r}")
    filters = (*FILTERS, *(() if metric.is_bare else ("source",)))
    matchers = [f'{name}=~"${name}"' for name in filters]
    labels = {label.name: label for label in metric.labels}
    for name, value in match.items():
        if name not in labels:
            raise ValueError(f"{metric.name} has no label {name}")
        values = (value,) if isinstance(value, str) else value
        unknown = [] if labels[name].limit else [one for one in values if one not in labels[name].values]
        if unknown:
            raise ValueError(f"{metric.name} has no {name} {', '.join(unknown)}")
        matchers.append(f'{name}="{value}"' if isinstance(value, str) else f'{name}=~"{"|".join(value)}"')
    return f"{metric.name}{ending}{{{', '.join(matchers)}}}"


def total(metric: Metric, *by: str, how: str = "sum", **match: str | tuple[str, ...]) -> str:
    """A gauge, put together by these labels."""
    return _grouped(how, series(metric, ending="", **match), _kept(metric, by))


def rate(metric: Metric, *by: str, ending: str = "", **match: str | tuple[str, ...]) -> str:
    """What a counter grows by in a second."""
    window = f"{series(metric, ending=ending, **match)}[{_RATE_WINDOW}]"
    return _grouped("sum", f"rate({window})", _kept(metric, by))


def increase(
    metric: Metric, *by: str, ending: str = "", over: str = _RATE_WINDOW, at: str = "", **match: str | tuple[str, ...]
) -> str:
    """What a counter grew by, in a step or `over` a longer time, ending then or `at` another; buckets by `le`, too."""
    window = f"{series(metric, ending=ending, **match)}[{over}]" + (f" @ {at}" if at else "")
    bound = ("le",) if ending == "_bucket" else ()
    return _grouped("sum", f"increase({window})", (*bound, *_kept(metric, by)))


def per_minute(metric: Metric, *by: str, **match: str | tuple[str, ...]) -> str:
    """What a counter grows by in a minute: agents are slow, and a figure a second would be all zeros."""
    return f"60 * {rate(metric, *by, ending='', **match)}"


def happened(metric: Metric, *by: str) -> str:
    """What a counter grew by in each step, of those series only that grew at all in the time shown."""
    return f"{increase(metric, *by)} {_that_grew(metric, by)}"


def pace(metric: Metric, *by: str) -> str:
    """As `per_minute`, of those series only that grew at all in the time shown: not of all names ever heard."""
    return f"{per_minute(metric, *by)} {_that_grew(metric, by)}"


def _that_grew(metric: Metric, by: tuple[str, ...]) -> str:
    return f"and on ({', '.join(_kept(metric, by))}) ({increase(metric, *by, over='$__range', at='end()')} > 0)"


def quantile(share: float, metric: Metric, *by: str, over: str = _RATE_WINDOW, **match: str | tuple[str, ...]) -> str:
    """What this share of the observations of a histogram does not exceed."""
    window = f"{series(metric, ending='_bucket', **match)}[{over}]"
    growth = "rate" if over == _RATE_WINDOW else "increase"
    by_bound = _grouped("sum", f"{growth}({window})", ("le", *_kept(metric, by)))
    return f"histogram_quantile({share}, {by_bound})"


def buckets(metric: Metric) -> str:
    """The buckets of a histogram in each step, for a heatmap.

    A heatmap has room for one histogram. Where two sources count the same, the larger count of each bucket is shown.
    """
    counts = increase(metric, ending="_bucket")
    return counts if len(metric.sources) == 1 else f"max by (le) ({counts})"


def ratio(part: str, whole: str) -> str:
    """A part of a whole. Of nothing there is no part: an idle agent shows a gap and not a good figure."""
    return f"{part} / ({whole} > 0)"


def _kept(metric: Metric, by: tuple[str, ...]) -> tuple[str, ...]:
    unknown = [name for name in by if name not in (*FILTERS, *metric.label_names)]
    if unknown:
        raise ValueError(f"{metric.name} has no label {', '.join(unknown)}")
    return by if metric.is_bare or len(metric.sources) == 1 else ("source", *by)


def _grouped(how: str, inner: str, by: tuple[str, ...]) -> str:
    return f"{how} by ({', '.join(by)}) ({inner})" if by else f"{how}({inner})"
