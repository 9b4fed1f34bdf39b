"""Rotated MNIST (paper, section 5): digits whose angles differ between training, augmentation and test, as pairs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from dair_hf.augment.images import rotate
from dair_hf.data.counter_rng import integers, subset, uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.vision.labelled_images import file_of, rows_between
from dair_hf.vision.mnist.digits import DIGITS, MNIST, Digits
from dair_hf.vision.settings import SPLITS, DigitPairsConfig, require_choice, require_fraction

# Scheme -> arcs of equal length in degrees; an angle is uniform on one of them, chosen uniformly.
Arcs = tuple[tuple[float, float], ...]
SCHEMES: dict[str, Arcs] = {
    "R1": ((0.0, 0.0),),
    "R2": ((90.0, 90.0),),
    "R3": ((0.0, 0.0), (180.0, 180.0)),
    "R4": ((90.0, 90.0), (270.0, 270.0)),
    "R5": ((0.0, 360.0),),
    "R6": ((22.5, 67.5), (202.5, 247.5)),
}


class Setup(NamedTuple):
    """Schemes of an experiment.

    Attributes:
        original: Of the training originals.
        augmented: Of their partners.
        test: Of the test digits.
    """

    original: str
    augmented: str
    test: str


SETUPS = {"weak": Setup("R4", "R6", "R1"), "strong": Setup("R1", "R5", "R2")}


@dataclass
class RotatedConfig(DigitPairsConfig):
    """Data of a Rotated MNIST experiment.

    Raises:
        DataError: An unknown setup or a number out of range.

    Example:
        >>> SETUPS[RotatedConfig().setup]
        Setup(original='R4', augmented='R6', test='R1')
    """

    setup: str = field(
        default="weak",
        metadata={
            "help": "weak: train on 90 and 270 degrees, partners at [22.5, 67.5] and [202.5, 247.5], test upright; "
            "strong: train upright, partners at any angle, test at 90 degrees.",
            "choices": tuple(SETUPS),
        },
    )
    fresh_angles: bool = field(
        default=True,
        metadata={"help": "Draw the angles of both training views anew each epoch; false keeps the first."},
    )
    label_noise: float = field(
        default=0.0,
        metadata={
            "help": "Probability that a training label is replaced by a uniformly drawn digit (perhaps the right one), "
            "once for both views and all epochs; in [0, 1]."
        },
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("setup", self.setup, SETUPS)
        require_fraction("label_noise", self.label_noise)


@dataclass(frozen=True, eq=False)
class RotatedView:
    """A view of `TensorPairs`: digits at the angles of one scheme.

    Attributes:
        images: `[N, 28, 28]` uint8, all digits of the file.
        labels: `[N]` int64, the labels of all of them.
        rows: `[M]` int64, which of them the pairs hold.
        arcs: Where the angles lie.
        stream: What the angles are drawn for.
        seed: Seed of the draws.
        fresh: Whether angles are drawn anew each epoch.
        turn: Degrees added to every angle.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    arcs: Arcs
    stream: str = ""
    seed: int = 0
    fresh: bool = False
    turn: float = 0.0

    def __call__(self, places: Tensor, epoch: int) -> dict[str, Tensor]:
        """`pixel_values` `[B, 1, 28, 28]` float32 in 0..1 and `labels` `[B]` int64 of the pairs at `places`."""
        rows = self.rows[places]
        images = self.images.index_select(0, rows)[:, None]  # an index in brackets takes ten times as long
        degrees = draw_angles(self.arcs, rows, self.seed, epoch if self.fresh else 0, self.stream) + self.turn
        if degrees.any():
            images = rotate(images, degrees)
        return {"pixel_values": images.float().div_(255), "labels": self.labels[rows]}


def draw_angles(arcs: Arcs, rows: Tensor, seed: int, epoch: int, stream: str) -> Tensor:
    """An angle for each row: `low_k + u (high_k - low_k)` on an arc k chosen uniformly, u uniform in [0, 1).

    Args:
        arcs: `(low, high)` in degrees, low = high for a single angle; such as `SCHEMES["R6"]`.
        rows: `[B]` int64, number of each row in its file.
        seed: Seed of the draws.
        epoch: Epoch.
        stream: What the angles are drawn for.

    Returns:
        `[B]` float64, degrees counter-clockwise.

    Example:
        >>> sorted(set(draw_angles(SCHEMES["R4"], torch.arange(20), 0, 0, "train").tolist()))
        [90.0, 270.0]
    """
    low, high = torch.tensor(arcs, dtype=torch.float64, device=rows.device).unbind(1)
    if len(arcs) == 1 and arcs[0][0] == arcs[0][1]:
        return low.expand(len(rows))
    # One number for both choices: its whole part is the arc, the rest the place on it.
    drawn = uniform(rows, seed, epoch, stream)[:, 0] * len(arcs)
    arc = drawn.long()
    return torch.lerp(low[arc], high[arc], drawn - arc)


