"""Sequence losses without the logits of a whole batch: hidden states to losses, a few target tokens at a time.

The logits of a batch, `[N, T, V]`, are often the largest tensor of a step, and a loss holds several of that size. Here
the output projection is kept from running inside the model. The hidden states it would have seen are cut to those that
have a target, and each chunk of them goes through projection and cross-entropy by itself: its logits exist once in the
forward pass and once, computed again, in the backward pass (`projection.projected_nll`; under activation checkpointing
where the projection is more than a linear layer, such as one with adapters). Values and gradients are those of the full
logits, up to the order of sums; the projection is computed once more than without.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as functional
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from dair_hf.errors import DataError
from dair_hf.packing import unpack
from dair_hf.projection import projected_nll
from dair_hf.sample_losses import IGNORE_INDEX, full_precision

LOGITS_AT_ONCE = 2**24  # entries of a chunk: 64 MiB in float32
BIAS = "final_logits_bias"  # what BART and its kin add to the logits, outside the projection
SOFT_CAP = "final_logit_softcapping"
PROBE = 1.0  # stands for every logit while the model runs; what the model makes of it tells what it does to logits


class ChunkedLoss:
    """Losses of rows, `[N]`, from a model whose logits are a linear layer of its hidden states.

    What the model does to its logits is found out and respected (BART's bias, Gemma's soft cap) or refused by name. A
    projection that is tied to the embeddings, frozen, or adapted by LoRA is run as it is.

    Args:
        model: The model, without wrappers of engines.
        shifts_labels: Whether position t is judged by label t + 1, as in decoder-only models.
        tokens: Target tokens whose logits are held at once; None: as many as `LOGITS_AT_ONCE` allows.

    Raises:
        DataError: The model has no linear output projection, or changes its logits in a way that is not known.

    Example:
        >>> loss = ChunkedLoss(model, shifts_labels=False)  # doctest: +SKIP
        >>> outputs, losses = loss(model, {"input_ids": ids, "decoder_input_ids": shifted}, labels)  # doctest: +SKIP
        >>> losses.shape  # doctest: +SKIP
        torch.Size([32])
    """

    def __init__(self, model: nn.Module, shifts_labels: bool, tokens: int | None = None) -> None:
        find: Any = getattr(model, "get_output_embeddings", None)
        head = None if find is None else find()
        weight = getattr(head, "weight", None)
        if not isinstance(head, nn.Module) or not isinstance(weight, Tensor) or weight.ndim != 2:
            raise DataError(
                f"chunked_loss=True: {type(model).__name__} has no linear layer that makes its logits "
                "(get_output_embeddings); set chunked_loss=False"
            )
        if tokens is not None and tokens < 1:
            raise DataError(f"chunked_loss: tokens={tokens} must be at least 1")
        self.head: nn.Module = head
        self.shifts_labels = shifts_labels
        self.tokens = max(1, LOGITS_AT_ONCE // len(weight)) if tokens is None else tokens
        self.soft_cap = _soft_cap(model)
        self.bias_owner = next(
            (part for part in model.modules() if isinstance(getattr(part, BIAS, None), Tensor)), None
        )

    def __call__(
        self, model: nn.Module, inputs: Mapping[str, Any], labels: Tensor, packed: Tensor | None = None
    ) -> tuple[Any, Tensor]:
        """Run the model and judge it.

        Args:
            model: The model, in whatever an engine wrapped it.
            inputs: Its inputs, without labels.
            labels: `[N, T]` token ids, -100 where there is no target.
            packed: Where the tokens of packed inputs stood, `[N, T]` bool (`packing.pack`); None: they are not packed.

        Returns:
            Its outputs, whose `logits` are a stand-in `[N, T, 1]`, and the losses `[N]`, nats per sequence; 0,
            connected to the graph, for a row without target.

        Raises:
            DataError: The model changes its logits in a way that is not known, or does not use its projection once.
        """
        with self._without_head() as seen:
            outputs = model(**inputs)
        if len(seen) != 1:
            raise DataError(
                f"chunked_loss=True: {type(model).__name__} used its output projection {len(seen)} times in a forward, "
                "where once is expected; set chunked_loss=False"
            )
        self._check_probe(outputs.logits, type(model).__name__)
        hidden = seen[0] if packed is None else unpack(seen[0], packed)
        if self.shifts_labels:
            hidden, labels = hidden[:, :-1], labels[:, 1:]
        valid = labels != IGNORE_INDEX
        rows = valid.nonzero()[:, 0]
        states, targets = hidden[valid], labels[valid]
        # A sum over nothing that still leads back to the model, for rows, and batches, without target.
        losses = full_precision(hidden[..., :0]).sum((1, 2))
        found = self._token_losses(states, targets)
        return outputs, losses.index_add(0, rows, found)

    def _token_losses(self, states: Tensor, targets: Tensor) -> Tensor:
        """`-log p(target)` of hidden states `[M, d]`: `[M]`."""
        head: Any = self.head
        added = None if self.bias_owner is None else getattr(self.bias_owner, BIAS)[0]
        if type(head) is nn.Linear and not head._forward_hooks and not head._forward_pre_hooks:
            bias = added if head.bias is None else head.bias if added is None else head.bias + added
            return projected_nll(states, head.weight, bias, targets, self.tokens, self.soft_cap)

        def judge(part: slice) -> Tensor:
            logits = head(states[part])
            logits = logits if added is None else logits + added.to(logits.dtype)
            if self.soft_cap is not None:
                logits = self.soft_cap * torch.tanh(logits / self.soft_cap)
            return functional.cross_entropy(full_precision(logits), targets[part], reduction="none")

        starts = range(0, len(states), self.tokens)
        parts = [slice(start, start + self.tokens) for start in starts]
        if torch.is_grad_enabled():
            found = [checkpoint(judge, part, use_reentrant=False) for part in parts]
        else:
            found = [judge(part) for part in parts]
        return torch.cat(found) if found else full_precision(states[:, :0]).sum(1)

    @contextlib.contextmanager
    def _without_head(self) -> Iterator[list[Tensor]]:
        """While inside, the projection hands out one stand-in a position, and what it was given is kept."""
        seen: list[Tensor] = []

        def stand_in(hidden: Tensor) -> Tensor:
            seen.append(hidden)
            found: Tensor = _StandIn.apply(hidden, *self.head.parameters())
            return found

        bias = None if self.bias_owner is None else self.bias_owner._buffers[BIAS]
        self.head.forward = stand_in
        try:
            if self.bias_owner is not None and bias is not None:
                self.bias_owner._buffers[BIAS] = bias.new_zeros(1, 1)  # the whole one would make all logits of it
            yield seen
        finally:
            del self.head.forward
            if self.bias_owner is not None:
                self.bias_owner._buffers[BIAS] = bias

    def _check_probe(self, logits: Tensor, name: str) -> None:
        expected = torch.tensor(PROBE, dtype=logits.dtype)
        if self.soft_cap is not None:
            expected = self.soft_cap * torch.tanh(expected / self.soft_cap)
        found = logits.detach().flatten()[:1].cpu()
        if logits.shape[-1] != 1 or not torch.allclose(found, expected.expand_as(found), rtol=1e-2, atol=0):
            raise DataError(
                f"chunked_loss=True: {name} changes its logits after the output projection in a way that is not known "
                f"here (1 became {[round(value, 6) for value in found.tolist()]}); set chunked_loss=False"
            )


class _StandIn(torch.autograd.Function):
    """One `PROBE` a position that leads back to all that the logits would: DDP looks there for what a step uses."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, *parameters: Tensor) -> Tensor:
        ctx.inputs = 1 + len(parameters)
        return hidden.new_full((*hidden.shape[:-1], 1), PROBE)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[None, ...]:
        return (None,) * ctx.inputs


def _soft_cap(model: nn.Module) -> float | None:
    config = getattr(model, "config", None)
    if config is not None and hasattr(config, "get_text_config"):
        config = config.get_text_config()
    found = getattr(config, SOFT_CAP, None)
    return None if found is None else float(found)
