"""One comparison on the test set, with the lambdas that a search has chosen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.comparison import ComparisonConfig, compare, lambda_note, runs_of, with_settings
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import Result, Run, changed_settings, fingerprint, redo_changed, shared_settings
from dair_hf.experiments.search.grids import SearchConfig
from dair_hf.experiments.search.lambda_search import LambdaSearch
from dair_hf.experiments.search.trials import Outcome, TrialStudy
from dair_hf.io.files import read_json, write_json


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
            record = read_json(path)
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
    note = f"Chosen on validation data by {first.accuracy}: lambda {listed} ({first.args.lambda_unit})."
    written = folder, title, columns or first.columns, first.settings, data, [*notes, note]
    if first.config.search_storage is not None:
        settings = shared_settings(runs[0], first.settings, data) | {"lambda": json.dumps(lambdas)}
        _share_runs(first, settings, runs, folder, lambda part: compare(part, execute, *written))
    compare(runs, execute, *written)
    PartialState().wait_for_everyone()
    return [read_json(folder / f"{run.name}.json") for run in runs]


def _share_runs(
    search: LambdaSearch,
    settings: Mapping[str, str],
    runs: Sequence[Run],
    folder: Path,
    compare_runs: Callable[[list[Run]], Any],
) -> None:
    """Execute the runs that no other process has taken, and keep the records of the others."""
    names = [run.name for run in runs]
    name = f"final_{fingerprint(names)}"  # with more seeds it is another study, and finished runs are not repeated
    study = TrialStudy(Path(search.config.search_storage or ""), name, settings, {n: {} for n in names}, shared=True)

    def execute(name: str) -> Outcome:
        # Beside those that have finished, so that the table grows with each run.
        compare_runs([run for run in runs if run.name == name or (folder / f"{run.name}.json").exists()])
        PartialState().wait_for_everyone()
        return Outcome(0.0, read_json(folder / f"{name}.json"))

    state = study.run(execute)
    for run in runs if PartialState().is_main_process else ():
        if not (folder / f"{run.name}.json").exists():
            write_json(folder / f"{run.name}.json", state.finished[run.name])
    PartialState().wait_for_everyone()


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
        DataError: As `compare` and `LambdaSearch`; `metrics` are not one or two; or a grid is given, and no
            method has a lambda, or `lambdas` or "auto" sets it.
    """
    if isinstance(metrics, str) or len(metrics) not in (1, 2):
        raise DataError(
            f"metrics={metrics!r}: give a list of one or two names, that of the metric that chooses lambda and that of "
            "CM, such as ['augmented_accuracy', 'cm']"
        )
    if search.lambdas:
        if args.dair_lambda == AUTO:
            raise DataError(f"dair_lambda={AUTO!r} has no effect beside a grid to search; leave out one of them")
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
        if search.search_storage is not None:
            for trials in searches:
                # Before it waits for the last trials of one method, a process takes those of the next one.
                trials.work(lambda run: execute(run, "validation"), wait=False)
        for trials in searches:
            chosen = trials.run(lambda run: execute(run, "validation"))
            if PartialState().is_main_process:
                print(f"\nChosen by {trials.accuracy}: lambda {chosen.dair_lambda:g} for {trials.method}")
        methods, seeds = comparison.methods, comparison.seeds
        evaluate_choices(searches, methods, lambda run: execute(run, "test"), data, seeds, title, columns, notes)
        return ""
    runs, lines = (
        list(runs_of(comparison, args)),
        [*notes, f"Methods with a regularizer: {lambda_note(comparison, args)}."],
    )
    return compare(runs, lambda run: execute(run, "test"), Path(args.output_dir), title, columns, settings, data, lines)
