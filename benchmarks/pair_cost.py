"""Time of a DAIR step and a DAIR epoch on MultiWOZ 2.1, relative to plain training.

    python benchmarks/pair_cost.py --data_dir path/to/multiwoz21 [--model_settings JSON] [--rounds 7]

Ratios of medians of interleaved runs, all with the same model and optimizer:

- `step`: DAIRTrainer on 16 pairs a step, relative to Seq2SeqTrainer on the same 32 rows a step;
- `epoch`: a DAIR epoch (partners for turns whose state changes), relative to an ERM epoch over the same turns, both in
  batches of similar length;
- `plain epoch`: that DAIR epoch, relative to an ERM epoch of Seq2SeqTrainer in its random batches;
- `two rows`: that DAIR epoch, relative to two rows for every turn, in batches of similar length; an unchanged turn is
  its own partner;
- `authors' scheme`: that DAIR epoch, relative to two rows for every turn in random batches and two forwards a step, as
  in the authors' released code.

For `epoch` and `two rows` the table also shows the ratio of source tokens. It is above the ratio of rows, because names
occur in the longer histories.

About fifteen minutes on one core. Writes results/benchmarks/pair_cost.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import datasets
from measuring import benchmark_parser, conclude, interleaved, ratio
from transformers import DataCollatorForSeq2Seq, PreTrainedTokenizerBase, Seq2SeqTrainer, Seq2SeqTrainingArguments
from workloads import COLUMNS, MODEL, add_data_options, encoded_pairs, flat_rows, quiet_settings, small_model

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status

BY_LENGTH = {"pair_group_by_length": True}
IN_ORDER = {"train_sampling_strategy": "sequential"}
# Name of the measure -> numerator and denominator.
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
    """Run the benchmark."""
    options = _options()
    pairs, tokenizer = encoded_pairs(options.data_dir, "val", options.dialogs)
    variants = _variants(pairs, tokenizer, json.loads(options.model_settings))
    needed = {variant for name in options.ratios for variant in RATIOS[name]}
    seconds = interleaved({name: run for name, run in variants.items() if name in needed}, options.rounds)
    original, augmented = (sum(len(ids or ()) for ids in pairs[view + "input_ids"]) for view in ("", "augmented_"))
    tokens = {"epoch": 1 + augmented / original, "two rows": (1 + augmented / original) / 2}
    share = sum(value is not None for value in pairs["augmented_input_ids"]) / len(pairs)
    conclude(
        "pair_cost",
        f"Cost of pairs, MultiWOZ 2.1 ({share:.0%} of the turns have one)",
        [
            ratio(
                name,
                seconds,
                *RATIOS[name],
                target=TARGETS.get(name),
                arithmetic=f"{tokens[name]:.3f} by tokens" if name in tokens else "",
            )
            for name in options.ratios
        ],
        {"model": options.model_settings, "rounds": options.rounds, "turns": len(pairs), "partner_share": share},
        seconds,
        {"train": pairs._fingerprint},
        options.output,
    )


def _options() -> argparse.Namespace:
    parser = benchmark_parser(__doc__, rounds=7)
    add_data_options(parser, dialogs=60)
    parser.add_argument("--ratios", nargs="+", default=list(RATIOS), choices=list(RATIOS), help="measures to run")
    parser.add_argument("--model_settings", default=json.dumps(MODEL), help="model from scratch, as JSON")
    return parser.parse_args()


def _variants(
    pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, settings: dict
) -> dict[str, Callable[[], object]]:
    collator = DataCollatorForSeq2Seq(tokenizer)
    paired = pairs.filter(lambda row: row["augmented_input_ids"] is not None)
    whole = paired.select(range(len(paired) // 16 * 16))
    doubled = pairs.map(_own_partner, batched=True)

    def dair(data: datasets.Dataset, method: str, order: dict = BY_LENGTH) -> Callable[[], object]:
        args = DAIRConfig(**quiet_settings(method=method, per_device_train_batch_size=16, **order))
        return DAIRTrainer(small_model(tokenizer, settings), args, collator, data, processing_class=tokenizer).train

    def plain(data: datasets.Dataset, rows: int, order: dict) -> Callable[[], object]:
        args = Seq2SeqTrainingArguments(**quiet_settings(per_device_train_batch_size=rows, **order))
        return Seq2SeqTrainer(small_model(tokenizer, settings), args, collator, data, processing_class=tokenizer).train

    return {
        "DAIR step": dair(whole, "dair", IN_ORDER),
        "plain step": plain(flat_rows(whole), 32, IN_ORDER),
        "DAIR epoch": dair(pairs, "dair"),
        "ERM epoch": dair(pairs, "erm"),
        "plain ERM epoch": plain(pairs.select_columns(list(COLUMNS)), 16, {}),
        "two-row epoch": dair(doubled, "dair"),
        "authors' epoch": dair(doubled, "dair", AS_RELEASED),
    }


def _own_partner(batch: dict) -> dict:
    """Return the partner columns, with unchanged turns as their own partners."""
    return {
        "augmented_" + name: [
            original if augmented is None else augmented
            for original, augmented in zip(batch[name], batch["augmented_" + name], strict=True)
        ]
        for name in COLUMNS
    }


if __name__ == "__main__":
    sys.exit(exit_status(main))
