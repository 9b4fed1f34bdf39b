"""Batches of whole groups of rows, whose prefix trees fit into a budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import datasets
import numpy as np
import pyarrow
import pyarrow.compute
from transformers.trainer_pt_utils import BatchRebalanceSampler

from dair_hf.data.collator import LABELS
from dair_hf.data.view_columns import columns_of_views
from dair_hf.errors import DataError
from dair_hf.trees.forest import FOREST, build_forest, cut_where_least_is_shared, pad_right, prefix_table

CLASSES = 64  # fewest classes of sizes; groups of one class exchange their places every epoch
FULL = 0.9  # share of the budget that batches should use
IDS = "input_ids"


class ForestCollator:
    """Adds the prefix trees to the batches of a collator."""

    def __init__(self, collator: Callable[[Any], Any], column: str, nodes_at_once: Any) -> None:
        self.collator = collator
        self.column = column
        self.nodes_at_once = nodes_at_once

    def __call__(self, rows: Sequence[Mapping[str, Any]]) -> Any:
        """Collate rows, and build their trees if they have labels."""
        batch = self.collator([{name: row[name] for name in row if name != self.column} for row in rows])
        if LABELS not in batch:
            return batch
        groups = [row[self.column] for row in rows]
        return {**batch, FOREST: build_forest(batch, groups, self.nodes_at_once)}


class _GroupBatchSampler(BatchRebalanceSampler):
    """Batches of whole groups of rows that fit into a budget, in a new random order every epoch.

    Sizes of groups are rounded up to one of 64 classes, and classes are dealt to batches once; each epoch deals groups
    of one class again and shuffles the batches. If rounding leaves batches less than 0.9 full, there are more classes.
    The number of batches is the same in every epoch, and the order depends on `(seed, epoch)` only, so that it is the
    same after a resume. In each step, ranks get batches of similar sizes. All ranks get equally many batches, and no
    row is left out or repeated.
    """

    def __init__(
        self,
        groups: Sequence[np.ndarray],
        sizes: Sequence[int] | np.ndarray,
        budget: int,
        ranks: int = 1,
        rank: int = 0,
        seed: int = 0,
        longest_row: int = 0,
    ) -> None:
        self.longest_row = longest_row
        self.groups = list(groups)
        self.sizes = np.asarray(sizes)
        self.seed, self.epoch, self.ranks, self.rank = seed, 0, ranks, rank
        self.classes, self.batches = _deal(self.sizes, budget)
        while len(self.batches) % ranks:
            largest = max(self.batches, key=len)
            if len(largest) == 1:
                raise DataError(f"share_prefixes: expected at least {ranks} groups of rows, got {len(self.groups)}")
            self.batches.remove(largest)
            self.batches += [largest[0::2], largest[1::2]]

    def set_epoch(self, epoch: int) -> None:
        """Switch to the order of `epoch`."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.batches) // self.ranks

    def __iter__(self) -> Iterator[list[int]]:
        generator = np.random.default_rng([self.seed, self.epoch])
        order = generator.permutation(len(self.groups))
        waiting = {size: list(order[self.classes[order] == size]) for size in np.unique(self.classes).tolist()}
        batches = [[waiting[size].pop() for size in batch] for batch in self.batches]
        totals = np.array([sum(batch) for batch in self.batches])
        shuffled = generator.permutation(len(batches))
        similar = shuffled[np.argsort(-totals[shuffled], kind="stable")].reshape(-1, self.ranks)
        for step in generator.permutation(len(self)):
            yield np.concatenate([self.groups[group] for group in batches[similar[step, self.rank]]]).tolist()


def tree_sampler(
    dataset: datasets.Dataset,
    column: str,
    rows: int,
    nodes: int | None,
    with_partners: bool,
    ranks: int = 1,
    rank: int = 0,
    seed: int = 0,
) -> _GroupBatchSampler:
    """Return the sampler of `share_prefixes`, for batches of a number of rows, or of `nodes` if they are given.

    Of partners that are drawn again in every epoch, `dataset` holds the first: the nodes are counted once.
    """
    views = columns_of_views(IDS, dataset.column_names if with_partners else [IDS]).values()
    tokens = [_TokenColumn(dataset, name) for name in views]
    budget = rows if nodes is None else nodes
    parts: list[np.ndarray] = []
    sizes: list[int] = []
    for group in rows_by_group(dataset, column):
        for part, size in _parts(group, tokens, budget, nodes is not None):
            parts.append(part)
            sizes.append(size)
    longest = max(int(column.lengths.max(initial=0)) for column in tokens)
    return _GroupBatchSampler(parts, sizes, budget, ranks, rank, seed, longest)


