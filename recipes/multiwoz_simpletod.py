"""Dialog state tracking with renamed entities: SimpleTOD-style models trained with ERM, DA-ERM, KL and DAIR.

Run (no data, no network, two cores, about ten minutes; writes outputs/demo):

    accelerate launch recipes/multiwoz_simpletod.py --config recipes/configs/demo.yaml

Other configurations, each with its expected outcome and hours in its header: `multiwoz21_small.yaml` (from scratch on
MultiWOZ 2.1), `multiwoz22_bart.yaml` (the paper's setting), `multiwoz22_gpt2_lora.yaml`. Any field of the YAML is a
command-line option too: `--methods erm dair --seeds 0 1 2 --dair_lambda 1`.

What happens: rows are read or generated; training rows get partners with scrambled names, test rows partners with names
that no training row holds; the pairs are audited; every method starts from the same weights; joint goal accuracy on
both views and CM come out as one table. Finished runs are kept as JSON and not repeated.
"""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from pathlib import Path

import rich
from accelerate import PartialState
from datasets import Dataset
from transformers import DataCollatorForSeq2Seq, PreTrainedModel, PreTrainedTokenizerBase, set_seed

from dair_hf import DAIRConfig, DAIRTrainer, EpochPairs
from dair_hf.arguments import parse_arguments
from dair_hf.augment.entities import EntityAugmenter, redraw
from dair_hf.commands import run_recipe
from dair_hf.comparison import (
    ComparisonConfig,
    Result,
    Run,
    common_base,
    compare,
    derive,
    fingerprint,
    lambda_note,
    output_folder,
    runs_of,
    save_all,
    train_on,
)
from dair_hf.dialog.audit import audit, names_of, newest_tokens
from dair_hf.dialog.data import DialogConfig, DialogData, load_dialogs, tokenizer_for
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.state import parse, state_from_row
from dair_hf.dialog.text import history_to_text
from dair_hf.files import write_json
from dair_hf.metrics.joint_goal import joint_goal_correct
from dair_hf.modeling import ModelConfig, load_model, load_tokenizer
from dair_hf.report import Column

COLUMNS = [
    Column("original_joint_goal_accuracy", "JGA known"),
    Column("augmented_joint_goal_accuracy", "JGA unseen"),
    Column("cm", "CM", ("cm_numerator", "cm_denominator")),
    Column("both_correct", "both right"),
    Column("cm_all_rows", "CM, all turns", ("cm_all_rows_numerator", "cm_all_rows_denominator")),
]
NOTE = (
    "CM and both right are over the turns in which a name changes. JGA unseen and CM, all turns, are over all turns, "
    "as in the paper: one in which none changes counts as two identical views."
)


def is_correct(predictions: list[str], references: list[list[dict]], preset: str) -> list[bool]:
    """The task's correctness: the generated belief text holds the whole state."""
    return joint_goal_correct([parse(p) for p in predictions], [state_from_row(r) for r in references], preset=preset)


def training_pairs(rows: Dataset, encoder: DialogEncoder, data: DialogConfig, args: DAIRConfig) -> Dataset | EpochPairs:
    """Encoded rows; with partners, drawn anew each epoch, where the method uses them."""
    encoded = rows.map(encoder, batched=True, desc="Tokenising")
    if not args.uses_partners:
        return encoded

    def draw(epoch: int) -> Dataset:
        pairs = redraw(encoded, training_names(data, args.seed), epoch if data.redraw_partners else 0)
        return pairs.map(encoder, batched=True, desc="Tokenising partners")

    return EpochPairs(draw)


def training_names(data: DialogConfig, seed: int) -> EntityAugmenter:
    """How the partners of training rows are renamed."""
    return EntityAugmenter(data.augmentation, seed=seed, places=data.places, covariant_only=data.covariant_only)


def test_pairs(dialogs: DialogData, data: DialogConfig) -> Dataset:
    """Test rows and the same rows with unseen names."""
    return redraw(dialogs.test, EntityAugmenter("swap", places=data.places, bank=dialogs.unseen_names))


