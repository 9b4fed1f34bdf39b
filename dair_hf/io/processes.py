"""Work that the processes of one run share out among them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as distributed

from dair_hf.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """The number of this process among those of its run, and how many there are; (0, 1) without a process group.

    Example:
        >>> rank_and_size()
        (0, 1)
    """
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def gather_results(work: Callable[[], Result]) -> list[Result]:
    """Run `work` on every process and give each of them the results of all.

    All processes of the run must call it. Who is done first waits for the others as long as the process group allows
    (`ddp_timeout`, in seconds).

    Args:
        work: The part of this process; its result must be picklable.

    Returns:
        One result a process, by rank.

    Raises:
        DataError: As `work` raised it on one of the processes; then on all of them, so that none waits in vain.
        RuntimeError: `work` raised any other exception on another process; that process raises the exception itself.

    Example:
        >>> gather_results(lambda: 3)
        [3]
    """
    size = rank_and_size()[1]
    if size == 1:
        return [work()]
    result: Result | None = None
    own: Exception | None = None
    failure: tuple[bool, str] | None = None
    try:
        result = work()
    except Exception as error:
        # As text: not every exception can be pickled.
        is_data, own = isinstance(error, DataError), error
        failure = is_data, str(error) if is_data else f"{type(error).__name__}: {error}"
    outcomes: list[Any] = [None] * size
    distributed.all_gather_object(outcomes, (result, failure))
    if own is not None:
        raise own
    for rank, (_, failed) in enumerate(outcomes):
        if failed is not None:
            is_data, text = failed
            raise DataError(text) if is_data else RuntimeError(f"process {rank} of {size} failed: {text}")
    return [result for result, _ in outcomes]


def map_across_ranks(items: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Result]]) -> list[Result]:
    """Run `work` on the items, each process on its share of them, and give each process the results of all.

    Args:
        items: The same on all processes.
        work: A share of the items -> one result an item, in their order.

    Returns:
        One result an item, in their order.

    Raises:
        DataError: As `work` raised it on one of the processes.
        RuntimeError: As `gather_results`.

    Example:
        >>> map_across_ranks([1, 2, 3], lambda share: [10 * item for item in share])
        [10, 20, 30]
    """
    rank, size = rank_and_size()
    parts = gather_results(lambda: work(items[rank::size]))
    return [parts[number % size][number // size] for number in range(len(items))]