def noisy_labels(digits: Tensor, rows: Tensor, noise: float, seed: int) -> Tensor:
    """Training labels, each replaced by a uniformly drawn digit with probability `noise`.

    Args:
        digits: `[B]` int64, 0 to 9.
        rows: `[B]` int64, number of each row in its file.
        noise: Probability of a replacement; a tenth of the replacements is the right digit.
        seed: Seed of the draw.

    Returns:
        `[B]` int64.

    Example:
        >>> noisy_labels(torch.tensor([3, 1]), torch.arange(2), noise=0.0, seed=0)
        tensor([3, 1])
    """
    replaced = uniform(rows, seed, 0, "rotated/label_noise")[:, 0] < noise
    return torch.where(replaced, integers(rows, seed, 0, "rotated/label", high=DIGITS)[:, 0], digits)


def train_pairs(mnist: Mapping[str, Digits], config: RotatedConfig, seed: int) -> TensorPairs:
    """The training pairs: both views of a digit at their own angles, with the same label, which may be noisy.

    Args:
        mnist: What `load_mnist` read, by split; needs "train".
        config: The experiment.
        seed: Seed of angles, label noise and the choice of rows with partner.

    Returns:
        `pixel_values` `[1, 28, 28]` and `labels`; column `digit`, the true one, beside them.

    Raises:
        DataError: The file has too few rows.
    """
    digits, setup = file_of(mnist, "train", "training", MNIST), SETUPS[config.setup]
    rows = rows_between(digits, 0, config.train_rows, "training")
    labels = noisy_labels(digits.labels, torch.arange(len(digits.labels)), config.label_noise, seed)
    views = [
        RotatedView(digits.images, labels, rows, SCHEMES[scheme], f"rotated/train/{view}", seed, config.fresh_angles)
        for view, scheme in (("original", setup.original), ("augmented", setup.augmented))
    ]
    has_partner = subset(rows, config.partner_fraction, seed, "rotated/partner")
    return pairs_of(views, digits, "train", has_partner)


def evaluation_pairs(
    mnist: Mapping[str, Digits], config: RotatedConfig, seed: int, split: str = "test", scheme: str | None = None
) -> TensorPairs:
    """Pairs for accuracy (of the originals) and CM: digits under a test scheme, partners turned by 180 degrees more.

    Labels are the true ones. The paper's CM is between R1 and its 180-degree rotation, in both setups.

    Args:
        mnist: What `load_mnist` read, by split; needs "test", for the validation "train".
        config: The experiment.
        seed: Seed of the angles, where the scheme has more than one.
        split: "test", or "validation": the last rows of the train file.
        scheme: Angles of the originals; None: those of the setup's test, R1 in the weak one and R2 in the strong.

    Returns:
        As `train_pairs`.

    Raises:
        DataError: A file is missing or has too few rows, or the split or the scheme does not exist.
    """
    require_choice("split", split, SPLITS)
    scheme = SETUPS[config.setup].test if scheme is None else scheme
    require_choice("rotation scheme", scheme, SCHEMES)
    file = "test" if split == "test" else "train"
    digits = file_of(mnist, file, split, MNIST)
    stop = len(digits.labels)
    # Validation rows stand behind the training rows, however many there are.
    start = 0 if split == "test" else max(config.train_rows, stop - config.validation_rows)
    rows = rows_between(digits, start, start + config.validation_rows if split == "validation" else stop, split)
    views = [
        RotatedView(digits.images, digits.labels, rows, SCHEMES[scheme], f"rotated/{file}/{scheme}", seed, turn=turn)
        for turn in (0.0, 180.0)
    ]
    return pairs_of(views, digits, file, None)


def pairs_of(views: list[RotatedView], digits: Digits, file: str, has_partner: Tensor | None) -> TensorPairs:
    """Two views of the same rows of a file, named by their numbers in it.

    Args:
        views: The original and the augmented view.
        digits: The file.
        file: "train" or "test".
        has_partner: `[M]` bool; None: every row has one.

    Returns:
        The pairs, with the column `digit` beside them.
    """
    original, augmented = views
    rows = original.rows
    return TensorPairs(
        original,
        augmented,
        rows=len(rows),
        has_partner=has_partner,
        row_ids=[f"{file}/{row}" for row in rows.tolist()],
        columns={"digit": digits.labels[rows].tolist()},
    )
