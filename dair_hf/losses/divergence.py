"""Feature consistency: divergence of the output distributions of two views."""

from __future__ import annotations

import torch
from torch import Tensor

from dair_hf.losses.objective import js_consistency, kl_consistency
from dair_hf.losses.per_sample import full_precision

_DIVERGENCES = {"kl": kl_consistency, "js": js_consistency}


def feature_consistency(original: Tensor, augmented: Tensor, regularizer: str) -> Tensor:
    """R of pairs of distributions, nats.

    For classes this is R of a row. For sequences it is one position's share: R of a row is its sum over the target
    positions that align by the "matching blocks" rule of `objective.align_targets`.

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
    if regularizer not in _DIVERGENCES:
        raise ValueError(f"regularizer={regularizer!r} compares no features; use one of {sorted(_DIVERGENCES)}")
    log_p, log_q = (full_precision(_class_logits(logits)).log_softmax(-1) for logits in (original, augmented))
    return _DIVERGENCES[regularizer](log_p, log_q)


def _class_logits(logits: Tensor) -> Tensor:
    """`[M, C]` with C >= 2: a single logit z becomes (0, z), whose softmax is (1 - s(z), s(z))."""
    single = logits.reshape(-1, 1) if logits.ndim == 1 else logits
    return torch.nn.functional.pad(single, (1, 0)) if single.shape[-1] == 1 else single
