"""Feasible set of an attack: an Lp ball around each input, clipped to the range of valid values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# An L2 norm sums many rounded entries. Shrinking the radius by this many units of precision (7.6e-6 of it in float32)
# keeps a norm computed in the tensors' own dtype below epsilon.
L2_MARGIN = 64


@dataclass(frozen=True, eq=False)
class LpBall:
    """Set of inputs x~ near x, `[N, ...]` float32 or float64: `||(x~ - x) / scale||_p <= epsilon`, `low <= x~ <= high`.

    `scale`, units of x per unit of epsilon, is `1 / std` for images divided by `std`. `low` and `high` have the shape
    of x and enclose it; for "linf" they include the ball.
    """

    center: Tensor
    norm: str
    epsilon: float
    scale: Tensor
    low: Tensor
    high: Tensor

    @classmethod
    def around(
        cls,
        center: Tensor,
        norm: str,
        epsilon: float,
        *,
        scale: Tensor | None = None,
        lower: Tensor | float | None = None,
        upper: Tensor | float | None = None,
    ) -> LpBall:
        """Construct the ball around inputs, within bounds that are broadcast to them; inputs beyond a bound stay in it.

        Example:
            >>> ball = LpBall.around(torch.tensor([[0.5, 0.875]]), "linf", 0.25, upper=1.0)
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
        return cls(center, norm, epsilon, scale, low, high)

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
        return self.project(self.center + offset * (self.epsilon * self.scale))

    def step(self, point: Tensor, gradient: Tensor, step_size: float) -> Tensor:
        """Take a step of steepest ascent, of a length in units of epsilon (the sign of the gradient for "linf")."""
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
    """Round a point of any dtype, `center + offset`, towards the center where rounding increased the distance.

    The result has `|result - center| <= |offset|`.

    Example:
        >>> center, offset = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([-0.003])
        >>> point = center + offset.bfloat16()
        >>> point, round_inwards(point, center, offset)
        (tensor([0.9961], dtype=torch.bfloat16), tensor([1.], dtype=torch.bfloat16))
    """
    too_far = (point.to(offset.dtype) - center.to(offset.dtype)).abs() > offset.abs()
    return torch.where(too_far, torch.nextafter(point, center), point)


def scale_to_max_one(gradient: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Divide by the largest absolute entry over `dims`, so that squares and sums neither vanish nor overflow."""
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
