"""Search for the lambda of one method: every lambda of a grid, with every seed, on validation data."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from tqdm.auto import tqdm

from dair_hf.config import DAIRConfig
from dair_hf.errors import DataError
from dair_hf.evaluation.statistics import is_cm
from dair_hf.experiments.comparison import (
    METHOD_PRESETS,
    ComparisonConfig,
    claim_output_folder,
    compare,
    runs_of,
    with_settings,
)
from dair_hf.experiments.plots import mean_series, plot_curves, plot_front
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import (
    Result,
    Run,
    RunStopped,
    fingerprint,
    finished_record,
    run_record,
    shared_settings,
)
from dair_hf.experiments.search.grids import SearchConfig
from dair_hf.experiments.search.pruning import RunWatch, make_pruner
from dair_hf.experiments.search.trials import Outcome, TrialStudy
from dair_hf.experiments.selection import Point, best_accuracy, pareto_front, points_by_lambda
from dair_hf.io.files import read_json, write_json
from dair_hf.losses.objective import REGULARIZED


class LambdaSearch:
    """Grid search for the lambda of one method on validation data.

    Each trial is a run of a comparison, with its record in `folder/NAME.json`. An interrupted search resumes from these
    records; a finished trial is never repeated.

    With `search_pruner` or `search_storage` the lambdas are the trials of an Optuna study (`trials.TrialStudy`), each
    with all seeds in turn. A lambda that is stopped with one seed is out; its record is in `folder/stopped/`.

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
        DataError: An empty grid, a method without lambda, or a CM as `accuracy`.

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
        if is_cm(accuracy):  # a model that answers all inputs alike would be chosen
            raise DataError(f"accuracy={accuracy!r}: CM cannot choose lambda; expected another metric: both_correct")
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
        if self.config.prunes or self.config.search_storage is not None:
            self.work(execute)
        else:
            self._run_all(execute)
        chosen = self.choice()
        if PartialState().is_main_process:
            stopped = self._stopped()
            self._compare([run for run in self.trials if run.args.dair_lambda not in stopped], execute)
            self._write(chosen)
        return chosen

    def _run_all(self, execute: Callable[[Run], Result]) -> None:
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

    # ---- trials of a study ----

    def work(self, execute: Callable[[Run], Result], wait: bool = True) -> None:
        """Execute the trials that no other process has taken.

        Args:
            execute: As in `run`.
            wait: Whether to wait for those of other processes, and to keep their records, too.
        """
        claim_output_folder(self.args)
        storage = self.config.search_storage
        study = TrialStudy(
            self.folder / f"study_{self._study_fingerprint}.log" if storage is None else Path(storage),
            self.method,
            self._study_settings(),
            {f"{value:g}": {"dair_lambda": value} for value in self.config.lambdas},
            functools.partial(make_pruner, self.config),
            maximize=not self.lower_is_better,
            shared=storage is not None,
        )
        lambdas = {f"{value:g}": value for value in self.config.lambdas}
        state = study.run(lambda point: self._run_lambda(study, lambdas[point], execute), wait)
        if PartialState().is_main_process:
            for result in (*state.finished.values(), *state.stopped.values()):
                self._keep(result)
        PartialState().wait_for_everyone()

    def _run_lambda(self, study: TrialStudy, value: float, execute: Callable[[Run], Result]) -> Outcome:
        """Execute the trials of one lambda, or those up to the one in which it is stopped."""
        runs = [run for run in self.trials if run.args.dair_lambda == value]
        records: dict[str, Any] = {}
        stopped = self._stopped().get(value)
        metrics: list[float | None] = []
        for number, run in enumerate(runs):
            if stopped is not None:
                break
            try:
                self._execute(run, execute, functools.partial(self._report, study, number, metrics))
            except RunStopped as stop:
                stopped = self._record_of_stopped(run, stop)
                break
            PartialState().wait_for_everyone()
            records[run.name] = record = self._record(run)
            assert record is not None
            metrics.append(record["metrics"].get(self.accuracy))
        result = {"records": records, "stopped": stopped}
        if PartialState().is_main_process:
            self._keep(result)
        PartialState().wait_for_everyone()
        return Outcome(_mean(metrics), result, stopped is not None)

    def _execute(self, run: Run, execute: Callable[[Run], Result], report: Callable[[int, float | None], bool]) -> None:
        """Execute a trial beside those that have finished, so that the table grows with each trial."""
        watched: list[RunWatch] = []

        def watch(trainer: Any, evaluate: Callable[[Any], Mapping[str, Any]]) -> RunWatch:
            watched.append(RunWatch(trainer, evaluate, self.accuracy, self.config.search_reports, report))
            return watched[-1]

        has_finished = self._record(run) is not None
        runs = [other for other in self.trials if other is run or self._record(other) is not None]
        observed = run._replace(watch=watch) if self.config.prunes else run
        self._compare([observed if other is run else other for other in runs], execute)
        if self.config.prunes and not watched and not has_finished:
            raise DataError(
                f"search_pruner={self.config.search_pruner}, but nothing watched {run.name}: pass the run to "
                "train_evaluate_save(trainer, evaluate, run), or set search_pruner=none"
            )

    def _report(self, study: TrialStudy, number: int, earlier: Sequence[float | None], k: int, value: Any) -> bool:
        """Report the mean over the seeds so far; the k-th value of the seed with this number."""
        return study.report(number * self.config.search_reports + k, _mean([*earlier, value]))

    def _record_of_stopped(self, run: Run, stop: RunStopped) -> dict[str, Any]:
        """Return the record of a lambda that was stopped with the seed of this run."""
        config, settings = (
            {**self.settings, "training": run.args},
            fingerprint(self.settings, run.args, self.validation),
        )
        record = run_record(run.name, run.method, run.seed, config, {}, stop.seconds, self.validation, settings)
        del record["metrics"]
        value = stop.value if stop.value is not None and math.isfinite(stop.value) else None
        stopped_early = {
            "pruner": self.config.search_pruner,
            "reason": stop.reason,
            "step": stop.step,
            "max_steps": stop.max_steps,
            self.accuracy: value,
            "study": self._study_fingerprint,
        }
        return {**record, "stopped_early": stopped_early}

    def _keep(self, result: Mapping[str, Any]) -> None:
        """Write the records of a lambda that this folder lacks, because another process ran it."""
        for run in self.trials:
            if run.name in result["records"] and self._record(run) is None:
                write_json(self.folder / f"{run.name}.json", result["records"][run.name])
            stopped = result["stopped"]
            is_new = float(run.args.dair_lambda) not in self._stopped()
            if stopped is not None and stopped["name"] == run.name and is_new:
                write_json(self.folder / "stopped" / f"{run.name}.json", stopped)

    def _stopped(self) -> dict[float, dict[str, Any]]:
        """Return the record of each lambda that was stopped early under the settings of this search."""
        if not self.config.prunes:
            return {}
        found = {}
        for run in self.trials:
            path = self.folder / "stopped" / f"{run.name}.json"
            record = read_json(path) if path.exists() else {}
            if record.get("stopped_early", {}).get("study") == self._study_fingerprint:
                found[float(run.args.dair_lambda)] = record
        return found

    @property
    def _study_fingerprint(self) -> str:
        return fingerprint(self._study_settings())

    def _study_settings(self) -> dict[str, str]:
        """Return all that decides which lambda is chosen, without paths."""
        search = dataclasses.asdict(self.config)
        del search["search_storage"]
        metric = {"metric": self.accuracy, "lower_is_better": self.lower_is_better}
        return {
            **shared_settings(self.trials[0], self.settings, self.validation),
            **{name: json.dumps(value) for name, value in {**search, **metric}.items()},
        }

    def choice(self) -> Point:
        """Apply the selection rule to the finished trials.

        Raises:
            DataError: A trial has not finished.
        """
        return best_accuracy(self.points(), self.lower_is_better)

    def points(self) -> list[Point]:
        """Return the validation metrics of each lambda, in ascending order.

        Raises:
            DataError: A trial has not finished.
        """
        records, stopped = [], self._stopped()
        for run in self.trials:
            if run.args.dair_lambda in stopped:
                continue
            record = self._record(run)
            if record is None:
                raise DataError(f"{self.folder / run.name}.json: this trial has not finished; call run() first")
            records.append(record)
        return points_by_lambda(records, self.accuracy, self.consistency)

    def _compare(self, runs: Sequence[Run], execute: Callable[[Run], Result]) -> None:
        notes = []
        for value, record in self._stopped().items():
            stop = record["stopped_early"]
            metric = "" if stop[self.accuracy] is None else f" ({self.accuracy} {stop[self.accuracy]:.4g})"
            notes.append(
                f"Stopped early: lambda {value:g} after step {stop['step']} of {stop['max_steps']} with seed "
                f"{record['seed']}{metric}: {stop['reason']}."
            )
        compare(runs, execute, self.folder, self.title, self.columns, self.settings, self.validation, notes)

    def _record(self, run: Run) -> dict[str, Any] | None:
        return finished_record(self.folder, run, self.settings, self.validation)

    def _write(self, chosen: Point) -> None:
        """Write `choice.json`, `sweep.png` and, if CM is defined, `front.png`."""
        points, stopped = self.points(), self._stopped()
        front = pareto_front(points, self.lower_is_better)
        write_json(
            self.folder / "choice.json",
            {
                "dair_lambda": chosen.dair_lambda,
                "front": [point.dair_lambda for point in front],
                "points": [
                    {**point._asdict(), "accuracy": point.accuracy, "consistency": point.consistency}
                    for point in points
                ],
                **({"stopped_early": sorted(stopped)} if self.config.prunes else {}),
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


def _mean(values: Sequence[float | None]) -> float | None:
    """Return the mean, or None if a value is undefined."""
    defined = [value for value in values if value is not None]
    return statistics.fmean(defined) if defined and len(defined) == len(values) else None
