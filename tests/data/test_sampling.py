"""Redrawn partners, lengths of rows and the order of batches of similar length."""

from __future__ import annotations

from typing import Any

import datasets
import numpy as np
import pytest

from dair_hf import DataError, EpochPairs
from dair_hf.data.sampling import (
    MEGABATCH,
    PairLengthSampler,
    TokenBatchSampler,
    targets_per_row,
    view_counts,
    view_lengths,
)


def drawn(epoch: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"x": [epoch, 10 + epoch], "augmented_x": [100 + epoch, None]})


def test_epoch_pairs_return_the_pairs_of_the_current_epoch() -> None:
    pairs = EpochPairs(drawn)
    assert pairs[1] == {"x": 10, "augmented_x": None}
    assert pairs.at(3)[0] == {"x": 3, "augmented_x": 103}
    assert pairs.at(0) is pairs.pairs and (pairs.epoch, pairs[0]["x"]) == (0, 0)
    pairs.set_epoch(3)
    assert pairs.__getitems__([1, 0]) == [{"x": 13, "augmented_x": None}, {"x": 3, "augmented_x": 103}]
    assert (len(pairs), pairs.column_names) == (2, ["x", "augmented_x"])
    pairs.set_epoch(0)
    assert pairs[0]["x"] == 0


def test_an_epoch_is_drawn_once() -> None:
    calls: list[int] = []
    pairs = EpochPairs(lambda epoch: calls.append(epoch) or drawn(epoch))  # type: ignore[func-returns-value]
    for epoch in (0, 0, 1, 1):
        pairs.set_epoch(epoch)
    assert calls == [0, 1]


def test_an_epoch_with_another_number_of_rows_is_refused() -> None:
    pairs = EpochPairs(lambda epoch: datasets.Dataset.from_dict({"x": [0] * (2 + epoch)}))
    with pytest.raises(DataError, match="epoch 1"):
        pairs.set_epoch(1)
    assert len(pairs) == 2


@pytest.mark.parametrize(
    ("columns", "lengths", "counts"),
    [
        ({"input_ids": [[1], [2, 3]]}, [1, 2], [1, 1]),
        ({"input_ids": [[1], [1, 2], []], "augmented_input_ids": [[1, 2, 3], None, []]}, [3, 2, 0], [2, 1, 2]),
        ({"input_ids": [[1], [2, 3]], "augmented_input_ids": [None, None]}, [1, 2], [1, 1]),
        (
            {
                "input_ids": [[1], [1, 2], [1, 2]],
                "augmented_input_ids": [[1, 2], None, None],
                "augmented_3_input_ids": [[1, 2, 3, 4], [1], None],
                "augmented_2_labels": [[1] * 9] * 3,  # another column
            },
            [4, 2, 2],
            [3, 2, 1],
        ),
    ],
)
def test_lengths_and_counts_of_views_by_hand(columns: dict[str, Any], lengths: list[int], counts: list[int]) -> None:
    data = datasets.Dataset.from_dict(columns)
    assert view_lengths(data).tolist() == view_lengths(EpochPairs(lambda epoch: data)).tolist() == lengths
    assert view_counts(data).tolist() == counts
    selected = data.select([1, 0])
    assert (view_lengths(selected).tolist(), view_counts(selected).tolist()) == (lengths[1::-1], counts[1::-1])


def test_lengths_need_a_column_of_lists() -> None:
    for column in ("input_ids", "x"):
        with pytest.raises(DataError, match=column):
            view_lengths(drawn(0), column)


def test_the_sampler_yields_every_row_once_in_a_new_order_each_epoch() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 1037)
    sampler = PairLengthSampler(lengths, batch_size=8, seed=1)
    first = list(sampler)
    assert sorted(first) == list(range(1037)) == list(range(len(sampler)))
    assert first == list(sampler)
    sampler.set_epoch(1)
    assert list(sampler) != first
    assert list(PairLengthSampler(lengths, 8, seed=2)) != first
    sampler.set_epoch(0)
    assert list(sampler) == first


