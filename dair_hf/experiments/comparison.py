"""Comparison of methods that start from the same initial weights, with one JSON for each finished run."""

from __future__ import annotations

import copy
import dataclasses
import functools
import math
import shutil
import textwrap
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, ClassVar

from accelerate import PartialState

from dair_hf.config import AUTO, DAIRConfig
from dair_hf.errors import DataError
from dair_hf.experiments.checkpoints import train_resumable
from dair_hf.experiments.paired import read_outcomes, write_paired
from dair_hf.experiments.plots import require_matplotlib
from dair_hf.experiments.report import Column, write_comparison
from dair_hf.experiments.run_records import (
    SETTINGS_NOTE,
    Result,
    Run,
    fingerprint,
    finished_records,
    git_revision,
    run_record,
    with_models,
)
from dair_hf.io.commands import align
from dair_hf.io.files import claim_folder, write_json, write_text
from dair_hf.io.processes import on_first_rank
from dair_hf.losses.divergence import FEATURE_REGULARIZERS
from dair_hf.losses.objective import LOSS_REGULARIZERS, REGULARIZED
from dair_hf.settings import NonNegative, Range, Settings, accepts
from dair_hf.training.trainer import DAIRTrainer

Seed = Annotated[int, Range(low=0, high=2**32 - 1)]
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
# Method -> what it needs besides the objective of `DAIRConfig`. The settings of a recipe that provide it list the
# method in an attribute `provided_methods`.
_REQUIREMENTS = {
    **dict.fromkeys(("pgd", "trades", "mart"), "an attack on the model, as in recipes/cifar10_adversarial.py"),
    **dict.fromkeys(("irm", "rex", "dro"), "an objective of the whole batch, as in recipes/colored_mnist.py"),
}
# Field of `DAIRConfig` that each run sets -> field of `ComparisonConfig` that lists its values.
_SET_BY_RUNS = {"method": "methods", "regularizer": "methods", "seed": "seeds"}


@dataclass
class ComparisonConfig(Settings):
    """Methods and seeds of a comparison, one run for each pair.

    Raises:
        DataError: No method or seed, an unknown method, a duplicate entry, or a lambda that is out of range or set for
            a method without one.

    Example:
        >>> [run.name for run in runs_of(ComparisonConfig(methods=["erm", "dair"]), DAIRConfig("out"))]
        ['erm_seed0', 'dair_seed0']
    """

    REPLACED_BY: ClassVar = {"lambdas": ("lambda_sweep",), "lambda_sweep": ("dair_lambda", "lambdas")}
    methods: list[str] = field(
        default_factory=lambda: ["erm", "da", "kl", "dair"],
        metadata={"help": f"Methods to compare, from the same initial weights: any of {', '.join(METHOD_PRESETS)}."},
    )
    lambdas: dict[str, Any] | None = field(
        default=None,
        metadata={
            "help": "Lambda by method, a number or auto, such as {kl: 1.0}; other methods use dair_lambda. Its unit "
            "depends on `normalization`.",
        },
    )
    seeds: list[Seed] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds of initial weights, data order, dropout and augmentation."},
    )
    lambda_sweep: list[NonNegative] | None = field(
        default=None,
        metadata={"help": "Run every method that has a regularizer once with each of these lambdas, each >= 0."},
    )

    def check(self) -> None:
        """Refuse unknown methods, duplicates, and lambdas that no run would use."""
        # Methods that are not listed may have a lambda, so that --methods can narrow the list of a file.
        if unknown := sorted({*self.methods, *(self.lambdas or {})} - METHOD_PRESETS.keys()):
            raise DataError(f"methods, lambdas: expected any of {', '.join(METHOD_PRESETS)}, got {', '.join(unknown)}")
        for name, value in (self.lambdas or {}).items():
            if METHOD_PRESETS[name][0] not in REGULARIZED or (value != AUTO and not accepts(NonNegative, value)):
                raise DataError(f"lambdas: expected numbers >= 0 for methods with a lambda, got {value!r} for {name}")
        if self.lambdas and self.lambda_sweep:
            raise DataError("lambdas and lambda_sweep: expected one of them, got both")
        require_distinct("methods", self.methods)
        require_distinct("seeds", self.seeds)
        if self.lambda_sweep:
            require_distinct("lambda_sweep", [f"{value:g}" for value in self.lambda_sweep])  # as in file names

    def check_with(self, others: Sequence[Any], given: Collection[str], options: Collection[str] = ()) -> None:
        """Refuse settings of a recipe that its runs would ignore, and methods that it cannot run.

        Example:
            >>> ComparisonConfig(["erm"]).check_with([DAIRConfig("out", seed=7)], {"seed"})
            Traceback (most recent call last):
            dair_hf.errors.DataError: seed has no effect, because seeds decides; set --seeds instead
        """
        ignored = {}
        for args in others:
            if not isinstance(args, DAIRConfig):
                continue
            for name, listed in _SET_BY_RUNS.items():
                default = DAIRConfig.__dataclass_fields__[name].default
                if name in options or (name in given and getattr(args, name) != default):
                    ignored[name] = listed
            if args.max_steps > 0 and "num_train_epochs" in options and "max_steps" not in options:
                ignored["num_train_epochs"] = "max_steps"
        if "lambdas" in options and set(self.lambdas or {}).difference(self.methods):
            ignored["lambdas"] = "methods"
        if "dair_lambda" in options and self.regularized:
            if self.lambda_sweep:
                ignored["dair_lambda"] = "lambda_sweep"
            elif not set(self.regularized).difference(self.lambdas or {}):
                ignored["dair_lambda"] = "lambdas"
        for name, other in ignored.items():
            raise DataError(f"{name} has no effect, because {other} decides; set --{other} instead")
        provided = {name for settings in others for name in getattr(settings, "provided_methods", ())}
        for name in self.methods:
            if name in _REQUIREMENTS and name not in provided:
                raise DataError(f"methods: {name} needs {_REQUIREMENTS[name]}, which this recipe lacks")

    @property
    def regularized(self) -> list[str]:
        """Methods of the comparison that have a lambda."""
        return [name for name in self.methods if METHOD_PRESETS[name][0] in REGULARIZED]


