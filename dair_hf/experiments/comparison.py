"""Several methods from the same initial weights: which ones, with which lambda, and one JSON for each finished run."""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from accelerate import PartialState

from dair_hf.config import DAIRConfig
from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError
from dair_hf.experiments.report import Column, git_revision, run_record, write_comparison
from dair_hf.experiments.run_records import Run, earlier_records, fingerprint, finished_records, redo_changed
from dair_hf.io.files import full_disk_named, read_json, write_json, write_text
from dair_hf.io.folders import atomic_folder, claim_folder
from dair_hf.losses.objective import REGULARIZED
from dair_hf.training.trainer import DAIRTrainer

# What each name of a comparison means: (method, regularizer).
METHOD_PRESETS = {
    "erm": ("erm", "sq"),
    "da": ("da", "sq"),
    "kl": ("dair", "kl"),
    "js": ("dair", "js"),
    "dair": ("dair", "sq"),
    "dair_l1": ("dair", "l1"),
    # What adversarial training is compared with: partners only, and two with a term of their own.
    "pgd": ("augmented", "sq"),
    "trades": ("trades", "kl"),
    "mart": ("mart", "kl"),
    # Trained on an objective of the whole batch (`batch_objectives.EnvironmentConfig`).
    "irm": ("da", "sq"),
    "rex": ("da", "sq"),
    "dro": ("da", "sq"),
}


@dataclass
class ComparisonConfig:
    """Methods and seeds that a recipe trains, one run each.

    Raises:
        DataError: An unknown method, none, or one listed twice.

    Example:
        >>> [run.name for run in runs_of(ComparisonConfig(methods=["erm", "dair"]), DAIRConfig("out"))]
        ['erm_seed0', 'dair_seed0']
    """

    methods: list[str] = field(
        default_factory=lambda: ["erm", "da", "kl", "dair"],
        metadata={"help": f"Methods to compare, from the same initial weights: any of {', '.join(METHOD_PRESETS)}."},
    )
    lambdas: dict[str, float] | None = field(
        default=None,
        metadata={
            "help": "Lambda of single methods, such as {kl: 1.0}; the others take dair_lambda. Its unit follows "
            "`normalization`."
        },
    )
    seeds: list[int] = field(
        default_factory=lambda: [0],
        metadata={"help": "Seeds; each sets initial weights, order of the data, dropout and augmentation."},
    )
    lambda_sweep: list[float] | None = field(
        default=None,
        metadata={"help": "Run every method that has a regularizer once with each of these lambdas, each >= 0."},
    )

    def __post_init__(self) -> None:
        if unknown := sorted({*self.methods, *(self.lambdas or {})} - set(METHOD_PRESETS)):
            raise DataError(f"methods: unknown {', '.join(unknown)}; use {', '.join(METHOD_PRESETS)}")
        if not self.methods or not self.seeds:
            raise DataError("methods and seeds must each hold at least one entry")
        if self.lambdas and self.lambda_sweep:
            raise DataError("lambdas and lambda_sweep are both given; keep one of them")
        # A file is named after its lambda: two that read alike would be one run.
        sweep = [f"{value:g}" for value in self.lambda_sweep or []]
        for name, values in (("methods", self.methods), ("seeds", self.seeds), ("lambda_sweep", sweep)):
            if len(set(values)) < len(values):
                raise DataError(f"{name}={values} holds an entry twice; each run is made once, so list it once")
        require_seeds("seeds", self.seeds)


def lambda_note(config: ComparisonConfig, args: DAIRConfig) -> str:
    """The lambda of each method of a comparison and its unit, for a line below its table.

    Args:
        config: Methods, lambdas and the sweep.
        args: What all runs share.

    Example:
        >>> lambda_note(ComparisonConfig(lambda_sweep=[0.1, 1]), DAIRConfig("out"))
        'lambda 0.1 to 1, as each row says (per pair: objective = sum of f / rows)'
        >>> lambda_note(ComparisonConfig(lambdas={"kl": 1.0}), DAIRConfig("out", dair_lambda=2))
        'lambda 2, of kl 1 (per pair: objective = sum of f / rows)'
    """
    if config.lambda_sweep:
        weights = f"{min(config.lambda_sweep):g} to {max(config.lambda_sweep):g}, as each row says"
    else:
        own = [f"of {name} {weight:g}" for name, weight in (config.lambdas or {}).items() if name in config.methods]
        weights = ", ".join([f"{args.dair_lambda:g}", *own])
    return f"lambda {weights} ({args.lambda_unit})"


