"""Rotated 6 and 9 (paper, section 3): half a turn makes one the other, so the label changes with the image."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dair_hf.data.counter_rng import subset
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.vision.labelled_images import file_of
from dair_hf.vision.mnist.digits import MNIST, Digits
from dair_hf.vision.mnist.rotated import RotatedView, pairs_of
from dair_hf.vision.settings import SPLITS, DigitPairsConfig, require_choice

SIX, NINE = 6, 9
HALF_TURN = 180.0  # degrees


@dataclass
class SixNineConfig(DigitPairsConfig):
    """Data of the experiment on 6 and 9; rows are counted among these two digits.

    Raises:
        DataError: A number is out of range.

    Example:
        >>> SixNineConfig().validation_rows
        2000
    """

    train_rows: int = field(
        default=9_867,
        metadata={"help": "Training rows, the first sixes and nines of the train file, which has 11,867; >= 1."},
    )
    validation_rows: int = field(
        default=2_000, metadata={"help": "The last sixes and nines of the train file, to choose lambda with; >= 1."}
    )


def train_pairs(mnist: Mapping[str, Digits], config: SixNineConfig, seed: int) -> TensorPairs:
    """The training pairs: a digit upright, and half a turn further with the other label.

    Args:
        mnist: What `load_mnist` read, by split; needs "train".
        config: The experiment.
        seed: Seed of the choice of rows with partner.

    Returns:
        `pixel_values` `[1, 28, 28]` and `labels`, 0 for a six and 1 for a nine; column `digit` beside them.

    Raises:
        DataError: The file has too few sixes and nines.
    """
    digits = file_of(mnist, "train", "training", MNIST)
    rows = _training_and_validation(digits, config)[0]
    return _pairs(digits, "train", rows, 0.0, subset(rows, config.partner_fraction, seed, "six_nine/partner"))


def evaluation_pairs(
    mnist: Mapping[str, Digits], config: SixNineConfig, theta: float, split: str = "test"
) -> TensorPairs:
    """Pairs for accuracy and CM: digits turned by `theta`, partners half a turn further with the other label.

    Args:
        mnist: What `load_mnist` read, by split; needs "test", for the validation "train".
        config: The experiment.
        theta: Degrees counter-clockwise; the paper's go from 0 to 60. From 90 on a six looks like a nine.
        split: "test" or "validation".

    Returns:
        As `train_pairs`.

    Raises:
        DataError: A file is missing or has too few sixes and nines, or the split does not exist.
    """
    require_choice("split", split, SPLITS)
    file = "test" if split == "test" else "train"
    digits = file_of(mnist, file, split, MNIST)
    rows = _sixes_and_nines(digits) if split == "test" else _training_and_validation(digits, config)[1]
    return _pairs(digits, file, rows, theta, None)


def _sixes_and_nines(digits: Digits) -> Tensor:
    rows = ((digits.labels == SIX) | (digits.labels == NINE)).nonzero()[:, 0]
    if not len(rows):
        raise DataError("the file of digits holds neither a six nor a nine; check the labels")
    return rows


def _training_and_validation(digits: Digits, config: SixNineConfig) -> tuple[Tensor, Tensor]:
    rows = _sixes_and_nines(digits)
    if len(rows) < config.train_rows + config.validation_rows:
        raise DataError(
            f"train_rows={config.train_rows} and validation_rows={config.validation_rows} asked for, but the train "
            f"file has {len(rows)} sixes and nines; use fewer rows"
        )
    return rows[: config.train_rows], rows[len(rows) - config.validation_rows :]


def _pairs(digits: Digits, file: str, rows: Tensor, theta: float, has_partner: Tensor | None) -> TensorPairs:
    is_nine = (digits.labels == NINE).long()
    views = [
        RotatedView(digits.images, labels, rows, ((angle, angle),))
        for labels, angle in ((is_nine, theta), (1 - is_nine, theta + HALF_TURN))
    ]
    return pairs_of(views, digits, file, has_partner)
