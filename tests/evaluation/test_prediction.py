"""Predictions keep their order and their rows, however they are bucketed, padded and cut."""

from __future__ import annotations

import numpy as np
import pytest
from accelerate import Accelerator
from hypothesis import given, settings
from hypothesis import strategies as st

from dair_hf import DataError
from dair_hf.evaluation.prediction import (
    MORE_ROWS,
    buckets,
    predict_in_buckets,
    predict_in_stages,
)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=20), st.integers(1, 7))
def test_buckets_give_every_item_its_own_prediction(lengths: list[int], batch_size: int) -> None:
    batches: list[list[int]] = []

    def run(items: list[int]) -> list[int]:
        batches.append(items)
        return [100 + item for item in items]

    found = predict_in_buckets(lengths, run, Accelerator(cpu=True), batch_size, show_progress=False)
    assert found == [100 + item for item in range(len(lengths))]
    assert all(len(batch) <= MORE_ROWS * batch_size for batch in batches)
    seen = [lengths[item] for batch in batches for item in batch]
    assert seen == sorted(lengths, reverse=True)


@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("batch_size", [1, 5, 64])
def test_buckets_hold_every_item_once_within_the_budget_of_the_longest(batch_size: int, ranks: int) -> None:
    random = np.random.default_rng(2)
    lengths = np.stack([random.integers(0, 30, 301), random.integers(0, 200, 301)], axis=1)
    tokens = lengths.sum(1)
    found = buckets(lengths, batch_size, ranks)
    assert sorted(item for bucket in found for item in bucket) == list(range(301))
    for bucket in found:
        rows = -(-len(bucket) // ranks)
        assert rows <= MORE_ROWS * batch_size
        assert rows * tokens[bucket].max() <= batch_size * tokens.max() or rows == 1
    firsts = np.concatenate(found)
    assert (np.diff(lengths[firsts, 0]) <= 0).all()
    same = np.diff(lengths[firsts, 0]) == 0
    assert (np.diff(lengths[firsts, 1])[same] <= 0).all()
    assert len(found) < -(-301 // (batch_size * ranks)) or batch_size == 64


def test_buckets_by_hand() -> None:
    # The longest makes a budget of 2 * 8 tokens: two of 8; then 4 of 4 and not the fifth; then the rest.
    found = buckets([4, 8, 4, 8, 4, 4, 1, 4], batch_size=2)
    assert [bucket.tolist() for bucket in found] == [[1, 3], [0, 2, 4, 5], [7, 6]]
    assert [bucket.tolist() for bucket in buckets([0, 0, 0], batch_size=2)] == [[0, 1], [2]]
    assert buckets([], batch_size=2) == []
    assert [len(bucket) for bucket in buckets([1] * 20 + [1000], batch_size=2)] == [2, 8, 8, 3]


def test_a_prediction_function_that_loses_one_is_refused() -> None:
    message = "Generating: 1 predictions came back for 2 views; a prediction function returns one for each"
    with pytest.raises(DataError, match=message):
        predict_in_buckets([1, 1], lambda items: items[:1], Accelerator(cpu=True), 2, "Generating", show_progress=False)


def test_ended_answers_wait_for_nobody() -> None:
    """Steps that are run, counted by hand: those of a row that runs on are its own."""
    wanted, targets, steps_run = [3, 3, 3, 3, 3, 3, 3, 60], [3, 3, 3, 3, 9, 3, 3, 3], []

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        before = len(begun[0])
        steps_run.append(len(items) * (min(until, max(wanted[item] for item in items)) - before))
        grown = [min(until, wanted[item]) for item in items]
        return [([7] * size, size == wanted[item]) for item, size in zip(items, grown, strict=True)]

    lengths = np.array([[target, 1] for target in targets])
    found = predict_in_stages(lengths, advance, 1000, Accelerator(cpu=True), 8, show_progress=False)
    assert [len(answer) for answer in found] == wanted
    # All until 9 + 8 are due; the one that runs on until 34, and until it ends at 60.
    assert steps_run == [8 * 17, 17, 60 - 34]


def test_answers_of_different_length_are_taken_up_from_the_shortest() -> None:
    seen: list[list[int]] = []

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        seen.append([len(answer) for answer in begun])
        return [([item] * min(until, 100), until >= 100) for item in items]

    lengths = np.array([[1, 1], [40, 1], [3, 1]])
    found = predict_in_stages(lengths, advance, 100, Accelerator(cpu=True), 1, show_progress=False)
    assert found == [[0] * 100, [1] * 100, [2] * 100]
    assert all(len(set(begun)) == 1 for begun in seen)
    assert seen[0] == [0]


def test_answers_without_known_targets_run_to_their_end_at_once() -> None:
    """No rounds of doubling, each of which would encode the input again; nor more tokens than are allowed."""
    seen: list[tuple[list[int], int]] = []

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        seen.append((sorted(items), until))
        return [([7] * min(until, 60), True) for _ in items]

    lengths = np.array([[0, 5], [98, 5], [0, 9], [3, 5]])
    predict_in_stages(lengths, advance, 100, Accelerator(cpu=True), 2, show_progress=False)
    assert seen == [([0, 2], 100), ([1, 3], 100)]


def test_answers_are_taken_up_few_at_a_time_where_they_hold_much() -> None:
    seen: list[tuple[int, int]] = []

    def advance(items: list[int], begun: list[list[int]], until: int) -> list[tuple[list[int], bool]]:
        seen.append((len(items), len(begun[0])))
        return [([7] * min(until, 60), until >= 60) for _ in items]

    lengths = np.array([[3, 1]] * 8)
    predict_in_stages(lengths, advance, 100, Accelerator(cpu=True), 8, resumed_tokens=45, show_progress=False)
    assert seen == [(8, 0), *[(4, 11)] * 2, *[(2, 22)] * 4, *[(1, 44)] * 8]
    seen.clear()
    # Inputs of other lengths change nothing about it: what is begun counts, and never more rows than at first.
    lengths[:, 1] = [400, 3, 3, 3, 3, 3, 3, 3]
    predict_in_stages(lengths, advance, 100, Accelerator(cpu=True), 3, resumed_tokens=45, show_progress=False)
    taken_up = [(rows, held) for rows, held in seen if held]
    assert max(rows * held for rows, held in taken_up) <= 45
    assert max(rows for rows, _ in taken_up) == 3
    seen.clear()
    lengths[:, 1] = 1
    predict_in_stages(lengths, advance, 100, Accelerator(cpu=True), 8, show_progress=False)
    assert seen == [(8, 0), (8, 11), (8, 22), (8, 44)]
