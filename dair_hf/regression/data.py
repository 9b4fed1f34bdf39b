"""Pairs for robust regression (paper, section 6): a spurious feature that is reversed at test.

The feature is 1 for targets above a median and 0 otherwise; at test it is reversed. A share of the training targets can
be replaced by noise. The partner of a training row is the same row with another value of the feature.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dair_hf.data.counter_rng import uniform
from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.settings import Range, Settings, Share

NOISE_MEAN, NOISE_STD = 5.0, 5.0  # in units of the target
TOLERANCE = 1.0  # largest error of a prediction that counts as correct, in units of the target


class RegressionData(NamedTuple):
    """Training and test rows, float32."""

    train_features: Tensor  # [N, D]
    train_targets: Tensor  # [N]
    test_features: Tensor  # [M, D]
    test_targets: Tensor  # [M]


@dataclass
class RegressionConfig(Settings):
    """Data of a robust regression."""

    PATH_FIELDS: ClassVar = ("data_file",)  # not compared between runs: the data have a fingerprint

    data_file: str | None = field(
        default=None, metadata={"help": "Training and test rows as a .mat file, with the keys of QSAR."}
    )
    spurious_feature: bool = field(
        default=True,
        metadata={
            "help": "Add the spurious feature, and partners with another value of it. false adds neither; with ERM "
            "this is `clean ERM` of the paper."
        },
    )
    noise_share: Share = field(
        default=0.0, metadata={"help": "Share of the training targets replaced by noise. Paper: 0, 0.2, 0.4."}
    )
    augmented_feature: Literal["bernoulli", "one"] = field(
        default="bernoulli",
        metadata={
            "help": "Feature of the partners. bernoulli (paper): 0 or 1 with equal probability, redrawn each epoch; "
            "one (as released): always 1."
        },
    )
    validation_share: Annotated[float, Range(low=0, below=1)] = field(
        default=0.0,
        metadata={
            "help": "Share of the training rows held out to choose lambda with; their targets stay clean. 0 (as "
            "released) trains on all rows and leaves no validation split."
        },
    )


class _TrainingSplit(NamedTuple):
    """Training rows of one seed: R rows to train on and V held out."""

    rows: Tensor
    targets: Tensor
    is_noise: Tensor
    validation_rows: Tensor


@dataclass(frozen=True, eq=False)
class _RandomFeatureView:
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
    """Read the configured file."""
    if config.data_file is None:
        raise DataError("data_file: expected the path of qsar.mat")
    return read_qsar(config.data_file)


def _split_training(data: RegressionData, config: RegressionConfig, seed: int) -> _TrainingSplit:
    """Shuffle the training rows, hold some out and replace targets by noise, with the draws of the released code.

    The draws from one `RandomState(seed)` are a permutation of the training rows (from a separate generator with the
    same seed), a permutation of the test rows, then `int(noise_share * R)` numbers from `N(5, 5^2)`,
    which replace the targets of the first shuffled rows. Rows are held out from the end, so their targets are clean.
    """
    total = len(data.train_targets)
    order = np.random.RandomState(seed).permutation(total)
    n_train = total - round(config.validation_share * total)
    # The released code reseeds, then shuffles the test rows, then draws the noise.
    generator = np.random.RandomState(seed)
    generator.permutation(len(data.test_targets))
    n_noise = int(config.noise_share * n_train)
    rows = torch.from_numpy(order[:n_train])
    targets = data.train_targets[rows]
    targets[:n_noise] = torch.from_numpy(generator.normal(NOISE_MEAN, NOISE_STD, n_noise)).float()
    return _TrainingSplit(rows, targets, torch.arange(n_train) < n_noise, torch.from_numpy(order[n_train:]))


def regression_train_pairs(data: RegressionData, config: RegressionConfig, seed: int) -> TensorPairs:
    """Return the training pairs; the last feature of originals is `[y > median of the noisy training targets]`.

    Args:
        data: All rows.
        seed: Seed of the shuffle, the noise and the partners' feature.

    Returns:
        `features` `[D + 1]` and `labels`, which both views share; without `spurious_feature`, `features` `[D]` and no
        partners. Row ids are `train/<row number in the file>`.

    Example:
        >>> rows = RegressionData(torch.zeros(3, 1), torch.tensor([1.0, 2.0, 3.0]), torch.zeros(1, 1), torch.zeros(1))
        >>> pairs = regression_train_pairs(rows, RegressionConfig(augmented_feature="one"), seed=0)
        >>> pairs[0]["labels"], pairs[0]["features"], pairs[0]["augmented_features"]
        (tensor(3.), tensor([0., 1.]), tensor([0., 1.]))
    """
    split = _split_training(data, config, seed)
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
        else _RandomFeatureView(partner, labels, seed),
        row_ids=row_ids,
    )


def regression_evaluation_pairs(
    data: RegressionData, config: RegressionConfig, seed: int, split: str = "test"
) -> TensorPairs:
    """Return evaluation pairs: originals with the feature reversed, partners with the feature as in training.

    The paper's RMSE is computed on the originals. The feature is reversed at the median of these rows, as in the
    released code. The paper's text has the median of the noisy training targets: at 40 % noise the paper's ERM has RMSE
    5.30, ours (three seeds) 5.29 with the former and 5.50 with the latter; without noise they differ by 0.01.
    """
    held_out = _split_training(data, config, seed).validation_rows
    rows = {"test": torch.arange(len(data.test_targets)), "validation": held_out}[split]
    if not len(rows):  # before a search trains for validation rows
        raise DataError(f"{split}: expected rows, got none with validation_share={config.validation_share}")
    file = "test" if split == "test" else "train"
    features, labels = data[2:] if split == "test" else (data.train_features[rows], data.train_targets[rows])
    row_ids = [f"{file}/{row}" for row in rows.tolist()]
    if not config.spurious_feature:
        return TensorPairs({"features": features, "labels": labels}, row_ids=row_ids)
    above = labels > labels.median()
    return TensorPairs(
        {"features": _with_feature(features, ~above), "labels": labels},
        {"features": _with_feature(features, above), "labels": labels},
        row_ids=row_ids,
    )


def _with_feature(features: Tensor, feature: Tensor) -> Tensor:
    return torch.cat([features, feature.to(features.dtype)[:, None]], dim=1)


def read_qsar(path: str | os.PathLike[str]) -> RegressionData:
    """Read the QSAR data (Olier et al., "Meta-QSAR", 2018) in the form used by the TERM and DAIR authors.

    For a table of your own, save `X_train` `[N, D]`, `y_train` `[N]`, `X_test` and `y_test` with `scipy.io.savemat`.
    """
    import scipy.io  # type: ignore[import-untyped]  # only .mat files need the extra `regression`

    content = scipy.io.loadmat(path, appendmat=False)
    parts = (_floats(content[name]) for name in ("X_train", "y_train", "X_test", "y_test"))
    # MATLAB stores targets as a column or a row.
    return _checked(path, *(part.reshape(-1) if number % 2 else part for number, part in enumerate(parts)))


def _floats(values: ArrayLike) -> NDArray[np.float32]:
    return np.asarray(values).astype(np.float32, casting="same_kind")  # refuses text and complex numbers


def _checked(source: str | os.PathLike[str], *parts: NDArray[np.float32]) -> RegressionData:
    """Return the rows; refuse invalid values and shapes, which would pass unnoticed in training."""
    train, train_targets, test, test_targets = parts
    if not (
        train.shape[:1] == train_targets.shape
        and test.shape[:1] == test_targets.shape
        and train.shape[1:] == test.shape[1:]
        and train.size
        and test.size
    ):
        shapes = ", ".join(str(list(part.shape)) for part in parts)
        raise DataError(f"{source}: training and test have shapes {shapes}; expected [N, D], [N], [M, D], [M]")
    if not all(np.isfinite(part).all() for part in parts):
        raise DataError(f"{source}: a value is missing, infinite or beyond float32; fill it in or remove its row")
    return RegressionData(*(torch.from_numpy(part.copy()) for part in parts))
