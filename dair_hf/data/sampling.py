"""Rows of an epoch: their partners, which are drawn anew, their order, and batches of rows of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow.compute
import torch
from transformers.trainer_pt_utils import BatchRebalanceSampler

from dair_hf.data.collator import AUGMENTED_PREFIX, PADDING_ROW
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX

MEGABATCH = 50  # batches sorted together: enough to save padding, few enough to stay random


class EpochPairs(torch.utils.data.Dataset[dict[str, Any]]):
    """Training pairs whose partners are drawn anew each epoch.

    Args:
        draw: Epoch number -> pairs of that epoch, with the same rows in every epoch. The cache of `Dataset.map` makes
            it cheap to call again.

    Raises:
        DataError: An epoch has another number of rows than the first.

    Example:
        >>> pairs = EpochPairs(lambda epoch: datasets.Dataset.from_dict({"x": [epoch, epoch]}))
        >>> pairs.set_epoch(3)
        >>> pairs[0]
        {'x': 3}
    """

    def __init__(self, draw: Callable[[int], datasets.Dataset]) -> None:
        self.draw = draw
        self.epoch = 0
        self.pairs = draw(0)

    def set_epoch(self, epoch: int) -> None:
        """Switch to the pairs of `epoch`."""
        if epoch == self.epoch:
            return
        pairs = self.draw(epoch)
        if len(pairs) != len(self.pairs):
            raise DataError(
                f"epoch {epoch} was drawn with {len(pairs)} rows, epoch {self.epoch} with {len(self.pairs)}; "
                "every epoch must hold the same rows, with different partners"
            )
        self.pairs, self.epoch = pairs, epoch

    @property
    def column_names(self) -> list[str]:
        """Columns of the current epoch's pairs."""
        return self.pairs.column_names

    def select_columns(self, columns: list[str]) -> EpochPairs:
        """Return the same pairs with these columns only, in every epoch."""
        draw, selected = self.draw, EpochPairs.__new__(EpochPairs)
        selected.draw = lambda epoch: draw(epoch).select_columns(columns)
        selected.epoch, selected.pairs = self.epoch, self.pairs.select_columns(columns)
        return selected

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.pairs[index]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return self.pairs.__getitems__(indices)


