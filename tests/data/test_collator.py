"""Literal batches, and errors of partners and base collators."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from transformers import DataCollatorForSeq2Seq, DataCollatorWithPadding, default_data_collator

from dair_hf import DataError, PairCollator
from dair_hf.data.collator import add_partners, collate_or_pad, collate_originals, flatten_views, split_views
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


@pytest.mark.parametrize("rows", [1, 2, 3, 5])
def test_odd_batches_and_all_partners(rows: int) -> None:
    batch = collator()([{**ROW, **PARTNER}] * rows)
    assert batch["labels"].shape == (rows, 2, 3)
    assert batch["view_mask"].shape == (rows, 2)
    assert bool(batch["view_mask"].all())
    assert batch["labels"][:, 1].tolist() == [[9, 9, 1]] * rows


def test_slicing_dimension_0_keeps_pairs_together() -> None:
    features = [{**ROW, **PARTNER, "input_ids": [4 + i, 4], "augmented_input_ids": [4 + i]} for i in range(5)]
    batch = collator()(features)
    part = {name: value[2:4] for name, value in batch.items()}
    assert part["input_ids"][:, :, 0].tolist() == [[6, 6], [7, 7]]
    assert part["view_mask"].tolist() == [[True, True], [True, True]]


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


def test_a_partner_with_a_column_that_the_original_lacks_is_refused() -> None:
    message = r"row 'MUL0003/4': the augmented view has columns that the original lacks: \['images'\]; a partner has"
    with pytest.raises(DataError, match=message):
        collator()([{**ROW, **PARTNER, "augmented_images": [1]}])


@pytest.mark.parametrize("name", ["labels", "label", "label_ids", "attention_mask", "global_attention_mask", "x"])
def test_a_partner_with_none_in_one_column_is_refused(name: str) -> None:
    row = {
        "row_id": "Ü/4",
        "input_ids": [5, 6],
        name: [7, 1],
        "augmented_input_ids": [8, 6],
        f"augmented_{name}": None,
    }
    with pytest.raises(DataError, match=rf"row 'Ü/4': the augmented view has None in \['{name}'\], but not in \['inp"):
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
    with pytest.raises(DataError, match=rf"row 'Ü/4': the augmented view lacks \['{lacks}'\].*augmented_{lacks}$"):
        split_views({**row, **partner})
    same = {**row, "augmented_input_ids": [5, 6, 0, 0], "augmented_decoder_input_ids": [0, 3]}
    whole, other = split_views({**same, "augmented_labels": [4, 1]})
    assert other == {**whole, "labels": [4, 1]}


def test_a_mask_of_images_is_inherited_only_if_it_is_all_ones() -> None:
    row = {"pixel_values": np.zeros((1, 2, 2)), "pixel_mask": np.array([[1, 1], [1, 0]]), "labels": 3}
    partner = {"augmented_pixel_values": np.ones((1, 2, 2))}
    with pytest.raises(DataError, match=r"lacks \['pixel_mask'\]"):
        split_views({**row, **partner})
    found = split_views({**row, **partner, "pixel_mask": np.ones((2, 2))})[1]
    assert found is not None and found["pixel_mask"].all()


@pytest.mark.parametrize(
    ("row", "rules", "message"),
    [
        (
            {"augmented_input_ids": [1, 2]},
            {},
            r"lacks \['attention_mask'\]; .*the mask of the original does not fit inputs",
        ),
        (
            {"augmented_attention_mask": [0]},
            {},
            r"lacks \['input_ids'\]; give all of \['attention_mask', 'input_ids'",
        ),
        (
            {"augmented_input_ids": [3], "augmented_attention_mask": [1]},
            {"labels_per_token": True},
            r"lacks \['labels'\].* this model has one label per token, so the labels of the original do not fit",
        ),
        (
            {"input_ids": [], "attention_mask": []},
            {"labels_per_token": True},
            "input_ids is empty, .*; remove such",
        ),
        (
            {"augmented_input_ids": [], "augmented_labels": [], "augmented_attention_mask": []},
            {"labels_per_token": True},
            "augmented_input_ids is empty",
        ),
        ({"input_ids": "what?"}, {}, r"input_ids is the text 'what\?'; tokenize it: "),
        ({"labels": "good"}, {}, "labels is the text 'good'; give the number of its class, or the ids of its tokens"),
        ({"attention_mask": [1, 1]}, {}, "attention_mask has 2 entries for 1 tokens of input_ids; give one per token"),
        (
            {"augmented_input_ids": [3, 4], "augmented_attention_mask": [1]},
            {},
            "augmented_attention_mask has 1 entries for 2 tokens of augmented_input_ids",
        ),
        (
            {"labels": [1, 2]},
            {"labels_as_long_as_inputs": True},
            "labels has 2 entries for 1 tokens of input_ids, and this model has one label per token; give -100 for",
        ),
        (
            {"augmented_input_ids": [3, 4], "augmented_attention_mask": [1, 1], "augmented_labels": torch.tensor([1])},
            {"labels_as_long_as_inputs": True},
            "augmented_labels has 1 entries for 2 tokens of augmented_input_ids, and this model",
        ),
        ({"input_ids": [24]}, {}, "input_ids holds 24, but valid ids are 0 to 23; use the model's own tokenizer"),
        ({"input_ids": torch.tensor([24])}, {}, "input_ids holds 24, but valid ids are 0 to 23"),
        ({"input_ids": [-100]}, {}, "input_ids holds -100, but valid ids are 0 to 23"),
        ({"input_ids": [5.5]}, {}, "input_ids holds 5.5, but valid ids are 0 to 23; use the model's own tokenizer"),
        ({"input_ids": np.array([5.0])}, {}, "input_ids holds 5.0, but valid ids are 0 to 23"),
        ({"input_ids": torch.tensor([5.5])}, {}, "input_ids holds 5.5, but valid ids"),
        ({"input_ids": [None]}, {}, "input_ids holds None, but valid ids are 0 to 23"),
        ({"labels": [np.array([1, 2]), np.array([9])]}, {}, "labels holds 9, but valid ids are 0 to 8"),
        ({"labels": [np.array([1, 2]), None]}, {}, "labels holds None, but valid ids are 0 to 8"),
        (
            {"labels": [1, -1]},
            {},
            "labels holds -1, but valid ids are 0 to 8, and -100 for no target; check ",
        ),
        ({"labels": 9}, {}, "labels holds 9, but valid ids are 0 to 8"),
        ({"labels": np.int64(9)}, {}, "labels holds 9, but valid ids are 0 to 8"),
        (
            {"augmented_input_ids": [3], "augmented_labels": [-100, 12]},
            {},
            "augmented_labels holds 12, but valid ids are 0 to 8",
        ),
    ],
)
def test_invalid_rows_are_refused_with_their_id(row: dict[str, Any], rules: dict[str, Any], message: str) -> None:
    whole = {"row_id": "行/4", "input_ids": [5], "attention_mask": [1], "labels": [1], **row}
    limits = {"input_ids": 24, "labels": 9}
    with pytest.raises(DataError, match=f"row '行/4': (the augmented view )?{message}"):
        PairCollator(default_data_collator, RowRules(**rules, id_limits=limits))([whole])


def test_ids_at_their_limits_pass() -> None:
    rules = RowRules(id_limits={"input_ids": 24, "labels": 9, "label": 9})
    for labels in ([0, 8, -100], [], [[0, 99]], 8, 0.5, [0.5, 99.0], torch.tensor([[8], [-100]]), torch.tensor(8)):
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
    with pytest.raises(
        DataError, match=rf"row 'r': {name} holds [\d.nae-]+, but labels of this sample loss are 0 to 1; "
    ):
        split_views({**row, name: label}, rules)
    assert split_views({**row, name: label})[0]  # no range


@pytest.mark.parametrize("label", [0, 1, 0.25, True, [0.0, 1.0], np.ones(2), torch.tensor([0, 1]), -100, [[0], [1, 0]]])
def test_labels_within_their_range_pass(label: Any) -> None:
    assert split_views({"x": 1, "labels": label}, RowRules(label_range=(0.0, 1.0)))[0]["labels"] is label


def test_partners_with_different_columns_in_one_batch_are_refused() -> None:
    rows = [{**ROW, **PARTNER}, {**ROW, "row_id": "b", "augmented_input_ids": [8, 6]}]
    message = r"rows 'MUL0003/4' and 'b' have partners with different columns: only one of them has \['augmented_at"
    with pytest.raises(DataError, match=message):
        collator()(rows)


def test_an_invalid_row_without_id_is_described() -> None:
    with pytest.raises(DataError, match=r"row '\(no row_id\)': the augmented view lacks \['x'\]"):
        split_views({"input_ids": [1], "x": [2], "augmented_input_ids": [1]})


@pytest.mark.parametrize(
    ("returned", "found"),
    [
        ({"texts": ["a"]}, r"column 'texts' is list"),
        ({"x": torch.tensor(1.0)}, r"column 'x' is a tensor of shape \[\]"),
        ({"x": torch.ones(3, 2)}, r"column 'x' is a tensor of shape \[3, 2\]"),
    ],
)
def test_a_base_collator_must_return_one_entry_per_view(returned: dict[str, Any], found: str) -> None:
    def broken(views: list[dict[str, Any]]) -> dict[str, Any]:
        return returned

    with pytest.raises(DataError, match=f"function: {found}; the base collator must return tensors .* the 1 views"):
        PairCollator(broken)([ROW])


@pytest.mark.parametrize("extra", [{"label": 1}, {"label": "good"}, {"label_ids": [1]}, {"label": [["good"]]}])
@pytest.mark.parametrize("base", [default_data_collator, DataCollatorForSeq2Seq(tokenizer()), None])
def test_labels_in_two_columns_are_refused(extra: dict[str, Any], base: Any) -> None:
    (name,) = extra
    message = f"row 'MUL0003/4': has the columns 'labels' and '{name}', .* the other: dataset.remove_columns('{name}')"
    with pytest.raises(DataError, match=message.replace("(", r"\(").replace(")", r"\)")):
        PairCollator(base or DataCollatorWithPadding(tokenizer()))([{**ROW, **extra}])
    collator = PairCollator(DataCollatorForSeq2Seq(tokenizer()))
    longer = {**ROW, "labels": [*ROW["labels"], 5], name: None}  # the collator would take the column by its name
    assert literal(collator([{**ROW, name: None}, longer])) == literal(
        collator([ROW, {**ROW, "labels": longer["labels"]}])
    )

    def own(views: list[dict[str, Any]]) -> dict[str, Any]:
        return {"x": torch.tensor([len(view) for view in views])}

    if extra != {"label": "good"}:  # refused by `split_views`
        assert literal(PairCollator(own)([{**ROW, **extra}]))["x"] == [[4]]


@pytest.mark.parametrize("base", [default_data_collator, DataCollatorForSeq2Seq(tokenizer())])
def test_a_column_that_is_no_number_is_named(base: Any) -> None:
    row = {**ROW, "words": [["good"], ["bad"]]}
    holds = r"makes no tensor of column 'words', which holds \[\['good'\], \['bad'\]\]; "
    with pytest.raises(DataError, match=r"^row 'MUL0003/4': \w+ " + holds):
        PairCollator(base)([row])

    texts = {**ROW, "sentence": "is it ?", "note": None}
    if base is default_data_collator:
        assert "sentence" not in PairCollator(base)([texts])
        with pytest.raises(DataError, match="column 'words'"):
            PairCollator(base)([{**texts, **row}])
    else:
        with pytest.raises(DataError, match="column 'sentence', which holds 'is it .'"):
            PairCollator(base)([texts])

    def own(views: list[dict[str, Any]]) -> dict[str, Any]:
        raise ValueError("of its own")

    with pytest.raises(ValueError, match="^of its own$"):
        PairCollator(own)([row])


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor])
def test_views_of_different_shapes_are_named(kind: Any) -> None:
    row, view = {"row_id": "a", "x": kind([1, 2])}, {"augmented_x": kind([1, 2, 3])}
    remedy = "and default_data_collator does not pad; make them equal, or give DataCollatorForSeq2Seq"
    with pytest.raises(DataError, match=rf"^row 'b': column 'x' has shape \[3\], in row 'a' \[2\], {remedy}"):
        PairCollator(default_data_collator)([row, {"row_id": "b", "x": view["augmented_x"]}])
    with pytest.raises(DataError, match=r"^row 'a' .augmented view.: column 'x' has shape \[3\], in row 'a' \[2\]"):
        PairCollator(default_data_collator)([{**row, **view}])
    with pytest.raises(DataError, match=r"^row 1 of the batch: column 'x' .* \[3\], in row 0 of the batch \[2\]"):
        PairCollator(default_data_collator)([{"x": row["x"]}, {"x": view["augmented_x"]}])
    ragged = {"row_id": "a", "x": [[1], [2, 3]]}
    with pytest.raises(DataError, match="column 'x' has shape of lists of different lengths, in row 'b' .2.,"):
        PairCollator(default_data_collator)([{"row_id": "b", "x": [1, 2]}, ragged])

    def own(views: list[dict[str, Any]]) -> dict[str, Any]:
        return {"x": torch.tensor([list(view["x"]) for view in views])}

    with pytest.raises(ValueError, match="expected sequence of length 2") as caught:
        PairCollator(own)([{**row, **view}])
    assert not isinstance(caught.value, DataError)


@pytest.mark.parametrize("value", [None, "absent"])
@pytest.mark.parametrize("base", [default_data_collator, DataCollatorForSeq2Seq(tokenizer())])
def test_a_column_that_some_rows_lack_is_named(base: Any, value: Any) -> None:
    other = {**ROW, "row_id": "b", "attention_mask": value}
    if value is None and base is not default_data_collator:
        message = "^row 'b': DataCollatorForSeq2Seq makes no tensor of column 'attention_mask', which holds None; give"
    else:
        message = "^row 'b': lacks the column 'attention_mask', which row 'MUL0003/4' has; give all rows of a batch"
    if value == "absent":
        del other["attention_mask"]
    with pytest.raises(DataError, match=message):
        PairCollator(base)([ROW, other])


def test_an_own_collator_may_align_labels_itself() -> None:
    """Labels of a completion only: a collator of transformers would move them to the first tokens."""
    rules = RowRules(labels_per_token=True, labels_as_long_as_inputs=True)
    row = {"row_id": "a", "input_ids": [5, 6, 7], "labels": [7]}

    def align(views: list[dict[str, Any]]) -> dict[str, Any]:
        columns = [[-100] * (len(view["input_ids"]) - len(view["labels"])) + view["labels"] for view in views]
        return {"input_ids": torch.tensor([view["input_ids"] for view in views]), "labels": torch.tensor(columns)}

    assert literal(PairCollator(align, rules)([row]))["labels"] == [[[-100, -100, 7]]]
    with pytest.raises(DataError, match="row 'a': labels has 1 entries for 3 tokens"):
        PairCollator(default_data_collator, rules)([row])


@pytest.mark.parametrize(
    ("base", "message"),
    [
        (None, "base_collator is a NoneType; give a function of a list of views, such as default_data_collator"),
        ("padding", "base_collator is a str; give a function"),
        (tokenizer(), "base_collator is a .*, a tokenizer; give DataCollatorForSeq2Seq.tokenizer, model=None. or"),
        (collator(), "base_collator is a PairCollator already; pass it on its own"),
    ],
    ids=["None", "text", "tokenizer", "PairCollator"],
)
def test_base_collators_that_collate_no_views_are_refused(base: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        PairCollator(base)


@pytest.mark.parametrize(
    ("features", "message"),
    [
        ([], "PairCollator: there are no rows to collate; give at least one"),
        (None, "PairCollator: found a NoneType; give a list of rows"),
        (ROW, "PairCollator: found a dict; give a list of rows"),
        ([ROW, None], "PairCollator: row 1 of the batch is a NoneType; give a dictionary of columns"),
    ],
    ids=["no rows", "None", "one row", "a row that is None"],
)
def test_what_is_no_list_of_rows_is_refused(features: Any, message: str) -> None:
    with pytest.raises(DataError, match=message):
        collator()(features)


def test_a_base_collator_that_returns_no_columns_is_refused() -> None:
    message = "^to_list: returned a list; the base collator must return a dictionary of tensors"

    def to_list(views: Any) -> Any:
        return views

    with pytest.raises(DataError, match=message):
        PairCollator(to_list)([ROW])


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
    with pytest.raises(DataError, match=r"the augmented_2 view lacks \['x'\]; .* with the prefix 'augmented_2_'"):
        split_views({"x": [1], "labels": 1, "augmented_x": [2], "augmented_2_labels": 1})
    with pytest.raises(DataError, match=r"the augmented_3 view has columns that the original lacks: \['y'\]"):
        split_views({"x": [1], "augmented_x": [2], "augmented_3_y": [2]})
    with pytest.raises(DataError, match=r"the augmented_2 view has None in \['labels'\]"):
        split_views({"x": [1], "labels": 1, "augmented_2_x": [2], "augmented_2_labels": None})
    with pytest.raises(DataError, match=r"augmented_2_input_ids holds 9, but valid ids"):
        split_views({"input_ids": [1], "augmented_2_input_ids": [9]}, RowRules(id_limits={"input_ids": 5}))


def test_partners_of_one_row_have_the_same_columns() -> None:
    row = {"row_id": "a", "x": [1], "labels": 1, "augmented_x": [2], "augmented_labels": 1, "augmented_2_x": [3]}
    message = r"row 'a' has partners with different columns: only one of them has \['augmented_labels'\]"
    with pytest.raises(DataError, match=message):
        PairCollator(default_data_collator)([row])


def test_a_view_that_cannot_be_stacked_is_named() -> None:
    row = {"row_id": "a", "x": [1], "augmented_x": [2], "augmented_2_x": [3, 4]}
    with pytest.raises(DataError, match=r"row 'a' \(augmented_2 view\): column 'x' has shape \[2\]"):
        PairCollator(default_data_collator)([row])


def test_originals_are_collated_without_any_partner() -> None:
    batch = collate_originals(PairCollator(default_data_collator), [three("a", 1, 2, 4)])
    assert batch["x"].tolist() == [[[1]]]


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
    with pytest.raises(DataError, match=r"partners have the columns \['y'\]"):
        add_partners(batch, [{}, {"y": torch.zeros(2)}])
