"""Prefix trees of token ids: rows that begin alike, such as turns of a dialogue, share the tokens of their prefix.

A tree has one node per distinct prefix of its rows. Its nodes are laid out depth first, so that the descendants of node
j are `j + 1, ..., end[j] - 1`, and a token sees its ancestors and itself:

    node i attends to node j  <=>  j <= i < end[j]

Position ids are depths. A row is a path from the root, and each of its targets is predicted by a node of the path. The
losses of rows and their gradients equal the ones of separate rows, although a common prefix is computed once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.batch_layout import TargetRule, view_mask
from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX

FOREST = "forest"  # key of the `Forest` of a batch
BLOCK = 128  # nodes of a block of FlexAttention
# On a GPU, kernels are planned or compiled for every size, so that there are few: numbers of sequences, or blocks of a
# single one, between a power of two and the next.
SIZES = 16


class AttentionCosts(NamedTuple):
    """Nodes to which a node can attend on a GPU at the cost of everything else in its layer; None: it cannot.

    Attributes:
        dense: With dense masks, which compute all scores of a sequence.
        sparse: With FlexAttention, which computes the scores of blocks in which a node sees another.
    """

    dense: float | None
    sparse: float | None


class TokenTree(NamedTuple):
    """Trees that run in one sequence of S nodes.

    Attributes:
        input_ids: Token of every node, `[S]`.
        position_ids: Depth of every node, `[S]`; 0 for a root.
        ends: End of the subtree of every node, exclusive, `[S]`.
    """

    input_ids: Tensor
    position_ids: Tensor
    ends: Tensor


class _Targets(NamedTuple):
    """M targets that the nodes of one sequence predict."""

    nodes: Tensor
    labels: Tensor
    views: Tensor


@dataclass(frozen=True)
class Forest:
    """Prefix trees of the views of a batch.

    Attributes:
        shape: (B, V) of the batch.
        trees: One entry per forward of the model.
        targets: The targets of each entry.
        tokens: Number of tokens of all views, each counted in every view.
        columns: Column of the labels `[B, V, T]` that holds each target, `[M]` over all trees, on the host.
        views: View of each target, likewise.
        sequences: Number of sequences of equal length in which an entry runs, K; no two of them share a tree.
        is_sparse: Whether attention skips blocks in which no node sees another.
    """

    shape: tuple[int, int]
    trees: tuple[TokenTree, ...]
    targets: tuple[_Targets, ...]
    tokens: int
    columns: np.ndarray
    views: np.ndarray
    sequences: int = 1
    is_sparse: bool = False

    @property
    def nodes(self) -> int:
        """Number of tokens that the model computes."""
        return sum(len(tree.input_ids) for tree in self.trees)

    def target_numbers(self, length: int) -> np.ndarray:
        """Return the number of the target in column t + 1 of the labels of a view, `[B * V, length]`; -1: none."""
        numbers = np.full((self.shape[0] * self.shape[1], length), -1)
        numbers[self.views, self.columns - 1] = np.arange(len(self.views))
        return numbers

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Forest:
        """Copy the trees and targets to a device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Forest:
        """Copy the trees and targets to pinned memory, as the data loader does with tensors of a batch."""
        return self._map(Tensor.pin_memory)

    def _map(self, change: Callable[[Tensor], Tensor]) -> Forest:
        trees = tuple(TokenTree(*map(change, tree)) for tree in self.trees)
        return replace(self, trees=trees, targets=tuple(_Targets(*map(change, part)) for part in self.targets))


@dataclass(frozen=True)
class _PrefixTable:
    """Rows in lexicographic order, and how much each of them shares with the one before."""

    order: np.ndarray
    ids: np.ndarray
    lengths: np.ndarray
    shared: np.ndarray

    @property
    def new_nodes(self) -> np.ndarray:
        """Number of nodes that every row adds to those before, `[N]`."""
        return self.lengths - self.shared

    def shared_among(self, places: np.ndarray) -> np.ndarray:
        """Return the number of leading tokens that rows share with the previous one, `[R]`; 0 for the first."""
        return np.append(0, np.minimum.reduceat(self.shared[: places[-1] + 1], places[:-1] + 1))


