"""A starting point for small T5-shaped models: some heads look at the neighbouring token from the first step on."""

from __future__ import annotations

import math

import torch
from torch import nn
from transformers import PreTrainedModel

from dair_hf.errors import DataError


def start_at_neighbours(model: PreTrainedModel, strength: float = 4.0) -> int:
    """Add `strength` to the relative position biases of two heads a stack, in place.

    To copy a word letter by letter a model must know which letter stands before which. T5's relative position biases
    start near 0 and move by about the learning rate a step, so a model trained from scratch needs a thousand steps
    before any head can tell a neighbour; with this start it needs none. In the encoder head 0 prefers the token before
    and head 1 the token after; in the decoder head 0 prefers the token before and head 1 the one before that. Nothing
    is fixed: the biases are trained like all else.

    Args:
        model: A model with T5's relative attention biases and at least two heads.
        strength: Added to the attention logit at the preferred offset, finite; softmax logits, no unit.

    Returns:
        How many bias tables were changed.

    Raises:
        DataError: The model has no such table or fewer than two heads, or `strength` is not finite.

    Example:
        >>> from transformers import T5Config, T5ForConditionalGeneration
        >>> config = T5Config(vocab_size=9, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        >>> start_at_neighbours(T5ForConditionalGeneration(config))
        2
    """
    if not math.isfinite(strength):
        raise DataError(f"strength={strength} must be a finite number")
    changed = 0
    for name, module in model.named_modules():
        if not name.endswith("relative_attention_bias") or not isinstance(module, nn.Embedding):
            continue
        buckets, heads = module.weight.shape
        if heads < 2:
            raise DataError(f"{name}: one head cannot look both ways; use a model with at least two heads")
        # T5's bucket k is the offset -k for small k; the encoder's upper half holds the offsets to the right.
        second = 2 if ".decoder." in f".{name}" else buckets // 2 + 1
        with torch.no_grad():
            module.weight[1, 0] += strength
            module.weight[second, 1] += strength
        changed += 1
    if not changed:
        raise DataError(
            f"{type(model).__name__} has no relative attention biases; use a T5-shaped model or leave this start out"
        )
    return changed
