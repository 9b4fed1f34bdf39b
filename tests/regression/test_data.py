"""Regression: readers of tables, draws of the released code, medians, partners, held-out rows."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.io
import scipy.sparse
import torch

from dair_hf.errors import DataError
from dair_hf.regression.data import (
    RegressionConfig,
    RegressionData,
    _split_training,
    load_regression,
    read_qsar,
    regression_evaluation_pairs,
    regression_train_pairs,
)


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


@pytest.fixture(scope="module")
def data() -> RegressionData:
    random = np.random.default_rng(1)
    arrays = [
        random.integers(0, 2, (40, 3)), random.normal(size=40), random.integers(0, 2, (15, 3)), random.normal(size=15)
    ]  # fmt: skip
    return RegressionData(*(torch.tensor(array, dtype=torch.float32) for array in arrays))


def released(data: RegressionData, seed: int, share: float) -> tuple[np.ndarray, np.ndarray]:
    """Order and targets of the training rows, drawn from numpy's global generator as in the released code."""
    state = np.random.get_state()
    np.random.seed(seed)
    order = np.random.permutation(len(data.train_targets))
    np.random.seed(seed)
    np.random.permutation(len(data.test_targets))
    targets = data.train_targets.numpy()[order]
    count = int(share * len(order))
    targets[:count] = np.random.normal(5, 5, count)
    np.random.set_state(state)
    return order, targets


