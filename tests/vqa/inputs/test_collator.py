"""Encoding of questions as word ids, and the collator: literal batches, pairs and soft targets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from datasets import Dataset
from datasets.fingerprint import Hasher
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from dair_hf.data.collator import PairCollator
from dair_hf.losses.per_sample import soft_score
from dair_hf.vqa.inputs.processors import VQACollator, encode_questions
from dair_hf.word_tokenizer import build_word_tokenizer


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


QUESTIONS = ["What is this?", "What's the man's hat?", "Is the man in the hat?", "how many hats?"]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_word_tokenizer(QUESTIONS)


def test_rows_get_ids(tokenizer: PreTrainedTokenizerFast) -> None:
    rows = Dataset.from_dict({"row_id": ["a", "b", "c", "d"], "question": ["What is it?", "?", None, "The hat"]})
    encoded = encode_questions(rows, tokenizer)
    assert encoded["input_ids"][:] == [[7, 5, 1], [1], None, [2, 4]]
    assert encoded.features["input_ids"].feature.dtype == "int32"
    assert encoded.column_names == ["row_id", "question", "input_ids"]
    without = rows.select([2]).cast_column("question", rows.features["question"])
    assert encode_questions(without, tokenizer)["input_ids"][:] == [None]


def test_fingerprint_of_the_encoding(tokenizer: PreTrainedTokenizerFast) -> None:
    """Encoding leaves the tokenizer unchanged, so that `Dataset.map` finds its cached result."""
    before = Hasher.hash(tokenizer)
    encode_questions(Dataset.from_dict({"question": ["the man " * 100]}), tokenizer)
    assert Hasher.hash(tokenizer) == before
