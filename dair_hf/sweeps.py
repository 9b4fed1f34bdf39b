"""What a comparison with `lambda_sweep` found, against lambda: curves and the trade-off."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from dair_hf.comparison import COMPARED, Run
from dair_hf.files import read_json
from dair_hf.plots import Series, plot_curves, plot_front
from dair_hf.selection import Point, front


def sweep_series(folder: Path, runs: Sequence[Run], key: str) -> dict[str, Series]:
    """A metric against lambda: a curve for each method that was swept, a level line for every other method.

    Args:
        folder: Where the JSON files of the runs are.
        runs: The runs of the comparison.
        key: A key of their metrics.

    Returns:
        Method -> (lambdas, means, standard deviations over the seeds); empty where nothing was swept.
    """
    found: dict[str, list[float]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(read_json(folder / f"{run.name}.json")["metrics"][key])
    series: dict[str, Series] = {}
    for name in COMPARED:
        swept = {run.args.dair_lambda: run.method for run in runs if run.method.startswith(f"{name}_lambda")}
        if swept:
            series[name] = _series(sorted(swept), [found[swept[value]] for value in sorted(swept)])
    if not series:
        return {}
    ends = sorted({value for values, *_ in series.values() for value in values})
    for label, values in found.items():
        if "_lambda" not in label:
            series[label] = _series(ends, [values] * len(ends))
    return series


def plot_sweep(folder: Path, runs: Sequence[Run], title: str, metrics: Mapping[str, str]) -> list[Path]:
    """Draw each metric against lambda, and the second against the first: the trade-off of the swept methods.

    Args:
        folder: Where the JSON files of the runs are and the plots go.
        runs: The runs of the comparison.
        title: Heading.
        metrics: Key of the metrics -> its printed name; accuracy first, then consistency, both better when larger.

    Returns:
        The files `lambda_<key>.png` and `<name>_front.png`; none where nothing was swept.
    """
    written = []
    by_key = {key: sweep_series(folder, runs, key) for key in metrics}
    for key, series in by_key.items():
        if series:
            written.append(folder / f"lambda_{key}.png")
            plot_curves(written[-1], title, "lambda", metrics[key], series, log_x=_above_zero(series))
    (accuracy, xlabel), (consistency, ylabel), *_ = metrics.items()
    for name, (lambdas, accuracies, _) in by_key[accuracy].items():
        if name not in COMPARED or COMPARED[name][0] != "dair" or len(lambdas) < 2:
            continue
        found = list(zip(lambdas, accuracies, by_key[consistency][name][1], strict=True))
        points = [Point(value, (x,), (y,)) for value, x, y in found]
        named = {f"{value:g}": (x, y) for value, x, y in found}
        best = [f"{point.dair_lambda:g}" for point in front(points)]
        written.append(folder / f"{name}_front.png")
        plot_front(written[-1], f"{title}: {name} by lambda", xlabel, ylabel, named, best)
    return written


def _series(places: Sequence[float], values: Sequence[Sequence[float]]) -> Series:
    deviations = [statistics.stdev(found) if len(found) > 1 else 0.0 for found in values]
    return list(places), [statistics.fmean(found) for found in values], deviations


def _above_zero(series: Mapping[str, Series]) -> bool:
    return min(min(places) for places, *_ in series.values()) > 0
