"""What the hook for partners made while training costs: an augmenter that copies, against the same pairs as tensors.

    python benchmarks/augmenter_cost.py [--steps 500] [--rounds 9]

Ratio of medians from interleaved runs of the same steps: `hook`, DAIRTrainer whose augmenter returns copies of the
originals against DAIRTrainer on pairs that hold these copies (64 pairs, the paper's CNN, noise for images). Both see
the same numbers, so any difference is the hook's. Two minutes on one core. Writes
results/benchmarks/augmenter_cost.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Mapping
from typing import Any

import torch
from outcome import conclude, measured
from timing import interleaved, ratio
from torch import nn
from transformers import set_seed

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.collator import add_partners
from dair_hf.data.tensor_pairs import TensorPairs, tensor_fingerprint
from dair_hf.io.commands import exit_status
from dair_hf.vision.cnn import DigitCNN, DigitCNNConfig

BATCH, ROWS = 64, 6400


def copied(model: nn.Module, batch: Mapping[str, Any], generator: torch.Generator) -> dict[str, Any]:
    """Each partner is its original."""
    return add_partners(batch, {})


def train(pairs: TensorPairs, steps: int, augmenter: Any = None) -> DAIRTrainer:
    """A run from the same weights each time."""
    set_seed(0)
    args = DAIRConfig(
        tempfile.mkdtemp(),
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-3,
        max_grad_norm=0.0,
        logging_steps=steps,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    model = DigitCNN(DigitCNNConfig(num_channels=1, num_labels=10))
    trainer = DAIRTrainer(model, args, train_dataset=pairs, sample_loss="classification", augmenter=augmenter)
    trainer.train()
    return trainer


def main() -> None:
    """Time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    drawn = torch.Generator().manual_seed(0)
    view = {
        "pixel_values": torch.rand(ROWS, 1, 28, 28, generator=drawn),
        "labels": torch.randint(0, 10, (ROWS,), generator=drawn),
    }
    held, bare = TensorPairs(view, view), TensorPairs(view)
    weights = [train(held, 5).model.state_dict(), train(bare, 5, copied).model.state_dict()]
    assert all(torch.equal(values, weights[1][name]) for name, values in weights[0].items()), "not the same training"
    seconds = interleaved(
        {
            "augmenter": lambda: train(bare, options.steps, copied),
            "pairs held": lambda: train(held, options.steps),
        },
        options.rounds,
    )
    conclude(
        "augmenter_cost",
        "Partners made by a hook against the same partners held",
        [measured("hook", ratio(seconds, "augmenter", "pairs held"), target=1.05)],
        {"steps": options.steps, "rounds": options.rounds},
        seconds,
        {"train": tensor_fingerprint(*view.values())},
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
