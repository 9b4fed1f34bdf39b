"""Rotated 6 and 9 (paper, section 3): rotation by 180 degrees turns one into the other, so the label changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from dair_hf.data.counter_rng import subset
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.settings import Count
from dair_hf.vision.image_pairs import FILES, file_pairs
from dair_hf.vision.mnist.digits import DigitPairsConfig, Digits
from dair_hf.vision.mnist.rotated import RotatedView

SIX, NINE = 6, 9
HALF_TURN = 180.0  # degrees


@dataclass
class SixNineConfig(DigitPairsConfig):
    """Data of the experiment on 6 and 9; numbers of rows count these two digits only."""

    train_rows: Count = field(
        default=9_867, metadata={"help": "Training rows, the first of the 11,867 sixes and nines in the train file."}
    )
    validation_rows: Count = field(
        default=2_000, metadata={"help": "Last sixes and nines of the train file, to choose lambda with."}
    )


def six_nine_train_pairs(mnist: Mapping[str, Digits], config: SixNineConfig, seed: int) -> TensorPairs:
    """Return the training pairs: upright digits, and the same rotated by 180 degrees with the other label."""
    digits = mnist["train"]
    rows = _training_and_validation(digits, config)[0]
    return _pairs(digits, "train", rows, 0.0, subset(rows, config.partner_fraction, seed, "six_nine/partner"))


def six_nine_evaluation_pairs(
    mnist: Mapping[str, Digits], config: SixNineConfig, theta: float, split: str = "test"
) -> TensorPairs:
    """Return evaluation pairs: digits rotated by `theta`, partners by 180 degrees more with the other label."""
    file = FILES[split]
    digits = mnist[file]
    rows = _sixes_and_nines(digits) if split == "test" else _training_and_validation(digits, config)[1]
    return _pairs(digits, file, rows, theta, None)


def _sixes_and_nines(digits: Digits) -> Tensor:
    return ((digits.labels == SIX) | (digits.labels == NINE)).nonzero()[:, 0]


def _training_and_validation(digits: Digits, config: SixNineConfig) -> tuple[Tensor, Tensor]:
    rows = _sixes_and_nines(digits)
    if len(rows) < config.train_rows + config.validation_rows:
        raise DataError(
            f"train_rows={config.train_rows}, validation_rows={config.validation_rows}: expected at most {len(rows)} "
            "in sum, the sixes and nines of the train file"
        )
    return rows[: config.train_rows], rows[len(rows) - config.validation_rows :]


def _pairs(digits: Digits, file: str, rows: Tensor, theta: float, has_partner: Tensor | None) -> TensorPairs:
    is_nine = (digits.labels == NINE).long()
    original, augmented = (
        RotatedView(digits.images, labels, rows, ((angle, angle),))
        for labels, angle in ((is_nine, theta), (1 - is_nine, theta + HALF_TURN))
    )
    return file_pairs(file, original, augmented, has_partner, {"digit": digits.labels[rows].tolist()})
