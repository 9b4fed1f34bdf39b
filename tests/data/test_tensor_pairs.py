"""Pairs held as tensors: the same batches as from the collator, and views drawn anew."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import send_to_device
from torch import Tensor
from transformers import default_data_collator

from dair_hf import PairCollator
from dair_hf.data.collator import collate_unless_ready
from dair_hf.data.tensor_pairs import TensorPairs, tensor_fingerprint
from dair_hf.errors import DataError

X = torch.arange(12.0).reshape(4, 3)
Y = torch.tensor([0, 1, 2, 3])
PAIRED = torch.tensor([True, False, True, False])


class Shifted:
    """Return an augmented view that depends on the epoch."""

    def __call__(self, rows: Tensor, epoch: int) -> dict[str, Tensor]:
        return {"x": X[rows] + 100 * (epoch + 1), "labels": Y[rows]}


def original() -> dict[str, Tensor]:
    return {"x": X, "labels": Y}


def assert_same_batch(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(found) == set(expected)
    for name, values in expected.items():
        if isinstance(values, Tensor):
            assert torch.equal(found[name], values), name
            assert found[name].dtype == values.dtype
        else:
            assert list(found[name]) == list(values)


def test_batches_hold_nothing_that_is_walked_through_element_by_element() -> None:
    """Both accelerate and `Trainer` walk through the lists of a batch to move their elements to the device."""
    batch = TensorPairs(original(), Shifted(), row_ids=["a", "b", "c", "d"]).__getitems__([2, 0])
    assert not [name for name, values in batch.items() if isinstance(values, (list, tuple, dict))]
    assert send_to_device(batch, torch.device("cpu"))["row_id"] is batch["row_id"]
    assert (batch["row_id"].tolist(), type(batch["row_id"][0])) == (["c", "a"], str)


@pytest.mark.parametrize("ids", [list(np.array(["a", "b", "c", "d"])), list(torch.arange(4)), np.arange(4)])
def test_row_ids_of_arrays_are_plain_values_in_batches(ids: Any) -> None:
    found = TensorPairs(original(), row_ids=ids).__getitems__([3, 1])["row_id"]
    assert found.tolist() == (["d", "b"] if isinstance(ids[0], str) else [3, 1])
    assert {type(row_id) for row_id in found} == {str if isinstance(ids[0], str) else int}


def test_collated_single_rows_equal_the_batch() -> None:
    pairs = TensorPairs(original(), Shifted(), has_partner=PAIRED)
    rows = [pairs[index] for index in range(len(pairs))]
    assert rows[1]["augmented_x"] is None
    assert_same_batch(pairs.__getitems__([0, 1, 2, 3]), PairCollator(default_data_collator)(rows))
    assert pairs[-1]["row_id"] == "3"
    with pytest.raises(IndexError):
        pairs[4]


def test_batches_without_an_augmented_view_have_one_view() -> None:
    batch = TensorPairs(original()).__getitems__([1, 2])
    assert batch["x"].shape == (2, 1, 3) and batch["view_mask"].tolist() == [[True], [True]]
    assert "augmented_x" not in TensorPairs(original())[0]
    nobody = TensorPairs(original(), Shifted(), has_partner=torch.zeros(4, dtype=torch.bool))
    assert nobody.__getitems__([0])["view_mask"].shape == (1, 1) and not nobody.partner_mask.any()


def test_the_epoch_changes_callable_views_only() -> None:
    pairs, drawn = TensorPairs(original(), Shifted()), TensorPairs(Shifted(), original(), rows=4)
    for each in (pairs, drawn):
        each.set_epoch(4)
    assert pairs.__getitems__([1])["x"].tolist() == [[[3.0, 4.0, 5.0], [503.0, 504.0, 505.0]]]
    assert drawn.originals().__getitems__([1])["x"].tolist() == [[[503.0, 504.0, 505.0]]]


def test_partners_that_no_chosen_row_has_are_not_computed() -> None:
    asked: list[list[int]] = []

    def view(rows: Tensor, epoch: int) -> dict[str, Tensor]:
        asked.append(rows.tolist())
        return {"x": X[rows], "labels": Y[rows]}

    pairs = TensorPairs(original(), [view, Shifted()], has_partner=torch.tensor([[False, True]] * 3 + [[True, True]]))
    batch = pairs.__getitems__([0, 2])
    assert batch["view_mask"].tolist() == [[True, False, True]] * 2
    assert batch["labels"].tolist() == [[0, -100, 0], [2, -100, 2]]
    pairs.__getitems__([1, 3])
    pairs.originals().__getitems__([3])
    assert asked == [[3]]


def test_pickles_for_data_loader_workers() -> None:
    pairs = pickle.loads(pickle.dumps(TensorPairs(original(), Shifted())))
    assert_same_batch(pairs.__getitems__([2, 0]), TensorPairs(original(), Shifted()).__getitems__([2, 0]))


def test_complete_batches_are_not_collated() -> None:
    def never(rows: list[Any]) -> dict[str, Any]:
        raise AssertionError("a ready batch was collated")

    batch = TensorPairs(original()).__getitems__([0])
    assert collate_unless_ready(never, batch) is batch
    assert collate_unless_ready(lambda rows: {"n": len(rows)}, [{}, {}]) == {"n": 2}


@pytest.mark.parametrize(
    "make",
    [
        lambda: TensorPairs(original(), {"x": X[:3], "labels": Y}),
        lambda: TensorPairs(Shifted(), Shifted()),
        lambda: TensorPairs(original(), rows=5),
        lambda: TensorPairs(original(), row_ids=["a"]),
        lambda: TensorPairs(original(), columns={"digit": [1, 2]}),
        lambda: TensorPairs(original(), Shifted(), has_partner=torch.tensor([True])),
        # Stacking would take the columns of the original, and convert to one type.
        lambda: TensorPairs(original(), {**original(), "y": X}),
        lambda: TensorPairs(original(), {"x": X.double(), "labels": Y}),
        lambda: TensorPairs(original(), [original(), {"x": X[:, :2], "labels": Y}]),
        lambda: TensorPairs(original(), lambda rows, epoch: {"x": X[:2].half(), "labels": Y[:2]}).__getitems__([0, 1]),
    ],
)
def test_parts_that_do_not_fit_together_are_refused(make: Any) -> None:
    with pytest.raises(DataError, match="^TensorPairs: expected"):
        make()


def test_fingerprints_depend_on_values_shapes_and_types() -> None:
    base = tensor_fingerprint(X, Y)
    changed = X.clone()
    changed[3, 2] += 1e-6 * changed[3, 2]
    assert base == tensor_fingerprint(X.clone(), Y.clone())
    others = [tensor_fingerprint(changed, Y), tensor_fingerprint(X.T, Y), tensor_fingerprint(X.double(), Y)]
    assert len({base, *others, tensor_fingerprint(Y, X), tensor_fingerprint(torch.tensor(1))}) == 6


# ---- several partners ----


@pytest.mark.parametrize("indices", [[0, 1, 2, 3], [3, 1], [2], [2, 0, 2], [1]])
@pytest.mark.parametrize("masked", [False, True])
def test_batches_with_several_partners_equal_those_of_the_collator(indices: list[int], masked: bool) -> None:
    """Row 1 has no partner, row 2 has the second alone."""
    mask = torch.tensor([[True, True], [False, False], [False, True], [True, False]])
    views = [{"x": X + 50, "labels": Y + 1}, Shifted()]
    pairs = TensorPairs(original(), views, has_partner=mask if masked else None)
    rows = []
    for index in indices:
        row: dict[str, Any] = {"row_id": str(index), "x": X[index], "labels": int(Y[index])}
        for number, (prefix, x, label) in enumerate((("augmented_", X + 50, Y + 1), ("augmented_2_", X + 100, Y))):
            exists = not masked or bool(mask[index, number])
            row.update({f"{prefix}x": x[index] if exists else None})
            row.update({f"{prefix}labels": int(label[index]) if exists else None})
        rows.append(row)
    assert_same_batch(pairs.__getitems__(indices), PairCollator(default_data_collator)(rows))
    for index, row in zip(indices, rows, strict=True):
        found = pairs[index]
        assert found.keys() == row.keys()
        assert all((found[name] is None) == (row[name] is None) for name in row)


def test_one_mask_of_rows_is_that_of_all_partners() -> None:
    pairs = TensorPairs(original(), [Shifted(), Shifted()], has_partner=PAIRED)
    assert pairs.partners.tolist() == [[True] * 2, [False] * 2] * 2
    assert pairs.partner_mask.tolist() == PAIRED.tolist()
