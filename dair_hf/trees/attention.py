"""Attention masks of prefix trees, for the attention implementations and layer types of transformers."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as functional
from accelerate.utils import extract_model_from_parallel
from accelerate.utils.other import is_compiled_module
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward

from dair_hf.errors import DataError
from dair_hf.trees.block_attention import with_blocks
from dair_hf.trees.forest import TokenTree

FLEX = "flex_attention"
# Nodes of small trees that run in one forward with dense masks, whose size grows with their square.
DENSE_NODES = 1024
BLOCK = 128  # nodes of a block of FlexAttention
GRAPHS = 32  # compiled forms of FlexAttention
FULL, SLIDING = "full_attention", "sliding_attention"  # names of layer types in transformers


def attention_inputs(tree: TokenTree, model: Any) -> dict[str, Any]:
    """Return the inputs of a decoder-only model for a tree.

    Args:
        tree: The tree, on the device of the model.
        model: The model, possibly wrapped by an engine.

    Returns:
        `input_ids` and `position_ids` `[1, S]`, `use_cache=False`, and `attention_mask`: `[1, 1, S, S]`, bool for sdpa
        and additive for eager attention; a `BlockMask` for FlexAttention; a dictionary of masks by layer type for a
        model with full and sliding attention.

    Raises:
        DataError: The attention of the model takes no masks.
    """
    config = text_config(model)
    implementation = getattr(config, "_attn_implementation", "eager")
    if implementation not in ("eager", "sdpa", FLEX):
        raise DataError(
            f"share_prefixes and attn_implementation={implementation!r} cannot be combined: it takes no attention mask "
            "of a tree; load the model with attn_implementation='sdpa', or 'flex_attention' on a GPU"
        )
    if implementation == FLEX:
        _allow_graphs()
        AttentionInterface.register(FLEX, _flex_attention)
    windows = _windows(config)
    is_compiled = is_compiled_module(model) or is_compiled_module(getattr(model, "module", model))
    depth = len(tree.ends)  # an upper limit of the depth, without asking the device

    def mask(window: int | None) -> Any:
        window = None if window is None or window >= depth else window
        if implementation == FLEX:
            return _block_mask(tree, window, has_windows=set(windows.values()) != {None})
        visible = tree_mask(tree, window)
        if implementation == "sdpa":
            return visible if is_compiled else with_blocks(visible, tree.ends)
        dtype = extract_model_from_parallel(model).get_input_embeddings().weight.dtype
        return torch.zeros((), dtype=dtype, device=visible.device).where(visible, torch.finfo(dtype).min)

    masks = {layer: mask(window) for layer, window in windows.items()}
    return {
        "input_ids": tree.input_ids[None],
        "position_ids": tree.position_ids[None],
        "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
        "use_cache": False,
    }


def nodes_at_once(model: Any) -> int | None:
    """Return the number of nodes up to which trees run in one forward; None, all, with FlexAttention."""
    return None if getattr(text_config(model), "_attn_implementation", None) == FLEX else DENSE_NODES


def tree_mask(tree: TokenTree, window: int | None = None) -> Tensor:
    """Return the mask of a tree, `[1, 1, S, S]` bool: True from a node to its ancestors and itself, in a window."""
    number = torch.arange(len(tree.ends), device=tree.ends.device)
    visible = (number <= number[:, None]) & (number[:, None] < tree.ends)
    if window is not None:
        visible &= tree.position_ids > tree.position_ids[:, None] - window
    return visible[None, None]


def has_full_attention(config: Any) -> bool:
    """Return whether every token attends to all tokens before it in all layers, according to the configuration."""
    return set(getattr(config, "layer_types", None) or [FULL]) == {FULL} and set(_windows(config).values()) == {None}


def text_config(model: Any) -> Any:
    """Return the configuration of the language model in a model that may be wrapped; None if there is none."""
    config: Any = getattr(extract_model_from_parallel(model), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _windows(config: Any) -> dict[str, int | None]:
    """Return the window of attention of each layer type; None if a token sees all before it."""
    window = getattr(config, "sliding_window", None)
    if getattr(config, "use_sliding_window", True) is False:
        window = None
    types = set(getattr(config, "layer_types", None) or ()) & {FULL, SLIDING}
    if types:
        return {layer: window if layer == SLIDING else None for layer in sorted(types)}
    return {FULL if window is None else SLIDING: window}


def _block_mask(tree: TokenTree, window: int | None, has_windows: bool) -> Any:
    """Return the `BlockMask` of a tree, computed from the extremes of its blocks and not from a mask `[S, S]`."""
    from torch.nn.attention.flex_attention import BlockMask

    ends, depths, size = tree.ends, tree.position_ids, len(tree.ends)
    horizon = depths - (size if window is None else window)  # a node sees what is deeper than its horizon

    def sees(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key])

    def sees_near(batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < ends[key]) & (depths[key] > horizon[query])

    def blocks(values: Tensor) -> Tensor:
        return functional.pad(values, (0, -size % BLOCK)).view(-1, BLOCK)

    starts = torch.arange(0, size, BLOCK, device=ends.device)[:, None]
    diagonal, before = starts == starts.T, starts.T < starts  # query blocks x key blocks
    any_seen = before & (blocks(ends).amax(1) > starts)
    all_seen = before & (blocks(ends).amin(1) >= starts + BLOCK)
    if has_windows:
        any_seen &= blocks(depths).amax(1) > blocks(horizon).amin(1)[:, None]
        all_seen &= blocks(depths).amin(1) > blocks(horizon).amax(1)[:, None]
    partial = (any_seen & ~all_seen) | diagonal
    mask = sees_near if has_windows else sees
    return BlockMask.from_kv_blocks(
        *_ordered(partial), *_ordered(all_seen), BLOCK_SIZE=BLOCK, mask_mod=mask, seq_lengths=(size, size)
    )


def _ordered(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """Return number `[1, 1, Q]` and columns `[1, 1, Q, K]` of the blocks in every row, these first."""
    columns = torch.argsort(blocks.int(), dim=1, descending=True, stable=True)
    return blocks.sum(1, dtype=torch.int32)[None, None], columns.int()[None, None]


def _flex_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, *args: Any, **settings: Any
) -> tuple[Tensor, Tensor | None]:
    """Run FlexAttention in one type: under autocast, rotary positions leave queries and keys in float32."""
    return flex_attention_forward(module, query.to(value.dtype), key.to(value.dtype), value, *args, **settings)


def _allow_graphs() -> None:
    """Let torch compile all forms of attention that a training needs.

    With and without gradients, one length and any, one block and several, trees and rows are compiled apart. Beyond the
    limit of torch, 8, attention would compute all scores `[S, S]` of each head, at many times the cost.
    """
    config: Any = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, GRAPHS)