class PaddedStream(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Stream of rows followed by padding rows, so that all ranks take equally many steps.

    `accelerate` repeats rows for that purpose, but does not tell which rows of a stream are repeated.

    Args:
        rows: The stream.
        multiple: Number of rows in one step over all ranks.

    Example:
        >>> [row.get("is_padding_row", False) for row in PaddedStream([{"x": 1}, {"x": 2}, {"x": 3}], multiple=2)]
        [False, False, False, True]
    """

    def __init__(self, rows: Iterable[dict[str, Any]], multiple: int) -> None:
        self.rows = rows
        self.multiple = multiple

    def set_epoch(self, epoch: int) -> None:
        """Pass the epoch to the stream, which may use it to shuffle."""
        if hasattr(self.rows, "set_epoch"):
            self.rows.set_epoch(epoch)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        count, last = 0, None
        for row in self.rows:
            count, last = count + 1, row
            yield row
        for _ in range(-count % self.multiple):
            assert last is not None
            yield {**last, PADDING_ROW: True}


def view_lengths(pairs: datasets.Dataset | EpochPairs, column: str = "input_ids") -> np.ndarray:
    """Return the length of the longer view of every row.

    Args:
        pairs: Paired rows.
        column: Column of lists.

    Returns:
        `[N]` int64, entries of the column (tokens).

    Raises:
        DataError: The column is missing or holds no lists.

    Example:
        >>> rows = {"input_ids": [[1], [1, 2]], "augmented_input_ids": [[1, 2, 3], None]}
        >>> view_lengths(datasets.Dataset.from_dict(rows))
        array([3, 2])
    """
    dataset = pairs.pairs if isinstance(pairs, EpochPairs) else pairs
    if column not in dataset.column_names:
        raise DataError(f"bucketing by length needs column {column!r}; the data has {dataset.column_names}")
    longest = np.zeros(len(dataset), dtype=np.int64)
    for name in (column, AUGMENTED_PREFIX + column):
        if name not in dataset.column_names:
            continue
        table = dataset.select_columns([name]).with_format("arrow")[:]
        try:
            lengths = pyarrow.compute.list_value_length(table[name])
        except pyarrow.ArrowNotImplementedError as error:
            if pyarrow.types.is_null(table[name].type):
                continue  # no row of this data has a partner
            raise DataError(f"bucketing by length: column {name!r} holds {table[name].type}, not lists") from error
        longest = np.maximum(longest, lengths.fill_null(0).to_numpy())
    return longest


def view_counts(pairs: datasets.Dataset | EpochPairs, column: str = "input_ids") -> np.ndarray:
    """Return the number of views of every row: 2 for a row with a partner, else 1.

    Args:
        pairs: Paired rows.
        column: Column of the original view.

    Returns:
        `[N]` int64.

    Example:
        >>> view_counts(datasets.Dataset.from_dict({"input_ids": [[1], [1]], "augmented_input_ids": [[2], None]}))
        array([2, 1])
    """
    dataset = pairs.pairs if isinstance(pairs, EpochPairs) else pairs
    name = AUGMENTED_PREFIX + column
    if name not in dataset.column_names:
        return np.ones(len(dataset), dtype=np.int64)
    table = dataset.select_columns([name]).with_format("arrow")[:]
    return 1 + pyarrow.compute.is_valid(table[name]).to_numpy().astype(np.int64)


def targets_per_row(pairs: datasets.Dataset | EpochPairs, column: str = "labels") -> np.ndarray:
    """Return the number of targets of every row: entries of a list column that are not -100.

    Args:
        pairs: Rows.
        column: Column of lists.

    Returns:
        `[N]` int64; 0 for a row with None.

    Example:
        >>> targets_per_row(datasets.Dataset.from_dict({"labels": [[-100, 5, 6], [7]]}))
        array([2, 1])
    """
    dataset = pairs.pairs if isinstance(pairs, EpochPairs) else pairs
    table = dataset.select_columns([column]).with_format("arrow")[:]
    lengths = pyarrow.compute.list_value_length(table[column]).fill_null(0).to_numpy()
    is_target = pyarrow.compute.list_flatten(table[column]).to_numpy() != IGNORE_INDEX
    targets_before = np.concatenate([[0], np.cumsum(is_target)])
    ends = np.cumsum(lengths)
    counts: np.ndarray = targets_before[ends] - targets_before[ends - lengths]
    return counts


class PairLengthSampler(torch.utils.data.Sampler[int]):
    """Random order, new in each epoch, in which rows of a batch have similar lengths, so that little is padded.

    Rows are shuffled, sorted by length within groups of `MEGABATCH` batches, and cut into batches, which are shuffled
    again; an incomplete batch stays last. The order depends on `(seed, epoch)` only: it is the same on every rank and
    after a resume.

    Args:
        lengths: Length of the longer view of every row, `[N]`.
        batch_size: Rows per batch over all ranks.
        seed: Seed of the order.

    Example:
        >>> sampler = PairLengthSampler([1, 9, 1, 9], batch_size=2)
        >>> sorted(sorted(list(sampler)[i:i + 2]) for i in (0, 2))
        [[0, 2], [1, 3]]
    """

    def __init__(self, lengths: Sequence[int] | np.ndarray, batch_size: int, seed: int = 0) -> None:
        self.lengths = np.asarray(lengths)
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Switch to the order of `epoch`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = generator.permutation(len(self.lengths))
        # One stable sort: by group, and by decreasing length within a group.
        group = np.arange(len(order)) // (self.batch_size * MEGABATCH)
        order = order[np.lexsort((-self.lengths[order], group))]
        whole = len(order) // self.batch_size * self.batch_size
        batches = generator.permutation(order[:whole].reshape(-1, self.batch_size))
        yield from np.concatenate([batches.ravel(), order[whole:]]).tolist()


class TokenBatchSampler(BatchRebalanceSampler):
    """Batches of rows of similar length, each with a limited number of tokens.

    A batch counts (number of its views) * (length of its longest view) tokens, padding included. Rows are sorted by
    length and number of views, equal ones in a new random order each epoch, and cut greedily into batches, which then
    come in random order. Sizes of batches are the same in every epoch, and the order depends on `(seed, epoch)` only,
    so that it is the same after a resume. In each step, ranks get batches of similar lengths. All ranks get equally
    many batches, and no row is left out or repeated.

    The base class `BatchRebalanceSampler` makes the Trainer treat it as a sampler of the batches of one rank.

    Args:
        lengths: Length of the longer view of every row, `[N]`, tokens.
        max_tokens: Largest number of tokens of a batch.
        views: Number of views of every row, `[N]`; None: 1 each.
        ranks: Number of processes.
        rank: Number of this process.
        seed: Seed of the order.

    Raises:
        DataError: A single row has more than `max_tokens` tokens, or there are fewer rows than ranks.

    Example:
        >>> sorted(sorted(batch) for batch in TokenBatchSampler([1, 9, 1, 9, 1], max_tokens=18))
        [[0, 2, 4], [1, 3]]
    """

    def __init__(
        self,
        lengths: Sequence[int] | np.ndarray,
        max_tokens: int,
        views: Sequence[int] | np.ndarray | None = None,
        ranks: int = 1,
        rank: int = 0,
        seed: int = 0,
    ) -> None:
        self.lengths = np.asarray(lengths)
        self.views = np.ones_like(self.lengths) if views is None else np.asarray(views)
        self.seed, self.epoch, self.ranks, self.rank = seed, 0, ranks, rank
        tokens = self.lengths * self.views
        if tokens.max(initial=0) > max_tokens:
            raise DataError(
                f"max_tokens_per_batch={max_tokens} is below the {tokens.max()} tokens of row {tokens.argmax()} alone; "
                "raise it, or truncate the inputs"
            )
        if len(self.lengths) < ranks:
            raise DataError(
                f"{len(self.lengths)} rows cannot be distributed over {ranks} processes; use fewer processes"
            )
        order = np.lexsort((-self.views, -self.lengths))
        self.sizes = _batch_sizes(self.lengths[order], self.views[order], max_tokens, ranks)

    def set_epoch(self, epoch: int) -> None:
        """Switch to the order of `epoch`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.sizes) // self.ranks

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = generator.permutation(len(self.lengths))
        order = order[np.lexsort((-self.views[order], -self.lengths[order]))]  # stable: equal ones stay shuffled
        ends = np.cumsum(self.sizes)
        for step in generator.permutation(len(self)):
            batch = step * self.ranks + self.rank
            yield order[ends[batch] - self.sizes[batch] : ends[batch]].tolist()


def _batch_sizes(lengths: np.ndarray, views: np.ndarray, max_tokens: int, ranks: int) -> np.ndarray:
    """Return the number of rows of each batch, for decreasing lengths; the number of batches is a multiple of ranks."""
    total_views = np.cumsum(views)
    sizes: list[int] = []
    start = 0
    while start < len(lengths):
        # The first row of a batch is its longest; an empty one counts as a token.
        views_before = total_views[start] - views[start]
        most_views = max_tokens // max(int(lengths[start]), 1)
        end = int(np.searchsorted(total_views, views_before + most_views, side="right"))
        sizes.append(end - start)
        start = end
    while len(sizes) % ranks:
        largest = int(np.argmax(sizes))
        half = sizes[largest] // 2
        sizes[largest : largest + 1] = [sizes[largest] - half, half]
    return np.array(sizes, dtype=np.int64)
