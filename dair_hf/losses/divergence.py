"""Feature consistency: divergence between the output distributions of two views (KL, JS, MART)."""

from __future__ import annotations

import math
from difflib import SequenceMatcher

import torch
from torch import Tensor

from dair_hf.losses.per_sample import full_precision

# Constants of the released code of MART, https://github.com/YisenWang/MART.
MART_MARGIN, MART_UNSURE, MART_FLOOR = 1e-4, 1e-7, 1e-12


def _kl(original: Tensor, augmented: Tensor) -> Tensor:
    """Return `R_kl = KL(F(x) || F(x~)) = sum_v p_v (log p_v - log q_v)`: feature consistency (paper, section 2)."""
    probabilities = original.exp()
    # Masked before the product: 0 * inf would be NaN, also in the gradient.
    ratios = (original - augmented).masked_fill(probabilities == 0, 0.0)
    return (probabilities * ratios).sum(-1)


def _js(original: Tensor, augmented: Tensor) -> Tensor:
    """Return `R_js = 1/2 KL(p || m) + 1/2 KL(q || m)` with `m = (p + q) / 2`: symmetric and at most log 2."""
    # A class that neither view can have contributes 0; the gradient of `logaddexp` would be NaN there.
    is_absent = (original == -torch.inf) & (augmented == -torch.inf)
    mixture = torch.logaddexp(original.masked_fill(is_absent, 0.0), augmented) - math.log(2)
    return 0.5 * (_kl(original, mixture) + _kl(augmented, mixture))


# Value of `regularizer` -> R as a divergence of log-probabilities, `(log p, log q) -> [...]`.
FEATURE_REGULARIZERS = {"kl": _kl, "js": _js}


def feature_consistency(original: Tensor, augmented: Tensor, regularizer: str) -> Tensor:
    """Return the divergence of M pairs of output distributions.

    A classifier has one pair of distributions per row. A sequence has one per aligned target position (`align_targets`)
    and its R is their sum.

    Args:
        original: Logits of the original views, `[M, C]`. Logits z of a binary classifier, `[M]` or `[M, 1]`, stand for
            the distributions `(1 - s(z), s(z))` with the logistic function `s`.
        augmented: Logits of the augmented views, of the same shape.
        regularizer: Key of `FEATURE_REGULARIZERS`, such as "kl" for KL(original || augmented).

    Returns:
        `[M]`, nats, float32 at least.

    Example:
        >>> logits = torch.randn(3, 5)
        >>> feature_consistency(logits, logits, "kl")
        tensor([0., 0., 0.])
    """
    log_p, log_q = (full_precision(_class_logits(logits)).log_softmax(-1) for logits in (original, augmented))
    return FEATURE_REGULARIZERS[regularizer](log_p, log_q)


def _class_logits(logits: Tensor) -> Tensor:
    """Return logits `[M, C]` with C >= 2: a single logit z becomes (0, z), whose softmax is (1 - s(z), s(z))."""
    logits = logits.reshape(-1, 1) if logits.ndim == 1 else logits
    return torch.nn.functional.pad(logits, (1, 0)) if logits.shape[-1] == 1 else logits


def mart_terms(original: Tensor, augmented: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return the two terms of MART: a boosted cross-entropy, and KL weighted by uncertainty about the original.

    With p and p~ the distributions of the two views and y the class:

        b~ = -log p~_y - log(1 + 1e-4 - max_{k != y} p~_k + 1e-12)
        R_mart = (1 + 1e-7 - p_y) sum_k p_k (log p_k - log(p~_k + 1e-12))

    Source: Wang et al., "Improving Adversarial Robustness Requires Revisiting Misclassified Examples", ICLR 2020,
    equations (9) to (11), with the constants of the authors' released code. They bound the second term of b~ by 9.2
    nats and the divergence by 27.6 nats, which grow without bound in the printed equations.

    Args:
        original: Log-probabilities `log p`, `[B, C]`, C >= 2.
        augmented: Log-probabilities `log p~`, `[B, C]`.
        labels: Classes, `[B]` int64.

    Returns:
        `(b~, R_mart)`, each `[B]`, nats.

    Example:
        >>> p = torch.tensor([[0.5, 0.5]]).log()
        >>> boosted, consistency = mart_terms(p, torch.tensor([[0.25, 0.75]]).log(), torch.tensor([0]))
        >>> round(boosted.item(), 4), round(consistency.item(), 4)
        (2.7722, 0.0719)
    """
    is_label = torch.nn.functional.one_hot(labels, original.shape[-1]).bool()
    log_p_label = augmented.masked_fill(~is_label, 0.0).sum(-1)
    strongest_other = augmented.masked_fill(is_label, -torch.inf).amax(-1).exp()
    boosted = -log_p_label - torch.log(1 + MART_MARGIN - strongest_other + MART_FLOOR)
    uncertainty = 1 + MART_UNSURE - original.masked_fill(~is_label, 0.0).sum(-1).exp()
    return boosted, uncertainty * _kl(original, torch.log(augmented.exp() + MART_FLOOR))


def align_targets(original: list[int], augmented: list[int]) -> tuple[list[int], list[int]]:
    """Return the positions at which the output distributions of two target sequences are compared.

    Tokens of blocks that both sequences share (`difflib`) align one to one. If a block of one sequence *replaces* a
    block of the other, such as a new name, their tokens align from the left, up to the end of the shorter block.
    Inserted and deleted tokens align with nothing.
    """
    positions: list[int] = []
    augmented_positions: list[int] = []
    blocks = SequenceMatcher(None, original, augmented, autojunk=False).get_opcodes()
    for tag, start, end, augmented_start, augmented_end in blocks:
        if tag in ("equal", "replace"):
            length = min(end - start, augmented_end - augmented_start)
            positions.extend(range(start, start + length))
            augmented_positions.extend(range(augmented_start, augmented_start + length))
    return positions, augmented_positions
