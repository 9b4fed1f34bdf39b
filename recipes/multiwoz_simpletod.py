# /// script
# requires-python = ">=3.11"
# dependencies = ["dair-hf[dialog]"]
# [tool.uv.sources]
# dair-hf = { path = "..", editable = true }
# ///
"""Dialog state tracking with renamed entities: SimpleTOD-style models trained with ERM, DA-ERM, KL and DAIR.

Command (no data, no network; four to eight minutes, by the core; writes outputs/demo):

    accelerate launch recipes/multiwoz_simpletod.py --config recipes/configs/demo.yaml

- `woz2.yaml` trains a small model from scratch on WOZ 2.0, in minutes.
- `multiwoz21_small.yaml` trains one on MultiWOZ 2.1.
- `multiwoz22_bart.yaml` is the paper's setting.
- `multiwoz22_gpt2_lora.yaml` and `multiwoz22_qwen_lora.yaml` train adapters of decoder-only models.
- `multiwoz21_causal.yaml`, `multiwoz21_smollm2.yaml` and `multiwoz22_qwen_lora.yaml` train with prefix trees.

The header of each configuration states the expected results, time and hardware. Every field of the YAML is also a
command-line option: `--methods erm dair --seeds 0 1 2 --dair_lambda 1`. `--data_dir` takes raw MultiWOZ, WOZ 2.0 or,
with `--source sgd`, SGD or SGD-X, or the folder written by `data_scripts/prepare_multiwoz.py`; `--sgd_dir` (for
MultiWOZ) takes raw SGD or the JSON file written by `data_scripts/prepare_sgd_entities.py`.

Steps: read or generate dialogues; give training rows partners with scrambled names (WOZ 2.0: food types), and test rows
partners with names that no training row has; audit the pairs; score the gold targets as predictions will be scored, and
stop if they score too low (unless `--allow_low_ceiling true`); train every method from the same weights; write joint
goal accuracy of both views and CM as a table. Finished runs are stored as JSON and not repeated.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import transformers
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, set_seed

from dair_hf import DAIRConfig, DAIRTrainer, EpochPairs
from dair_hf.dialog.audit.ceiling import Ceiling
from dair_hf.dialog.config import DialogConfig
from dair_hf.dialog.data import DialogData, load_dialogs
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.previous_state import with_predicted_states
from dair_hf.dialog.renaming.entities import EntityAugmenter
from dair_hf.dialog.task import (
    ACCURACY,
    base_pairs,
    base_settings,
    check_pairs,
    evaluation_pairs,
    state_evaluator,
    training_pairs,
)
from dair_hf.dialog.tokenizer import tokenizer_for
from dair_hf.experiments.arguments import parse_arguments
from dair_hf.experiments.checkpoints import base_fingerprint, train_base_once
from dair_hf.experiments.comparison import (
    ComparisonConfig,
    Result,
    Run,
    claim_output_folder,
    compare,
    lambda_note,
    runs_of,
    train_evaluate_save,
    with_settings,
)
from dair_hf.experiments.report import Column
from dair_hf.experiments.run_records import fingerprint, finished_records
from dair_hf.io.commands import run_recipe
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.modeling import ModelConfig, load_model, load_tokenizer

# {accuracy}: key of the accuracy by the rules of the preset.
COLUMNS = [
    Column("original_{accuracy}", "JGA known"),
    Column("augmented_{accuracy}", "JGA unseen"),
    Column("cm", "CM"),
    Column("cm_same_answer", "CM, same state", optional=True),
    Column("both_correct", "both right"),
    Column("cm_all_rows", "CM, all turns"),
    Column("gold_states_original_{accuracy}", "JGA known, gold states", optional=True),
    Column("gold_states_augmented_{accuracy}", "JGA unseen, gold states", optional=True),
    Column("attainable_original_{accuracy}", "JGA known, attainable", optional=True),
    Column("attainable_augmented_{accuracy}", "JGA unseen, attainable", optional=True),
    Column("attainable_cm", "CM, attainable", optional=True),
]
# Columns for test rows with two partners: unseen and misleading names.
MISLEADING_COLUMNS = [
    Column("original_{accuracy}", "JGA known"),
    Column("augmented_{accuracy}_partner_1", "JGA unseen"),
    Column("augmented_{accuracy}_partner_2", "JGA misleading"),
    Column("cm_partner_1", "CM unseen"),
    Column("cm_partner_2", "CM misleading"),
    Column("all_correct", "all right"),
]
MISLEADING_NOTE = (
    "JGA: share of right turns. Known: names of the training dialogues, in their area. Unseen: names that no training "
    "dialogue has, in turns with a name that changes. Misleading: known names in another area, in turns with an area "
    "and a name. CM: of the turns right with known names, the share that stays right. All right: right with all names. "
    "All figures"
)
NOTE = (
    "Both right: turns in which a name changes; CM: such turns whose state also changes. JGA unseen and CM, all "
    "turns: all turns, as in the paper; a turn without a changed name counts as two identical views. Attainable (shown "
    "if it is not all of them): turns whose target scores as correct and whose truncated input still contains, in both "
    "views, every value of the state that the dialogue mentions. CM and right pairs"
)


def trainer_for(
    network: PreTrainedModel, args: DAIRConfig, rows: Dataset | EpochPairs, encoder: DialogEncoder
) -> DAIRTrainer:
    """Return the trainer; it derives the sample loss from the model."""
    collator = DataCollatorForSeq2Seq(encoder.tokenizer)
    return DAIRTrainer(network, args, collator, rows, processing_class=encoder.tokenizer)


def initial_weights(
    model: ModelConfig, encoder: DialogEncoder, dialogs: DialogData, data: DialogConfig, args: DAIRConfig
) -> ModelConfig:
    """Return the model that every method of this seed starts from: as given, or pretrained on other dialogues."""
    if dialogs.pretrain is None:
        return model
    rows = dialogs.pretrain
    # Train all weights of the base; adapters are added later.
    base_args = with_settings(args, **{"method": "erm", "seed": args.seed, **(data.pretrain or {})})
    base = replace(model, use_peft=False)
    name = base_fingerprint(base_args, base, encoder.tokenizer, base_settings(rows, encoder, data, base_args))
    folder = Path(args.output_dir).parent.parent / f"base_{name}"
    base_args = with_settings(base_args, output_dir=f"{folder}_training")

    def make_trainer() -> DAIRTrainer:
        network = load_model(base, encoder.tokenizer, base_args.seed)
        return trainer_for(network, base_args, base_pairs(rows, encoder, data, base_args), encoder)

    return replace(model, model_name_or_path=str(train_base_once(folder, make_trainer)), model_settings=None)


def answers(trainer: DAIRTrainer, encoder: DialogEncoder, histories: list[Any]) -> list[str]:
    """Return the belief texts that the model generates for histories."""
    rows = Dataset.from_dict({"history": histories, "state": [[] for _ in histories]})
    ids = trainer.predict(rows.map(encoder, batched=True), max_new_tokens=encoder.max_target_tokens).predictions
    ids[ids == IGNORE_INDEX] = encoder.tokenizer.pad_token_id
    return encoder.tokenizer.batch_decode(ids, skip_special_tokens=True)


def train_and_evaluate(
    run: Run, model: ModelConfig, encoder: DialogEncoder, dialogs: DialogData, data: DialogConfig, ceiling: Ceiling
) -> Result:
    """Train and evaluate one run; save model, model card and predictions."""
    set_seed(run.seed)
    start_weights = initial_weights(model, encoder, dialogs, data, run.args)
    network = load_model(start_weights, encoder.tokenizer, run.seed)
    trainer = trainer_for(network, run.args, training_pairs(dialogs.train, encoder, data, run.args), encoder)

    subsets = {} if ceiling.attainable.all() else {"attainable": ceiling.attainable}

    def evaluate_on(trained: DAIRTrainer, pairs: Dataset, **settings: Any) -> dict[str, Any]:
        encoded = pairs.map(encoder, batched=True, desc="Tokenizing test")
        return trained.evaluate_pairs(encoded, state_evaluator(data.preset), subsets=subsets, **settings)

    def evaluate(trained: DAIRTrainer) -> dict[str, Any]:
        pairs = evaluation_pairs(dialogs, data)
        if data.previous_state:
            pairs = with_predicted_states(pairs, lambda histories: answers(trained, encoder, histories))
        metrics = evaluate_on(trained, pairs, data_name=dialogs.name, predictions_file=run.predictions_file)
        if data.previous_state and data.gold_states:
            found = evaluate_on(trained, evaluation_pairs(dialogs, data, gold_states=True), data_name=None)
            metrics |= {f"gold_states_{name}": value for name, value in found.items()}
        return metrics

    return train_evaluate_save(trainer, evaluate, dataset=dialogs.name)


def main() -> None:
    """Train all unfinished runs and write the table."""
    data, model, comparison, args = parse_arguments([DialogConfig, ModelConfig, ComparisonConfig, DAIRConfig])
    folder = claim_output_folder(args)
    if data.source == "demo":  # its data take seconds
        for library in (datasets, transformers):
            library.utils.logging.disable_progress_bar()
        print("In each log: mean loss, losses of originals (views) and partners, consistency R.", flush=True)
    dialogs = load_dialogs(data)
    base_rows = [dialogs.train] if dialogs.pretrain is None else [dialogs.train, dialogs.pretrain]
    tokenizer = load_tokenizer(model) if model.model_name_or_path else tokenizer_for(base_rows, data)
    encoder = DialogEncoder.for_model(load_model(replace(model, use_peft=False), tokenizer), tokenizer, data)
    evaluator = state_evaluator(data.preset)
    runs, settings = list(runs_of(comparison, args)), {"data": data, "model": model}
    files = {"train": dialogs.train._fingerprint, "test": dialogs.test._fingerprint}
    misleads = data.demo_areas
    files["renaming"] = f"revision {EntityAugmenter.revision}"
    files["names"] = fingerprint({kind: sorted(names) for kind, names in dialogs.unseen_names.items()})
    if dialogs.pretrain is not None:
        files["pretrain"] = dialogs.pretrain._fingerprint
    is_finished = None not in finished_records(folder, runs, settings, files).values()
    ceiling = None if is_finished else check_pairs(dialogs, data, encoder, folder)
    compare(
        runs,
        lambda run: train_and_evaluate(run, model, encoder, dialogs, data, ceiling),
        folder,
        f"Known, unseen and misleading names, {dialogs.name}"
        if misleads
        else f"Known and unseen names, {dialogs.name}",
        [
            # Accuracies of one partner number exist by the rules of pairs only.
            column._replace(key=column.key.format(accuracy=ACCURACY if misleads else evaluator.accuracy_key))
            for column in (MISLEADING_COLUMNS if misleads else COLUMNS)
        ],
        settings,
        files,
        [
            f"Joint goal accuracy preset `{data.preset}`; {lambda_note(comparison, args)}.",
            f"{MISLEADING_NOTE if misleads else NOTE}, which decide for each turn, are by `{evaluator.preset}`.",
        ],
    )


if __name__ == "__main__":
    run_recipe(main)
