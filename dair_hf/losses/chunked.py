"""Sequence losses in chunks of target tokens, without the logits of a whole batch.

The logits of a batch, `[N, T, V]`, are often the largest tensor of a step, and a loss holds several of that size. Here
the model runs without its output projection, and the hidden states of positions without a target are dropped. Each
chunk of the others passes projection and cross-entropy on its own: its logits exist once in the forward pass and are
computed again in the backward pass. Values and gradients equal those of the full logits, up to the order of sums.

A linear projection has a hand-written backward pass, in which all chunks add to one gradient; autograd would keep one
gradient of the projection per chunk. Other projections, such as one with adapters, use activation checkpointing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from dair_hf.errors import DataError
from dair_hf.losses.model_state import evaluation_mode
from dair_hf.losses.per_sample import IGNORE_INDEX, causal_nll, full_precision, seq2seq_nll

LOGITS_AT_ONCE = 2**24  # entries of a chunk: 64 MiB in float32
BIAS = "final_logits_bias"  # added to the logits outside the projection by BART and its relatives
SOFT_CAP = "final_logit_softcapping"
VERIFIED_ROWS = 2  # enough to notice a wrong formula, and little memory compared with a batch
LARGE_LOGIT = 100.0


class ChunkedLoss:
    """Losses of rows, `[N]`, from a model whose logits are a linear layer of its hidden states.

    BART's bias and Gemma's soft cap are applied. The losses of two rows of the first batch are computed both ways, to
    refuse a model that changes its logits in another way. The projection may be tied, frozen, or adapted by LoRA.

    Args:
        model: The model, without wrappers of engines.
        shifts_labels: Whether position t predicts label t + 1, as in decoder-only models.
        tokens: Number of target tokens whose logits are held at once; None: as many as `LOGITS_AT_ONCE` allows.

    Raises:
        DataError: The model has no linear output projection.
    """

    def __init__(self, model: nn.Module, shifts_labels: bool, tokens: int | None = None) -> None:
        get_head: Any = getattr(model, "get_output_embeddings", None)
        head = None if get_head is None else get_head()
        weight = getattr(head, "weight", None)
        if not isinstance(head, nn.Module) or not isinstance(weight, Tensor) or weight.ndim != 2:
            raise DataError(f"chunked_loss: expected get_output_embeddings() of {type(model).__name__} to be linear")
        self.model = model
        self.head: nn.Module = head
        self.verified = False
        self.shifts_labels = shifts_labels
        self.tokens = max(1, LOGITS_AT_ONCE // len(weight)) if tokens is None else tokens
        soft_cap = getattr(_text_config(model), SOFT_CAP, None)
        self.soft_cap = None if soft_cap is None else float(soft_cap)
        self.bias_owner = next(
            (module for module in model.modules() if isinstance(getattr(module, BIAS, None), Tensor)), None
        )

    def __call__(self, model: nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> tuple[Any, Tensor]:
        """Run the model and compute the losses of the rows; verify the first batch that has a target."""
        self.verify(inputs, labels)
        return self._run(model, inputs, labels)

    def _run(
        self, model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, scale: float = 1.0
    ) -> tuple[Any, Tensor]:
        """Return outputs and losses, computed from hidden states times `scale`."""
        outputs, hidden = self.hidden_states(model, inputs)
        if scale != 1.0:
            hidden = hidden * scale
        if self.shifts_labels:
            hidden, labels = hidden[:, :-1], labels[:, 1:]
        rows, positions = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
        token_losses = self.token_losses(hidden[rows, positions], labels[rows, positions])
        # An empty sum connects rows, and batches, without a target to the graph.
        losses = full_precision(hidden[..., :0]).sum((1, 2))
        return outputs, losses.index_add(0, rows, token_losses)

    def hidden_states(self, model: nn.Module, inputs: Mapping[str, Any]) -> tuple[Any, Tensor]:
        """Run the model without its output projection; return its outputs and the inputs of the projection."""
        with self._bypassed_head() as head_inputs:
            outputs = model(**inputs)
        if len(head_inputs) != 1:
            name = type(model).__name__
            raise DataError(f"chunked_loss: expected one output projection per forward, {name} has {len(head_inputs)}")
        return outputs, head_inputs[0]

    def token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return `-log p(target)`, `[M]`, of hidden states `[M, d]` before the output projection."""
        head: Any = self.head
        extra_bias = None if self.bias_owner is None else getattr(self.bias_owner, BIAS)[0]
        if type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks:
            bias = extra_bias if head.bias is None else head.bias if extra_bias is None else head.bias + extra_bias
            return _projected_nll(states, head.weight, bias, targets, self.tokens, self.soft_cap)

        def chunk_losses(chunk: slice) -> Tensor:
            logits = head(states[chunk])
            logits = logits if extra_bias is None else logits + extra_bias.to(logits.dtype)
            if self.soft_cap is not None:
                logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
            return functional.cross_entropy(full_precision(logits), targets[chunk], reduction="none")

        chunks = [slice(start, start + self.tokens) for start in range(0, len(states), self.tokens)]
        if not chunks:
            return full_precision(states[:, :0]).sum(1)
        if not torch.is_grad_enabled():
            return torch.cat([chunk_losses(chunk) for chunk in chunks])
        return torch.cat([checkpoint(chunk_losses, chunk, use_reentrant=False) for chunk in chunks])

    @contextlib.contextmanager
    def _bypassed_head(self) -> Iterator[list[Tensor]]:
        """Replace the projection inside the block: it records its inputs and returns one zero per position."""
        head_inputs: list[Tensor] = []

        def record(hidden: Tensor) -> Tensor:
            head_inputs.append(hidden)
            zeros: Tensor = _ZeroLogits.apply(hidden, *self.head.parameters())
            return zeros

        bias = None if self.bias_owner is None else self.bias_owner._buffers[BIAS]
        self.head.forward = record
        try:
            if self.bias_owner is not None and bias is not None:
                self.bias_owner._buffers[BIAS] = bias.new_zeros(1, 1)  # `[1, V]` would broadcast to all logits
            yield head_inputs
        finally:
            del self.head.forward
            if self.bias_owner is not None:
                self.bias_owner._buffers[BIAS] = bias

    def verify(self, inputs: Mapping[str, Any], labels: Tensor) -> None:
        """Compare the losses of two rows with losses from the model's own logits, without dropout or gradients.

        The comparison is made twice: with the hidden states as they are, and with hidden states scaled so that logits
        reach 100. A soft cap hardly changes the small logits of an untrained model, and a bias hardly changes large
        ones.
        """
        if self.verified:
            return
        shifted = labels[:, 1:] if self.shifts_labels else labels
        rows = (shifted != IGNORE_INDEX).any(1).nonzero()[:VERIFIED_ROWS, 0]
        if len(rows) == 0:
            return
        few = {name: values[rows] if isinstance(values, Tensor) else values for name, values in inputs.items()}
        tokens = (shifted[rows] != IGNORE_INDEX).sum(1)
        scale, refusal = 1.0, ""
        with torch.no_grad(), evaluation_mode(self.model, labels.device):
            for _ in range(2):
                expected, projected = self._losses_of_full_logits(few, labels[rows], scale)
                _, losses = self._run(self.model, few, labels[rows], scale=scale)
                # Both round the same projection, in different orders: one or two units of its type per target.
                largest = projected.abs().max().item()
                rounding = 2 * torch.finfo(projected.dtype).eps * largest * tokens
                relative = 1e-10 if expected.dtype == torch.float64 else 1e-5
                agrees = (losses - expected).abs() <= relative * expected.abs() + rounding
                if bool((expected.isfinite() & ~agrees).any()):
                    refusal = f"{expected.tolist()} from its own logits and {losses.tolist()} in chunks"
                scale = LARGE_LOGIT / largest if largest > 0 else 1.0
        if refusal:
            name = type(self.model).__name__
            raise DataError(f"chunked_loss: {name} changes its logits after the projection: losses are {refusal}")
        self.verified = True

    def _losses_of_full_logits(self, inputs: Mapping[str, Any], labels: Tensor, scale: float) -> tuple[Tensor, Tensor]:
        """Return losses from the model's own logits and the output of the projection, hidden states times `scale`."""
        sample_loss = causal_nll if self.shifts_labels else seq2seq_nll
        projected: list[Tensor] = []
        hooks = (
            self.head.register_forward_pre_hook(lambda head, args: (args[0] * scale, *args[1:])),
            self.head.register_forward_hook(lambda head, args, output: projected.append(output)),
        )
        try:
            logits = self.model(**inputs).logits
        finally:
            for hook in hooks:
                hook.remove()
        return sample_loss(SimpleNamespace(logits=logits), labels), projected[-1] if projected else logits


class _ZeroLogits(torch.autograd.Function):
    """One zero per position, connected to the inputs and parameters of the projection: DDP finds used ones so."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.inputs = 1 + len(parameters)
        return hidden.new_zeros(*hidden.shape[:-1], 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.inputs


def _text_config(model: nn.Module) -> Any:
    config: Any = getattr(model, "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _projected_nll(
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
        # Both passes multiply in the type of autocast.
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