def pad_right(rows: Sequence[Sequence[int] | np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Return token ids padded on the right with 0, `[N, T]`, and lengths `[N]`."""
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((len(rows), lengths.max(initial=0)), dtype=np.int64)
    ids[np.arange(ids.shape[1]) < lengths[:, None]] = np.concatenate([np.asarray(row) for row in rows])
    return ids, lengths


def prefix_table(ids: np.ndarray, lengths: np.ndarray, groups: np.ndarray) -> _PrefixTable:
    """Sort rows by group and token ids, and compare neighbours.

    Token ids `[N, T]` are padded on the right of `lengths`, `[N]`; rows of different `groups`, `[N]`, share nothing.

    Example:
        >>> table = prefix_table(np.array([[5, 6, 7], [5, 6, 0], [5, 8, 9]]), np.array([3, 2, 3]), np.array([0, 0, 0]))
        >>> table.order.tolist(), table.shared.tolist()
        ([1, 0, 2], [0, 2, 1])
    """
    # Big-endian bytes compare like numbers, and a prefix comes before its continuations.
    keys = [row[:length].tobytes() for row, length in zip(ids.astype(">u4"), lengths.tolist(), strict=True)]
    order = np.array(sorted(range(len(keys)), key=lambda row: (groups[row], keys[row])), dtype=np.int64)
    ids, lengths, groups = ids[order], lengths[order], groups[order]
    comparable = np.where(groups[1:] == groups[:-1], np.minimum(lengths[1:], lengths[:-1]), 0)
    differs = np.ones((len(comparable), ids.shape[1] + 1), dtype=bool)
    differs[:, :-1] = (ids[1:] != ids[:-1]) | (np.arange(ids.shape[1]) >= comparable[:, None])
    shared = np.concatenate([[0], differs.argmax(1)]) if len(order) else np.zeros(0, dtype=np.int64)
    return _PrefixTable(order, ids, lengths, shared)


def cut_where_least_is_shared(shared: np.ndarray, size: Callable[[int, int], int], limit: int) -> list[tuple[int, int]]:
    """Cut rows in lexicographic order into parts of at most `limit` nodes, so that least is computed twice.

    Every row shares `shared`, `[N]`, leading tokens with the one before; `size(start, end)` counts the nodes of rows.
    Among cuts that share equally little, the fewest are made. A single row may exceed the limit.

    Example:
        >>> cut_where_least_is_shared(np.array([0, 9, 2, 9]), lambda start, end: 10 * (end - start), limit=30)
        [(0, 2), (2, 4)]
    """
    count = len(shared)
    costs = np.asarray(shared) * (count + 1) + 1  # of a part that begins with this row
    totals, starts = np.zeros(count + 1, dtype=np.int64), np.zeros(count + 1, dtype=np.int64)
    earliest = 0  # the largest part that ends here
    for end in range(1, count + 1):
        while earliest < end - 1 and size(earliest, end) > limit:
            earliest += 1
        candidates = totals[earliest:end] + costs[earliest:end]
        starts[end] = earliest + candidates.argmin()
        totals[end] = candidates.min()
    parts: list[tuple[int, int]] = []
    end = count
    while end:
        parts.append((int(starts[end]), end))
        end = int(starts[end])
    return parts[::-1]


def build_forest(
    batch: Mapping[str, Any], groups: Sequence[Any], nodes_at_once: int | AttentionCosts | None = None
) -> Forest:
    """Build the prefix trees of the existing views of a batch, one tree per group.

    Args:
        batch: A batch of `PairCollator` with `input_ids`, `labels` and optionally `attention_mask`, `[B, V, T]` each.
        groups: Group of every row, `[B]`, such as its dialogue id; all views of a row are in its group.
        nodes_at_once: Trees run in one forward up to this number of nodes, since dense attention grows with its square;
            a larger tree has its own forward. None: all in one. With the costs of attention on a GPU, all run in one
            forward, in the layout that costs least; nodes without a target pad its sequences to a few lengths.

    Example:
        >>> batch = {"input_ids": torch.tensor([[[5, 6, 7]], [[5, 6, 8]]]), "view_mask": torch.ones(2, 1).bool()}
        >>> forest = build_forest({**batch, "labels": batch["input_ids"]}, ["a", "a"])
        >>> [values.tolist() for values in forest.trees[0]]  # token ids, depths, ends of subtrees
        [[5, 6, 7, 8], [0, 1, 2, 2], [4, 4, 3, 4]]
        >>> [values.tolist() for values in forest.targets[0]]  # predicted by nodes, token ids, views
        [[0, 1, 0, 1], [6, 7, 6, 8], [0, 0, 1, 1]]
    """
    exists = view_mask(batch).cpu().numpy()
    rows, columns = np.nonzero(exists) if exists.any() else (np.arange(len(exists)), np.zeros(len(exists), dtype=int))
    targets = TargetRule(shifts_labels=True).labels(batch)
    ids, labels = (values.cpu().numpy()[rows, columns] for values in (batch["input_ids"], targets))
    mask = batch.get("attention_mask")
    mask = None if mask is None else mask.cpu().numpy()[rows, columns].astype(bool)
    ids, labels, lengths, first = _without_padding(ids, labels, mask)
    numbers = {group: number for number, group in enumerate(dict.fromkeys(groups))}
    group_numbers = np.array([numbers[group] for group in groups], dtype=np.int64)[rows]
    paths = token_trees(ids, lengths, group_numbers, nodes_at_once)
    path, at = np.nonzero(labels != IGNORE_INDEX)
    order = np.argsort(paths.trees_of_rows[path], kind="stable")
    path, at = path[order], at[order]
    views = (rows * exists.shape[1] + columns)[path]
    values = (paths.nodes[path, at - 1], labels[path, at].astype(np.int64), views)
    ends = np.searchsorted(paths.trees_of_rows[path], np.arange(len(paths.trees)), side="right")
    targets = tuple(
        _Targets(*(torch.from_numpy(value[start:end]) for value in values))
        for start, end in zip([0, *ends[:-1]], ends, strict=True)
    )
    layout = paths.sequences, paths.is_sparse
    return Forest(exists.shape, paths.trees, targets, int(lengths.sum()), first[path] + at, views, *layout)


class _TreePaths(NamedTuple):
    """Trees of rows, and the path of every row."""

    trees: tuple[TokenTree, ...]
    trees_of_rows: np.ndarray
    nodes: np.ndarray
    sequences: int
    is_sparse: bool


def token_trees(
    ids: np.ndarray, lengths: np.ndarray, groups: np.ndarray, nodes_at_once: int | AttentionCosts | None
) -> _TreePaths:
    """Build the prefix trees of rows, one per group; arguments as in `prefix_table` and `build_forest`."""
    table = prefix_table(ids, lengths, groups)
    nodes, ends = _nodes(table)
    depths = np.broadcast_to(np.arange(ids.shape[1]), ids.shape)
    is_new = (depths >= table.shared[:, None]) & (depths < table.lengths[:, None])
    new_ids, new_depths, new_ends = (values[is_new].astype(np.int64) for values in (table.ids, depths, ends))

    sorted_groups = groups[table.order]
    sizes = np.bincount(sorted_groups, weights=table.new_nodes).astype(np.int64)
    starts = np.cumsum(sizes) - sizes
    shift, tree_of_group = np.zeros_like(sizes), np.zeros_like(sizes)
    trees, length, is_sparse = [], 0, False
    if isinstance(nodes_at_once, AttentionCosts):
        sequences, length, is_sparse = _cheapest(sizes, new_ends, nodes_at_once)
        forwards = [sequences]
    else:
        forwards = [[part] for part in _sequences(sizes, nodes_at_once)]
    for number, sequences in enumerate(forwards):
        fields = []
        for place, part in enumerate(sequences):
            chosen = np.concatenate([[], *(np.arange(starts[group], starts[group] + sizes[group]) for group in part)])
            chosen = chosen.astype(np.int64)
            tree_of_group[part] = number
            first = place * length + np.cumsum(sizes[part]) - sizes[part]
            shift[part] = first - starts[part]  # node of all trees -> node of this forward
            fields.append((new_ids[chosen], new_depths[chosen], new_ends[chosen] + np.repeat(shift[part], sizes[part])))
            padding = np.arange(place * length + len(chosen), (place + 1) * length)  # trees of one node
            fields.append((np.zeros_like(padding), np.zeros_like(padding), padding + 1))
        trees.append(TokenTree(*(torch.from_numpy(np.concatenate(values)) for values in zip(*fields, strict=True))))
    paths, trees_of_rows = np.empty_like(nodes), np.empty(len(ids), dtype=np.int64)
    paths[table.order] = nodes + shift[sorted_groups][:, None]
    trees_of_rows[table.order] = tree_of_group[sorted_groups]
    return _TreePaths(tuple(trees), trees_of_rows, paths, len(forwards[0]), is_sparse)


def _without_padding(
    ids: np.ndarray, labels: np.ndarray, mask: np.ndarray | None
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return token ids and labels `[N, T]` without padding on the left, lengths and first columns `[N]`.

    A row of padding alone keeps one token of it, without a target, so that no tree is empty.
    """
    if mask is None:
        return ids, labels, np.full(len(ids), ids.shape[1]), np.zeros(len(ids), dtype=np.int64)
    lengths, first = mask.sum(1), mask.argmax(1)
    last = mask.shape[1] - mask[:, ::-1].argmax(1)
    if (gaps := (lengths > 0) & (last - first != lengths)).any():
        view = int(gaps.argmax())
        raise DataError(f"share_prefixes: view {view} of a batch: expected attention_mask 0 at its ends only")
    if (padded := ((labels != IGNORE_INDEX) & ~mask).any(1)).any():
        view = int(padded.argmax())
        raise DataError(f"share_prefixes: view {view} of a batch: expected labels {IGNORE_INDEX} on its padding")
    if first.any():
        columns = (np.arange(ids.shape[1]) + first[:, None]) % ids.shape[1]
        ids, labels = np.take_along_axis(ids, columns, 1), np.take_along_axis(labels, columns, 1)
    return ids, labels, lengths.clip(min=1), first


def _nodes(table: _PrefixTable) -> tuple[np.ndarray, np.ndarray]:
    """Return node and end of its subtree for every row and depth, `[N, T]` each; those beyond a row mean nothing."""
    count, depth = table.ids.shape
    rows, depths = np.arange(count)[:, None], np.arange(depth)
    starts = np.concatenate([[0], np.cumsum(table.new_nodes)])
    begins = table.shared[:, None] <= depths  # the row has a node of its own here
    owners = np.maximum.accumulate(np.where(begins, rows, 0), axis=0)
    nodes = starts[owners] + depths - table.shared[owners]
    # The subtree ends where a later row leaves this path.
    leaves = np.where(begins, rows, count)
    nexts = np.full((count + 1, depth), count)
    nexts[:-1] = np.minimum.accumulate(leaves[::-1], axis=0)[::-1]
    return nodes, starts[nexts[1:]]


def _sequences(sizes: np.ndarray, limit: int | None) -> list[np.ndarray]:
    """Distribute trees over sequences of at most `limit` nodes, largest first; a larger tree gets its own sequence."""
    if limit is None:
        return [np.arange(len(sizes))]
    parts: list[list[int]] = []
    used: list[int] = []
    for tree in np.argsort(-sizes, kind="stable").tolist():
        place = next((number for number, nodes in enumerate(used) if nodes + sizes[tree] <= limit), len(parts))
        if place == len(parts):
            parts.append([])
            used.append(0)
        parts[place].append(tree)
        used[place] += int(sizes[tree])
    return [np.array(part) for part in parts]


def _cheapest(sizes: np.ndarray, ends: np.ndarray, costs: AttentionCosts) -> tuple[list[np.ndarray], int, bool]:
    """Return the sequences of trees that cost least, their length, and whether attention is sparse.

    A node costs 1 and, per node that attention computes a score for, 1 / `costs`. `ends`: of all nodes in one sequence.
    """
    total = int(sizes.sum())
    candidates = []
    if costs.sparse is not None:
        length = _few(-(-total // BLOCK)) * BLOCK
        # A node is seen up to the end of its subtree, by nodes of all blocks in between.
        seen = -(-np.maximum.reduceat(ends, np.arange(0, total, BLOCK)) // BLOCK) - np.arange(-(-total // BLOCK))
        candidates.append((length + BLOCK**2 * seen.sum() / costs.sparse, [np.arange(len(sizes))], length, True))
    if costs.dense is not None:
        lengths = [BLOCK]  # then 256, 384, 512, 768, ...
        while lengths[-1] < total:
            last = lengths[-1]
            lengths.append(last * 3 // 2 if last & (last - 1) == 0 and last > BLOCK else 1 << last.bit_length())
        for length in lengths:
            if length >= sizes.max():
                sequences = _sequences(sizes, length)
                sequences += [np.zeros(0, dtype=np.int64)] * (_few(len(sequences)) - len(sequences))
                candidates.append((len(sequences) * length * (1 + length / costs.dense), sequences, length, False))
    _, sequences, length, is_sparse = min(candidates, key=lambda candidate: candidate[0])
    return sequences, length, is_sparse


def _few(count: int) -> int:
    """Round a number up to one of 16 between a power of two and the next."""
    step = max((1 << count.bit_length()) // (2 * SIZES), 1)
    return -(-count // step) * step
