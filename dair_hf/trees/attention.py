"""Attention masks of prefix trees, for the attention implementations and layer types of transformers.

The kernels of torch with a mask compute all S x S scores, of which a tree of dialogue turns shows a small part.

On a CPU: Nodes are laid out depth first, so that all that nodes `a, ..., b - 1` see before node a are the ancestors of
node a. Such blocks of nodes run as attention of their own (`_TreeMask`).

On a GPU: All trees run in one forward, since small kernels wait for the host, in sequences whose length makes dense
attention cheapest; where trees are so large that FlexAttention costs less, it takes the place of the kernels of torch
(`_SparseMask`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as functional
from accelerate.utils import extract_model_from_parallel
from accelerate.utils.other import has_compiled_regions, is_compiled_module
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._pytree import tree_map_only
from torch.utils._triton import has_triton
from transformers import AttentionInterface
from transformers.integrations.flex_attention import flex_attention_forward
from transformers.utils import logging

from dair_hf.errors import DataError
from dair_hf.trees.forest import BLOCK, AttentionCosts, TokenTree

logger = logging.get_logger(__name__)

FLEX = "flex_attention"
# Nodes of small trees that run in one forward with dense masks, whose size grows with their square.
DENSE_NODES = 1024
# Operations a second of attention with dense masks and of FlexAttention, relative to those of matrix products, in
# training in bfloat16 on a GPU: estimated from runs on one H200 (benchmarks/gpu.py measures them, part "attention").
DENSE_SPEED, FLEX_SPEED = 0.3, 0.2
DROPOUTS = ("attention_dropout", "attn_pdrop")  # names of the dropout of attention, which FlexAttention lacks
GRAPHS = 64  # compiled forms of FlexAttention
SMALLEST = 128  # nodes of a block on a CPU
MOST = 8  # blocks of a tree; each holds a copy of the keys and values of its ancestors until the backward pass
FULL, SLIDING = "full_attention", "sliding_attention"  # names of layer types in transformers


def attention_inputs(tree: TokenTree, model: Any, sequences: int = 1, is_sparse: bool = False) -> dict[str, Any]:
    """Return the inputs of a decoder-only model for a tree: token ids and positions `[K, S / K]`, and its mask.

    The mask is `[K, 1, S / K, S / K]`, bool for sdpa and additive for eager attention, a `BlockMask` for FlexAttention,
    and a dictionary of masks by layer type for a model with full and sliding attention.
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
    is_compiled = _is_compiled(model)
    depth = len(tree.ends)  # an upper limit of the depth, without asking the device

    def mask(window: int | None) -> Any:
        window = None if window is None or window >= depth else window
        if implementation == FLEX:
            return _block_mask(tree, window, has_windows=set(windows.values()) != {None})
        if is_sparse and not is_compiled:
            return _SparseMask.of(tree, window, _block_mask(tree, window, has_windows=set(windows.values()) != {None}))
        visible = _tree_mask(tree, window, sequences)
        if implementation == "sdpa":
            return visible if is_compiled or sequences > 1 else _with_blocks(visible, tree.ends)
        dtype = extract_model_from_parallel(model).get_input_embeddings().weight.dtype
        return torch.zeros((), dtype=dtype, device=visible.device).where(visible, torch.finfo(dtype).min)

    masks = {layer: mask(window) for layer, window in windows.items()}
    return {
        "input_ids": tree.input_ids.view(sequences, -1),
        "position_ids": tree.position_ids.view(sequences, -1),
        "attention_mask": masks if len(masks) > 1 else next(iter(masks.values())),
        "use_cache": False,
    }


def nodes_at_once(model: Any, device: str = "cpu", is_compiled: bool = False) -> int | AttentionCosts:
    """Return the number of nodes up to which trees run in one forward, or the costs by which they are laid out."""
    config = text_config(model)
    implementation = getattr(config, "_attn_implementation", None)
    if implementation == FLEX:
        return AttentionCosts(None, 1.0)
    if device != "cuda" or config is None:
        return DENSE_NODES
    size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    weights = extract_model_from_parallel(model).num_parameters(exclude_embeddings=True) / config.num_hidden_layers
    experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None)
    if experts:  # of which a node uses some
        weights *= getattr(config, "num_experts_per_tok", experts) / experts
    # A node takes 6 operations per weight of a layer, and 12 per node it attends to and element of all heads.
    equal = weights / (2 * config.num_attention_heads * size)
    has_dropout = any(getattr(config, name, 0) for name in DROPOUTS)
    skips = implementation == "sdpa" and not is_compiled and not has_dropout and has_triton()
    return AttentionCosts(DENSE_SPEED * equal, FLEX_SPEED * equal if skips else None)


