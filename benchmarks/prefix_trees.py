"""Epochs of a decoder-only dialogue tracker with prefix trees (`share_prefixes`), relative to epochs over rows.

    python benchmarks/prefix_trees.py --data_dir path/to/multiwoz21 [--dialogs 60] [--rounds 3]

A turn of a dialogue repeats the history of all turns before it. Trees compute every distinct prefix once, about one
dialogue a step; rows run in batches of eight turns, the length of an average dialogue. The model has the shape of
Llama: 4 layers of width 384. Histories have at most 896 tokens, as in `multiwoz21_causal.yaml`.

- `time`: seconds of an epoch over some dialogues, ratios of medians of interleaved epochs;
- `tokens`: computed positions of an epoch over the whole split, padding included, relative to the tokens of ERM's rows;
- `memory`: rise of the resident memory in a training step, for the same rows.

About fifteen minutes on two cores. Writes results/benchmarks/prefix_trees.json.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
import torch
from measuring import Measure, benchmark_parser, conclude, interleaved, ratio
from memory import peak_memory
from transformers import DataCollatorForSeq2Seq, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerBase
from workloads import add_data_options, encoded_pairs, quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.sampling import view_counts, view_lengths
from dair_hf.io.commands import exit_status
from dair_hf.trees.batches import tree_sampler

GROUP, ROWS, SOURCE_TOKENS = "dialogue_id", 8, 896
MODEL = {"hidden_size": 384, "intermediate_size": 1024, "num_hidden_layers": 4, "num_attention_heads": 6}
BY_LENGTH = {"pair_group_by_length": True}
TREES = {"share_prefixes": GROUP, "per_device_train_batch_size": 64}
VARIANTS: dict[str, dict[str, Any]] = {
    "ERM, rows in random order": {"method": "erm"},
    "ERM, rows by length": {"method": "erm", **BY_LENGTH},
    "DAIR, rows by length": {"method": "dair", **BY_LENGTH},
    "ERM, trees": {"method": "erm", **TREES},
    "DAIR, trees": {"method": "dair", **TREES},
}


def tracker(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """Return a new model, with the same weights each time."""
    torch.manual_seed(0)
    tokens = {"vocab_size": len(tokenizer), "pad_token_id": 0, "eos_token_id": tokenizer.eos_token_id}
    return LlamaForCausalLM(LlamaConfig(**MODEL, **tokens, max_position_embeddings=1024))


def trainer(pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, nodes: int, **settings: Any) -> DAIRTrainer:
    """Return a trainer of a new model."""
    if "share_prefixes" in settings:
        settings = {**settings, "max_tokens_per_batch": nodes}
    args = DAIRConfig(**quiet_settings(**{"per_device_train_batch_size": ROWS, **settings}))
    return DAIRTrainer(tracker(tokenizer), args, DataCollatorForSeq2Seq(tokenizer), pairs, processing_class=tokenizer)


def nodes_of(pairs: datasets.Dataset, with_partners: bool) -> tuple[int, int]:
    """Return the nodes of all trees, and of the largest one."""
    sampler = tree_sampler(pairs, GROUP, rows=64, nodes=2**30, with_partners=with_partners)
    return int(sampler.sizes.sum()), int(sampler.sizes.max())


def token_counts(pairs: datasets.Dataset) -> dict[str, int]:
    """Return the tokens of an epoch, without padding."""
    originals = sum(map(len, pairs["input_ids"]))
    partners = sum(len(ids) for ids in pairs["augmented_input_ids"] if ids is not None)
    return {
        "ERM, rows": originals,
        "DAIR, rows": originals + partners,
        "ERM, trees": nodes_of(pairs, False)[0],
        "DAIR, trees": nodes_of(pairs, True)[0],
    }


def padded_positions(pairs: datasets.Dataset, with_partners: bool) -> int:
    """Return the positions of an epoch over rows by length, padding included."""
    lengths, views = view_lengths(pairs), view_counts(pairs)
    order = np.argsort(lengths)
    batches = [order[start : start + ROWS] for start in range(0, len(order), ROWS)]
    counts = views if with_partners else np.ones_like(views)
    return sum(int(counts[rows].sum() * lengths[rows].max()) for rows in batches)


def step(
    variant: str, dialogue: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, nodes: int
) -> Callable[[], object]:
    """Return a function that runs a training step on all rows of a dialogue."""
    settings = {**VARIANTS[variant], "per_device_train_batch_size": len(dialogue)}
    made = trainer(dialogue, tokenizer, nodes, **settings)
    made.create_optimizer()
    batch = next(iter(made.get_train_dataloader()))
    return lambda: made.training_step(made.model, batch)


def collation_share(pairs: datasets.Dataset, tokenizer: PreTrainedTokenizerBase, nodes: int, epoch: float) -> float:
    """Return the seconds in which an epoch of trees is collated, relative to the epoch."""
    loader = trainer(pairs, tokenizer, nodes, **VARIANTS["DAIR, trees"]).get_train_dataloader()
    start = time.perf_counter()
    for _ in loader:
        pass
    return (time.perf_counter() - start) / epoch


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=3)
    add_data_options(parser, dialogs=60)
    options = parser.parse_args()
    whole, tokenizer = encoded_pairs(options.data_dir, "val", 0, source_tokens=SOURCE_TOKENS, causal=True)
    pairs, _ = encoded_pairs(options.data_dir, "val", options.dialogs, tokenizer, SOURCE_TOKENS, causal=True)
    tokens, timed = token_counts(whole), token_counts(pairs)
    largest, padded = nodes_of(whole, True)[1], padded_positions(whole, False)

    # The same trainer in every round: the first, which is not measured, verifies that trees are exact.
    epochs = {name: trainer(pairs, tokenizer, largest, **settings).train for name, settings in VARIANTS.items()}
    seconds = interleaved(epochs, options.rounds)
    first = pairs["dialogue_id"][0]
    dialogue = pairs.select([row for row, name in enumerate(pairs["dialogue_id"][:]) if name == first])
    memory = {name: peak_memory(step, name, dialogue, tokenizer, largest) for name in list(VARIANTS)[2::2]}
    epoch_seconds = float(np.median(seconds["DAIR, trees"]))
    conclude(
        "prefix_trees",
        f"Prefix trees of dialogues, MultiWOZ 2.1 ({len(whole)} turns; timed on {len(pairs)})",
        [
            ratio("time, DAIR trees / ERM rows by length", seconds, "DAIR, trees", "ERM, rows by length", target=0.60,
                  arithmetic=f"{timed['DAIR, trees'] / timed['ERM, rows']:.3f} of their tokens"),
            ratio("time, DAIR trees / ERM rows in random order", seconds, "DAIR, trees", "ERM, rows in random order",
                  target=0.38),
            ratio("time, DAIR trees / DAIR rows by length", seconds, "DAIR, trees", "DAIR, rows by length", target=0.42,
                  arithmetic=f"{timed['DAIR, trees'] / timed['DAIR, rows']:.3f} of their tokens"),
            ratio("time, ERM trees / ERM rows by length", seconds, "ERM, trees", "ERM, rows by length", target=0.40,
                  arithmetic=f"{timed['ERM, trees'] / timed['ERM, rows']:.3f} of their tokens"),
            Measure("tokens computed, DAIR trees / ERM rows", tokens["DAIR, trees"] / tokens["ERM, rows"], target=0.62,
                    arithmetic=f"{tokens['DAIR, trees']} / {tokens['ERM, rows']}; {padded} with padding"),
            Measure("peak memory of a step, DAIR trees / DAIR rows",
                    memory["DAIR, trees"] / memory["DAIR, rows by length"], target=1.0),
            Measure("collation, share of a DAIR epoch with trees",
                    collation_share(pairs, tokenizer, largest, epoch_seconds), target=0.05),
        ],
        {**MODEL, "dialogs": options.dialogs, "turns": len(pairs), "rows": ROWS, "nodes": largest,
         "source_tokens": SOURCE_TOKENS, "vocabulary": len(tokenizer), "rounds": options.rounds},
        seconds,
        {"train": pairs._fingerprint},
        options.output,
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(exit_status(main))
