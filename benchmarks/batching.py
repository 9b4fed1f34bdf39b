"""Padding and speed of DAIR epochs on MultiWOZ 2.1 with batches in random order, by length, and by number of tokens.

    python benchmarks/batching.py --data_dir path/to/multiwoz21 [--dialogs 100] [--rounds 5]

Batches by length are `pair_group_by_length`. Batches by tokens are `max_tokens_per_batch`, with the number of tokens of
16 average rows.

- `padding`: share of padding in the input positions of an epoch over the whole split at batch size 16;
- `speed`: tokens per second, without padding, in an epoch over some dialogues, relative to random order.

Histories are truncated at 448 tokens as in the paper; batching_256.json is measured with `--source_tokens 256`.

About five minutes on two cores. Writes results/benchmarks/batching.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import datasets
import numpy as np
from measuring import Measure, at_least, benchmark_parser, conclude, interleaved, ratio
from torch.utils.data import RandomSampler
from transformers import DataCollatorForSeq2Seq
from workloads import MODEL, add_data_options, encoded_pairs, quiet_settings, small_model

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.sampling import PairLengthSampler, TokenBatchSampler, view_counts, view_lengths
from dair_hf.io.commands import exit_status

BATCH = 16
ORDERS = {"random": "in random order", "length": "by length", "tokens": "by tokens"}


def budget(pairs: datasets.Dataset) -> int:
    """Return the number of tokens of `BATCH` average rows, including partners."""
    lengths, views = view_lengths(pairs), view_counts(pairs)
    return max(int(BATCH * (lengths * views).mean()), int((lengths * views).max()))


def padding_shares(pairs: datasets.Dataset) -> dict[str, float]:
    """Return the share of padding in one epoch of every order."""
    lengths, views = view_lengths(pairs), view_counts(pairs)
    tokens = sum(len(ids) for name in ("input_ids", "augmented_input_ids") for ids in pairs[name] if ids)
    orders = {"random": list(RandomSampler(range(len(pairs)))), "length": list(PairLengthSampler(lengths, BATCH))}
    batches = {
        name: [order[start : start + BATCH] for start in range(0, len(order), BATCH)] for name, order in orders.items()
    }
    batches["tokens"] = list(TokenBatchSampler(lengths, budget(pairs), views))
    return {
        name: 1 - tokens / sum(int(views[rows].sum() * lengths[rows].max()) for rows in map(np.array, chosen))
        for name, chosen in batches.items()
    }


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=5)
    add_data_options(parser, dialogs=100)
    parser.add_argument("--source_tokens", type=at_least(1), default=448, help="longest history; 448 in the paper")
    options = parser.parse_args()
    whole, tokenizer = encoded_pairs(options.data_dir, "val", 0, source_tokens=options.source_tokens)
    shares = padding_shares(whole)
    pairs, _ = encoded_pairs(options.data_dir, "val", options.dialogs, tokenizer, options.source_tokens)
    settings: dict[str, dict[str, Any]] = {
        "random": {},
        "length": {"pair_group_by_length": True},
        "tokens": {"max_tokens_per_batch": budget(pairs)},
    }

    def epoch(order: str) -> Callable[[], object]:
        args = DAIRConfig(**quiet_settings(per_device_train_batch_size=BATCH, **settings[order]))
        model, collator = small_model(tokenizer, MODEL), DataCollatorForSeq2Seq(tokenizer)
        return DAIRTrainer(model, args, collator, pairs, processing_class=tokenizer).train

    seconds = interleaved({order: epoch(order) for order in ORDERS}, options.rounds)
    conclude(
        "batching",
        f"Batches of similar length, MultiWOZ 2.1 ({len(whole)} turns of at most {options.source_tokens} tokens, "
        f"batch {BATCH})",
        [
            *(
                Measure(f"padding {words}", shares[order], target=0.06 if order == "length" else None)
                for order, words in ORDERS.items()
            ),
            *(
                ratio(
                    f"speed {ORDERS[order]}",
                    seconds,
                    "random",
                    order,
                    target=1.5,
                    at_least=True,
                    arithmetic=f"{(1 - shares[order]) / (1 - shares['random']):.3f} times fewer positions",
                )
                for order in ("length", "tokens")
            ),
        ],
        {
            **MODEL,
            "dialogs": options.dialogs,
            "turns": len(pairs),
            "source_tokens": options.source_tokens,
            "rounds": options.rounds,
            "tokens": budget(pairs),
        },
        seconds,
        {"train": pairs._fingerprint},
        options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
