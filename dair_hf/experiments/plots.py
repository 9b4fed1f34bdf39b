"""Curves with error bands and accuracy-consistency fronts, written as PNG files."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dair_hf.errors import DataError
from dair_hf.experiments.samples import Sample
from dair_hf.experiments.selection import Point, pareto_front
from dair_hf.io.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Positions on the x axis, means, and standard deviations or None.
Series = tuple[Sequence[float], Sequence[float], Sequence[float] | None]

MAX_MARKERS = 40  # longer curves are drawn without markers
COLORS, LINE_STYLES = 10, ("-", "--", ":", "-.")  # matplotlib's color cycle, and a line style for each pass through it
LEGEND_ROWS = 18  # that fit the height of a figure


def require_matplotlib() -> None:
    """Raise a `DataError` if matplotlib, which is optional (extra `plots`), is not installed."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise DataError(
            "tables come with plots, which need matplotlib; it is not installed: pip install matplotlib"
        ) from error


def mean_series(values: Mapping[float, Collection[float | None]]) -> Series:
    """Return mean and standard deviation (with n - 1; 0 for one value) at each x, in ascending order.

    An x without values, or with an undefined one, is left out.

    Args:
        values: x -> one value per seed.

    Example:
        >>> mean_series({10: [1.0, 3.0], 1: [5.0], 2: [4.0, None]})
        ([1, 10], [5.0, 2.0], [0.0, 1.4142135623730951])
    """
    samples = {x: sample for x in sorted(values) if (sample := Sample.of(values[x]))}
    return list(samples), [sample.mean for sample in samples.values()], [sample.std for sample in samples.values()]


def plot_curves(
    path: Path,
    title: str,
    xlabel: str,
    ylabel: str,
    series: Mapping[str, Series],
    log_x: bool = False,
) -> None:
    """Draw one line per series, with a band of one standard deviation if given.

    Args:
        path: PNG file to write.
        title: Heading.
        xlabel: Label of the x axis, with its unit.
        ylabel: Label of the y axis, with its unit.
        series: Label -> (x, means, standard deviations or None), of equal lengths.
        log_x: Draw a logarithmic x axis; every x must then be > 0.

    Raises:
        DataError: No series, an empty one or one of unequal lengths, or an x <= 0 on a logarithmic axis.

    Example:
        >>> plot_curves(Path("sweep.png"), "Sweep", "lambda", "accuracy, %",
        ...             {"DAIR": ([1, 10], [72.0, 73.1], [0.2, 0.1])}, log_x=True)  # doctest: +SKIP
    """
    if not series:
        raise DataError(f"{path}: no series to plot; give at least one")
    for label, (x, means, deviations) in series.items():
        lengths = [len(part) for part in (x, means, deviations) if part is not None]
        if not lengths[0] or len(set(lengths)) > 1:
            raise DataError(f"{path}: series {label!r} has parts of length {lengths}; they must be equal and not 0")
        if log_x and min(x) <= 0:
            raise DataError(f"{path}: series {label!r} has a point at {min(x):g}; a logarithmic axis starts above 0")
    figure, axes = _axes(title, xlabel, ylabel)
    for index, (label, (x, means, deviations)) in enumerate(series.items()):
        marker = "o" if len(x) <= MAX_MARKERS else ""
        axes.plot(x, means, marker=marker, markersize=3, linewidth=1.2, label=label, **_line_style(index))
        if deviations is not None:
            low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
            high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
            axes.fill_between(x, low, high, color=f"C{index % COLORS}", alpha=0.2, linewidth=0)
    if log_x:
        axes.set_xscale("log")
    _add_legend(figure, axes)
    save_figure(figure, path)


def curve_ends(values: Sequence[float], first: int = 10, last: int = 140) -> dict[str, Any]:
    """Return the first and the last values of a curve of training, for the metrics of a record and `plot_ends`."""
    return {"steps": len(values), "first": list(values[:first]), "last": list(values[-last:])}


