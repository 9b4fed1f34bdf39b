"""Caches of prompts from forwards over their prefix trees, so that `generate` reads no history twice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from dair_hf.trees.attention import attention_inputs, nodes_at_once
from dair_hf.trees.forest import prefix_table, token_trees

RELATED = 16  # prompts that share fewer tokens with their neighbour in lexicographic order get a tree of their own


def prefilled_inputs(model: Any, prompts: Sequence[Sequence[int]], pad_token_id: int) -> dict[str, Any]:
    """Return inputs of `generate` whose cache holds all tokens of the prompts but the last one.

    Args:
        model: A decoder-only model with full attention, in evaluation mode.
        prompts: Token ids of the prompts, none empty.
        pad_token_id: Padding token.

    Returns:
        `input_ids` and `attention_mask` `[N, T]`, padded on the left, and `past_key_values`.
    """
    device = model.get_input_embeddings().weight.device
    lengths = np.array([len(prompt) for prompt in prompts])
    longest = int(lengths.max())
    ids = np.full((len(prompts), longest), pad_token_id)
    ids[np.arange(longest) < lengths[:, None]] = np.concatenate([np.asarray(prompt) for prompt in prompts])
    paths = token_trees(ids, lengths, _related(ids, lengths), nodes_at_once(model))
    # Nodes of the cached tokens of every row; padding on the left, which is never attended, repeats the first node.
    columns = np.arange(longest - 1) - (longest - lengths)[:, None]
    nodes = np.where(columns >= 0, np.take_along_axis(paths.nodes, columns.clip(min=0), 1), 0)
    layers: list[list[Tensor]] = []
    for number, tree in enumerate(paths.trees):
        inputs = attention_inputs(type(tree)(*(values.to(device) for values in tree)), model)
        outputs = model(**{**inputs, "use_cache": True, "logits_to_keep": 1})
        rows = np.flatnonzero(paths.trees_of_rows == number)
        chosen = torch.from_numpy(nodes[rows]).to(device)
        for layer, cached in enumerate(outputs.past_key_values.layers):
            if number == 0:
                layers.append([])
                for states in (cached.keys, cached.values):
                    shape = (len(prompts), states.shape[1], longest - 1, states.shape[3])
                    layers[layer].append(states.new_zeros(shape))
            for filled, states in zip(layers[layer], (cached.keys, cached.values), strict=True):
                filled[torch.from_numpy(rows).to(device)] = states[0][:, chosen].transpose(0, 1)
    padding = torch.from_numpy(np.arange(longest) >= (longest - lengths)[:, None]).to(device)
    padded = np.full_like(ids, pad_token_id)
    padded[padding.cpu().numpy()] = np.concatenate([np.asarray(prompt) for prompt in prompts])
    return {
        "input_ids": torch.from_numpy(padded).to(device),
        "attention_mask": padding.long(),
        "past_key_values": DynamicCache(ddp_cache_data=[tuple(layer) for layer in layers], config=model.config),
    }


def _related(ids: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return the number of the group of every row: neighbours in lexicographic order that begin alike."""
    table = prefix_table(ids, lengths, np.zeros(len(ids), dtype=np.int64))
    groups = np.empty(len(ids), dtype=np.int64)
    groups[table.order] = np.cumsum(table.shared < RELATED)
    return groups - 1
