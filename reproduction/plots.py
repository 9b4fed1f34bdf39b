"""Plots of the ledger: a metric of many runs against one of their settings, as `claims.yaml` describes it."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dair_hf.errors import DataError
from dair_hf.experiments.plots import Series, plot_curves
from reproduction.claims import Plot, Record, Section, metric_of, read_records, value_at

DRAW_KEYS = {"x", "xlabel", "ylabel", "metric", "scale", "log_x", "series"}
SERIES_KEYS = {"label", "sources"}
SOURCE_KEYS = {"experiment", "where"}


def draw_plots(sections: Sequence[Section], results: Path) -> list[Path]:
    """Draw every plot that says how, as far as there are records for it.

    `draw` of a plot holds `x` (dotted path of a number in the record, such as "config.data.partner_fraction"),
    `metric`, `xlabel`, `ylabel`, `series` and, if need be, `scale` and `log_x`; a series holds `label` and `sources`,
    each an `experiment` and the `where` of its records, as in a claim. A point is the mean over the seeds, its band one
    standard deviation.

    Args:
        sections: From `reproduction.claims.read_claims`.
        results: Folder with one folder of records for each experiment.

    Returns:
        The files that were drawn.

    Raises:
        DataError: A key is unknown or missing, a record lacks what is drawn, or a point holds a seed twice.
    """
    drawn = []
    for plot in (plot for section in sections for plot in section.plots if plot.draw is not None):
        series = series_of(plot, results)
        if series:
            draw = plot.draw or {}
            path = results / plot.file
            plot_curves(path, plot.caption, draw["xlabel"], draw["ylabel"], series, draw.get("log_x", False))
            drawn.append(path)
    return drawn


def series_of(plot: Plot, results: Path) -> dict[str, Series]:
    """The curves of a plot, without those that have no record yet.

    Args:
        plot: A plot with `draw`.
        results: Folder with one folder of records for each experiment.

    Returns:
        Label -> (places, means, standard deviations), by ascending place.

    Raises:
        DataError: As `draw_plots`.
    """
    place = f"plot {plot.file}"
    draw = _checked(plot.draw or {}, DRAW_KEYS, DRAW_KEYS - {"scale", "log_x"}, place)
    curves: dict[str, Series] = {}
    for series in draw["series"]:
        _checked(series, SERIES_KEYS, SERIES_KEYS, place)
        values: dict[float, dict[int, float]] = defaultdict(dict)
        for source in series["sources"]:
            _checked(source, SOURCE_KEYS, SOURCE_KEYS, place)
            for record in read_records(results / source["experiment"]):
                if all(value_at(record, key, place) == wanted for key, wanted in source["where"].items()):
                    _add(values[float(value_at(record, draw["x"], place))], record, draw, place)
        if places := sorted(x for x, point in values.items() if point):
            samples = [list(values[x].values()) for x in places]
            means = [statistics.fmean(sample) for sample in samples]
            spread = [statistics.stdev(sample) if len(sample) > 1 else 0.0 for sample in samples]
            curves[series["label"]] = (places, means, spread)
    return curves


def _add(point: dict[int, float], record: Record, draw: Mapping[str, Any], place: str) -> None:
    seed, value = record.content["seed"], metric_of(record, draw["metric"], place)
    if seed in point:
        raise DataError(f"{place}: {record.path} is the second record of seed {seed} at one place; narrow `where`")
    if value is not None:
        point[seed] = draw.get("scale", 1) * value


def _checked(given: Any, allowed: set[str], required: set[str], place: str) -> Mapping[str, Any]:
    if not isinstance(given, Mapping):
        raise DataError(f"{place}: found {type(given).__name__}, a mapping is needed")
    if wrong := sorted(set(given) - allowed) + sorted(required - set(given)):
        raise DataError(f"{place}: {', '.join(wrong)} unknown or missing; needs {', '.join(sorted(required))}")
    return given
