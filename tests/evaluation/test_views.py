"""Views of paired data: order, columns, and prediction files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from torch import Tensor

from dair_hf import DataError, EpochPairs, PairEvaluator, TensorPairs
from dair_hf.data.held_rows import HeldRows
from dair_hf.evaluation.answers import same_classes
from dair_hf.evaluation.views import CHUNK, PairIndex, PairViews, views_of
from tests.fixtures import points

ROWS: dict[str, list[Any]] = {
    "row_id": ["a/0", "a/1", "b/0"],
    "dialogue_id": ["a", "a", "b"],
    "input_ids": [[4], [4, 5], [4, 5, 6]],
    "labels": [[7], [8], [9]],
    "augmented_input_ids": [[5, 5, 5], None, [6]],
    "augmented_labels": [[17], None, [19]],
}
MODEL_COLUMNS = ["input_ids", "labels", "augmented_input_ids", "augmented_labels"]


def views() -> PairViews:
    return PairViews(datasets.Dataset.from_dict(ROWS))


def test_originals_come_before_partners() -> None:
    found = views()
    assert found.rows.tolist() == [0, 1, 2, 0, 2]
    assert found.variants.tolist() == [0, 0, 0, 1, 1]
    assert (len(found), found.has_partner.tolist()) == (5, [True, False, True])


def test_features_lengths_and_columns_belong_to_the_view() -> None:
    found = views()
    expected = [{"input_ids": [5, 5, 5], "labels": [17]}, {"input_ids": [4, 5], "labels": [8]}]
    assert found.select_columns(MODEL_COLUMNS).features([3, 1]) == expected
    assert found.lengths().tolist() == [1, 2, 3, 3, 1]
    assert found.column("labels") == [[7], [8], [9], [17], [19]]


@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_columns_of_formatted_data_are_plain_values_and_features_keep_the_format(kind: str) -> None:
    formatted = PairViews(datasets.Dataset.from_dict(ROWS).with_format(kind))
    assert formatted.column("labels") == [[7], [8], [9], [17], [19]]
    assert (formatted.row_ids, formatted.values("dialogue_id")) == (ROWS["row_id"], ["a", "a", "b"])
    (feature,) = formatted.select_columns(MODEL_COLUMNS).features([3])
    assert isinstance(feature["labels"], Tensor if kind == "torch" else np.ndarray)


def test_columns_of_transformed_data_are_those_of_the_transform() -> None:
    def shifted(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        moved = [None if label is None else torch.tensor(label) + 1 for label in batch["labels"]]
        return {**batch, "labels": moved}

    found = views_of(HeldRows(datasets.Dataset.from_dict(ROWS).with_transform(shifted))).column("labels")
    assert [list(labels) for labels in found] == [[8], [9], [10], [17], [19]]


def test_equal_originals_are_run_once_unless_a_transform_may_tell_them_apart() -> None:
    stored = datasets.Dataset.from_dict({"row_id": [0, 1, 2], "x": [7, 8, 7], "augmented_x": [1, 2, 3]})

    def numbered(batch: dict[str, list[Any]]) -> dict[str, list[Any]]:
        shifted = [x + 100 * row for x, row in zip(batch["x"], batch["row_id"], strict=True)]
        return {**batch, "x": shifted}

    for data, run, values in (
        (stored, [0, 1, 3, 4, 5], [7, 8, 7, 1, 2, 3]),
        (HeldRows(stored.with_transform(numbered)), [0, 1, 2, 3, 4, 5], [7, 108, 207, 1, 2, 3]),
    ):
        found = views_of(data)
        items, position = found.distinct()
        assert items.tolist() == run
        features = found.features(items.tolist())
        assert [features[number]["x"] for number in position.tolist()] == values


def test_data_without_partners_or_tokens() -> None:
    plain = PairViews(datasets.Dataset.from_dict({"x": [0.5, 1.5], "labels": [0, 1]}))
    assert (len(plain), plain.lengths().tolist(), plain.column("labels")) == (2, [0, 0], [0, 1])
    absent = PairViews(datasets.Dataset.from_dict({"x": [0.5], "augmented_x": [None]}))
    assert (len(absent), absent.column("x")) == (1, [0.5])


def test_views_of_epoch_pairs_are_those_of_the_current_epoch() -> None:
    pairs = EpochPairs(lambda epoch: datasets.Dataset.from_dict({"x": [epoch], "augmented_x": [epoch + 5]}))
    pairs.set_epoch(2)
    assert PairViews(pairs).column("x") == [2, 7]


def test_predictions_are_written_as_one_line_per_view(tmp_path: Path) -> None:
    views().write(tmp_path / "p.jsonl", ["é", "b", "c", "d", np.int64(5)], list("ABCDE"), [1, 0, 1, 0, 1])
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text(encoding="utf-8").splitlines()]
    assert lines[0] == {"row_id": "a/0", "variant": "original", "prediction": "é", "reference": "A", "correct": True}
    assert lines[4] == {"row_id": "b/0", "variant": "augmented", "prediction": 5, "reference": "E", "correct": True}
    assert "é" in (tmp_path / "p.jsonl").read_text(encoding="utf-8")


def test_data_that_cannot_be_evaluated_are_refused(tmp_path: Path) -> None:
    stream = datasets.Dataset.from_dict({"x": [1]}).to_iterable_dataset()
    for data, named in (
        (datasets.Dataset.from_dict({"x": []}), "no rows"),
        (TensorPairs({"x": X[:0]}), "no rows"),
        (stream, "IterableDataset"),
        (datasets.Dataset.from_dict(ROWS).with_transform(lambda batch: batch), "a Dataset"),
    ):
        with pytest.raises(DataError, match=named):
            views_of(data)
    for found, column, missing in (
        (views(), "state", "'state'"),
        (views(), "dialogue_id", "augmented_dialogue_id"),
        (views_of(tensors()), "colour", "'colour'"),
    ):
        with pytest.raises(DataError, match=missing):
            found.column(column)
    twice = PairViews(datasets.Dataset.from_dict({"row_id": [4, 4], "x": [0, 1]}))
    with pytest.raises(DataError, match="row_id 4"):
        PairEvaluator(same_classes).units_and_masks(twice, None)  # before answers are generated


def test_a_partner_without_model_columns_is_refused_by_its_row_id() -> None:
    rows = {
        "row_id": ["a/0"],
        "augmented_history": [["hi"]],
        "history": [["hello"]],
        "input_ids": [[1]],
        "augmented_input_ids": [None],
    }
    views = PairViews(datasets.Dataset.from_dict(rows)).select_columns(["row_id", "input_ids", "augmented_input_ids"])
    with pytest.raises(DataError, match="row 'a/0'"):
        views.features([1])


# ---- views of tensors compared with the same rows in a Dataset ----

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


def test_tensor_views_equal_those_of_a_dataset() -> None:
    rows = points.rows_of(tensors()).add_column("digit", [7, 8, 9]).add_column("augmented_digit", [70, None, 90])
    found, expected = views_of(tensors()), PairViews(rows)
    assert type(found) is not PairViews and type(views_of(rows)) is PairViews
    assert len(found) == len(expected) == 5
    assert found.rows.tolist() == expected.rows.tolist() and found.variants.tolist() == expected.variants.tolist()
    assert found.row_ids == expected.row_ids
    assert set(found.column_names) == set(expected.column_names)
    assert found.lengths().tolist() == [0] * 5
    for name in ("labels", "digit", "x"):
        assert found.column(name) == expected.column(name), name


def test_columns_of_callable_views_are_read_in_chunks() -> None:
    count = 2 * CHUNK + 3
    pairs = TensorPairs(lambda rows, epoch: {"x": rows.float(), "labels": rows % 7}, rows=count)
    assert views_of(pairs).column("labels") == [row % 7 for row in range(count)]


def test_originals_have_no_partner() -> None:
    originals = views_of(tensors()).originals()
    assert len(originals) == 3 and not originals.has_partner.any()
    assert "augmented_x" not in originals.column_names


def longest(data: Any) -> int:
    return int(views_of(data).target_lengths().max())


def test_longest_target_counts_no_prompt_and_no_padding() -> None:
    labels = [[-100, -100, -100, 5, 1, -100], [-100, 7, 1, 1, -100, -100]]
    rows = {"labels": labels, "augmented_labels": [None, [-100, 5, 6, 7, 8, 1]]}
    assert longest(datasets.Dataset.from_dict(rows)) == 5
    assert longest(datasets.Dataset.from_dict({"labels": labels})) == 3
    assert longest(datasets.Dataset.from_dict({"x": [1]})) == 0


def test_lengths_of_rows_that_are_made_are_those_of_stored_ones() -> None:
    rows = {
        "input_ids": [[4, 5, 6], [4, 5, 6, 7]],
        "labels": [[-100, 5, 6], [-100, -100, -100, 7]],
        "augmented_input_ids": [[4, 5, 6, 7, 8], None],
        "augmented_labels": [[-100, -100, 6, 7, 8], None],
    }
    stored = datasets.Dataset.from_dict(rows)
    for found in (views_of(stored), views_of(HeldRows(stored.with_transform(lambda batch: batch)))):
        assert found.lengths().tolist() == [3, 4, 5]
        assert found.target_lengths().tolist() == [2, 1, 3]


def test_longest_target_is_the_width_of_label_rows() -> None:
    assert longest(tensors()) == 0
    assert longest(TensorPairs({"labels": torch.zeros(2, 5, dtype=torch.long)})) == 5


def test_predictions_of_any_kind_are_written(tmp_path: Path) -> None:
    index = PairIndex(np.array([[True]]), ["a"])
    values = [{"state": (torch.tensor([1, 2]), np.float32(0.5))}, torch.tensor(3)]
    index.write(tmp_path / "p.jsonl", values, [np.array([True]), None], [True, False])
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert [line["prediction"] for line in lines] == [{"state": [[1, 2], 0.5]}, 3]
    assert [line["reference"] for line in lines] == [[True], None]
    with pytest.raises(DataError, match="got a object"):
        index.write(tmp_path / "q.jsonl", [1, object()], [1, 2], [True, False])
    assert not (tmp_path / "q.jsonl").exists()
