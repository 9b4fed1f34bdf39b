"""Comparison of methods that start from the same initial weights, with one JSON for each finished run."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from accelerate import PartialState

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.experiments.checkpoints import save_run, train_resumable
from dair_hf.experiments.outcomes import read_outcomes
from dair_hf.experiments.paired import write_paired
from dair_hf.experiments.plots import require_matplotlib
from dair_hf.experiments.report import Column, write_comparison
from dair_hf.experiments.run_records import (
    SETTINGS_NOTE,
    Result,
    Run,
    earlier_records,
    fingerprint,
    finished_records,
    git_revision,
    lambda_of,
    lambda_text,
    redo_changed,
    run_record,
)
from dair_hf.io.files import write_json, write_text
from dair_hf.io.folders import claim_folder
from dair_hf.io.processes import on_first_rank
from dair_hf.losses.divergence import FEATURE_REGULARIZERS
from dair_hf.losses.objective import LOSS_REGULARIZERS, REGULARIZED
from dair_hf.training.trainer import DAIRTrainer

# Name in a comparison -> (method, regularizer) of `DAIRConfig`.
METHOD_PRESETS = {
    "erm": ("erm", "sq"),
    "da": ("da", "sq"),
    **{name: ("dair", name) for name in FEATURE_REGULARIZERS},
    **{"dair" if name == "sq" else f"dair_{name}": ("dair", name) for name in LOSS_REGULARIZERS},
    # Baselines of adversarial training: partners only, and two with a consistency term of their own.
    "pgd": ("augmented", "sq"),
    "trades": ("trades", "kl"),
    "mart": ("mart", "kl"),
    # Objectives of the whole batch, set by `EnvironmentConfig`.
    "irm": ("da", "sq"),
    "rex": ("da", "sq"),
    "dro": ("da", "sq"),
}
# Method -> what it needs beside the objective of `DAIRConfig`. The settings of a recipe that provide it list the method
# in an attribute `provided_methods`.
REQUIREMENTS = {
    **dict.fromkeys(("pgd", "trades", "mart"), "an attack on the model, as in recipes/cifar10_adversarial.py"),
    **dict.fromkeys(("irm", "rex", "dro"), "an objective of the whole batch, as in recipes/colored_mnist.py"),
}
# Field of `DAIRConfig` that each run sets -> field of `ComparisonConfig` that lists its values.
SET_BY_RUNS = {"method": "methods", "regularizer": "methods", "seed": "seeds"}


@dataclass
class ComparisonConfig:
    """Methods and seeds of a comparison, one run for each pair.

    Raises:
        DataError: No method or seed, an unknown method, a duplicate entry, or a lambda that is out of range or of a
            method that has none.

    Example:
        >>> [run.name for run in runs_of(ComparisonConfig(methods=["erm", "dair"]), DAIRConfig("out"))]
        ['erm_seed0', 'dair_seed0']
    """

    methods: list[str] = field(
        default_factory=lambda: ["erm", "da", "kl", "dair"],
        metadata={"help": f"Methods to compare, from the same initial weights: any of {', '.join(METHOD_PRESETS)}."},
    )
    lambdas: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Lambda by method, a number or auto, such as {kl: 1.0}; other methods use dair_lambda. Its unit "
            "depends on `normalization`.",
            "replaced_by": ("lambda_sweep",),
        },
    )
    seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds of initial weights, data order, dropout and augmentation."},
    )
    lambda_sweep: list[float] | None = field(
        default=None,
        metadata={
            "help": "Run every method that has a regularizer once with each of these lambdas, each >= 0.",
            "replaced_by": ("dair_lambda", "lambdas"),
        },
    )

    def __post_init__(self) -> None:
        require_list("methods", self.methods)
        for setting, names in (("methods", self.methods), ("lambdas", self.lambdas or {})):
            if unknown := sorted(set(names) - set(METHOD_PRESETS)):
                raise DataError(f"{setting}: unknown {', '.join(unknown)}; use {', '.join(METHOD_PRESETS)}")
        # Of any type, since YAML does not check the values of a mapping.
        require_lambdas("lambdas", [value for value in (self.lambdas or {}).values() if value != AUTO])
        if self.lambdas and self.lambda_sweep:
            raise DataError("lambdas and lambda_sweep are both given; keep one of them")
        require_distinct("methods", self.methods)
        require_distinct("seeds", self.seeds)
        require_seeds("seeds", self.seeds)
        if self.lambda_sweep is not None:
            require_lambdas("lambda_sweep", self.lambda_sweep)
        if self.lambda_sweep:
            # Compared as printed in file names.
            require_distinct("lambda_sweep", [f"{value:g}" for value in self.lambda_sweep])
        # Methods that are not listed may have a lambda, so that --methods can narrow the list of a file.
        if unused := sorted(name for name in self.lambdas or {} if METHOD_PRESETS[name][0] not in REGULARIZED):
            raise DataError(f"lambdas: {', '.join(unused)} has no lambda; remove it")

    def check_with(self, others: Sequence[Any], given: Collection[str], options: Collection[str] = ()) -> None:
        """Refuse settings of a recipe that its runs would ignore, and methods that it cannot run.

        Args:
            others: All settings of the recipe.
            given: Names of the fields that were set.
            options: Names of those that the command line sets.

        Raises:
            DataError: `method`, `regularizer` or `seed` is set on the command line, or to something else than its
                default; there is nothing to train; the command line sets `dair_lambda` though `lambdas` sets that of
                all methods, `lambdas` for methods that are not compared, or `num_train_epochs` though
                `max_steps` of the file decides; or a method needs what no settings provide.

        Example:
            >>> ComparisonConfig(["erm"]).check_with([DAIRConfig("out", seed=7)], {"seed"})
            Traceback (most recent call last):
            dair_hf.errors.DataError: seed=7 has no effect, since seeds lists what is compared: [0]; set --seeds instead
        """
        for args in others:
            for name, listed in SET_BY_RUNS.items() if isinstance(args, DAIRConfig) else ():
                default = DAIRConfig.__dataclass_fields__[name].default
                if name in options or (name in given and getattr(args, name) != default):
                    raise DataError(
                        f"{name}={getattr(args, name)} has no effect, since {listed} lists what is compared: "
                        f"{getattr(self, listed)}; set --{listed} instead"
                    )
            if isinstance(args, DAIRConfig) and args.max_steps < 0 and args.num_train_epochs == 0:
                raise DataError(
                    "num_train_epochs=0 trains nothing; give a number > 0, or run dair-hf evaluate on a model"
                )
            ignores_epochs = "num_train_epochs" in options and "max_steps" not in options
            if isinstance(args, DAIRConfig) and args.max_steps > 0 and ignores_epochs:
                raise DataError(
                    f"num_train_epochs={args.num_train_epochs:g} has no effect, since max_steps={args.max_steps} "
                    "decides; set --max_steps instead, or --max_steps=-1 as well"
                )
        if "lambdas" in options and (unused := sorted(set(self.lambdas or {}).difference(self.methods))):
            raise DataError(f"lambdas: not compared: {', '.join(unused)}; leave out what is not among methods")
        if "dair_lambda" in options and self.regularized and not set(self.regularized).difference(self.lambdas or {}):
            raise DataError(
                f"dair_lambda has no effect, since lambdas sets that of {', '.join(self.regularized)}: {self.lambdas}; "
                "set --lambdas instead"
            )
        provided = {name for settings in others for name in getattr(settings, "provided_methods", ())}
        for name in self.methods:
            if name in REQUIREMENTS and name not in provided:
                raise DataError(f"methods: {name} needs {REQUIREMENTS[name]}, which this recipe has not; leave it out")

    @property
    def regularized(self) -> list[str]:
        """Methods of the comparison that have a lambda.

        Example:
            >>> ComparisonConfig(methods=["erm", "kl", "dair"]).regularized
            ['kl', 'dair']
        """
        return [name for name in self.methods if METHOD_PRESETS[name][0] in REGULARIZED]


def require_distinct(name: str, values: Sequence[Any]) -> None:
    """Refuse a list of settings that is empty or has duplicates.

    Raises:
        DataError: It is no list, is empty, or contains an entry twice.
    """
    require_list(name, values)
    if not values:
        raise DataError(f"{name} is empty; give at least one entry")
    if len(set(values)) < len(values):
        raise DataError(f"{name}={values} contains an entry twice; list each once")


def require_list(name: str, values: Any) -> None:
    """Refuse a setting that is no list."""
    if not isinstance(values, Sequence) or isinstance(values, str):
        raise DataError(f"{name}={values!r} is no list; give one, such as {[0 if values is None else values]}")


def require_lambdas(name: str, values: Any) -> None:
    """Refuse a list of lambdas of which one is out of range."""
    require_list(name, values)
    for value in values:
        if value == AUTO:
            raise DataError(f"{name}: {AUTO!r} is no number; leave out {name} and set dair_lambda={AUTO}")
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < math.inf:
            raise DataError(f"{name}: {value!r} is out of range; give finite numbers >= 0")


def lambda_note(config: ComparisonConfig, args: DAIRConfig) -> str:
    """Return a line that states the lambda of each method and its unit, for the notes of a table.

    Example:
        >>> lambda_note(ComparisonConfig(lambda_sweep=[0.1, 1]), DAIRConfig("out"))
        'lambda 0.1 to 1, as shown in each row (per pair: objective = sum of f / rows)'
        >>> lambda_note(ComparisonConfig(lambdas={"kl": 1.0}), DAIRConfig("out", dair_lambda=2))
        'lambda 2, 1 for kl (per pair: objective = sum of f / rows)'
        >>> lambda_note(ComparisonConfig(["erm", "kl"], {"kl": 1.0}), DAIRConfig("out"))
        'lambda 1 for kl (per pair: objective = sum of f / rows)'
    """
    if config.lambda_sweep and config.regularized:
        lambdas = f"{min(config.lambda_sweep):g} to {max(config.lambda_sweep):g}, as shown in each row"
    else:
        own = {name: value for name, value in (config.lambdas or {}).items() if name in config.methods}
        shared = [] if own and own.keys() >= set(config.regularized) else [args.lambda_text]
        lambdas = ", ".join(shared + [f"{v if v == AUTO else f'{v:g}'} for {name}" for name, v in own.items()])
    return f"lambda {lambdas} ({args.lambda_unit})"


def runs_of(config: ComparisonConfig, args: DAIRConfig) -> Iterator[Run]:
    """Yield the runs of a comparison: all methods of the first seed, then all of the second, and so on.

    Args:
        config: Methods, lambdas and seeds.
        args: Arguments shared by all runs; the output folder of each run is `output_dir/runs/NAME`.

    Raises:
        DataError: `args.resume_from_checkpoint` is set.
    """
    if args.resume_from_checkpoint is not None:
        raise DataError(
            f"resume_from_checkpoint={args.resume_from_checkpoint} is for a single run; leave it out: each run of a "
            "comparison resumes from its own last checkpoint"
        )
    if not isinstance(args.regularizer, str):
        raise DataError(
            f"regularizer={args.regularizer!r} is a function, but the methods of a comparison have regularizers of "
            f"their own: {', '.join(METHOD_PRESETS)}; train it with a DAIRTrainer"
        )
    for seed in config.seeds:
        for name in config.methods:
            method, regularizer = METHOD_PRESETS[name]
            sweep = config.lambda_sweep if name in config.regularized else None
            for value in sweep or [(config.lambdas or {}).get(name, args.dair_lambda)]:
                label = f"{name}_lambda{value:g}" if sweep else name
                folder = Path(args.output_dir) / "runs" / f"{label}_seed{seed}"
                changes = {"method": method, "regularizer": regularizer, "dair_lambda": value, "seed": seed}
                yield Run(label, seed, with_settings(args, **changes, output_dir=str(folder)))


def claim_output_folder(args: Any) -> Path:
    """Claim and return `args.output_dir`, the output folder of a recipe; see `dair_hf.io.folders.claim_folder`.

    Raises:
        DataError: The folder cannot be claimed, or matplotlib is not installed: a table comes with a plot.
    """
    require_matplotlib()  # before data is prepared
    if PartialState().is_main_process:
        claim_folder(args.output_dir)
    return Path(args.output_dir)


def compare(
    runs: Sequence[Run],
    execute: Callable[[Run], Result],
    folder: Path,
    title: str,
    columns: Sequence[Column],
    config: Mapping[str, Any],
    data: Mapping[str, str],
    notes: Sequence[str] = (),
) -> str:
    """Execute the runs that have not finished, write one JSON for each, then write and print the comparison.

    If the runs keep their predictions, the differences between methods follow, paired over test rows and seeds.

    The comparison also contains finished runs of earlier calls in this folder that differ in method, lambda and seed
    only. If the environment variable `DAIR_REDO_CHANGED` is set, finished runs with other settings are moved to
    `superseded/` and repeated, and earlier runs are left out.

    Args:
        runs: Runs to execute, in the order of the table.
        execute: Trains and evaluates one run.
        folder: Output folder of `NAME.json` for each run and of `comparison.md`, `.json` and `.png`.
        title: Heading of the table.
        columns: Columns of the table.
        config: Settings shared by all runs.
        data: Fingerprint of each data set.
        notes: Lines below the table.

    Returns:
        The table, in Markdown; "" on all but the main process.

    Raises:
        DataError: A run with one of these names and other settings has finished, the folder cannot be claimed, or
            matplotlib is not installed.
    """
    require_matplotlib()
    git_revision()  # cached now, because the checkout may change while the runs execute
    if PartialState().is_main_process:
        claim_folder(folder)
    started = time.perf_counter()
    finished = finished_records(folder, runs, config, data)  # refuses conflicting runs before the first one starts
    if PartialState().is_main_process and (kept := [name for name, record in finished.items() if record is not None]):
        print(f"{folder}: finished earlier, not repeated: {', '.join(kept)}")
    records = []
    for run in runs:
        record = finished[run.name]
        if record is None:
            settings = fingerprint(config, run.args, data)
            on_first_rank(functools.partial(_prepare_run_folder, Path(run.args.output_dir), settings))
            # On a copy, because a trainer modifies its arguments, which identify the run.
            result = execute(run._replace(args=with_settings(run.args)))
            all_settings = {**config, "training": run.args}
            record = run_record(run.name, run.method, run.seed, all_settings, *result, data, settings)
            if PartialState().is_main_process:
                if run.predictions_file.is_file():
                    record["outcomes"] = read_outcomes(run.predictions_file).to_json()
                write_json(folder / f"{run.name}.json", record)
        records.append(record)
    if not PartialState().is_main_process:
        return ""
    if earlier := [] if redo_changed() else earlier_records(folder, runs, config, data):
        names = (
            r["name"] + (f" (lambda {lambda_text(lambda_of(r))})" if lambda_of(r) is not None else "") for r in earlier
        )
        notes = [*notes, f"From earlier calls: {', '.join(names)}."]
    table = write_comparison(folder, title, [*records, *earlier], columns, notes)
    print(f"\n{table}\n")
    if paired := write_paired(folder, [*records, *earlier]):
        print(f"{paired}\n")
    duration = timedelta(seconds=round(time.perf_counter() - started))
    print(f"Written to {folder} after {duration}: comparison.md, .json, .png and one JSON per run.")
    return table


def _prepare_run_folder(folder: Path, settings: str) -> None:
    """Note the fingerprint of the settings in a run's folder; rename an unfinished run with other settings.

    Otherwise its checkpoints would be resumed under the new settings.
    """
    claim_folder(folder)
    note = folder / SETTINGS_NOTE
    previous = note.read_text(encoding="utf-8").strip() if note.exists() else settings
    if previous != settings:
        names = (f"{folder.name}_of_{previous}{end}" for end in ("", *(f"_{number}" for number in range(2, 1000))))
        folder.rename(next(renamed for name in names if not (renamed := folder.with_name(name)).exists()))
    write_text(note, settings + "\n")


def train_evaluate_save(
    trainer: DAIRTrainer, evaluate: Callable[[DAIRTrainer], Mapping[str, Any]], run: Run | None = None, **card: Any
) -> Result:
    """Execute a run: train, resuming from the last checkpoint, evaluate, and save the model and its card.

    Args:
        trainer: Trainer of the run; saves to its `args.output_dir`.
        evaluate: Returns the metrics of the trainer.
        run: The run, whose `watch` may stop it early. A recipe that can be searched with `search_pruner` passes it.
        **card: Arguments of `DAIRTrainer.create_model_card`.

    Returns:
        The metrics, and the seconds of training, evaluation and, if the run is watched, of reports during training.

    Raises:
        RunStopped: The run was stopped early, or it is watched and its loss became NaN or infinite.
    """
    start = time.perf_counter()
    watch = None if run is None or run.watch is None else run.watch(trainer, evaluate)
    reports = {}
    try:
        train_resumable(trainer)
    except NonFiniteLossError as error:
        if watch is None or trainer.args.world_size > 1:  # the other ranks do not know
            raise
        raise watch.diverged(error) from error
    trained = time.perf_counter()
    if watch is not None:
        watch.end_training()
        reports = {"reports": watch.seconds}
    metrics = evaluate(trainer)
    training = trained - start - sum(reports.values())
    seconds = {"training": training, "evaluation": time.perf_counter() - trained, **reports}
    save_run(trainer, **card)
    return Result(metrics, seconds)


def with_settings(args: DAIRConfig, **changes: Any) -> DAIRConfig:
    """Return a validated copy of `args` with some fields changed.

    Args:
        args: Arguments to copy.
        **changes: Fields and their new values.

    Raises:
        DataError: An unknown field, or a value out of range.

    Example:
        >>> with_settings(DAIRConfig("out"), dair_lambda=2.0).dair_lambda
        2.0
    """
    # A deep copy, because a trainer modifies its arguments in place.
    fields = {f.name: copy.deepcopy(getattr(args, f.name)) for f in dataclasses.fields(args) if f.init}
    if unknown := sorted(set(changes) - set(fields)):
        raise DataError(f"{type(args).__name__} has no field {', '.join(unknown)}; see --help for the fields")
    try:
        return type(args)(**{**fields, **changes})
    except ValueError as error:
        raise DataError(str(error)) from error
