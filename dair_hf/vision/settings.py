"""What the experiments on images have in common: which rows are trained on, held out and paired."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

from dair_hf.errors import DataError

SPLITS = ("test", "validation")


@dataclass
class DigitPairsConfig:
    """Rows of an experiment on digits.

    Raises:
        DataError: A number of rows below 1, or a fraction outside [0, 1].

    Example:
        >>> DigitPairsConfig(partner_fraction=0.2).train_rows
        20000
    """

    PLACES: ClassVar = ("mnist",)  # its digits have a fingerprint, so where they lie is no setting

    mnist: str = field(
        default="ylecun/mnist",
        metadata={"help": "Folder with the parquet or IDX files of MNIST, or the name of a data set on the Hub."},
    )
    train_rows: int = field(
        default=20_000, metadata={"help": "Training rows, the first of the train file; >= 1. The paper's: 20,000."}
    )
    validation_rows: int = field(
        default=10_000,
        metadata={"help": "Rows of the train file, none of them trained or tested on, to choose lambda with; >= 1."},
    )
    partner_fraction: float = field(
        default=1.0,
        metadata={
            "help": "Share of the training rows that have a partner, in [0, 1]; a larger share adds to the rows."
        },
    )

    def __post_init__(self) -> None:
        for name in ("train_rows", "validation_rows"):
            require_rows(name, getattr(self, name))
        require_fraction("partner_fraction", self.partner_fraction)


def require_rows(name: str, value: int) -> None:
    """Refuse what is no number of rows.

    Raises:
        DataError: The value is below 1.
    """
    if value < 1:
        raise DataError(f"{name}={value} must be at least 1")


def require_fraction(name: str, value: float) -> None:
    """Refuse what is no share.

    Raises:
        DataError: The value lies outside [0, 1].
    """
    if not 0.0 <= value <= 1.0:
        raise DataError(f"{name}={value} must lie in [0, 1]: 0.25 is every fourth row")


def require_choice(name: str, value: str, choices: Collection[str]) -> None:
    """Refuse a name that is not among the known ones.

    Raises:
        DataError: The value is unknown.
    """
    if value not in choices:
        raise DataError(f"{name}: {value!r} does not exist; use one of {', '.join(choices)}")
