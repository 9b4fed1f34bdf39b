"""Redrawn partners, lengths of rows and the order of batches of similar length."""

from __future__ import annotations

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
    pairs.set_epoch(3)
    assert pairs[0] == {"x": 3, "augmented_x": 103}
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


def test_columns_are_selected_in_every_epoch() -> None:
    selected = EpochPairs(drawn).select_columns(["x"])
    selected.set_epoch(2)
    assert selected[0] == {"x": 2}


def test_an_epoch_with_another_number_of_rows_is_refused() -> None:
    pairs = EpochPairs(lambda epoch: datasets.Dataset.from_dict({"x": [0] * (2 + epoch)}))
    with pytest.raises(DataError, match="epoch 1 was drawn with 3 rows, epoch 0 with 2; every epoch must hold"):
        pairs.set_epoch(1)
    assert len(pairs) == 2


def test_view_lengths_are_those_of_the_longer_view() -> None:
    rows = {"input_ids": [[1], [1, 2], []], "augmented_input_ids": [[1, 2, 3], None, [4]]}
    assert view_lengths(datasets.Dataset.from_dict(rows)).tolist() == [3, 2, 1]
    assert view_lengths(EpochPairs(lambda epoch: datasets.Dataset.from_dict(rows))).tolist() == [3, 2, 1]
    assert view_lengths(datasets.Dataset.from_dict({"input_ids": [[1], [2, 3]]})).tolist() == [1, 2]
    nobody = datasets.Dataset.from_dict({"input_ids": [[1], [2, 3]], "augmented_input_ids": [None, None]})
    assert view_lengths(nobody).tolist() == [1, 2]


def test_view_lengths_after_a_selection_of_rows() -> None:
    data = datasets.Dataset.from_dict({"input_ids": [[1], [1, 2], [1, 2, 3]]}).select([2, 0])
    assert view_lengths(data).tolist() == [3, 1]


def test_lengths_need_a_column_of_lists() -> None:
    with pytest.raises(DataError, match=r"by length needs column 'input_ids'; the data has \['x', 'augmented_x'\]"):
        view_lengths(drawn(0))
    with pytest.raises(DataError, match="column 'x' holds int64, not lists"):
        view_lengths(drawn(0), "x")


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
    # The three rows of the incomplete batch are those of the second group, sorted by decreasing length.
    assert lengths[order[-3:]].tolist() == sorted(lengths[order[-3:]], reverse=True)
    assert [len(order[start : start + 8]) for start in range(0, len(order), 8)][-1] == 3
    # Batches are shuffled: their lengths do not decrease from first to last.
    longest = [int(lengths[order[start : start + 8]].max()) for start in range(0, len(order) - 3, 8)]
    assert longest != sorted(longest, reverse=True)


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


def test_view_counts_by_hand() -> None:
    rows = {"input_ids": [[1], [], [2]], "augmented_input_ids": [None, [], [3, 4]]}
    assert view_counts(datasets.Dataset.from_dict(rows)).tolist() == [1, 2, 2]
    assert view_counts(datasets.Dataset.from_dict({"input_ids": [[1]]})).tolist() == [1]
    nobody = datasets.Dataset.from_dict({"input_ids": [[1], [2]], "augmented_input_ids": [None, None]})
    assert view_counts(nobody).tolist() == [1, 1]


def test_token_batches_by_hand() -> None:
    lengths, views = [5, 2, 5, 2, 3], [2, 1, 1, 2, 2]
    sampler = TokenBatchSampler(lengths, max_tokens=15, views=views)
    # Decreasing: 5 with 2 views, 5 with 1 (3 views of 5), then 3 with 2 and 2 with 2 and 2 with 1 (5 views of 3).
    assert sampler.sizes.tolist() == [2, 3]
    assert sorted(sorted(batch) for batch in sampler) == [[0, 2], [1, 3, 4]]
    # With 14: 2 views of 5; 1 of 5 (3 would be 15); 4 of 3; the last one of 2.
    assert TokenBatchSampler(lengths, max_tokens=14, views=views).sizes.tolist() == [1, 1, 2, 1]


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
        shares = [list(sampler) for sampler in samplers]
        assert [len(share) for share in shares] == [len(sampler) for sampler in samplers]
        assert len({len(share) for share in shares}) == 1
        batches = [batch for share in shares for batch in share]
        assert all(batches)
        assert sorted(row for batch in batches for row in batch) == list(range(203))
        for batch in batches:
            assert views[batch].sum() * lengths[batch].max() <= max_tokens
        orders.append(shares)
        assert shares == [list(sampler) for sampler in samplers]
    assert orders[0] != orders[1]


def test_token_batches_have_little_padding_and_fill_their_limit() -> None:
    lengths = np.random.default_rng(1).integers(1, 200, 5000)
    batches = list(TokenBatchSampler(lengths, max_tokens=4000))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert 1 - lengths.sum() / padded < 0.02
    assert padded / len(batches) > 0.9 * 4000


def test_a_row_above_the_limit_and_too_few_rows_are_refused() -> None:
    with pytest.raises(DataError, match="max_tokens_per_batch=9 is below the 10 tokens of row 1 alone"):
        TokenBatchSampler([9, 5], max_tokens=9, views=[1, 2])
    with pytest.raises(DataError, match="1 rows cannot be distributed over 2 processes"):
        TokenBatchSampler([1], max_tokens=9, ranks=2)
