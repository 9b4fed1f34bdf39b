"""Cross-entropy of a linear projection, some rows at a time: what a loss needs of the logits, and never all of them.

Autograd over chunks keeps one gradient of the projection a chunk until they are added up. Here the backward pass is
written out, and every chunk adds to the one gradient there is.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from dair_hf.sample_losses import full_precision


def projected_nll(
    states: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, rows: int, soft_cap: float | None = None
) -> Tensor:
    """`-log softmax(cap(states W' + b))[target]` of every row, with at most `rows` rows of logits at once.

    The gradient of the logits z is `(softmax(z) - onehot) g`, times `1 - (z / c)^2` under a soft cap
    `z = c tanh(u / c)`. Logits are computed a second time for it: four matrix products and not three.

    Args:
        states: `[M, d]`.
        weight: `[V, d]`.
        bias: `[V]`; None: there is none.
        targets: `[M]` int64, in `[0, V)`.
        rows: Rows at once, at least 1.
        soft_cap: c; None: there is none.

    Returns:
        `[M]`, nats, float32 at least.

    Example:
        >>> projected_nll(torch.zeros(1, 2), torch.ones(4, 2), None, torch.tensor([3]), rows=1)
        tensor([1.3863])
    """
    found: Tensor = _ProjectedNLL.apply(states, weight, bias, targets, rows, soft_cap)
    return found


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
        # Under autocast the product runs in its type, whatever the weights are kept in; going backward as well.
        device = states.device.type
        ctx.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else states.dtype
        ctx.rows, ctx.soft_cap = rows, soft_cap
        ctx.save_for_backward(states, weight, bias, targets)
        with torch.autocast(device, enabled=False):
            projection = weight.to(ctx.dtype)
            losses = []
            for part in _parts(len(states), rows):
                logits = _logits(states[part].to(ctx.dtype), projection, bias, soft_cap)
                picked = logits.gather(1, targets[part, None])[:, 0]
                losses.append(logits.logsumexp(1) - picked)
        return torch.cat(losses) if losses else full_precision(states[:, :0]).sum(1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        states, weight, bias, targets = ctx.saved_tensors
        of_states, of_weight, of_bias = ctx.needs_input_grad[:3]
        projection = weight.to(ctx.dtype)
        # Sums over chunks: in single precision where the product itself is shorter.
        summed = full_precision(weight[:0]).dtype
        weight_gradient = torch.zeros_like(weight, dtype=summed) if of_weight else None
        bias_gradient = torch.zeros(len(weight), dtype=summed, device=weight.device) if of_bias else None
        state_gradients = []
        for part in _parts(len(states), ctx.rows):
            inputs = states[part].to(ctx.dtype)
            logits = _logits(inputs, projection, bias, ctx.soft_cap)
            slope = None if ctx.soft_cap is None else 1 - (logits / ctx.soft_cap).square()
            normalizer = logits.logsumexp(1, keepdim=True)
            delta = logits.sub_(normalizer).exp_()  # probabilities
            delta.scatter_add_(1, targets[part, None], delta.new_full((len(delta), 1), -1.0))
            delta.mul_(gradient[part, None].to(delta.dtype))
            if slope is not None:
                delta.mul_(slope)
            if bias_gradient is not None:
                bias_gradient += delta.sum(0)
            delta = delta.to(ctx.dtype)
            if of_states:
                state_gradients.append((delta @ projection).to(states.dtype))
            if weight_gradient is not None and weight_gradient.dtype == ctx.dtype:
                weight_gradient.addmm_(delta.t(), inputs)
            elif weight_gradient is not None:
                weight_gradient += delta.t() @ inputs
        return (
            (torch.cat(state_gradients) if state_gradients else torch.zeros_like(states)) if of_states else None,
            weight_gradient.to(weight.dtype) if weight_gradient is not None else None,
            bias_gradient.to(bias.dtype) if bias_gradient is not None else None,
            None,
            None,
            None,
        )


def _parts(count: int, rows: int) -> list[slice]:
    return [slice(start, start + rows) for start in range(0, count, rows)]


def _logits(states: Tensor, projection: Tensor, bias: Tensor | None, soft_cap: float | None) -> Tensor:
    """A tensor of its own, `[m, V]`, that may be written to."""
    logits = full_precision(states @ projection.t())
    if bias is not None:
        logits += bias
    return logits if soft_cap is None else logits.div_(soft_cap).tanh_().mul_(soft_cap)
