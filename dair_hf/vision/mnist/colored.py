"""Colored MNIST (paper, section 4): colors that agree with the label more often than the shape does.

Digits 0 to 4 are class 1, 5 to 9 class 0, and a quarter of the labels is wrong, in training and test. A color has index
0 (red) or 1 (green) and *agrees* if its index is the noisy label. So a model that relies on the color of the training
scheme C1 (agreement 0.8) beats one that relies on the shape (0.75), and fails under the test scheme C3 (0.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from dair_hf.augment.images import recolor
from dair_hf.data.counter_rng import subset, uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.settings import Count, Share
from dair_hf.vision.image_pairs import FILES, ImageView, file_pairs, rows_between
from dair_hf.vision.mnist.digits import DigitPairsConfig, Digits

C1_AGREEMENT = 0.8
# Scheme -> probability that the color agrees with the noisy label; None: three channel factors drawn from U(0, 1).
SCHEMES: dict[str, float | None] = {"C1": C1_AGREEMENT, "C2": 0.9, "C3": 0.1, "C4": None}
AUGMENTATIONS = {"adv": "C2", "rnd": "C4"}
RELEASED_TEST_START = 40_000
LAST_OF_CLASS_1 = 4


@dataclass
class ColoredConfig(DigitPairsConfig):
    """Data of a Colored MNIST experiment."""

    setup: Literal["adv", "rnd"] = field(
        default="adv",
        metadata={"help": "adv: partners in scheme C2 (agreement 0.9); rnd: partners in C4 (uniformly random colors)."},
    )
    color_draws: Literal["independent", "dependent"] = field(
        default="independent",
        metadata={
            "help": "Relation of C2 to C1. independent, as in the paper's tables; dependent, as released: the color of "
            "C1, made wrong with probability 0.1, which agrees in 0.72 of the rows and differs from C1 in 0.08."
        },
    )
    fresh_colors: bool = field(
        default=True,
        metadata={"help": "Redraw the partners' colors each epoch (paper); false keeps the first epoch's (released)."},
    )
    label_noise: Share = field(
        default=0.25, metadata={"help": "Share of flipped labels, 0 to 1; drawn once for all views and epochs."}
    )
    test_source: Literal["released", "test"] = field(
        default="released",
        metadata={
            "help": "released: rows of the train file from 40,000 on, as in the released code; test: the test file. "
            "The paper does not say."
        },
    )
    test_rows: Count = field(default=20_000, metadata={"help": "Test rows; at most the whole test file."})

    def check(self) -> None:
        """Refuse training on test rows."""
        if self.test_source == "released" and self.train_rows + self.validation_rows > RELEASED_TEST_START:
            raise DataError(
                f"train_rows={self.train_rows}, validation_rows={self.validation_rows}: expected at most "
                f"{RELEASED_TEST_START} in sum, since test_source=released tests on the rows after them"
            )

    @property
    def augmentation(self) -> str:
        """Color scheme of the training partners."""
        return AUGMENTATIONS[self.setup]


@dataclass(frozen=True, eq=False)
class _ColoredView(ImageView):
    """View of digits `[N, 28, 28]` in the colors of one scheme; `labels` are the noisy labels."""

    scheme: str
    file: str
    seed: int
    color_draws: str
    fresh: bool

    def transform(self, images: Tensor, rows: Tensor, epoch: int) -> Tensor:
        """Color images of file rows; returns `[B, 3, 28, 28]`."""
        epoch = epoch if self.fresh else 0
        colors = _draw_colors(self.scheme, self.labels[rows], rows, self.seed, epoch, self.file, self.color_draws)
        return recolor(super().transform(images, rows, epoch), colors)


def _draw_colors(
    scheme: str,
    labels: Tensor,
    rows: Tensor,
    seed: int,
    epoch: int = 0,
    file: str = "train",
    color_draws: str = "independent",
) -> Tensor:
    """Draw a color for each row: pure red or green, or for C4 a factor from U(0, 1) per channel."""
    agreement = SCHEMES[scheme]
    if agreement is None:
        return uniform(rows, seed, epoch, f"colored/{file}/{scheme}", count=3).float()
    agrees = uniform(rows, seed, epoch, f"colored/{file}/{scheme}")[:, 0] < agreement
    if scheme == "C2" and color_draws == "dependent":
        agrees &= uniform(rows, seed, 0, f"colored/{file}/C1")[:, 0] < C1_AGREEMENT
    index = torch.where(agrees, labels, 1 - labels)
    return torch.eye(3, device=labels.device)[index]


def _flipped_labels(digits: Tensor, rows: Tensor, noise: float, seed: int, file: str = "train") -> Tensor:
    """Return classes of digits (0 to 4 are class 1, 5 to 9 class 0), some of them flipped."""
    flipped = uniform(rows, seed, 0, f"colored/{file}/label_noise")[:, 0] < noise
    return ((digits <= LAST_OF_CLASS_1) ^ flipped).long()


def colored_train_pairs(mnist: Mapping[str, Digits], config: ColoredConfig, seed: int) -> TensorPairs:
    """Return the training pairs: originals in C1, drawn once, and partners in the scheme of the setup."""
    digits = mnist["train"]
    rows = rows_between(digits, 0, config.train_rows, "training")
    has_partner = subset(rows, config.partner_fraction, seed, "colored/partner")
    return _pairs(digits, "train", rows, config, seed, config.augmentation, config.fresh_colors, has_partner)


def colored_evaluation_pairs(
    mnist: Mapping[str, Digits], config: ColoredConfig, seed: int, split: str = "test", augmented: str = "C3"
) -> TensorPairs:
    """Return evaluation pairs: originals in C1, partners in another scheme, all drawn once; labels are noisy, too.

    The paper's accuracy is computed on the partners under C3, and CM as defined in its text on these pairs. The paper's
    figures more likely compare C1 with the augmentation; for those pass `augmented=config.augmentation`.
    """
    file = FILES[split] if config.test_source == "test" else "train"
    digits = mnist[file]
    if split == "validation":
        start, stop = config.train_rows, config.train_rows + config.validation_rows
    elif config.test_source == "released":
        start, stop = RELEASED_TEST_START, RELEASED_TEST_START + config.test_rows
    else:
        start, stop = 0, min(config.test_rows, len(digits.labels))
    rows = rows_between(digits, start, stop, split)
    return _pairs(digits, file, rows, config, seed, augmented, fresh=False)


def _pairs(
    digits: Digits,
    file: str,
    rows: Tensor,
    config: ColoredConfig,
    seed: int,
    augmented: str,
    fresh: bool,
    has_partner: Tensor | None = None,
) -> TensorPairs:
    labels = _flipped_labels(digits.labels, torch.arange(len(digits.labels)), config.label_noise, seed, file)
    original, partner = (
        _ColoredView(digits.images, labels, rows, scheme, file, seed, config.color_draws, redraw)
        for scheme, redraw in (("C1", False), (augmented, fresh))
    )
    return file_pairs(file, original, partner, has_partner, {"digit": digits.labels[rows].tolist()})
