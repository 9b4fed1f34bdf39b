"""Rows of an epoch: newly drawn partners, few partners, the order of rows, and batches of rows of similar length."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow.compute
import torch
from transformers.trainer_pt_utils import BatchRebalanceSampler

from dair_hf.data.collator import PADDING_ROW
from dair_hf.data.counter_rng import subset
from dair_hf.data.view_columns import columns_of_views, parse_column
from dair_hf.errors import DataError, explained
from dair_hf.losses.per_sample import IGNORE_INDEX

MEGABATCH = 50  # batches sorted together: enough to save padding, few enough to stay random


class EpochPairs(torch.utils.data.Dataset[dict[str, Any]]):
    """Training pairs whose partners are drawn again each epoch.

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

    def at(self, epoch: int) -> datasets.Dataset:
        """Return the pairs of an epoch, without switching to it."""
        if epoch == self.epoch:
            return self.pairs
        pairs = self.draw(epoch)
        if len(pairs) != len(self.pairs):
            raise DataError(f"epoch {epoch}: expected the same {len(self.pairs)} rows as before, got {len(pairs)}")
        return pairs

    def set_epoch(self, epoch: int) -> None:
        """Switch to the pairs of `epoch`."""
        self.pairs, self.epoch = self.at(epoch), epoch

    @property
    def column_names(self) -> list[str]:
        """Columns of the current epoch's pairs."""
        return self.pairs.column_names

    def __len__(self) -> int:
        return len(self.pairs)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.pairs[index]

    def __getitems__(self, indices: list[int]) -> list[dict[str, Any]]:
        return self.pairs.__getitems__(indices)


class PaddedStream(torch.utils.data.IterableDataset[dict[str, Any]]):
    """Stream of rows followed by padding rows, so that all ranks take equally many steps.

    `accelerate` repeats rows for that purpose, but does not tell which rows of a stream are repeated.
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


def _arrow_column(pairs: datasets.Dataset | EpochPairs, column: str) -> Any:
    dataset = pairs.pairs if isinstance(pairs, EpochPairs) else pairs
    return dataset.select_columns([column]).with_format("arrow")[:][column]


def view_lengths(pairs: datasets.Dataset | EpochPairs, column: str = "input_ids") -> np.ndarray:
    """Return the number of tokens of the longest view of every row, `[N]`."""
    longest = np.zeros(len(pairs), dtype=np.int64)
    with explained(f"lengths of {column!r}", ValueError, pyarrow.ArrowNotImplementedError):
        for name in {0: column, **columns_of_views(column, pairs.column_names)}.values():
            values = _arrow_column(pairs, name)
            if not pyarrow.types.is_null(values.type):  # None in all rows: no row of this data has the partner
                lengths = pyarrow.compute.list_value_length(values)
                longest = np.maximum(longest, lengths.fill_null(0).to_numpy())
    return longest


def view_counts(pairs: datasets.Dataset | EpochPairs, column: str = "input_ids") -> np.ndarray:
    """Return the number of views of every row, `[N]`: the original and its partners."""
    counts = np.ones(len(pairs), dtype=np.int64)
    for view, name in columns_of_views(column, pairs.column_names).items():
        if view:
            counts += pyarrow.compute.is_valid(_arrow_column(pairs, name)).to_numpy()
    return counts


def targets_per_row(pairs: datasets.Dataset | EpochPairs, column: str = "labels") -> np.ndarray:
    """Return the number of targets of every row, `[N]`: entries of a list column that are not -100."""
    values = _arrow_column(pairs, column)
    lengths = pyarrow.compute.list_value_length(values).fill_null(0).to_numpy()
    is_target = pyarrow.compute.list_flatten(values).to_numpy() != IGNORE_INDEX
    targets_before = np.concatenate([[0], np.cumsum(is_target)])
    ends = np.cumsum(lengths)
    counts: np.ndarray = targets_before[ends] - targets_before[ends - lengths]
    return counts


# One number per row, `[N]`, or a function of the epoch that returns them.
RowNumbers = Sequence[int] | np.ndarray | Callable[[int], np.ndarray]


def _of_epoch(numbers: RowNumbers, epoch: int) -> np.ndarray:
    return np.asarray(numbers(epoch) if callable(numbers) else numbers)


class PairLengthSampler(torch.utils.data.Sampler[int]):
    """Random order, new in each epoch, in which rows of a batch have similar lengths, so that little is padded.

    Rows are shuffled, sorted by length within groups of `MEGABATCH` batches, and cut into batches, which are shuffled
    again. The order depends on `(seed, epoch)` and the lengths of the epoch only.
    """

    def __init__(self, lengths: RowNumbers, batch_size: int, seed: int = 0) -> None:
        self.lengths = lengths
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.n_rows = len(_of_epoch(lengths, 0))

    def set_epoch(self, epoch: int) -> None:
        """Switch to the order of `epoch`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self.n_rows

    def __iter__(self) -> Iterator[int]:
        generator = np.random.default_rng([self.seed, self.epoch])
        lengths = _of_epoch(self.lengths, self.epoch)
        order = generator.permutation(len(lengths))
        whole = len(order) // self.batch_size * self.batch_size
        # One stable sort: by group, and by decreasing length within a group. The incomplete batch is the last group.
        group = np.arange(len(order)) // (self.batch_size * MEGABATCH)
        group[whole:] = len(order)
        order = order[np.lexsort((-lengths[order], group))]
        batches = generator.permutation(order[:whole].reshape(-1, self.batch_size))
        yield from np.concatenate([batches.ravel(), order[whole:]]).tolist()