def _tree_mask(tree: TokenTree, window: int | None = None, sequences: int = 1) -> Tensor:
    """Return the mask of a tree, `[K, 1, S / K, S / K]` bool: from a node to its ancestors and itself, in a window."""
    number = torch.arange(len(tree.ends), device=tree.ends.device).view(sequences, 1, -1)
    visible = (number <= number.mT) & (number.mT < tree.ends.view(sequences, 1, -1))
    if window is not None:
        depth = tree.position_ids.view(sequences, 1, -1)
        visible &= depth > depth.mT - window
    return visible[:, None]


def has_full_attention(config: Any) -> bool:
    """Return whether every token attends to all tokens before it in all layers, according to the configuration."""
    return set(getattr(config, "layer_types", None) or [FULL]) == {FULL} and set(_windows(config).values()) == {None}


def text_config(model: Any) -> Any:
    """Return the configuration of the language model in a model that may be wrapped; None if there is none."""
    config: Any = getattr(extract_model_from_parallel(model), "config", None)
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _is_compiled(model: Any) -> bool:
    modules = (model, getattr(model, "module", model))
    return any(is_compiled_module(module) or has_compiled_regions(module) for module in modules)


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


METADATA = {getattr(Tensor, name).__get__ for name in ("shape", "dtype", "device", "ndim", "requires_grad", "is_cuda")}


class _SparseMask(Tensor):
    """Mask of a tree of S nodes with which `torch.nn.functional.scaled_dot_product_attention` runs as FlexAttention.

    It holds no `[1, 1, S, S]` elements. A function besides attention gets the dense mask, which it then computes.
    """

    blocks: Any
    dense: Callable[[], Tensor]

    @classmethod
    def of(cls, tree: TokenTree, window: int | None, blocks: Any) -> _SparseMask:
        """Return the mask of a tree."""
        size = len(tree.ends)
        made = torch.ones(1, 1, 1, 1, dtype=torch.bool, device=tree.ends.device).expand(-1, -1, size, size)
        made = made.as_subclass(cls)
        made.blocks, made.dense = blocks, partial(_tree_mask, tree, window)
        return made

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run a function of torch on the mask."""
        kwargs = kwargs or {}
        with torch._C.DisableTorchFunctionSubclass():
            if function is scaled_dot_product_attention:
                return _sparse_attention(*args, **kwargs)
            if function in METADATA:
                return function(*args, **kwargs)
            if function is Tensor.detach:  # by activation checkpointing
                return args[0]
            args, kwargs = tree_map_only(cls, lambda mask: mask.dense(), (args, kwargs))
            return function(*args, **kwargs)


def _sparse_attention(
    query: Tensor, key: Tensor, value: Tensor, attn_mask: Any, dropout_p: float = 0.0, *args: Any, **settings: Any
) -> Tensor:
    if dropout_p or args or not query.shape[-2] == key.shape[-2] == attn_mask.shape[-1]:
        return scaled_dot_product_attention(query, key, value, attn_mask.dense(), dropout_p, *args, **settings)
    attended: Tensor = _compiled_flex_attention()(
        query.to(value.dtype), key.to(value.dtype), value, block_mask=attn_mask.blocks, scale=settings.get("scale"),
        enable_gqa=settings.get("enable_gqa", False),
    )  # fmt: skip
    return attended


@cache
def _compiled_flex_attention() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    _allow_graphs()
    logger.warning("FlexAttention is compiled for prefix trees in the first steps, which takes 5 to 60 seconds.")
    return torch.compile(flex_attention)


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
    return _TreeMask.of(mask, _blocks_of(mask, ends)) if mask.device.type == "cpu" and len(ends) > SMALLEST else mask


def _blocks_of(mask: Tensor, ends: Tensor) -> _Blocks:
    """Return the blocks of a tree; arguments as in `_with_blocks`."""
    nodes = torch.arange(len(ends), device=ends.device).split(max(SMALLEST, -(-len(ends) // MOST)))
    keys = [torch.cat([(ends[: own[0]] > own[0]).nonzero()[:, 0], own]) for own in nodes]
    masks = [rows.index_select(3, seen) for rows, seen in zip(mask.split(len(nodes[0]), 2), keys, strict=True)]
    return _Blocks(list(map(len, nodes)), list(map(len, keys)), torch.cat(keys), masks)
