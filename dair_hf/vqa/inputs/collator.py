"""Batches for answer classifiers with a word tokenizer: questions, images and soft targets as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.collator import LABELS
from dair_hf.errors import DataError
from dair_hf.vqa.answers import ANSWER_IDS, ANSWER_SCORES

IMAGE = "image"
INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"
View = Mapping[str, Any]


class ImageInputs(Protocol):
    """Function that turns the image column into a model input: `Pixels`, `FeatureCache`, or your own."""

    model_input: str

    def __call__(self, images: Sequence[Any]) -> Tensor:
        """Turn N entries of the image column into `[N, ...]`."""
        ...


class VQACollator:
    """Collates single views of encoded VQA rows; `PairCollator` wraps it for pairs.

    It reads only the columns in its attribute `columns`. If all answers of a row are outside the vocabulary, its labels
    are zeros, which the soft-score loss ignores. Rows without the column `answer_ids` (test questions) give a batch
    without labels.

    Args:
        images: `Pixels` or a `FeatureCache`.
        num_answers: Size of the answer vocabulary.
        pad_token_id: Padding id of the questions.

    Raises:
        DataError: A row lacks a column or has an answer id outside the vocabulary.

    Example:
        >>> from dair_hf.vqa.inputs.pixels import Pixels
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

    def __init__(self, images: ImageInputs, num_answers: int, pad_token_id: int = 0) -> None:
        self.images = images
        self.num_answers = num_answers
        self.pad_token_id = pad_token_id

    def __call__(self, views: Sequence[View]) -> dict[str, Tensor]:
        """Collate views."""
        batch = self._questions(column(views, INPUT_IDS))
        batch[self.images.model_input] = self.images(column(views, IMAGE))
        if (labels := soft_targets(views, self.num_answers)) is not None:
            batch[LABELS] = labels
        return batch

    def _questions(self, questions: list[Sequence[int]]) -> dict[str, Tensor]:
        lengths = np.array([len(question) for question in questions])
        mask = np.arange(max(1, lengths.max())) < lengths[:, None]
        input_ids = np.full(mask.shape, self.pad_token_id, dtype=np.int64)
        input_ids[mask] = np.concatenate(questions)
        return {INPUT_IDS: torch.from_numpy(input_ids), ATTENTION_MASK: torch.from_numpy(mask.astype(np.int64))}


def column(views: Sequence[View], name: str) -> list[Any]:
    """Return the values of a column, one per row.

    Raises:
        DataError: A row has no value.

    Example:
        >>> column([{"question": "how many?"}, {"question": "what color?"}], "question")
        ['how many?', 'what color?']
    """
    for row, view in enumerate(views):
        if view.get(name) is None:
            raise DataError(
                f"row {row} of the batch has no {name!r} (only {sorted(view)}); encode the rows first, or keep that "
                "column in the data"
            )
    return [view[name] for view in views]


def soft_targets(views: Sequence[View], num_answers: int) -> Tensor | None:
    """Return the scores of all answers in the vocabulary, as the sample loss `soft_score` expects them."""
    if not any(ANSWER_IDS in view for view in views):
        return None
    answers, scores = column(views, ANSWER_IDS), column(views, ANSWER_SCORES)
    counts = [len(ids) for ids in answers]
    if counts != [len(values) for values in scores]:
        row = next(i for i, values in enumerate(scores) if counts[i] != len(values))
        raise DataError(
            f"row {row} of the batch has {counts[row]} answer_ids, but {len(scores[row])} answer_scores; "
            "encode the answers again"
        )
    classes = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in answers])
    rows = np.repeat(np.arange(len(answers)), counts)
    if (outside := (classes < 0) | (classes >= num_answers)).any():
        first = int(outside.argmax())
        raise DataError(
            f"row {rows[first]} of the batch has the answer id {classes[first]}, but the vocabulary has {num_answers} "
            "answers; encode the answers with the vocabulary of the model"
        )
    labels = np.zeros((len(answers), num_answers), dtype=np.float32)
    labels[rows, classes] = np.concatenate(scores)
    return torch.from_numpy(labels)
