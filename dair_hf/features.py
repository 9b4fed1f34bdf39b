"""Feature consistency: divergence of the output distributions of two views, for classes and for sequences."""

from __future__ import annotations

import torch
from torch import Tensor

from dair_hf.objective import align_targets, js_consistency, kl_consistency
from dair_hf.sample_losses import IGNORE_INDEX, full_precision

_DIVERGENCES = {"kl": kl_consistency, "js": js_consistency}


def feature_consistency(
    original: Tensor, augmented: Tensor, original_labels: Tensor, augmented_labels: Tensor, regularizer: str
) -> Tensor:
    """R of pairs as a divergence of what the model outputs for both views, nats per row.

    Classes, logits `[M, C]`: the divergence of the two distributions; one logit z, `[M]` or `[M, 1]`, is that of a
    binary classifier, whose distribution is `(1 - s(z), s(z))` with the logistic `s`. Sequences, logits `[M, T, V]`:
    the sum of the divergences over the target positions that align by the "matching blocks" rule of
    `objective.align_targets`; `logits[:, t]` must be what predicts `labels[:, t]` (shift decoder-only outputs first).

    Args:
        original: Logits of the original views, `[M]`, `[M, C]` or `[M, T, V]`.
        augmented: Logits of the augmented views, of the same rank; T may differ.
        original_labels: `[M]` or `[M, T]`, -100 where there is no target.
        augmented_labels: Likewise.
        regularizer: "kl", KL(original || augmented), or "js".

    Returns:
        `[M]`, float32 at least; 0 for a pair without aligned targets.

    Raises:
        ValueError: Unknown regularizer.

    Example:
        >>> logits, labels = torch.randn(1, 3, 5), torch.tensor([[1, 2, -100]])
        >>> feature_consistency(logits, logits, labels, labels, "kl")
        tensor([0.])
    """
    if regularizer not in _DIVERGENCES:
        raise ValueError(f"regularizer={regularizer!r} compares no features; use one of {sorted(_DIVERGENCES)}")
    divergence = _DIVERGENCES[regularizer]
    if original.ndim < 3:
        original, augmented = _class_logits(original), _class_logits(augmented)
        return divergence(full_precision(original).log_softmax(-1), full_precision(augmented).log_softmax(-1))
    rows, left, right = _aligned_positions(original_labels, augmented_labels)
    at_original = full_precision(original[rows, left]).log_softmax(-1)
    at_augmented = full_precision(augmented[rows, right]).log_softmax(-1)
    per_position = divergence(at_original, at_augmented)
    return per_position.new_zeros(len(original)).index_add(0, rows, per_position)


def _class_logits(logits: Tensor) -> Tensor:
    """`[M, C]` with C >= 2: a single logit z becomes (0, z), whose softmax is (1 - s(z), s(z))."""
    single = logits.reshape(-1, 1) if logits.ndim == 1 else logits
    return torch.nn.functional.pad(single, (1, 0)) if single.shape[-1] == 1 else single


def _aligned_positions(original_labels: Tensor, augmented_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row and the two positions of every aligned target, as index tensors on the labels' device."""
    rows: list[int] = []
    left: list[int] = []
    right: list[int] = []
    # The alignment is a host-side edit script: one transfer of the labels, then index tensors.
    for row, (first, second) in enumerate(zip(original_labels.tolist(), augmented_labels.tolist(), strict=True)):
        first_at = [position for position, label in enumerate(first) if label != IGNORE_INDEX]
        second_at = [position for position, label in enumerate(second) if label != IGNORE_INDEX]
        matched, other = align_targets([first[i] for i in first_at], [second[i] for i in second_at])
        rows.extend([row] * len(matched))
        left.extend(first_at[i] for i in matched)
        right.extend(second_at[i] for i in other)
    device = original_labels.device
    return (
        torch.tensor(rows, dtype=torch.long, device=device),
        torch.tensor(left, dtype=torch.long, device=device),
        torch.tensor(right, dtype=torch.long, device=device),
    )