def check_pairs(data: DialogConfig, dialogs: DialogData, tokenizer: PreTrainedTokenizerBase, folder: Path) -> None:
    """Print what is wrong with the pairs, if anything; refuse to go on where asked to be strict."""
    train, test = redraw(dialogs.train, training_names(data, 0)), test_pairs(dialogs, data)
    kept = newest_tokens(tokenizer, data.max_source_tokens, history_to_text)
    for name, report in (("train", audit(train, kept=kept)), ("test", audit(test, train=names_of(train), kept=kept))):
        if PartialState().is_main_process:
            rich.print(report.to_table(f"Audit of the {name} pairs"))
            write_json(folder / f"audit_{name}.json", report.to_dict())
        if data.strict_audit:
            report.raise_if_unsound()


def trainer_for(
    network: PreTrainedModel, args: DAIRConfig, rows: Dataset | EpochPairs, tokenizer: PreTrainedTokenizerBase
) -> DAIRTrainer:
    """The trainer, whose sample loss follows from the model."""
    return DAIRTrainer(network, args, DataCollatorForSeq2Seq(tokenizer), rows, processing_class=tokenizer)


def initial_weights(
    model: ModelConfig, tokenizer: PreTrainedTokenizerBase, dialogs: DialogData, data: DialogConfig, args: DAIRConfig
) -> ModelConfig:
    """Where every method of this seed starts: the model as given, or a common base trained on other dialogues."""
    if dialogs.pretrain is None:
        return model
    rows = dialogs.pretrain
    name = f"base_{fingerprint(model, data, rows._fingerprint, args.seed)}"
    folder = Path(args.output_dir).parent.parent / name
    base_args = derive(args, method="erm", output_dir=f"{folder}_training", **(data.pretrain or {}))

    def make_trainer() -> DAIRTrainer:
        # The base is trained whole; adapters come on top of it.
        network = load_model(replace(model, lora_rank=0), tokenizer, args.seed)
        encoded = rows.map(DialogEncoder.for_model(network, tokenizer, data), batched=True, desc="Tokenising base")
        return trainer_for(network, base_args, encoded, tokenizer)

    return replace(model, model_name_or_path=str(common_base(folder, make_trainer)), model_settings=None)


def train_and_evaluate(
    run: Run, model: ModelConfig, tokenizer: PreTrainedTokenizerBase, dialogs: DialogData, data: DialogConfig
) -> Result:
    """One run: train, evaluate both views, save model, card and predictions."""
    set_seed(run.seed)
    network = load_model(initial_weights(model, tokenizer, dialogs, data, run.args), tokenizer, run.seed)
    encoder = DialogEncoder.for_model(network, tokenizer, data)
    trainer = trainer_for(network, run.args, training_pairs(dialogs.train, encoder, data, run.args), tokenizer)
    start = time.perf_counter()
    train_on(trainer)
    trained = time.perf_counter()
    metrics = trainer.evaluate_pairs(
        test_pairs(dialogs, data).map(encoder, batched=True, desc="Tokenising test"),
        functools.partial(is_correct, preset=data.preset),
        references="state",
        accuracy_name="joint_goal_accuracy",
        preset=data.preset,
        data_name=dialogs.name,
        predictions_file=Path(run.args.output_dir) / "predictions.jsonl",
    )
    seconds = {"training": trained - start, "evaluation": time.perf_counter() - trained}
    save_all(trainer, dataset=dialogs.name)
    return Result(metrics, seconds)


def main() -> None:
    """Train all runs that are not finished and print the table."""
    data, model, comparison, args = parse_arguments([DialogConfig, ModelConfig, ComparisonConfig, DAIRConfig])
    folder = output_folder(args)
    is_correct([], [], data.preset)  # an unknown preset is refused now and not after hours of training
    dialogs = load_dialogs(data)
    base_rows = [dialogs.train] if dialogs.pretrain is None else [dialogs.train, dialogs.pretrain]
    tokenizer = load_tokenizer(model) if model.model_name_or_path else tokenizer_for(base_rows, data)
    check_pairs(data, dialogs, tokenizer, folder)
    compare(
        list(runs_of(comparison, args)),
        lambda run: train_and_evaluate(run, model, tokenizer, dialogs, data),
        folder,
        f"Known and unseen names, {dialogs.name}",
        COLUMNS,
        {"data": data, "model": model},
        {"train": dialogs.train._fingerprint, "test": dialogs.test._fingerprint},
        [f"Joint goal accuracy preset `{data.preset}`; {lambda_note(comparison, args)}.", NOTE],
    )


if __name__ == "__main__":
    run_recipe(main)
