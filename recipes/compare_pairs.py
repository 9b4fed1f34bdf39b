# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[text]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Does training on pairs pay, and with which method? Any text model on one file of pairs: ERM, DA, KL and DAIR.

Command (`dair-hf compare MODEL pairs.jsonl` is short for it):

    accelerate launch recipes/compare_pairs.py --config recipes/configs/compare_pairs.yaml \
        --model_name_or_path MODEL --pairs pairs.jsonl

MODEL is an id on the Hub or a folder. With `text` and `label` it becomes a classifier with a new output layer; with
`prompt` and `completion`, `messages`, or `source` and `target` it answers in text. `--use_peft true` trains adapters.

Steps: hold out a dev part and a test part, by groups; train every method from the same weights for equally many steps,
and keep the epoch with the most dev pairs right in both views; with the first seed try two partner weights of each
method with pairs, and choose by the same metric (DAIR sets its lambda itself); write a table, the differences with
intervals paired over test rows and seeds, and the best model on dev. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

import itertools
import logging
import math
import os
import shutil
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import transformers
from accelerate import PartialState
from datasets import Dataset
from transformers import AutoConfig, PreTrainedTokenizerBase, PrinterCallback, set_seed

from dair_hf import DAIRConfig, DAIRTrainer, PairEvaluator
from dair_hf.data.texts.forms import LABEL
from dair_hf.data.view_columns import columns_of_views
from dair_hf.errors import DataError
from dair_hf.evaluation.answers import same_classes, same_texts
from dair_hf.evaluation.views import views_of
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    train_evaluate_save,
    with_settings,
)
from dair_hf.experiments.run_records import SETTINGS_NOTE, fingerprint
from dair_hf.experiments.trials import DEV_METRIC, report_trials, run_trials, trial_runs
from dair_hf.io.commands import run_recipe
from dair_hf.io.files import LOCK, atomic_folder, atomic_path, read_json, require_output_folder
from dair_hf.io.processes import on_first_rank
from dair_hf.modeling import ModelConfig, load_model, load_pretrained, load_text_classifier, load_tokenizer
from dair_hf.text.pair_files import GROUP, PairFileConfig, load_parts

STATE = "trainer_state.json"
EPOCHS = 2, 10
ROWS_PER_RUN = {"cpu": 500, "gpu": 5000}  # to train on, counted in every epoch
MAX_TOKENS = {"cpu": 48, "gpu": 512}  # of classifiers
MAX_TOKENS_OF_TEXT = 512  # of prompt and answer


def train_and_evaluate(
    run: Run,
    total: int,
    current: Collection[str],
    model: ModelConfig,
    tokenizer: PreTrainedTokenizerBase,
    parts: Mapping[str, Dataset],
    classes: Sequence[str],
) -> Result:
    """Train and evaluate one run; keep its model if it is the best on dev of the `current` runs so far."""
    set_seed(run.seed)
    built = load_text_classifier(model, tokenizer, classes, run.seed) if classes else None
    trainer = DAIRTrainer(
        built or load_model(model, tokenizer, run.seed),
        run.args,
        train_dataset=parts["train"],
        eval_dataset=parts["dev"],
        processing_class=tokenizer,
        evaluator=PairEvaluator(same_classes if classes else same_texts, clusters=GROUP),
    )
    if run.args.disable_tqdm:
        trainer.remove_callback(PrinterCallback)

    def evaluate(trained: DAIRTrainer) -> dict[str, Any]:
        metrics = trained.evaluate_pairs(parts["test"], predictions_file=run.predictions_file, data_name="test pairs")
        return {**metrics, DEV_METRIC: trained.state.best_metric, "steps": trained.state.global_step}

    result = train_evaluate_save(trainer, evaluate, dataset="pairs")
    folder = Path(run.args.output_dir).parents[1]
    finished = [folder / f"{name}.json" for name in current]
    on_first_rank(partial(keep_if_best, Path(run.args.output_dir), folder / "best_model", finished))
    if trainer.is_world_process_zero():
        print_progress(run, result, [path for path in finished if path.exists()], total)
    return result


def keep_if_best(folder: Path, best: Path, finished: Sequence[Path]) -> None:
    """Copy the model of a run to `best` unless that of a finished run there is as good; delete the run's weights."""
    records = [read_json(path) for path in finished if path.exists()]
    kept = run_of(best, records)
    if kept is None or read_json(folder / STATE)["best_metric"] > kept["metrics"][DEV_METRIC]:
        with atomic_folder(best, overwrite=True) as scratch:
            shutil.copytree(folder, scratch, ignore=shutil.ignore_patterns("checkpoint-*"), dirs_exist_ok=True)
    for path in (*folder.glob("checkpoint-*"), *folder.glob("*.safetensors")):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


def run_of(best: Path, records: Sequence[Mapping[str, Any]]) -> Mapping[str, Any] | None:
    """Return the record of the run whose model is in `best`, or None; the folder of a run names its settings."""
    note = best / SETTINGS_NOTE
    settings = note.read_text(encoding="utf-8").strip() if note.exists() else None
    return next((record for record in records if record["settings_fingerprint"] == settings), None)