def require_distinct(name: str, values: Sequence[Any]) -> None:
    """Refuse a list of settings that is empty or contains an entry twice: runs would replace each other's records."""
    if not values or len(set(values)) < len(values):
        raise DataError(f"{name}={values}: expected at least one entry, and each once")


def lambda_note(config: ComparisonConfig, args: DAIRConfig) -> str:
    """Return a line that states the lambda of each method and its unit, for the notes of a table.

    Example:
        >>> lambda_note(ComparisonConfig(lambdas={"kl": 1.0}), DAIRConfig("out", dair_lambda=2))
        'lambda 2, 1 for kl (per pair: objective = sum of f / rows)'
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
        DataError: `args` resume from one checkpoint, or their regularizer is a function: both belong to a single run.
    """
    for seed in config.seeds:
        for name in config.methods:
            sweep = config.lambda_sweep if name in config.regularized else None
            for value in sweep or [(config.lambdas or {}).get(name, args.dair_lambda)]:
                label = f"{name}_lambda{value:g}" if sweep else name
                yield run_of(args, name, label, seed, dair_lambda=value)


def run_of(args: DAIRConfig, name: str, label: str, seed: int, **changes: Any) -> Run:
    """Return the run of a method with some settings, in the folder `runs/LABEL_seedSEED`; see `runs_of`."""
    if args.resume_from_checkpoint is not None or not isinstance(args.regularizer, str):
        raise DataError(
            f"resume_from_checkpoint={args.resume_from_checkpoint}, regularizer={args.regularizer!r}: expected None "
            "and a name, because each run of a comparison has its own"
        )
    method, regularizer = METHOD_PRESETS[name]
    folder = Path(args.output_dir) / "runs" / f"{label}_seed{seed}"
    fields = {"method": method, "regularizer": regularizer, "seed": seed, **changes, "output_dir": str(folder)}
    return Run(label, seed, with_settings(args, **fields))


def claim_output_folder(args: Any) -> Path:
    """Claim and return `args.output_dir`, the output folder of a recipe; see `dair_hf.io.files.claim_folder`."""
    require_matplotlib()  # before data is prepared
    if PartialState().is_main_process:
        claim_folder(args.output_dir)
    return Path(args.output_dir)


