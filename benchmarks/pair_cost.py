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

About fifteen minutes on one core. Writes results/benchmarks/pair_cost.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path

import datasets
from dialogs import COLUMNS, MODEL, add_data_options, encoded_pairs, flat_rows, quiet_settings, small_model
from outcome import conclude, measured
from timing import interleaved, ratio
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase, Seq2SeqTrainer, Seq2SeqTrainingArguments

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status

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
TARGETS = {"step": 1.02, "epoch": 1.5, "two rows": 0.75, "authors' scheme": 0.65}
AS_RELEASED = {"forward_mode": "separate"}


def main() -> None:
    """Measure, print the table, write the JSON."""
    options = _options()
    pairs, tokenizer = encoded_pairs(options.data_dir, "val", options.dialogs)
    variants = _variants(pairs, tokenizer, json.loads(options.model_settings))
    asked = {name: RATIOS[name] for name in options.ratios}
    needed = {variant for both in asked.values() for variant in both}
    seconds = interleaved({name: run for name, run in variants.items() if name in needed}, options.rounds)
    original, augmented = (sum(len(ids or ()) for ids in pairs[view + "input_ids"]) for view in ("", "augmented_"))
    tokens = {"epoch": 1 + augmented / original, "two rows": (1 + augmented / original) / 2}
    share = sum(value is not None for value in pairs["augmented_input_ids"]) / len(pairs)
    conclude(
        "pair_cost",
        f"Cost of pairs, MultiWOZ 2.1 ({share:.0%} of the turns have one)",
        [
            measured(
                name,
                ratio(seconds, *both),
                target=TARGETS.get(name),
                arithmetic=f"{tokens[name]:.3f} by tokens" if name in tokens else "",
            )
            for name, both in asked.items()
        ],
        {"model": options.model_settings, "rounds": options.rounds, "turns": len(pairs), "partner_share": share},
        seconds,
        {"train": pairs._fingerprint},
        options.output,
    )


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, dialogs=60)
    parser.add_argument("--rounds", type=int, default=7, help="rounds that count")
    parser.add_argument("--ratios", nargs="+", default=list(RATIOS), choices=list(RATIOS), help="which are measured")
    parser.add_argument("--model_settings", default=json.dumps(MODEL), help="model from scratch, as JSON")
    parser.add_argument("--output", type=Path, help="where to write instead")
    return parser.parse_args()


def _variants(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, settings: dict
) -> dict[str, Callable[[], object]]:
    collator = DataCollatorForSeq2Seq(tokenizer)
    paired = pairs.filter(lambda row: row["augmented_input_ids"] is not None)
    whole = paired.select(range(len(paired) // 16 * 16))
    doubled = pairs.map(_own_partner, batched=True)

    def dair(data: datasets.Dataset, method: str, order: dict = BUCKETED) -> Callable[[], object]:
        args = DAIRConfig(method=method, per_device_train_batch_size=16, **order, **quiet_settings())
        return DAIRTrainer(small_model(tokenizer, settings), args, collator, data, processing_class=tokenizer).train

    def plain(data: datasets.Dataset, rows: int, order: dict) -> Callable[[], object]:
        args = Seq2SeqTrainingArguments(per_device_train_batch_size=rows, **order, **quiet_settings())
        return Seq2SeqTrainer(small_model(tokenizer, settings), args, collator, data, processing_class=tokenizer).train

    return {
        "DAIR step": dair(whole, "dair", AS_IT_COMES),
        "plain step": plain(flat_rows(whole), 32, AS_IT_COMES),
        "DAIR epoch": dair(pairs, "dair"),
        "ERM epoch": dair(pairs, "erm"),
        "plain ERM epoch": plain(pairs.select_columns(list(COLUMNS)), 16, {}),
        "two-row epoch": dair(doubled, "dair"),
        "authors' epoch": dair(doubled, "dair", AS_RELEASED),
    }


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
    sys.exit(exit_status(main))
