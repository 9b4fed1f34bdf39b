"""Batches of whole groups: budgets, ranks, epochs, and the number of nodes they are counted in."""

from __future__ import annotations

import datasets
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dair_hf import DataError
from dair_hf.trees.batches import _GroupBatchSampler, rows_by_group, tree_sampler
from dair_hf.trees.forest import build_forest
from tests.fixtures.dialog_rows import dialog_rows
from tests.trees.test_forest import batch_of


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 50)), min_size=4, max_size=30),
    st.integers(50, 120),
    st.integers(1, 2),
)
def test_batches_keep_groups_and_budget_in_every_epoch(groups: list[tuple[int, int]], budget: int, ranks: int) -> None:
    rows = iter(range(1000))
    members = [np.array([next(rows) for _ in range(count)]) for count, _ in groups]
    sizes = [size for _, size in groups]
    size_of = {
        int(row): (number, size) for number, (part, size) in enumerate(zip(members, sizes, strict=True)) for row in part
    }
    try:
        samplers = [_GroupBatchSampler(members, sizes, budget, ranks, rank, seed=3) for rank in range(ranks)]
    except DataError:
        assert ranks == 2
        return
    assert len({len(sampler) for sampler in samplers}) == 1
    for epoch in range(3):
        seen: list[int] = []
        for sampler in samplers:
            sampler.set_epoch(epoch)
            batches = list(sampler)
            assert batches == list(sampler)
            assert len(batches) == len(sampler)
            for batch in batches:
                present = {size_of[row] for row in batch}
                assert sum(size for _, size in present) <= budget
                assert all(set(members[number]) <= set(batch) for number, _ in present)
            seen += [row for batch in batches for row in batch]
        assert sorted(seen) == sorted(size_of)


