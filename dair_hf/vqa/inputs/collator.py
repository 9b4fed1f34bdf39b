"""Batches for answer classifiers with a word tokenizer: questions, images and soft targets as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from datasets import Dataset, Features, List, Value
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from dair_hf.data.collator import LABELS
from dair_hf.vqa.answers import ANSWER_IDS, ANSWER_SCORES

IMAGE = "image"
QUESTION = "question"
INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
View = Mapping[str, Any]


def encode_questions(rows: Dataset, tokenizer: PreTrainedTokenizerBase) -> Dataset:
    """Add the word ids of every question: `input_ids`, a list of int32.

    Args:
        rows: Rows or edits with the column `question`.
        tokenizer: Tokenizer from `build_word_tokenizer`.

    Returns:
        The rows with `input_ids`, truncated to `tokenizer.model_max_length`; None if the question is None. A question
        without words ("???") becomes one unknown word, since a recurrent network needs at least one.

    Example:
        >>> from dair_hf.word_tokenizer import build_word_tokenizer
        >>> tokenizer = build_word_tokenizer(["what is it"], min_count=1)
        >>> encode_questions(Dataset.from_dict({"question": ["Is it?", "?"]}), tokenizer)["input_ids"][:]
        [[2, 3], [1]]
    """
    features = Features({**rows.features, INPUT_IDS: List(Value("int32"))})
    return rows.map(
        _encode_batch, batched=True, fn_kwargs={"tokenizer": tokenizer}, features=features, desc="Encoding questions"
    )


def _encode_batch(batch: Mapping[str, Sequence[Any]], tokenizer: PreTrainedTokenizerBase) -> dict[str, list[Any]]:
    questions = batch[QUESTION]
    texts = [question for question in questions if question is not None]
    # Truncated here: `truncation=True` would change the state of the tokenizer and so the fingerprint of `Dataset.map`.
    ids = iter(tokenizer(texts, return_attention_mask=False)[INPUT_IDS] if texts else [])
    limit, unknown = tokenizer.model_max_length, [tokenizer.unk_token_id]
    return {INPUT_IDS: [None if question is None else next(ids)[:limit] or unknown for question in questions]}


class VQACollator:
    """Collates single views of encoded VQA rows; `PairCollator` wraps it for pairs.

    It reads only the columns in its attribute `columns`. If all answers of a row are outside the vocabulary, its labels
    are zeros, which the soft-score loss ignores. Rows without the column `answer_ids` (test questions) give a batch
    without labels.

    Args:
        images: `Pixels`, a `FeatureCache`, or your own function from N entries of the image column to `[N, ...]`, with
            the name of the model input as `model_input`.
        num_answers: Size of the answer vocabulary.
        pad_token_id: Padding id of the questions.

    Example:
        >>> from dair_hf.vqa.inputs.features import Pixels
        >>> black = lambda path: np.zeros((8, 8, 3), dtype=np.uint8)
        >>> collator = VQACollator(Pixels(black, size=4), num_answers=4)
        >>> batch = collator([
        ...     {"input_ids": [5, 6], "image": "a.png", "answer_ids": [2], "answer_scores": [1.0]},
        ...     {"input_ids": [7], "image": "b.png", "answer_ids": [0, 3], "answer_scores": [0.25, 0.5]},
        ... ])
        >>> batch["input_ids"]
        tensor([[5, 6],
                [7, 0]])
        >>> batch["attention_mask"]
        tensor([[1, 1],
                [1, 0]])
        >>> batch["labels"]
        tensor([[0.0000, 0.0000, 1.0000, 0.0000],
                [0.2500, 0.0000, 0.0000, 0.5000]])
        >>> batch["pixel_values"].shape
        torch.Size([2, 3, 4, 4])
    """

    columns = (INPUT_IDS, IMAGE, ANSWER_IDS, ANSWER_SCORES)

    def __init__(self, images: Any, num_answers: int, pad_token_id: int = 0) -> None:
        self.images = images
        self.num_answers = num_answers
        self.pad_token_id = pad_token_id

    def __call__(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Collate views."""
        questions = [view[INPUT_IDS] for view in views]
        lengths = np.array([len(question) for question in questions])
        mask = np.arange(max(1, lengths.max())) < lengths[:, None]
        input_ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        input_ids[mask] = np.concatenate(questions)
        return {
            INPUT_IDS: torch.from_numpy(input_ids),
            ATTENTION_MASK: torch.from_numpy(mask.astype(np.int64)),
            self.images.model_input: self.images([view[IMAGE] for view in views]),
            **soft_targets(views, self.num_answers),
        }


def soft_targets(views: Sequence[View], num_answers: int) -> dict[str, Tensor]:
    """Return the labels of the sample loss `soft_score`, the scores of all answers; none if no view has answers."""
    if not any(ANSWER_IDS in view for view in views):
        return {}
    answers = [view[ANSWER_IDS] for view in views]
    classes = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in answers])
    rows = np.repeat(np.arange(len(answers)), [len(ids) for ids in answers])
    labels = np.zeros((len(answers), num_answers), dtype=np.float32)
    labels[rows, classes] = np.concatenate([view[ANSWER_SCORES] for view in views])
    return {LABELS: torch.from_numpy(labels)}
