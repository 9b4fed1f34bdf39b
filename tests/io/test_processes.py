"""Work shared out among processes: each part once, the results of all on each, and nobody waits for one that failed."""

from __future__ import annotations

import pytest

from dair_hf.errors import DataError
from dair_hf.io.processes import gather_results, map_across_ranks, rank_and_size
from tests.fixtures.ranks import on_ranks


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("count", [0, 1, 7])
def test_each_item_is_worked_on_once_and_known_to_all(monkeypatch: pytest.MonkeyPatch, size: int, count: int) -> None:
    worked: list[int] = []

    def squares(share: range) -> list[int]:
        worked.extend(share)
        return [item * item for item in share]

    found = on_ranks(monkeypatch, size, lambda rank: map_across_ranks(range(count), squares))  # type: ignore[arg-type]
    assert found == [[item * item for item in range(count)]] * size
    assert sorted(worked) == list(range(count))


def test_results_stand_by_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    found = on_ranks(monkeypatch, 3, lambda rank: (rank_and_size(), gather_results(lambda: 10 * rank)))
    assert found == [((rank, 3), [0, 10, 20]) for rank in range(3)]
    monkeypatch.undo()
    assert (rank_and_size(), gather_results(lambda: 5)) == ((0, 1), [5])


def test_an_error_of_one_process_is_raised_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rank: int) -> int:
        if rank == 1:
            raise DataError("b.jpg: not a readable image")
        return rank

    found = on_ranks(monkeypatch, 3, lambda rank: gather_results(lambda: fail(rank)))
    assert [(type(error), str(error)) for error in found] == [(DataError, "b.jpg: not a readable image")] * 3


class Unpicklable(Exception):
    """As an error of a library that holds an open file."""

    def __reduce__(self) -> str:
        raise TypeError("cannot be pickled")


@pytest.mark.parametrize("failure", [ValueError("b.jpg has no size"), Unpicklable("b.jpg has no size")])
def test_no_process_waits_for_one_that_fails_in_any_way(monkeypatch: pytest.MonkeyPatch, failure: Exception) -> None:
    def fail(rank: int) -> int:
        if rank == 1:
            raise failure
        return rank

    first, own, last = on_ranks(monkeypatch, 3, lambda rank: gather_results(lambda: fail(rank)))
    assert own is failure
    said = f"process 1 of 3 failed: {type(failure).__name__}: b.jpg has no size"
    assert [(type(error), str(error)) for error in (first, last)] == [(RuntimeError, said)] * 2
