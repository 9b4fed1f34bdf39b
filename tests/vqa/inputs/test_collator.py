"""The collator: literal batches, pairs, columns and soft targets, and errors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from dair_hf.data.collator import PairCollator
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import soft_score
from dair_hf.vqa.inputs.collator import VQACollator, column, soft_targets


class Numbers:
    """Image inputs that are numbers."""

    def __init__(self, model_input: str = "pixel_values") -> None:
        self.model_input = model_input

    def __call__(self, images: Sequence[Any]) -> Tensor:
        return torch.tensor(images, dtype=torch.float32).view(-1, 1, 1, 1)


def row(words: list[int], image: int, ids: list[int], scores: list[float], **more: Any) -> dict[str, Any]:
    return {"input_ids": words, "image": image, "answer_ids": ids, "answer_scores": scores, **more}


def collator(**settings: Any) -> VQACollator:
    return VQACollator(Numbers(), **{"num_answers": 4, **settings})


def test_a_batch_entry_by_entry() -> None:
    rows = [row([5, 6, 7], 1, [3, 0], [0.5, 0.25], question="ignored", answers=["a"] * 10), row([8], 2, [], [])]
    batch = collator()(rows)
    assert list(batch) == ["input_ids", "attention_mask", "pixel_values", "labels"]
    assert torch.equal(batch["input_ids"], torch.tensor([[5, 6, 7], [8, 0, 0]]))
    assert torch.equal(batch["attention_mask"], torch.tensor([[1, 1, 1], [1, 0, 0]]))
    assert torch.equal(batch["pixel_values"], torch.tensor([1.0, 2.0]).view(2, 1, 1, 1))
    assert torch.equal(batch["labels"], torch.tensor([[0.25, 0.0, 0.0, 0.5], [0.0, 0.0, 0.0, 0.0]]))
    assert [batch[name].dtype for name in batch] == [torch.int64, torch.int64, torch.float32, torch.float32]


def test_name_of_the_image_input() -> None:
    batch = VQACollator(Numbers("image_features"), num_answers=4)([row([5], 1, [0], [1.0])])
    assert "image_features" in batch
    assert "pixel_values" not in batch


def test_padding_id_and_questions_without_words() -> None:
    batch = collator(pad_token_id=9)([row([], 1, [0], [1.0]), row([5, 0], 1, [0], [1.0])])
    assert torch.equal(batch["input_ids"], torch.tensor([[9, 9], [5, 0]]))
    assert torch.equal(batch["attention_mask"], torch.tensor([[0, 0], [1, 1]]))
    alone = collator()([row([], 1, [0], [1.0])])
    assert torch.equal(alone["input_ids"], torch.tensor([[0]]))
    assert torch.equal(alone["attention_mask"], torch.tensor([[0]]))


def test_questions_without_annotations_have_no_labels() -> None:
    assert "labels" not in collator()([{"input_ids": [5], "image": 1}])


def test_pairs() -> None:
    original = row([5, 6], 1, [0], [1.0])
    partner = {f"augmented_{name}": value for name, value in row([7], 2, [1, 2], [0.5, 0.25]).items()}
    nobody = dict.fromkeys(partner)
    batch = PairCollator(collator())(
        [{"row_id": "a", **original, **partner}, {"row_id": "b", **row([8], 3, [3], [1.0]), **nobody}]
    )
    assert torch.equal(batch["view_mask"], torch.tensor([[True, True], [True, False]]))
    assert torch.equal(batch["input_ids"], torch.tensor([[[5, 6], [7, 0]], [[8, 0], [0, 0]]]))
    assert torch.equal(batch["pixel_values"].flatten(), torch.tensor([1.0, 2.0, 3.0, 0.0]))
    one, half = [1.0, 0.0, 0.0, 0.0], [0.0, 0.5, 0.25, 0.0]
    assert torch.equal(batch["labels"], torch.tensor([[one, half], [[0.0, 0.0, 0.0, 1.0], [0.0] * 4]]))


def test_labels_fit_the_sample_loss() -> None:
    labels = collator()([row([5], 1, [1], [0.5]), row([5], 1, [], [])])["labels"]
    outputs = type("Outputs", (), {"logits": torch.zeros(2, 4)})
    # Half of log 4, and 0.
    assert soft_score(outputs, labels).tolist() == pytest.approx([0.6931472, 0.0], abs=1e-6)


@pytest.mark.parametrize("outside", [4, -1])
def test_answer_outside_the_vocabulary_is_refused(outside: int) -> None:
    with pytest.raises(DataError, match=f"has the answer id {outside}, but the vocabulary has 4"):
        collator()([row([5], 1, [outside], [1.0])])


def test_answers_and_scores_must_match() -> None:
    with pytest.raises(DataError, match=r"row 1 of the batch has 2 answer_ids, but 1 answer_scores"):
        collator()([row([5], 1, [0], [1.0]), row([5], 1, [0, 1], [1.0])])


@pytest.mark.parametrize("missing", ["input_ids", "image", "answer_ids", "answer_scores"])
def test_row_without_a_column_is_refused(missing: str) -> None:
    lacking = row([5], 1, [0], [1.0])
    del lacking[missing]
    with pytest.raises(DataError, match=f"row 1 of the batch has no '{missing}'"):
        collator()([row([5], 1, [0], [1.0]), lacking])
    assert set(VQACollator.columns) == set(row([5], 1, [0], [1.0]))


# --- columns and soft targets -----------------------------------------------------------------------------------------


def test_column_needs_a_value_in_every_row() -> None:
    assert column([{"a": 1}, {"a": 0, "b": 5}], "a") == [1, 0]
    message = r"row 1 of the batch has no 'a' \(only \['a', 'b'\]\); encode the rows first, or keep"
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


def test_soft_targets_of_unknown_answers_are_zeros() -> None:
    found = soft_targets([{"answer_ids": [], "answer_scores": []}] * 2, 3)
    assert found is not None and found.tolist() == [[0.0] * 3] * 2


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            {"answer_ids": [4], "answer_scores": [1.0]},
            "row 1 of the batch has the answer id 4, but the vocabulary has 4 answers",
        ),
        ({"answer_ids": [0, -1], "answer_scores": [0.5, 0.5]}, "row 1 of the batch has the answer id -1"),
        ({"answer_ids": [0, 1], "answer_scores": [1.0]}, "row 1 of the batch has 2 answer_ids, but 1 answer_scores"),
        ({"answer_ids": [0]}, "row 1 of the batch has no 'answer_scores'"),
        ({"answer_scores": [0.5]}, "row 1 of the batch has no 'answer_ids'"),
    ],
)
def test_invalid_soft_targets_are_refused(row: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        soft_targets([{"answer_ids": [0], "answer_scores": [1.0]}, row], 4)