def runs_of(config: ComparisonConfig, args: DAIRConfig) -> Iterator[Run]:
    """The runs of a comparison, all methods of one seed after the other.

    Args:
        config: Methods, lambdas, seeds.
        args: What all runs share; `output_dir/runs/NAME` becomes the folder of each.

    Yields:
        One `Run` each.

    Raises:
        DataError: `args` name a checkpoint to resume.
    """
    if args.resume_from_checkpoint is not None:
        raise DataError(
            f"resume_from_checkpoint={args.resume_from_checkpoint} is for a single run; leave it out: each run of a "
            "comparison goes on from its own last checkpoint"
        )
    for seed in config.seeds:
        for name in config.methods:
            method, regularizer = METHOD_PRESETS[name]
            own = (config.lambdas or {}).get(name, args.dair_lambda)
            swept = config.lambda_sweep if method in REGULARIZED else None
            for weight in swept or [own]:
                label = f"{name}_lambda{weight:g}" if swept else name
                folder = Path(args.output_dir) / "runs" / f"{label}_seed{seed}"
                changes = {"method": method, "regularizer": regularizer, "dair_lambda": weight, "seed": seed}
                yield Run(label, seed, with_settings(args, **changes, output_dir=str(folder)))


class Result(NamedTuple):
    """What one run found.

    Attributes:
        metrics: Its figures.
        seconds: Wall time of its parts, in seconds.
    """

    metrics: Mapping[str, Any]
    seconds: Mapping[str, float]


def claim_output_folder(args: Any) -> Path:
    """Claim the output folder of a recipe, before anything is written to it.

    Args:
        args: Settings with an `output_dir`.

    Returns:
        The folder.

    Raises:
        DataError: It holds what is not a recipe's and would be replaced, another process works in it, or it cannot be
            written.
    """
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
    """Execute the runs that are not finished, keep one JSON each, write and print the table.

    The table also holds the finished runs of earlier calls in this folder whose settings differ in method, lambda and
    seed alone. Where the environment variable `DAIR_REDO_CHANGED` is set, a finished run of other settings is moved to
    `superseded/` and made anew, and the table holds the given runs alone.

    Args:
        runs: What to run, in the order of the table.
        execute: Trains and evaluates one run.
        folder: Where `NAME.json` of each run and `comparison.md`, `.json` and `.png` go.
        title: Heading of the table.
        columns: What it shows.
        config: Settings that the runs share.
        data: Fingerprint of each data set.
        notes: Lines below the table.

    Returns:
        The table, in Markdown; on other processes than the main one "".

    Raises:
        DataError: The folder holds a finished run of the same name and other settings; or it cannot be claimed.
    """
    git_revision()  # kept from here on: the checkout may move while the runs take their hours
    if PartialState().is_main_process:
        claim_folder(folder)
    finished = finished_records(folder, runs, config, data)  # before the first run takes its hours
    records = []
    for run in runs:
        record = finished[run.name]
        if record is None:
            settings = fingerprint(config, run.args, data)
            _take_run_folder(Path(run.args.output_dir), settings)
            # On a copy: a trainer settles parts of its arguments, which must not change what the run is known by.
            result = execute(run._replace(args=with_settings(run.args)))
            whole = {**config, "training": run.args}
            record = run_record(run.name, run.method, run.seed, whole, *result, data, settings)
            if PartialState().is_main_process:
                write_json(folder / f"{run.name}.json", record)
        records.append(record)
    if not PartialState().is_main_process:
        return ""
    if earlier := [] if redo_changed() else earlier_records(folder, runs, config, data):
        names = (f"{r['name']} (lambda {r['config']['training'].get('dair_lambda', '-')})" for r in earlier)
        notes = [*notes, f"From earlier calls: {', '.join(names)}."]
    table = write_comparison(folder, title, [*records, *earlier], columns, notes)
    print(f"\n{table}\n\nWritten to {folder}: comparison.md, .json, .png and one JSON a run.")
    return table


def _take_run_folder(folder: Path, settings: str) -> None:
    """Note in a run's folder which settings it belongs to; an unfinished run of other settings is moved aside.

    Else its checkpoints would be taken for those of a killed run and resumed, and nothing of the new settings trained.
    """
    state = PartialState()
    if state.is_main_process:
        claim_folder(folder)
        note = folder / "settings_fingerprint.txt"
        found = note.read_text(encoding="utf-8").strip() if note.exists() else settings
        if found != settings:
            names = (f"{folder.name}_of_{found}{end}" for end in ("", *(f"_{number}" for number in range(2, 1000))))
            folder.rename(next(aside for name in names if not (aside := folder.with_name(name)).exists()))
        write_text(note, settings + "\n")
    state.wait_for_everyone()


