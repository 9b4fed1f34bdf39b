"""The loss of a model as a function of its input: values, gradients, and the model left as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dair_hf.augment.attacks.attack import CROSS_ENTROPY, KL, LogitsLoss
from dair_hf.augment.attacks.ball import unit_of
from dair_hf.errors import DataError
from dair_hf.losses.divergence import feature_consistency
from dair_hf.losses.per_sample import SAMPLE_LOSSES, cross_entropy, full_precision


@contextlib.contextmanager
def undisturbed(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Gradients with respect to inputs, of a model that is afterwards as it was before.

    Inside, every module is in evaluation mode (batch norm keeps its statistics, dropout rests) and no parameter asks
    for a gradient. Afterwards the mode of each module, `requires_grad` of each parameter and torch's global random
    numbers, those of the CPU and of the device, are what they were; `.grad` is never touched.

    Args:
        model: The model.
        device: Where it runs.

    Raises:
        DataError: Inside `torch.inference_mode`, where there are no gradients.

    Example:
        >>> model = nn.Linear(2, 2)
        >>> with undisturbed(model, torch.device("cpu")):
        ...     print(model.training, model.weight.requires_grad)
        False False
        >>> model.training, model.weight.requires_grad
        (True, True)
    """
    if torch.is_inference_mode_enabled():
        raise DataError(
            "attack: torch.inference_mode() forbids the gradients with respect to the input that it needs; use "
            "torch.no_grad() instead"
        )
    # The flags themselves: `train()` and `eval()` of a module may do more than set them.
    training = [module for module in model.modules() if module.training]
    # Autocast keeps a cast only of what asks for a gradient: the training step finds none made here, without a graph.
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad and parameter.is_leaf]
    devices = [] if device.type in ("cpu", "mps") else [device]
    try:
        for module in training:
            module.training = False
        for parameter in trained:
            parameter.requires_grad_(False)
        with torch.random.fork_rng(devices, device_type=device.type), torch.enable_grad():
            yield
    finally:
        for module in training:
            module.training = True
        for parameter in trained:
            parameter.requires_grad_(True)


class InputLoss:
    """`l(x)` of each row of a batch, for a model that stands still; made and used inside `undisturbed`.

    Args:
        forward: Inputs `[N, ...]` -> the model's outputs: a tensor of logits, or what has `logits`.
        labels: What the loss compares with; None where it needs nothing.
        loss: "cross_entropy", "kl", a name of `sample_losses`, or a callable, as in `Attack`.
        original: `[N, ...]`, the inputs that "kl" compares with.
        name: Name of the input, for errors.

    Raises:
        DataError: No logits; "kl" of sequences; no labels for a loss that needs them.

    Example:
        >>> loss = InputLoss(lambda x: 3 * x, torch.tensor([0]), "cross_entropy", torch.zeros(1, 2))
        >>> loss.gradient(torch.zeros(1, 2))  # of any length: only its direction is meant
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
            raise DataError(f"attack: loss={loss!r} compares with labels and there are none; only 'kl' needs none")
        elif loss in (CROSS_ENTROPY, "classification") and (labels.ndim != 1 or labels.is_floating_point()):
            raise DataError(
                f"attack: loss={loss!r} needs classes, labels [N] of whole numbers; found {labels.dtype} "
                f"{list(labels.shape)}; use the sample loss that the model is trained with, such as loss='causal'"
            )

    def gradient(self, point: Tensor) -> Tensor:
        """A positive multiple, of each row, of the gradient of its loss with respect to its input.

        Where the model is sure of a row its gradient is tiny. So that it does not vanish on the way down, in half
        precision neither, its largest entry at the logits is brought to 1 first.

        Args:
            point: `[N, ...]`.

        Returns:
            `[N, ...]`.

        Raises:
            DataError: The outputs do not depend on the input, the loss not on the outputs, or it is not one a row.
        """
        point = point.detach().requires_grad_()
        logits = logits_of(self.forward(point))
        top = self._widened(logits.detach()).requires_grad_()
        losses = self._losses(top)
        if not losses.requires_grad:
            raise DataError("attack: the loss has no gradient with respect to the logits; use one that is smooth")
        (at_logits,) = torch.autograd.grad(losses.sum(), top)
        at_logits = unit_of(at_logits.reshape(len(top), -1), (1,)).view_as(logits).to(logits.dtype)
        gradient = None
        if logits.requires_grad:
            (gradient,) = torch.autograd.grad(logits, point, at_logits, allow_unused=True)
        if gradient is None:
            raise self.unmoved("nothing connects them")
        return gradient

    def score(self, point: Tensor) -> tuple[Tensor, Tensor]:
        """How bad the model is at points: whether the class is wrong, and the loss.

        Args:
            point: `[N, ...]`.

        Returns:
            `(wrong, losses)`, `[N]` bool and `[N]`; nothing is wrong where there are no classes to compare with, and
            under "kl", which does not ask for the labels.
        """
        with torch.no_grad():
            logits = self._logits_at(point)
            losses = self._losses(logits)
        wrong = torch.zeros_like(losses, dtype=torch.bool)
        has_classes = logits.ndim == 2 and logits.shape[1] > 1 and self.loss != KL
        if has_classes and self.labels is not None and self.labels.shape == wrong.shape:
            wrong = logits.argmax(1) != self.labels
        return wrong, losses

    def unmoved(self, found: str) -> DataError:
        """The error of a model that does not answer to its input."""
        return DataError(
            f"attack: the model's outputs have no gradient with respect to {self.name}: {found}; does the model use "
            "this input, without detaching or rounding it?"
        )

    def _logits_at(self, point: Tensor) -> Tensor:
        with torch.no_grad():
            return self._widened(logits_of(self.forward(point)))

    def _widened(self, logits: Tensor) -> Tensor:
        # Where the model is sure, 1 - p is less than float32 can hold beside 1. Sequences would take too much memory, a
        # callable may hold numbers in float32, and one kind of device knows no float64.
        if logits.ndim > 2 or callable(self.loss) or logits.device.type == "mps":
            return full_precision(logits)
        return logits.double()

    def _losses(self, logits: Tensor) -> Tensor:
        labels: Any = self.labels  # the callables below say what they need
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
                f"attack: the loss returned {found} for {len(logits)} rows; it must return one number a row, a tensor "
                f"[{len(logits)}], without reducing over the batch"
            )
        return losses


def logits_of(outputs: Any) -> Tensor:
    """The logits of what a model returns.

    Args:
        outputs: A tensor, or what has `logits`, as attribute or by key.

    Returns:
        The logits.

    Raises:
        DataError: There are none.

    Example:
        >>> logits_of({"logits": torch.zeros(2)})
        tensor([0., 0.])
    """
    found = outputs
    if not isinstance(outputs, Tensor):
        found = outputs.get("logits") if isinstance(outputs, Mapping) else getattr(outputs, "logits", None)
    if not isinstance(found, Tensor):
        raise DataError(
            f"attack: the model returned {type(outputs).__name__} without logits; return a tensor, or what has `logits`"
        )
    return found