def rows_by_group(dataset: datasets.Dataset, column: str) -> list[np.ndarray]:
    """Return the row numbers of every group, in the order in which groups appear."""
    table = dataset.select_columns([column]).with_format("arrow")[:]
    codes = pyarrow.compute.dictionary_encode(table[column], null_encoding="encode").combine_chunks()
    numbers = np.asarray(codes.indices)
    order = np.argsort(numbers, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(numbers[order])) + 1)


class _TokenColumn:
    """Token lists of a column, read from Arrow without Python objects."""

    def __init__(self, dataset: datasets.Dataset, name: str) -> None:
        column = dataset.select_columns([name]).with_format("arrow")[:][name]
        if pyarrow.types.is_null(column.type):  # no row has this partner
            column = column.cast(pyarrow.list_(pyarrow.int32()))
        self.lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(column), 0).to_numpy()
        self.values = pyarrow.compute.list_flatten(column).to_numpy().astype(np.int32)
        self.starts = np.cumsum(self.lengths) - self.lengths

    def rows(self, numbers: np.ndarray) -> list[np.ndarray]:
        return [self.values[self.starts[row] : self.starts[row] + self.lengths[row]] for row in numbers.tolist()]


def _parts(
    group: np.ndarray, tokens: Sequence[_TokenColumn], budget: int, counts_nodes: bool
) -> Iterator[tuple[np.ndarray, int]]:
    """Yield a group and its size, or parts of it that fit into the budget."""
    if not counts_nodes and len(group) <= budget:
        yield group, len(group)
        return
    ids, lengths = pad_right([view for column in tokens for view in column.rows(group)])
    table = prefix_table(ids, lengths, np.zeros(len(ids), dtype=np.int64))
    originals = np.flatnonzero(table.order < len(group))
    order = table.order[originals]  # of the rows, by their originals
    ranks = np.argsort(order)[table.order % len(group)]  # of the row of every view

    def size(start: int, end: int) -> int:
        views = np.flatnonzero((ranks >= start) & (ranks < end))
        return int((table.lengths[views] - table.shared_among(views)).sum()) if counts_nodes else end - start

    if size(0, len(group)) <= budget:
        yield group, size(0, len(group))
        return
    for start, end in cut_where_least_is_shared(table.shared_among(originals), size, budget):
        if size(start, end) > budget:
            row, tokens_of_row = group[order[start]], size(start, end)
            raise DataError(
                f"max_tokens_per_batch={budget}: expected at least {tokens_of_row}, the tokens of row {row}"
            )
        yield group[order[start:end]], size(start, end)


def _deal(sizes: np.ndarray, budget: int) -> tuple[np.ndarray, list[list[int]]]:
    """Return the class of every size, and the classes of every batch, with as few classes as fill the batches."""
    enough = math.ceil(sizes.sum() / (FULL * budget))
    count, fewest = min(budget, CLASSES), len(sizes) + 1
    while True:
        rounded = -(-sizes * count // budget)  # up, at most `count`
        dealt = _deal_classes(np.bincount(rounded, minlength=count + 1), count)
        if len(dealt) < fewest:
            classes, batches, fewest = rounded, dealt, len(dealt)
        if fewest <= enough or count == budget:
            return classes, batches
        count = min(2 * count, budget)


def _deal_classes(counts: np.ndarray, budget: int) -> list[list[int]]:
    """Deal classes to batches: each takes the largest that fits until none does."""
    counts = counts.copy()
    batches: list[list[int]] = []
    while counts.any():
        batch: list[int] = []
        room = budget
        while len(fitting := np.flatnonzero(counts[: room + 1])):
            size = int(fitting[-1])
            counts[size] -= 1
            room -= size
            batch.append(size)
        batches.append(batch)
    return batches