def train_evaluate_save(trainer: DAIRTrainer, evaluate: Callable[[DAIRTrainer], Mapping[str, Any]]) -> Result:
    """A run: train (from its last checkpoint, if it was killed), evaluate, save the model and its card.

    Args:
        trainer: Trains the run; it saves to its `args.output_dir`.
        evaluate: The trained trainer -> metrics.

    Returns:
        The metrics and the seconds of training and evaluation.
    """
    start = time.perf_counter()
    train_resumable(trainer)
    trained = time.perf_counter()
    metrics = evaluate(trainer)
    seconds = {"training": trained - start, "evaluation": time.perf_counter() - trained}
    save_run(trainer)
    return Result(metrics, seconds)


def save_run(trainer: DAIRTrainer, **card: Any) -> None:
    """Save the model, the trainer's state and the model card; where that fails, no new file of them is left.

    Args:
        trainer: Saves to its `args.output_dir`.
        **card: Arguments of `DAIRTrainer.create_model_card`.

    Raises:
        DataError: The disk is full.
    """
    with _removed_on_failure(trainer, Path.is_file):
        trainer.save_model()
        trainer.save_state()
        trainer.create_model_card(**card)


def train_resumable(trainer: DAIRTrainer) -> None:
    """Train from the last whole checkpoint of the trainer's folder, if a killed run left one, else from the start.

    Raises:
        DataError: The disk is full. The checkpoint that was being written is removed.
    """
    with _removed_on_failure(trainer, lambda path: path.name.startswith("checkpoint-") and _step_of(path) is None):
        trainer.train(resume_from_checkpoint=last_checkpoint(Path(trainer.args.output_dir)))


@contextlib.contextmanager
def _removed_on_failure(trainer: DAIRTrainer, unwanted: Callable[[Path], bool]) -> Iterator[None]:
    """Remove what the body leaves in the trainer's folder, as far as it is unwanted, where the body fails."""
    folder = Path(trainer.args.output_dir)
    before = set(folder.glob("*"))
    try:
        with full_disk_named(folder):
            yield
    except BaseException:
        for path in set(folder.glob("*")) - before if trainer.is_world_process_zero() else ():
            if unwanted(path):
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        raise


def last_checkpoint(folder: Path) -> str | None:
    """The newest whole checkpoint in `folder`; one that was being written when its run was killed is passed over.

    Args:
        folder: The run's output folder; it may be absent.

    Returns:
        Its path, or None.
    """
    steps = {step: path for path in folder.glob("checkpoint-*") if (step := _step_of(path)) is not None}
    return str(steps[max(steps)]) if steps else None


def _step_of(checkpoint: Path) -> int | None:
    """The step of a checkpoint; None where it is not whole."""
    try:
        # The Trainer writes this file last.
        return int(read_json(checkpoint / "trainer_state.json")["global_step"])
    except (DataError, KeyError, TypeError, ValueError):
        return None


def train_base_once(folder: Path, make_trainer: Callable[[], DAIRTrainer]) -> Path:
    """Weights from which several runs start: trained once, kept in `folder`, whole or absent.

    Args:
        folder: Where they are kept; its name should tell what they depend on (`fingerprint`).
        make_trainer: Makes the trainer where they are not there yet.

    Returns:
        `folder`.

    Raises:
        DataError: Another process trains the same weights.
    """
    if not folder.exists():
        trainer = make_trainer()
        if trainer.is_world_process_zero():
            claim_folder(trainer.args.output_dir)
        train_resumable(trainer)
        if trainer.is_world_process_zero():
            with atomic_folder(folder) as scratch:
                trainer.save_model(str(scratch))
        trainer.accelerator.wait_for_everyone()
    return folder


def with_settings(args: DAIRConfig, **changes: Any) -> DAIRConfig:
    """A copy of `args` with other values, validated again.

    Args:
        args: The arguments to start from.
        **changes: Fields and their new values.

    Returns:
        New arguments.

    Raises:
        DataError: A name that is no field of `args`, or a value that is refused.

    Example:
        >>> with_settings(DAIRConfig("out"), dair_lambda=2.0).dair_lambda
        2.0
    """
    # Copied deeply: a trainer settles parts of its arguments, which must not show in those of another run.
    fields = {f.name: copy.deepcopy(getattr(args, f.name)) for f in dataclasses.fields(args) if f.init}
    if unknown := sorted(set(changes) - set(fields)):
        raise DataError(f"{type(args).__name__} has no field {', '.join(unknown)}; see --help for the fields")
    try:
        return type(args)(**{**fields, **changes})
    except ValueError as error:
        raise DataError(str(error)) from error
