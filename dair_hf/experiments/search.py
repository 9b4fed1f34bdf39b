"""Search for the lambda or partner weight of each method on validation data, then one comparison on the test set."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import is_cm
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Seed,
    compare,
    lambda_note,
    require_distinct,
    run_of,
    runs_of,
    with_settings,
)
from dair_hf.experiments.plots import mean_series, plot_curves
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import Result, Run
from dair_hf.io.files import read_json, write_json
from dair_hf.settings import NonNegative, Positive, Settings

LAMBDA, WEIGHT = "lambda", "weight"  # settings that are searched, as they are called in names and tables


@dataclass
class SearchConfig(Settings):
    """Grids and seeds of a search for the lambda, or partner weight, of each method that has one.

    Without a grid there is no search.

    Raises:
        DataError: A value out of range, or a duplicate entry.

    Example:
        >>> SearchConfig(search_lambdas=[10.0, 1.0]).lambdas
        (1.0, 10.0)
    """

    search_lambdas: list[NonNegative] | None = field(
        default=None, metadata={"help": "Lambdas to try, each >= 0, in the unit set by `normalization`."}
    )
    search_weights: list[Positive] | None = field(
        default=None,
        metadata={"help": "Weights of the partner's loss that da tries, with 0.5 for the original's. Default: 0.5."},
    )
    search_seeds: list[Seed] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds of the search; the metrics of each setting are averaged over them."},
    )

    def check(self) -> None:
        """Refuse duplicates."""
        require_distinct("search_seeds", self.search_seeds)
        if self.lambdas:
            require_distinct("search_lambdas", [f"{value:g}" for value in self.lambdas])  # as in file names
        if self.search_weights:
            require_distinct("search_weights", [f"{value:g}" for value in self.search_weights])

    def check_with(self, others: Sequence[Any], given: Collection[str], options: Collection[str] = ()) -> None:
        """Refuse options that a grid would replace; those of a file are for runs without a grid."""
        of_grids = {"lambda_sweep": self.lambdas or self.search_weights, "view_weights": self.search_weights}
        of_grids |= {"dair_lambda": self.lambdas, "lambdas": self.lambdas}
        if replaced := sorted(name for name, grid in of_grids.items() if grid and name in options):
            raise DataError(f"{replaced[0]} has no effect, because the grid of the search decides")

    @property
    def lambdas(self) -> tuple[float, ...]:
        """The grid in ascending order; empty if none is set."""
        return tuple(sorted(self.search_lambdas or ()))

    def grids(self, comparison: ComparisonConfig) -> dict[str, tuple[str, tuple[float, ...]]]:
        """Return method -> name and values of the setting that is searched; {} without a grid."""
        grids = {method: (LAMBDA, self.lambdas) for method in comparison.regularized if self.lambdas}
        if self.search_weights and "da" in comparison.methods:
            grids["da"] = (WEIGHT, tuple(sorted(self.search_weights)))
        return grids


def search_or_compare(
    search: SearchConfig,
    comparison: ComparisonConfig,
    args: DAIRConfig,
    execute: Callable[[Run, str], Result],
    title: str,
    columns: Sequence[Column],
    settings: Mapping[str, Any],
    data: Mapping[str, str],
    notes: Sequence[str] = (),
    *,
    metrics: Sequence[str],
    lower_is_better: bool = False,
) -> str:
    """Compare methods on the test split; with a grid, first choose the setting of each method that has one.

    The choice is made on the validation split. Every setting runs with every search seed, each run with a JSON in
    `search/METHOD`; an interrupted search resumes from these. The comparison that follows is written to `final/`. The
    test set cannot influence the choice: a second choice is not evaluated in the same folder.

    Args:
        search: Grids and seeds.
        comparison: Methods and seeds of the comparison. The grid takes the place of its `lambda_sweep`.
        args: Arguments shared by all runs; everything is written to `output_dir`.
        execute: `(run, split)` trains a run and evaluates it on that split, "validation" or "test".
        title: Heading of tables and plots.
        columns: Columns of the comparison.
        settings: Settings shared by all runs.
        data: Fingerprint of each data set.
        notes: Lines below the comparison, before one that states the chosen settings.
        metrics: Key of the metric that chooses, followed by CM's key if it is measured.
        lower_is_better: Whether the first of them is an error.

    Returns:
        The table of the comparison, as `compare`; "" after a search.

    Raises:
        DataError: As `compare`; a grid is given although no method has such a setting, or the metric is CM; the
            choosing metric is undefined in a run; or the test set was already evaluated with another choice.
    """
    folder = Path(args.output_dir)
    if not search.lambdas and not search.search_weights:
        lines = [*notes, f"Methods with a regularizer: {lambda_note(comparison, args)}."]
        runs = list(runs_of(comparison, args))
        return compare(runs, lambda run: execute(run, "test"), folder, title, columns, settings, data, lines)
    grids, lambdas = search.grids(comparison), comparison.lambdas or {}
    unused = search.lambdas and not comparison.regularized or search.search_weights and "da" not in grids
    if is_cm(metrics[0]) or unused:  # a model that answers all inputs alike would have the best CM
        raise DataError(
            f"metrics={metrics}, methods={comparison.methods}: expected a metric other than CM to choose by, such as "
            "both_correct, and a method that has the setting: dair a lambda, da a weight"
        )
    final, chosen = folder / "final", dict[str, tuple[str, float]]()
    for method, (setting, grid) in grids.items():
        place = with_settings(args, output_dir=str(folder / "search" / method))
        trials = []
        for seed, value in itertools.product(search.search_seeds, grid):
            label = f"{method}_{setting}{value:g}"
            trials.append((value, run_of(place, method, label, seed, **_changes(setting, value))))
        name, shown = f"{title}, {method}", [Column(key, key) for key in metrics]
        runs = [run for _, run in trials]
        compare(runs, lambda run: execute(run, "validation"), folder / "search" / method, name, shown, settings, data)
        PartialState().wait_for_everyone()  # for the last record
        points = _points(folder / "search" / method, trials, metrics)
        best = min if lower_is_better else max  # the first of equals, which has the smallest value
        chosen[method] = setting, best(points, key=lambda point: point.accuracy).value
        if PartialState().is_main_process:
            _write_choice(folder / "search" / method, name, setting, points, chosen[method][1], metrics)
            print(f"\nChosen by {metrics[0]}: {setting} {chosen[method][1]:g} for {method}")
    changes = {method: _changes(*choice) for method, choice in chosen.items()}
    for method, (setting, value) in chosen.items():
        for path in sorted(final.glob(f"{method}_seed*.json")):
            earlier = read_json(path)["config"]["training"]
            if any(earlier.get(name) != now for name, now in changes[method].items()):
                raise DataError(
                    f"{path}: the test set was already evaluated with another choice, and now {setting} {value:g} is "
                    "chosen; use another output_dir, and report both"
                )
    place = with_settings(args, output_dir=str(final))
    changes |= {m: {"dair_lambda": lambdas.get(m, args.dair_lambda)} for m in comparison.methods if m not in changes}
    runs = [run_of(place, m, m, seed, **changes[m]) for seed in comparison.seeds for m in comparison.methods]
    listed = ", ".join(f"{setting} {value:g} for {method}" for method, (setting, value) in chosen.items())
    rest = [f"{changes[m]['dair_lambda']} for {m}" for m in comparison.regularized if m not in chosen]
    listed += f"; without a choice: lambda {', '.join(rest)}" if rest else ""
    unit = f" ({args.lambda_unit})" if comparison.regularized else ""
    lines = [*notes, f"Chosen on validation data by {metrics[0]}: {listed}{unit}."]
    compare(runs, lambda run: execute(run, "test"), final, f"{title}: test set", columns, settings, data, lines)
    return ""


def _changes(setting: str, value: float) -> dict[str, Any]:
    """Return the fields of `DAIRConfig` that a value of a grid sets."""
    return {"dair_lambda": value} if setting == LAMBDA else {"view_weights": [0.5, value]}


class _Point(NamedTuple):
    """Validation metrics of a setting: of each seed accuracy (or an error), and CM (None: undefined) if measured."""

    value: float
    accuracies: tuple[float, ...]
    consistencies: tuple[float | None, ...] = ()

    @property
    def accuracy(self) -> float:
        """Mean accuracy over the seeds."""
        return statistics.fmean(self.accuracies)


def _points(folder: Path, trials: Sequence[tuple[float, Run]], metrics: Sequence[str]) -> list[_Point]:
    """Return the validation metrics of each value of a setting, in ascending order."""
    values: dict[float, list[list[Any]]] = {}
    for value, run in trials:
        found = read_json(folder / f"{run.name}.json")["metrics"]
        if found[metrics[0]] is None or not math.isfinite(found[metrics[0]]):
            raise DataError(f"{run.name}: {metrics[0]} is undefined; remove this value from the grid")
        values.setdefault(value, []).append([found[key] for key in metrics])
    return [_Point(value, *zip(*seeds, strict=True)) for value, seeds in values.items()]


def _write_choice(
    folder: Path, title: str, setting: str, points: Sequence[_Point], chosen: float, metrics: Sequence[str]
) -> None:
    """Write `choice.json` and `sweep.png`."""
    listed = [{**point._asdict(), "accuracy": point.accuracy} for point in points]
    write_json(folder / "choice.json", {"setting": setting, "value": chosen, "points": listed})
    series = {
        key: mean_series({point.value: point[index] for point in points})  # type: ignore[misc]
        for index, key in enumerate(metrics, 1)
    }
    drawn = {label: curve for label, curve in series.items() if curve[0]}
    plot_curves(folder / "sweep.png", title, setting, "validation metric", drawn, points[0].value > 0)
