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
LogitsLoss = Callable[[Tensor, Tensor], Tensor]


@contextlib.contextmanager
def frozen(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Freeze a model for gradients with respect to its input, and restore its state afterwards.

    Inside, modules are in evaluation mode and no parameter requires a gradient. On exit, modes, `requires_grad` and
    torch's global random state (of the CPU and of the device) are restored. `.grad` is never touched.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with frozen(model, torch.device("cpu")):
        ...     print(model.training, model.weight.requires_grad)
        False False
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
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

    `forward` maps inputs `[N, ...]` to logits, or to an object with `logits`; "kl" compares with those of `original`.

    Example:
        >>> loss = AttackLoss(lambda x: 3 * x, torch.tensor([0]), "cross_entropy", torch.zeros(1, 2))
        >>> loss.gradient(torch.zeros(1, 2))  # only the direction of each row is meaningful
        tensor([[-3.,  3.]])
    """

    def __init__(
        self, forward: Callable[[Tensor], Any], labels: Tensor | None, loss: str | LogitsLoss, original: Tensor
    ) -> None:
        self.forward = forward
        self.labels = labels
        self.loss = loss
        self.clean = self._logits_at(original) if loss == KL else None

    def gradient(self, point: Tensor) -> Tensor:
        """Compute the gradient of each row's loss with respect to its input, up to a positive factor per row.

        A confident model has tiny gradients. To keep them from vanishing on the way back, also in half precision, the
        gradient at the logits is first scaled so that its largest entry is 1.
        """
        point = point.detach().requires_grad_()
        logits = logits_of(self.forward(point))
        top = self._widened(logits.detach()).requires_grad_()
        (at_logits,) = torch.autograd.grad(self._losses(top).sum(), top)
        at_logits = scale_to_max_one(at_logits.reshape(len(top), -1), (1,)).view_as(logits).to(logits.dtype)
        return torch.autograd.grad(logits, point, at_logits)[0]

    def score(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """Return which rows are misclassified, `[N]` bool, and their losses, `[N]`.

        Without class labels or under "kl", which ignores labels, no row counts as misclassified.
        """
        with torch.no_grad():
            logits = self._logits_at(point)
            losses = self._losses(logits)
        wrong = torch.zeros_like(losses, dtype=torch.bool)
        has_classes = logits.ndim == 2 and logits.shape[1] > 1 and self.loss != KL
        if has_classes and self.labels is not None and self.labels.shape == wrong.shape:
            wrong = logits.argmax(1) != self.labels
        return wrong, losses

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
            assert self.clean is not None
            losses = feature_consistency(self.clean, logits, "kl")
        elif callable(self.loss):
            losses = self.loss(logits, labels)
        else:
            sample_loss = cross_entropy if self.loss == CROSS_ENTROPY else SAMPLE_LOSSES[self.loss]
            losses = sample_loss(SimpleNamespace(logits=logits), labels)
        if not isinstance(losses, Tensor) or losses.shape != logits.shape[:1]:
            found = list(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
            raise DataError(f"attack: expected one loss per row, [{len(logits)}], got {found}")
        return losses


def logits_of(outputs: Any) -> Tensor:
    """Return the logits in a model's outputs: a tensor, or an object with `logits` as attribute or key.

    Example:
        >>> logits_of({"logits": torch.zeros(2)})
        tensor([0., 0.])
    """
    if isinstance(outputs, Tensor):
        return outputs
    logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
    return logits
