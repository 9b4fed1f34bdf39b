"""Predictions for every view of a paired data set: bucketed by length, sharded over ranks, each view once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import ArrayLike
from tqdm.auto import tqdm

from dair_hf.errors import DataError

MARGIN = 8  # tokens that an answer may hold beyond its target before it is taken for one that runs on
MORE_ROWS = 4  # what a batch of short rows may hold beyond the batch size: what is kept of a row has its share too


def buckets(lengths: ArrayLike, batch_size: int, ranks: int = 1, most: int | None = None) -> list[np.ndarray]:
    """Items of similar length, for all ranks together, each bucket to be run in one batch a rank.

    A bucket of the longest items holds `batch_size` items a rank. One of shorter items holds more, as long as no more
    tokens come together than `batch_size` of the longest make, and at most `MORE_ROWS` times as many, or `most`.

    Args:
        lengths: Tokens of every item, `[N]`, or `[N, K]` of K kinds, whose sum counts; items are sorted by the first
            kind, then by the next: what costs most first.
        batch_size: Items of a batch on each rank.
        ranks: Processes.
        most: Items of a batch at most; None: `MORE_ROWS * batch_size`.

    Returns:
        Item numbers, longest first (so that memory runs out at once or never).

    Example:
        >>> [bucket.tolist() for bucket in buckets([2, 8, 4, 2], batch_size=1)]
        [[1], [2, 0], [3]]
    """
    kinds = np.asarray(lengths)
    kinds = kinds[:, None] if kinds.ndim == 1 else kinds
    order = np.lexsort(-kinds.T[::-1])
    tokens = np.maximum(kinds.sum(1), 1)[order]
    budget, most = batch_size * tokens.max(initial=1), MORE_ROWS * batch_size if most is None else most
    found, start, longest = [], 0, 0
    for end in range(len(order) + 1):
        # Shared out, each rank gets this many: the bucket and one item more.
        share = -(-(end + 1 - start) // ranks)
        longest = max(longest, tokens[end]) if end < len(order) else longest
        if end == len(order) or share * longest > budget or share > most:
            if end > start:
                found.append(order[start:end])
            if end < len(order):
                start, longest = end, tokens[end]
    return found


def predict_in_buckets(
    lengths: ArrayLike,
    run: Callable[[list[int]], Sequence[Any]],
    accelerator: Accelerator,
    batch_size: int,
    description: str = "Predicting",
    show_progress: bool = True,
    most: int | None = None,
) -> list[Any]:
    """Predictions of all items, in their own order, computed in batches of similar length and shared out over ranks.

    The items of a bucket (`buckets`) are dealt to the ranks in turn; every rank runs the same number of batches, so
    that sharded models stay in step.

    Args:
        lengths: Length of every item, `[N]` or `[N, K]`, as in `buckets`.
        run: Item numbers -> one prediction for each. Called on each rank with that rank's items.
        accelerator: Knows the ranks.
        batch_size: Items a call on each rank; more where they are short.
        description: Label of the progress bar, which the main process shows.
        show_progress: Whether to show it.
        most: Items a call at most; None: as in `buckets`.

    Returns:
        N predictions, on every rank.

    Raises:
        DataError: `run` returned another number of predictions than it got items.

    Example:
        >>> predict_in_buckets([1, 3, 2], lambda items: [10 * i for i in items], Accelerator(), 2, show_progress=False)
        [0, 10, 20]
    """
    ranks, rank = accelerator.num_processes, accelerator.process_index
    count = len(np.asarray(lengths))
    found: dict[int, Any] = {}
    with tqdm(
        total=count, desc=description, unit="view", disable=not show_progress or not accelerator.is_main_process
    ) as bar:
        for bucket in buckets(lengths, batch_size, ranks, most):
            share = -(-len(bucket) // ranks)
            # A rank that would get one item less repeats one: sharded models need every rank at every forward.
            items = np.resize(bucket, share * ranks)[rank::ranks].tolist()
            predictions = run(items)
            if len(predictions) != len(items):
                raise DataError(
                    f"{description}: {len(predictions)} predictions came back for {len(items)} views; "
                    "a prediction function returns one for each"
                )
            found.update(zip(items, predictions, strict=True))
            bar.update(len(bucket))
    for other in gather_object([found]):
        found.update(other)
    return [found[item] for item in range(count)]


def predict_in_stages(
    lengths: np.ndarray,
    advance: Callable[[list[int], list[list[int]], int], Sequence[tuple[list[int], bool]]],
    limit: int,
    accelerator: Accelerator,
    batch_size: int,
    resumed_tokens: int | None = None,
    description: str = "Generating",
    show_progress: bool = True,
) -> list[list[int]]:
    """Answers of all items, written some tokens at a time: those that have ended do not wait for the others.

    First every batch runs until its longest answer is due: at its targets and `MARGIN` tokens more, or at its end where
    no targets are known. Answers that have not ended then are put into new batches, by what they hold so far, and may
    double in length; and so on. Each round ends with all ranks knowing all answers, so that they run the same batches.

    Args:
        lengths: `[N, 2]`: tokens of the targets, 0 where they are not known, and of the input.
        advance: (item numbers, their answers so far, tokens to reach) -> answers so far, and whether they have ended.
            Answers so far are of one length in a call.
        limit: Tokens after which every answer has ended.
        accelerator: Knows the ranks.
        batch_size: Items a call on each rank; more where they are short.
        resumed_tokens: Tokens, at most, that answers taken up together hold so far, on each rank (more only where it is
            one answer), where the model computes the logits of all of them once more. None: any number.
        description: Label of the progress bars.
        show_progress: Whether to show them.

    Returns:
        N answers, on every rank.

    Example:
        >>> def count(items, begun, until):
        ...     return [([1] * min(until, 9 * item), until >= 9 * item) for item in items]
        >>> found = predict_in_stages(np.array([[1, 1]] * 3), count, 99, Accelerator(), 2, show_progress=False)
        >>> [len(answer) for answer in found]
        [0, 9, 18]
    """
    answers: list[list[int]] = [[] for _ in range(len(lengths))]
    waiting, targets = np.arange(len(lengths)), lengths[:, 0]
    due = np.minimum(np.where(targets > 0, targets + MARGIN, limit), limit)
    label, begun = description, False
    while len(waiting):

        def run(places: list[int], waiting: np.ndarray = waiting, due: np.ndarray = due) -> Any:
            items = waiting[places].tolist()
            shortest = min(len(answers[item]) for item in items)
            return advance(items, [answers[item][:shortest] for item in items], int(due[items].max()))

        kinds = np.stack([due, lengths[:, 1]], axis=1)[waiting]
        rows, most = batch_size, None
        if resumed_tokens is not None and begun:
            # By what answers hold alone, of which a bucket has no more than `rows` of the longest.
            longest = max(len(answers[item]) for item in waiting)
            kinds, rows, most = kinds[:, :1], max(resumed_tokens // longest, 1), batch_size
        found = predict_in_buckets(kinds, run, accelerator, rows, label, show_progress, most)
        for item, (answer, _) in zip(waiting.tolist(), found, strict=True):
            answers[item] = answer
        waiting = waiting[[not ended for _, ended in found]]
        due = np.minimum([2 * len(answer) for answer in answers], limit)
        label, begun = f"{description} on", True
    return answers
