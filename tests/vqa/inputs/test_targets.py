"""Columns and soft targets of a batch, written out by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.errors import DataError
from dair_hf.vqa.inputs.targets import column, soft_targets


def test_column_needs_a_value_in_every_row() -> None:
    assert column([{"a": 1}, {"a": 0, "b": 5}], "a") == [1, 0]
    message = r"row 1 of the batch: no 'a' \(it has \['a', 'b'\]\); encode the rows first, or keep"
    with pytest.raises(DataError, match=message):
        column([{"a": 1}, {"a": None, "b": 5}], "a")


def test_soft_targets_by_hand() -> None:
    rows: list[dict[str, Any]] = [
        {"answer_ids": [2, 0], "answer_scores": [0.3, 0.7]},
        {"answer_ids": [], "answer_scores": []},
        {"answer_ids": np.array([3]), "answer_scores": np.array([1.0])},
    ]
    expected = np.float32([[0.7, 0, 0.3, 0], [0, 0, 0, 0], [0, 0, 0, 1]])
    found = soft_targets(rows, 4)
    assert found is not None
    assert found.dtype == torch.float32
    np.testing.assert_array_equal(found.numpy(), expected)
    assert soft_targets([{"input_ids": [1]}], 4) is None


def test_a_batch_of_rows_without_known_answers_has_zeros_and_not_none() -> None:
    found = soft_targets([{"answer_ids": [], "answer_scores": []}] * 2, 3)
    assert found is not None and found.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"answer_ids": [4], "answer_scores": [1.0]}, "row 1 of the batch: answer id 4 in a vocabulary of 4 answers"),
        ({"answer_ids": [0, -1], "answer_scores": [0.5, 0.5]}, "row 1 of the batch: answer id -1"),
        ({"answer_ids": [0, 1], "answer_scores": [1.0]}, "row 1 of the batch: 2 answer_ids, but 1 answer_scores"),
        ({"answer_ids": [0]}, "row 1 of the batch: no 'answer_scores'"),
        ({"answer_scores": [0.5]}, "row 1 of the batch: no 'answer_ids'"),
    ],
)
def test_rows_that_do_not_fit_are_refused(row: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        soft_targets([{"answer_ids": [0], "answer_scores": [1.0]}, row], 4)