def test_the_sampler_saves_padding_and_keeps_the_incomplete_batch_last() -> None:
    lengths = np.random.default_rng(0).integers(1, 100, 8 * MEGABATCH + 3)

    def padding(order: list[int]) -> int:
        batches = [lengths[order[start : start + 8]] for start in range(0, len(order), 8)]
        return sum(int(len(batch) * batch.max() - batch.sum()) for batch in batches)

    order = list(PairLengthSampler(lengths, batch_size=8))
    assert padding(order) < 0.1 * padding(list(range(len(lengths))))
    # The three rows of the incomplete batch are a group, sorted by decreasing length.
    assert lengths[order[-3:]].tolist() == sorted(lengths[order[-3:]], reverse=True)
    assert [len(order[start : start + 8]) for start in range(0, len(order), 8)][-1] == 3
    # Batches are shuffled: their lengths do not decrease from first to last.
    longest = [int(lengths[order[start : start + 8]].max()) for start in range(0, len(order) - 3, 8)]
    assert longest != sorted(longest, reverse=True)


def test_rows_of_the_incomplete_batch_are_drawn_at_random() -> None:
    sampler = PairLengthSampler(range(103), batch_size=8)
    last: set[int] = set()
    for epoch in range(60):
        sampler.set_epoch(epoch)
        last.update(list(sampler)[-7:])
    assert len(last) > 90  # 103 * (1 - (1 - 7 / 103) ** 60) = 101.5 expected


def test_the_order_follows_the_lengths_of_the_epoch() -> None:
    by_epoch = np.array([[1, 9, 1, 9], [1, 1, 9, 9]])
    sampler = PairLengthSampler(lambda epoch: by_epoch[epoch], batch_size=2)
    for epoch, together in ((0, [[0, 2], [1, 3]]), (1, [[0, 1], [2, 3]]), (0, [[0, 2], [1, 3]])):
        sampler.set_epoch(epoch)
        order = list(sampler)
        assert sorted([sorted(order[:2]), sorted(order[2:])]) == together


@pytest.mark.parametrize("rows", [0, 1, 5])
def test_fewer_rows_than_one_batch(rows: int) -> None:
    assert sorted(PairLengthSampler([3] * rows, batch_size=8)) == list(range(rows))


def test_target_counts_by_hand() -> None:
    rows = {"labels": [[-100, -100, 3], [], None, [4, 5], [-100]], "kept": [True, True, True, True, False]}
    data = datasets.Dataset.from_dict(rows)
    assert targets_per_row(data).tolist() == [1, 0, 0, 2, 0]
    assert targets_per_row(data.select([3, 0, 2])).tolist() == [2, 1, 0]
    assert targets_per_row(data.select(range(1, 4))).tolist() == [0, 0, 2]


# ---- batches with a limited number of tokens ----


def test_token_batches_by_hand() -> None:
    lengths, views = [5, 2, 5, 2, 3], [2, 1, 1, 2, 2]
    sampler = TokenBatchSampler(lengths, max_tokens=15, views=views)
    # Decreasing: 5 with 2 views, 5 with 1 (3 views of 5), then 3 with 2 and 2 with 2 and 2 with 1 (5 views of 3).
    assert sorted(sorted(batch) for batch in sampler) == [[0, 2], [1, 3, 4]]
    # With 14: 2 views of 5; 1 of 5 (3 would be 15); 4 of 3; the last one of 2.
    assert sorted(map(len, TokenBatchSampler(lengths, max_tokens=14, views=views))) == [1, 1, 1, 2]


def require_every_row_once(
    samplers: list[TokenBatchSampler], lengths: np.ndarray, views: np.ndarray, max_tokens: int
) -> list[list[list[int]]]:
    """Batches of the ranks: equally many, with every row once and within the limit."""
    shares = [list(sampler) for sampler in samplers]
    assert [len(share) for share in shares] == [len(samplers[0])] * len(samplers) == [len(s) for s in samplers]
    batches = [batch for share in shares for batch in share]
    assert all(batches) and sorted(row for batch in batches for row in batch) == list(range(len(lengths)))
    assert all(views[batch].sum() * lengths[batch].max() <= max_tokens for batch in batches)
    return shares


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("max_tokens", [80, 500, 10**6])
def test_ranks_get_every_row_once_in_equally_many_batches(ranks: int, max_tokens: int) -> None:
    random = np.random.default_rng(0)
    lengths, views = random.integers(0, 40, 203), random.integers(1, 3, 203)
    samplers = [TokenBatchSampler(lengths, max_tokens, views, ranks, rank, seed=4) for rank in range(ranks)]
    orders = []
    for epoch in range(2):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        orders.append(require_every_row_once(samplers, lengths, views, max_tokens))
        assert orders[-1] == [list(sampler) for sampler in samplers]
    assert orders[0] != orders[1]


