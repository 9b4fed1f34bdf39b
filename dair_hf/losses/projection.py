"""Cross-entropy of a linear projection in chunks of rows, without all logits at once.

Autograd over chunks keeps one gradient of the projection per chunk until they are summed. This backward pass is written
by hand, and every chunk adds to a single gradient.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dair_hf.losses.per_sample import full_precision


def projected_nll(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int, soft_cap: float | None = None
) -> Tensor:
    """Return `-log softmax(cap(states W' + b))[target]` of every row, with at most `rows` rows of logits at once.

    The gradient of the logits z is `(softmax(z) - onehot) g`, times `1 - (z / c)^2` under a soft cap
    `z = c tanh(u / c)`. It computes the logits a second time: four matrix products instead of three.
    """
    losses: Tensor = _ProjectedNLL.apply(states, weight, bias, targets, rows, soft_cap)
    return losses


class _ProjectedNLL(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        states: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        rows: int,
        soft_cap: float | None,
    ) -> Tensor:
        # The type of autocast holds for the product in both passes, whatever the type of the weights.
        device = states.device.type
        ctx.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        ctx.rows, ctx.soft_cap = rows, soft_cap
        ctx.save_for_backward(states, weight, bias, targets)
        with torch.autocast(device, enabled=False):
            chunks = _Chunks(states, weight, bias, ctx.dtype, rows, soft_cap)
            losses = []
            for part, _, logits in chunks:
                log_p = torch.log_softmax(logits, 1, out=chunks.buffer_like(logits)).gather(1, targets[part, None])
                losses.append(-log_p[:, 0])
        return torch.cat(losses) if losses else full_precision(states[:, :0]).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets = ctx.saved_tensors
        needs_states, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        # Sums over chunks are in single precision, even if the products are in half precision.
        sum_dtype = full_precision(weight[:0]).dtype
        weight_gradient = torch.zeros_like(weight, dtype=sum_dtype) if needs_weight else None
        bias_gradient = torch.zeros(len(weight), dtype=sum_dtype, device=weight.device) if needs_bias else None
        state_gradients = []
        chunks = _Chunks(states, weight, bias, ctx.dtype, ctx.rows, ctx.soft_cap)
        for part, inputs, logits in chunks:
            delta = torch.softmax(logits, 1, out=chunks.buffer_like(logits))
            delta.scatter_add_(1, targets[part, None], delta.new_full((len(delta), 1), -1.0))
            delta.mul_(gradient[part, None].to(delta.dtype))
            if ctx.soft_cap is not None:
                delta.mul_(1 - (logits / ctx.soft_cap).square_())
            if bias_gradient is not None:
                bias_gradient += delta.sum(0)
            delta = delta.to(ctx.dtype)
            if needs_states:
                state_gradients.append((delta @ chunks.projection).to(states.dtype))
            if weight_gradient is not None and weight_gradient.dtype == ctx.dtype:
                weight_gradient.addmm_(delta.t(), inputs)
            elif weight_gradient is not None:
                weight_gradient += delta.t() @ inputs
        return (
            (torch.cat(state_gradients) if state_gradients else torch.zeros_like(states)) if needs_states else None,
            weight_gradient.to(weight.dtype) if weight_gradient is not None else None,
            bias_gradient.to(bias.dtype) if bias_gradient is not None else None,
            None,
            None,
            None,
        )


class _Chunks:
    """Logits of chunks of rows, one after the other in the same memory: new memory would double the time."""

    def __init__(
        self, states: Tensor, weight: Tensor, bias: Tensor | None, dtype: torch.dtype, rows: int, soft_cap: float | None
    ) -> None:
        self.states, self.bias, self.soft_cap, self.rows = states, bias, soft_cap, rows
        self.projection = weight.to(dtype)
        self.products = states.new_empty(min(rows, len(states)), len(weight), dtype=dtype)
        self.buffer = torch.empty_like(self.products, dtype=full_precision(self.products[:0]).dtype)

    def __iter__(self) -> Iterator[tuple[slice, Tensor, Tensor]]:
        for start in range(0, len(self.states), self.rows):
            part = slice(start, start + self.rows)
            inputs = self.states[part].to(self.projection.dtype)
            yield part, inputs, self._logits(inputs)

    def buffer_like(self, logits: Tensor) -> Tensor:
        """Return free memory of the shape of these logits."""
        return self.buffer[: len(logits)]

    def _logits(self, inputs: Tensor) -> Tensor:
        logits = full_precision(torch.mm(inputs, self.projection.t(), out=self.products[: len(inputs)]))
        if self.bias is not None:
            logits += self.bias
        return logits if self.soft_cap is None else logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
