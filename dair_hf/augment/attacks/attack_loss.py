"""Loss that an attack maximizes, as a function of the input of a frozen model."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.lp_ball import scale_to_max_one
from dair_hf.errors import DataError
from dair_hf.losses.divergence import feature_consistency
from dair_hf.losses.model_state import evaluation_mode
from dair_hf.losses.per_sample import SAMPLE_LOSSES, cross_entropy, full_precision

CROSS_ENTROPY, KL = "cross_entropy", "kl"
LOSSES = (CROSS_ENTROPY, KL, *SAMPLE_LOSSES)
LogitsLoss = Callable[[Tensor, Tensor], Tensor]


@contextlib.contextmanager
def frozen(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Freeze a model for gradients with respect to its input, and restore its state afterwards.

    Inside, every module is in evaluation mode and no parameter requires a gradient. Afterwards the mode of each module,
    `requires_grad` of each parameter and torch's global random state (of the CPU and of the device) are restored.
    `.grad` is never touched.

    Raises:
        DataError: Inside `torch.inference_mode`, which forbids gradients.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with frozen(model, torch.device("cpu")):
        ...     print(model.training, model.weight.requires_grad)
        False False
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
    if torch.is_inference_mode_enabled():
        raise DataError(
            "attack: torch.inference_mode() forbids the gradients with respect to the input that an attack needs; use "
            "torch.no_grad() instead"
        )
    # Autocast caches casts of parameters that require a gradient. Without one, the training step that follows does not
    # reuse a cast that was made here without a graph.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.is_leaf]
    with evaluation_mode(model, device), torch.enable_grad():
        try:
            for parameter in trained:
                parameter.requires_grad_(False)
            yield
        finally:
            for parameter in trained:
                parameter.requires_grad_(True)


class AttackLoss:
    """Per-row loss `l(x)` of a frozen model; construct and use it inside `frozen`.

    Args:
        forward: Maps inputs `[N, ...]` to the model's outputs: logits, or an object with `logits`.
        labels: Targets of the loss; None if it needs none.
        loss: "cross_entropy", "kl", a name in `SAMPLE_LOSSES` or a callable, as in `Attack`.
        original: `[N, ...]`, clean inputs that "kl" compares with.
        name: Name of the input, for errors.

    Raises:
        DataError: The model returns no logits, "kl" is used for sequences, or the loss needs labels and has none.

    Example:
        >>> loss = AttackLoss(lambda x: 3 * x, torch.tensor([0]), "cross_entropy", torch.zeros(1, 2))
        >>> loss.gradient(torch.zeros(1, 2))  # only the direction of each row is meaningful
        tensor([[-3.,  3.]])
    """

    def __init__(
        self,
        forward: Callable[[Tensor], Any],
        labels: Tensor | None,
        loss: str | LogitsLoss,
        original: Tensor,
        name: str = "the input",
    ) -> None:
        self.forward = forward
        self.labels = labels
        self.loss = loss
        self.name = name
        if loss == KL:
            self.clean = self._logits_at(original)
            if self.clean.ndim > 2:
                raise DataError(
                    f"attack: loss='kl' compares classes, logits [N, C]; the model's are {list(self.clean.shape)}; for "
                    "sequences pass a callable (logits, labels) -> [N]"
                )
        elif callable(loss):
            return
        elif labels is None:
            raise DataError(f"attack: loss={loss!r} needs labels, found none; only 'kl' works without labels")
        elif loss in (CROSS_ENTROPY, "classification") and (labels.ndim != 1 or labels.is_floating_point()):
            raise DataError(
                f"attack: loss={loss!r} needs integer class labels [N], found {labels.dtype} {list(labels.shape)}; use "
                "the sample loss that the model is trained with, such as loss='causal'"
            )

    def gradient(self, point: Tensor) -> Tensor:
        """Compute the gradient of each row's loss with respect to its input, up to a positive factor per row.

        A confident model has tiny gradients. To keep them from vanishing on the way back, also in half precision, the
        gradient at the logits is first scaled so that its largest entry is 1.

        Returns:
            `[N, ...]`.

        Raises:
            DataError: The logits do not depend on the input, the loss does not depend on the logits, or the loss is
                not one number per row.
        """
        point = point.detach().requires_grad_()
        logits = logits_of(self.forward(point))
        top = self._widened(logits.detach()).requires_grad_()
        losses = self._losses(top)
        if not losses.requires_grad:
            raise DataError("attack: the loss has no gradient with respect to the logits; use a differentiable loss")
        (at_logits,) = torch.autograd.grad(losses.sum(), top)
        at_logits = scale_to_max_one(at_logits.reshape(len(top), -1), (1,)).view_as(logits).to(logits.dtype)
        gradient = None
        if logits.requires_grad:
            (gradient,) = torch.autograd.grad(logits, point, at_logits, allow_unused=True)
        if gradient is None:
            raise self.no_gradient("the graph does not connect them")
        return gradient

    def score(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows are misclassified, and their losses.

        Returns:
            `(wrong, losses)`, `[N]` bool and `[N]`. No row counts as wrong without class labels or under "kl", which
            ignores labels.
        """
        with torch.no_grad():
            logits = self._logits_at(point)
            losses = self._losses(logits)
        wrong = torch.zeros_like(losses, dtype=torch.bool)
        has_classes = logits.ndim == 2 and logits.shape[1] > 1 and self.loss != KL
        if has_classes and self.labels is not None and self.labels.shape == wrong.shape:
            wrong = logits.argmax(1) != self.labels
        return wrong, losses

    def no_gradient(self, reason: str) -> DataError:
        """Return the error for a model whose outputs do not depend on its input."""
        return DataError(
            f"attack: the model's outputs have no gradient with respect to {self.name}: {reason}; check that the model "
            "uses this input, without detaching or rounding it"
        )

    def _logits_at(self, point: Tensor) -> Tensor:
        with torch.no_grad():
            return self._widened(logits_of(self.forward(point)))

    def _widened(self, logits: Tensor) -> Tensor:
        # For a confident model, 1 - p underflows in float32. Exceptions: sequences (memory), callables (they may hold
        # float32 tensors) and MPS (no float64).
        if logits.ndim > 2 or callable(self.loss) or logits.device.type == "mps":
            return full_precision(logits)
        return logits.double()

    def _losses(self, logits: Tensor) -> Tensor:
        labels: Any = self.labels
        if self.loss == KL:
            losses = feature_consistency(self.clean, logits, "kl")
        elif callable(self.loss):
            losses = self.loss(logits, labels)
        else:
            sample_loss = cross_entropy if self.loss == CROSS_ENTROPY else SAMPLE_LOSSES[self.loss]
            losses = sample_loss(SimpleNamespace(logits=logits), labels)
        if not isinstance(losses, Tensor) or losses.shape != logits.shape[:1]:
            found = f"shape {list(losses.shape)}" if isinstance(losses, Tensor) else type(losses).__name__
            raise DataError(
                f"attack: the loss returned {found} for {len(logits)} rows; return one number per row, a tensor "
                f"[{len(logits)}], without reducing over the batch"
            )
        return losses


def logits_of(outputs: Any) -> Tensor:
    """Return the logits in a model's outputs.

    Args:
        outputs: A tensor, or an object with `logits` as attribute or key.

    Raises:
        DataError: The outputs have no logits.

    Example:
        >>> logits_of({"logits": torch.zeros(2)})
        tensor([0., 0.])
    """
    logits = outputs
    if not isinstance(outputs, Tensor):
        logits = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor):
        raise DataError(
            f"attack: the model returned {type(outputs).__name__} without logits; return a tensor or an object with "
            "`logits`"
        )
    return logits
