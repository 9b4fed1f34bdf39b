"""Readers of QSAR files and tables, and their errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import scipy.io
import scipy.sparse
import torch

from dair_hf.errors import DataError
from dair_hf.regression.tables import read_qsar, read_regression_tables


def parts(rows: int = 6, tests: int = 4, features: int = 3) -> dict[str, Any]:
    random = np.random.default_rng(0)
    return {
        "X_train": random.integers(0, 2, (rows, features)).astype(np.uint8),
        "y_train": random.normal(size=(rows, 1)),
        "X_test": random.integers(0, 2, (tests, features)).astype(np.uint8),
        "y_test": random.normal(size=(tests, 1)),
    }


def write_mat(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "data.mat"
    scipy.io.savemat(path, content)
    return path


@pytest.mark.parametrize("shape", [(-1, 1), (1, -1), (-1,)])
def test_qsar_rows_are_float32(tmp_path: Path, shape: tuple[int, ...]) -> None:
    content = parts()
    data = read_qsar(write_mat(tmp_path, {**content, **{k: content[k].reshape(shape) for k in ("y_train", "y_test")}}))
    assert {tensor.dtype for tensor in data} == {torch.float32}
    np.testing.assert_array_equal(data.train_features.numpy(), content["X_train"])
    np.testing.assert_array_equal(data.test_features.numpy(), content["X_test"])
    np.testing.assert_array_equal(data.train_targets.numpy(), content["y_train"][:, 0].astype(np.float32))
    np.testing.assert_array_equal(data.test_targets.numpy(), content["y_test"][:, 0].astype(np.float32))


def spoiled(values: np.ndarray, value: float) -> np.ndarray:
    changed = values.astype(float)
    changed[2, 0] = value
    return changed


# Without a check, these would be trained on, or fail only in the evaluation.
BAD: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "too few targets": lambda content: {"y_train": content["y_train"][:5]},
    "no rows": lambda content: {"X_test": content["X_test"][:0], "y_test": content["y_test"][:0]},
    "three dimensions": lambda content: {"X_train": content["X_train"][None].repeat(6, 0)},
    "other features": lambda content: {"X_test": content["X_test"][:, :2]},
    "NaN in a feature": lambda content: {"X_train": spoiled(content["X_train"], np.nan)},
    "infinite target": lambda content: {"y_test": spoiled(content["y_test"], np.inf)},
}


@pytest.mark.parametrize("name", BAD)
def test_bad_rows_are_refused(name: str, tmp_path: Path) -> None:
    path = write_mat(tmp_path, parts() | BAD[name](parts()))
    with pytest.raises(DataError, match=path.name):
        read_qsar(path)


@pytest.mark.realdata
def test_the_real_file(real_data: Path) -> None:
    data = read_qsar(real_data / "qsar" / "qsar.mat")
    assert [list(tensor.shape) for tensor in data] == [[3085, 410], [3085], [1000, 410], [1000]]
    assert data.train_features.unique().tolist() == [0, 1]


TRAIN = {"a": [1, 2, 3], "price": [0.5, 1.5, -2.0], "b": [True, False, True]}
TEST = {"b": [False], "a": [7], "price": [3.0]}


def write_csv(path: Path, columns: dict[str, list[Any]]) -> Path:
    rows = zip(*columns.values(), strict=True)
    path.write_text("\n".join([",".join(columns), *(",".join(map(str, row)) for row in rows)]) + "\n")
    return path


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> Path:
    pyarrow.parquet.write_table(pa.table(columns), path)
    return path


@pytest.mark.parametrize(("write", "ending"), [(write_csv, "csv"), (write_parquet, "parquet")])
def test_features_have_the_order_of_the_training_columns(
    tmp_path: Path, write: Callable[..., Path], ending: str
) -> None:
    train, test = write(tmp_path / f"train.{ending}", TRAIN), write(tmp_path / f"test.{ending}", TEST)
    data = read_regression_tables(train, test, target="price")
    assert data.train_features.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert data.train_targets.tolist() == [0.5, 1.5, -2.0]
    assert data.test_features.tolist() == [[7, 0]]
    assert data.test_targets.tolist() == [3.0]
    assert {tensor.dtype for tensor in data} == {torch.float32}


@pytest.mark.parametrize(
    ("train", "test", "error"),
    [
        ({"a": [1], "c": [2]}, TEST, KeyError),  # no target
        (TRAIN, {"price": [1.0], "b": [True]}, KeyError),  # no feature `a`
        ({**TRAIN, "a": ["x", "y", "z"]}, TEST, TypeError),
        ({**TRAIN, "a": [1, None, 3]}, TEST, DataError),
        (TRAIN, {**TEST, "price": [float("nan")]}, DataError),
        ({"a": [1.0][:0], "b": [1.0][:0], "price": [1.0][:0]}, TEST, (DataError, TypeError)),
        ({"price": [1.0]}, {"price": [1.0]}, ValueError),  # no features
    ],
)
def test_bad_tables_are_refused(
    tmp_path: Path, train: dict[str, Any], test: dict[str, Any], error: type[Exception]
) -> None:
    files = [write_parquet(tmp_path / f"{n}.parquet", t) for n, t in (("train", train), ("test", test))]
    with pytest.raises(error):
        read_regression_tables(*files, target="price")
