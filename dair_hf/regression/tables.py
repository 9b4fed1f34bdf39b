"""Reader of regression data: the QSAR file of the paper, or another of its form."""

from __future__ import annotations

import os
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from dair_hf.errors import DataError


class RegressionData(NamedTuple):
    """Training and test rows.

    Attributes:
        train_features: `[N, D]` float32.
        train_targets: `[N]` float32.
        test_features: `[M, D]` float32.
        test_targets: `[M]` float32.
    """

    train_features: Tensor
    train_targets: Tensor
    test_features: Tensor
    test_targets: Tensor


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
