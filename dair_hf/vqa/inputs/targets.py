"""Columns of a batch of VQA views, and the soft targets among them as one tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dair_hf.errors import DataError

ANSWER_IDS = "answer_ids"
ANSWER_SCORES = "answer_scores"
View = Mapping[str, Any]


def column(views: Sequence[View], name: str) -> list[Any]:
    """The values of one column of a batch.

    Args:
        views: Rows.
        name: The column.

    Returns:
        One value a row.

    Raises:
        DataError: A row has none.

    Example:
        >>> column([{"question": "how many?"}, {"question": "what colour?"}], "question")
        ['how many?', 'what colour?']
    """
    for row, view in enumerate(views):
        if view.get(name) is None:
            raise DataError(
                f"row {row} of the batch: no {name!r} (it has {sorted(view)}); encode the rows first, or keep that "
                "column in the data"
            )
    return [view[name] for view in views]


def soft_targets(views: Sequence[View], num_answers: int) -> Tensor | None:
    """The scores of all answers of the vocabulary, as the sample loss `soft_score` takes them.

    Args:
        views: Rows with `answer_ids` and `answer_scores`, lists of one length.
        num_answers: Size of the vocabulary.

    Returns:
        `[N, num_answers]` float32, zeros for a row whose answers are all outside the vocabulary; None where no row has
        the column `answer_ids` (test questions).

    Raises:
        DataError: A row lacks a column, has another number of scores than of answers, or an id outside the vocabulary.

    Example:
        >>> soft_targets([{"answer_ids": [0, 3], "answer_scores": [0.25, 0.5]}], 4)
        tensor([[0.2500, 0.0000, 0.0000, 0.5000]])
    """
    if not any(ANSWER_IDS in view for view in views):
        return None
    answers, scores = column(views, ANSWER_IDS), column(views, ANSWER_SCORES)
    counts = [len(ids) for ids in answers]
    if counts != [len(values) for values in scores]:
        row = next(i for i, values in enumerate(scores) if counts[i] != len(values))
        raise DataError(
            f"row {row} of the batch: {counts[row]} answer_ids, but {len(scores[row])} answer_scores; "
            "encode the answers again"
        )
    columns = np.concatenate([np.asarray(ids, dtype=np.int64) for ids in answers])
    rows = np.repeat(np.arange(len(answers)), counts)
    if (outside := (columns < 0) | (columns >= num_answers)).any():
        place = int(outside.argmax())
        raise DataError(
            f"row {rows[place]} of the batch: answer id {columns[place]} in a vocabulary of {num_answers} answers; "
            "encode the answers with the vocabulary that the model is built for"
        )
    labels = np.zeros((len(answers), num_answers), dtype=np.float32)
    labels[rows, columns] = np.concatenate(scores)
    return torch.from_numpy(labels)