def plot_ends(path: Path, title: str, ylabel: str, series: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw the first and the last iterations of training side by side, on logarithmic y axes."""
    if not series:
        raise DataError(f"{path}: no series to plot; give at least one")
    for label, curves in series.items():
        lengths = [curve["steps"] for curve in curves]
        if len(set(lengths)) != 1 or not lengths[0]:
            raise DataError(f"{path}: series {label!r} has curves of {lengths} iterations; give equal lengths above 0")
    shown = {end: max(len(curve[end]) for curves in series.values() for curve in curves) for end in ("first", "last")}
    figure, left = _axes(title, f"first {shown['first']} iterations", ylabel)
    left.set_subplotspec(figure.add_gridspec(1, 2)[0])
    right = figure.add_subplot(1, 2, 2)
    right.set_xlabel(f"last {shown['last']} iterations", fontsize=9)
    right.spines[["top", "right"]].set_visible(False)
    for index, (label, curves) in enumerate(series.items()):
        first, last = (
            [statistics.fmean(values) for values in zip(*(curve[end] for curve in curves), strict=True)]
            for end in ("first", "last")
        )
        steps = curves[0]["steps"]
        left.plot(range(len(first)), first, marker="o", markersize=3, label=label, **_line_style(index))
        right.plot(range(steps - len(last), steps), last, linewidth=0.8, **_line_style(index))
    for axes in (left, right):
        axes.set_yscale("log")
    _add_legend(figure, left)
    save_figure(figure, path)


def plot_front(
    path: Path,
    title: str,
    xlabel: str,
    ylabel: str,
    points: Sequence[Point],
    chosen: float | None = None,
    lower_is_better: bool = False,
    limits_from: Sequence[Point] = (),
) -> None:
    """Draw accuracy against consistency, one point per lambda; a line joins the Pareto front.

    Args:
        path: PNG file to write.
        title: Heading.
        xlabel: Label of the accuracy axis.
        ylabel: Label of the consistency axis.
        points: Points to draw; those without consistency are left out.
        chosen: Lambda of the selected point, which is ringed.
        lower_is_better: Whether `accuracy` is an error.
        limits_from: Points of other plots. The axes include them, so that plots of one experiment share their limits.

    Raises:
        DataError: No point has a consistency.
    """
    positions = _positions(points)
    if not positions:
        raise DataError(f"{path}: no points to plot; give at least one")
    front = pareto_front(points, lower_is_better)
    figure, axes = _axes(title, xlabel, ylabel)
    joined = sorted(positions[point] for point in front)
    axes.plot([x for x, _ in joined], [y for _, y in joined], "-", linewidth=1, color="C1", label="front")
    for point, (x, y) in positions.items():
        axes.plot([x], [y], "o", markersize=4, color="C1" if point in front else "C0")
        axes.annotate(f"{point.dair_lambda:g}", (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    for point, (x, y) in positions.items():
        if point.dair_lambda == chosen:
            axes.plot([x], [y], "o", markersize=11, fillstyle="none", color="black", linestyle="", label="chosen")
    if limits_from:
        axes.update_datalim(list(_positions(limits_from).values()))
        axes.autoscale_view()
    _add_legend(figure, axes)
    axes.margins(0.12)
    save_figure(figure, path)


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with atomic_path(path) as scratch:
        canvas.print_png(scratch)


def _positions(points: Sequence[Point]) -> dict[Point, tuple[float, float]]:
    return {point: (point.accuracy, cm) for point in points if (cm := point.consistency) is not None}


def _axes(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    # Imported here, because matplotlib is optional. Figures on the Agg canvas need no display.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _line_style(index: int) -> dict[str, Any]:
    """Return color and line style of a series, unique among the first forty."""
    return {"color": f"C{index % COLORS}", "linestyle": LINE_STYLES[index // COLORS % len(LINE_STYLES)]}


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Add a legend beside the axes."""
    handles, labels = axes.get_legend_handles_labels()
    columns = math.ceil(len(labels) / LEGEND_ROWS)
    figure.set_figwidth(figure.get_figwidth() + 1.2 * (columns - 1))
    figure.legend(handles, labels, loc="outside right upper", ncols=columns, fontsize=8, frameon=False)
