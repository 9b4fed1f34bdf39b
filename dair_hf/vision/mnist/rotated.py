"""Rotated MNIST (paper, section 5): digits with different angles in training, augmentation and test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from dair_hf.augment.images import rotate
from dair_hf.data.counter_rng import integers, subset, uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.settings import Share
from dair_hf.vision.image_pairs import ImageView, evaluation_rows, file_pairs, rows_between
from dair_hf.vision.mnist.digits import DIGITS, DigitPairsConfig, Digits

# Scheme -> arcs of equal length in degrees; an angle is uniform on an arc chosen uniformly.
Arcs = tuple[tuple[float, float], ...]
SCHEMES: dict[str, Arcs] = {
    "R1": ((0.0, 0.0),),
    "R2": ((90.0, 90.0),),
    "R3": ((0.0, 0.0), (180.0, 180.0)),
    "R4": ((90.0, 90.0), (270.0, 270.0)),
    "R5": ((0.0, 360.0),),
    "R6": ((22.5, 67.5), (202.5, 247.5)),
}


class _Setup(NamedTuple):
    """Schemes of the training originals, their partners and the test digits."""

    original: str
    augmented: str
    test: str


SETUPS = {"weak": _Setup("R4", "R6", "R1"), "strong": _Setup("R1", "R5", "R2")}


@dataclass
class RotatedConfig(DigitPairsConfig):
    """Data of a Rotated MNIST experiment."""

    setup: Literal["weak", "strong"] = field(
        default="weak",
        metadata={
            "help": "weak: train on 90 and 270 degrees, partners at [22.5, 67.5] and [202.5, 247.5], test upright; "
            "strong: train upright, partners at any angle, test at 90 degrees."
        },
    )
    label_noise: Share = field(
        default=0.0,
        metadata={
            "help": "Probability that a training label is replaced by a uniformly random digit (possibly the true "
            "one); drawn once for both views and all epochs."
        },
    )


@dataclass(frozen=True, eq=False)
class RotatedView(ImageView):
    """View of digits `[N, 28, 28]` rotated by angles of one scheme.

    Attributes:
        arcs: Arcs of the angles.
        fresh: Whether angles are redrawn each epoch.
        turn: Degrees added to every angle.
    """

    arcs: Arcs
    stream: str = ""
    seed: int = 0
    fresh: bool = False
    turn: float = 0.0

    def transform(self, images: Tensor, rows: Tensor, epoch: int) -> Tensor:
        """Rotate images of file rows; returns `[B, 1, 28, 28]`."""
        degrees = draw_angles(self.arcs, rows, self.seed, epoch if self.fresh else 0, self.stream) + self.turn
        images = images[:, None]
        return super().transform(rotate(images, degrees) if degrees.any() else images, rows, epoch)


def draw_angles(arcs: Arcs, rows: Tensor, seed: int, epoch: int, stream: str) -> Tensor:
    """Draw an angle for each row: `low_k + u (high_k - low_k)` on a uniformly chosen arc k, u uniform in [0, 1)."""
    low, high = torch.tensor(arcs, dtype=torch.float64, device=rows.device).unbind(1)
    if len(arcs) == 1 and arcs[0][0] == arcs[0][1]:
        return low.expand(len(rows))
    # One number gives both: its integer part is the arc, its fraction the position on the arc.
    drawn = uniform(rows, seed, epoch, stream)[:, 0] * len(arcs)
    arc = drawn.long()
    return torch.lerp(low[arc], high[arc], drawn - arc)


def _randomized_labels(digits: Tensor, rows: Tensor, noise: float, seed: int) -> Tensor:
    """Replace each label by a uniformly random digit with probability `noise`."""
    replaced = uniform(rows, seed, 0, "rotated/label_noise")[:, 0] < noise
    return torch.where(replaced, integers(rows, seed, 0, "rotated/label", high=DIGITS)[:, 0], digits)


def rotated_train_pairs(mnist: Mapping[str, Digits], config: RotatedConfig, seed: int) -> TensorPairs:
    """Return the training pairs: both views of a digit at their own angles, with the same, possibly noisy, label.

    Args:
        mnist: Files from `load_mnist` by split; needs "train".
        seed: Seed of angles, label noise and the choice of rows with partners.

    Returns:
        `pixel_values` `[1, 28, 28]` and `labels`; and the column `digit` of true labels.

    Raises:
        DataError: The file has too few rows.
    """
    digits, setup = mnist["train"], SETUPS[config.setup]
    rows = rows_between(digits, 0, config.train_rows, "training")
    labels = _randomized_labels(digits.labels, torch.arange(len(digits.labels)), config.label_noise, seed)
    original, augmented = (
        RotatedView(digits.images, labels, rows, SCHEMES[scheme], f"rotated/train/{view}", seed, fresh=True)
        for view, scheme in (("original", setup.original), ("augmented", setup.augmented))
    )
    has_partner = subset(rows, config.partner_fraction, seed, "rotated/partner")
    return file_pairs("train", original, augmented, has_partner, {"digit": digits.labels[rows].tolist()})


def rotated_evaluation_pairs(
    mnist: Mapping[str, Digits], config: RotatedConfig, seed: int, split: str = "test", scheme: str | None = None
) -> TensorPairs:
    """Return evaluation pairs: digits at the angles of a scheme, partners rotated by 180 degrees more; true labels.

    The paper's CM is between R1 and its rotation by 180 degrees, in both setups.
    """
    scheme = SETUPS[config.setup].test if scheme is None else scheme
    file, digits, rows = evaluation_rows(mnist, split, config.train_rows, config.validation_rows)
    original, augmented = (
        RotatedView(*digits, rows, SCHEMES[scheme], f"rotated/{file}/{scheme}", seed, turn=turn)
        for turn in (0.0, 180.0)
    )
    return file_pairs(file, original, augmented, columns={"digit": digits.labels[rows].tolist()})
