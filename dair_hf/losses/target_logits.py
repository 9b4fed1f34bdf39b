"""Logits at targets alone: those of prompts and padding, most of a batch, are not computed.

In a decoder-only model of transformers the output projection is a module, called with the hidden states of all
positions, `[N, T, d]`. A hook hands it those of the M positions that predict a target, `[1, M, d]`. What the model does
to its logits afterwards (a bias, a soft cap) it does to these: a model that knows `logits_to_keep` treats each position
by itself. Losses and gradients are those of all logits, up to the order of sums.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NamedTuple

import torch.nn.functional as functional
from torch import Tensor, nn

from dair_hf.losses.per_sample import full_precision


def output_projection(base: Any) -> nn.Module | None:
    """Return the output projection of a model (without adapters) that treats each position by itself, else None."""
    knows_selection = getattr(base, "_supports_logits_to_keep", None)  # as `generate` asks
    if knows_selection is None or not knows_selection():
        return None
    projection: nn.Module | None = base.get_output_embeddings()
    return projection


class TargetLogits(NamedTuple):
    """The M targets of a batch of N rows, and the projection that computes their logits."""

    projection: nn.Module
    rows: Tensor  # [M], row of each target
    positions: Tensor  # [M], in the flattened [N, T], whose logits predict it

    def run(self, model: nn.Module, **inputs: Any) -> Any:
        """Run a model; its `logits` are those at the positions, `[M, vocabulary]`."""

        def select(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
            return args[0].flatten(0, 1).index_select(0, self.positions)[None], *args[1:]

        hook = self.projection.register_forward_pre_hook(select)
        try:
            return SimpleNamespace(logits=model(**inputs).logits[0])
        finally:
            hook.remove()

    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the losses of the rows, `[N]`, as `causal_nll` does."""
        logits = full_precision(outputs.logits)
        targets = labels.flatten().index_select(0, self.positions + 1)
        token_losses = functional.cross_entropy(logits, targets, reduction="none")
        # The sum connects rows without a target, too, and batches without one to the graph.
        return token_losses.new_zeros(len(labels)).index_add(0, self.rows, token_losses)
