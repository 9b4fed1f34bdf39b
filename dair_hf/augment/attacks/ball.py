"""The set in which an attack looks: a ball about each input, cut by the range of the values."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

# An L2 norm is a sum over many entries; so much is left of the radius that one taken in the tensors' own precision does
# not come out above it. In units of that precision: 7.6e-6 of the radius in float32.
MARGIN = 64


@dataclass(frozen=True, eq=False)
class Ball:
    """What may become of an input: `||(x~ - x) / scale|| <= epsilon` and `low <= x~ <= high`.

    Attributes:
        center: The inputs x, `[N, ...]`, float32 or float64.
        norm: "linf" or "l2".
        epsilon: Radius, > 0.
        dims: Dimensions over which one norm runs: those of a whole image, or that of a token's embedding.
        scale: Units of x in one unit of epsilon, broadcast to x: `1 / std` of images that were divided by `std`.
        low: Least values, of the shape of x, never above x; with "linf" they bound the ball as well.
        high: Largest values, likewise.
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
        movable: Tensor | None = None,
    ) -> Ball:
        """The ball about inputs.

        Args:
            center: `[N, ...]`, float32 or float64.
            norm: "linf" or "l2".
            epsilon: Radius, > 0.
            dims: Dimensions over which one norm runs.
            scale: Broadcast to `center`; None: 1.
            lower: Bound of the values, broadcast to `center`; None: none. An input beyond it stays in the ball.
            upper: Likewise.
            movable: Bool, broadcast to `center`: the entries that may change; None: all.

        Returns:
            The ball.

        Example:
            >>> ball = Ball.around(torch.tensor([[0.5, 0.875]]), "linf", 0.25, (1,), upper=1.0)
            >>> ball.low, ball.high
            (tensor([[0.2500, 0.6250]]), tensor([[0.7500, 1.0000]]))
        """
        scale = center.new_ones(()) if scale is None else scale.to(center)
        if norm == "linf":
            radius = _at_most(epsilon, center) * scale
            low, high = _edge(center, -radius), _edge(center, radius)
        else:
            low, high = torch.full_like(center, -math.inf), torch.full_like(center, math.inf)
        if lower is not None:
            low = low.maximum(torch.as_tensor(lower).to(center)).minimum(center)
        if upper is not None:
            high = high.minimum(torch.as_tensor(upper).to(center)).maximum(center)
        if movable is not None:
            low, high = torch.where(movable, low, center), torch.where(movable, high, center)
        return cls(center, norm, epsilon, dims, scale, low, high)

    def draw(self, generator: torch.Generator) -> Tensor:
        """A point drawn uniformly from the ball and moved into the range.

        Args:
            generator: On the device of the center.

        Returns:
            As the center.
        """
        kind: dict[str, Any] = {"dtype": self.center.dtype, "device": self.center.device, "generator": generator}
        if self.norm == "linf":
            offset = torch.rand(self.center.shape, **kind).mul_(2).sub_(1)
        else:
            # A normal vector points everywhere alike; the d-th root of a uniform number spreads its length over a ball.
            offset = _of_length_one(torch.randn(self.center.shape, **kind), self.dims)
            entries = math.prod(self.center.shape[dim] for dim in self.dims)
            shape = [1 if dim in self.dims else size for dim, size in enumerate(self.center.shape)]
            offset = offset * torch.rand(shape, **kind).pow(1 / entries)
        return self.project(self.center + offset * (self.epsilon * self.scale))

    def step(self, point: Tensor, gradient: Tensor, size: float) -> Tensor:
        """The point after a step of steepest ascent, projected: of the signs with "linf", of the gradient with "l2".

        Args:
            point: A point of the set.
            gradient: Of what is to grow, with respect to the point; its length does not matter.
            size: Length of the step, in units of epsilon.

        Returns:
            As the center.
        """
        # A step is measured in units of epsilon, in which the gradient is `scale` times that of x.
        direction = gradient.sign() if self.norm == "linf" else _of_length_one(gradient * self.scale, self.dims)
        return self.project(point + direction * (size * self.scale))

    def project(self, point: Tensor) -> Tensor:
        """The nearest values in the range, then the nearest point of the ball, which is in the range as well.

        Args:
            point: As the center.

        Returns:
            A point of the set: with "linf" no entry is further from the center than epsilon, to the last bit.
        """
        point = self._in_range(point)
        if self.norm == "linf":
            return point
        offset = point - self.center
        length = torch.linalg.vector_norm(offset / self.scale, dim=self.dims, keepdim=True)
        radius = self.epsilon * (1 - MARGIN * torch.finfo(point.dtype).eps)
        offset = offset * (radius / length.clamp_min(radius))
        return self._in_range(rounded_inwards(self.center + offset, self.center, offset))

    def _in_range(self, point: Tensor) -> Tensor:
        return torch.maximum(torch.minimum(point, self.high), self.low)


def rounded_inwards(point: Tensor, center: Tensor, offset: Tensor) -> Tensor:
    """Points that rounding has carried further from the center than their offset, one value back towards it.

    Args:
        point: `center + offset`, rounded; any floating type.
        center: Of the type of `point`.
        offset: As precise as `point` or more.

    Returns:
        As `point`; nowhere is `|point - center| > |offset|`.

    Example:
        >>> center, offset = torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([-0.003])
        >>> point = center + offset.bfloat16()
        >>> point, rounded_inwards(point, center, offset)
        (tensor([0.9961], dtype=torch.bfloat16), tensor([1.], dtype=torch.bfloat16))
    """
    too_far = (point.to(offset.dtype) - center.to(offset.dtype)).abs() > offset.abs()
    return torch.where(too_far, torch.nextafter(point, center), point)


def unit_of(gradient: Tensor, dims: tuple[int, ...]) -> Tensor:
    """A gradient whose largest entry is 1, so that squares and sums of its entries neither vanish nor overflow.

    Args:
        gradient: `[N, ...]`.
        dims: Dimensions that are looked at together.

    Returns:
        As the gradient; 0 where all of it is.
    """
    return gradient / gradient.abs().amax(dims, keepdim=True).clamp_min(torch.finfo(gradient.dtype).tiny)


def _of_length_one(vectors: Tensor, dims: tuple[int, ...]) -> Tensor:
    vectors = unit_of(vectors, dims)
    return vectors / torch.linalg.vector_norm(vectors, dim=dims, keepdim=True).clamp_min(0.5)


def _at_most(epsilon: float, like: Tensor) -> Tensor:
    """Epsilon in the type of `like`, rounded down: a bound kept in float32 is then kept in float64 as well."""
    rounded = torch.tensor(epsilon, dtype=like.dtype, device=like.device)
    return torch.nextafter(rounded, torch.zeros_like(rounded)) if float(rounded) > epsilon else rounded


def _edge(center: Tensor, radius: Tensor) -> Tensor:
    """`center + radius`, and where rounding has carried that beyond the radius the next value inwards."""
    edge = center + radius
    # What rounding has added, exactly (Knuth's two-sum): edge + (missing) = center + radius.
    there = edge - center
    missing = (center - (edge - there)) + (radius - there)
    return torch.where(missing * radius.sign() < 0, torch.nextafter(edge, center), edge)
