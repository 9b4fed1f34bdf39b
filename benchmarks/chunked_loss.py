"""Sequence losses from hidden states in chunks against losses of the full logits: memory and time.

    python benchmarks/chunked_loss.py [--pairs 16] [--target 64] [--source 128] [--rounds 5]

BART's vocabulary of 50,265 and width of 768, 16 pairs of 64 target tokens:

- `memory of the loss`: peak memory of projection and loss, forward and backward, above weights, gradients and hidden
  states;
- `time of the loss`: the same alone;
- `time of a step`: a training step of a BART-base-shaped model with sources of 128 tokens.

About ten minutes on two cores, 4 GB. Writes results/benchmarks/chunked_loss.json.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable
from types import SimpleNamespace

import torch
from memory import peak_memory
from outcome import Measure, conclude, measured
from steps import bart, random_pairs
from timing import interleaved, ratio
from torch import Tensor, nn

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.io.commands import exit_status
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.per_sample import seq2seq_nll

VOCABULARY, WIDTH = 50_265, 768


class Projection(nn.Module):
    """An output projection and nothing else."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        """The projection."""
        return self.head

    def forward(self, hidden: Tensor) -> SimpleNamespace:
        """Logits of hidden states."""
        return SimpleNamespace(logits=self.head(hidden))


def loss_alone(chunked: bool, rows: int, target: int) -> Callable[[], object]:
    """Projection, losses of rows and their backward pass."""
    torch.manual_seed(0)
    model = Projection()
    hidden = torch.randn(rows, target, WIDTH, requires_grad=True)
    labels = torch.randint(0, VOCABULARY, (rows, target))
    weights = torch.rand(rows)
    loss = ChunkedLoss(model, shifts_labels=False)

    def run() -> None:
        losses = loss(model, {"hidden": hidden}, labels)[1] if chunked else seq2seq_nll(model(hidden), labels)
        (losses * weights).sum().backward()

    return run


def step(chunked: bool, pairs: int, source: int, target: int) -> Callable[[], object]:
    """A training step of a BART-base-shaped model."""
    args = DAIRConfig(tempfile.mkdtemp(), chunked_loss=chunked, report_to="none", use_cpu=True)
    trainer = DAIRTrainer(bart(VOCABULARY, WIDTH, layers=6, heads=12), args)
    trainer.create_optimizer()
    batch = random_pairs(pairs, source, target, VOCABULARY)
    counts = trainer.pair_loss.count(batch)

    def run() -> None:
        trainer.model.zero_grad()
        trainer.training_step(trainer.model, batch, counts)

    return run


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=16)
    parser.add_argument("--source", type=int, default=128)
    parser.add_argument("--target", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    rows = 2 * options.pairs
    peaks = {kept: peak_memory(loss_alone, kept, rows, options.target) for kept in (True, False)}
    alone = interleaved(
        {
            "loss, chunked": loss_alone(True, rows, options.target),
            "loss, full logits": loss_alone(False, rows, options.target),
        },
        2 * options.rounds,
    )
    shape = (options.pairs, options.source, options.target)
    whole = interleaved({"step, chunked": step(True, *shape), "step, full logits": step(False, *shape)}, options.rounds)
    logits = 4 * rows * options.target * VOCABULARY / 2**20
    conclude(
        "chunked_loss",
        f"Chunked loss against full logits ({rows} rows of {options.target} targets, vocabulary {VOCABULARY:,})",
        [
            Measure(
                "memory of the loss",
                peaks[True] / peaks[False],
                target=0.30,
                arithmetic=f"full: 3 tensors of {logits:.0f} MiB; found {peaks[False] / 2**20:.0f} MiB",
            ),
            measured(
                "time of the loss",
                ratio(alone, "loss, chunked", "loss, full logits"),
                arithmetic="4/3: four matrix products and not three",
            ),
            measured("time of a step", ratio(whole, "step, chunked", "step, full logits"), target=1.10),
        ],
        {**vars(options), "peak_mib": {str(kept): peak / 2**20 for kept, peak in peaks.items()}},
        {**alone, **whole},
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
