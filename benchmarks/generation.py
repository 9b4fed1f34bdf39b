"""Speed of generating the answers of a test set with `evaluate_pairs`, relative to `Seq2SeqTrainer.predict`.

    python benchmarks/generation.py --data_dir path/to/multiwoz21 --model_dir path/to/model [--dialogs 60]

Both answer the same turns with the same trained model (such as a run of `multiwoz21_small.yaml`), batch size and length
limit, and must generate the same tokens. `Seq2SeqTrainer` runs batches in the order of the rows, each until its longest
answer ends, and also computes losses. `DAIRTrainer` encodes batches of the same size but generates eight times as many
answers at once, grouped by expected length.
Without `--model_dir` the benchmark trains a small model first, whose answers rarely end by themselves.

- `rows a second`: `evaluate_pairs`, without losses, relative to `Seq2SeqTrainer.predict`;
- `rows a second, answers alone`: `evaluate_pairs` relative to a loop of `generate` over the rows in their order;
- `rows a second, predict`: `DAIRTrainer.predict`, with losses, relative to `Seq2SeqTrainer.predict`;
- `rows a second, batches as wide`: `evaluate_pairs` relative to `Seq2SeqTrainer.predict` in batches as large as those
  of the generation.

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
from measuring import Measure, at_least, benchmark_parser, conclude, interleaved, ratio
from transformers import (
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
)
from workloads import COLUMNS, MODEL, add_data_options, encoded_pairs, quiet_settings, small_model

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.errors import DataError
from dair_hf.io.commands import exit_status
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.modeling import ModelConfig, load_model, load_tokenizer


def answers(predictions: Any, special: set[int]) -> list[list[int]]:
    """Return the generated ids without start, padding and end tokens."""
    return [[token for token in row if token not in special] for row in np.asarray(predictions).tolist()]


def right(predictions: Sequence[str], references: Sequence[str]) -> list[bool]:
    """Return whether each answer equals its reference."""
    return [prediction == reference for prediction, reference in zip(predictions, references, strict=True)]


def generate_in_order(
    model: PreTrainedModel, rows: datasets.Dataset, collator: DataCollatorForSeq2Seq, batch: int, limit: dict[str, int]
) -> None:
    """Generate the answers in a plain loop, in the order of the rows, without losses."""
    for start in range(0, len(rows), batch):
        inputs = collator([dict(row) for row in rows.select(range(start, min(start + batch, len(rows))))])
        with torch.inference_mode():
            model.generate(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"], **limit)


def load_or_train(options: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer from `--model_dir`, or train a small model."""
    if options.model_dir:
        given = ModelConfig(options.model_dir)
        tokenizer = load_tokenizer(given)
        model = load_model(given, tokenizer)
        if not model.config.is_encoder_decoder:
            raise DataError(f"--model_dir {options.model_dir}: no encoder-decoder model; give the folder of one")
        return model, tokenizer
    train, tokenizer = encoded_pairs(options.data_dir, "val", 200)
    model = small_model(tokenizer, MODEL)
    settings = quiet_settings(
        method="erm",
        per_device_train_batch_size=16,
        pair_group_by_length=True,
        learning_rate=1e-3,
        max_steps=options.train_steps,
    )
    DAIRTrainer(
        model, DAIRConfig(**settings), DataCollatorForSeq2Seq(tokenizer), train, processing_class=tokenizer
    ).train()
    return model, tokenizer


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=3)
    add_data_options(parser, dialogs=60)
    parser.add_argument("--model_dir", help="folder of a trained model with its tokenizer")
    parser.add_argument("--train_steps", type=at_least(1), default=1000, help="without --model_dir")
    parser.add_argument("--batch", type=at_least(1), default=16)
    options = parser.parse_args()
    model, tokenizer = load_or_train(options)
    pairs, _ = encoded_pairs(options.data_dir, "test", options.dialogs, tokenizer)
    rows = pairs.select_columns(list(COLUMNS))
    limit = {"max_new_tokens": max(len(labels) for labels in rows["labels"]) + 8}
    shared = quiet_settings(per_device_eval_batch_size=options.batch, predict_with_generate=True)
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
    special = {IGNORE_INDEX, model.config.decoder_start_token_id, tokenizer.pad_token_id, tokenizer.eos_token_id}
    generated = [answers(trainer.predict(rows, **limit).predictions, special) for trainer in (ours, theirs)]
    same = np.mean([mine == other for mine, other in zip(*generated, strict=True)])
    lengths = np.array([len(answer) for answer in generated[0]])
    # Decoding steps of batches in the order of the rows, relative to the tokens of the answers: an upper bound of what
    # better batches can save.
    in_order = np.array(
        [lengths[start : start + options.batch].max() for start in range(0, len(lengths), options.batch)]
    )
    fewer = (in_order.repeat(options.batch)[: len(lengths)]).sum() / max(lengths.sum(), 1)
    seconds = interleaved(
        {
            "evaluate_pairs": lambda: ours.evaluate_pairs(rows, right, intervals=False, **limit),
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
            ratio(
                "rows a second",
                seconds,
                "Seq2SeqTrainer.predict",
                "evaluate_pairs",
                target=3.0,
                at_least=True,
                arithmetic=f"{fewer:.2f} times fewer tokens to decode at best",
            ),
            ratio("rows a second, answers alone", seconds, "model.generate", "evaluate_pairs"),
            ratio("rows a second, batches as wide", seconds, "Seq2SeqTrainer.predict, wide", "evaluate_pairs"),
            ratio("rows a second, predict", seconds, "Seq2SeqTrainer.predict", "DAIRTrainer.predict"),
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
        options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
