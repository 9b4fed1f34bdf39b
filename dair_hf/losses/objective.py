"""The DAIR objective: pure functions of per-row losses. They see no model, no batch and no device.

With `l` and `l~` the losses of an original row and its augmented partner (nats per row, token losses summed):

    ERM      f = l
    DA-ERM   f = 1/2 l + 1/2 l~
    DAIR     f = 1/2 l + 1/2 l~ + lambda * R
    no partner: f = l with every method

A row may have several partners. `l~` is then their mean loss, and R the mean of `R(l, l~_p)` over them.

Source: Huang et al., "Robustness through Data Augmentation Loss Consistency", TMLR 2022, equations (1) to (4). The
baselines of its adversarial experiments, in which the partner is an adversarial example:

    augmented   f = l~                         PGD training (Madry et al., 2018)
    TRADES      f = l + lambda * R             with R_kl (Zhang et al., 2019)
    MART        f = b~ + lambda * R_mart       see `divergence.mart_terms` (Wang et al., 2020)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

# Weights (w, w~) of f = w l + w~ l~ of a pair, and whether lambda R is added.
METHOD_WEIGHTS = {
    "erm": (1.0, 0.0, False),
    "da": (0.5, 0.5, False),
    "dair": (0.5, 0.5, True),
    "augmented": (0.0, 1.0, False),
    "trades": (1.0, 0.0, True),
    "mart": (0.0, 1.0, True),
}
REGULARIZED = tuple(name for name, (*_, regularized) in METHOD_WEIGHTS.items() if regularized)
TOKEN_METHODS = ("erm", "da", "dair")  # methods that normalization="token" is defined for
LOSS_EPSILON = 1e-7


class PairTerms(NamedTuple):
    """Unreduced terms of a batch of rows, each `[B]`.

    Attributes:
        original: Loss of the original view, nats per row; 0 where the row has no valid target.
        augmented: Loss of the augmented view, nats per row, the mean over the row's partners; 0 where there is none.
        consistency: R of the pair, the mean over the row's partners; 0 where there is none.
        partners: Number of partners of the row, int64; or bool if no row has several.
    """

    original: Tensor
    augmented: Tensor
    consistency: Tensor
    partners: Tensor

    @property
    def has_partner(self) -> Tensor:
        """True for rows that are pairs, `[B]` bool."""
        return self.partners > 0


class Counts(NamedTuple):
    """Denominators of one optimizer step, over all micro-batches of the accumulation window and all ranks."""

    rows: Tensor  # with and without a partner
    pairs: Tensor  # rows with at least one partner
    tokens: Tensor  # targets in all trained views: tokens of sequences, one for a class or a number


def squared_root_consistency(original: Tensor, augmented: Tensor, epsilon: float = LOSS_EPSILON) -> Tensor:
    """Return `R_sq = (sqrt(l + epsilon) - sqrt(l~ + epsilon))^2`, the paper's DAIR-SQ (equation 3).

    Args:
        original: Losses `l >= 0`, `[B]`, nats per row.
        augmented: Losses `l~ >= 0`, `[B]`.
        epsilon: Added inside both roots, so that the gradient is finite at a loss of 0.

    Returns:
        `[B]`, nats per row. Value and gradient are finite for all losses >= 0, and both are 0 for equal losses.

    Example:
        >>> squared_root_consistency(torch.tensor([4.0]), torch.tensor([1.0]), epsilon=0.0)
        tensor([1.])
    """
    return (torch.sqrt(original + epsilon) - torch.sqrt(augmented + epsilon)).square()


def _squared_root_slopes(original: Tensor, augmented: Tensor, epsilon: float) -> tuple[Tensor, Tensor]:
    """Return `dR_sq/dl = 1 - sqrt(l~ / l)` and `dR_sq/dl~ = 1 - sqrt(l / l~)`, with epsilon inside the roots."""
    ratio = torch.sqrt((augmented + epsilon) / (original + epsilon))
    return 1 - ratio, 1 - 1 / ratio


class LossRegularizer(NamedTuple):
    """R as a function of both losses."""

    value: Callable[[Tensor, Tensor, float], Tensor]  # (l, l~, epsilon) -> R, each [B]
    slopes: Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]  # -> (dR/dl, dR/dl~), for logging only
    text: str  # for `--help`
    takes_root: bool = False  # losses below -epsilon are then refused


# Value of `regularizer` -> R.
LOSS_REGULARIZERS = {
    "sq": LossRegularizer(
        squared_root_consistency,
        _squared_root_slopes,
        "squared difference of the roots of the losses, as in the paper",
        takes_root=True,
    ),
    "l1": LossRegularizer(  # the paper's DAIR-L1 (equation 2), never smaller than R_sq
        lambda original, augmented, epsilon: (original - augmented).abs(),
        lambda original, augmented, epsilon: (sign := torch.sign(original - augmented), -sign),
        "absolute difference of the losses",
    ),
}


class PairSlopes(NamedTuple):
    """Slopes of R, the mean over the partners of a row, by the losses of its views; 0 for absent partners."""

    original: Tensor  # mean_p dR(l, l~_p)/dl, [B]
    partners: Tensor  # dR(l, l~_p)/dl~_p of every partner, not divided by their number, [B, V - 1]


def pair_slopes(
    losses: Tensor, partners: Tensor, regularizer: LossRegularizer, epsilon: float = LOSS_EPSILON
) -> PairSlopes:
    """Return the slopes of R by the losses of all views.

    With P partners, `f = w l + w~ mean_p l~_p + lambda mean_p R(l, l~_p)` has the gradient
    `c grad l + sum_p c~_p grad l~_p / P` with `c = w + lambda mean_p dR/dl` and `c~_p = w~ + lambda dR/dl~_p`.
    """
    if losses.shape[1] == 1:
        return PairSlopes(torch.zeros_like(losses[:, 0]), torch.zeros_like(losses[:, 1:]))
    slopes = [regularizer.slopes(losses[:, 0], augmented, epsilon) for augmented in losses[:, 1:].unbind(1)]
    of_original, of_partners = (torch.stack(columns, dim=1) for columns in zip(*slopes, strict=True))
    return PairSlopes(mean_over_partners(of_original, partners), of_partners.masked_fill(~partners, 0.0))


def mean_over_partners(values: Tensor, partners: Tensor) -> Tensor:
    """Return the mean of every row over its partners, `[B]`; 0 for a row without a partner."""
    return values.masked_fill(~partners, 0.0).sum(1) / partners.sum(1).clamp(min=1)


def pair_objective(
    terms: PairTerms,
    method: str = "dair",
    dair_lambda: float | Tensor = 0.0,
    view_weights: Sequence[float] | None = None,
) -> Tensor:
    """Return `f` of every row (equation 4): the paper's objective before any reduction.

    Args:
        terms: Unreduced terms, each `[B]`.
        method: Key of `METHOD_WEIGHTS`.
        dair_lambda: Weight of the consistency in pair units, for methods that use it.
        view_weights: Weights w, w~ of the losses of a pair; None: those of the method, 1/2 and 1/2 for DAIR. A row
            without a partner has weight 1.

    Returns:
        `[B]`, nats per row.

    Example:
        >>> ones = torch.ones(2)
        >>> terms = PairTerms(4 * ones, ones, ones, torch.tensor([True, False]))
        >>> pair_objective(terms, "dair", dair_lambda=2.0)
        tensor([4.5000, 4.0000])
    """
    if method == "erm":
        return terms.original
    weight, augmented_weight, regularized = METHOD_WEIGHTS[method]
    if view_weights is not None:
        weight, augmented_weight = view_weights
    paired = weight * terms.original + augmented_weight * terms.augmented
    if regularized:
        paired = paired + dair_lambda * terms.consistency
    return torch.where(terms.has_partner, paired, terms.original)


def dair_loss(loss: Tensor, augmented_loss: Tensor, lambda_: float, has_partner: Tensor | None = None) -> Tensor:
    """Return the DAIR objective of every row, for a training loop of your own (equation 4 of the paper).

    `f = 1/2 l + 1/2 l~ + lambda (sqrt(l) - sqrt(l~))^2`, and `f = l` for a row without a partner. Take the mean over
    the rows of the step. With gradient accumulation, divide the sum of each micro-batch by the rows of the whole step.

    Args:
        loss: Losses `l >= 0` of the original views, `[B]`: one per row (`reduction="none"`), for a sequence the sum
            over its tokens, in nats.
        augmented_loss: Losses `l~` of their partners, `[B]`, or `[B, P]` for P partners, which are averaged.
        lambda_: Weight of the consistency, >= 0, in pair units: `DAIRConfig(normalization="pair")` reads it alike.
            0 trains on the mean of both losses (DA-ERM).
        has_partner: Rows that have a partner, bool, of the shape of `augmented_loss`, whose other entries are not
            read. None: all.

    Returns:
        `f`, `[B]`, nats per row.

    Raises:
        ValueError: The losses are not one per row. R of two means over a batch would hardly compare the pairs.

    Example:
        >>> loss, augmented_loss = torch.tensor([4.0, 4.0]), torch.tensor([1.0, torch.nan])
        >>> dair_loss(loss, augmented_loss, lambda_=2.0, has_partner=torch.tensor([True, False]))
        tensor([4.5000, 4.0000])
    """
    if loss.ndim != 1 or augmented_loss.shape[:1] != loss.shape or augmented_loss.ndim > 2:
        raise ValueError(f"expected losses [B] and [B] or [B, P], got {[*loss.shape]} and {[*augmented_loss.shape]}")
    augmented = augmented_loss[:, None] if augmented_loss.ndim == 1 else augmented_loss
    exists = torch.ones_like(augmented, dtype=torch.bool) if has_partner is None else has_partner.view(augmented.shape)
    pairs = loss[:, None].masked_fill(~exists, 0.0), augmented.masked_fill(~exists, 0.0)
    consistency = mean_over_partners(squared_root_consistency(*pairs), exists)
    terms = PairTerms(loss, mean_over_partners(augmented, exists), consistency, exists.sum(1))
    return pair_objective(terms, "dair", lambda_)


def normalized_objective(
    terms: PairTerms,
    counts: Counts,
    method: str = "dair",
    dair_lambda: float | Tensor = 0.0,
    normalization: str = "pair",
    view_weights: Sequence[float] | None = None,
) -> Tensor:
    """Return the contribution of a micro-batch to the objective of its optimizer step.

    The contributions of all micro-batches and ranks add up to the objective:

    - "pair" (the paper): `sum_b f_b / rows`;
    - "token" (the authors' dialog code): `sum_b (l_b + l~_b) / tokens + lambda * sum_b R_b / pairs`, where the losses
      of several partners of a row are summed, and their R averaged.

    A pair has the same balance of losses and R in both if `lambda_pair = lambda_token * tokens / (2 * pairs)`. That is
    `lambda_token * m`, with `m` target tokens per view on average, if every row has one partner. With
    `view_weights` the losses of pairs count `2 w l + 2 w~ l~` in token normalization.

    Args:
        terms: Unreduced terms of the micro-batch, each `[B]`.
        counts: Denominators of the whole optimizer step, as tensors or numbers.
        method: Key of `METHOD_WEIGHTS`; with "token" one of `TOKEN_METHODS`.
        dair_lambda: Weight of the consistency, in the units of the normalization.
        normalization: "pair" or "token".
        view_weights: As in `pair_objective`.

    Returns:
        A scalar tensor.

    Raises:
        ValueError: Unknown normalization, or a method that it is not defined for.

    Example:
        >>> terms = PairTerms(torch.tensor([4.0]), torch.tensor([1.0]), torch.tensor([1.0]), torch.tensor([True]))
        >>> normalized_objective(terms, Counts(*torch.tensor([1, 1, 10])), "dair", 0.5, "token")
        tensor(1.)
    """
    if normalization == "pair":
        return pair_objective(terms, method, dair_lambda, view_weights).sum() / counts.rows
    if normalization != "token" or method not in TOKEN_METHODS:  # it would be trained as another objective
        raise ValueError(f"{normalization=}, {method=}: expected pair, or token with one of {TOKEN_METHODS}")
    if method == "erm":
        losses = terms.original.sum()
    elif view_weights is None:
        # The losses of several partners are summed, not averaged.
        further = terms.augmented * (terms.partners.long() - 1).clamp(min=0)
        losses = terms.original.sum() + terms.augmented.sum() + further.sum()
    else:
        weighted = 2 * view_weights[0] * terms.original + 2 * view_weights[1] * (terms.augmented * terms.partners)
        losses = torch.where(terms.has_partner, weighted, terms.original).sum()
    objective = losses / torch.as_tensor(counts.tokens).clamp(min=1)
    if method == "dair":
        objective = objective + dair_lambda * terms.consistency.sum() / torch.as_tensor(counts.pairs).clamp(min=1)
    return objective
