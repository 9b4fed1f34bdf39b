"""Work that is distributed over the processes of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as distributed

from dair_hf.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes; (0, 1) without a process group.

    Example:
        >>> rank_and_size()
        (0, 1)
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def gather_results(work: Callable[[], Result]) -> list[Result]:
    """Run `work` on every process and return the results of all of them.

    Every process must call this function. It waits for the slowest one, at most as long as the process group allows
    (`ddp_timeout`, in seconds).

    Args:
        work: Function of this process; its result must be picklable.

    Returns:
        One result per process, by rank.

    Raises:
        DataError: `work` raised it on any process; it is then raised on all of them, so that none waits forever.
        RuntimeError: `work` raised another exception on another process. The failing process raises its own exception.

    Example:
        >>> gather_results(lambda: 3)
        [3]
    """
    size = rank_and_size()[1]
    if size == 1:
        return [work()]
    result: Result | None = None
    local_error: Exception | None = None
    failure: tuple[bool, str] | None = None
    try:
        result = work()
    except Exception as error:
        # Sent as text, because some exceptions cannot be pickled.
        is_data, local_error = isinstance(error, DataError), error
        failure = is_data, str(error) if is_data else f"{type(error).__name__}: {error}"
    outcomes: list[Any] = [None] * size
    distributed.all_gather_object(outcomes, (result, failure))
    if local_error is not None:
        raise local_error
    for rank, (_, failed) in enumerate(outcomes):
        if failed is not None:
            is_data, text = failed
            raise DataError(text) if is_data else RuntimeError(f"process {rank} of {size} failed: {text}")
    return [result for result, _ in outcomes]


def on_first_rank(work: Callable[[], Result]) -> Result:
    """Run `work` on the first process only, and return its result on every process.

    Every process must call this function, as `gather_results`.

    Args:
        work: Function of the first process; its result must be picklable.

    Returns:
        Its result.

    Raises:
        DataError: As `gather_results`.
        RuntimeError: As `gather_results`.

    Example:
        >>> on_first_rank(lambda: 3)
        3
    """
    is_first = rank_and_size()[0] == 0
    return gather_results(lambda: [work()] if is_first else [])[0][0]


def map_across_ranks(items: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Result]]) -> list[Result]:
    """Split items among the processes, run `work` on each part, and return all results on every process.

    Args:
        items: Items, equal on all processes.
        work: Function from a part of the items to one result per item, in their order.

    Returns:
        One result per item, in their order.

    Raises:
        DataError: As `gather_results`.
        RuntimeError: As `gather_results`.

    Example:
        >>> map_across_ranks([1, 2, 3], lambda part: [10 * item for item in part])
        [10, 20, 30]
    """
    rank, size = rank_and_size()
    parts = gather_results(lambda: work(items[rank::size]))
    return [parts[index % size][index // size] for index in range(len(items))]
