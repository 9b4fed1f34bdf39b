"""Plots as PNG files: curves with error bands, ends of training, and sweeps over lambda."""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from dair_hf.errors import DataError
from dair_hf.io.files import atomic_path, read_json

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from dair_hf.experiments.run_records import Run

# Positions on the x axis, means, and standard deviations or None.
Series = tuple[Sequence[float], Sequence[float], Sequence[float] | None]

_MAX_MARKERS = 40  # longer curves are drawn without markers
_COLORS, _LINE_STYLES = (
    10,
    ("-", "--", ":", "-."),
)  # matplotlib's color cycle, and a line style for each pass through it
_LEGEND_ROWS = 18  # that fit the height of a figure


class Sample(NamedTuple):
    """Mean of a quantity over seeds, its standard deviation with n - 1 (0 for one value), and the number of seeds."""

    mean: float
    std: float
    seeds: int

    @classmethod
    def of(cls, values: Collection[float | None]) -> Sample | None:
        """Return the sample of some values; None without values, or if any is undefined.

        The mean over the remaining seeds would be biased.

        Example:
            >>> Sample.of([1.0, 3.0])
            Sample(mean=2.0, std=1.4142135623730951, seeds=2)
            >>> Sample.of([1.0, None]) is None
            True
        """
        defined = [value for value in values if value is not None]
        if not defined or len(defined) < len(values):
            return None
        deviation = statistics.stdev(defined) if len(defined) > 1 else 0.0
        return cls(statistics.fmean(defined), deviation, len(defined))


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

    Example:
        >>> plot_curves(Path("sweep.png"), "Sweep", "lambda", "accuracy, %",
        ...             {"DAIR": ([1, 10], [72.0, 73.1], [0.2, 0.1])}, log_x=True)  # doctest: +SKIP
    """
    figure, axes = _axes(title, xlabel, ylabel)
    for index, (label, (x, means, deviations)) in enumerate(series.items()):
        marker = "o" if len(x) <= _MAX_MARKERS else ""
        axes.plot(x, means, marker=marker, markersize=3, linewidth=1.2, label=label, **_line_style(index))
        if deviations is not None:
            low = [mean - deviation for mean, deviation in zip(means, deviations, strict=True)]
            high = [mean + deviation for mean, deviation in zip(means, deviations, strict=True)]
            axes.fill_between(x, low, high, color=f"C{index % _COLORS}", alpha=0.2, linewidth=0)
    if log_x:
        axes.set_xscale("log")
    _add_legend(figure, axes)
    save_figure(figure, path)


def curve_ends(values: Sequence[float], first: int = 10, last: int = 140) -> dict[str, Any]:
    """Return the first and the last values of a curve of training, for the metrics of a record and `plot_ends`."""
    return {"steps": len(values), "first": list(values[:first]), "last": list(values[-last:])}


def plot_ends(path: Path, title: str, ylabel: str, series: Mapping[str, Sequence[Mapping[str, Any]]]) -> None:
    """Draw the first and the last iterations of training side by side, on logarithmic y axes."""
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


def sweep_series(folder: Path, runs: Sequence[Run], key: str) -> dict[str, Series]:
    """Return the metric `key` as a function of lambda: a curve for each swept method, a constant for others."""
    curves: dict[str, dict[float, list[float | None]]] = {}
    constant: dict[str, list[float | None]] = {}
    for run in runs:
        value = read_json(folder / f"{run.name}.json")["metrics"][key]
        if (name := _swept(run)) is None:
            constant.setdefault(run.method, []).append(value)
        else:
            curves.setdefault(name, {}).setdefault(float(run.args.dair_lambda), []).append(value)
    lambdas = {value for curve in curves.values() for value in curve}
    curves |= {method: dict.fromkeys(lambdas, values) for method, values in constant.items()}
    series = {label: mean_series(curve) for label, curve in curves.items()}
    return {label: curve for label, curve in series.items() if curve[0]}


def plot_by_lambda(path: Path, title: str, label: str, series: Mapping[str, Series]) -> None:
    """Draw curves of `sweep_series`, on a logarithmic axis unless a lambda is 0."""
    log_x = min(min(lambdas) for lambdas, *_ in series.values()) > 0
    plot_curves(path, title, "lambda", label, series, log_x=log_x)


def plot_sweep(folder: Path, runs: Sequence[Run], title: str, metrics: Mapping[str, str]) -> None:
    """Draw each metric (key -> label) against lambda, to `lambda_<key>.png`, if a method was swept."""
    for key, label in metrics.items():
        if series := sweep_series(folder, runs, key):
            plot_by_lambda(folder / f"lambda_{key}.png", title, label, series)


def _swept(run: Run) -> str | None:
    """Return the method of a run of a sweep over lambda; None for other runs."""
    name, _, value = run.method.partition("_lambda")
    return name if value else None


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, atomically."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas = FigureCanvasAgg(figure)
    with atomic_path(path) as scratch:
        canvas.print_png(scratch)


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
    return {"color": f"C{index % _COLORS}", "linestyle": _LINE_STYLES[index // _COLORS % len(_LINE_STYLES)]}


def _add_legend(figure: Figure, axes: Axes) -> None:
    """Add a legend next to the axes."""
    handles, labels = axes.get_legend_handles_labels()
    columns = math.ceil(len(labels) / _LEGEND_ROWS)
    figure.set_figwidth(figure.get_figwidth() + 1.2 * (columns - 1))
    figure.legend(handles, labels, loc="outside right upper", ncols=columns, fontsize=8, frameon=False)
