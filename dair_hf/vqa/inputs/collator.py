"""From encoded questions, answers and images to the tensors that a classifier of answers takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.collator import LABELS
from dair_hf.vqa.inputs.targets import ANSWER_IDS, ANSWER_SCORES, column, soft_targets

IMAGE = "image"
INPUT_IDS = "input_ids"
ATTENTION_MASK = "attention_mask"


class ImageInputs(Protocol):
    """What gives the image part of a batch: `Pixels`, `FeatureCache`, or your own.

    Attributes:
        model_input: Name under which the model takes it: `pixel_values` or `image_features`.
    """

    model_input: str

    def __call__(self, images: Sequence[Any]) -> Tensor:
        """Entries of the image column, N of them -> `[N, ...]`."""
        ...


class VQACollator:
    """Collates single views of encoded VQA rows; `PairCollator` wraps it for pairs.

    It reads the columns that its attribute `columns` names and no others. A row whose answers are all outside the
    vocabulary has zeros for labels, which the soft-score loss counts as no target. Rows without the column
    `answer_ids` (test questions) give a batch without labels.

    Args:
        images: `Pixels` or a `FeatureCache`.
        num_answers: Size of the answer vocabulary.
        pad_token_id: Id that pads the questions.

    Raises:
        DataError: A row lacks a column, or has an answer id outside the vocabulary.

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

    def __call__(self, views: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        """Collate views.

        Args:
            views: Encoded rows.

        Returns:
            `input_ids` and `attention_mask` `[N, T]` int64, the images as `images` names and gives them, and `labels`
            `[N, num_answers]` float32, the soft targets.
        """
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
