"""Pairs for robust regression (paper, section 6): a spurious feature that is reversed at test.

The feature is 1 for targets above a median and 0 otherwise; at test it is reversed. A share of the training targets can
be replaced by noise. The partner of a training row is the same row with another value of the feature.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.counter_rng import subset, uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.regression.tables import RegressionData, read_qsar, read_table

SPLITS = ("test", "validation")
AUGMENTED_FEATURES = ("bernoulli", "one")
THRESHOLDS = ("test", "train")


@dataclass
class RegressionConfig:
    """Data of a robust regression."""

    PATH_FIELDS: ClassVar = ("data_file", "test_file")  # not compared between runs: the data have a fingerprint

    data_file: str | None = field(
        default=None, metadata={"help": "QSAR as .mat, or the training rows of your own table as .csv or .parquet."}
    )
    test_file: str | None = field(
        default=None, metadata={"help": "Test rows, .csv or .parquet; a .mat file contains its own."}
    )
    target: str = field(default="target", metadata={"help": "Target column of a .csv or .parquet file."})
    spurious_feature: bool = field(
        default=True,
        metadata={
            "help": "Add the spurious feature, and partners with another value of it. false adds neither; with ERM "
            "this is `clean ERM` of the paper."
        },
    )
    noise_share: float = field(
        default=0.0,
        metadata={"help": "Share of the training targets replaced by noise, in [0, 1]. Paper: 0, 0.2, 0.4."},
    )
    noise_mean: float = field(default=5.0, metadata={"help": "Mean of the noise, in units of the target."})
    noise_std: float = field(
        default=5.0, metadata={"help": "Standard deviation of the noise, in units of the target, >= 0."}
    )
    augmented_feature: str = field(
        default="bernoulli",
        metadata={
            "help": "Feature of the partners. bernoulli (paper): 0 or 1 with equal probability, redrawn each epoch; "
            "one (as released): always 1.",
            "choices": AUGMENTED_FEATURES,
        },
    )
    partner_fraction: float = field(
        default=1.0, metadata={"help": "Share of the training rows that have a partner, in [0, 1]."}
    )
    test_threshold: str = field(
        default="test",
        metadata={
            "help": "Median at which the test feature is reversed. test (as released): median of the test targets; "
            "train (paper): median of the noisy training targets. At 40 % noise the paper's ERM has RMSE 5.30, ours (3 "
            "seeds) 5.29 with test and 5.50 with train; without noise they differ by 0.01.",
            "choices": THRESHOLDS,
        },
    )
    validation_share: float = field(
        default=0.0,
        metadata={
            "help": "Share of the training rows held out to choose lambda with, in [0, 1); their targets stay clean. 0 "
            "(as released) trains on all rows and leaves no validation split."
        },
    )
    tolerance: float = field(
        default=1.0, metadata={"help": "Largest error of a prediction that counts as correct, in units of the target."}
    )

    def __post_init__(self) -> None:
        for name, choices in (("augmented_feature", AUGMENTED_FEATURES), ("test_threshold", THRESHOLDS)):
            if getattr(self, name) not in choices:
                raise DataError(f"{name}={getattr(self, name)!r} is unknown; use one of {', '.join(choices)}")
        for name in ("noise_share", "partner_fraction"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise DataError(f"{name}={getattr(self, name)} must be in [0, 1]: 0.2 is every fifth row")
        if not 0.0 <= self.validation_share < 1.0:
            raise DataError(f"validation_share={self.validation_share} must be in [0, 1), to leave rows to train on")
        if not np.isfinite(self.noise_mean):
            raise DataError(f"noise_mean={self.noise_mean} must be a finite number")
        for name in ("noise_std", "tolerance"):
            if not 0.0 <= getattr(self, name) < np.inf:
                raise DataError(f"{name}={getattr(self, name)} must be a finite number, 0 or more")


class TrainingSplit(NamedTuple):
    """Training rows of one seed: R rows to train on and V held out."""

    rows: Tensor
    targets: Tensor
    is_noise: Tensor
    validation_rows: Tensor


@dataclass(frozen=True, eq=False)
class RandomFeatureView:
    """View of `TensorPairs` whose last feature is 0 or 1 with equal probability, redrawn each epoch."""

    features: Tensor
    labels: Tensor
    seed: int

    def __call__(self, rows: Tensor, epoch: int) -> dict[str, Tensor]:
        """Return `features` `[B, D]` and `labels` `[B]` of `rows` in `epoch`."""
        features = self.features.index_select(0, rows)  # a copy, so the draw does not modify `self.features`
        features[:, -1] = uniform(rows, self.seed, epoch, "regression/spurious_feature")[:, 0] < 0.5
        return {"features": features, "labels": self.labels[rows]}


def load_regression(config: RegressionConfig) -> RegressionData:
    """Read the configured files."""
    if config.data_file is None:
        raise DataError("data_file is not set; give qsar.mat, or the training rows of a table as .csv or .parquet")
    if Path(config.data_file).suffix == ".mat":
        if config.test_file is not None:
            raise DataError(f"test_file={config.test_file!r}: a .mat file contains its own test rows; leave it out")
        return read_qsar(config.data_file)
    if config.test_file is None:
        raise DataError(f"test_file is not set; {config.data_file} holds training rows only, give the test rows too")
    return read_table(config.data_file, config.test_file, config.target)


def split_training(data: RegressionData, config: RegressionConfig, seed: int) -> TrainingSplit:
    """Shuffle the training rows, hold some out and replace targets by noise, with the draws of the released code.

    The draws from one `RandomState(seed)` are a permutation of the training rows (from a separate generator with the
    same seed), a permutation of the test rows, then `int(noise_share * R)` numbers from `N(noise_mean, noise_std^2)`,
    which replace the targets of the first shuffled rows. Rows are held out from the end, so their targets are clean.
    """
    total = len(data.train_targets)
    order = np.random.RandomState(seed).permutation(total)
    n_train = total - round(config.validation_share * total)
    if n_train == 0:
        raise DataError(f"validation_share={config.validation_share} holds out all {total} training rows; use less")
    # The released code reseeds, then shuffles the test rows, then draws the noise.
    generator = np.random.RandomState(seed)
    generator.permutation(len(data.test_targets))
    n_noise = int(config.noise_share * n_train)
    rows = torch.from_numpy(order[:n_train])
    targets = data.train_targets[rows]
    targets[:n_noise] = torch.from_numpy(generator.normal(config.noise_mean, config.noise_std, n_noise)).float()
    return TrainingSplit(rows, targets, torch.arange(n_train) < n_noise, torch.from_numpy(order[n_train:]))


def train_pairs(data: RegressionData, config: RegressionConfig, seed: int) -> TensorPairs:
    """Return the training pairs; the last feature of originals is `[y > median of the noisy training targets]`.

    Args:
        data: All rows.
        seed: Seed of the shuffle, the noise, the partners' feature and the choice of rows with partners.

    Returns:
        `features` `[D + 1]` and `labels`, which both views share; without `spurious_feature`, `features` `[D]` and no
        partners. Row ids are `train/<row number in the file>`.

    Raises:
        DataError: No row is left to train on.

    Example:
        >>> rows = RegressionData(torch.zeros(3, 1), torch.tensor([1.0, 2.0, 3.0]), torch.zeros(1, 1), torch.zeros(1))
        >>> pairs = train_pairs(rows, RegressionConfig(augmented_feature="one"), seed=0)
        >>> pairs[0]["labels"], pairs[0]["features"], pairs[0]["augmented_features"]
        (tensor(3.), tensor([0., 1.]), tensor([0., 1.]))
    """
    split = split_training(data, config, seed)
    features, labels = data.train_features[split.rows], split.targets
    row_ids = [f"train/{row}" for row in split.rows.tolist()]
    if not config.spurious_feature:
        return TensorPairs({"features": features, "labels": labels}, row_ids=row_ids)
    # For an even number of rows, torch's median is the lower of the two in the middle.
    original = _with_feature(features, labels > labels.median())
    partner = _with_feature(features, torch.ones_like(labels))
    return TensorPairs(
        {"features": original, "labels": labels},
        {"features": partner, "labels": labels}
        if config.augmented_feature == "one"
        else RandomFeatureView(partner, labels, seed),
        has_partner=subset(torch.arange(len(labels)), config.partner_fraction, seed, "regression/partner"),
        row_ids=row_ids,
    )


def evaluation_pairs(data: RegressionData, config: RegressionConfig, seed: int, split: str = "test") -> TensorPairs:
    """Return evaluation pairs: originals with the feature reversed, partners with the feature as in training.

    The paper's RMSE is that of the originals. `test_threshold` selects the median at which the feature is reversed; for
    `test_threshold="test"`, validation rows use their own median.

    Args:
        data: All rows.
        split: "test", or "validation" for the held-out training rows.

    Returns:
        As `train_pairs`, with targets free of noise; row ids are `test/<row>` or `train/<row>`.

    Raises:
        DataError: An unknown split, or no validation rows were held out.
    """
    if split not in SPLITS:
        raise DataError(f"split={split!r} is unknown; use one of {', '.join(SPLITS)}")
    training = split_training(data, config, seed)
    if split == "test":
        file, rows = "test", torch.arange(len(data.test_targets))
        features, labels = data.test_features, data.test_targets
    else:
        if not len(training.validation_rows):
            raise DataError(f"validation_share={config.validation_share} holds out no row; use 0.2 or so")
        file, rows = "train", training.validation_rows
        features, labels = data.train_features[rows], data.train_targets[rows]
    row_ids = [f"{file}/{row}" for row in rows.tolist()]
    if not config.spurious_feature:
        return TensorPairs({"features": features, "labels": labels}, row_ids=row_ids)
    above = labels > (labels if config.test_threshold == "test" else training.targets).median()
    return TensorPairs(
        {"features": _with_feature(features, ~above), "labels": labels},
        {"features": _with_feature(features, above), "labels": labels},
        row_ids=row_ids,
    )


def _with_feature(features: Tensor, feature: Tensor) -> Tensor:
    return torch.cat([features, feature.to(features.dtype)[:, None]], dim=1)
