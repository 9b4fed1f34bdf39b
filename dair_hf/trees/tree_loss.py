"""Losses of rows from forwards over their prefix trees."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from accelerate.utils import extract_model_from_parallel
from torch import Tensor, nn

from dair_hf.losses.chunked import ChunkedLoss
from dair_hf.losses.per_sample import full_precision
from dair_hf.trees.attention import attention_inputs
from dair_hf.trees.forest import Forest, TokenTree


class TreeLosses(NamedTuple):
    """Losses of the views of a batch, and what they were computed from."""

    losses: Tensor
    logits: Tensor | None
    labels: Tensor
    views: Tensor

    def losses_at_scale(self, scale: Tensor) -> Tensor:
        """Return the losses with the logits multiplied by `scale`."""
        assert self.logits is not None
        return self.losses * 0 + sum_by_view(_nll(self.logits * scale, self.labels), self.views, len(self.losses))


def tree_losses(model: nn.Module, forest: Forest, chunked: ChunkedLoss | None = None) -> TreeLosses:
    """Run a decoder-only model on the trees of a batch."""
    token_losses, logits = [], []
    for tree, targets in zip(forest.trees, forest.targets, strict=True):
        if chunked is not None:
            _, hidden = chunked.hidden_states(model, attention_inputs(tree, model))
            token_losses.append(chunked.token_losses(hidden[0].index_select(0, targets.nodes), targets.labels))
            empty = full_precision(hidden[..., :0]).sum()
        else:
            logits.append(logits_of_nodes(model, tree, targets.nodes))
            token_losses.append(_nll(logits[-1], targets.labels))
            empty = full_precision(logits[-1][:, :0]).sum()
    labels = torch.cat([targets.labels for targets in forest.targets])
    numbers = torch.cat([targets.views for targets in forest.targets])
    # The empty sum connects views without a target to the graph.
    losses = empty + sum_by_view(torch.cat(token_losses), numbers, forest.shape[0] * forest.shape[1])
    return TreeLosses(losses, torch.cat(logits) if logits else None, labels, numbers)


def logits_of_nodes(model: Any, tree: TokenTree, nodes: Tensor) -> Tensor:
    """Return the logits of some nodes of a tree, `[M, vocabulary]`; of them alone if the model can omit others."""
    inputs = attention_inputs(tree, model)
    base: Any = extract_model_from_parallel(model)
    supports_selection = getattr(base, "_supports_logits_to_keep", None)  # as `generate` asks
    if supports_selection is not None and supports_selection():
        selected: Tensor = model(**inputs, logits_to_keep=nodes).logits[0]
        return selected
    logits: Tensor = model(**inputs).logits[0]
    return logits.index_select(0, nodes)


def sum_by_view(token_losses: Tensor, numbers: Tensor, views: int) -> Tensor:
    """Sum token losses `[M]` by their views `[M]`: `[views]`."""
    return token_losses.new_zeros(views).index_add(0, numbers, token_losses)


def _nll(logits: Tensor, labels: Tensor) -> Tensor:
    return functional.cross_entropy(full_precision(logits), labels, reduction="none")
