"""Generating the test set for joint goal accuracy: `DAIRTrainer.predict` against `Seq2SeqTrainer.predict`.

    python benchmarks/generation.py --data_dir path/to/multiwoz21 [--dialogs 60] [--rounds 3] [--batch 16]

Both predict the same turns with the same model (trained for some steps, so that its answers end), batch size and
lengths; the predictions must be the same, token by token. `Seq2SeqTrainer` takes the rows in their order, each batch
until the longest answer in it has ended. `DAIRTrainer` puts rows together that end together, more of them where they
are short, and sorts anew after 16, 32, 64, ... tokens what has not ended. Both compute the loss of the rows besides.

About ten minutes on two cores. Writes results/benchmarks/generation.json.
"""

from __future__ import annotations

import argparse
import sys
from typing import Any

import numpy as np
from dialogs import COLUMNS, MODEL, add_data_options, encoded_pairs, quiet_settings, small_model
from outcome import Measure, conclude, measured
from timing import interleaved, ratio
from transformers import DataCollatorForSeq2Seq, Seq2SeqTrainer, Seq2SeqTrainingArguments

from dair_hf import DAIRConfig, DAIRTrainer, DataError

IGNORED = -100


def answers(predictions: Any, special: set[int]) -> list[list[int]]:
    """Generated ids without start, padding and end tokens."""
    return [[token for token in row if token not in special] for row in np.asarray(predictions).tolist()]


def main() -> None:
    """Train a little, compare the predictions, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, dialogs=60)
    parser.add_argument("--train_steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    train, tokenizer = encoded_pairs(options.data_dir, "val", 200)
    pairs, _ = encoded_pairs(options.data_dir, "test", options.dialogs, tokenizer)
    rows = pairs.select_columns(list(COLUMNS))
    collator, model = DataCollatorForSeq2Seq(tokenizer), small_model(tokenizer, MODEL)
    learning = {**quiet_settings(), "learning_rate": 1e-3, "max_steps": options.train_steps}
    args = DAIRConfig(method="erm", per_device_train_batch_size=16, pair_group_by_length=True, **learning)
    DAIRTrainer(model, args, collator, train, processing_class=tokenizer).train()

    longest = max(len(labels) for labels in rows["labels"]) + 8
    shared = {**quiet_settings(), "per_device_eval_batch_size": options.batch, "predict_with_generate": True}
    ours = DAIRTrainer(model, DAIRConfig(**shared), collator, processing_class=tokenizer)
    theirs = Seq2SeqTrainer(model, Seq2SeqTrainingArguments(**shared), collator, processing_class=tokenizer)
    special = {IGNORED, model.config.decoder_start_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    found = [answers(trainer.predict(rows, max_new_tokens=longest).predictions, special) for trainer in (ours, theirs)]
    same = np.mean([mine == other for mine, other in zip(*found, strict=True)])
    lengths = np.array([len(answer) for answer in found[0]])
    seconds = interleaved(
        {
            "DAIRTrainer": lambda: ours.predict(rows, max_new_tokens=longest),
            "Seq2SeqTrainer": lambda: theirs.predict(rows, max_new_tokens=longest),
        },
        options.rounds,
        warmup=0,
    )
    conclude(
        "generation",
        f"Generating {len(rows)} test turns of MultiWOZ 2.1, batch {options.batch}",
        [
            Measure("identical predictions", float(same), target=1.0, at_least=True),
            measured("rows a second", ratio(seconds, "Seq2SeqTrainer", "DAIRTrainer"), target=3.0, at_least=True),
        ],
        {
            **MODEL,
            **{name: getattr(options, name) for name in ("dialogs", "train_steps", "batch", "rounds")},
            "mean_answer_tokens": float(lengths.mean()),
            "longest_answer_tokens": int(lengths.max()),
            "max_new_tokens": longest,
        },
        seconds,
        {"train": train._fingerprint, "test": pairs._fingerprint},
    )


if __name__ == "__main__":
    try:
        main()
    except DataError as error:
        sys.exit(f"error: {error}")
