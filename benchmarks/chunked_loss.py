"""Memory and time of sequence losses computed from hidden states in chunks, relative to losses from the full logits.

    python benchmarks/chunked_loss.py [--pairs 16] [--target 64] [--source 128] [--rounds 5]

Measured with BART's vocabulary of 50,265 and width of 768, on 16 pairs of 64 target tokens:

- `memory of the loss`: peak memory of projection and loss, forward and backward, above weights, gradients and
  hidden states;
- `time of the loss`: time of the same computation;
- `time of a step`: time of a training step of a BART-base-shaped model with sources of 128 tokens.

About ten minutes on two cores, 4 GB. Writes results/benchmarks/chunked_loss.json.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace

import torch
from measuring import Measure, at_least, benchmark_parser, conclude, interleaved, ratio
from memory import peak_memory
from torch import Tensor, nn
from workloads import bart, random_pairs, training_step

from dair_hf.io.commands import exit_status
from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.per_sample import seq2seq_nll

VOCABULARY, WIDTH = 50_265, 768


class Projection(nn.Module):
    """A model that is only an output projection."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def get_output_embeddings(self) -> nn.Module:
        """Return the projection."""
        return self.head

    def forward(self, hidden: Tensor) -> SimpleNamespace:
        """Return the logits of hidden states."""
        return SimpleNamespace(logits=self.head(hidden))


def loss_alone(chunked: bool, rows: int, target: int) -> Callable[[], object]:
    """Return a function that runs projection, losses of rows, and backward."""
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
    """Return a training step of a BART-base-shaped model."""
    model, batch = bart(VOCABULARY, WIDTH, layers=6, heads=12), random_pairs(pairs, source, target, VOCABULARY)
    return training_step(model, batch, chunked_loss=chunked)


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=5)
    parser.add_argument("--pairs", type=at_least(1), default=16)
    parser.add_argument("--source", type=at_least(1), default=128)
    parser.add_argument("--target", type=at_least(1), default=64)
    options = parser.parse_args()
    rows = 2 * options.pairs
    peaks = {chunked: peak_memory(loss_alone, chunked, rows, options.target) for chunked in (True, False)}
    losses = interleaved(
        {
            "loss, chunked": loss_alone(True, rows, options.target),
            "loss, full logits": loss_alone(False, rows, options.target),
        },
        2 * options.rounds,
    )
    shape = (options.pairs, options.source, options.target)
    steps = interleaved({"step, chunked": step(True, *shape), "step, full logits": step(False, *shape)}, options.rounds)
    logits = 4 * rows * options.target * VOCABULARY / 2**20
    conclude(
        "chunked_loss",
        f"Chunked loss against full logits ({rows} rows of {options.target} targets, vocabulary {VOCABULARY:,})",
        [
            Measure(
                "memory of the loss",
                peaks[True] / peaks[False],
                target=0.50,
                arithmetic=f"full: 3 tensors of {logits:.0f} MiB; found {peaks[False] / 2**20:.0f} MiB",
            ),
            ratio(
                "time of the loss",
                losses,
                "loss, chunked",
                "loss, full logits",
                arithmetic="4/3: four matrix products and not three",
            ),
            ratio("time of a step", steps, "step, chunked", "step, full logits", target=1.10),
        ],
        {
            **{name: getattr(options, name) for name in ("pairs", "source", "target", "rounds")},
            "peak_mib": {str(chunked): peak / 2**20 for chunked, peak in peaks.items()},
        },
        {**losses, **steps},
        output=options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
