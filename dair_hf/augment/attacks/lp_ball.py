"""Feasible set of an attack: an Lp ball around each input, clipped to the range of valid values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

NORMS = ("linf", "l2")
# An L2 norm sums many rounded entries. Shrinking the radius by this many units of precision (7.6e-6 of it in float32)
# keeps a norm computed in the tensors' own dtype below epsilon.
L2_MARGIN = 64


@dataclass(frozen=True, eq=False)
class LpBall:
    """Set of admissible inputs: `||(x~ - x) / scale||_p <= epsilon` and `low <= x~ <= high`.

    Attributes:
        center: The inputs x, `[N, ...]`, float32 or float64.
        norm: "linf" or "l2".
        epsilon: Radius, > 0.
        dims: Dimensions that one norm runs over: all of an image, or the embedding of one token.
        scale: Units of x per unit of epsilon, broadcast to x: `1 / std` for images divided by `std`.
        low: Lower bounds, of the shape of x and never above x; for "linf" they include the ball.
        high: Upper bounds, likewise.
    """

    center: Tensor
    norm: str
    epsilon: float
    dims: tuple[int, ...]
    scale: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def around(
        cls,
        center: Tensor,
        norm: str,
        epsilon: float,
        dims: tuple[int, ...],
        *,
        scale: Tensor | None = None,
        lower: Tensor | float | None = None,
        upper: Tensor | float | None = None,
        mask: Tensor | None = None,
    ) -> LpBall:
        """Construct the ball around a batch of inputs.

        Args:
            lower: Lower bound of the values, broadcast to `center`; None: unbounded. Inputs below it stay in the set.
            upper: Upper bound, likewise.
            mask: Bool, broadcast to `center`: entries that may change; None: all.

        Example:
            >>> ball = LpBall.around(torch.tensor([[0.5, 0.875]]), "linf", 0.25, (1,), upper=1.0)
            >>> ball.low, ball.high
            (tensor([[0.2500, 0.6250]]), tensor([[0.7500, 1.0000]]))
        """
        scale = center.new_ones(()) if scale is None else scale.to(center)
        if norm == "linf":
            radius = _rounded_down(epsilon, center) * scale
            low, high = _edge(center, -radius), _edge(center, radius)
        else:
            low, high = torch.full_like(center, -math.inf), torch.full_like(center, math.inf)
        if lower is not None:
            low = low.maximum(torch.as_tensor(lower).to(center)).minimum(center)
        if upper is not None:
            high = high.minimum(torch.as_tensor(upper).to(center)).maximum(center)
        if mask is not None:
            low, high = torch.where(mask, low, center), torch.where(mask, high, center)
        return cls(center, norm, epsilon, dims, scale, low, high)

    def sample(self, generator: torch.Generator) -> Tensor:
        """Draw a point uniformly from the Lp ball and clip it to the range."""
        like: dict[str, Any] = {"dtype": self.center.dtype, "device": self.center.device, "generator": generator}
        if self.norm == "linf":
            offset = torch.rand(self.center.shape, **like).mul_(2).sub_(1)
        else:
            # Uniform in a d-ball: the direction of a normal vector, the d-th root of a uniform number as its length.
            offset = _l2_normalize(torch.randn(self.center.shape, **like), self.dims)
            entries = math.prod(self.center.shape[dim] for dim in self.dims)
            shape = [1 if dim in self.dims else size for dim, size in enumerate(self.center.shape)]
            offset = offset * torch.rand(shape, **like).pow(1 / entries)
        return self.project(self.center + offset * (self.epsilon * self.scale))

    def step(self, point: Tensor, gradient: Tensor, step_size: float) -> Tensor:
        """Take a step of steepest ascent (the sign of the gradient for "linf") and project.

        Args:
            point: A point of the set.
            gradient: Gradient of the loss at the point; its length does not matter.
            step_size: Length of the step, in units of epsilon.
        """
        # In units of epsilon the gradient is `scale` times the gradient with respect to x.
        direction = gradient.sign() if self.norm == "linf" else _l2_normalize(gradient * self.scale, self.dims)
        return self.project(point + direction * (step_size * self.scale))

    def project(self, point: Tensor) -> Tensor:
        """Clip a point to the range, then project it onto the Lp ball, which keeps it within the range.

        For "linf" no entry of the result is further from the center than epsilon, exact to the last bit.
        """
        point = self._clip(point)
        if self.norm == "linf":
            return point
        offset = point - self.center
        length = torch.linalg.vector_norm(offset / self.scale, dim=self.dims, keepdim=True)
        radius = self.epsilon * (1 - L2_MARGIN * torch.finfo(point.dtype).eps)
        offset = offset * (radius / length.clamp_min(radius))
        return self._clip(round_inwards(self.center + offset, self.center, offset))

    def _clip(self, point: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(point, self.high), self.low)


def round_inwards(point: Tensor, center: Tensor, offset: Tensor) -> Tensor:
    """Round `center + offset` towards the center where rounding increased the distance.

    Args:
        point: `center + offset`, rounded to any floating dtype.
        center: Of the dtype of `point`.
        offset: At least as precise as `point`.

    Returns:
        A tensor like `point` with `|result - center| <= |offset|`.

    Example:
        >>> center, offset = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([-0.003])
        >>> point = center + offset.bfloat16()
        >>> point, round_inwards(point, center, offset)
        (tensor([0.9961], dtype=torch.bfloat16), tensor([1.], dtype=torch.bfloat16))
    """
    too_far = (point.to(offset.dtype) - center.to(offset.dtype)).abs() > offset.abs()
    return torch.where(too_far, torch.nextafter(point, center), point)


def scale_to_max_one(gradient: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Divide a gradient by its largest absolute entry, so that squares and sums neither vanish nor overflow.

    Args:
        gradient: `[N, ...]`.
        dims: Dimensions that the maximum runs over.

    Returns:
        A tensor like `gradient`; a zero gradient stays 0.
    """
    return gradient / gradient.abs().amax(dims, keepdim=True).clamp_min(torch.finfo(gradient.dtype).tiny)


def _l2_normalize(vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
    vectors = scale_to_max_one(vectors, dims)
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
