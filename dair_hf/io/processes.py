"""Work that is distributed over the processes of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch.distributed as distributed

from dair_hf.errors import DataError

Item = TypeVar("Item")
Result = TypeVar("Result")


def rank_and_size() -> tuple[int, int]:
    """Return the rank of this process and the number of processes; (0, 1) without a process group."""
    if not (distributed.is_available() and distributed.is_initialized()):
        return 0, 1
    return distributed.get_rank(), distributed.get_world_size()


def gather_results(work: Callable[[], Result]) -> list[Result]:
    """Run `work` on every process and return the results of all of them, by rank.

    Every process must call this function. It waits for the slowest one, at most as long as `ddp_timeout`. A `DataError`
    on any process is raised on all of them, and so is another exception, as a `RuntimeError` on the other processes.
    """
    size = rank_and_size()[1]
    if size == 1:
        return [work()]
    result: Result | None = None
    error: Exception | None = None
    failure: tuple[bool, str] | None = None
    try:
        result = work()
    except Exception as local_error:
        # Sent as text, because some exceptions cannot be pickled.
        is_data, error = isinstance(local_error, DataError), local_error
        failure = is_data, str(error) if is_data else f"{type(error).__name__}: {error}"
    outcomes: list[Any] = [None] * size
    distributed.all_gather_object(outcomes, (result, failure))
    for rank, (_, failed) in enumerate(outcomes):
        if error is None and failed is not None:
            is_data, text = failed
            error = DataError(text) if is_data else RuntimeError(f"process {rank} of {size} failed: {text}")
    if error is not None:
        raise error
    return [result for result, _ in outcomes]


def on_first_rank(work: Callable[[], Result]) -> Result:
    """Run `work` on the first process and return its result on every process; all of them must call this."""
    is_first = rank_and_size()[0] == 0
    return gather_results(lambda: [work()] if is_first else [])[0][0]


def map_across_ranks(items: Sequence[Item], work: Callable[[Sequence[Item]], Sequence[Result]]) -> list[Result]:
    """Split items among the processes, run `work` on each part, and return all results on every process, in order.

    `items` must be equal on all processes; `work` returns one result per item.
    """
    rank, size = rank_and_size()
    parts = gather_results(lambda: work(items[rank::size]))
    return [parts[index % size][index // size] for index in range(len(items))]
