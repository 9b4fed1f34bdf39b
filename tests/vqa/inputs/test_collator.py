"""The collator: literal batches, pairs of them, rows without answers, what is refused."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from dair_hf.data.collator import PairCollator
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import soft_score
from dair_hf.vqa.inputs.collator import VQACollator


class Numbers:
    """Images that are numbers."""

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


def test_the_images_say_under_which_name_the_model_takes_them() -> None:
    batch = VQACollator(Numbers("image_features"), num_answers=4)([row([5], 1, [0], [1.0])])
    assert "image_features" in batch
    assert "pixel_values" not in batch


def test_padding_of_its_own_and_questions_without_words() -> None:
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


def test_labels_are_what_the_sample_loss_takes() -> None:
    labels = collator()([row([5], 1, [1], [0.5]), row([5], 1, [], [])])["labels"]
    outputs = type("Outputs", (), {"logits": torch.zeros(2, 4)})
    # Half of log 4, and nothing.
    assert soft_score(outputs, labels).tolist() == pytest.approx([0.6931472, 0.0], abs=1e-6)


@pytest.mark.parametrize("outside", [4, -1])
def test_an_answer_outside_the_vocabulary_is_refused(outside: int) -> None:
    with pytest.raises(DataError, match=f"answer id {outside} in a vocabulary of 4"):
        collator()([row([5], 1, [outside], [1.0])])


def test_answers_and_scores_must_match() -> None:
    with pytest.raises(DataError, match=r"row 1 of the batch: 2 answer_ids, but 1 answer_scores"):
        collator()([row([5], 1, [0], [1.0]), row([5], 1, [0, 1], [1.0])])


@pytest.mark.parametrize("missing", ["input_ids", "image", "answer_ids", "answer_scores"])
def test_a_row_that_lacks_a_column_is_refused(missing: str) -> None:
    lacking = row([5], 1, [0], [1.0])
    del lacking[missing]
    with pytest.raises(DataError, match=f"row 1 of the batch: no '{missing}'"):
        collator()([row([5], 1, [0], [1.0]), lacking])
    assert set(VQACollator.columns) == set(row([5], 1, [0], [1.0]))
