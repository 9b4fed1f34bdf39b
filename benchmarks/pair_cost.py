"""What pairs cost: a DAIR step and a DAIR epoch against plain training, on MultiWOZ 2.1.

    python benchmarks/pair_cost.py --data_dir path/to/multiwoz21 [--model_settings JSON] [--rounds 7]

Ratios of medians from interleaved runs, all with one model and the same optimizer:

- `step`: DAIRTrainer on 16 pairs a step against Seq2SeqTrainer on the same 32 rows a step;
- `epoch`: a DAIR epoch over the turns (partners where the state changed) against an ERM epoch over the same turns, both
  in batches of similar length;
- `plain epoch`: that DAIR epoch against an ERM epoch of Seq2SeqTrainer, in random batches as it makes them;
- `two rows`: that DAIR epoch against always running two rows a turn, an unchanged turn as its own partner, in batches
  of similar length as well;
- `authors' scheme`: that DAIR epoch against two rows for every turn in random batches and two forwards a step, as the
  authors' released code runs it.

Beside `epoch` and `two rows` stands what the arithmetic asks for: the ratio of the source tokens, which is above that
of the rows because names stand in the longer histories.

About fifteen minutes on one core. Writes results/pair_cost.json.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import datasets
import rich
import torch
from rich.table import Table
from timing import interleaved, ratio
from transformers import (
    AutoConfig,
    AutoModelForSeq2SeqLM,
    DataCollatorForSeq2Seq,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from dair_hf import DAIRConfig, DAIRTrainer, DataError
from dair_hf.augment.entities import EntityAugmenter, redraw
from dair_hf.dialog.data import DialogConfig, tokenizer_for
from dair_hf.dialog.encoding import DialogEncoder
from dair_hf.dialog.multiwoz import read_multiwoz
from dair_hf.files import write_json
from dair_hf.report import run_record

MODEL = {"model_type": "t5", "d_model": 128, "d_ff": 512, "d_kv": 32, "num_heads": 4, "num_layers": 3}
COLUMNS = ("input_ids", "attention_mask", "labels")
BUCKETED = {"pair_group_by_length": True}
AS_IT_COMES = {"train_sampling_strategy": "sequential"}
# Name -> the two variants whose ratio it is.
RATIOS = {
    "step": ("DAIR step", "plain step"),
    "epoch": ("DAIR epoch", "ERM epoch"),
    "plain epoch": ("DAIR epoch", "plain ERM epoch"),
    "two rows": ("DAIR epoch", "two-row epoch"),
    "authors' scheme": ("DAIR epoch", "authors' epoch"),
}
TARGETS = {"step": 1.02, "epoch": 1.5, "two rows": 0.75}
AS_RELEASED = {"forward_mode": "separate"}


def main() -> None:
    """Measure, print the table, write the JSON."""
    options = _options()
    rows, _ = read_multiwoz(options.data_dir, "val")
    dialogues = list(dict.fromkeys(rows["dialogue_id"][:]))
    spread = set(dialogues[:: max(len(dialogues) // options.dialogs, 1)][: options.dialogs])
    rows = rows.select([index for index, name in enumerate(rows["dialogue_id"][:]) if name in spread])
    tokenizer = tokenizer_for([rows], DialogConfig())
    encoder = DialogEncoder(tokenizer, 256, 128)
    pairs = redraw(rows.map(encoder, batched=True), EntityAugmenter("scramble", covariant_only=True)).map(
        encoder, batched=True
    )
    variants = _variants(pairs, tokenizer, json.loads(options.model_settings))
    asked = {name: RATIOS[name] for name in options.ratios}
    needed = {variant for both in asked.values() for variant in both}
    seconds = interleaved({name: run for name, run in variants.items() if name in needed}, options.rounds)
    found = {name: ratio(seconds, *both) for name, both in asked.items()}
    original, augmented = (sum(len(ids or ()) for ids in pairs[view + "input_ids"]) for view in ("", "augmented_"))
    tokens = {"epoch": 1 + augmented / original, "two rows": (1 + augmented / original) / 2}
    share = sum(value is not None for value in pairs["augmented_input_ids"]) / len(pairs)
    table = Table(
        "ratio",
        "median",
        "quartiles",
        "by tokens",
        "target",
        title=f"Cost of pairs ({share:.0%} of the turns have one)",
    )
    for name, value in found.items():
        quartiles = f"{value['quartile_low']:.3f} to {value['quartile_high']:.3f}"
        arithmetic = f"{tokens[name]:.3f}" if name in tokens else ""
        target = f"at most {TARGETS[name]}" if name in TARGETS else ""
        table.add_row(name, f"{value['ratio']:.3f}", quartiles, arithmetic, target)
    rich.print(table)
    record = run_record(
        "pair_cost",
        "benchmark",
        0,
        {"model": options.model_settings, "rounds": options.rounds, "turns": len(pairs), "partner_share": share},
        {"ratios": found, "by_tokens": tokens, "targets": TARGETS, "seconds": seconds},
        {},
        {"train": pairs._fingerprint},
        "",
    )
    rich.print(f"Written to {write_json(options.output, record)}")


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data_dir", required=True, help="MultiWOZ 2.1: folder or archive")
    parser.add_argument("--dialogs", type=int, default=60, help="dialogues an epoch runs over")
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    parser.add_argument("--ratios", nargs="+", default=list(RATIOS), choices=list(RATIOS), help="which are measured")
    parser.add_argument("--model_settings", default=json.dumps(MODEL), help="model from scratch, as JSON")
    parser.add_argument("--output", type=Path, default=Path("results/pair_cost.json"))
    return parser.parse_args()


def _variants(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, settings: dict
) -> dict[str, Callable[[], object]]:
    own = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    config = AutoConfig.for_model(**own, decoder_start_token_id=0, dropout_rate=0.0, **settings)
    collator = DataCollatorForSeq2Seq(tokenizer)
    paired = pairs.filter(lambda row: row["augmented_input_ids"] is not None)
    whole = paired.select(range(len(paired) // 16 * 16))
    doubled = pairs.map(_own_partner, batched=True)

    def model() -> torch.nn.Module:
        torch.manual_seed(0)
        return AutoModelForSeq2SeqLM.from_config(config)

    def dair(data: datasets.Dataset, method: str, order: dict = BUCKETED) -> Callable[[], object]:
        args = DAIRConfig(_scratch(), method=method, per_device_train_batch_size=16, **order, **_shared())
        return DAIRTrainer(model(), args, collator, data, processing_class=tokenizer).train

    def plain(data: datasets.Dataset, rows: int, order: dict) -> Callable[[], object]:
        args = Seq2SeqTrainingArguments(_scratch(), per_device_train_batch_size=rows, **order, **_shared())
        return Seq2SeqTrainer(model(), args, collator, data, processing_class=tokenizer).train

    return {
        "DAIR step": dair(whole, "dair", AS_IT_COMES),
        "plain step": plain(_flat(whole), 32, AS_IT_COMES),
        "DAIR epoch": dair(pairs, "dair"),
        "ERM epoch": dair(pairs, "erm"),
        "plain ERM epoch": plain(pairs.select_columns(list(COLUMNS)), 16, {}),
        "two-row epoch": dair(doubled, "dair"),
        "authors' epoch": dair(doubled, "dair", AS_RELEASED),
    }


def _shared() -> dict:
    return {
        "num_train_epochs": 1,
        "learning_rate": 1e-4,
        "report_to": "none",
        "save_strategy": "no",
        "logging_steps": 10_000,
        "disable_tqdm": True,
        "dataloader_pin_memory": False,
    }


def _scratch() -> str:
    return tempfile.mkdtemp(prefix="pair_cost_")


def _flat(pairs: datasets.Dataset) -> datasets.Dataset:
    """Both views of every pair as rows of their own, side by side."""
    columns = {
        name: [view for both in zip(pairs[name], pairs["augmented_" + name], strict=True) for view in both]
        for name in COLUMNS
    }
    return datasets.Dataset.from_dict(columns)


def _own_partner(batch: dict) -> dict:
    """An unchanged turn as its own partner."""
    return {
        "augmented_" + name: [
            original if augmented is None else augmented
            for original, augmented in zip(batch[name], batch["augmented_" + name], strict=True)
        ]
        for name in COLUMNS
    }


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"error: {error}")
