"""Curves with bands and accuracy-consistency fronts, as PNG files that are whole or absent."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dair_hf.errors import DataError
from dair_hf.io.files import atomic_path

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Places on the x axis, means, and standard deviations or None.
Series = tuple[Sequence[float], Sequence[float], Sequence[float] | None]

MARKERS_UP_TO = 40  # a longer curve is drawn as a plain line
COLORS, LINE_STYLES = 10, ("-", "--", ":", "-.")  # colours of matplotlib's cycle, and a line style for each round of it
ENTRIES_PER_COLUMN = 18  # of a legend, as many as the height of a figure holds


def plot_curves(
    path: Path,
    title: str,
    xlabel: str,
    ylabel: str,
    series: Mapping[str, Series],
    log_x: bool = False,
) -> None:
    """One line for each series, with a band of one standard deviation where it is given.

    Args:
        path: Where the PNG goes.
        title: Heading.
        xlabel: What the x axis shows, with its unit.
        ylabel: What the y axis shows, with its unit.
        series: Label -> (places, means, standard deviations or None), each of the same length.
        log_x: Whether the x axis is logarithmic; every place must then be above 0.

    Raises:
        DataError: No series, one without points or of unequal lengths, or a place of 0 or less on a logarithmic axis.

    Example:
        >>> plot_curves(Path("sweep.png"), "Sweep", "lambda", "accuracy, %",
        ...             {"DAIR": ([1, 10], [72.0, 73.1], [0.2, 0.1])}, log_x=True)  # doctest: +SKIP
    """
    if not series:
        raise DataError(f"{path}: no series to plot; give at least one")
    for label, (places, means, deviations) in series.items():
        lengths = [len(part) for part in (places, means, deviations) if part is not None]
        if not lengths[0] or len(set(lengths)) > 1:
            raise DataError(f"{path}: series {label!r} has parts of length {lengths}; they must be equal and not 0")
        if log_x and min(places) <= 0:
            raise DataError(
                f"{path}: series {label!r} has a place at {min(places):g}; a logarithmic axis starts above 0"
            )
    figure, axes = _axes(title, xlabel, ylabel)
    for index, (label, (places, means, deviations)) in enumerate(series.items()):
        marker = "o" if len(places) <= MARKERS_UP_TO else ""
        axes.plot(places, means, marker=marker, markersize=3, linewidth=1.2, label=label, **_look(index))
        if deviations is not None:
            low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
            high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
            axes.fill_between(places, low, high, color=f"C{index % COLORS}", alpha=0.2, linewidth=0)
    if log_x:
        axes.set_xscale("log")
    _legend(figure, axes)
    _save(figure, path)


def plot_ends(
    path: Path, title: str, ylabel: str, series: Mapping[str, Sequence[float]], first: int = 10, last: int = 140
) -> None:
    """The beginning and the end of a training side by side, on logarithmic y axes.

    Args:
        path: Where the PNG goes.
        title: Heading.
        ylabel: What the y axis shows, with its unit.
        series: Label -> one positive value for each iteration.
        first: Iterations of the left panel.
        last: Iterations of the right panel.

    Raises:
        DataError: No series, or one of fewer iterations than a panel shows.

    Example:
        >>> plot_ends(Path("ends.png"), "R", "R, nats", {"DAIR": [1.0] * 500})  # doctest: +SKIP
    """
    if not series:
        raise DataError(f"{path}: no series to plot; give at least one")
    for label, values in series.items():
        if len(values) < max(first, last):
            raise DataError(f"{path}: series {label!r} has {len(values)} iterations, fewer than {max(first, last)}")
    figure, left = _axes(title, f"first {first} iterations", ylabel)
    left.set_subplotspec(figure.add_gridspec(1, 2)[0])
    right = figure.add_subplot(1, 2, 2)
    right.set_xlabel(f"last {last} iterations", fontsize=9)
    right.spines[["top", "right"]].set_visible(False)
    for index, (label, values) in enumerate(series.items()):
        left.plot(range(first), values[:first], marker="o", markersize=3, label=label, **_look(index))
        right.plot(range(len(values) - last, len(values)), values[-last:], linewidth=0.8, **_look(index))
    for axes in (left, right):
        axes.set_yscale("log")
    _legend(figure, left)
    _save(figure, path)


def plot_front(
    path: Path,
    title: str,
    xlabel: str,
    ylabel: str,
    points: Mapping[str, tuple[float, float]],
    front: Collection[str] = (),
    chosen: str | None = None,
    compared_with: Sequence[tuple[float, float]] = (),
) -> None:
    """Points with their names; those on the front are joined, the chosen one is ringed.

    Args:
        path: Where the PNG goes.
        title: Heading.
        xlabel: What the x axis shows, such as accuracy.
        ylabel: What the y axis shows, such as consistency.
        points: Name -> (x, y).
        front: Names of the points that no other point beats on both axes.
        chosen: Name of the point that a selection rule took.
        compared_with: Points of other plots that this one is compared with: the axes reach over them too, so that plots
            of one experiment share their axes. They are not drawn.

    Raises:
        DataError: No point, or a name in `front` or `chosen` that is no point.
    """
    if not points:
        raise DataError(f"{path}: no points to plot; give at least one")
    if unknown := sorted({*front, *([] if chosen is None else [chosen])} - set(points)):
        raise DataError(f"{path}: {', '.join(unknown)} named but not among the points")
    figure, axes = _axes(title, xlabel, ylabel)
    joined = sorted(points[name] for name in front)
    if joined:
        axes.plot([x for x, _ in joined], [y for _, y in joined], "-", linewidth=1, color="C1", label="front")
    for name, (x, y) in points.items():
        axes.plot([x], [y], "o", markersize=4, color="C1" if name in front else "C0")
        axes.annotate(name, (x, y), xytext=(4, 4), textcoords="offset points", fontsize=7)
    if chosen is not None:
        x, y = points[chosen]
        axes.plot([x], [y], "o", markersize=11, fillstyle="none", color="black", linestyle="", label="chosen")
    if compared_with:
        axes.update_datalim(compared_with)
        axes.autoscale_view()
    if joined or chosen is not None:
        _legend(figure, axes)
    axes.margins(0.12)
    _save(figure, path)


def _axes(title: str, xlabel: str, ylabel: str) -> tuple[Figure, Axes]:
    # Imported here: only who plots needs the extra `plots`. The Agg canvas needs neither display nor pyplot's state.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.8, 3.8), layout="constrained")
    axes = figure.add_subplot()
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(xlabel, fontsize=9)
    axes.set_ylabel(ylabel, fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _look(index: int) -> dict[str, Any]:
    """Colour and line style of a series: no two of the first forty look alike."""
    return {"color": f"C{index % COLORS}", "linestyle": LINE_STYLES[index // COLORS % len(LINE_STYLES)]}


def _legend(figure: Figure, axes: Axes) -> None:
    """The legend beside the axes, where it covers no curve."""
    handles, labels = axes.get_legend_handles_labels()
    columns = math.ceil(len(labels) / ENTRIES_PER_COLUMN)
    figure.set_figwidth(figure.get_figwidth() + 1.2 * (columns - 1))
    figure.legend(handles, labels, loc="outside right upper", ncols=columns, fontsize=8, frameon=False)


def _save(figure: Figure, path: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with atomic_path(path) as scratch:
        canvas.print_png(scratch)
