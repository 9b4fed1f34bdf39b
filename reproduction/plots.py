"""Plots of the ledger: a metric against a setting, over many runs, as described in `claims.yaml`."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from dair_hf.errors import DataError
from dair_hf.experiments.plots import Series, mean_series, plot_curves
from reproduction.claims import Plot, Section, check_keys
from reproduction.records import matches, metric_of, read_records, value_at

DRAW_KEYS = {"x", "xlabel", "ylabel", "metric", "scale", "log_x", "series"}
SERIES_KEYS = {"label", "sources"}
SOURCE_KEYS = {"experiment", "where"}


def draw_plots(sections: Sequence[Section], results: Path) -> list[Path]:
    """Draw every plot that has a description and at least one record.

    `draw` of a plot contains `x` (dotted path of a number in the record, such as "config.data.partner_fraction"),
    `metric`, `xlabel`, `ylabel`, `series`, and optionally `scale` and `log_x`. A series contains `label` and `sources`,
    each with `experiment` and `where` as in a claim. A point is the mean over the seeds, its band one standard
    deviation; where the metric is undefined for any seed there is none. Returns the files drawn.

    Raises:
        DataError: A key is unknown or missing, a record lacks a value, or a point has two records of one seed.
    """
    drawn = []
    for plot in (plot for section in sections for plot in section.plots):
        draw = plot.draw
        if draw is not None and (series := series_of(plot, results)):
            drawn.append(results / plot.file)
            plot_curves(drawn[-1], plot.caption, draw["xlabel"], draw["ylabel"], series, draw.get("log_x", False))
    return drawn


def series_of(plot: Plot, results: Path) -> dict[str, Series]:
    """Return the curves of a plot that have records, by label."""
    label = f"plot {plot.file}"
    draw: Mapping = check_keys(plot.draw, DRAW_KEYS, DRAW_KEYS - {"scale", "log_x"}, label)
    curves: dict[str, Series] = {}
    for series in draw["series"]:
        check_keys(series, SERIES_KEYS, SERIES_KEYS, label)
        values: dict[float, dict[int, float | None]] = defaultdict(dict)  # x -> seed -> value
        for source in series["sources"]:
            check_keys(source, SOURCE_KEYS, SOURCE_KEYS, label)
            for record in read_records(results / source["experiment"]):
                if not matches(record, source["where"], label):
                    continue
                seed, point = record.content["seed"], values[float(value_at(record, draw["x"], label))]
                value = metric_of(record, draw["metric"], label)
                if seed in point:
                    raise DataError(
                        f"{label}: {record.path} is the second record of seed {seed} at one x; narrow `where`"
                    )
                point[seed] = None if value is None else draw.get("scale", 1) * value
        curve = mean_series({x: point.values() for x, point in values.items()})
        if curve[0]:
            curves[series["label"]] = curve
    return curves
