"""Prefix trees: every row is a path, every distinct prefix a node, and a token sees its ancestors alone."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dair_hf import DataError
from dair_hf.trees.attention import _tree_mask
from dair_hf.trees.forest import Forest, build_forest, cut_where_least_is_shared, pad_right, prefix_table

IDS = st.lists(st.integers(0, 3), min_size=1, max_size=7)  # 0, a token as any other, is the padding, too


def batch_of(views: list[list[list[int]]], *, left: bool = False) -> dict[str, Any]:
    """Return a batch of rows with one or two views; every token is a target but the first."""
    width = max(len(ids) for row in views for ids in row)
    shape = (len(views), max(map(len, views)), width)
    batch = {"input_ids": torch.zeros(shape).long(), "attention_mask": torch.zeros(shape).long()}
    batch["labels"] = torch.full(shape, -100)
    batch["view_mask"] = torch.zeros(shape[:2]).bool()
    for row, row_views in enumerate(views):
        for view, ids in enumerate(row_views):
            at = slice(width - len(ids), width) if left else slice(len(ids))
            batch["input_ids"][row, view, at] = torch.tensor(ids)
            batch["attention_mask"][row, view, at] = 1
            batch["labels"][row, view, at] = torch.tensor(ids)
            batch["view_mask"][row, view] = True
    return batch


def paths(forest: Forest) -> dict[int, list[tuple[list[int], int]]]:
    """Return for each view the ancestors' tokens and the label of every target, read from the masks alone."""
    found: dict[int, list[tuple[list[int], int]]] = {}
    for tree, targets in zip(forest.trees, forest.targets, strict=True):
        mask = _tree_mask(tree)[0, 0]
        for node, label, view in torch.stack([*targets]).T.tolist():
            seen = mask[node]
            assert tree.position_ids[seen].tolist() == list(range(int(seen.sum())))
            found.setdefault(view, []).append((tree.input_ids[seen].tolist(), label))
    return found


@settings(deadline=None)
@given(st.lists(st.lists(IDS, min_size=1, max_size=2), min_size=1, max_size=6), st.integers(1, 3), st.booleans())
def test_targets_see_their_row_and_every_prefix_is_one_node(
    views: list[list[list[int]]], dialogs: int, left: bool
) -> None:
    groups = [row % dialogs for row in range(len(views))]
    for limit in (None, 1, 8):
        forest = build_forest(batch_of(views, left=left), groups, limit)
        found = paths(forest)
        shape = forest.shape
        prefixes = set()
        for (row, row_views), group in zip(enumerate(views), groups, strict=True):
            for view, ids in enumerate(row_views):
                expected = [(ids[:length], ids[length]) for length in range(1, len(ids))]
                assert found.get(row * shape[1] + view, []) == expected
                prefixes |= {(group, *ids[: length + 1]) for length in range(len(ids))}
        assert forest.nodes == len(prefixes)
        assert forest.tokens == sum(len(ids) for row in views for ids in row)


def test_trees_share_a_sequence_up_to_the_limit() -> None:
    views = [[[1, 2, 3]], [[1, 2]], [[2, 2]], [[3, 3, 3, 3, 3]]]
    forest = build_forest(batch_of(views), ["a", "b", "c", "d"], nodes_at_once=7)
    assert sorted(len(tree.ends) for tree in forest.trees) == [5, 7]  # 5 + 2, 3 + 2: the largest first
    assert len(build_forest(batch_of(views), ["a", "b", "c", "d"]).trees) == 1
    views = [[[1, 2]], [[2, 2, 2]], [[3, 3, 3]], [[1, 1, 1, 1]]]  # smallest first, three sequences
    assert len(build_forest(batch_of(views), ["a", "b", "c", "d"], nodes_at_once=6).trees) == 2


@settings(deadline=None)
@given(st.lists(IDS, min_size=1, max_size=9), st.integers(5, 12))
def test_cuts_compute_as_little_twice_as_any(rows: list[list[int]], limit: int) -> None:
    ids, lengths = pad_right(rows)
    table = prefix_table(ids, lengths, np.zeros(len(rows), dtype=np.int64))

    def size(start: int, end: int) -> int:
        return int((table.lengths[start:end] - table.shared_among(np.arange(start, end))).sum())

    def prefixes(start: int, end: int) -> int:
        return len({tuple(rows[row][: k + 1]) for row in table.order[start:end] for k in range(len(rows[row]))})

    parts = cut_where_least_is_shared(table.shared, size, limit)
    assert [number for start, end in parts for number in range(start, end)] == list(range(len(rows)))
    assert all(size(start, end) == prefixes(start, end) for start, end in parts)
    costs = []
    for cuts in itertools.product([False, True], repeat=len(rows) - 1):
        edges = [0, *(at + 1 for at, is_cut in enumerate(cuts) if is_cut), len(rows)]
        sizes = [(prefixes(start, end), end - start) for start, end in itertools.pairwise(edges)]
        if all(nodes <= limit or count == 1 for nodes, count in sizes):
            costs.append((sum(nodes for nodes, _ in sizes), len(sizes)))
    assert (sum(size(start, end) for start, end in parts), len(parts)) == min(costs)


def test_targets_are_numbered_by_their_columns() -> None:
    for left in (False, True):
        batch = batch_of([[[1, 2, 3], [1, 2, 2]], [[3, 1]]], left=left)
        forest = build_forest(batch, ["a", "b"], nodes_at_once=1)
        numbers = forest.target_numbers(3)
        labels = np.concatenate([targets.labels.numpy() for targets in forest.targets])
        # Columns t whose label t + 1 is predicted; the first token of a row is not.
        shifted = {(0, 0): 2, (0, 1): 3, (1, 0): 2, (1, 1): 2, (2, 1 if left else 0): 1}
        for at in itertools.product(range(4), range(3)):
            assert (None if numbers[at] < 0 else int(labels[numbers[at]])) == shifted.get(at)


@pytest.mark.parametrize(("mask", "labels"), [([1, 0, 1], [-100, -100, 5]), ([1, 1, 0], [-100, 5, 5])])
def test_padding_is_refused_where_it_cannot_be_left_out(mask: list[int], labels: list[int]) -> None:
    batch = batch_of([[[5, 5, 5]]])
    batch["attention_mask"][0, 0], batch["labels"][0, 0] = torch.tensor(mask), torch.tensor(labels)
    with pytest.raises(DataError, match="share_prefixes"):
        build_forest(batch, ["a"])


@pytest.mark.parametrize(
    ("masked", "limit", "sizes"), [([1], None, [4]), ([1], 2, [1, 3]), ([0, 1], None, [2]), ([0, 1], 1, [1, 1])]
)
def test_a_row_of_padding_alone_has_a_node_and_no_target(
    masked: list[int], limit: int | None, sizes: list[int]
) -> None:
    batch = batch_of([[[5, 6, 7]], [[8, 9, 8]]])
    batch["attention_mask"][masked], batch["labels"][masked] = 0, -100
    forest = build_forest(batch, ["a", "b"], limit)
    assert sorted(len(tree.ends) for tree in forest.trees) == sizes
    assert paths(forest) == ({} if len(masked) == 2 else {0: [([5], 6), ([5, 6], 7)]})


def test_rows_without_views_are_run_as_originals() -> None:
    batch = batch_of([[[5, 6]], [[5, 7]]])
    batch["view_mask"][:] = False
    assert build_forest(batch, ["a", "a"]).nodes == 3