@pytest.mark.parametrize(
    ("sizes", "budget"),
    [
        ([1] * 1000, 256),
        ([*range(20, 60)] * 50, 8192),
        ([*range(100, 1500, 7)] * 3, 4096),
        ([300] * 100 + [10] * 1000, 1000),
        ([33] * 100, 100),
    ],
    ids=lambda value: str(value[:1]) if isinstance(value, list) else str(value),
)
@pytest.mark.parametrize("ranks", [1, 2])
def test_batches_are_full(sizes: list[int], budget: int, ranks: int) -> None:
    groups = [np.array([number]) for number in range(len(sizes))]
    samplers = [_GroupBatchSampler(groups, sizes, budget, ranks, rank) for rank in range(ranks)]
    compositions = set()
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        batches = [batch for sampler in samplers for batch in sampler]
        assert len(batches) == len(samplers) * len(samplers[0])
        fills = [sum(sizes[number] for number in batch) / budget for batch in batches]
        assert max(fills) <= 1
        assert len(batches) <= -(-sum(sizes) // (0.9 * budget)) + ranks - 1
        compositions.add(str(sorted(sorted(batch) for batch in batches)))
    assert len(compositions) == 2  # groups change their companions


def test_order_changes_with_epoch_and_seed() -> None:
    groups = [np.array([row]) for row in range(40)]
    first, other = (_GroupBatchSampler(groups, [1] * 40, 4, seed=seed) for seed in (0, 1))
    orders = [list(first), list(other)]
    first.set_epoch(1)
    orders.append(list(first))
    assert len({str(order) for order in orders}) == 3
    compositions = {str(sorted(sorted(batch) for batch in order)) for order in orders}
    assert len(compositions) == 3  # batches are dealt anew, not just shuffled


def test_ranks_get_similar_sizes_in_a_random_order() -> None:
    sizes = list(range(21, 41))  # each fills a batch of its own
    groups = [np.array([number]) for number in range(20)]
    samplers = [_GroupBatchSampler(groups, sizes, 40, ranks=2, rank=rank) for rank in range(2)]
    steps = [(sizes[one], sizes[other]) for (one,), (other,) in zip(*samplers, strict=True)]
    assert {abs(one - other) for one, other in steps} == {1}
    totals = [one + other for one, other in steps]
    assert sorted(totals) != totals != sorted(totals, reverse=True)


def test_batches_of_many_groups_are_split_if_a_rank_has_too_few() -> None:
    groups = [np.array([number]) for number in range(5)]
    samplers = [_GroupBatchSampler(groups, [10, 10, 1, 1, 1], 10, ranks=2, rank=rank) for rank in range(2)]
    assert sorted(len(batch) for sampler in samplers for batch in sampler) == [1, 1, 1, 2]
    with pytest.raises(DataError, match="share_prefixes"):
        _GroupBatchSampler(groups[:3], [10, 10, 10], 10, ranks=2)


@pytest.mark.parametrize(("prefixes", "budget"), [(("", "augmented_", "augmented_2_"), 100), (("",), 90)])
def test_budget_counts_nodes_of_the_views_that_are_read(prefixes: tuple[str, ...], budget: int) -> None:
    data = dialog_rows(dialogs=6, turns=4, partner_every=2, second_every=3)
    sampler = tree_sampler(data, "dialogue_id", rows=2, nodes=budget, with_partners=len(prefixes) > 1)
    nodes = []
    for batch in sampler:
        views = [[row[f"{prefix}input_ids"] for prefix in prefixes] for row in data.select(batch)]
        # Trees of all views that exist, as if each were a row.
        rows = [[ids] for row in views for ids in row if ids is not None]
        groups = [data[row]["dialogue_id"] for row, of_row in zip(batch, views, strict=True) for ids in of_row if ids]
        nodes.append(build_forest(batch_of(rows), groups).nodes)
    assert max(nodes) <= budget
    assert sorted(row for batch in sampler for row in batch) == list(range(24))
    nobody = data.add_column("augmented_3_input_ids", [None] * 24)
    assert list(tree_sampler(nobody, "dialogue_id", 2, budget, len(prefixes) > 1)) == list(sampler)


def test_large_groups_are_cut_between_branches() -> None:
    shared = [5] * 20
    ids = [[*shared, 6, 6], [7, 7], [*shared, 6, 7], [7, 8]]
    data = datasets.Dataset.from_dict({"dialogue_id": ["a"] * 4, "input_ids": ids})
    batches = sorted(sorted(batch) for batch in tree_sampler(data, "dialogue_id", rows=9, nodes=24, with_partners=True))
    assert batches == [[0, 2], [1, 3]]
    by_rows = tree_sampler(data, "dialogue_id", rows=2, nodes=None, with_partners=True)
    assert sorted(sorted(batch) for batch in by_rows) == batches


def test_large_groups_are_cut_at_branches_of_the_originals_in_whatever_order_they_are() -> None:
    turns = range(3)
    ids = [[*[5] * 10, *[6 + dialog] * 20, *[10 + turn] * 5] for turn in turns for dialog in turns]
    like_originals, unlike = [[4, *row] for row in ids], [[4, 50 + row] for row in range(9)]
    for rows, partners, budget in ((ids, like_originals, 100), ([*ids[1:], ids[0]], unlike, 85)):
        columns = {"dialogue_id": ["a"] * 9, "input_ids": rows, "augmented_input_ids": partners}
        for with_partners, nodes in ((False, 50), (True, budget)):  # three rows of one kind
            sampler = tree_sampler(datasets.Dataset.from_dict(columns), "dialogue_id", 9, nodes, with_partners)
            assert sampler.longest_row == (36 if with_partners and partners is like_originals else 35)
            assert sorted(sorted(batch) for batch in sampler) == [[0, 3, 6], [1, 4, 7], [2, 5, 8]]


def test_turns_of_one_long_dialogue_are_cut_once() -> None:
    """Every turn shares its history with those behind it, so that single turns share least with the others."""
    history = list(range(5, 65))
    ids = [[*history[: 6 * turn], 1, 2, 3] for turn in range(1, 11)]
    data = datasets.Dataset.from_dict({"dialogue_id": ["a"] * 10, "input_ids": ids})
    batches = list(tree_sampler(data, "dialogue_id", rows=9, nodes=70, with_partners=True))
    nodes = [build_forest(batch_of([[ids[row]] for row in batch]), ["a"] * len(batch)).nodes for batch in batches]
    assert len(batches) == 2
    assert max(nodes) <= 70
    assert sum(nodes) == 60 + 30 + 42


def test_a_row_beyond_the_budget_is_named() -> None:
    data = datasets.Dataset.from_dict({"dialogue_id": ["a", "a"], "input_ids": [[5, 6], [4] * 9]})
    with pytest.raises(DataError, match="max_tokens_per_batch=8: .* 9, the tokens of row 1"):
        tree_sampler(data, "dialogue_id", rows=4, nodes=8, with_partners=True)
    assert len(tree_sampler(data, "dialogue_id", rows=4, nodes=9, with_partners=True)) == 2


def test_groups_follow_their_first_row_and_none_is_a_group() -> None:
    data = datasets.Dataset.from_dict({"d": ["b", None, "b", "a", None]})
    assert [rows.tolist() for rows in rows_by_group(data, "d")] == [[0, 2], [1, 4], [3]]