def print_best(best: Path, records: Sequence[Mapping[str, Any]], limit: float) -> None:
    """Print the run of the best model, and how to evaluate it; say so if the model is missing."""
    first = max(records, key=lambda record: record["metrics"][DEV_METRIC])
    kept = run_of(best, records)
    if kept is None or kept["metrics"][DEV_METRIC] < first["metrics"][DEV_METRIC]:
        record = f"{best.parent}/{first['name']}.json"
        print(f"\n{best} lacks the model of the best run on dev; to train it again, move\n{record} away.")
        return
    print(f"\nThe best model on dev, of {kept['name']}, with tokenizer and card, is {best}:")
    print(f"    dair-hf evaluate {best} {best.parent}/test.jsonl --max-tokens {limit}")


def print_progress(run: Run, result: Result, finished: Sequence[Path], total: int) -> None:
    """Print time and dev metric of a run, and how long the others will take."""
    seconds = {path.stem: sum(read_json(path)["seconds"].values()) for path in finished}
    seconds[run.name] = sum(result.seconds.values())
    views = sum(1 if name.startswith("erm") else 2 for name in seconds)  # that are run
    left = total - len(seconds)
    minutes = math.ceil(2 * left * sum(seconds.values()) / views / 60)
    both = f"both right on dev {result.metrics[DEV_METRIC]:.2f}"
    print(f"{run.name:<20}{seconds[run.name]:6.0f} s  {both}  runs left: {left}, about {minutes} min", flush=True)


def describe(
    parts: Mapping[str, Dataset], classes: Sequence[str], tokenizer: PreTrainedTokenizerBase, args: DAIRConfig
) -> list[str]:
    """Return lines on the parts, on classes that no row teaches, on cut texts, and on the length of training."""
    train, dev, test = (len(parts[name]) for name in ("train", "dev", "test"))
    lines = [f"{train} rows to train on, {dev} to choose by (dev), {test} to test with."]
    columns = columns_of_views(LABEL, parts["train"].column_names).values()
    learned = {label for name in columns for label in parts["train"][name]}
    if absent := [name for name in classes if name not in learned]:
        lines.append(f"No row to train on has the class {', '.join(absent)}, which no model can learn; add rows of it.")
    limit, names = args.max_length or 0, {"text", "prompt", "source"}.intersection(parts["train"].column_names)
    texts = [text for name in names for text in parts["train"][name] if isinstance(text, str)]
    if cut := sum(len(ids) > limit for ids in tokenizer(texts, verbose=False).input_ids) if texts else 0:
        lines.append(
            f"{cut / len(texts):.0%} of the texts are cut at {limit} tokens; --max_length {2 * limit} reads more."
        )
    length = f"{args.max_steps} steps" if args.max_steps > 0 else f"{args.num_train_epochs:g} epochs"
    return [*lines, f"{length} a run, of which the best on dev is kept; --epochs trains longer."]


def main() -> None:
    """Train all unfinished runs, and print the table."""
    logging.getLogger("dair_hf").setLevel(logging.ERROR)  # what is worth a line here is in `describe`
    for library in (transformers, datasets):
        library.utils.logging.set_verbosity_error()
        library.utils.logging.disable_progress_bar()
    data, model, comparison, args = parse_arguments([PairFileConfig, ModelConfig, ComparisonConfig, DAIRConfig])
    folder = Path(args.output_dir)
    if folder.exists() and os.listdir(folder) and not (folder / LOCK).exists():
        raise DataError(f"{folder}: expected a new folder, or one of this command, got {os.listdir(folder)[0]!r} in it")
    claim_output_folder(args)
    require_output_folder(folder / "best_model", overwrite=True)
    (parts, classes), tokenizer = load_parts(data), load_tokenizer(model)
    device, (fewest, most) = "cpu" if args.device.type == "cpu" else "gpu", EPOCHS
    epochs = args.num_train_epochs or min(most, max(fewest, math.ceil(ROWS_PER_RUN[device] / len(parts["train"]))))
    name, revision = str(model.model_name_or_path), model.model_revision
    config = load_pretrained(AutoConfig, name, "model_name_or_path", model.trust_remote_code, revision=revision)
    positions = getattr(config.get_text_config(), "max_position_embeddings", math.inf)
    limit = args.max_length or min(MAX_TOKENS[device] if classes else MAX_TOKENS_OF_TEXT, positions)
    args = with_settings(args, num_train_epochs=epochs, max_length=limit)
    notes, is_main = describe(parts, classes, tokenizer, args), PartialState().is_main_process
    if is_main:
        print("\n".join(notes), flush=True)
    names = itertools.product(comparison.methods, comparison.seeds)
    share = views_of(parts["train"]).has_partner.mean()
    current = {run.name for method, seed in names for run in trial_runs(comparison, method, args, seed, share)}
    records, labels = run_trials(
        comparison,
        args,
        partial(train_and_evaluate, current=current, model=model, tokenizer=tokenizer, parts=parts, classes=classes),
        {"data": data, "model": model},
        {part: fingerprint(rows.to_dict()) for part, rows in parts.items()},
        share,
    )
    if is_main:
        with atomic_path(folder / "test.jsonl") as scratch:
            parts["test"].to_json(scratch)
        print("\n" + report_trials(folder, f"Pairs of {Path(data.pairs).name}", records, labels, notes))
        print_best(folder / "best_model", records, limit)


if __name__ == "__main__":
    run_recipe(main)
