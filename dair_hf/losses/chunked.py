"""Sequence losses in chunks of target tokens, without the logits of a whole batch.

The logits of a batch, `[N, T, V]`, are often the largest tensor of a step, and a loss holds several of that size. Here
the model runs once for its hidden states, of which only those that predict a target are kept. Then each chunk of them
passes the output projection, what the model does to its logits (a bias, a scale, a soft cap) and cross-entropy under
activation checkpointing: its logits exist once in the forward pass and are computed again in the backward pass. Values
and gradients equal those of the full logits, up to the order of sums. With weights in bfloat16, the gradient of the
projection is summed over the chunks in bfloat16: with 200 chunks its relative error is 0.016 instead of 0.004.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dair_hf.errors import DataError
from dair_hf.losses.per_sample import IGNORE_INDEX, full_precision

LOGITS_AT_ONCE = 2**24  # entries of a chunk: 64 MiB in float32


class ChunkedLoss:
    """Losses of rows, `[N]`, from a model whose logits are a linear layer of its hidden states.

    The projection may be tied, frozen, or adapted by LoRA.

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
        self.head = head
        self.shifts_labels = shifts_labels
        self.tokens = max(1, LOGITS_AT_ONCE // len(weight)) if tokens is None else tokens
        above = {module for module in model.modules() if module is not head and head in set(module.modules())}
        parts = [part for module in above for part in module.children()]
        for part in parts:  # a container is not called, its members are
            parts += part.children() if isinstance(part, nn.ModuleList | nn.ModuleDict) else ()
        # Together they compute the hidden states.
        self.trunk = [part for part in parts if part not in above and part is not head]

    def __call__(self, model: nn.Module, inputs: Mapping[str, Any], labels: Tensor) -> tuple[Any, Tensor]:
        """Run the model; return its outputs, whose logits are of no use, and the losses of the rows."""
        if self.shifts_labels:
            labels = functional.pad(labels[:, 1:], (0, 1), value=IGNORE_INDEX)
        rows, columns = (labels != IGNORE_INDEX).nonzero(as_tuple=True)
        positions = rows * labels.shape[1] + columns
        outputs, token_losses = self.token_losses(model, inputs, positions, labels[rows, columns], labels.shape)
        # The sum connects rows without a target, too, and batches without one to the graph.
        return outputs, token_losses.new_zeros(len(labels)).index_add(0, rows, token_losses)

    def token_losses(
        self, model: nn.Module, inputs: Mapping[str, Any], positions: Tensor, targets: Tensor, shape: Any = None
    ) -> tuple[Any, Tensor]:
        """Run the model; return its outputs and `-log p(target)`, `[M]`, at positions of a flat `shape` [N, T]."""
        project = self.head.forward
        hidden: list[Tensor] = []
        kept: dict[nn.Module, list[Any]] = {part: [] for part in self.trunk}

        def project_one(states: Tensor) -> Tensor:
            hidden.append(states)
            return project(states[:1, :1])  # connects the projection to the outputs, where DDP looks for it

        with _replaced({self.head: project_one, **{part: _keeping(part.forward, kept[part]) for part in self.trunk}}):
            outputs = model(**inputs)
        # A model may put tokens of its own before the inputs.
        if len(hidden) != 1 or hidden[0].ndim != 3 or hidden[0].shape[:2] != (shape or hidden[0].shape[:2]):
            found = f"{type(model).__name__} has {[list(states.shape) for states in hidden]}"
            raise DataError(f"chunked_loss: expected one projection of {list(shape or 'NT')} positions, {found}")
        states = hidden[0].flatten(0, 1).index_select(0, positions)

        def chunk_losses(chunk: slice) -> Tensor:
            replayed = {part: _replaying(outputs) for part, outputs in kept.items()}
            with _replaced({self.head: lambda _: project(states[None, chunk]), **replayed}):
                logits = self.model(**inputs).logits[0]
            return functional.cross_entropy(full_precision(logits), targets[chunk], reduction="none")

        chunks = [slice(start, start + self.tokens) for start in range(0, max(len(states), 1), self.tokens)]
        if not torch.is_grad_enabled():
            return outputs, torch.cat([chunk_losses(chunk) for chunk in chunks])
        return outputs, torch.cat([checkpoint(chunk_losses, chunk, use_reentrant=False) for chunk in chunks])


@contextlib.contextmanager
def _replaced(forwards: Mapping[nn.Module, Callable[..., Any]]) -> Iterator[None]:
    """Replace the forwards of modules inside the block; a compiled model would ignore hooks."""
    before = {module: vars(module).get("forward") for module in forwards}
    try:
        for module, forward in forwards.items():
            module.forward = forward
        yield
    finally:
        for module, own in before.items():
            del module.forward
            if own is not None:
                module.forward = own


def _keeping(forward: Callable[..., Any], outputs: list[Any]) -> Callable[..., Any]:
    def run(*args: Any, **kwargs: Any) -> Any:
        outputs.append(forward(*args, **kwargs))
        return outputs[-1]

    return run


def _replaying(outputs: list[Any]) -> Callable[..., Any]:
    left = iter(outputs)
    return lambda *args, **kwargs: next(left)
