"""Readers of regression data: the QSAR file of the paper, or tables as CSV or parquet."""

from __future__ import annotations

import os
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from numpy.typing import NDArray
from torch import Tensor

from dair_hf.errors import DataError

QSAR_KEYS = ("X_train", "y_train", "X_test", "y_test")


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
    """Read the QSAR data (Olier et al., "Meta-QSAR", 2018) in the form used by the TERM and DAIR authors."""
    content = _load_mat(Path(path))
    if missing := [key for key in QSAR_KEYS if key not in content]:
        found = ", ".join(key for key in content if not key.startswith("__")) or "nothing"
        raise DataError(f"{path}: has no {', '.join(missing)} (found {found}); it needs {', '.join(QSAR_KEYS)}")
    parts = {key: _numbers(f"{path}: {key}", content[key]) for key in QSAR_KEYS}
    train = _rows(str(path), "X_train", parts["X_train"], "y_train", parts["y_train"])
    test = _rows(str(path), "X_test", parts["X_test"], "y_test", parts["y_test"])
    if train[0].shape[1] != test[0].shape[1]:
        raise DataError(
            f"{path}: X_train has {train[0].shape[1]} features, X_test {test[0].shape[1]}; they must be equal"
        )
    return RegressionData(*train, *test)


def read_table(train: str | os.PathLike[str], test: str | os.PathLike[str], target: str = "target") -> RegressionData:
    """Read two tables; every column but the target is a feature.

    Args:
        train: CSV (with a header) or parquet file of the training rows.
        test: File of the test rows, with the same columns in any order.
        target: Name of the target column.

    Returns:
        The rows, features in the column order of the training table.

    Raises:
        DataError: A file is missing, empty, damaged or of another format; the target column is missing; a column is not
            numeric or has a missing or infinite value; or the tables have different columns.

    Example:
        >>> read_table("train.csv", "test.csv", target="activity").train_targets.shape  # doctest: +SKIP
        torch.Size([3085])
    """
    first, second = _read(Path(train)), _read(Path(test))
    for path, table in ((train, first), (test, second)):
        if target not in table.column_names:
            raise DataError(f"{path}: no target column {target!r}; it has {', '.join(table.column_names)}")
    if differing := set(first.column_names) ^ set(second.column_names):
        raise DataError(f"{test}: columns differ from {train}: {', '.join(sorted(differing))} in only one of them")
    features = [name for name in first.column_names if name != target]
    if not features:
        raise DataError(f"{train}: holds only the target {target!r}; give at least one feature column")
    tensors = []
    for path, table in ((train, first), (test, second)):
        columns = {name: _column(path, name, table[name]) for name in (*features, target)}
        tensors += [torch.stack([columns[name] for name in features], dim=1), columns[target]]
    return RegressionData(*tensors)


def _load_mat(path: Path) -> Mapping[str, Any]:
    # Imported here, since only .mat files need the extra `regression`.
    import scipy.io  # type: ignore[import-untyped]
    from scipy.io.matlab import MatReadError  # type: ignore[import-untyped]

    if not path.is_file():
        raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give the .mat file")
    try:
        content: Mapping[str, Any] = scipy.io.loadmat(path, appendmat=False)
    except NotImplementedError as error:
        raise DataError(f"{path}: a MATLAB 7.3 file, which is HDF5; save it again with `save -v7`") from error
    except (MatReadError, ValueError, TypeError, KeyError, IndexError, OSError, zlib.error) as error:
        raise DataError(f"{path}: not a readable MATLAB file ({error}); fetch it again") from error
    return content


def _numbers(label: str, values: Any) -> NDArray[np.float32]:
    array = np.asarray(values)
    if array.dtype.kind not in "buif":
        raise DataError(f"{label} holds {array.dtype.name}, not numbers; give real numbers")
    with np.errstate(over="ignore"):  # overflow gives infinity, which is refused below
        converted = array.astype(np.float32)
    if len(bad := np.argwhere(~np.isfinite(converted))):
        position = ", ".join(str(index) for index in bad[0])
        raise DataError(
            f"{label} is {array[tuple(bad[0])]} at [{position}]; fill in or remove rows without a finite float32 value"
        )
    return converted


def _rows(
    path: str, matrix: str, features: NDArray[np.float32], vector: str, targets: NDArray[np.float32]
) -> tuple[Tensor, Tensor]:
    if features.ndim != 2 or 0 in features.shape:
        raise DataError(
            f"{path}: {matrix} has shape {list(features.shape)}; it must be [rows, features], both at least 1"
        )
    # MATLAB has no vectors, so accept a column or a row of the right length.
    if targets.size != len(features) or max(targets.shape, default=0) != targets.size:
        raise DataError(
            f"{path}: {vector} has shape {list(targets.shape)} for {len(features)} rows of {matrix}; it must be "
            f"[{len(features)}, 1]"
        )
    return torch.from_numpy(features.copy()), torch.from_numpy(targets.reshape(-1).copy())


def _read(path: Path) -> pa.Table:
    if not path.is_file():
        raise DataError(f"{path}: {'is a folder' if path.is_dir() else 'no such file'}; give a CSV or parquet file")
    if path.suffix not in (".csv", ".parquet"):
        raise DataError(f"{path}: neither .csv nor .parquet; save the table as one of them")
    try:
        # Read as a single file, so that folder names such as `split=train` do not become columns.
        table = pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pyarrow.parquet.ParquetFile(path).read()
        table.column_names  # noqa: B018 - decoded here
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: the header is not UTF-8 text; re-save the file as UTF-8") from error
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable {path.suffix[1:]} file ({error}); fetch or save it again") from error
    if len(table) == 0:
        raise DataError(f"{path}: holds no rows; check the export")
    if len(set(table.column_names)) < len(table.column_names):
        raise DataError(f"{path}: has duplicate columns ({', '.join(table.column_names)}); give each a unique name")
    return table


def _column(path: str | os.PathLike[str], name: str, column: pa.ChunkedArray) -> Tensor:
    kind = column.type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)):
        raise DataError(f"{path}: column {name!r} holds {kind}, not numbers; encode it as numbers or remove it")
    if column.null_count:
        row = column.is_null().to_pylist().index(True)
        raise DataError(f"{path}: column {name!r} has no value in row {row}; fill it in or remove the row")
    return torch.from_numpy(_numbers(f"{path}: column {name!r}", column.to_numpy()))
