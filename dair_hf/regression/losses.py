"""The tilted loss of TERM, which aggregates a batch by something else than a mean.

Squared error and the Huber loss are losses of a row (`sample_losses`). A tilted loss `T` is one of a whole batch, so
that there are two ways to add a regularizer; `batch_objectives.AggregatedDAIR` with `T` as its aggregate has both:

    per sample (the paper)     f = 1/2 T(l) + 1/2 T(l~) + lambda * mean_i (sqrt(l_i + eps) - sqrt(l~_i + eps))^2
    per batch (as released)    f = 1/2 T(l) + 1/2 T(l~) + lambda * (sqrt(T(l) + eps) - sqrt(T(l~) + eps))^2

The released code does the latter for TERM, and for Huber with the mean as `T`. Per sample the two terms weigh rows
differently on purpose: `T` with a negative tilt all but ignores outliers, while R asks every pair to agree.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dair_hf.errors import DataError


def tilted_loss(losses: Tensor, tilt: float) -> Tensor:
    """`T(l) = (1 / t) log mean_i exp(t l_i)`: the smallest loss as t -> -inf, the mean at 0, the largest as t -> inf.

    `d T / d l_i = exp(t l_i) / sum_j exp(t l_j)`: a negative tilt takes weight off the rows with large losses. `T` lies
    between the smallest and the largest loss, so it is no more negative than they are: with `t < 0` in floating point
    too, since the mean is taken of numbers up to 1 (`exp(t l_i - max_j t l_j)`) and its logarithm is never positive.

    Source: Li, Beirami, Sanjabi, Smith, "Tilted Empirical Risk Minimization", ICLR 2021, equation (2).

    Args:
        losses: `[B]`.
        tilt: `t`, in 1 / units of the loss, not 0. The result's rounding error is about 1e-7 / |t| in float32.

    Returns:
        A scalar in the units of the loss.

    Raises:
        DataError: The tilt is 0 or not finite, or there is no loss.

    Example:
        >>> tilted_loss(torch.tensor([1.0, 1.0, 50.0]), tilt=-2.0)
        tensor(1.2027)
    """
    if tilt == 0 or not abs(tilt) < float("inf"):
        raise DataError(f"tilt={tilt} must be a finite number other than 0; at 0 the tilted loss is the mean")
    if losses.ndim != 1 or len(losses) == 0:
        raise DataError(f"tilted loss of {list(losses.shape)} losses; it needs at least one, as a vector [B]")
    exponents = tilt * losses
    largest = exponents.detach().amax()
    return (largest + torch.exp(exponents - largest).mean().log()) / tilt
