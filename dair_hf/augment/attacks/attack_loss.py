"""Losses that an attack ascends, and the L_p ball in which it stays."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from dair_hf.errors import DataError
from dair_hf.losses.divergence import feature_consistency
from dair_hf.losses.model_state import evaluation_mode
from dair_hf.losses.per_sample import SAMPLE_LOSSES, cross_entropy, full_precision

# An L2 norm sums many rounded entries. Shrinking the radius by this many units of precision (7.6e-6 of it in float32)
# keeps a norm computed in the tensors' own dtype below epsilon.
L2_MARGIN = 64
CROSS_ENTROPY, KL = "cross_entropy", "kl"
LogitsLoss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LpBall:
    """Set of inputs x~ near x, `[N, ...]` float32 or float64: `||x~ - x||_p <= epsilon`, `low <= x~ <= high`.

    `low` and `high` have the shape of x and enclose it; for "linf" they include the ball.
    """

    center: Tensor
    norm: str
    epsilon: float
    low: Tensor
    high: Tensor

    @classmethod
    def around(
        cls,
        center: Tensor,
        norm: str,
        epsilon: float,
        *,
        lower: float | None = None,
        upper: float | None = None,
    ) -> LpBall:
        """Construct the ball around inputs, within broadcast bounds; inputs beyond a bound stay in the ball."""
        if norm == "linf":
            radius = _rounded_down(epsilon, center)
            low, high = _edge(center, -radius), _edge(center, radius)
        else:
            low, high = torch.full_like(center, -math.inf), torch.full_like(center, math.inf)
        if lower is not None:
            low = low.clamp_min(lower).minimum(center)
        if upper is not None:
            high = high.clamp_max(upper).maximum(center)
        return cls(center, norm, epsilon, low, high)

    @property
    def dims(self) -> tuple[int, ...]:
        """Dimensions that one norm runs over: all of an input."""
        return tuple(range(1, self.center.ndim))

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw a point uniformly from the Lp ball and clip it to the range."""
        like: dict[str, Any] = {"dtype": self.center.dtype, "device": self.center.device, "generator": generator}
        if self.norm == "linf":
            offset = torch.rand(self.center.shape, **like).mul_(2).sub_(1)
        else:
            # Uniform in a d-ball: the direction of a normal vector, the d-th root of a uniform number as its length.
            offset = _l2_normalize(torch.randn(self.center.shape, **like), self.dims)
            entries = math.prod(self.center.shape[1:])
            shape = [len(self.center)] + [1] * len(self.dims)
            offset = offset * torch.rand(shape, **like).pow(1 / entries)
        return self.project(self.center + offset * self.epsilon)

    def step(self, point: Tensor, gradient: Tensor, step_size: float) -> Tensor:
        """Take a step of steepest ascent, of length `step_size` (the sign of the gradient for "linf")."""
        direction = gradient.sign() if self.norm == "linf" else _l2_normalize(gradient, self.dims)
        return self.project(point + direction * step_size)

    def project(self, point: Tensor) -> Tensor:
        """Clip a point to the range, then project it onto the Lp ball, which keeps it within the range.

        For "linf" no entry of the result is further from the center than epsilon, exact to the last bit.
        """
        point = self._clip(point)
        if self.norm == "linf":
            return point
        offset = point - self.center
        length = torch.linalg.vector_norm(offset, dim=self.dims, keepdim=True)
        radius = self.epsilon * (1 - L2_MARGIN * torch.finfo(point.dtype).eps)
        offset = offset * (radius / length.clamp_min(radius))
        return self._clip(round_inwards(self.center + offset, self.center, offset))

    def _clip(self, point: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(point, self.high), self.low)


def round_inwards(point: Tensor, center: Tensor, offset: Tensor) -> Tensor:
    """Round a point of any dtype, `center + offset`, towards the center where rounding increased the distance.

    The result has `|result - center| <= |offset|`.
    """
    too_far = (point.to(offset.dtype) - center.to(offset.dtype)).abs() > offset.abs()
    return torch.where(too_far, torch.nextafter(point, center), point)


def _scale_to_max_one(gradient: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Divide by the largest absolute entry over `dims`, so that squares and sums neither vanish nor overflow."""
    return gradient / gradient.abs().amax(dims, keepdim=True).clamp_min(torch.finfo(gradient.dtype).tiny)


def _l2_normalize(vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
    vectors = _scale_to_max_one(vectors, dims)
    return vectors / torch.linalg.vector_norm(vectors, dim=dims, keepdim=True).clamp_min(0.5)


def _rounded_down(epsilon: float, like: Tensor) -> Tensor:
    """Convert epsilon to the dtype of `like`, rounding down, so that a bound kept in float32 also holds in float64."""
    rounded = torch.tensor(epsilon, dtype=like.dtype, device=like.device)
    return torch.nextafter(rounded, torch.zeros_like(rounded)) if float(rounded) > epsilon else rounded


def _edge(center: Tensor, radius: Tensor) -> Tensor:
    """Return `center + radius`, or the next value inwards if rounding exceeded the radius."""
    edge = center + radius
    # Rounding error of the sum, exactly (Knuth's two-sum): edge + missing = center + radius.
    difference = edge - center
    missing = (center - (edge - difference)) + (radius - difference)
    return torch.where(missing * radius.sign() < 0, torch.nextafter(edge, center), edge)


@contextlib.contextmanager
def frozen(model: nn.Module, device: torch.device) -> Iterator[None]:
    """Freeze a model for gradients with respect to its input, and restore its state afterwards.

    Inside, modules are in evaluation mode and no parameter requires a gradient. On exit, modes, `requires_grad` and
    torch's global random state (of the CPU and of the device) are restored. `.grad` is never touched.
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

    `forward` maps inputs `[N, ...]` to logits, or to an object with `logits`; "kl" compares with `original`'s.

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
        at_logits = _scale_to_max_one(at_logits.reshape(len(top), -1), (1,)).view_as(logits).to(logits.dtype)
        return torch.autograd.grad(logits, point, at_logits)[0]

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
    """Return the logits in a model's outputs: a tensor, or an object with `logits` as attribute or key."""
    if isinstance(outputs, Tensor):
        return outputs
    logits: Tensor = outputs["logits"] if isinstance(outputs, Mapping) else outputs.logits
    return logits
