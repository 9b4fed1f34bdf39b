"""Answers of a decoder-only tracker to both views of dialogues, with `share_prefixes` relative to separate rows.

    python benchmarks/prefix_tree_answers.py --data_dir path/to/multiwoz21 [--model_dir path/to/model] [--turns 1000]

All variants answer the same turns of the test split with `evaluate_pairs`; if one answer differs, nothing is written.

- `rows`: the prompt of every turn and view is read whole, in evaluation batches of `--batch` rows;
- `rows, as wide`: the same in batches of twice as many rows, as wide as those in which answers are written with trees;
- `trees`: each distinct prefix is read once.

The first ratio is what a user gains at the same settings, the second what reading prefixes once gains by itself.
Without `--model_dir` the benchmark trains a small model first, of 4 layers of width 384, on 60 dialogues.

Ten minutes on two cores with a trained model, much more with one whose answers do not end. Writes
results/benchmarks/prefix_tree_answers.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from typing import Any

import datasets
from measuring import at_least, benchmark_parser, conclude, interleaved, ratio
from prefix_trees import GROUP, ROWS, SOURCE_TOKENS, TREES, nodes_of, trainer
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    DataCollatorForSeq2Seq,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from workloads import add_data_options, encoded_pairs, quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.errors import DataError
from dair_hf.evaluation.prediction import TREE_ROWS
from dair_hf.io.commands import exit_status


def load_or_train(options: argparse.Namespace) -> tuple[PreTrainedModel, PreTrainedTokenizerBase]:
    """Load model and tokenizer from `--model_dir`, or train a small model."""
    if options.model_dir:
        return AutoModelForCausalLM.from_pretrained(options.model_dir), AutoTokenizer.from_pretrained(options.model_dir)
    pairs, tokenizer = encoded_pairs(options.data_dir, "val", options.dialogs, None, SOURCE_TOKENS, causal=True)
    settings: dict[str, Any] = {**TREES, "num_train_epochs": 4, "learning_rate": 1e-3}
    made = trainer(pairs, tokenizer, nodes_of(pairs, True)[1], **settings)
    made.train()
    return made.model, tokenizer


def require_equal(answers: Mapping[str, list[str]]) -> None:
    """Refuse variants whose answers differ.

    Raises:
        DataError: An answer differs.
    """
    for name, others in answers.items():
        differing = [view for view, pair in enumerate(zip(answers["rows"], others, strict=True)) if len(set(pair)) > 1]
        if differing:
            raise DataError(
                f"{len(differing)} of {len(others)} answers of {name!r} differ from the answers of 'rows', first in "
                f"view {differing[0]}; nothing is written, since times of other answers cannot be compared"
            )


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=3)
    add_data_options(parser, dialogs=60)
    parser.add_argument("--model_dir", help="folder of a trained decoder-only model with its tokenizer")
    parser.add_argument("--turns", type=at_least(1), default=1000, help="test turns to answer")
    parser.add_argument("--batch", type=at_least(1), default=16, help="per_device_eval_batch_size")
    options = parser.parse_args()
    model, tokenizer = load_or_train(options)
    pairs, _ = encoded_pairs(options.data_dir, "test", 0, tokenizer, SOURCE_TOKENS, causal=True)
    pairs = pairs.select(range(min(options.turns, len(pairs))))
    answers: dict[str, list[str]] = {}

    def evaluation(variant: str, rows: datasets.Dataset, **settings: Any) -> Callable[[], object]:
        args = DAIRConfig(**quiet_settings(**{"per_device_eval_batch_size": options.batch, **settings}))
        made = DAIRTrainer(model, args, DataCollatorForSeq2Seq(tokenizer), processing_class=tokenizer)

        def judge(predictions: list[str], references: list[str]) -> list[bool]:
            answers[variant] = predictions
            return [said == wanted for said, wanted in zip(predictions, references, strict=True)]

        return lambda: made.evaluate_pairs(rows, judge, intervals=False)

    variants: dict[str, dict[str, Any]] = {
        "rows": {},
        "rows, as wide": {"per_device_eval_batch_size": TREE_ROWS * options.batch},
        "trees": {"share_prefixes": GROUP},
    }
    for name, settings in variants.items():  # first calls allocate and tune
        evaluation(name, pairs.select(range(min(32, len(pairs)))), **settings)()
    seconds = interleaved(
        {name: evaluation(name, pairs, **settings) for name, settings in variants.items()}, options.rounds, warmup=0
    )
    require_equal(answers)
    nodes, _ = nodes_of(pairs, True)
    tokens = sum(len(ids) for name in ("", "augmented_") for ids in pairs[f"{name}input_ids"] if ids is not None)
    conclude(
        "prefix_tree_answers",
        f"Answers to both views of {len(pairs)} test turns of MultiWOZ 2.1, decoder-only, batch {options.batch}",
        [
            ratio("rows a second, trees / rows", seconds, "rows", "trees", target=2.0, at_least=True,
                  arithmetic=f"{nodes / tokens:.3f} of the tokens are distinct"),
            ratio("rows a second, trees / rows as wide", seconds, "rows, as wide", "trees"),
        ],
        {"turns": len(pairs), "views": len(answers["rows"]), "batch": options.batch, "rounds": options.rounds,
         "source_tokens": SOURCE_TOKENS, "rows": ROWS, "parameters": model.num_parameters()},
        seconds,
        {"test": pairs._fingerprint},
        options.output,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_status(main))
