"""The paper's theory as small problems that are solved exactly: its linear toy, a bound, and R_sq beside R_l1.

**Linear toy.** `y = theta . x + e` with `x ~ N(0, sx^2 I_d)`, `e ~ N(0, se^2)`. Beside `x` the model sees a shortcut of
k features: `s = y u` in training, `s~ = a y u + n` with `n ~ N(0, sn^2 I_k)` in the partners, 0 at test. The model
`f = w_x . x + w_s . s` is invariant where `w_s = 0`; the best such model is `(theta, 0)`, in one dimension (1, 0).

The optimum of DA-ERM, that is of `E[1/2 (y - f(x, s))^2 + 1/2 (y - f(x, s~))^2]`: write `b = u . w_s` and
`c = (1 + a) / 2`, the mean of what the two views multiply `y u` with. Setting the derivative in `w_x` to 0 gives
`w_x = (1 - c b) theta`. With it the residuals of the views are

    -(1 - a) / 2 * b theta.x + (1 - b) e        and        (1 - a) / 2 * b theta.x + (1 - a b) e - w_s . n

so that, with `S = sx^2 |theta|^2`, the objective is half of
`(1 - a)^2 / 2 b^2 S + ((1 - b)^2 + (1 - a b)^2) se^2 + sn^2 |w_s|^2`. Of all `w_s` with the same `b` the shortest is
`b u / |u|^2`. What is left is a parabola in `b`, whose minimum is

    b = 2 (1 + a) se^2 / ((1 - a)^2 S + 2 (1 + a^2) se^2 + 2 sn^2 / |u|^2)
    w_x = (1 - (1 + a) / 2 * b) theta,    w_s = b u / |u|^2

The paper prints the denominator with `sx` in the place of one `sx^2`; the units of the two sides then differ (with
`sx = 1` the value does not). With the paper's numbers `(w_x, w_s) = (0.477, 0.698)`: never (1, 0) unless `se = 0` or
`a = -1`, whatever the amount of data.

Everything is float64 on the CPU. Source: Huang et al., "Robustness through Data Augmentation Loss Consistency", TMLR
2022, sections on the toy examples and appendix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dair_hf.data.counter_rng import require_seeds
from dair_hf.errors import DataError
from dair_hf.losses.objective import (
    PairTerms,
    absolute_consistency,
    pair_objective,
    squared_root_consistency,
)


@dataclass(frozen=True)
class LinearToy:
    """Parameters of the linear toy; the defaults are the paper's, whose `N(m, v)` gives variances.

    Attributes:
        theta: `[d]`, how the target depends on x.
        shortcut: u, `[k]`, how the shortcut depends on the target.
        x_std: sx.
        noise_std: se.
        augmented_scale: a.
        augmented_std: sn.

    Raises:
        DataError: `theta` or `shortcut` is empty or 0, or a deviation is negative or no number.

    Example:
        >>> da_optimum(LinearToy()).round(decimals=3)
        tensor([0.4770, 0.6980], dtype=torch.float64)
    """

    theta: tuple[float, ...] = (1.0,)
    shortcut: tuple[float, ...] = (1.0,)
    x_std: float = 1.0
    noise_std: float = 0.5
    augmented_scale: float = 0.5
    augmented_std: float = math.sqrt(0.1)

    def __post_init__(self) -> None:
        for name in ("theta", "shortcut"):
            if not any(getattr(self, name)):
                raise DataError(f"{name}={getattr(self, name)} must hold a number other than 0")
        for name in ("x_std", "noise_std", "augmented_std"):
            if not 0.0 <= getattr(self, name) < math.inf:
                raise DataError(f"{name}={getattr(self, name)} must be a finite number, 0 or more")

    @property
    def invariant(self) -> Tensor:
        """`(theta, 0)`, the best model that does not look at the shortcut, `[d + k]`."""
        return torch.tensor([*self.theta, *(0.0 for _ in self.shortcut)], dtype=torch.float64)


@dataclass
class TheoryConfig:
    """Size of the recipe that runs the theory.

    Raises:
        DataError: Too few rows, no seed or lambda, or a lambda that is not above 0.

    Example:
        >>> TheoryConfig(output_dir="out").lambdas[-1]
        10000.0
    """

    output_dir: str = field(metadata={"help": "Where records, tables and plots go."})
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2], metadata={"help": "Seeds of the samples."})
    rows: int = field(default=10_000, metadata={"help": "Rows of the linear toy, >= 100. Released: 10,000."})
    logistic_rows: int = field(
        default=10_000, metadata={"help": "Rows of the logistic toy, >= 1,000; the paper does not say how many it has."}
    )
    dair_lambda: float = field(
        default=100.0, metadata={"help": "Lambda of the linear toy in the comparison, pair units, > 0. Paper: 100."}
    )
    lambdas: list[float] = field(
        default_factory=lambda: [0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 1_000.0, 10_000.0],
        metadata={"help": "Lambdas of the linear toy in the table and the plots, pair units, each > 0."},
    )

    def __post_init__(self) -> None:
        for name, least in (("rows", 100), ("logistic_rows", 1_000)):
            if getattr(self, name) < least:
                raise DataError(f"{name}={getattr(self, name)} must be at least {least}")
        for name in ("seeds", "lambdas"):
            values = getattr(self, name)
            if not values or len(set(values)) < len(values):
                raise DataError(f"{name}={values} must hold at least one value, and none of them twice")
        require_seeds("seeds", self.seeds)
        if not 0 < min(self.dair_lambda, *self.lambdas) <= max(self.dair_lambda, *self.lambdas) < math.inf:
            raise DataError(
                f"dair_lambda={self.dair_lambda}, lambdas={self.lambdas}; each must be above 0, since 0 is DA-ERM, and "
                "finite"
            )


class PairSample(NamedTuple):
    """Rows of a toy in both views.

    Attributes:
        original: Features, `[n, p]` float64.
        augmented: Features of the partners, `[n, p]`.
        targets: `[n]`; real in the linear toy, 0 and 1 in the logistic one (`logistic_toy`).
    """

    original: Tensor
    augmented: Tensor
    targets: Tensor


def da_optimum(toy: LinearToy) -> Tensor:
    """The optimum of DA-ERM in closed form, as derived in the docstring of this module.

    Args:
        toy: The toy.

    Returns:
        `(w_x, w_s)`, `[d + k]` float64.

    Example:
        >>> da_optimum(LinearToy(noise_std=0.0)).tolist()
        [1.0, 0.0]
    """
    theta, shortcut = (torch.tensor(part, dtype=torch.float64) for part in (toy.theta, toy.shortcut))
    a, noise = toy.augmented_scale, toy.noise_std**2
    signal = toy.x_std**2 * theta.square().sum()
    length = shortcut.square().sum()
    b = 2 * (1 + a) * noise / ((1 - a) ** 2 * signal + 2 * (1 + a * a) * noise + 2 * toy.augmented_std**2 / length)
    return torch.cat([(1 - (1 + a) / 2 * b) * theta, b * shortcut / length])


def sample_linear(toy: LinearToy, count: int = 10_000, seed: int = 0, exact_moments: bool = True) -> PairSample:
    """Rows of the linear toy.

    Args:
        toy: The toy.
        count: n, rows.
        seed: Seed of the draws.
        exact_moments: Rotate and scale the standard normal draws of `x`, `e` and `n` so that the sample's second
            moments are the distribution's. What depends on second moments alone, as least squares does, is then free of
            sampling error, which for 10,000 plain rows is about 0.01 and hides the third digit.

    Returns:
        Features `(x, s)` `[n, d + k]` and targets `[n]`.

    Raises:
        DataError: Too few rows for the moments.

    Example:
        >>> rows = sample_linear(LinearToy(), count=100)
        >>> round(rows.targets.square().mean().item(), 9)
        1.25
    """
    theta, shortcut = np.array(toy.theta), np.array(toy.shortcut)
    d, k = len(theta), len(shortcut)
    if count <= d + k + 1:
        raise DataError(f"count={count}; the linear toy in {d} + {k} dimensions needs more than {d + k + 1} rows")
    draws = np.random.default_rng(seed).standard_normal((count, d + 1 + k))
    if exact_moments:
        # draws^T draws / n = L L^T; dividing by L^T leaves the identity.
        draws = np.linalg.solve(np.linalg.cholesky(draws.T @ draws / count), draws.T).T
    x, noise, jitter = toy.x_std * draws[:, :d], toy.noise_std * draws[:, d], toy.augmented_std * draws[:, d + 1 :]
    y = x @ theta + noise
    spurious = y[:, None] * shortcut
    views = np.hstack([x, spurious]), np.hstack([x, toy.augmented_scale * spurious + jitter]), y
    return PairSample(*(torch.from_numpy(view) for view in views))


def squared_losses(sample: PairSample, weights: Tensor) -> tuple[Tensor, Tensor]:
    """`l_i = (y_i - f(x_i, s_i))^2` of both views.

    Args:
        sample: Rows of the linear toy.
        weights: `[p]`.

    Returns:
        `(l, l~)`, each `[n]`, in squared units of the target.
    """
    return (
        (sample.targets - sample.original @ weights).square(),
        (sample.targets - sample.augmented @ weights).square(),
    )


def fit_da(sample: PairSample, weight_decay: float = 0.0) -> Tensor:
    """DA-ERM on a sample, by its normal equations: argmin of the mean objective plus `weight_decay |w|^2`.

    Args:
        sample: Rows of the linear toy.
        weight_decay: >= 0.

    Returns:
        `[p]` float64.
    """
    moments = (sample.original.T @ sample.original + sample.augmented.T @ sample.augmented) / 2
    with_target = (sample.original + sample.augmented).T @ sample.targets / 2
    count, size = sample.original.shape
    return torch.linalg.solve(moments / count + weight_decay * torch.eye(size).double(), with_target / count)


def fit_dair(sample: PairSample, dair_lambda: float, starts: Sequence[Tensor] | None = None) -> Tensor:
    """DAIR-SQ on a sample of the linear toy, by L-BFGS on the whole sample: the best of several starts.

    R makes the objective non-convex: beside the invariant model there is the *mirrored* one, whose residuals on the two
    views are nearly opposite, so that R is nearly as small. Where the target is noisy, descent from the optimum of
    DA-ERM may end there, though the invariant model is better for any large lambda. From 0, where both views have the
    same losses, it does not.

    Args:
        sample: Rows of the linear toy.
        dair_lambda: Weight of R, >= 0, pair units; 0 is DA-ERM.
        starts: Where to start, each `[p]`; None: the optimum of DA-ERM, and 0.

    Returns:
        The weights with the lowest objective, `[p]` float64.

    Example:
        >>> fit_dair(sample_linear(LinearToy(), count=1000), 0.0).round(decimals=3)
        tensor([0.4770, 0.6980], dtype=torch.float64)
    """
    if starts is None:
        da = fit_da(sample)
        starts = (da, torch.zeros_like(da))
    found = [_minimize(sample, dair_lambda, start) for start in starts]
    return min(found, key=lambda weights: _dair_objective(sample, dair_lambda, weights).item())


def rmse_at_test(toy: LinearToy, weights: Tensor) -> float:
    """Root mean squared error of a linear model at test, where the shortcut is 0: `sqrt(sx^2 |theta - w_x|^2 + se^2)`.

    Args:
        toy: The toy.
        weights: `[d + k]`.

    Returns:
        Units of the target. `se` at best.
    """
    theta = torch.tensor(toy.theta, dtype=torch.float64)
    distance = (weights[: len(theta)] - theta).square().sum().item()
    return math.sqrt(toy.x_std**2 * distance + toy.noise_std**2)


def consistency_and_bound(
    sample: PairSample, weights: Tensor, invariant: Tensor, dair_lambda: float
) -> tuple[float, float]:
    """Mean R_sq at some weights, and what it cannot exceed at the optimum: `mean(l + l~ at invariant) / (2 lambda)`.

    At the optimum `f <= f(invariant) = mean(l + l~) / 2`, as R is 0 where the losses of all pairs agree, and `f` is at
    least `lambda * mean R`.

    Args:
        sample: Rows of the linear toy.
        weights: The optimum, `[p]`.
        invariant: A model that does not look at the shortcut, `[p]`.
        dair_lambda: > 0.

    Returns:
        Mean R_sq and the bound, squared units of the target.

    Raises:
        DataError: lambda is not above 0, or the losses of the "invariant" model differ between the views.
    """
    if not dair_lambda > 0:
        raise DataError(f"dair_lambda={dair_lambda}; the bound holds for a lambda above 0")
    original, augmented = squared_losses(sample, invariant)
    if (original - augmented).abs().max() > 1e-9 * original.max():
        raise DataError("the model given as invariant has different losses on the two views; set its w_s to 0")
    found = squared_root_consistency(*squared_losses(sample, weights)).mean()
    return found.item(), (original + augmented).mean().item() / (2 * dair_lambda)


def da_findings(toy: LinearToy, sample: PairSample) -> dict[str, float]:
    """DA-ERM on a sample: where it ends, how far that is from the closed form, and what weight decay makes of it.

    Args:
        toy: The toy.
        sample: Its rows.

    Returns:
        `w1` and `w2` (first weights of x and of the shortcut), `rmse` at test, `distance` to the invariant model,
        `error` (largest distance of a weight from the closed form), `rmse_best_decay` and `distance_best_decay` (the
        best that any weight decay from 0.001 to 100 gives).
    """
    weights = fit_da(sample)
    decayed = [fit_da(sample, decay) for decay in np.geomspace(1e-3, 100, 60)]
    return {
        **_place(toy, weights),
        "error": (weights - da_optimum(toy)).abs().max().item(),
        "rmse_best_decay": min(rmse_at_test(toy, found) for found in decayed),
        "distance_best_decay": min((found - toy.invariant).norm().item() for found in decayed),
    }


def dair_findings(toy: LinearToy, sample: PairSample, dair_lambda: float) -> dict[str, float]:
    """DAIR on a sample: where it ends, and R_sq there beside its bound.

    Args:
        toy: The toy.
        sample: Its rows.
        dair_lambda: Weight of R, > 0, pair units.

    Returns:
        `w1`, `w2`, `rmse` and `distance` as `da_findings`, `consistency` (mean R_sq) and `bound`.
    """
    weights = fit_dair(sample, dair_lambda)
    consistency, bound = consistency_and_bound(sample, weights, toy.invariant, dair_lambda)
    return {**_place(toy, weights), "consistency": consistency, "bound": bound}


def consistency_gap(losses: Tensor) -> Tensor:
    """`R_l1 - R_sq = 2 min(sqrt l, sqrt l~) |sqrt l - sqrt l~|` for all pairs of some losses, epsilon being 0.

    It is never negative, and 0 only where one loss is 0 or both are equal.

    Args:
        losses: `[G]`, >= 0.

    Returns:
        `[G, G]`.

    Example:
        >>> consistency_gap(torch.tensor([0.0, 1.0, 4.0]))
        tensor([[0., 0., 0.],
                [0., 0., 2.],
                [0., 2., 0.]])
    """
    original, augmented = losses[:, None], losses[None, :]
    return absolute_consistency(original, augmented) - squared_root_consistency(original, augmented, epsilon=0.0)


def _place(toy: LinearToy, weights: Tensor) -> dict[str, float]:
    return {
        "w1": weights[0].item(),
        "w2": weights[len(toy.theta)].item(),
        "rmse": rmse_at_test(toy, weights),
        "distance": (weights - toy.invariant).norm().item(),
    }


def _dair_objective(sample: PairSample, dair_lambda: float, weights: Tensor) -> Tensor:
    original, augmented = squared_losses(sample, weights)
    paired = torch.ones_like(sample.targets, dtype=torch.bool)
    terms = PairTerms(original, augmented, squared_root_consistency(original, augmented), paired)
    return pair_objective(terms, "dair", dair_lambda).mean()


def _minimize(sample: PairSample, dair_lambda: float, start: Tensor) -> Tensor:
    weights = start.detach().clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weights],
        max_iter=500,
        tolerance_grad=1e-10,
        tolerance_change=1e-14,
        history_size=20,
        line_search_fn="strong_wolfe",
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = _dair_objective(sample, dair_lambda, weights)
        value.backward()
        return value

    optimizer.step(closure)
    return weights.detach()
