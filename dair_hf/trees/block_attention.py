"""Attention of trees on a CPU, in blocks of neighbouring nodes that read the keys of their ancestors alone.

With a mask, the kernel of torch computes all S x S scores, of which a tree of dialogue turns shows a small part. Nodes
are laid out depth first, so that all that nodes `a, ..., b - 1` see before node a are the ancestors of node a. Each
such block runs as attention of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

SMALLEST = 128  # nodes of a block
MOST = 8  # blocks of a tree; each holds a copy of the keys and values of its ancestors until the backward pass


class Blocks(NamedTuple):
    """Blocks of a tree of S nodes."""

    queries: list[int]
    counts: list[int]
    keys: Tensor
    masks: list[Tensor]


class TreeMask(Tensor):
    """Mask of a tree, `[1, 1, S, S]` bool, with which `torch.nn.functional.scaled_dot_product_attention` uses blocks.

    Anything that a model makes from it is a plain mask, and so is it after a change in place, except in inference mode.
    `detach` keeps the blocks, since activation checkpointing passes detached inputs to the forward that it repeats.
    """

    blocks: Blocks
    version: int  # of the mask that the blocks belong to
    additive: dict[torch.dtype, list[Tensor]]  # masks of the blocks by type, as numbers to add to scores

    @classmethod
    def of(cls, mask: Tensor, blocks: Blocks) -> TreeMask:
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


def with_blocks(mask: Tensor, ends: Tensor) -> Tensor:
    """Return the mask of a tree with its blocks; a small mask, or one on another device than a CPU, as it is."""
    return TreeMask.of(mask, blocks_of(mask, ends)) if mask.device.type == "cpu" and len(ends) > SMALLEST else mask


def blocks_of(mask: Tensor, ends: Tensor) -> Blocks:
    """Return the blocks of a tree; arguments as in `with_blocks`."""
    nodes = torch.arange(len(ends), device=ends.device).split(max(SMALLEST, -(-len(ends) // MOST)))
    keys = [torch.cat([(ends[: own[0]] > own[0]).nonzero()[:, 0], own]) for own in nodes]
    masks = [rows.index_select(3, seen) for rows, seen in zip(mask.split(len(nodes[0]), 2), keys, strict=True)]
    return Blocks(list(map(len, nodes)), list(map(len, keys)), torch.cat(keys), masks)
