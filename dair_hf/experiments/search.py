"""Lambda grids of the paper, and a search over any grid that goes on from the JSONs of its runs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from accelerate import PartialState
from tqdm.auto import tqdm

from dair_hf.config import DAIRConfig
from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    claim_output_folder,
    compare,
    runs_of,
    with_settings,
)
from dair_hf.experiments.plots import plot_curves, plot_front
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import Run, changed_settings, finished_record, redo_changed
from dair_hf.experiments.selection import Point, best_accuracy, best_consistency_within, pareto_front, points_by_lambda
from dair_hf.io.files import read_json, write_json

if TYPE_CHECKING:
    import optuna

RULES = ("best_accuracy", "best_consistency_within")


def log_grid(low: float, high: float, points: int) -> tuple[float, ...]:
    """Points evenly spaced in the logarithm: lambda_i = low (high / low)^(i / (points - 1)).

    Rounded to six significant digits, so that a lambda reads the same in a table, in a file's name and in a YAML file.

    Args:
        low: The first, above 0.
        high: The last, above `low`.
        points: How many, at least 2.

    Returns:
        The grid, ascending.

    Raises:
        DataError: A range or a number of points that makes no grid.

    Example:
        >>> log_grid(1, 1e4, 5)
        (1.0, 10.0, 100.0, 1000.0, 10000.0)
    """
    if not 0 < low < high or points < 2:
        raise DataError(f"log_grid({low}, {high}, {points}): needs 0 < low < high and at least 2 points")
    return tuple(float(f"{low * (high / low) ** (index / (points - 1)):.6g}") for index in range(points))


# The paper's grids. The one of MNIST is not printed: 1.43, 8.85, 16.23 and 100, the lambdas of its table on longer
# training, are steps 13, 16, 17 and 20 of these twenty points (1.4384, 8.8587, 16.2378, 100), cut to two decimals.
# Twenty points over [0.1, 100] hold neither 1.43 nor 8.85.
GRIDS: Mapping[str, tuple[float, ...]] = {
    "dialog": (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99, 1.0),
    "vqa": log_grid(0.1, 10, 8),
    "regression": log_grid(1, 1e4, 5),
    "mnist": log_grid(1e-3, 100, 20),
}


@dataclass
class SearchConfig:
    """What a search tries and how it chooses. Without a grid there is nothing to search.

    Raises:
        DataError: An unknown grid or rule, a lambda below 0, or an entry listed twice.

    Example:
        >>> SearchConfig(search_grid="regression").lambdas
        (1.0, 10.0, 100.0, 1000.0, 10000.0)
    """

    search_grid: str | None = field(
        default=None, metadata={"help": f"A grid of the paper: {', '.join(GRIDS)}. Not together with search_lambdas."}
    )
    search_lambdas: list[float] | None = field(
        default=None, metadata={"help": "A grid of your own, each at least 0, in the unit that `normalization` says."}
    )
    search_seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds of the search; the metrics of a lambda are averaged over them before one is chosen."},
    )
    search_rule: str = field(
        default="best_accuracy",
        metadata={
            "help": "best_accuracy, or best_consistency_within: the best CM among the lambdas whose accuracy is within "
            "search_epsilon of the best."
        },
    )
    search_epsilon: float = field(
        default=0.01, metadata={"help": "At least 0, in the unit of the accuracy; see search_rule."}
    )

    def __post_init__(self) -> None:
        if self.search_grid is not None and self.search_lambdas is not None:
            raise DataError("search_grid and search_lambdas are both given; keep one of them")
        if self.search_grid is not None and self.search_grid not in GRIDS:
            raise DataError(f"search_grid={self.search_grid!r} is unknown; use {', '.join(GRIDS)}, or search_lambdas")
        if self.search_rule not in RULES:
            raise DataError(f"search_rule={self.search_rule!r} is unknown; use {' or '.join(RULES)}")
        if not self.search_epsilon >= 0:
            raise DataError(f"search_epsilon={self.search_epsilon} is out of range; give 0 or more")
        if not self.search_seeds:
            raise DataError("search_seeds must hold at least one entry")
        # A file is named after its lambda: two that read alike would be one run.
        for name, values in (
            ("search_lambdas", [f"{value:g}" for value in self.lambdas]),
            ("search_seeds", self.search_seeds),
        ):
            if len(set(values)) < len(values):
                raise DataError(f"{name}={values} holds an entry twice; list each once")
        require_seeds("search_seeds", self.search_seeds)
        if any(not value >= 0 for value in self.lambdas):
            raise DataError(f"search_lambdas={self.search_lambdas}: each must be 0 or more")

    @property
    def lambdas(self) -> tuple[float, ...]:
        """The grid, ascending; empty where none is asked for."""
        return GRIDS[self.search_grid] if self.search_grid is not None else tuple(sorted(self.search_lambdas or ()))


class LambdaSearch:
    """A grid of lambdas, tried on validation data; the chosen one is evaluated on the test set, once.

    Trials are runs as in a comparison: `output_dir/search/NAME.json` each. Those files are the only memory: Optuna's
    study is rebuilt from them, trial by trial and in the same order, so a search that was killed anywhere, even while
    a file was written, goes on where it stood; a finished trial is never repeated and none counts twice.

    The test set is out of reach of the choice: `run` only ever calls `execute`, which evaluates on validation rows, and
    `final`, which is given the chosen lambda by the search itself, refuses to evaluate a second choice in the same
    folder.

    Args:
        config: Grid, seeds and rule.
        method: Name in `METHOD_PRESETS` of a method with a lambda, such as "dair".
        args: What all runs share; `output_dir` holds everything.
        accuracy: Key of the metric that chooses.
        consistency: Key of CM in the metrics, if there is one.
        settings: Settings that the runs share; trials of others, finished in the same folder, are refused.
        validation: Fingerprint of each data set that the trials use.
        title: Heading of tables and plots.
        lower_is_better: Whether `accuracy` is an error.

    Raises:
        DataError: An empty grid, a method without lambda, or a rule that needs CM where there is none.

    Example:
        >>> search = LambdaSearch(config, "dair", args, "accuracy", "cm", settings={}, validation={})  # doctest: +SKIP
        >>> chosen = search.run(lambda run: train_and_evaluate(run, validation_pairs))  # doctest: +SKIP
        >>> records = search.final(lambda run: train_and_evaluate(run, test_pairs), {}, [0, 1])  # doctest: +SKIP
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
        if method in ("erm", "da"):
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
        self.folder = Path(args.output_dir) / "search"
        self.columns = [Column(key, key) for key in (accuracy, consistency) if key is not None]
        self.study: optuna.Study | None = None

    def trial(self, dair_lambda: float, seed: int) -> Run:
        """The run of one trial; its `args.output_dir` is where its weights are."""
        name = f"{self.method}_lambda{dair_lambda:g}"
        place = str(self.folder / "runs" / f"{name}_seed{seed}")
        (run,) = self._runs(dair_lambda, [seed], self.folder)
        return run._replace(method=name, args=with_settings(run.args, output_dir=place))

    def run(self, execute: Callable[[Run], Result]) -> Point:
        """Execute the trials that are not finished, choose, and write table, choice and plots into `search/`.

        Args:
            execute: Trains one run and evaluates it on *validation* rows.

        Returns:
            The chosen point.
        """
        optuna = _import_optuna()
        claim_output_folder(self.args)
        lambdas, seeds = list(self.config.lambdas), list(self.config.search_seeds)
        trials = [self.trial(value, seed) for seed in seeds for value in lambdas]
        missing = sum(self._record(run) is None for run in trials)
        bar = tqdm(
            total=len(trials),
            initial=len(trials) - missing,
            desc=self.title,
            unit="run",
            disable=self.args.disable_tqdm or not PartialState().is_main_process,
        )
        asked: list[Run] = []

        def objective(trial: Any) -> tuple[float, ...]:
            value = trial.suggest_categorical("dair_lambda", lambdas)
            asked.append(run := self.trial(value, trial.suggest_categorical("seed", seeds)))
            if self._record(run) is None:
                # All so far: the table grows with each trial.
                compare(asked, execute, self.folder, self.title, self.columns, self.settings, self.validation)
                PartialState().wait_for_everyone()
                bar.update()
            metrics = read_json(self.folder / f"{run.name}.json")["metrics"]
            trial.set_user_attr("run", run.name)
            # What is undefined is a failed trial to Optuna; whether it may be chosen is the rule's affair.
            found = [metrics.get(column.key) for column in self.columns]
            return tuple(float("nan") if value is None else value for value in found)

        directions = ["minimize" if self.lower_is_better else "maximize", "maximize"][: len(self.columns)]
        before = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        try:
            # In memory, and with a fixed order of the grid: the JSONs say what is finished, and nothing else does.
            sampler = optuna.samplers.GridSampler({"dair_lambda": lambdas, "seed": seeds}, seed=0)
            self.study = study = optuna.create_study(directions=directions, sampler=sampler)
            study.optimize(objective, n_trials=len(trials))
        finally:
            optuna.logging.set_verbosity(before)
            bar.close()
        chosen = self.choice()
        if PartialState().is_main_process:
            compare(trials, execute, self.folder, self.title, self.columns, self.settings, self.validation)
            self._write(chosen)
        return chosen

    def choice(self) -> Point:
        """The point that the rule takes, from the JSONs of the trials.

        Raises:
            DataError: A trial is not finished.
        """
        points = self.points()
        if self.config.search_rule == "best_accuracy":
            return best_accuracy(points, self.lower_is_better)
        return best_consistency_within(points, self.config.search_epsilon, self.lower_is_better)

    def points(self) -> list[Point]:
        """What was found for each lambda, ascending.

        Raises:
            DataError: A trial is not finished.
        """
        records = []
        for value in self.config.lambdas:
            for seed in self.config.search_seeds:
                record = self._record(run := self.trial(value, seed))
                if record is None:
                    raise DataError(f"{self.folder / run.name}.json: this trial is not finished; call run() first")
                records.append(record)
        return points_by_lambda(records, self.accuracy, self.consistency)

    def final(
        self, execute: Callable[[Run], Result], data: Mapping[str, str], seeds: Sequence[int]
    ) -> list[dict[str, Any]]:
        """Evaluate the chosen lambda on the test set: once for each seed, kept in `final/` and not repeated.

        Args:
            execute: Trains one run and evaluates it on *test* rows. Called only for the chosen lambda.
            data: Fingerprint of each data set, the test set's among them.
            seeds: Seeds of the runs.

        Returns:
            The records, in the order of the seeds.

        Raises:
            DataError: A trial is not finished; or the test set was already used for another choice or other settings.
        """
        chosen = self.choice()
        folder = Path(self.args.output_dir) / "final"
        runs = self._runs(chosen.dair_lambda, seeds, folder)
        asked = {f"{run.name}.json": run for run in runs}
        for path in sorted(folder.glob(f"{self.method}_seed*.json")):
            record = read_json(path)
            before = record["config"]["training"]["dair_lambda"]
            changed = changed_settings(record, asked.get(path.name, runs[0]), self.settings, data)
            changes = changed.keys() - {"training.dair_lambda", "training.seed"}
            if changes and redo_changed():
                continue  # another experiment: `compare` sets it aside
            if before != chosen.dair_lambda or (changes and path.name in asked):
                raise DataError(
                    f"{path}: the test set was already evaluated, with lambda {before:g}; now lambda "
                    f"{chosen.dair_lambda:g} is chosen, or other settings are given. A choice that follows a look at "
                    "the test set is none: use another output_dir, and report both"
                )
        compare(runs, execute, folder, f"{self.title}: test set", self.columns, self.settings, data)
        PartialState().wait_for_everyone()
        return [read_json(folder / f"{run.name}.json") for run in runs]

    def _runs(self, dair_lambda: float, seeds: Sequence[int], folder: Path) -> list[Run]:
        config = ComparisonConfig([self.method], {self.method: dair_lambda}, list(seeds))
        return list(runs_of(config, with_settings(self.args, output_dir=str(folder))))

    def _record(self, run: Run) -> dict[str, Any] | None:
        return finished_record(self.folder, run, self.settings, self.validation)

    def _write(self, chosen: Point) -> None:
        """`choice.json`, `sweep.png` and, where there is a CM, `front.png`."""
        points = self.points()
        best = pareto_front(points, self.lower_is_better)
        write_json(
            self.folder / "choice.json",
            {
                "rule": self.config.search_rule,
                "epsilon": self.config.search_epsilon,
                "dair_lambda": chosen.dair_lambda,
                "front": [point.dair_lambda for point in best],
                "points": [
                    {**point._asdict(), "accuracy": point.accuracy, "consistency": point.consistency}
                    for point in points
                ],
            },
        )
        series = {}
        for column, values in zip(self.columns, ("accuracies", "consistencies"), strict=False):
            drawn = [(p.dair_lambda, getattr(p, values)) for p in points if None not in getattr(p, values)]
            if drawn:
                means = [statistics.fmean(found) for _, found in drawn]
                deviations = [statistics.stdev(found) if len(found) > 1 else 0.0 for _, found in drawn]
                series[column.title] = ([value for value, _ in drawn], means, deviations)
        label = f"lambda ({self.args.lambda_unit})"
        plot_curves(
            self.folder / "sweep.png", self.title, label, "validation metric", series, min(self.config.lambdas) > 0
        )
        if best:
            named = {f"{p.dair_lambda:g}": (p.accuracy, p.consistency) for p in points if p.consistency is not None}
            xlabel, ylabel = (column.title for column in self.columns)
            ringed = f"{chosen.dair_lambda:g}"
            plot_front(
                self.folder / "front.png",
                self.title,
                xlabel,
                ylabel,
                named,
                [f"{point.dair_lambda:g}" for point in best],
                ringed if ringed in named else None,
            )


def search_and_test(
    search: LambdaSearch, execute: Callable[[Run, str], Result], data: Mapping[str, str], seeds: Sequence[int]
) -> Point:
    """A whole search of a recipe: choose on the validation split, evaluate the choice on the test split, print both.

    Args:
        search: The search.
        execute: `(run, split)` trains a run and evaluates it on that split, "validation" or "test".
        data: Fingerprint of each data set of the test.
        seeds: Seeds of the test runs.

    Returns:
        The chosen point.
    """
    chosen = search.run(lambda run: execute(run, "validation"))
    if PartialState().is_main_process:
        print(f"\nChosen by {search.config.search_rule}: lambda {chosen.dair_lambda:g}")
    search.final(lambda run: execute(run, "test"), data, seeds)
    return chosen


def _import_optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise DataError("a lambda search needs Optuna: pip install 'dair-hf[search]'") from error
    return optuna
