"""Logits at targets alone: those of prompts and padding, most of a batch, are not computed.

In a decoder-only model of transformers the output projection is a module, called with the hidden states of all
positions, `[N, T, d]`. A hook hands it those of the M positions that predict a target, `[1, M, d]`. What the model does
to its logits afterwards (a bias, a soft cap) it does to these: a model that knows `logits_to_keep` treats each position
by itself. Losses and gradients are those of all logits, up to the order of sums.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, NamedTuple

import torch.nn.functional as functional
from accelerate.utils import extract_model_from_parallel
from accelerate.utils.other import is_compiled_module
from torch import Tensor, nn

from dair_hf.errors import DataError
from dair_hf.losses.per_sample import full_precision


def output_projection(model: Any) -> nn.Module | None:
    """Return the output projection of a model whose logits can be computed at some tokens alone, else None."""
    base = model.get_base_model() if hasattr(model, "get_base_model") else model
    knows_selection = getattr(base, "_supports_logits_to_keep", None)  # as `generate` asks
    adds_tokens = getattr(getattr(model, "active_peft_config", None), "is_prompt_learning", False)
    if knows_selection is None or not knows_selection() or adds_tokens:
        return None
    projection: nn.Module | None = base.get_output_embeddings()
    return projection


def logits_at(model: Any, inputs: Mapping[str, Any], positions: Tensor, projection: nn.Module | None = None) -> Tensor:
    """Return the logits `[M, vocabulary]` of a model at positions `[M]` in its flattened inputs `[N, T]`."""
    if projection is None:
        projection = output_projection(extract_model_from_parallel(model))
    ids = inputs.get("input_ids")  # a model may get embeddings in their place
    if projection is not None and ids is not None and len(ids) == 1:
        of_sequence: Tensor = model(**inputs, logits_to_keep=positions).logits[0]
        return of_sequence
    if projection is None or is_compiled_module(model):  # a compiled model ignores hooks
        logits: Tensor = model(**inputs).logits.flatten(0, 1)
        return logits.index_select(0, positions)

    def select(module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        if ids is not None and args[0].shape[:2] != ids.shape:
            found = list(args[0].shape[:2])
            raise DataError(f"{type(model).__name__}: expected hidden states of {list(ids.shape)} tokens, got {found}")
        return args[0].flatten(0, 1).index_select(0, positions)[None], *args[1:]

    hook = projection.register_forward_pre_hook(select)
    try:
        selected: Tensor = model(**inputs).logits[0]
        return selected
    finally:
        hook.remove()


class TargetLogits(NamedTuple):
    """The M targets of a batch of N rows, and the projection that computes their logits."""

    projection: nn.Module
    rows: Tensor  # [M], row of each target
    positions: Tensor  # [M], in the flattened [N, T], whose logits predict it

    def run(self, model: nn.Module, **inputs: Any) -> Any:
        """Run a model; its `logits` are those at the positions, `[M, vocabulary]`."""
        return SimpleNamespace(logits=logits_at(model, inputs, self.positions, self.projection))

    def losses(self, outputs: Any, labels: Tensor) -> Tensor:
        """Return the losses of the rows, `[N]`, as `causal_nll` does."""
        logits = full_precision(outputs.logits)
        targets = labels.flatten().index_select(0, self.positions + 1)
        token_losses = functional.cross_entropy(logits, targets, reduction="none")
        # The sum connects rows without a target, too, and batches without one to the graph.
        return token_losses.new_zeros(len(labels)).index_add(0, self.rows, token_losses)


def needs_no_padding_mask(model: Any) -> bool:
    """Return whether all attention of a model is causal and counts positions by itself, so that no padding is seen."""
    is_causal = [module.is_causal for module in model.modules() if hasattr(module, "is_causal")]
    return bool(is_causal) and all(is_causal) and any(name.endswith("rotary_emb") for name, _ in model.named_modules())
