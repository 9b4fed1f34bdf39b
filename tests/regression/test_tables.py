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
from dair_hf.regression.tables import read_qsar, read_table


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


# --- .mat -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(-1, 1), (1, -1), (-1,)])
def test_qsar_rows_are_float32(tmp_path: Path, shape: tuple[int, ...]) -> None:
    content = parts()
    data = read_qsar(write_mat(tmp_path, {**content, **{k: content[k].reshape(shape) for k in ("y_train", "y_test")}}))
    assert {tensor.dtype for tensor in data} == {torch.float32}
    np.testing.assert_array_equal(data.train_features.numpy(), content["X_train"])
    np.testing.assert_array_equal(data.test_features.numpy(), content["X_test"])
    np.testing.assert_array_equal(data.train_targets.numpy(), content["y_train"][:, 0].astype(np.float32))
    np.testing.assert_array_equal(data.test_targets.numpy(), content["y_test"][:, 0].astype(np.float32))


def without(key: str) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: {name: value for name, value in content.items() if name != key}


def changed(key: str, change: Callable[[Any], Any]) -> Callable[[dict[str, Any]], dict[str, Any]]:
    return lambda content: {**content, key: change(content[key].astype(float) if key[0] in "Xy" else content[key])}


def with_value(row: int, column: int, value: float) -> Callable[[Any], Any]:
    def change(values: Any) -> Any:
        values[row, column] = value
        return values

    return change


BAD = {
    "no targets": (without("y_train"), "has no y_train (found X_train, X_test, y_test); it needs X_train, y_train"),
    "nothing": (lambda content: {}, "has no X_train, y_train, X_test, y_test (found nothing)"),
    "too few targets": (changed("y_train", lambda y: y[:5]), "y_train has shape [5, 1] for 6 rows of X_train"),
    "a matrix of targets": (changed("y_test", lambda y: y.reshape(2, 2)), "y_test has shape [2, 2] for 4 rows"),
    "no rows": (changed("X_test", lambda x: x[:0]), "X_test has shape [0, 3]; it must be [rows, features]"),
    "three dimensions": (changed("X_train", lambda x: x[None].repeat(2, 0)), "X_train has shape [2, 6, 3]"),
    "other features": (changed("X_test", lambda x: x[:, :2]), "X_train has 3 features, X_test 2; they must be equal"),
    "NaN in a feature": (changed("X_train", with_value(4, 1, np.nan)), "X_train is nan at [4, 1]; fill in or remove"),
    "infinite target": (changed("y_test", with_value(2, 0, np.inf)), "y_test is inf at [2, 0]"),
    "beyond float32": (changed("y_test", with_value(2, 0, 1e300)), "y_test is 1e+300 at [2, 0]"),
    "words": (changed("y_test", lambda y: np.array([["a"], ["b"], ["c"], ["d"]])), "y_test holds str"),
    "complex": (changed("X_train", lambda x: x * 1j), "X_train holds complex128, not numbers"),
    "sparse": (changed("X_train", scipy.sparse.csc_array), "X_train holds object, not numbers; give real numbers"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_contents_are_refused(name: str, tmp_path: Path) -> None:
    change, message = BAD[name]
    path = write_mat(tmp_path, change(parts()))
    with pytest.raises(DataError) as raised:
        read_qsar(path)
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)


def test_a_header_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes("größe,target\n1,2\n".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.csv: the header is not UTF-8 text; re-save the file as UTF-8"):
        read_table(tmp_path / "a.csv", tmp_path / "a.csv")


def test_missing_and_damaged_files(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"absent.mat: no such file; give the .mat file"):
        read_qsar(tmp_path / "absent.mat")
    with pytest.raises(DataError, match="is a folder; give the .mat file"):
        read_qsar(tmp_path)
    whole = write_mat(tmp_path, parts()).read_bytes()
    contents = {"text": b"no matlab file at all " * 20, "empty": b"", "torn": whole[: len(whole) // 2]}
    for name, content in contents.items():
        (tmp_path / f"{name}.mat").write_bytes(content)
        with pytest.raises(DataError, match=rf"{name}.mat: not a readable MATLAB file .*; fetch it again"):
            read_qsar(tmp_path / f"{name}.mat")
    header = b"MATLAB 7.3 MAT-file".ljust(124) + b"\x00\x02IM"
    (tmp_path / "new.mat").write_bytes(header + b"\x00" * 64)
    with pytest.raises(DataError, match="a MATLAB 7.3 file, which is HDF5; save it again with `save -v7`"):
        read_qsar(tmp_path / "new.mat")


@pytest.mark.realdata
def test_the_real_file(real_data: Path) -> None:
    data = read_qsar(real_data / "qsar" / "qsar.mat")
    assert [list(tensor.shape) for tensor in data] == [[3085, 410], [3085], [1000, 410], [1000]]
    assert data.train_features.unique().tolist() == [0, 1]


# --- CSV and parquet ------------------------------------------------------------------------------------------------

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
    data = read_table(train, test, target="price")
    assert data.train_features.tolist() == [[1, 1], [2, 0], [3, 1]]
    assert data.train_targets.tolist() == [0.5, 1.5, -2.0]
    assert data.test_features.tolist() == [[7, 0]]
    assert data.test_targets.tolist() == [3.0]
    assert {tensor.dtype for tensor in data} == {torch.float32}


@pytest.mark.parametrize(
    ("train", "test", "message"),
    [
        ({"a": [1], "c": [2]}, TEST, "train.parquet: no target column 'price'; it has a, c"),
        (TRAIN, {"a": [1]}, "test.parquet: no target column 'price'; it has a"),
        (TRAIN, {"a": [1], "price": [1.0], "c": [1]}, "test.parquet: columns differ from"),
        ({"price": [1.0]}, {"price": [1.0]}, "holds only the target 'price'"),
        ({**TRAIN, "a": ["x", "y", "z"]}, TEST, "train.parquet: column 'a' holds string, not numbers; encode it"),
        ({**TRAIN, "a": [1, None, 3]}, TEST, "train.parquet: column 'a' has no value in row 1; fill it in"),
        (TRAIN, {**TEST, "price": [float("nan")]}, "test.parquet: column 'price' is nan at [0]"),
        ({"a": [], "price": []}, TEST, "train.parquet: holds no rows; check the export"),
    ],
)
def test_bad_tables_are_refused(tmp_path: Path, train: dict[str, Any], test: dict[str, Any], message: str) -> None:
    files = [write_parquet(tmp_path / f"{n}.parquet", t) for n, t in (("train", train), ("test", test))]
    with pytest.raises(DataError) as raised:
        read_table(*files, target="price")
    assert message in str(raised.value)


def test_bad_table_files_are_refused(tmp_path: Path) -> None:
    good = write_csv(tmp_path / "good.csv", TRAIN)
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    (tmp_path / "ragged.csv").write_text("a,price\n1,2\n3\n")
    (tmp_path / "empty.csv").write_text("")
    (tmp_path / "twice.csv").write_text("a,a,price\n1,2,3\n")
    (tmp_path / "table.xlsx").write_text("")
    expected = {
        "torn.parquet": "not a readable parquet file",
        "ragged.csv": "not a readable csv file",
        "empty.csv": "not a readable csv file",
        "twice.csv": r"has duplicate columns \(a, a, price\)",
        "table.xlsx": "neither .csv nor .parquet; save the table as one of them",
        "absent.csv": "no such file; give a CSV or parquet file",
    }
    for name, message in expected.items():
        with pytest.raises(DataError, match=f"{name}: {message}"):
            read_table(tmp_path / name, good, "price")
