"""What batches of similar length save on MultiWOZ 2.1: padding, and real tokens a second.

    python benchmarks/batching.py --data_dir path/to/multiwoz21 [--dialogs 100] [--rounds 5]

DAIR epochs in random order, in batches of similar length (`pair_group_by_length`), and in batches of as many rows as a
budget of tokens holds (`max_tokens_per_batch`, that of 16 average rows):

- `padding`: share of the input positions that hold padding, over an epoch of the whole split at batch 16;
- `speed`: real tokens a second in an epoch over some dialogues, against random order.

Histories are cut at 448 tokens as in the paper. `--source_tokens 256` leaves less to save: see batching_256.json.

About five minutes on two cores. Writes results/benchmarks/batching.json.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
from dialogs import MODEL, add_data_options, encoded_pairs, quiet_settings, small_model
from outcome import Measure, conclude, measured
from timing import interleaved, ratio
from torch.utils.data import RandomSampler
from transformers import DataCollatorForSeq2Seq

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.sampling import PairLengthSampler, TokenBatchSampler, view_counts, view_lengths
from dair_hf.io.commands import exit_status

BATCH = 16
ORDERS = {"random": "in random order", "length": "by length", "tokens": "by tokens"}


def budget(pairs: datasets.Dataset) -> int:
    """Tokens of `BATCH` average rows, partners included."""
    lengths, views = view_lengths(pairs), view_counts(pairs)
    return max(int(BATCH * (lengths * views).mean()), int((lengths * views).max()))


def padding_shares(pairs: datasets.Dataset) -> dict[str, float]:
    """Share of padding in one epoch of every order."""
    lengths, views = view_lengths(pairs), view_counts(pairs)
    tokens = sum(len(ids) for name in ("input_ids", "augmented_input_ids") for ids in pairs[name] if ids)
    in_turn = {"random": list(RandomSampler(range(len(pairs)))), "length": list(PairLengthSampler(lengths, BATCH))}
    batches = {
        name: [order[start : start + BATCH] for start in range(0, len(order), BATCH)] for name, order in in_turn.items()
    }
    batches["tokens"] = list(TokenBatchSampler(lengths, budget(pairs), views))
    return {
        name: 1 - tokens / sum(int(views[rows].sum() * lengths[rows].max()) for rows in map(np.array, found))
        for name, found in batches.items()
    }


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_data_options(parser, dialogs=100)
    parser.add_argument("--source_tokens", type=int, default=448, help="longest history; the paper's setting is 448")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--output", type=Path, help="where to write instead")
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
        args = DAIRConfig(per_device_train_batch_size=BATCH, **settings[order], **quiet_settings())
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
                measured(
                    f"speed {ORDERS[order]}",
                    # The same tokens in less time: seconds of random order over seconds of this one.
                    ratio(seconds, "random", order),
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
