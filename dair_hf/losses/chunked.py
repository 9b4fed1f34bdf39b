"""Sequence losses in chunks of target tokens, without the logits of a whole batch.

The logits of a batch, `[N, T, V]`, are often the largest tensor of a step, and a loss holds several of that size. Here
the model runs without its output projection, and the hidden states of positions without a target are dropped. Each
chunk of the others passes projection and cross-entropy on its own: its logits exist once in the forward pass and are
computed again in the backward pass (`projection.projected_nll`; activation checkpointing if the projection is more than
a linear layer, such as one with adapters). Values and gradients are those of the full logits, up to the order of sums.

A model may change its logits after the projection. A bias outside the projection and a soft cap are supported. The
first batch verifies that there is nothing else: the losses of two rows are computed both ways.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dair_hf.errors import DataError
from dair_hf.losses.model_state import evaluation_mode
from dair_hf.losses.per_sample import IGNORE_INDEX, causal_nll, full_precision, seq2seq_nll
from dair_hf.losses.projection import projected_nll

LOGITS_AT_ONCE = 2**24  # entries of a chunk: 64 MiB in float32
BIAS = "final_logits_bias"  # added to the logits outside the projection by BART and its relatives
SOFT_CAP = "final_logit_softcapping"
VERIFIED_ROWS = 2  # enough to notice a wrong formula, and little memory compared with a batch
LARGE_LOGIT = 100.0


class ChunkedLoss:
    """Losses of rows, `[N]`, from a model whose logits are a linear layer of its hidden states.

    BART's bias and Gemma's soft cap are applied. A model that changes its logits in another way is refused at the first
    batch. The projection may be tied to the embeddings, frozen, or adapted by LoRA.

    Args:
        model: The model, without wrappers of engines.
        shifts_labels: Whether position t predicts label t + 1, as in decoder-only models.
        tokens: Number of target tokens whose logits are held at once; None: as many as `LOGITS_AT_ONCE` allows.

    Raises:
        DataError: The model has no linear output projection.

    Example:
        >>> loss = ChunkedLoss(model, shifts_labels=False)  # doctest: +SKIP
        >>> outputs, losses = loss(model, {"input_ids": ids, "decoder_input_ids": shifted}, labels)  # doctest: +SKIP
        >>> losses.shape  # doctest: +SKIP
        torch.Size([32])
    """

    def __init__(self, model: nn.Module, shifts_labels: bool, tokens: int | None = None) -> None:
        get_head: Any = getattr(model, "get_output_embeddings", None)
        head = None if get_head is None else get_head()
        weight = getattr(head, "weight", None)
        if not isinstance(head, nn.Module) or not isinstance(weight, Tensor) or weight.ndim != 2:
            raise DataError(
                f"chunked_loss=True: {type(model).__name__} has no linear layer that computes its logits "
                "(get_output_embeddings); set chunked_loss=False"
            )
        if tokens is not None and tokens < 1:
            raise DataError(f"chunked_loss: tokens={tokens} must be at least 1")
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
        """Run the model without its output projection; return its outputs and the inputs of the projection.

        Raises:
            DataError: The model does not use its projection exactly once.
        """
        with self._bypassed_head() as head_inputs:
            outputs = model(**inputs)
        if len(head_inputs) != 1:
            raise DataError(
                f"chunked_loss=True: {type(model).__name__} used its output projection {len(head_inputs)} times in a "
                "forward, expected once; set chunked_loss=False"
            )
        return outputs, head_inputs[0]

    def token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return `-log p(target)`, `[M]`, of hidden states `[M, d]` before the output projection."""
        head: Any = self.head
        extra_bias = None if self.bias_owner is None else getattr(self.bias_owner, BIAS)[0]
        if type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks:
            bias = extra_bias if head.bias is None else head.bias if extra_bias is None else head.bias + extra_bias
            return projected_nll(states, head.weight, bias, targets, self.tokens, self.soft_cap)

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
        """Compare the losses of two rows with those of the model's own logits, without dropout or gradients.

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
        scale, refusal = 1.0, None
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
                    refusal = self._refusal(expected, losses, largest)
                scale = LARGE_LOGIT / largest if largest > 0 else 1.0
        if refusal is not None:
            raise refusal
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

    def _refusal(self, expected: Tensor, losses: Tensor, largest: float) -> DataError:
        full, chunked = (", ".join(f"{value:.6g}" for value in values.tolist()) for values in (expected, losses))
        return DataError(
            f"chunked_loss=True and {type(self.model).__name__}{_logit_settings(self.model)} cannot be combined: with "
            f"an output projection of up to {largest:.4g}, the losses of rows are {full} from the model's own logits "
            f"and {chunked} in chunks. The model changes its logits after the projection in an unsupported way; set "
            "chunked_loss=False"
        )


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


def _logit_settings(model: nn.Module) -> str:
    """Return the unsupported settings of a model's logits, for an error."""
    config = _text_config(model)
    settings = [
        f"{name}={value}"
        for name, value in (vars(config) if config is not None else {}).items()
        if "logit" in name and name != SOFT_CAP and type(value) in (int, float)
    ]
    return f" with {' and '.join(settings)}" if settings else ""
