"""Generating the test set for joint goal accuracy: `evaluate_pairs` against `Seq2SeqTrainer.predict`.

    python benchmarks/generation.py --data_dir path/to/multiwoz21 --model_dir path/to/tracker [--dialogs 60]

Both answer the same turns with the same trained tracker (a run of `multiwoz21_small.yaml`, say), batch size and limit
of length; the answers must be the same, token by token. `Seq2SeqTrainer` takes the rows in their order, each batch
until the longest answer in it has ended, and computes their losses besides. `DAIRTrainer` encodes as many rows at once
and then writes eight times as many answers, of rows that end together; what has ended leaves its batch, what runs on
is sorted anew. Without `--model_dir` a small model is trained for some steps first; its answers run on far more often
than those of a tracker.

- `rows a second`: `evaluate_pairs`, which computes no losses, against `Seq2SeqTrainer.predict`;
- `rows a second, answers alone`: `evaluate_pairs` against `generate` in a loop over the rows in their order;
- `rows a second, predict`: `DAIRTrainer.predict`, which computes losses as well, against `Seq2SeqTrainer.predict`;
- `rows a second, batches as wide`: `evaluate_pairs` against `Seq2SeqTrainer.predict` in batches as large as those that
  answers are written in.

About eight minutes on two cores. Writes results/benchmarks/generation.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import datasets
import numpy as np
import torch
from dialogs import COLUMNS, MODEL, add_data_options, encoded_pairs, quiet_settings, small_model
from outcome import Measure, conclude, measured
from timing import interleaved, ratio
from transformers import (
    AutoModelForSeq2SeqLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status

IGNORED = -100


def answers(predictions: Any, special: set[int]) -> list[list[int]]:
    """Generated ids without start, padding and end tokens."""
    return [[token for token in row if token not in special] for row in np.asarray(predictions).tolist()]


def right(predictions: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Correctness of whole answers."""
    return [prediction == reference for prediction, reference in zip(predictions, references, strict=True)]


def generate_in_order(
    model: PreTrainedModel, rows: datasets.Dataset, collator: DataCollatorForSeq2Seq, batch: int, limit: dict[str, int]
) -> None:
    """What one would write by hand: the rows in their order, answers and no losses."""
    for start in range(0, len(rows), batch):
        inputs = collator([dict(row) for row in rows.select(range(start, min(start + batch, len(rows))))])
        with torch.inference_mode():
            model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **limit)


def tracker(options: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """The model of a folder, or a small one trained for some steps."""
    if options.model_dir:
        return AutoModelForSeq2SeqLM.from_pretrained(options.model_dir), AutoTokenizer.from_pretrained(
            options.model_dir
        )
    train, tokenizer = encoded_pairs(options.data_dir, "val", 200)
    model = small_model(tokenizer, MODEL)
    learning = {**quiet_settings(), "learning_rate": 1e-3, "max_steps": options.train_steps}
    args = DAIRConfig(method="erm", per_device_train_batch_size=16, pair_group_by_length=True, **learning)
    DAIRTrainer(model, args, DataCollatorForSeq2Seq(tokenizer), train, processing_class=tokenizer).train()
    return model, tokenizer


def main() -> None:
    """Compare the answers, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, dialogs=60)
    parser.add_argument("--model_dir", help="a trained tracker with its tokenizer")
    parser.add_argument("--train_steps", type=int, default=1000, help="without --model_dir")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    model, tokenizer = tracker(options)
    pairs, _ = encoded_pairs(options.data_dir, "test", options.dialogs, tokenizer)
    rows = pairs.select_columns(list(COLUMNS))
    limit = {"max_new_tokens": max(len(labels) for labels in rows["labels"]) + 8}
    shared = {**quiet_settings(), "per_device_eval_batch_size": options.batch, "predict_with_generate": True}
    collator = DataCollatorForSeq2Seq(tokenizer)
    wide = 8 * options.batch
    ours = DAIRTrainer(model, DAIRConfig(**shared, generation_batch_size=wide), collator, processing_class=tokenizer)
    theirs, as_wide = (
        Seq2SeqTrainer(
            model,
            Seq2SeqTrainingArguments(**shared | {"per_device_eval_batch_size": size}),
            collator,
            processing_class=tokenizer,
        )
        for size in (options.batch, wide)
    )
    special = {IGNORED, model.config.decoder_start_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    found = [answers(trainer.predict(rows, **limit).predictions, special) for trainer in (ours, theirs)]
    same = np.mean([mine == other for mine, other in zip(*found, strict=True)])
    lengths = np.array([len(answer) for answer in found[0]])
    # What batches in the order of the rows run, over what the answers hold: no batching saves more steps than that.
    in_order = np.array(
        [lengths[start : start + options.batch].max() for start in range(0, len(lengths), options.batch)]
    )
    fewer = (in_order.repeat(options.batch)[: len(lengths)]).sum() / max(lengths.sum(), 1)
    seconds = interleaved(
        {
            "evaluate_pairs": lambda: ours.evaluate_pairs(rows, right, n_bootstrap=0, **limit),
            "DAIRTrainer.predict": lambda: ours.predict(rows, **limit),
            "Seq2SeqTrainer.predict": lambda: theirs.predict(rows, **limit),
            "Seq2SeqTrainer.predict, wide": lambda: as_wide.predict(rows, **limit),
            "model.generate": lambda: generate_in_order(model, rows, collator, options.batch, limit),
        },
        options.rounds,
        warmup=0,
    )
    conclude(
        "generation",
        f"Generating {len(rows)} test turns of MultiWOZ 2.1, batch {options.batch}",
        [
            Measure("identical predictions", float(same), target=1.0, at_least=True),
            measured(
                "rows a second",
                ratio(seconds, "Seq2SeqTrainer.predict", "evaluate_pairs"),
                target=3.0,
                at_least=True,
                arithmetic=f"{fewer:.2f} times fewer tokens to decode at best",
            ),
            measured("rows a second, answers alone", ratio(seconds, "model.generate", "evaluate_pairs")),
            measured(
                "rows a second, batches as wide", ratio(seconds, "Seq2SeqTrainer.predict, wide", "evaluate_pairs")
            ),
            measured("rows a second, predict", ratio(seconds, "Seq2SeqTrainer.predict", "DAIRTrainer.predict")),
        ],
        {
            **{name: getattr(options, name) for name in ("dialogs", "batch", "rounds")},
            "generation_batch_size": wide,
            "model": model.config.to_diff_dict(),
            "trained_here_for_steps": None if options.model_dir else options.train_steps,
            "mean_answer_tokens": float(lengths.mean()),
            "longest_answer_tokens": int(lengths.max()),
            **limit,
        },
        seconds,
        {"test": pairs._fingerprint},
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