class TokenBatchSampler(BatchRebalanceSampler):
    """Batches of rows of similar length, each with a limited number of tokens.

    A batch counts (number of its views) * (length of its longest view) tokens, padding included. The order depends on
    `(seed, epoch)` and the lengths of the epoch only. All ranks get equally many batches, of similar lengths in each
    step, and no row is left out or repeated. If there are fewer rows than batches, a rank gets an empty batch.

    The Trainer needs the same number of batches in every epoch. If lengths depend on the epoch, all epochs of the run
    are measured first; the epoch that needs most batches decides. `epochs` returns their number.

    The base class `BatchRebalanceSampler` makes the Trainer treat it as a sampler of the batches of one rank.
    """

    def __init__(
        self,
        lengths: RowNumbers,
        max_tokens: int,
        views: RowNumbers | None = None,
        ranks: int = 1,
        rank: int = 0,
        seed: int = 0,
        epochs: Callable[[int], int] | None = None,
    ) -> None:
        self.lengths, self.views, self.max_tokens = lengths, views, max_tokens
        self.seed, self.epoch, self.ranks, self.rank = seed, 0, ranks, rank
        self.n_rows = len(_of_epoch(lengths, 0))
        self._batches = self._needed_batches(0)
        epoch = 1
        while (callable(lengths) or callable(views)) and epochs is not None and epoch < epochs(self._batches):
            self._batches = max(self._batches, self._needed_batches(epoch))
            epoch += 1

    @property
    def has_empty_batches(self) -> bool:
        """True if there are more batches than rows."""
        return len(self) * self.ranks > self.n_rows

    def set_epoch(self, epoch: int) -> None:
        """Switch to the order of `epoch`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        lengths, views = self._rows(self.epoch)
        order = generator.permutation(len(lengths))
        order = order[np.lexsort((-views[order], -lengths[order]))]  # stable: equal ones stay shuffled
        sizes = self._sizes(lengths, views, order)
        ends = np.cumsum(sizes)
        for step in generator.permutation(len(self)):
            batch = step * self.ranks + self.rank
            yield order[ends[batch] - sizes[batch] : ends[batch]].tolist()

    def _rows(self, epoch: int) -> tuple[np.ndarray, np.ndarray]:
        """Return lengths and numbers of views of the rows of an epoch."""
        lengths = _of_epoch(self.lengths, epoch)
        views = np.ones_like(lengths) if self.views is None else _of_epoch(self.views, epoch)
        tokens = lengths * views
        if tokens.max(initial=0) > self.max_tokens:
            row = f"row {tokens.argmax()} in epoch {epoch}"
            raise DataError(f"max_tokens_per_batch={self.max_tokens}: expected at least the {tokens.max()} of {row}")
        return lengths, views

    def _needed_batches(self, epoch: int) -> int:
        """Return the least number of batches of each rank."""
        lengths, views = self._rows(epoch)
        order = np.lexsort((-views, -lengths))
        return -(-len(_batch_sizes(lengths[order], views[order], self.max_tokens)) // self.ranks)

    def _sizes(self, lengths: np.ndarray, views: np.ndarray, order: np.ndarray) -> np.ndarray:
        """Return the number of rows of each batch in `order`; as many batches in every epoch."""
        sizes, count = _batch_sizes(lengths[order], views[order], self.max_tokens), len(self) * self.ranks
        if len(sizes) > count:
            raise DataError(f"max_tokens_per_batch: expected {count} batches in epoch {self.epoch}, got {len(sizes)}")
        return np.array(_split_batches(sizes, count), dtype=np.int64)


def _batch_sizes(lengths: np.ndarray, views: np.ndarray, max_tokens: int) -> list[int]:
    """Return the number of rows of each batch, for decreasing lengths."""
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
    return sizes


def _split_batches(sizes: list[int], count: int) -> list[int]:
    """Halve the largest batches until there are `count`; batches of one row are not split, but empty ones added."""
    sizes = list(sizes)
    while len(sizes) < count and max(sizes) > 1:
        largest = int(np.argmax(sizes))
        half = sizes[largest] // 2
        sizes[largest : largest + 1] = [sizes[largest] - half, half]
    return sizes + [0] * (count - len(sizes))


def keep_partners(rows: datasets.Dataset, share: float, seed: int, *, groups: str | None = None) -> datasets.Dataset:
    """Remove the partners of all but a random share of the rows; a larger share contains the rows of a smaller one.

    Args:
        rows: Paired rows.
        share: Share of the rows, or of the groups, that keep their partners, in (0, 1]. Rows that never had a partner
            count, too.
        seed: Seed of the choice.
        groups: Column whose equal values keep or lose their partners together, such as `dialogue_id`. A row without a
            value is a group of its own, as is every row if this is None.

    Example:
        >>> rows = datasets.Dataset.from_dict({"x": [1, 2], "augmented_x": [3, 4]})
        >>> keep_partners(rows, 0.5, seed=0)["augmented_x"][:]
        [None, 4]
    """
    if share == 1.0:
        return rows
    # Unformatted: "torch" makes tensors of groups, which never are equal, and fails at partners of unequal length.
    plain = rows.with_format(None)
    names = [None] * len(rows) if groups is None else plain[groups][:]
    units = [row if name is None else (name,) for row, name in enumerate(names)]
    distinct = list(dict.fromkeys(units))
    chosen = subset(torch.arange(len(distinct)), share, seed, "pair_share")
    kept = dict(zip(distinct, chosen.tolist(), strict=True))
    of_partners = [name for name in rows.column_names if parse_column(name)[0] > 0]

    def remove(batch: Mapping[str, Sequence[Any]], indices: Sequence[int]) -> dict[str, list[Any]]:
        return {
            name: [value if kept[units[index]] else None for value, index in zip(batch[name], indices, strict=True)]
            for name in of_partners
        }

    fewer = plain.map(remove, with_indices=True, batched=True, features=rows.features, desc="Removing partners")
    return fewer.with_format(**rows.format)