def test_token_batches_have_little_padding_and_fill_their_limit() -> None:
    lengths = np.random.default_rng(1).integers(1, 200, 5000)
    batches = list(TokenBatchSampler(lengths, max_tokens=4000))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert 1 - lengths.sum() / padded < 0.02
    assert padded / len(batches) > 0.9 * 4000


def test_a_row_above_the_limit_is_refused() -> None:
    with pytest.raises(DataError, match="max_tokens_per_batch=9.* row 1"):
        TokenBatchSampler([9, 5], max_tokens=9, views=[1, 2])


@pytest.mark.parametrize(("rows", "ranks", "batches"), [(3, 2, 2), (5, 3, 2), (1, 2, 1), (4, 4, 1)])
def test_rows_that_each_fill_a_batch_leave_some_ranks_without_a_row(rows: int, ranks: int, batches: int) -> None:
    samplers = [TokenBatchSampler([5] * rows, 5, ranks=ranks, rank=rank) for rank in range(ranks)]
    shares = [list(sampler) for sampler in samplers]
    assert [len(share) for share in shares] == [batches] * ranks
    assert sorted(row for share in shares for batch in share for row in batch) == list(range(rows))
    assert {len(batch) for share in shares for batch in share} <= {0, 1}
    assert {sampler.has_empty_batches for sampler in samplers} == {rows % ranks != 0}
    # In one step only.
    assert sum(any(not share[step] for share in shares) for step in range(batches)) == (rows % ranks != 0)


def test_a_batch_of_several_rows_is_halved_before_one_is_empty() -> None:
    samplers = [TokenBatchSampler([5, 1, 1], 5, ranks=3, rank=rank) for rank in range(3)]
    assert [len(batch) for sampler in samplers for batch in sampler] == [1, 1, 1]
    assert not samplers[0].has_empty_batches


def drawn_lengths(epoch: int) -> np.ndarray:
    return np.random.default_rng(epoch).integers(1, 40, 57)


def drawn_views(epoch: int) -> np.ndarray:
    return np.random.default_rng([1, epoch]).integers(1, 3, 57)


@pytest.mark.parametrize("ranks", [1, 2])
def test_redrawn_lengths_keep_the_limit_and_the_number_of_batches_in_every_epoch(ranks: int) -> None:
    samplers = [TokenBatchSampler(drawn_lengths, 80, drawn_views, ranks, rank, 3, lambda _: 5) for rank in range(ranks)]
    alone = [TokenBatchSampler(drawn_lengths(epoch), 80, drawn_views(epoch), ranks) for epoch in range(5)]
    assert len({len(sampler) for sampler in alone}) > 1  # epochs need different numbers of batches
    for epoch in range(5):
        for sampler in samplers:
            sampler.set_epoch(epoch)
        shares = require_every_row_once(samplers, drawn_lengths(epoch), drawn_views(epoch), 80)
        assert len(shares[0]) == max(map(len, alone))


def test_the_epochs_of_a_run_are_measured_until_their_number_is_reached() -> None:
    measured: list[int] = []

    def lengths(epoch: int) -> np.ndarray:
        measured.append(epoch)
        return np.array([5] * 4 if epoch < 2 else [9] * 4)  # two rows, or one row, in a batch of 10 tokens

    # Six steps of one batch: three epochs of two batches, but two of four.
    sampler = TokenBatchSampler(lengths, 10, epochs=lambda batches: -(-6 // batches))
    assert set(measured) == {0, 1, 2}
    assert len(sampler) == 4
    assert list(map(len, sampler)) == [1, 1, 1, 1]
    measured.clear()
    TokenBatchSampler(lengths, 10)
    assert set(measured) == {0}


def test_an_epoch_that_needs_more_batches_or_exceeds_the_limit_is_refused() -> None:
    sampler = TokenBatchSampler(lambda epoch: np.array([5, 5]) + epoch, 10)
    sampler.set_epoch(1)
    with pytest.raises(DataError, match="max_tokens_per_batch.* epoch 1"):
        list(sampler)
    with pytest.raises(DataError, match="max_tokens_per_batch=10.* row 0 in epoch 6"):
        TokenBatchSampler(lambda epoch: np.array([5, 5]) + epoch, 10, epochs=lambda batches: 7)
