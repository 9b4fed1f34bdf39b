"""Attention of trees on a CPU, in blocks of neighbouring nodes that read the keys of their ancestors alone.

With a mask, the kernel of torch computes all S x S scores, of which a tree of dialogue turns shows about a sixth. Nodes
are laid out depth first, so that all that nodes `a, ..., b - 1` see before node a are the ancestors of node a. Each
such block runs as attention of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS, AttentionInterface

SDPA = "sdpa"
QUERIES = 128  # nodes of a block


class Blocks(NamedTuple):
    """Blocks of a tree of S nodes.

    Attributes:
        queries: Number of nodes of every block; their sum is S.
        counts: Number of nodes that every block sees, its own included.
        keys: These nodes, block after block.
        masks: Which of them each node of a block sees, `[1, 1, queries, counts]` bool.
    """

    queries: list[int]
    counts: list[int]
    keys: Tensor
    masks: list[Tensor]


# By mask. A model that changes its mask, or has attention of its own, finds none and uses the mask.
_BLOCKS: Any = WeakTensorKeyDictionary()


def attend_in_blocks(mask: Tensor, ends: Tensor) -> Tensor:
    """Have sdpa attention run in blocks wherever it is given this very mask, if that is on a CPU.

    Args:
        mask: Mask of a tree, `[1, 1, S, S]` bool.
        ends: End of the subtree of every node, exclusive, `[S]`.

    Returns:
        The mask.
    """
    if mask.device.type == "cpu" and len(ends) > QUERIES:
        _let_sdpa_use_blocks()
        _BLOCKS[mask] = blocks_of(mask, ends)
    return mask


def blocks_of(mask: Tensor, ends: Tensor) -> Blocks:
    """Return the blocks of a tree; arguments as in `attend_in_blocks`.

    Example:
        >>> ends = torch.arange(200).fill_(200)  # one row of 200 tokens
        >>> blocks = blocks_of(torch.ones(1, 1, 200, 200).tril().bool(), ends)
        >>> blocks.queries, blocks.counts
        ([128, 72], [128, 200])
    """
    nodes = torch.arange(len(ends)).split(QUERIES)
    keys = [torch.cat([(ends[: own[0]] > own[0]).nonzero()[:, 0], own]) for own in nodes]
    masks = [rows.index_select(3, seen) for rows, seen in zip(mask.split(QUERIES, 2), keys, strict=True)]
    return Blocks(list(map(len, nodes)), list(map(len, keys)), torch.cat(keys), masks)


@cache
def _let_sdpa_use_blocks() -> None:
    """Register attention in blocks with transformers, once; without blocks, it is that which was registered."""
    AttentionInterface.register(SDPA, _in_blocks(ALL_ATTENTION_FUNCTIONS[SDPA]))


def _in_blocks(sdpa: Callable[..., tuple[Tensor, None]]) -> Callable[..., tuple[Tensor, None]]:
    """Return an attention function of transformers that runs in the blocks of its mask, if there are any."""

    def attention(
        module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **settings: Any
    ) -> tuple[Tensor, None]:
        blocks = None
        if attention_mask is not None and not torch.compiler.is_compiling():
            blocks = _BLOCKS.get(attention_mask)
        if blocks is None or settings.get("position_bias") is not None:
            return sdpa(module, query, key, value, attention_mask, **settings)
        keys, values = (states.index_select(2, blocks.keys).split(blocks.counts, 2) for states in (key, value))
        parts = zip(query.split(blocks.queries, 2), keys, values, blocks.masks, strict=True)
        return torch.cat([sdpa(module, *part, **settings)[0] for part in parts], 1), None

    return attention
