"""Time of DAIRTrainer on small images, relative to a plain PyTorch loop, with a profile of a step.

    python benchmarks/image_step.py --mnist path/to/mnist [--steps 1000] [--rounds 5]

Ratios of medians of interleaved runs on Rotated MNIST (64 pairs a step, the paper's CNN, Adam):

- `trainer`: DAIRTrainer relative to a plain loop over the same tensors, with the same batched rotation;
- `image by image`: DAIRTrainer relative to that loop with each image rotated by PIL in the `__getitem__` of a data set,
  as in the authors' released code.

The profile shows milliseconds of data, forward and loss, backward, optimizer, and the rest.

About five minutes on one core. Writes results/benchmarks/image_step.json.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from measuring import Measure, at_least, benchmark_parser, conclude, interleaved, ratio
from PIL import Image
from torch.utils.data import DataLoader
from workloads import digit_model, quiet_settings

from dair_hf import DAIRConfig, DAIRTrainer
from dair_hf.data.tensor_pairs import TensorPairs, tensor_fingerprint
from dair_hf.io.commands import exit_status
from dair_hf.vision.mnist.digits import Digits, load_mnist
from dair_hf.vision.mnist.rotated import RotatedConfig, RotatedView, draw_angles, rotated_train_pairs

BATCH = 64
LAMBDA = 10.0
RATE = 0.005


class RotatedImages(torch.utils.data.Dataset[tuple[torch.Tensor, torch.Tensor, int]]):
    """Data set that rotates two views of a digit with PIL on access, as is common for data sets of digits."""

    def __init__(self, digits: Digits, views: tuple[RotatedView, RotatedView]) -> None:
        self.images = digits.images.numpy()
        self.labels = digits.labels.tolist()
        rows = views[0].rows
        self.angles = [draw_angles(view.arcs, rows, view.seed, 0, view.stream).tolist() for view in views]

    def __len__(self) -> int:
        return len(self.angles[0])

    def __getitem__(self, row: int) -> tuple[torch.Tensor, torch.Tensor, int]:
        rotated = [Image.fromarray(self.images[row]).rotate(angles[row]) for angles in self.angles]
        first, second = (
            torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(1, 28, 28) for image in rotated
        )
        return first.float() / 255, second.float() / 255, self.labels[row]


def train_by_hand(steps: int, batches: Callable[[], Any]) -> None:
    """Train in a plain PyTorch loop: two views in one forward, the objective, Adam."""
    model, step = digit_model(), 0
    optimizer = torch.optim.Adam(model.parameters(), lr=RATE)
    while True:
        for first, second, labels in batches():
            logits = model(torch.cat([first, second])).logits
            losses = torch.nn.functional.cross_entropy(logits, torch.cat([labels, labels]), reduction="none")
            original, augmented = losses.chunk(2)
            gap = (torch.sqrt(original + 1e-7) - torch.sqrt(augmented + 1e-7)).square()
            loss = (0.5 * original + 0.5 * augmented + LAMBDA * gap).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step == steps:
                return


def tensor_batches(pairs: TensorPairs) -> Any:
    """Yield batches of both views in random order."""
    for rows in torch.randperm(len(pairs)).split(BATCH):
        first, second = pairs.view(rows, 0), pairs.view(rows, 1)
        yield first["pixel_values"], second["pixel_values"], first["labels"]


def trainer(pairs: TensorPairs, steps: int) -> DAIRTrainer:
    """Return DAIRTrainer with the settings of the plain loop."""
    settings = quiet_settings(
        dair_lambda=LAMBDA,
        max_steps=steps,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        max_grad_norm=0.0,
        logging_steps=500,
    )
    return DAIRTrainer(digit_model(), DAIRConfig(**settings), train_dataset=pairs, sample_loss="classification")


def profile(made: DAIRTrainer, steps: int) -> dict[str, float]:
    """Return the milliseconds that each part of a step takes, and the rest."""
    spent: dict[str, float] = defaultdict(float)

    def timed(owner: Any, name: str, part: str) -> None:
        function = getattr(owner, name)

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                spent[part] += time.perf_counter() - start

        setattr(owner, name, wrapped)

    assert isinstance(made.train_dataset, TensorPairs)
    made.create_optimizer()
    timed(made, "compute_loss", "forward and loss")
    timed(made.accelerator, "backward", "backward")
    timed(made.optimizer, "step", "optimizer")
    timed(made, "get_batch_samples", "data, collation, counts")
    start = time.perf_counter()
    made.train()
    total = time.perf_counter() - start
    parts = {part: 1e3 * seconds / steps for part, seconds in spent.items()}
    return {**parts, "rest": 1e3 * total / steps - sum(parts.values()), "whole step": 1e3 * total / steps}


def main() -> None:
    """Run the benchmark."""
    parser = benchmark_parser(__doc__, rounds=5)
    parser.add_argument("--mnist", required=True, help="folder with MNIST, or a name on the Hub")
    parser.add_argument("--steps", type=at_least(1), default=1000)
    options = parser.parse_args()
    digits = load_mnist(options.mnist, "train")
    pairs = rotated_train_pairs({"train": digits}, RotatedConfig(), seed=0)
    assert isinstance(pairs.views[0], RotatedView) and isinstance(pairs.views[1], RotatedView)
    one_by_one = RotatedImages(digits, pairs.views)
    seconds = interleaved(
        {
            "DAIRTrainer": lambda: trainer(pairs, options.steps).train(),
            "plain loop": lambda: train_by_hand(options.steps, lambda: tensor_batches(pairs)),
            "plain loop, image by image": lambda: train_by_hand(
                options.steps, lambda: DataLoader(one_by_one, batch_size=BATCH, shuffle=True)
            ),
        },
        options.rounds,
    )
    parts = profile(trainer(pairs, options.steps), options.steps)
    conclude(
        "image_step",
        f"DAIRTrainer on Rotated MNIST, {BATCH} pairs a step",
        [
            ratio("trainer", seconds, "DAIRTrainer", "plain loop", target=1.2),
            ratio("image by image", seconds, "DAIRTrainer", "plain loop, image by image", target=1.0),
            *(Measure(f"ms of a step: {part}", milliseconds) for part, milliseconds in parts.items()),
        ],
        {"steps": options.steps, "rounds": options.rounds},
        seconds,
        {"train": tensor_fingerprint(*digits)},
        options.output,
    )


if __name__ == "__main__":
    sys.exit(exit_status(main))
