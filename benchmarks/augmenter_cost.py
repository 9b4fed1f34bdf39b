"""Time of training with an augmenter that copies the originals, relative to training on the same pairs precomputed.

    python benchmarks/augmenter_cost.py [--steps 500] [--rounds 9]

`hook` is the ratio of the medians of interleaved runs on 64 pairs a step (the paper's CNN, noise images). Both train on
the same numbers, so any difference is the cost of the augmenter hook.

Two minutes on one core. Writes results/benchmarks/augmenter_cost.json.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

import torch
from measuring import at_least, benchmark_parser, conclude, interleaved, ratio
from torch import nn
from workloads import digit_model, quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.collator import add_partners
from dair_hf.data.tensor_pairs import TensorPairs, tensor_fingerprint
from dair_hf.io.commands import exit_status

BATCH, ROWS = 64, 6400


def copy_originals(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Use every original as its own partner."""
    return add_partners(batch, {})


def train(pairs: TensorPairs, steps: int, augmenter: Any = None) -> DAIRTrainer:
    """Train from the same initial weights each time."""
    settings = quiet_settings(
        max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=1e-3, max_grad_norm=0.0, logging_steps=steps
    )
    trainer = DAIRTrainer(
        digit_model(), DAIRConfig(**settings), train_dataset=pairs, sample_loss="classification", augmenter=augmenter
    )
    trainer.train()
    return trainer


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=9)
    parser.add_argument("--steps", type=at_least(1), default=500)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    view = {
        "pixel_values": torch.rand(ROWS, 1, 28, 28, generator=generator),
        "labels": torch.randint(0, 10, (ROWS,), generator=generator),
    }
    precomputed, originals = TensorPairs(view, view), TensorPairs(view)
    weights = [train(precomputed, 5).model.state_dict(), train(originals, 5, copy_originals).model.state_dict()]
    assert all(torch.equal(values, weights[1][name]) for name, values in weights[0].items()), "not the same training"
    seconds = interleaved(
        {
            "augmenter": lambda: train(originals, options.steps, copy_originals),
            "pairs held": lambda: train(precomputed, options.steps),
        },
        options.rounds,
    )
    conclude(
        "augmenter_cost",
        "Partners made by a hook against the same partners held",
        [ratio("hook", seconds, "augmenter", "pairs held", target=1.05)],
        {"steps": options.steps, "rounds": options.rounds},
        seconds,
        {"train": tensor_fingerprint(*view.values())},
        options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
