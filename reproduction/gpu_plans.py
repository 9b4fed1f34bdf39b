"""Plans of `reproduction.gpu`: how many steps or epochs fit into the time of a part."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from dair_hf.errors import DataError

FEWEST_STEPS = 10  # of the base
SAFETY = 0.9  # share of the time that the epochs of a method use
STEPS_SAFETY = 0.95  # the same for the steps of the base, which need no evaluation


class Timing(NamedTuple):
    """Seconds of a short run.

    Attributes:
        startup: Time before training and after evaluation.
        warmup: Time of training that does not grow with the number of steps.
        epoch: Time of an epoch.
        evaluation: Time for all test data, extrapolated from the short run.
    """

    startup: float
    warmup: float
    epoch: float
    evaluation: float

    def needed(self, epochs: float) -> float:
        """Return the seconds of a run of some epochs."""
        return (self.startup + self.warmup + epochs * self.epoch + self.evaluation) / SAFETY


def plan_epochs(timing: Timing, minutes: float, most: int) -> int:
    """Return how many epochs fit into a part.

    Raises:
        DataError: Not even one does.

    Example:
        >>> plan_epochs(Timing(20, 10, 15, 60), minutes=5, most=20)
        12
        >>> plan_epochs(Timing(20, 10, 15, 60), minutes=1, most=20)
        Traceback (most recent call last):
        dair_hf.errors.DataError: plan: one epoch takes 15 s, start and evaluation 90 s; give --minutes 1.9 or more
    """
    epochs = math.floor((minutes * 60 - timing.needed(0)) * SAFETY / timing.epoch)
    if epochs < 1:
        rest = timing.needed(0) * SAFETY
        raise DataError(
            f"plan: one epoch takes {timing.epoch:.0f} s, start and evaluation {rest:.0f} s; give --minutes "
            f"{math.ceil(timing.needed(1) / 6) / 10:g} or more"
        )
    return min(epochs, most)


def plan_steps(timings: Mapping[str, float | str], left: float, seconds: float, most: int) -> dict[str, Any]:
    """Return how many steps of the base fit into the time that is left, with the fastest attention.

    Args:
        timings: Attention -> seconds of a step, or why it cannot be used.
        left: Seconds that are left for the steps.
        seconds: Seconds of the whole part, for the message.
        most: Largest number of steps.

    Raises:
        DataError: Fewer than `FEWEST_STEPS` steps fit, or no attention works.

    Example:
        >>> plan_steps({"sdpa": 0.5, "flex_attention": "RuntimeError: no compiler"}, 100, 120, 9999)["max_steps"]
        190
    """
    working = {name: value for name, value in timings.items() if isinstance(value, float)}
    if not working:
        raise DataError(f"base: no attention works: {dict(timings)}")
    best = min(working, key=lambda name: working[name])
    steps = int(STEPS_SAFETY * left / working[best])
    if steps < FEWEST_STEPS:
        needed = (seconds - left + FEWEST_STEPS * working[best] / STEPS_SAFETY) / 60
        raise DataError(
            f"base: {max(steps, 0)} steps of {working[best]:.2g} s fit into --minutes {seconds / 60:g}; give at least "
            f"{math.ceil(10 * needed) / 10:g}"
        )
    return {"max_steps": min(steps, most), "attn_implementation": best, "seconds_per_step": dict(timings)}
