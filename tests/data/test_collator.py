"""Literal batches, and errors of partners and base collators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, default_data_collator

from dair_hf import DataError, PairCollator
from dair_hf.data.collator import add_partners, collate_or_pad, flatten_views, split_views
from dair_hf.data.row_rules import RowRules
from tests.fixtures.tiny import tokenizer

ROW = {"row_id": "MUL0003/4", "input_ids": [5, 6], "attention_mask": [1, 1], "labels": [7, 1]}
PARTNER = {"augmented_input_ids": [8], "augmented_attention_mask": [1], "augmented_labels": [9, 9, 1]}
ABSENT: dict[str, Any] = dict.fromkeys(PARTNER)


def collator() -> PairCollator:
    return PairCollator(DataCollatorForSeq2Seq(tokenizer(), model=None))


def literal(batch: dict[str, Any]) -> dict[str, Any]:
    return {name: value.tolist() if isinstance(value, torch.Tensor) else value for name, value in batch.items()}


def test_a_batch_of_rows_with_and_without_a_partner() -> None:
    other = {**ROW, **ABSENT, "row_id": "MUL0003/5", "input_ids": [4, 4, 4], "attention_mask": [1, 1, 1]}
    assert literal(collator()([{**ROW, **PARTNER}, other])) == {
        "input_ids": [[[5, 6, 0], [8, 0, 0]], [[4, 4, 4], [0, 0, 0]]],
        "attention_mask": [[[1, 1, 0], [1, 0, 0]], [[1, 1, 1], [0, 0, 0]]],
        "labels": [[[7, 1, -100], [9, 9, 1]], [[7, 1, -100], [-100, -100, -100]]],
        "view_mask": [[True, True], [True, False]],
        "row_id": ["MUL0003/4", "MUL0003/5"],
    }


def test_no_rows_become_a_padding_row() -> None:
    assert literal(collate_or_pad(collator(), {**ROW, **PARTNER}, [])) == {
        "input_ids": [[[5, 6], [8, 0]]],
        "attention_mask": [[[1, 1], [1, 0]]],
        "labels": [[[7, 1, -100], [9, 9, 1]]],
        "view_mask": [[False, False]],
        "row_id": ["MUL0003/4"],
    }
    assert literal(collate_or_pad(collator(), {}, [ROW])) == literal(collator()([ROW]))


@pytest.mark.parametrize("columns", [ABSENT, {}], ids=["None", "no columns"])
def test_one_view_if_no_row_has_a_partner(columns: dict[str, Any]) -> None:
    batch = collator()([{**ROW, **columns}])
    assert batch["input_ids"].shape == (1, 1, 2)
    assert literal(batch) == {
        "input_ids": [[[5, 6]]],
        "attention_mask": [[[1, 1]]],
        "labels": [[[7, 1]]],
        "view_mask": [[True]],
        "row_id": ["MUL0003/4"],
    }


def test_row_ids_are_unchanged_and_optional() -> None:
    batch = collator()([{**ROW, "row_id": "Zoë/対話 7/\u200d"}])
    assert batch["row_id"] == ["Zoë/対話 7/\u200d"]
    without = {name: value for name, value in ROW.items() if name != "row_id"}
    assert "row_id" not in collator()([without])


def test_the_base_collator_is_called_once_with_all_existing_views() -> None:
    asked: list[list[dict[str, Any]]] = []

    def stack(views: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        asked.append(views)
        return {"pixel_values": torch.stack([torch.full((3, 2, 2), view["image"]) for view in views])}

    batch = PairCollator(stack)(
        [
            {"image": 1.0, "augmented_image": 2.0},
            {"image": 3.0, "augmented_image": None},
            {"image": 4.0, "augmented_image": 5.0},
        ]
    )
    assert asked == [[{"image": 1.0}, {"image": 2.0}, {"image": 3.0}, {"image": 4.0}, {"image": 5.0}]]
    assert batch["pixel_values"].shape == (3, 2, 3, 2, 2)
    assert batch["pixel_values"][:, :, 0, 0, 0].tolist() == [[1.0, 2.0], [3.0, 0.0], [4.0, 5.0]]


def test_absent_views_have_float_labels_zero_and_class_labels_minus_100() -> None:
    rows = [{"x": [1.0], "labels": 0.5, "augmented_x": [2.0], "augmented_labels": 0.75}, {"x": [3.0], "labels": 0.25}]
    assert literal(PairCollator(default_data_collator)(rows))["labels"] == [[0.5, 0.75], [0.25, 0.0]]
    rows = [{"x": [1.0], "labels": 1, "augmented_x": [2.0], "augmented_labels": 0}, {"x": [3.0], "labels": 1}]
    assert literal(PairCollator(default_data_collator)(rows))["labels"] == [[1, 0], [1, -100]]


def test_flatten_views_returns_existing_views_in_order() -> None:
    batch = collator()([{**ROW, **PARTNER}, {**ROW, **ABSENT, "input_ids": [4], "attention_mask": [1]}])
    flat = flatten_views(batch, batch["view_mask"].numpy())
    assert flat["input_ids"].tolist() == [[5, 6], [8, 0], [4, 0]]
    assert set(flat) == {"input_ids", "attention_mask", "labels"}
    whole = collator()([{**ROW, **PARTNER}])
    assert flatten_views(whole, whole["view_mask"].numpy())["input_ids"].tolist() == [[5, 6], [8, 0]]


@pytest.mark.parametrize("name", ["labels", "label", "label_ids", "attention_mask", "global_attention_mask", "x"])
def test_a_partner_with_none_in_one_column_is_refused(name: str) -> None:
    row = {"row_id": "Ü/4", "input_ids": [5, 6], name: [7, 1], "augmented_input_ids": [8, 6], f"augmented_{name}": None}
    with pytest.raises(DataError, match=f"row 'Ü/4': .*augmented_{name}"):
        split_views(row)


@pytest.mark.parametrize("name", ["labels", "label", "label_ids", "attention_mask", "global_attention_mask"])
def test_a_partner_inherits_labels_and_masks(name: str) -> None:
    row = {"input_ids": [5, 6], name: [1, 1], "augmented_input_ids": [8, 6]}
    assert split_views(row)[1] == {"input_ids": [8, 6], name: [1, 1]}
    assert split_views({**row, f"augmented_{name}": [0, 1]})[1] == {"input_ids": [8, 6], name: [0, 1]}
    assert split_views({**row, "augmented_input_ids": None})[1] is None


def test_rows_with_and_without_inherited_columns_are_collated_together() -> None:
    rows = [{**ROW, "augmented_input_ids": [8, 6]}, {**ROW, "row_id": "b", "augmented_input_ids": None}]
    batch = literal(collator()(rows))
    assert batch["labels"] == [[[7, 1], [7, 1]], [[7, 1], [-100, -100]]]
    assert batch["attention_mask"] == [[[1, 1], [1, 1]], [[1, 1], [0, 0]]]


@pytest.mark.parametrize(
    ("partner", "lacks"),
    [
        ({"augmented_input_ids": [5, 7, 8, 0]}, "attention_mask"),
        ({"augmented_input_ids": np.array([5, 7, 8, 0])}, "attention_mask"),
        (
            {"augmented_input_ids": [5, 6, 0, 0], "augmented_labels": [3, 4, 1], "augmented_decoder_input_ids": [0, 3]},
            "decoder_attention_mask",
        ),
    ],
)
def test_a_mask_that_might_not_fit_is_not_inherited(partner: dict[str, Any], lacks: str) -> None:
    row = {
        "row_id": "Ü/4",
        "input_ids": [5, 6, 0, 0],
        "attention_mask": [1, 1, 0, 0],
        "labels": [3, 1],
        "decoder_input_ids": [0, 3],
        "decoder_attention_mask": [1, 1],
    }
    partner = {"augmented_decoder_input_ids": [0, 3], **partner}
    with pytest.raises(DataError, match=f"row 'Ü/4': .*augmented_{lacks}"):
        split_views({**row, **partner})
    same = {**row, "augmented_input_ids": [5, 6, 0, 0], "augmented_decoder_input_ids": [0, 3]}
    whole, other = split_views({**same, "augmented_labels": [4, 1]})
    assert other == {**whole, "labels": [4, 1]}


def test_a_mask_of_images_is_inherited_only_if_it_is_all_ones() -> None:
    row = {"pixel_values": np.zeros((1, 2, 2)), "pixel_mask": np.array([[1, 1], [1, 0]]), "labels": 3}
    partner = {"augmented_pixel_values": np.ones((1, 2, 2))}
    with pytest.raises(DataError, match="augmented_pixel_mask"):
        split_views({**row, **partner})
    found = split_views({**row, **partner, "pixel_mask": np.ones((2, 2))})[1]
    assert found is not None and found["pixel_mask"].all()


@pytest.mark.parametrize(
    ("row", "rules", "column"),
    [
        ({"attention_mask": [1, 1]}, {}, "attention_mask"),
        ({"augmented_input_ids": [1, 2]}, {}, "augmented_attention_mask"),
        ({"augmented_attention_mask": [0]}, {}, "augmented_input_ids"),
        ({"augmented_input_ids": [3], "augmented_attention_mask": [1]}, {"labels_per_token": True}, "augmented_labels"),
        ({"labels": [1, 2]}, {"labels_as_long_as_inputs": True}, "labels"),
        (
            {"augmented_input_ids": [3, 4], "augmented_attention_mask": [1, 1], "augmented_labels": torch.tensor([1])},
            {"labels_as_long_as_inputs": True},
            "augmented_labels",
        ),
        ({"input_ids": [5, 24]}, {}, "input_ids"),
        ({"input_ids": np.array([-1])}, {}, "input_ids"),
        ({"input_ids": torch.tensor([-100])}, {}, "input_ids"),
        ({"labels": [1, -1]}, {}, "labels"),
        ({"labels": 9}, {}, "labels"),
        ({"labels": np.int64(9)}, {}, "labels"),
        ({"augmented_input_ids": [3], "augmented_labels": [-100, 12]}, {}, "augmented_labels"),
        ({"augmented_images": [1]}, {}, "augmented_images"),
    ],
)
def test_invalid_rows_are_refused_with_their_id(row: dict[str, Any], rules: dict[str, Any], column: str) -> None:
    whole = {"row_id": "行/4", "input_ids": [5], "attention_mask": [1], "labels": [1], **row}
    limits = {"input_ids": 24, "labels": 9}
    with pytest.raises(DataError, match=f"^row '行/4': .*{column}"):
        PairCollator(default_data_collator, RowRules(**rules, id_limits=limits))([whole])


def test_ids_at_their_limits_pass() -> None:
    rules = RowRules(id_limits={"input_ids": 24, "labels": 9, "label": 9})
    for labels in ([0, 8, -100], [], 8, 0.5, [0.5, 99.0], torch.tensor([[8], [-100]]), torch.tensor(8)):
        row = {"input_ids": [0, 23], "attention_mask": [1, 0], "labels": labels}
        assert split_views(row, rules) == (row, None)
    ragged = {"input_ids": [0], "labels": [np.array([8, -100]), np.array([0])]}
    assert split_views(ragged, rules)[0]["labels"] is ragged["labels"]


@pytest.mark.parametrize("name", ["labels", "label", "augmented_labels"])
@pytest.mark.parametrize(
    "label", [2, -1, 1.5, [0.0, 1.01], np.array([[0.5], [-0.1]]), torch.tensor(3), -100.0, math.nan]
)
def test_labels_beyond_their_range_are_refused(name: str, label: Any) -> None:
    rules = RowRules(label_range=(0.0, 1.0))
    row = {"row_id": "r", "x": [1.0], name.removeprefix("augmented_"): 1, "augmented_x": [2.0]}
    assert split_views(row, rules)[1] is not None
    with pytest.raises(DataError, match=f"^row 'r': .*{name}"):
        split_views({**row, name: label}, rules)
    assert split_views({**row, name: label})[0]  # no range


@pytest.mark.parametrize("label", [0, 1, 0.25, True, [0.0, 1.0], np.ones(2), torch.tensor([0, 1]), -100, [[0], [1, 0]]])
def test_labels_within_their_range_pass(label: Any) -> None:
    assert split_views({"x": 1, "labels": label}, RowRules(label_range=(0.0, 1.0)))[0]["labels"] is label


@pytest.mark.parametrize("extra", [{"label": 1}, {"label_ids": [1]}])
@pytest.mark.parametrize("base", [default_data_collator, DataCollatorWithPadding(tokenizer())])
def test_labels_in_two_columns_are_refused(extra: dict[str, Any], base: Any) -> None:
    (name,) = extra
    with pytest.raises(DataError, match=f"^row 'MUL0003/4': .*labels and {name}"):
        PairCollator(base)([{**ROW, **extra}])
    longer = {**ROW, "labels": [*ROW["labels"], 5], name: None}  # the collator would take the column by its name
    assert literal(collator()([{**ROW, name: None}, longer])) == literal(
        collator()([ROW, {**ROW, "labels": longer["labels"]}])
    )

    def own(views: list[dict[str, Any]]) -> dict[str, Any]:
        return {"x": torch.tensor([len(view) for view in views])}

    assert literal(PairCollator(own)([{**ROW, **extra}]))["x"] == [[4]]


def test_an_own_collator_may_align_labels_itself() -> None:
    """Labels of a completion only: a collator of transformers would move them to the first tokens."""
    rules = RowRules(labels_per_token=True, labels_as_long_as_inputs=True)
    row = {"row_id": "a", "input_ids": [5, 6, 7], "labels": [7]}

    def align(views: list[dict[str, Any]]) -> dict[str, Any]:
        columns = [[-100] * (len(view["input_ids"]) - len(view["labels"])) + view["labels"] for view in views]
        return {"input_ids": torch.tensor([view["input_ids"] for view in views]), "labels": torch.tensor(columns)}

    assert literal(PairCollator(align, rules)([row]))["labels"] == [[[-100, -100, 7]]]
    with pytest.raises(DataError, match="^row 'a': .*labels"):
        PairCollator(default_data_collator, rules)([row])


# ---- several partners ----


def three(row_id: str, x: float, first: float | None, third: float | None) -> dict[str, Any]:
    """A row with the partners 1 and 3."""
    return {
        "row_id": row_id,
        "x": [x],
        "labels": int(x),
        "augmented_x": first and [first],
        "augmented_labels": first and int(first),
        "augmented_3_x": third and [third],
        "augmented_3_labels": third and int(third),
    }


def test_view_p_is_partner_number_p_whichever_others_a_row_has() -> None:
    batch = PairCollator(default_data_collator)(
        [three("a", 1, 2, 4), three("b", 5, None, 6), three("c", 7, None, None)]
    )
    assert batch["x"].tolist() == [[[1], [2], [0], [4]], [[5], [0], [0], [6]], [[7], [0], [0], [0]]]
    assert batch["labels"].tolist() == [[1, 2, -100, 4], [5, -100, -100, 6], [7, -100, -100, -100]]
    assert batch["view_mask"].int().tolist() == [[1, 1, 0, 1], [1, 0, 0, 1], [1, 0, 0, 0]]
    # No wider than the largest number of a partner in the batch.
    assert PairCollator(default_data_collator)([three("a", 1, 2, None)])["x"].shape == (1, 2, 1)
    assert PairCollator(default_data_collator)([three("c", 7, None, None)])["x"].shape == (1, 1, 1)


def test_rows_are_split_into_all_their_views() -> None:
    assert split_views(three("a", 1, None, 4)) == ({"x": [1], "labels": 1}, None, None, {"x": [4], "labels": 4})
    row = {"x": [1], "labels": 1, "augmented_2_x": [2]}
    assert split_views(row) == ({"x": [1], "labels": 1}, None, {"x": [2], "labels": 1})  # labels are inherited
    with pytest.raises(DataError, match="augmented_2_labels"):
        split_views({"x": [1], "labels": 1, "augmented_2_x": [2], "augmented_2_labels": None})
    with pytest.raises(DataError, match="augmented_2_input_ids"):
        split_views({"input_ids": [1], "augmented_2_input_ids": [9]}, RowRules(id_limits={"input_ids": 5}))


@pytest.mark.parametrize("second", [{"augmented_2_x": [3]}, {"row_id": "b", "augmented_x": [3]}])
def test_partners_with_other_columns_are_refused(second: dict[str, Any]) -> None:
    """A list or a stream may lack a label in one row, which would silently be that of the original."""
    row = {"row_id": "a", "x": [1], "labels": 1, "augmented_x": [2], "augmented_labels": 0}
    rows = [{"x": [1], "labels": 1, **second}, row] if "row_id" in second else [{**row, **second}]
    with pytest.raises(DataError, match="same columns"):
        PairCollator(default_data_collator)(rows)


def test_an_augmenter_may_add_several_partners() -> None:
    batch = {"x": torch.tensor([[1.0], [2.0]]), "labels": torch.tensor([[5], [6]]), "row_id": ["a", "b"]}
    batch["view_mask"] = torch.tensor([[True], [False]])
    partners = [{"x": torch.tensor([3.0, 4.0])}, {"labels": torch.tensor([7, 8])}]
    found = add_partners(batch, partners)
    assert found["x"].tolist() == [[1, 3, 1], [2, 4, 2]]
    assert found["labels"].tolist() == [[5, 5, 7], [6, 6, 8]]
    assert found["view_mask"].tolist() == [[True] * 3, [False] * 3]
    some = add_partners({**batch, "view_mask": torch.ones(2, 1).bool()}, partners, torch.tensor([[True, False]] * 2))
    assert some["view_mask"].tolist() == [[True, True, False]] * 2
    rows = add_partners({**batch, "view_mask": torch.ones(2, 1).bool()}, partners, torch.tensor([False, True]))
    assert rows["view_mask"].tolist() == [[True, False, False], [True, True, True]]
    with pytest.raises(DataError, match="y"):
        add_partners(batch, [{}, {"y": torch.zeros(2)}])


def test_a_base_collator_that_returns_less_than_its_views_is_refused() -> None:
    rows = [{"x": [0.1], "labels": 1, "augmented_x": None}, {"x": [0.1], "labels": 0, "augmented_x": [1.0]}]
    with pytest.raises(DataError, match="labels: expected a tensor of 3 views"):
        PairCollator(lambda views: {"labels": torch.tensor([views[0]["labels"]])})(rows)
