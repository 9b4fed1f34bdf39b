"""Feature consistency: divergence between the output distributions of two views (KL, JS, MART)."""

from __future__ import annotations

from difflib import SequenceMatcher

import torch
from torch import Tensor

from dair_hf.losses.per_sample import full_precision

# Constants of the released code of MART, https://github.com/YisenWang/MART.
MART_MARGIN, MART_UNSURE, MART_FLOOR = 1e-4, 1e-7, 1e-12


def kl_consistency(original: Tensor, augmented: Tensor) -> Tensor:
    """`R_kl = KL(F(x) || F(x~)) = sum_v p_v (log p_v - log q_v)`: feature consistency (section 2 of the paper).

    Args:
        original: Log-probabilities `log p`, `[..., V]`.
        augmented: Log-probabilities `log q`, `[..., V]`.

    Returns:
        `[...]`, nats. Classes with `p_v = 0` contribute 0.

    Example:
        >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
        >>> round(kl_consistency(p, q).item(), 4)
        0.1438
    """
    return torch.nn.functional.kl_div(augmented, original, reduction="none", log_target=True).sum(-1)


def js_consistency(original: Tensor, augmented: Tensor) -> Tensor:
    """`R_js = 1/2 KL(p || m) + 1/2 KL(q || m)` with `m = (p + q) / 2`: Jensen-Shannon, symmetric, at most log 2.

    Args:
        original: Log-probabilities `log p`, `[..., V]`.
        augmented: Log-probabilities `log q`, `[..., V]`.

    Returns:
        `[...]`, nats.

    Example:
        >>> p, q = torch.tensor([[0.5, 0.5]]).log(), torch.tensor([[0.25, 0.75]]).log()
        >>> round(js_consistency(p, q).item(), 4)
        0.0338
    """
    mixture = torch.logaddexp(original, augmented) - torch.log(original.new_tensor(2.0))
    return 0.5 * (kl_consistency(original, mixture) + kl_consistency(augmented, mixture))


# R as a divergence of log-probabilities, `(log p, log q) -> [...]`, by the name that `regularizer` takes.
FEATURE_REGULARIZERS = {"kl": kl_consistency, "js": js_consistency}


def feature_consistency(original: Tensor, augmented: Tensor, regularizer: str) -> Tensor:
    """R of pairs of distributions, nats.

    For classes this is R of a row. For sequences it is one position's share: R of a row is its sum over the target
    positions that align by the "matching blocks" rule of `align_targets`.

    Args:
        original: Logits of the original views, `[M, C]`; one logit z, `[M]` or `[M, 1]`, is that of a binary
            classifier, whose distribution is `(1 - s(z), s(z))` with the logistic `s`.
        augmented: Logits of the augmented views, likewise.
        regularizer: "kl", KL(original || augmented), or "js".

    Returns:
        `[M]`, float32 at least.

    Raises:
        ValueError: Unknown regularizer.

    Example:
        >>> logits = torch.randn(3, 5)
        >>> feature_consistency(logits, logits, "kl")
        tensor([0., 0., 0.])
    """
    if regularizer not in FEATURE_REGULARIZERS:
        raise ValueError(f"regularizer={regularizer!r} compares no features; use one of {sorted(FEATURE_REGULARIZERS)}")
    log_p, log_q = (full_precision(_class_logits(logits)).log_softmax(-1) for logits in (original, augmented))
    return FEATURE_REGULARIZERS[regularizer](log_p, log_q)


def _class_logits(logits: Tensor) -> Tensor:
    """`[M, C]` with C >= 2: a single logit z becomes (0, z), whose softmax is (1 - s(z), s(z))."""
    single = logits.reshape(-1, 1) if logits.ndim == 1 else logits
    return torch.nn.functional.pad(single, (1, 0)) if single.shape[-1] == 1 else single


def mart_terms(original: Tensor, augmented: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The two terms of MART: a boosted cross-entropy, and KL where the model is not sure of the original.

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
    own = torch.nn.functional.one_hot(labels, original.shape[-1]).bool()
    at_label = augmented.masked_fill(~own, 0.0).sum(-1)
    strongest = augmented.masked_fill(own, -torch.inf).amax(-1).exp()
    boosted = -at_label - torch.log(1 + MART_MARGIN - strongest + MART_FLOOR)
    unsure = 1 + MART_UNSURE - original.masked_fill(~own, 0.0).sum(-1).exp()
    return boosted, unsure * kl_consistency(original, torch.log(augmented.exp() + MART_FLOOR))


def align_targets(original: list[int], augmented: list[int]) -> tuple[list[int], list[int]]:
    """Positions of two target sequences at which their output distributions may be compared.

    The rule, "matching blocks": tokens that both sequences share in order align one to one (longest matching blocks,
    as `difflib` finds them); where a block of one is *replaced* by a block of the other (the old and the new name)
    its tokens align from the left, up to the shorter; tokens that were only inserted or deleted align with nothing.

    Args:
        original: Target token ids without padding.
        augmented: Target token ids without padding.

    Returns:
        Two lists of equal length: positions in `original` and the positions in `augmented` they are compared with.

    Example:
        >>> align_targets([1, 7, 7, 2, 9], [1, 8, 2, 9])
        ([0, 1, 3, 4], [0, 1, 2, 3])
    """
    left: list[int] = []
    right: list[int] = []
    for tag, start, end, other_start, other_end in SequenceMatcher(
        None, original, augmented, autojunk=False
    ).get_opcodes():
        if tag in ("equal", "replace"):
            length = min(end - start, other_end - other_start)
            left.extend(range(start, start + length))
            right.extend(range(other_start, other_start + length))
    return left, right
