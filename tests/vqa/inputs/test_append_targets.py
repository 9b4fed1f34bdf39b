"""Prompts with appended targets, entry by entry."""

from __future__ import annotations

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dair_hf.vqa.inputs.processors import _append_targets

PROMPTS = {
    "input_ids": torch.tensor([[5, 6, 7], [8, 0, 0]]),
    "attention_mask": torch.tensor([[1, 1, 1], [1, 0, 0]]),
}


def test_batch_in_numbers() -> None:
    batch = _append_targets(PROMPTS, [[9], [4, 3]], pad_token_id=0)
    assert {name: values.tolist() for name, values in batch.items()} == {
        "input_ids": [[5, 6, 7, 9], [8, 4, 3, 0]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "labels": [[-100, -100, -100, 9], [-100, 4, 3, -100]],
    }
    assert {values.dtype for values in batch.values()} == {torch.int64}


def test_other_token_columns_repeat_their_last_value() -> None:
    prompts = PROMPTS | {
        "mm_token_type_ids": torch.tensor([[1, 1, 0], [0, 0, 0]]),
        "cross_attention_mask": torch.tensor([[[1, 0], [1, 0], [1, 1]], [[0, 1], [0, 0], [0, 0]]]),
    }
    batch = _append_targets(prompts, [[9], [4, 3]], pad_token_id=0)
    assert batch["mm_token_type_ids"].tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]
    assert batch["cross_attention_mask"].tolist() == [
        [[1, 0], [1, 0], [1, 1], [1, 1]],
        [[0, 1], [0, 1], [0, 1], [0, 0]],
    ]


def test_token_types_of_both_families() -> None:
    """Targets get 1 if the prompt has no 1 (PaliGemma), and 0 if 1 marks the image (Gemma 3)."""
    prefix = PROMPTS | {"token_type_ids": torch.zeros(2, 3, dtype=torch.long)}
    found = _append_targets(prefix, [[9], [4, 3]], pad_token_id=0)["token_type_ids"]
    assert found.tolist() == [[0, 0, 0, 1], [0, 1, 1, 0]]
    marked = PROMPTS | {"token_type_ids": torch.tensor([[1, 1, 0], [0, 0, 0]])}
    found = _append_targets(marked, [[9], [4, 3]], pad_token_id=0)["token_type_ids"]
    assert found.tolist() == [[1, 1, 0, 0], [0, 0, 0, 0]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=1, max_size=6))
def test_every_row_is_prompt_and_target(lengths: list[tuple[int, int]]) -> None:
    prompts = [[10 * row + place for place in range(1, size + 1)] for row, (size, _) in enumerate(lengths, 1)]
    targets = [[1000 + 10 * row + place for place in range(size)] for row, (_, size) in enumerate(lengths)]
    width = max(map(len, prompts))
    batch = _append_targets(
        {
            "input_ids": torch.tensor([prompt + [0] * (width - len(prompt)) for prompt in prompts]),
            "attention_mask": torch.tensor([[1] * len(prompt) + [0] * (width - len(prompt)) for prompt in prompts]),
        },
        targets,
        pad_token_id=0,
    )
    longest = max(len(prompt) + len(target) for prompt, target in zip(prompts, targets, strict=True))
    for row, (prompt, target) in enumerate(zip(prompts, targets, strict=True)):
        spare = longest - len(prompt) - len(target)
        assert batch["input_ids"][row].tolist() == prompt + target + [0] * spare
        assert batch["attention_mask"][row].tolist() == [1] * (longest - spare) + [0] * spare
        assert batch["labels"][row].tolist() == [-100] * len(prompt) + target + [-100] * spare
