"""What the benchmarks of single steps run: a BART-shaped model and a batch of random pairs."""

from __future__ import annotations

from typing import Any

import torch
from transformers import BartConfig, BartForConditionalGeneration


def bart(vocabulary: int, width: int, layers: int, heads: int) -> BartForConditionalGeneration:
    """As many layers on both sides, feed-forward layers four times as wide; the same weights each time."""
    torch.manual_seed(0)
    shape: dict[str, Any] = {}
    for side in ("encoder", "decoder"):
        shape |= {f"{side}_layers": layers, f"{side}_ffn_dim": 4 * width, f"{side}_attention_heads": heads}
    return BartForConditionalGeneration(BartConfig(vocab_size=vocabulary, d_model=width, **shape))


def random_pairs(pairs: int, source: int, target: int, vocabulary: int) -> dict[str, Any]:
    """A batch `[pairs, 2, ...]` without padding."""
    drawn = torch.Generator().manual_seed(0)
    return {
        "input_ids": torch.randint(4, vocabulary, (pairs, 2, source), generator=drawn),
        "attention_mask": torch.ones(pairs, 2, source, dtype=torch.int64),
        "labels": torch.randint(4, vocabulary, (pairs, 2, target), generator=drawn),
        "view_mask": torch.ones(pairs, 2, dtype=torch.bool),
    }
