"""Interleaved timing: every variant once a round, so that a slow minute of the machine hits all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence

from tqdm.auto import tqdm


def interleaved(variants: Mapping[str, Callable[[], object]], rounds: int, warmup: int = 1) -> dict[str, list[float]]:
    """Seconds of each variant in each round.

    Args:
        variants: Name -> what is timed, without arguments.
        rounds: Rounds that count.
        warmup: Rounds before them that do not.

    Returns:
        Name -> seconds, one a round.
    """
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    names = list(variants)
    for turn in tqdm(range(warmup + rounds), desc="Timing", unit="round"):
        # Each round starts with another variant, so that none always runs on a cold cache.
        shift = turn % len(names)
        for name in names[shift:] + names[:shift]:
            start = time.perf_counter()
            variants[name]()
            if turn >= warmup:
                seconds[name].append(time.perf_counter() - start)
    return seconds


def ratio(seconds: Mapping[str, Sequence[float]], numerator: str, denominator: str) -> dict[str, float]:
    """Ratio of the medians, and the quartiles of the ratios within the rounds.

    Args:
        seconds: As `interleaved` returns them.
        numerator: A variant.
        denominator: Another.

    Returns:
        `ratio`, `quartile_low`, `quartile_high`.
    """
    by_round = [a / b for a, b in zip(seconds[numerator], seconds[denominator], strict=True)]
    low, _, high = statistics.quantiles(by_round, n=4) if len(by_round) > 1 else by_round * 3
    return {
        "ratio": statistics.median(seconds[numerator]) / statistics.median(seconds[denominator]),
        "quartile_low": low,
        "quartile_high": high,
    }
