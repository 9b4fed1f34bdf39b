"""Colored MNIST (paper, section 4): a colour that agrees with the label more often than the shape does, as pairs.

Digits 0 to 4 are class 1, 5 to 9 class 0, and a quarter of the labels is wrong, in training and test. A colour has
index 0 (red) or 1 (green) and *agrees* where its index is the noisy label. So a model that trusts the colour of the
training scheme C1 (agreement 0.8) beats one that reads the shape (0.75), and fails under the test scheme C3 (0.1).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dair_hf.augment.images import recolor
from dair_hf.data.counter_rng import subset, uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.labelled_images import file_of, rows_between
from dair_hf.vision.mnist.digits import MNIST, Digits
from dair_hf.vision.settings import SPLITS, DigitPairsConfig, require_choice, require_fraction, require_rows

# Scheme -> probability that the colour agrees with the noisy label; None: three factors drawn from U(0, 1).
SCHEMES: dict[str, float | None] = {"C1": 0.8, "C2": 0.9, "C3": 0.1, "C4": None}
AUGMENTATIONS = {"adv": "C2", "rnd": "C4"}
COLOR_DRAWS = ("independent", "dependent")
TEST_SOURCES = ("released", "test")
RELEASED_TEST_START = 40_000
LAST_OF_CLASS_1 = 4


@dataclass
class ColoredConfig(DigitPairsConfig):
    """Data of a Colored MNIST experiment.

    Raises:
        DataError: An unknown setup or choice, a number out of range, or rows that overlap.

    Example:
        >>> ColoredConfig(setup="rnd").augmentation
        'C4'
    """

    setup: str = field(
        default="adv",
        metadata={
            "help": "adv: partners in scheme C2 (agreement 0.9); rnd: partners in C4 (uniformly random colours).",
            "choices": tuple(AUGMENTATIONS),
        },
    )
    color_draws: str = field(
        default="independent",
        metadata={
            "help": "How C2 is drawn beside C1. independent, as the paper's tables say; dependent, as released: C1's "
            "colour, made wrong with probability 0.1, so that it agrees in 0.72 of the rows and differs in 0.08.",
            "choices": COLOR_DRAWS,
        },
    )
    fresh_colors: bool = field(
        default=True,
        metadata={"help": "Draw the partners' colours anew each epoch (paper); false keeps the first (released)."},
    )
    label_noise: float = field(
        default=0.25, metadata={"help": "Share of labels that are flipped, once for all views and epochs; in [0, 1]."}
    )
    test_source: str = field(
        default="released",
        metadata={
            "help": "released: rows of the train file from 40,000 on, as the released code tests on; test: the test "
            "file. The paper does not say.",
            "choices": TEST_SOURCES,
        },
    )
    test_rows: int = field(
        default=20_000, metadata={"help": "Test rows, >= 1; of the test file at most those that are there."}
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        require_choice("setup", self.setup, AUGMENTATIONS)
        require_choice("color_draws", self.color_draws, COLOR_DRAWS)
        require_choice("test_source", self.test_source, TEST_SOURCES)
        require_fraction("label_noise", self.label_noise)
        require_rows("test_rows", self.test_rows)
        used = self.train_rows + self.validation_rows
        if self.test_source == "released" and used > RELEASED_TEST_START:
            raise DataError(
                f"train_rows={self.train_rows} and validation_rows={self.validation_rows} reach row {used - 1}, and "
                f"test_source='released' tests from row {RELEASED_TEST_START} on; use fewer, or test_source='test'"
            )

    @property
    def augmentation(self) -> str:
        """Scheme of the training partners."""
        return AUGMENTATIONS[self.setup]


@dataclass(frozen=True, eq=False)
class ColoredView:
    """A view of `TensorPairs`: digits in the colours of one scheme.

    Attributes:
        images: `[N, 28, 28]` uint8, all digits of the file.
        labels: `[N]` int64, the noisy labels of all of them.
        rows: `[M]` int64, which of them the pairs hold.
        scheme: Name of the colour scheme.
        file: "train" or "test": where the digits are from.
        seed: Seed of the draws.
        color_draws: "independent" or "dependent".
        fresh: Whether colours are drawn anew each epoch.
    """

    images: Tensor
    labels: Tensor
    rows: Tensor
    scheme: str
    file: str
    seed: int
    color_draws: str
    fresh: bool

    def __call__(self, places: Tensor, epoch: int) -> dict[str, Tensor]:
        """`pixel_values` `[B, 3, 28, 28]` float32 in 0..1 and `labels` `[B]` int64 of the pairs at `places`."""
        rows = self.rows[places]
        labels = self.labels[rows]
        colors = draw_colors(
            self.scheme, labels, rows, self.seed, epoch if self.fresh else 0, self.file, self.color_draws
        )
        images = self.images.index_select(0, rows).float().div_(255)
        return {"pixel_values": recolor(images, colors), "labels": labels}


def draw_colors(
    scheme: str,
    labels: Tensor,
    rows: Tensor,
    seed: int,
    epoch: int = 0,
    file: str = "train",
    color_draws: str = "independent",
) -> Tensor:
    """The colour of each row under a scheme: pure red or green, or for C4 a factor from U(0, 1) for each channel.

    Args:
        scheme: "C1", "C2", "C3" or "C4".
        labels: `[B]` int64, the noisy labels, 0 or 1.
        rows: `[B]` int64, number of each row in its file.
        seed: Seed of the draws.
        epoch: Epoch. The colours that dependent draws start from are those of epoch 0.
        file: "train" or "test".
        color_draws: "dependent" draws C2 from C1's colour.

    Returns:
        `[B, 3]` float32: red, green, blue.

    Raises:
        DataError: There is no such scheme.

    Example:
        >>> draw_colors("C3", torch.tensor([1, 1]), torch.tensor([0, 2]), seed=0)
        tensor([[1., 0., 0.],
                [1., 0., 0.]])
    """
    require_choice("colour scheme", scheme, SCHEMES)
    agreement = SCHEMES[scheme]
    if agreement is None:
        return uniform(rows, seed, epoch, f"colored/{file}/{scheme}", count=3).float()
    agrees = uniform(rows, seed, epoch, f"colored/{file}/{scheme}")[:, 0] < agreement
    if scheme == "C2" and color_draws == "dependent":
        agrees &= _agrees_in_c1(rows, seed, file)
    index = torch.where(agrees, labels, 1 - labels)
    return torch.eye(3, device=labels.device)[index]


def noisy_labels(digits: Tensor, rows: Tensor, noise: float, seed: int, file: str = "train") -> Tensor:
    """Classes of digits, some of them flipped: 0 to 4 are class 1, 5 to 9 class 0.

    Args:
        digits: `[B]` int64, 0 to 9.
        rows: `[B]` int64, number of each row in its file.
        noise: Share that is flipped.
        seed: Seed of the draw.
        file: "train" or "test".

    Returns:
        `[B]` int64, 0 or 1.

    Example:
        >>> noisy_labels(torch.tensor([0, 4, 5, 9]), torch.arange(4), noise=0.0, seed=0)
        tensor([1, 1, 0, 0])
    """
    flipped = uniform(rows, seed, 0, f"colored/{file}/label_noise")[:, 0] < noise
    return ((digits <= LAST_OF_CLASS_1) ^ flipped).long()


def train_pairs(mnist: Mapping[str, Digits], config: ColoredConfig, seed: int) -> TensorPairs:
    """The training pairs: originals in C1, drawn once, partners in the scheme of the setup.

    Args:
        mnist: What `load_mnist` read, by split; needs "train".
        config: The experiment.
        seed: Seed of label noise, colours and the choice of rows with partner.

    Returns:
        `pixel_values` `[3, 28, 28]` and `labels`; column `digit` beside them.

    Raises:
        DataError: The file has too few rows.
    """
    digits = file_of(mnist, "train", "training", MNIST)
    rows = rows_between(digits, 0, config.train_rows, "training")
    has_partner = subset(rows, config.partner_fraction, seed, "colored/partner")
    return _pairs(digits, "train", rows, config, seed, config.augmentation, has_partner, config.fresh_colors)


def evaluation_pairs(
    mnist: Mapping[str, Digits], config: ColoredConfig, seed: int, split: str = "test", augmented: str = "C3"
) -> TensorPairs:
    """Pairs for accuracy and CM: originals in C1, partners in another scheme, all drawn once; labels noisy as well.

    The paper's accuracy is that of the partners under C3. Its CM is, as the text defines it, that of these pairs; its
    figures more likely compare C1 with the augmentation: pass `augmented=config.augmentation` for those.

    Args:
        mnist: What `load_mnist` read, by split; needs "train", with `test_source="test"` for the test also "test".
        config: The experiment.
        seed: Seed of label noise and colours.
        split: "test", or "validation": rows that follow the training rows.
        augmented: Scheme of the partners.

    Returns:
        As `train_pairs`.

    Raises:
        DataError: A file is missing or has too few rows, or the split or the scheme does not exist.
    """
    require_choice("split", split, SPLITS)
    require_choice("colour scheme", augmented, SCHEMES)
    file = "test" if split == "test" and config.test_source == "test" else "train"
    digits = file_of(mnist, file, split, MNIST)
    if split == "validation":
        start, stop = config.train_rows, config.train_rows + config.validation_rows
    elif config.test_source == "released":
        start, stop = RELEASED_TEST_START, RELEASED_TEST_START + config.test_rows
    else:
        start, stop = 0, min(config.test_rows, len(digits.labels))
    rows = rows_between(digits, start, stop, split)
    return _pairs(digits, file, rows, config, seed, augmented, None, fresh=False)


def _pairs(
    digits: Digits,
    file: str,
    rows: Tensor,
    config: ColoredConfig,
    seed: int,
    augmented: str,
    has_partner: Tensor | None,
    fresh: bool,
) -> TensorPairs:
    labels = noisy_labels(digits.labels, torch.arange(len(digits.labels)), config.label_noise, seed, file)
    common = (file, seed, config.color_draws)
    return TensorPairs(
        ColoredView(digits.images, labels, rows, "C1", *common, fresh=False),
        ColoredView(digits.images, labels, rows, augmented, *common, fresh=fresh),
        rows=len(rows),
        has_partner=has_partner,
        row_ids=[f"{file}/{row}" for row in rows.tolist()],
        columns={"digit": digits.labels[rows].tolist()},
    )


def _agrees_in_c1(rows: Tensor, seed: int, file: str) -> Tensor:
    agreement = SCHEMES["C1"]
    assert agreement is not None
    return uniform(rows, seed, 0, f"colored/{file}/C1")[:, 0] < agreement
