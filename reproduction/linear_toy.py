"""The linear toy problem of the paper, solved exactly, with a bound on R_sq and the gap between R_l1 and R_sq.

**Problem.** `y = theta . x + e` with `x ~ N(0, sx^2 I_d)` and `e ~ N(0, se^2)`. Besides `x` the model receives a
shortcut of k features: `s = y u` in training, `s~ = a y u + n` with `n ~ N(0, sn^2 I_k)` in the augmented view, and 0
at test. The model `f = w_x . x + w_s . s` is invariant if `w_s = 0`. The best invariant model is `(theta, 0)`, in one
dimension (1, 0).

**Optimum of DA-ERM**, which minimizes `E[1/2 (y - f(x, s))^2 + 1/2 (y - f(x, s~))^2]`. Let `b = u . w_s`, and let
`c = (1 + a) / 2` be the mean factor of `y u` over the two views. Setting the derivative in `w_x` to 0 gives
`w_x = (1 - c b) theta`. The residuals of the views are then

    -(1 - a) / 2 * b theta.x + (1 - b) e        and        (1 - a) / 2 * b theta.x + (1 - a b) e - w_s . n

With `S = sx^2 |theta|^2` the objective is half of
`(1 - a)^2 / 2 b^2 S + ((1 - b)^2 + (1 - a b)^2) se^2 + sn^2 |w_s|^2`. The shortest of all `w_s` with the same `b` is
`b u / |u|^2`. This leaves a parabola in `b`, with its minimum at

    b = 2 (1 + a) se^2 / ((1 - a)^2 S + 2 (1 + a^2) se^2 + 2 sn^2 / |u|^2)
    w_x = (1 - (1 + a) / 2 * b) theta,    w_s = b u / |u|^2

The paper prints the denominator with `sx` in place of one `sx^2`, so that the units of the two sides differ (for
`sx = 1` the value is the same). The paper's parameters give `(w_x, w_s) = (0.477, 0.698)`. The optimum is never (1, 0)
unless `se = 0` or `a = -1`, however many rows there are.

All computations are in float64 on the CPU. Source: Huang et al., "Robustness through Data Augmentation Loss
Consistency", TMLR 2022, sections on the toy examples and appendix.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from dair_hf.losses.objective import (
    PairTerms,
    pair_objective,
    squared_root_consistency,
)


@dataclass(frozen=True)
class LinearToy:
    """Parameters of the linear toy; the defaults are the paper's, whose `N(m, v)` gives variances.

    Attributes:
        theta: `[d]`, coefficients of x in the target.
        shortcut: u, `[k]`, coefficients of the target in the shortcut.
        x_std: sx.
        noise_std: se.
        augmented_scale: a.
        augmented_std: sn.

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

    @property
    def invariant(self) -> Tensor:
        """`(theta, 0)`, the best model that ignores the shortcut, `[d + k]`."""
        return torch.tensor([*self.theta, *(0.0 for _ in self.shortcut)], dtype=torch.float64)


class PairSample(NamedTuple):
    """Rows of a toy problem in both views.

    Attributes:
        original: Features, `[n, p]` float64.
        augmented: Features of the augmented view, `[n, p]` float64.
        targets: `[n]`; real in the linear toy, 0 or 1 in the logistic one.
    """

    original: Tensor
    augmented: Tensor
    targets: Tensor


