"""Targets behind prompts: the batch on which a decoder-only model learns to continue what a processor has encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from dair_hf.data.collator import LABELS
from dair_hf.losses.per_sample import IGNORE_INDEX
from dair_hf.vqa.inputs.collator import ATTENTION_MASK, INPUT_IDS

TOKEN_TYPES = "token_type_ids"


def prompts_with_targets(
    prompts: Mapping[str, Tensor], targets: Sequence[Sequence[int]], pad_token_id: int
) -> dict[str, Tensor]:
    """Prompts continued by their targets, and labels that hold the targets alone.

    The other columns that go along with the tokens keep, on the targets, the value of the prompt's last token: that is
    what they say of text after the image (it is attended to, is no part of the image, sees the image). PaliGemma is the
    exception: its `token_type_ids` are 0 on prompt and image alike and 1 on what is to be predicted, while in Gemma 3
    they are 1 on the image and 0 on all text. They are told apart by whether the prompts have any 1.

    Args:
        prompts: `input_ids` and `attention_mask` `[N, T]` int64, padded on the right, and whatever else the processor
            gave, such as `pixel_values`.
        targets: Token ids of N targets; an empty one leaves its row as it is.
        pad_token_id: What fills the right side.

    Returns:
        The columns of the prompts, those of tokens with all that is needed for the longest row, and `labels`, -100
        everywhere but on the targets.

    Example:
        >>> prompts = {"input_ids": torch.tensor([[5, 6], [7, 0]]), "attention_mask": torch.tensor([[1, 1], [1, 0]])}
        >>> batch = prompts_with_targets(prompts, [[8], [9, 9, 3]], pad_token_id=0)
        >>> batch["input_ids"]
        tensor([[5, 6, 8, 0],
                [7, 9, 9, 3]])
        >>> batch["labels"]
        tensor([[-100, -100,    8, -100],
                [-100,    9,    9,    3]])
    """
    starts = prompts[ATTENTION_MASK].sum(1)
    ends = starts + torch.tensor([len(target) for target in targets])
    place = torch.arange(int(ends.max()))
    is_target = (place >= starts[:, None]) & (place < ends[:, None])
    batch = {
        name: _continued(name, values, starts, is_target) if _is_of_tokens(name, values, prompts) else values
        for name, values in prompts.items()
    }
    ids = torch.tensor([token for target in targets for token in target], dtype=torch.long)
    batch[INPUT_IDS] = batch[INPUT_IDS].masked_fill(place >= ends[:, None], pad_token_id).masked_scatter(is_target, ids)
    batch[LABELS] = torch.full(is_target.shape, IGNORE_INDEX).masked_scatter(is_target, ids)
    return batch


def _is_of_tokens(name: str, values: Tensor, prompts: Mapping[str, Tensor]) -> bool:
    # A prompt may have as many tokens as pixels have channels.
    return values.shape[:2] == prompts[INPUT_IDS].shape and not name.startswith("pixel")


def _continued(name: str, values: Tensor, starts: Tensor, is_target: Tensor) -> Tensor:
    last = values[torch.arange(len(starts)), starts - 1]
    if name == TOKEN_TYPES and not values.any():
        last = torch.ones_like(last)
    width = is_target.shape[1]
    whole = values.new_zeros((len(values), width, *values.shape[2:]))
    kept = min(width, values.shape[1])
    whole[:, :kept] = values[:, :kept]
    mask = is_target.view(*is_target.shape, *[1] * (values.ndim - 2))
    return torch.where(mask, last[:, None], whole)
