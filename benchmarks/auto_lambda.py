"""Time of training with an automatic lambda, relative to training with a given lambda.

    python benchmarks/auto_lambda.py [--steps 500] [--rounds 15]

`auto` is the ratio of the medians of interleaved runs on 64 pairs a step: the paper's CNN for digits, whose steps are
so short (a few milliseconds) that any cost outside the model shows. The two runs differ only in `dair_lambda`.

Four minutes on one core. Writes results/benchmarks/auto_lambda.json.
"""

from __future__ import annotations

import sys

import torch
from measuring import at_least, benchmark_parser, conclude, interleaved, ratio
from workloads import digit_model, quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.tensor_pairs import TensorPairs, tensor_fingerprint
from dair_hf.io.commands import exit_status

BATCH, ROWS = 64, 6400


def train(pairs: TensorPairs, steps: int, dair_lambda: float | str) -> DAIRTrainer:
    """Train from the same initial weights each time."""
    settings = quiet_settings(
        max_steps=steps, per_device_train_batch_size=BATCH, learning_rate=1e-3, max_grad_norm=0.0, logging_steps=steps
    )
    args = DAIRConfig(**settings, dair_lambda=dair_lambda)
    trainer = DAIRTrainer(digit_model(), args, train_dataset=pairs, sample_loss="classification")
    trainer.train()
    return trainer


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=15)
    parser.add_argument("--steps", type=at_least(1), default=500)
    options = parser.parse_args()
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(ROWS, 1, 28, 28, generator=generator)
    labels = torch.randint(0, 10, (ROWS,), generator=generator)
    noise = torch.rand(ROWS, 1, 28, 28, generator=generator)
    original = {"pixel_values": images, "labels": labels}
    pairs = TensorPairs(original, {"pixel_values": (images + noise) / 2, "labels": labels})
    logs = train(pairs, 50, "auto").state.log_history
    assert any(log.get("dair_lambda", 0) > 0 for log in logs), "lambda was not set"
    seconds = interleaved(
        {
            "auto": lambda: train(pairs, options.steps, "auto"),
            "given": lambda: train(pairs, options.steps, 0.5),
        },
        options.rounds,
    )
    conclude(
        "auto_lambda",
        "A lambda that sets itself against a given lambda",
        [ratio("auto", seconds, "auto", "given", target=1.02)],
        {"steps": options.steps, "rounds": options.rounds},
        seconds,
        {"train": tensor_fingerprint(*original.values(), noise)},
        options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
