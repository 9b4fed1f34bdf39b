"""Attention masks of prefix trees, for the attention implementations and layer types of transformers.

On a CPU, the kernel of torch with a mask computes all S x S scores, of which a tree of dialogue turns shows a small
part. Nodes are laid out depth first, so that all that nodes `a, ..., b - 1` see before node a are the ancestors of node
a. Such blocks of nodes run as attention of their own (`_TreeMask`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from accelerate.utils import extract_model_from_parallel
from accelerate.utils.other import is_compiled_module
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward

from dair_hf.errors import DataError
from dair_hf.trees.forest import TokenTree

FLEX = "flex_attention"
# Nodes of small trees that run in one forward with dense masks, whose size grows with their square.
DENSE_NODES = 1024
BLOCK = 128  # nodes of a block of FlexAttention
GRAPHS = 32  # compiled forms of FlexAttention
SMALLEST = 128  # nodes of a block on a CPU
MOST = 8  # blocks of a tree; each holds a copy of the keys and values of its ancestors until the backward pass
FULL, SLIDING = "full_attention", "sliding_attention"  # names of layer types in transformers


def attention_inputs(tree: TokenTree, model: Any) -> dict[str, Any]:
    """Return the inputs of a decoder-only model for a tree: token ids and positions `[1, S]`, and its mask.

    The mask is `[1, 1, S, S]`, bool for sdpa and additive for eager attention, a `BlockMask` for FlexAttention, and a
    dictionary of masks by layer type for a model with full and sliding attention.
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
            return visible if is_compiled else _with_blocks(visible, tree.ends)
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


class _Blocks(NamedTuple):
    """Blocks of a tree of S nodes."""

    queries: list[int]
    counts: list[int]
    keys: Tensor
    masks: list[Tensor]


class _TreeMask(Tensor):
    """Mask of a tree, `[1, 1, S, S]` bool, with which `torch.nn.functional.scaled_dot_product_attention` uses blocks.

    Anything that a model makes from it is a plain mask, and so is it after a change in place, except in inference mode.
    `detach` keeps the blocks, since activation checkpointing passes detached inputs to the forward that it repeats.
    """

    blocks: _Blocks
    version: int  # of the mask that the blocks belong to
    additive: dict[torch.dtype, list[Tensor]]  # masks of the blocks by type, as numbers to add to scores

    @classmethod
    def of(cls, mask: Tensor, blocks: _Blocks) -> _TreeMask:
        """Return a view of a mask, with its blocks."""
        made = mask.as_subclass(cls)
        made.blocks, made.version, made.additive = blocks, _version(made), {}
        return made

    def of_blocks(self, dtype: torch.dtype) -> list[Tensor]:
        """Return the masks of the blocks as numbers, once for all layers; torch would convert them in each call."""
        if dtype not in self.additive:
            lowest = torch.tensor(-torch.inf, dtype=dtype)
            self.additive[dtype] = [torch.zeros((), dtype=dtype).where(mask, lowest) for mask in self.blocks.masks]
        return self.additive[dtype]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch on the mask."""
        with torch._C.DisableTorchFunctionSubclass():
            if function is scaled_dot_product_attention:
                return _attention(*args, **(kwargs or {}))
            result = function(*args, **(kwargs or {}))
            if function is Tensor.detach:
                result = result.as_subclass(cls)
                vars(result).update(vars(args[0]))  # also the version, which both count together
        return result


def _attention(query: Tensor, key: Tensor, value: Tensor, attn_mask: Any = None, *args: Any, **settings: Any) -> Tensor:
    size = attn_mask.shape[-1]
    if _version(attn_mask) != attn_mask.version or not query.shape[-2] == key.shape[-2] == size:
        plain = attn_mask.as_subclass(Tensor)
        return scaled_dot_product_attention(query, key, value, plain, *args, **settings)
    blocks, query, key = attn_mask.blocks, query.to(value.dtype), key.to(value.dtype)  # float32 under autocast
    keys, values = (states.index_select(-2, blocks.keys).split(blocks.counts, -2) for states in (key, value))
    masks = attn_mask.of_blocks(query.dtype)
    parts = zip(query.split(blocks.queries, -2), keys, values, masks, strict=True)
    return torch.cat([scaled_dot_product_attention(*part, *args, **settings) for part in parts], -2)


def _version(mask: Tensor) -> int:
    """Return the number of changes in place, which torch does not count in inference mode."""
    return 0 if mask.is_inference() else mask._version


def _with_blocks(mask: Tensor, ends: Tensor) -> Tensor:
    """Return the mask of a tree with its blocks; a small mask, or one on another device than a CPU, as it is."""
    return _TreeMask.of(mask, blocks_of(mask, ends)) if mask.device.type == "cpu" and len(ends) > SMALLEST else mask


def blocks_of(mask: Tensor, ends: Tensor) -> _Blocks:
    """Return the blocks of a tree; arguments as in `_with_blocks`."""
    nodes = torch.arange(len(ends), device=ends.device).split(max(SMALLEST, -(-len(ends) // MOST)))
    keys = [torch.cat([(ends[: own[0]] > own[0]).nonzero()[:, 0], own]) for own in nodes]
    masks = [rows.index_select(3, seen) for rows, seen in zip(mask.split(len(nodes[0]), 2), keys, strict=True)]
    return _Blocks(list(map(len, nodes)), list(map(len, keys)), torch.cat(keys), masks)
