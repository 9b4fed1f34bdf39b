"""Per-row losses: `(model outputs, labels) -> [rows]`, float32 at least, summed over the targets of a row.

A sample loss is any callable with this signature. Two attributes tell which labels are targets: `shifts_labels = True`
if position t predicts label t + 1, so that the first label of a row is not a target; `soft_labels = True` if labels are
scores of all classes, so that a row of zeros has no target.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor

IGNORE_INDEX = -100
SampleLoss = Callable[[Any, Tensor], Tensor]


def full_precision(values: Tensor) -> Tensor:
    """Return `values` in float32, or as they are if they are float64."""
    return values if values.dtype == torch.float64 else values.float()


def _token_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return the sum of `-log p(label)` over the valid positions of each row: `[N, T, V], [N, T] -> [N]`."""
    flat = functional.cross_entropy(
        full_precision(logits).reshape(-1, logits.shape[-1]),
        labels.reshape(-1),
        reduction="none",
        ignore_index=IGNORE_INDEX,
    )
    return flat.view(labels.shape).sum(-1)


def _binary_nll(logits: Tensor, labels: Tensor) -> Tensor:
    """Return `-y log s(z) - (1 - y) log(1 - s(z))`; NaN for labels outside [0, 1], where it would be negative."""
    labels = labels.to(logits.dtype)
    losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
    return losses.masked_fill((labels < 0) | (labels > 1), torch.nan)


def seq2seq_nll(outputs: Any, labels: Tensor) -> Tensor:
    """Return `l = -sum_t log p(y_t | y_<t, x)` of an encoder-decoder: position t of the logits predicts label t.

    Args:
        outputs: Model outputs with `logits` `[N, T, V]`.
        labels: `[N, T]` token ids, -100 where there is no target.

    Returns:
        `[N]`, nats per sequence; 0, connected to the graph, for a row without a target.

    Example:
        >>> from types import SimpleNamespace
        >>> seq2seq_nll(SimpleNamespace(logits=torch.zeros(1, 2, 4)), torch.tensor([[3, -100]]))
        tensor([1.3863])
    """
    return _token_nll(outputs.logits, labels)


def causal_nll(outputs: Any, labels: Tensor) -> Tensor:
    """Return `l = -sum_t log p(y_t | y_<t)` of a decoder-only model: position t of the logits predicts label t + 1.

    Args:
        outputs: Model outputs with `logits` `[N, T, V]`.
        labels: `[N, T]` token ids aligned with the inputs, -100 on the prompt, the padding, and the first token after
            padding on the left, which no token predicts (`TargetRule.labels`).

    Returns:
        `[N]`, nats per sequence; 0, connected to the graph, for a row without a target.

    Example:
        >>> from types import SimpleNamespace
        >>> causal_nll(SimpleNamespace(logits=torch.zeros(1, 3, 4)), torch.tensor([[-100, 2, -100]]))
        tensor([1.3863])
    """
    return _token_nll(outputs.logits[:, :-1], labels[:, 1:])


causal_nll.shifts_labels = True  # type: ignore[attr-defined]


def cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    """Return `l = -log p(y | x)` of a classifier.

    Args:
        outputs: Model outputs with `logits` `[N, C]`.
        labels: `[N]` class ids, -100 where there is no target.

    Returns:
        `[N]`, nats.
    """
    return functional.cross_entropy(full_precision(outputs.logits), labels, reduction="none", ignore_index=IGNORE_INDEX)


def binary_cross_entropy(outputs: Any, labels: Tensor) -> Tensor:
    """Return `l = -y log s(z) - (1 - y) log(1 - s(z))` of a binary classifier with one logit."""
    return _binary_nll(full_precision(outputs.logits).reshape(labels.shape), labels)


def multi_label(outputs: Any, labels: Tensor) -> Tensor:
    """Return `l = -1/C sum_c [y_c log s(z_c) + (1 - y_c) log(1 - s(z_c))]` of a classifier of independent classes.

    Args:
        outputs: Model outputs with `logits` `[N, C]`.
        labels: `[N, C]`, floating, 0 and 1 (or soft targets between).

    Returns:
        `[N]`, nats per class; NaN, which stops training, for a label outside [0, 1].
    """
    return _binary_nll(full_precision(outputs.logits), labels).mean(-1)


def soft_score(outputs: Any, labels: Tensor) -> Tensor:
    """Return `l = -sum_a s_a log p(a | x)` of a classifier whose targets are scores of several classes.

    In visual question answering `s_a` is the share of the annotators who gave answer a (Kazemi and Elqursh, "Show, Ask,
    Attend, and Answer", 2017). With a single score of 1 this is `cross_entropy`; scores need not add up to 1.

    Args:
        outputs: Model outputs with `logits` `[N, A]`.
        labels: `[N, A]`, floating, >= 0; all 0 where no class is a target.

    Returns:
        `[N]`, nats; 0, connected to the graph, for a row without target.

    Example:
        >>> from types import SimpleNamespace
        >>> soft_score(SimpleNamespace(logits=torch.zeros(1, 4)), torch.tensor([[0.0, 0.7, 0.3, 0.0]]))
        tensor([1.3863])
    """
    log_probabilities = full_precision(outputs.logits).log_softmax(-1)
    return -(labels.to(log_probabilities.dtype) * log_probabilities).sum(-1)


soft_score.soft_labels = True  # type: ignore[attr-defined]


def squared_error(outputs: Any, labels: Tensor) -> Tensor:
    """Return `l = (y - f(x))^2` of a regression model, the mean over its outputs if it has several."""
    predictions = full_precision(outputs.logits).reshape(labels.shape)
    errors = (predictions - labels.to(predictions.dtype)).square()
    return errors if errors.ndim == 1 else errors.flatten(1).mean(1)


def huber(outputs: Any, labels: Tensor, delta: float = 1.0) -> Tensor:
    """Return `l = e^2 / 2` for `|e| <= delta`, else `delta (|e| - delta / 2)`, with `e = f(x) - y`.

    Args:
        outputs: Model outputs with `logits` `[N]` or `[N, 1]`.
        labels: `[N]`, real.
        delta: Error at which the loss becomes linear, in units of the labels.

    Returns:
        `[N]`.

    Example:
        >>> from types import SimpleNamespace
        >>> huber(SimpleNamespace(logits=torch.tensor([[1.0]])), torch.tensor([4.0]))
        tensor([2.5000])
    """
    predictions = full_precision(outputs.logits).reshape(labels.shape)
    return functional.huber_loss(predictions, labels.to(predictions.dtype), reduction="none", delta=delta)


SAMPLE_LOSSES: dict[str, SampleLoss] = {
    "seq2seq": seq2seq_nll,
    "causal": causal_nll,
    "token_classification": seq2seq_nll,
    "classification": cross_entropy,
    "multi_label": multi_label,
    "binary": binary_cross_entropy,
    "soft_score": soft_score,
    "squared": squared_error,
    "huber": huber,
}
