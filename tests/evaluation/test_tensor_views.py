"""Views of tensors against the views of the same rows in a Dataset."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor

from dair_hf.data.tensor_pairs import TensorPairs
from dair_hf.errors import DataError
from dair_hf.evaluation.tensor_views import CHUNK, TensorViews, views_of
from dair_hf.evaluation.views import PairViews

X = torch.tensor([[1.0], [2.0], [3.0]])
Y = torch.tensor([0, 1, 0])
PAIRED = torch.tensor([True, False, True])


def doubled(rows: Tensor, epoch: int) -> dict[str, Tensor]:
    return {"x": 2 * X[rows], "labels": 1 - Y[rows]}


def tensors() -> TensorPairs:
    return TensorPairs(
        {"x": X, "labels": Y},
        doubled,
        has_partner=PAIRED,
        row_ids=["a", "b", "c"],
        columns={"digit": [7, 8, 9], "augmented_digit": [70, None, 90]},
    )


def rows() -> datasets.Dataset:
    return datasets.Dataset.from_dict(
        {
            "row_id": ["a", "b", "c"],
            "x": X.tolist(),
            "labels": Y.tolist(),
            "digit": [7, 8, 9],
            "augmented_x": [[2.0], None, [6.0]],
            "augmented_labels": [1, None, 1],
            "augmented_digit": [70, None, 90],
        }
    )


def test_same_views_as_of_a_dataset() -> None:
    found, expected = views_of(tensors()), PairViews(rows())
    assert isinstance(found, TensorViews) and type(views_of(rows())) is PairViews
    assert len(found) == len(expected) == 5
    assert found.rows.tolist() == expected.rows.tolist() and found.variants.tolist() == expected.variants.tolist()
    assert set(found.column_names) == set(expected.column_names)
    assert found.lengths().tolist() == [0] * 5
    for name in ("labels", "digit", "x"):
        assert found.column(name) == expected.column(name), name


@pytest.mark.parametrize("items", [[0, 1, 2], [3, 4], [4, 0, 3, 2], [1]])
def test_features_are_the_rows_of_the_dataset_stacked(items: list[int]) -> None:
    features = views_of(tensors()).features(items)
    assert features["x"].tolist() == [view["x"] for view in PairViews(rows()).features(items)]
    assert features["labels"].tolist() == [view["labels"] for view in PairViews(rows()).features(items)]


def test_columns_of_made_views_are_read_in_chunks() -> None:
    count = 2 * CHUNK + 3
    pairs = TensorPairs(lambda rows, epoch: {"x": rows.float(), "labels": rows % 7}, rows=count)
    assert views_of(pairs).column("labels") == [row % 7 for row in range(count)]


def test_judged_and_written_alike(tmp_path) -> None:
    correct = np.array([True, True, False, True, False])
    found, expected = views_of(tensors()), PairViews(rows())
    assert found.judge(correct, n_bootstrap=10) == expected.judge(correct, n_bootstrap=10)
    for name, views in (("tensors", found), ("rows", expected)):
        views.write(tmp_path / name, list("ABCDE"), views.column("labels"), correct)
    assert (tmp_path / "tensors").read_text() == (tmp_path / "rows").read_text()


def test_originals_have_no_partner() -> None:
    originals = views_of(tensors()).originals()
    assert len(originals) == 3 and not originals.has_partner.any()
    assert "augmented_x" not in originals.column_names


def test_longest_target_is_the_width_of_label_rows() -> None:
    assert views_of(tensors()).longest_target() == 0
    assert views_of(TensorPairs({"labels": torch.zeros(2, 5, dtype=torch.long)})).longest_target() == 5


def test_nothing_to_evaluate_and_missing_columns_are_named() -> None:
    with pytest.raises(DataError, match="evaluation data set is empty"):
        views_of(TensorPairs({"x": X[:0]}))
    with pytest.raises(DataError, match="column 'colour' is missing"):
        views_of(tensors()).column("colour")
