"""What a comparison with `lambda_sweep` found, against lambda: curves and the trade-off."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from dair_hf.experiments.comparison import METHOD_PRESETS
from dair_hf.experiments.plots import Series, plot_curves, plot_front
from dair_hf.experiments.run_records import Run
from dair_hf.experiments.selection import Point, pareto_front
from dair_hf.io.files import read_json
from dair_hf.losses.objective import REGULARIZED


def sweep_series(folder: Path, runs: Sequence[Run], key: str) -> dict[str, Series]:
    """A metric against lambda: a curve for each method that was swept, a level line for every other method.

    Args:
        folder: Where the JSON files of the runs are.
        runs: The runs of the comparison.
        key: A key of their metrics.

    Returns:
        Method -> (lambdas, means, standard deviations over the seeds). A lambda at which the metric of any seed is
        undefined is left out: the mean of the other seeds would flatter. Empty where nothing was swept.
    """
    found: dict[str, list[float | None]] = {}
    for run in runs:
        found.setdefault(run.method, []).append(read_json(folder / f"{run.name}.json")["metrics"][key])
    curves: dict[str, list[tuple[float, list[float | None]]]] = {}
    for name in METHOD_PRESETS:
        swept = {run.args.dair_lambda: run.method for run in runs if run.method.startswith(f"{name}_lambda")}
        if swept:
            curves[name] = [(value, found[label]) for value, label in sorted(swept.items())]
    if not curves:
        return {}
    places = sorted({value for curve in curves.values() for value, _ in curve})
    for label, values in found.items():
        if "_lambda" not in label:
            curves[label] = [(value, values) for value in places]
    series = {label: _series(curve) for label, curve in curves.items()}
    return {label: drawn for label, drawn in series.items() if drawn[0]}


def plot_sweep(folder: Path, runs: Sequence[Run], title: str, metrics: Mapping[str, str]) -> list[Path]:
    """Draw each metric against lambda, and the second against the first: the trade-off of the swept methods.

    Args:
        folder: Where the JSON files of the runs are and the plots go.
        runs: The runs of the comparison.
        title: Heading.
        metrics: Key of the metrics -> its printed name; accuracy first, then consistency, both better when larger.

    Returns:
        The files `lambda_<key>.png` and `<name>_front.png`, the fronts on the same axes; none where nothing was swept.
    """
    written = []
    by_key = {key: sweep_series(folder, runs, key) for key in metrics}
    for key, series in by_key.items():
        if series:
            written.append(folder / f"lambda_{key}.png")
            plot_curves(written[-1], title, "lambda", metrics[key], series, log_x=_above_zero(series))
    (accuracy, xlabel), (consistency, ylabel), *_ = metrics.items()
    fronts = {}
    for name, (lambdas, accuracies, _) in by_key[accuracy].items():
        if name not in METHOD_PRESETS or METHOD_PRESETS[name][0] not in REGULARIZED:
            continue
        places, consistencies, _ = by_key[consistency].get(name, ([], [], None))
        second = dict(zip(places, consistencies, strict=True))
        named = {value: (x, second[value]) for value, x in zip(lambdas, accuracies, strict=True) if value in second}
        if len(named) > 1:
            fronts[name] = named
    everywhere = [place for named in fronts.values() for place in named.values()]
    for name, named in fronts.items():
        best = pareto_front([Point(value, (x,), (y,)) for value, (x, y) in named.items()])
        written.append(folder / f"{name}_front.png")
        plot_front(
            written[-1],
            f"{title}: {name} by lambda",
            xlabel,
            ylabel,
            {f"{value:g}": place for value, place in named.items()},
            [f"{point.dair_lambda:g}" for point in best],
            compared_with=everywhere,
        )
    return written


def _series(curve: Sequence[tuple[float, Sequence[float | None]]]) -> Series:
    defined = [(value, [x for x in found if x is not None]) for value, found in curve if None not in found]
    deviations = [statistics.stdev(found) if len(found) > 1 else 0.0 for _, found in defined]
    return [value for value, _ in defined], [statistics.fmean(found) for _, found in defined], deviations


def _above_zero(series: Mapping[str, Series]) -> bool:
    return min(min(places) for places, *_ in series.values()) > 0
