"""Buckets of the items of an evaluation: items that cost little together, one batch per rank, limited in memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

MORE_ROWS = 4  # a batch of short rows holds at most this many times the batch size


def buckets(lengths: ArrayLike, batch_size: int, ranks: int = 1, longest_item: int = 0) -> list[np.ndarray]:
    """Group items of similar length into buckets, one batch per rank each.

    A bucket of the longest items holds `batch_size` items per rank. A bucket of shorter items holds more: at most as
    many tokens as `batch_size` of the longest items, and at most `MORE_ROWS * batch_size` items.

    Args:
        lengths: Number of tokens of every item, `[N]`; or `[N, K]` for K kinds of tokens, which are summed. Items are
            sorted by the first kind, then by the next.
        batch_size: Items per batch on each rank.
        ranks: Number of processes.
        longest_item: Number of tokens of the longest item of all, if `lengths` are those of some.

    Returns:
        Item numbers, longest first, so that a lack of memory shows in the first batch.

    Example:
        >>> [bucket.tolist() for bucket in buckets([2, 8, 4, 2], batch_size=1)]
        [[1], [2, 0], [3]]
    """
    kinds = np.asarray(lengths)
    kinds = kinds[:, None] if kinds.ndim == 1 else kinds
    order = np.lexsort(-kinds.T[::-1])
    tokens = np.maximum(kinds.sum(1), 1)[order]
    budget, most = batch_size * tokens.max(initial=max(longest_item, 1)), MORE_ROWS * batch_size
    result, start, longest = [], 0, 0
    for end in range(len(order) + 1):
        share = -(-(end + 1 - start) // ranks)  # items per rank if the bucket takes one more
        longest = max(longest, tokens[end]) if end < len(order) else longest
        if end == len(order) or share * longest > budget or share > most:
            if end > start:
                result.append(order[start:end])
            if end < len(order):
                start, longest = end, tokens[end]
    return result


def tree_buckets(
    order: np.ndarray, nodes: np.ndarray, most_nodes: int, most_items: int, ranks: int = 1
) -> list[np.ndarray]:
    """Cut items that share prefixes with their neighbours into buckets, one batch of neighbours per rank each."""
    starts: list[int] = []
    total = 0
    for place, (following, first) in enumerate(nodes.tolist()):
        total += following
        if not starts or total > most_nodes or place - starts[-1] == most_items:
            starts.append(place)
            total = first
    parts = np.split(order, starts[1:])
    result = []
    for start in range(0, len(parts), ranks):
        bucket = np.full((max(map(len, parts[start : start + ranks])), ranks), -1)
        for rank, part in enumerate(parts[start : start + ranks]):
            bucket[: len(part), rank] = part
        result.append(bucket.ravel())
    return result