def lower_median(values: np.ndarray) -> float:
    return float(np.sort(values)[(len(values) - 1) // 2])


@pytest.mark.parametrize("seed", [0, 4])
@pytest.mark.parametrize("share", [0.0, 0.33, 1.0])
def test_noise_is_drawn_in_the_released_order(data: RegressionData, seed: int, share: float) -> None:
    before = np.random.get_state()[1].copy()
    split = _split_training(data, RegressionConfig(noise_share=share), seed)
    assert np.array_equal(np.random.get_state()[1], before)  # the global generator is not used
    order, targets = released(data, seed, share)
    assert split.rows.tolist() == order.tolist()
    np.testing.assert_array_equal(split.targets.numpy(), targets.astype(np.float32))
    assert split.is_noise.tolist() == [position < int(share * 40) for position in range(40)]
    assert len(split.validation_rows) == 0
    np.testing.assert_array_equal(data.train_targets[split.rows][~split.is_noise], split.targets[~split.is_noise])


def test_the_training_feature_uses_the_noisy_median(data: RegressionData) -> None:
    pairs = regression_train_pairs(data, RegressionConfig(noise_share=0.5), seed=3)
    order, targets = released(data, 3, 0.5)
    batch = pairs.__getitems__(list(range(40)))
    assert batch["features"].shape == (40, 2, 4)
    assert batch["view_mask"].all()
    assert torch.equal(batch["features"][:, 0, :3], data.train_features[torch.from_numpy(order)])
    assert batch["features"][:, 0, 3].tolist() == (targets > lower_median(targets)).astype(float).tolist()
    assert torch.equal(batch["features"][:, 0, :3], batch["features"][:, 1, :3])
    for view in (0, 1):
        np.testing.assert_array_equal(batch["labels"][:, view].numpy(), targets.astype(np.float32))
    assert batch["row_id"].tolist() == [f"train/{row}" for row in order]
    assert (batch["features"].dtype, batch["labels"].dtype) == (torch.float32, torch.float32)


def drawn(pairs: Any, rows: list[int]) -> torch.Tensor:
    return pairs.__getitems__(rows)["features"][:, 1, -1]


def test_the_partners_feature_is_redrawn_each_epoch(data: RegressionData) -> None:
    pairs = regression_train_pairs(data, RegressionConfig(), seed=0)
    every = list(range(40))
    epochs = []
    for epoch in range(50):
        pairs.set_epoch(epoch)
        epochs.append(drawn(pairs, every))
        # Independent of the batch.
        assert torch.equal(drawn(pairs, [7, 3]), epochs[-1][[7, 3]])
    found = torch.stack(epochs)
    assert set(found.unique().tolist()) == {0.0, 1.0}
    assert found.mean().item() == pytest.approx(0.5, abs=0.05)
    assert not torch.equal(epochs[0], epochs[1])
    pairs.set_epoch(0)
    assert torch.equal(drawn(pairs, every), epochs[0])
    # Drawing does not modify the stored features.
    assert torch.equal(drawn(pickle.loads(pickle.dumps(pairs)), every), epochs[0])
    assert not torch.equal(drawn(regression_train_pairs(data, RegressionConfig(), seed=1), every), epochs[0])


def test_the_released_partners_have_a_constant_feature(data: RegressionData) -> None:
    pairs = regression_train_pairs(data, RegressionConfig(augmented_feature="one"), seed=0)
    for epoch in (0, 5):
        pairs.set_epoch(epoch)
        assert drawn(pairs, list(range(40))).tolist() == [1.0] * 40


def test_the_test_feature_is_reversed(data: RegressionData) -> None:
    targets = data.test_targets.numpy()
    batch = regression_evaluation_pairs(data, RegressionConfig(noise_share=0.5), seed=2).__getitems__(list(range(15)))
    above = (targets > lower_median(targets)).astype(float)
    assert batch["features"][:, 0, -1].tolist() == (1 - above).tolist()
    assert batch["features"][:, 1, -1].tolist() == above.tolist()
    assert torch.equal(batch["features"][:, 0, :3], data.test_features)
    assert torch.equal(batch["labels"][:, 0], data.test_targets)
    assert batch["row_id"].tolist() == [f"test/{row}" for row in range(15)]


def test_held_out_rows_are_not_trained_on_and_stay_clean(data: RegressionData) -> None:
    config = RegressionConfig(noise_share=0.5, validation_share=0.25)
    split = _split_training(data, config, seed=0)
    order, _ = released(data, 0, 0.0)
    assert split.rows.tolist() == order[:30].tolist()
    assert split.validation_rows.tolist() == order[30:].tolist()
    assert int(split.is_noise.sum()) == 15
    train, validation = (
        regression_train_pairs(data, config, 0),
        regression_evaluation_pairs(data, config, 0, split="validation"),
    )
    assert (len(train), len(validation)) == (30, 10)
    assert not set(train.row_ids) & set(validation.row_ids)
    batch = validation.__getitems__(list(range(10)))
    clean = data.train_targets.numpy()[order[30:]]
    np.testing.assert_array_equal(batch["labels"][:, 0].numpy(), clean)
    assert batch["features"][:, 0, -1].tolist() == (clean <= lower_median(clean)).astype(float).tolist()
    assert len(regression_evaluation_pairs(data, config, 0)) == 15


def test_without_the_feature_there_are_no_partners(data: RegressionData) -> None:
    config = RegressionConfig(spurious_feature=False)
    for pairs in (regression_train_pairs(data, config, 0), regression_evaluation_pairs(data, config, 0)):
        batch = pairs.__getitems__([0, 1])
        assert batch["features"].shape == (2, 1, 3)
        assert not pairs.partner_mask.any()


def test_the_configured_files_are_read(tmp_path: Path) -> None:
    mat = write_mat(tmp_path, parts())
    found = load_regression(RegressionConfig(data_file=str(mat)))
    assert all(torch.equal(a, b) for a, b in zip(found, read_qsar(mat), strict=True))
    with pytest.raises(DataError, match="data_file"):
        load_regression(RegressionConfig())


@pytest.mark.realdata
def test_real_data_match_the_paper(real_data: Path) -> None:
    table = read_qsar(real_data / "qsar" / "qsar.mat")
    config = RegressionConfig(noise_share=0.4)
    split = _split_training(table, config, seed=0)
    assert int(split.is_noise.sum()) == 1234
    noise = split.targets[split.is_noise]
    assert (noise.mean().item(), noise.std().item()) == pytest.approx((5, 5), abs=0.4)
    pairs = regression_train_pairs(table, config, seed=0)
    batch = pairs.__getitems__(list(range(len(pairs))))
    assert batch["features"].shape == (3085, 2, 411)
    assert batch["features"][:, 0, -1].mean().item() == pytest.approx(0.5, abs=0.02)
