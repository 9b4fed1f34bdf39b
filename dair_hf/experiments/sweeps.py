"""Plots of a comparison with `lambda_sweep`: metrics against lambda, and the accuracy-consistency trade-off."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dair_hf.experiments.comparison import METHOD_PRESETS
from dair_hf.experiments.plots import Series, mean_series, plot_curves, plot_front
from dair_hf.experiments.run_records import Run
from dair_hf.experiments.selection import Point
from dair_hf.io.files import read_json
from dair_hf.losses.objective import REGULARIZED


def sweep_series(folder: Path, runs: Sequence[Run], key: str) -> dict[str, Series]:
    """Return the metric `key` as a function of lambda: a curve for each swept method, a constant for others."""
    values: dict[str, list[float | None]] = {}
    for run in runs:
        values.setdefault(run.method, []).append(read_json(folder / f"{run.name}.json")["metrics"][key])
    curves: dict[str, dict[float, list[float | None]]] = {}
    for name in METHOD_PRESETS:
        swept = {
            float(run.args.dair_lambda): values[run.method] for run in runs if run.method.startswith(f"{name}_lambda")
        }
        if swept:
            curves[name] = swept
    lambdas = {value for curve in curves.values() for value in curve}
    for method in values:
        if "_lambda" not in method:
            curves[method] = dict.fromkeys(lambdas, values[method])
    series = {label: mean_series(curve) for label, curve in curves.items()}
    return {label: curve for label, curve in series.items() if curve[0]}


def plot_by_lambda(path: Path, title: str, label: str, series: Mapping[str, Series]) -> None:
    """Draw curves of `sweep_series`, on a logarithmic axis unless a lambda is 0."""
    log_x = min(min(lambdas) for lambdas, *_ in series.values()) > 0
    plot_curves(path, title, "lambda", label, series, log_x=log_x)


def plot_sweep(folder: Path, runs: Sequence[Run], title: str, metrics: Mapping[str, str]) -> list[Path]:
    """Draw each metric against lambda, and the trade-off between the first two for each swept method.

    Args:
        folder: Folder of the JSON file of each run and of the plots.
        runs: Runs of the comparison.
        title: Heading.
        metrics: Key of each metric -> its label: accuracy first, then consistency, both better when larger.

    Returns:
        The files written: `lambda_<key>.png` and `<method>_front.png`, the latter with equal axes. Empty if no method
        was swept.
    """
    written = []
    by_key = {key: sweep_series(folder, runs, key) for key in metrics}
    for key, series in by_key.items():
        if series:
            written.append(folder / f"lambda_{key}.png")
            plot_by_lambda(written[-1], title, metrics[key], series)
    (accuracy, xlabel), (consistency, ylabel), *_ = metrics.items()
    fronts = {}
    for name, (lambdas, accuracies, _) in by_key[accuracy].items():
        lambdas_with_cm, consistencies, _ = by_key[consistency].get(name, ([], [], None))
        cm = dict(zip(lambdas_with_cm, consistencies, strict=True))
        points = [Point(x, (y,), (cm[x],)) for x, y in zip(lambdas, accuracies, strict=True) if x in cm]
        if name in METHOD_PRESETS and METHOD_PRESETS[name][0] in REGULARIZED and len(points) > 1:
            fronts[name] = points
    for name, points in fronts.items():
        written.append(folder / f"{name}_front.png")
        everything = [point for front in fronts.values() for point in front]
        plot_front(written[-1], f"{title}: {name} by lambda", xlabel, ylabel, points, limits_from=everything)
    return written
