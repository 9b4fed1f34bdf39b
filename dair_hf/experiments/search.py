"""Search for lambda over a grid, resumed from the JSON files of finished trials; grids of the paper."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from accelerate import PartialState
from tqdm.auto import tqdm

from dair_hf.config import DAIRConfig
from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError
from dair_hf.experiments.comparison import (
    METHOD_PRESETS,
    ComparisonConfig,
    claim_output_folder,
    compare,
    lambda_note,
    require_distinct,
    runs_of,
    with_settings,
)
from dair_hf.experiments.plots import mean_series, plot_curves, plot_front
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import Result, Run, changed_settings, finished_record, redo_changed
from dair_hf.experiments.selection import Point, best_accuracy, best_consistency_within, pareto_front, points_by_lambda
from dair_hf.io.files import read_json, write_json
from dair_hf.losses.objective import REGULARIZED

RULES = ("best_accuracy", "best_consistency_within")


def log_grid(low: float, high: float, points: int) -> tuple[float, ...]:
    """Return logarithmically spaced points: lambda_i = low (high / low)^(i / (points - 1)).

    They are rounded to six significant digits, so that tables, file names and YAML files show the same value.

    Args:
        low: First point, > 0.
        high: Last point, > `low`.
        points: Number of points, >= 2.

    Raises:
        DataError: An argument is out of range.

    Example:
        >>> log_grid(1, 1e4, 5)
        (1.0, 10.0, 100.0, 1000.0, 10000.0)
    """
    if not 0 < low < high or points < 2:
        raise DataError(f"log_grid({low}, {high}, {points}): needs 0 < low < high and at least 2 points")
    return tuple(float(f"{low * (high / low) ** (index / (points - 1)):.6g}") for index in range(points))


# Grids of the paper. It does not print the grid of MNIST. The lambdas in its table on longer training, 1.43, 8.85,
# 16.23 and 100, are points 13, 16, 17 and 20 of this one (1.4384, 8.8587, 16.2378, 100), truncated to two decimals;
# twenty points over [0.1, 100] contain neither 1.43 nor 8.85.
GRIDS: Mapping[str, tuple[float, ...]] = {
    "dialog": (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0),
    "vqa": log_grid(0.1, 10, 8),
    "regression": log_grid(1, 1e4, 5),
    "mnist": log_grid(1e-3, 100, 20),
}


@dataclass
class SearchConfig:
    """Grid, seeds and selection rule of a search for the lambda of each method that has one; without a grid, none.

    Raises:
        DataError: An unknown grid or rule, a lambda below 0, or a duplicate entry.

    Example:
        >>> SearchConfig(search_grid="regression").lambdas
        (1.0, 10.0, 100.0, 1000.0, 10000.0)
    """

    search_grid: str | None = field(
        default=None,
        metadata={"help": f"A grid of the paper: {', '.join(GRIDS)}. Cannot be combined with search_lambdas."},
    )
    search_lambdas: list[float] | None = field(
        default=None, metadata={"help": "A grid of your own, each lambda >= 0, in the unit set by `normalization`."}
    )
    search_seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds of the search; the metrics of each lambda are averaged over them."},
    )
    search_rule: str = field(
        default="best_accuracy",
        metadata={
            "help": "best_accuracy, or best_consistency_within: the best CM among the lambdas whose accuracy is within "
            "search_epsilon of the best."
        },
    )
    search_epsilon: float = field(default=0.01, metadata={"help": "See search_rule; >= 0, in the unit of accuracy."})

    def __post_init__(self) -> None:
        if self.search_grid is not None and self.search_lambdas is not None:
            raise DataError("search_grid and search_lambdas are both given; keep one of them")
        if self.search_grid is not None and self.search_grid not in GRIDS:
            raise DataError(f"search_grid={self.search_grid!r} is unknown; use {', '.join(GRIDS)}, or search_lambdas")
        if self.search_rule not in RULES:
            raise DataError(f"search_rule={self.search_rule!r} is unknown; use {' or '.join(RULES)}")
        if not self.search_epsilon >= 0:
            raise DataError(f"search_epsilon={self.search_epsilon} is out of range; give 0 or more")
        require_distinct("search_seeds", self.search_seeds)
        require_seeds("search_seeds", self.search_seeds)
        if self.lambdas:
            # Compared as printed in file names.
            require_distinct("search_lambdas", [f"{value:g}" for value in self.lambdas])
        if any(not value >= 0 for value in self.lambdas):
            raise DataError(f"search_lambdas={self.search_lambdas}: each must be 0 or more")

    @property
    def lambdas(self) -> tuple[float, ...]:
        """The grid in ascending order; empty if none is set."""
        return GRIDS[self.search_grid] if self.search_grid is not None else tuple(sorted(self.search_lambdas or ()))


class LambdaSearch:
    """Grid search for the lambda of one method on validation data.

    Each trial is a run of a comparison, with its record in `folder/NAME.json`. An interrupted search resumes from these
    records; a finished trial is never repeated.

    The test set cannot influence the choice: `run` only calls an `execute` that evaluates on validation rows, and
    `evaluate_choices` refuses to evaluate a second choice in the same folder.

    Args:
        config: Grid, seeds and rule.
        method: Name in `METHOD_PRESETS` of a method with a lambda, such as "dair".
        args: Arguments shared by all runs.
        accuracy: Key of the metric that chooses.
        consistency: Key of CM in the metrics, if it is measured.
        settings: Settings shared by all runs. Finished trials with other settings in the same folder are refused.
        validation: Fingerprint of each data set that the trials use.
        title: Heading of tables and plots.
        lower_is_better: Whether `accuracy` is an error.

    Attributes:
        folder: Where everything is written: `search/METHOD` in `args.output_dir`.

    Raises:
        DataError: An empty grid, a method without lambda, or a rule that needs CM if CM is not measured.

    Example:
        >>> search = LambdaSearch(config, "dair", args, "accuracy", "cm", settings={}, validation={})  # doctest: +SKIP
        >>> chosen = search.run(lambda run: train_and_evaluate(run, validation_pairs))  # doctest: +SKIP
    """

    def __init__(
        self,
        config: SearchConfig,
        method: str,
        args: DAIRConfig,
        accuracy: str,
        consistency: str | None = None,
        *,
        settings: Mapping[str, Any],
        validation: Mapping[str, str],
        title: str = "Lambda search",
        lower_is_better: bool = False,
    ) -> None:
        if not config.lambdas:
            raise DataError("a search needs a grid: set search_grid or search_lambdas")
        if method not in METHOD_PRESETS or METHOD_PRESETS[method][0] not in REGULARIZED:
            raise DataError(
                f"method {method!r} has no lambda to search for; use one with a regularizer, such as 'dair'"
            )
        if config.search_rule == "best_consistency_within" and consistency is None:
            raise DataError(
                "search_rule='best_consistency_within' needs CM, which is not measured here; use best_accuracy"
            )
        self.config, self.method, self.args = config, method, args
        self.accuracy, self.consistency, self.lower_is_better = accuracy, consistency, lower_is_better
        self.settings, self.validation, self.title = dict(settings), dict(validation), title
        self.folder = Path(args.output_dir) / "search" / method
        self.columns = [Column(key, key) for key in (accuracy, consistency) if key is not None]
        grid = ComparisonConfig([method], seeds=config.search_seeds, lambda_sweep=list(config.lambdas))
        self.trials = list(runs_of(grid, with_settings(args, output_dir=str(self.folder))))

    def run(self, execute: Callable[[Run], Result]) -> Point:
        """Execute the trials that have not finished, choose, and write table, choice and plots.

        Args:
            execute: Trains one run and evaluates it on *validation* rows.

        Returns:
            The chosen point.
        """
        claim_output_folder(self.args)
        unfinished = [run for run in self.trials if self._record(run) is None]
        with tqdm(
            total=len(self.trials),
            initial=len(self.trials) - len(unfinished),
            desc=self.title,
            unit="run",
            disable=self.args.disable_tqdm or not PartialState().is_main_process,
        ) as bar:
            for run in unfinished:
                # With all trials before it, so that the table grows with each trial.
                self._compare(self.trials[: self.trials.index(run) + 1], execute)
                PartialState().wait_for_everyone()
                bar.update()
        chosen = self.choice()
        if PartialState().is_main_process:
            self._compare(self.trials, execute)
            self._write(chosen)
        return chosen

    def choice(self) -> Point:
        """Apply the selection rule to the finished trials.

        Raises:
            DataError: A trial has not finished.
        """
        points = self.points()
        if self.config.search_rule == "best_accuracy":
            return best_accuracy(points, self.lower_is_better)
        return best_consistency_within(points, self.config.search_epsilon, self.lower_is_better)

    def points(self) -> list[Point]:
        """Return the validation metrics of each lambda, in ascending order.

        Raises:
            DataError: A trial has not finished.
        """
        records = []
        for run in self.trials:
            record = self._record(run)
            if record is None:
                raise DataError(f"{self.folder / run.name}.json: this trial has not finished; call run() first")
            records.append(record)
        return points_by_lambda(records, self.accuracy, self.consistency)

    def _compare(self, runs: Sequence[Run], execute: Callable[[Run], Result]) -> None:
        compare(runs, execute, self.folder, self.title, self.columns, self.settings, self.validation)

    def _record(self, run: Run) -> dict[str, Any] | None:
        return finished_record(self.folder, run, self.settings, self.validation)

    def _write(self, chosen: Point) -> None:
        """Write `choice.json`, `sweep.png` and, if CM is defined, `front.png`."""
        points = self.points()
        front = pareto_front(points, self.lower_is_better)
        write_json(
            self.folder / "choice.json",
            {
                "rule": self.config.search_rule,
                "epsilon": self.config.search_epsilon,
                "dair_lambda": chosen.dair_lambda,
                "front": [point.dair_lambda for point in front],
                "points": [
                    {**point._asdict(), "accuracy": point.accuracy, "consistency": point.consistency}
                    for point in points
                ],
            },
        )
        series = {self.accuracy: mean_series({point.dair_lambda: point.accuracies for point in points})}
        if self.consistency is not None:
            series[self.consistency] = mean_series({point.dair_lambda: point.consistencies for point in points})
        xlabel, log_x = f"lambda ({self.args.lambda_unit})", min(self.config.lambdas) > 0
        drawn = {label: curve for label, curve in series.items() if curve[0]}
        plot_curves(self.folder / "sweep.png", self.title, xlabel, "validation metric", drawn, log_x)
        if front and self.consistency is not None:
            plot_front(
                self.folder / "front.png",
                self.title,
                self.accuracy,
                self.consistency,
                points,
                chosen.dair_lambda,
                self.lower_is_better,
            )


def evaluate_choices(
    searches: Sequence[LambdaSearch],
    methods: Sequence[str],
    execute: Callable[[Run], Result],
    data: Mapping[str, str],
    seeds: Sequence[int],
    title: str | None = None,
    columns: Sequence[Column] | None = None,
    notes: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Compare methods on the test set, those that were searched with their chosen lambda.

    Args:
        searches: Finished searches of one experiment, each for another method.
        methods: Methods to compare; includes those of the searches.
        execute: Trains one run and evaluates it on *test* rows.
        data: Fingerprint of each data set, including the test set.
        seeds: Seeds of the runs.
        title: Heading of the table; by default that of the first search.
        columns: Columns of the table; by default the metrics of the searches.
        notes: Lines below the table, before the one that states the lambdas.

    Returns:
        The records, which are kept in `output_dir/final`: all methods of the first seed, then all of the second, ...

    Raises:
        DataError: A trial has not finished, or the test set was already used for another choice or with other
            settings.
    """
    first = searches[0]
    lambdas = {search.method: search.choice().dair_lambda for search in searches}
    folder = Path(first.args.output_dir) / "final"
    config = ComparisonConfig(list(methods), lambdas, list(seeds))
    runs = list(runs_of(config, with_settings(first.args, output_dir=str(folder))))
    by_file = {f"{run.name}.json": run for run in runs}
    for method, chosen in lambdas.items():
        of_method = next(run for run in runs if run.method == method)
        for path in sorted(folder.glob(f"{method}_seed*.json")):
            record = read_json(path, "delete it to repeat the run")
            earlier = record["config"]["training"]["dair_lambda"]
            changed = changed_settings(record, by_file.get(path.name, of_method), first.settings, data)
            changes = changed.keys() - {"training.dair_lambda", "training.seed"}
            if changes and redo_changed():
                continue  # another experiment; `compare` moves it to superseded/
            if earlier != chosen or (changes and path.name in by_file):
                raise DataError(
                    f"{path}: the test set was already evaluated with lambda {earlier:g}; now lambda {chosen:g} is "
                    "chosen, or other settings are given. The test set must not influence the choice: use another "
                    "output_dir, and report both"
                )
    title = f"{title or first.title}: test set"
    listed = ", ".join(f"{chosen:g} for {method}" for method, chosen in lambdas.items())
    note = f"Chosen on validation data by {first.config.search_rule}: lambda {listed} ({first.args.lambda_unit})."
    compare(runs, execute, folder, title, columns or first.columns, first.settings, data, [*notes, note])
    PartialState().wait_for_everyone()
    return [read_json(folder / f"{run.name}.json") for run in runs]


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
    """Compare methods on the test split; with a grid, first choose the lambda of each method that has one.

    The choice is made on the validation split. It is written to `search/METHOD`, and the comparison that follows to
    `final/`.

    Args:
        search: Grid, seeds and rule.
        comparison: Methods and seeds of the comparison. The grid takes the place of its `lambda_sweep`.
        args: Arguments shared by all runs; everything is written to `output_dir`.
        execute: `(run, split)` trains a run and evaluates it on that split, "validation" or "test".
        title: Heading of tables and plots.
        columns: Columns of the comparison.
        settings: Settings shared by all runs.
        data: Fingerprint of each data set.
        notes: Lines below the comparison, before one that states the lambdas.
        metrics: Key of the metric that chooses lambda, followed by that of CM if CM is measured.
        lower_is_better: Whether the first of them is an error.

    Returns:
        The table of the comparison, as `compare`; "" after a search.

    Raises:
        DataError: As `compare` and `LambdaSearch`; or a grid is given, and no method has a lambda or `lambdas` sets it.
    """
    if search.lambdas:
        if comparison.lambdas:
            raise DataError("lambdas and a grid to search are both given; keep one of them")
        if not comparison.regularized:
            raise DataError(
                f"search_lambdas: none of methods={comparison.methods} has a lambda to search for; add one that has, "
                "such as dair"
            )
        searches = []
        for method in comparison.regularized:
            shared: dict[str, Any] = {"settings": settings, "validation": data, "lower_is_better": lower_is_better}
            searches.append(LambdaSearch(search, method, args, *metrics, title=f"{title}, {method}", **shared))
        for trials in searches:
            chosen = trials.run(lambda run: execute(run, "validation"))
            if PartialState().is_main_process:
                print(f"\nChosen by {search.search_rule}: lambda {chosen.dair_lambda:g} for {trials.method}")
        methods, seeds = comparison.methods, comparison.seeds
        evaluate_choices(searches, methods, lambda run: execute(run, "test"), data, seeds, title, columns, notes)
        return ""
    runs, lines = (
        list(runs_of(comparison, args)),
        [*notes, f"Methods with a regularizer: {lambda_note(comparison, args)}."],
    )
    return compare(runs, lambda run: execute(run, "test"), Path(args.output_dir), title, columns, settings, data, lines)