def da_optimum(toy: LinearToy) -> Tensor:
    """Return the optimum `(w_x, w_s)` of DA-ERM, `[d + k]`, in closed form as derived in the module's docstring.

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
    """Draw rows of the linear toy.

    Args:
        toy: The toy.
        count: n, number of rows.
        seed: Random seed.
        exact_moments: Rotate and scale the standard normal draws of `x`, `e` and `n`, so that the sample has
            the second moments of the distribution. Least squares then has no sampling error, which is about 0.01 for
            10,000 rows.

    Example:
        >>> rows = sample_linear(LinearToy(), count=100)
        >>> round(rows.targets.square().mean().item(), 9)
        1.25
    """
    theta, shortcut = np.array(toy.theta), np.array(toy.shortcut)
    d, k = len(theta), len(shortcut)
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
    """Return the losses `l_i = (y_i - f(x_i, s_i))^2` of both views, each `[n]`, for weights `[p]`."""
    return (
        (sample.targets - sample.original @ weights).square(),
        (sample.targets - sample.augmented @ weights).square(),
    )


def fit_da(sample: PairSample, weight_decay: float = 0.0) -> Tensor:
    """Fit DA-ERM by its normal equations: argmin `[p]` of the mean objective plus `weight_decay |w|^2`."""
    moments = (sample.original.T @ sample.original + sample.augmented.T @ sample.augmented) / 2
    with_target = (sample.original + sample.augmented).T @ sample.targets / 2
    count, size = sample.original.shape
    return torch.linalg.solve(moments / count + weight_decay * torch.eye(size).double(), with_target / count)


def fit_dair(sample: PairSample, dair_lambda: float, starts: Sequence[Tensor] | None = None) -> Tensor:
    """Fit DAIR-SQ to the linear toy by full-batch L-BFGS, and return the best result over several starts.

    R makes the objective non-convex: besides the invariant model there is a *mirrored* one, whose residuals on the two
    views are nearly opposite, so that R is nearly as small. With a noisy target, descent from the optimum of DA-ERM may
    end there, although the invariant model is better for every large lambda. Descent from 0, where both views have
    equal losses, does not.

    Args:
        sample: Rows of the linear toy.
        dair_lambda: Weight of R, >= 0, pair units; 0 is DA-ERM.
        starts: Initial weights, each `[p]`; None: the optimum of DA-ERM, and 0.

    Example:
        >>> fit_dair(sample_linear(LinearToy(), count=1000), 0.0).round(decimals=3)
        tensor([0.4770, 0.6980], dtype=torch.float64)
    """
    if starts is None:
        da = fit_da(sample)
        starts = (da, torch.zeros_like(da))
    fitted = [_minimize(sample, dair_lambda, start) for start in starts]
    return min(fitted, key=lambda weights: _dair_objective(sample, dair_lambda, weights).item())


def rmse_at_test(toy: LinearToy, weights: Tensor) -> float:
    """Return the root mean squared error at test, without the shortcut: `sqrt(sx^2 |theta - w_x|^2 + se^2)`."""
    theta = torch.tensor(toy.theta, dtype=torch.float64)
    distance = (weights[: len(theta)] - theta).square().sum().item()
    return math.sqrt(toy.x_std**2 * distance + toy.noise_std**2)


def consistency_and_bound(
    sample: PairSample, weights: Tensor, invariant: Tensor, dair_lambda: float
) -> tuple[float, float]:
    """Return mean R_sq, and its upper bound at the optimum: `mean(l + l~ at invariant) / (2 lambda)`.

    At the optimum `f <= f(invariant) = mean(l + l~) / 2`, because R is 0 for the invariant model, and `f` is at least
    `lambda * mean R`.
    """
    original, augmented = squared_losses(sample, invariant)
    consistency = squared_root_consistency(*squared_losses(sample, weights)).mean()
    return consistency.item(), (original + augmented).mean().item() / (2 * dair_lambda)


def da_findings(toy: LinearToy, sample: PairSample) -> dict[str, float]:
    """Fit DA-ERM, with and without weight decay, and compare it with the closed form and the invariant model.

    Returns:
        `w1` and `w2` (first weight of x and of the shortcut), `rmse` at test, `distance` to the invariant model,
        `error` (largest deviation of a weight from the closed form), `rmse_best_decay` and `distance_best_decay` (best
        values over weight decays from 0.001 to 100).
    """
    weights = fit_da(sample)
    decayed = [fit_da(sample, decay) for decay in np.geomspace(1e-3, 100, 60)]
    return {
        **_describe(toy, weights),
        "error": (weights - da_optimum(toy)).abs().max().item(),
        "rmse_best_decay": min(rmse_at_test(toy, other) for other in decayed),
        "distance_best_decay": min((other - toy.invariant).norm().item() for other in decayed),
    }


def dair_findings(toy: LinearToy, sample: PairSample, dair_lambda: float) -> dict[str, float]:
    """Fit DAIR, and compare it with the invariant model and R_sq with its bound.

    Returns:
        `w1`, `w2`, `rmse` and `distance` as in `da_findings`, `consistency` (mean R_sq) and `bound`.
    """
    weights = fit_dair(sample, dair_lambda)
    consistency, bound = consistency_and_bound(sample, weights, toy.invariant, dair_lambda)
    return {**_describe(toy, weights), "consistency": consistency, "bound": bound}


def consistency_gap(losses: Tensor) -> Tensor:
    """Return `R_l1 - R_sq = 2 min(sqrt l, sqrt l~) |sqrt l - sqrt l~|` for all pairs of losses, with epsilon 0.

    It is never negative, and 0 only if one loss is 0 or both are equal. `losses` `[G]` give a matrix `[G, G]`.

    Example:
        >>> consistency_gap(torch.tensor([0.0, 1.0, 4.0]))
        tensor([[0., 0., 0.],
                [0., 0., 2.],
                [0., 2., 0.]])
    """
    original, augmented = losses[:, None], losses[None, :]
    return (original - augmented).abs() - squared_root_consistency(original, augmented, epsilon=0.0)


def _describe(toy: LinearToy, weights: Tensor) -> dict[str, float]:
    return {
        "w1": weights[0].item(),
        "w2": weights[len(toy.theta)].item(),
        "rmse": rmse_at_test(toy, weights),
        "distance": (weights - toy.invariant).norm().item(),
    }


def _dair_objective(sample: PairSample, dair_lambda: float, weights: Tensor) -> Tensor:
    original, augmented = squared_losses(sample, weights)
    has_partner = torch.ones_like(sample.targets, dtype=torch.bool)
    terms = PairTerms(original, augmented, squared_root_consistency(original, augmented), has_partner)
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
        objective = _dair_objective(sample, dair_lambda, weights)
        objective.backward()
        return objective

    optimizer.step(closure)
    return weights.detach()
