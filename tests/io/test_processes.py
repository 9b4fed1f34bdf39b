"""Distributed work: every item once, all results on every process, and failures raised on all of them."""

from __future__ import annotations

import pytest

from dair_hf.errors import DataError
from dair_hf.io.processes import gather_results, map_across_ranks, on_first_rank, rank_and_size
from tests.fixtures.ranks import on_ranks


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_each_item_is_processed_once_and_returned_everywhere(
    monkeypatch: pytest.MonkeyPatch, size: int, count: int
) -> None:
    processed: list[int] = []

    def squares(part: range) -> list[int]:
        processed.extend(part)
        return [item * item for item in part]

    results = on_ranks(monkeypatch, size, lambda rank: map_across_ranks(range(count), squares))  # type: ignore[arg-type]
    assert results == [[item * item for item in range(count)]] * size
    assert sorted(processed) == list(range(count))


def test_results_are_ordered_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    results = on_ranks(monkeypatch, 3, lambda rank: (rank_and_size(), gather_results(lambda: 10 * rank)))
    assert results == [((rank, 3), [0, 10, 20]) for rank in range(3)]
    monkeypatch.undo()
    assert (rank_and_size(), gather_results(lambda: 5)) == ((0, 1), [5])


def test_data_error_of_one_process_is_raised_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rank: int) -> int:
        if rank == 1:
            raise DataError("b.jpg: not a readable image")
        return rank

    results = on_ranks(monkeypatch, 3, lambda rank: gather_results(lambda: fail(rank)))
    assert [(type(error), str(error)) for error in results] == [(DataError, "b.jpg: not a readable image")] * 3


def test_the_first_process_works_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []

    def work(rank: int) -> int | None:
        calls.append(rank)
        return rank or None

    assert on_ranks(monkeypatch, 3, lambda rank: on_first_rank(lambda: work(rank))) == [None] * 3
    assert calls == [0]
    assert on_ranks(monkeypatch, 3, lambda rank: on_first_rank(lambda: 7 + rank)) == [7] * 3


class Unpicklable(Exception):
    """Like an error of a library that contains an open file."""

    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


@pytest.mark.parametrize("failure", [ValueError("b.jpg has no size"), Unpicklable("b.jpg has no size")])
def test_any_failure_of_one_process_ends_all(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def fail(rank: int) -> int:
        if rank == 1:
            raise failure
        return rank

    first, local, last = on_ranks(monkeypatch, 3, lambda rank: gather_results(lambda: fail(rank)))
    assert local is failure
    message = f"process 1 of 3 failed: {type(failure).__name__}: b.jpg has no size"
    assert [(type(error), str(error)) for error in (first, last)] == [(RuntimeError, message)] * 2