def execute_runs(
    runs: Sequence[Run],
    execute: Callable[[Run], Result],
    folder: Path,
    config: Mapping[str, Any],
    data: Mapping[str, str],
    announces: bool = True,
) -> list[dict[str, Any]]:
    """Execute the runs that have not finished, write one JSON for each, and return all records; see `compare`."""
    require_matplotlib()
    git_revision()  # cached now, because the checkout may change while the runs execute
    if PartialState().is_main_process:
        claim_folder(folder)
    data = with_models(data, config)  # read once, since the files may change while the runs execute
    finished = finished_records(folder, runs, config, data)  # refuses conflicting runs before the first one starts
    if PartialState().is_main_process and (kept := [name for name, record in finished.items() if record is not None]):
        print(textwrap.fill(f"{folder}: finished earlier, not repeated: {', '.join(kept)}", 80))
    records = []
    for run in _announced(runs, finished) if announces else runs:
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
    return records


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
    started = time.perf_counter()
    records = execute_runs(runs, execute, folder, config, data)
    if not PartialState().is_main_process:
        return ""
    table = write_comparison(folder, title, records, columns, notes)
    width = shutil.get_terminal_size().columns
    print("\n".join(["", *_in_columns(table), "", *(textwrap.fill(note, width) for note in notes), ""]))
    if (paired := write_paired(folder, records)) and len({record["seed"] for record in records}) > 1:
        print(f"{paired}\n")  # of one seed there are no intervals
    duration = timedelta(seconds=round(time.perf_counter() - started))
    print(f"Written to {folder} in {duration}: comparison.md, .json, .png, one JSON a run.")
    return table


def _in_columns(table: str) -> list[str]:
    """Return a Markdown table as columns that are as narrow as their cells, below titles of two lines."""
    titles, _, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table.splitlines()]
    heads = zip(*(title.rpartition(" ")[::2] for title in titles), strict=True)
    return align([*filter(any, heads), *rows])


def _announced(runs: Sequence[Run], finished: Mapping[str, Any]) -> Iterator[Run]:
    """Yield the runs; print the number of each that starts, and the time left by the mean of those before."""
    started, names = time.perf_counter(), [run.name for run in runs if finished[run.name] is None]
    for run in runs:
        if run.name in names and PartialState().is_main_process:
            number = names.index(run.name)
            seconds = (time.perf_counter() - started) / max(1, number) * (len(names) - number)
            left = f", about {math.ceil(seconds / 60)} min left" if number else ""
            print(f"run {number + 1} of {len(names)}: {run.name}{left}", flush=True)
        yield run


def _prepare_run_folder(folder: Path, settings: str) -> None:
    """Note the settings in a run's folder; rename an unfinished run with other settings, so that it is not resumed."""
    claim_folder(folder)
    note = folder / SETTINGS_NOTE
    previous = note.read_text(encoding="utf-8").strip() if note.exists() else settings
    if previous != settings:
        names = (f"{folder.name}_of_{previous}{end}" for end in ("", *(f"_{number}" for number in range(2, 1000))))
        folder.rename(next(renamed for name in names if not (renamed := folder.with_name(name)).exists()))
    write_text(note, settings + "\n")


def train_evaluate_save(
    trainer: DAIRTrainer, evaluate: Callable[[DAIRTrainer], Mapping[str, Any]], **card: Any
) -> Result:
    """Execute a run: train, resuming from the last checkpoint, evaluate, and save the model and its card.

    Args:
        trainer: Trainer of the run; saves to its `args.output_dir`.
        evaluate: Returns the metrics of the trainer.
        **card: Arguments of `DAIRTrainer.create_model_card`.

    Returns:
        The metrics, and the seconds of training and evaluation.
    """
    start = time.perf_counter()
    train_resumable(trainer)
    trained = time.perf_counter()
    metrics = evaluate(trainer)
    seconds = {"training": trained - start, "evaluation": time.perf_counter() - trained}
    trainer.save_model()
    trainer.save_state()
    trainer.create_model_card(**card)
    return Result(metrics, seconds)


def with_settings(args: DAIRConfig, **changes: Any) -> DAIRConfig:
    """Return a validated copy of `args` with some fields changed.

    Example:
        >>> with_settings(DAIRConfig("out"), dair_lambda=2.0).dair_lambda
        2.0
    """
    # A deep copy, because a trainer modifies its arguments in place.
    fields = {f.name: copy.deepcopy(getattr(args, f.name)) for f in dataclasses.fields(args) if f.init}
    return type(args)(**{**fields, **changes})
