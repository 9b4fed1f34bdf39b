"""Prompts that are prefilled as trees: the same answers as without, for prompts of any lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dair_hf.evaluation.generation import pad_left
from dair_hf.trees import prefill
from dair_hf.trees.prefill import PromptTrees
from tests.fixtures import tiny
from tests.trees.test_exactness import build


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "phi"])
@pytest.mark.parametrize("related", [1, 3, 16])
@pytest.mark.parametrize("nodes_at_once", [1024, 20])
def test_answers_are_those_of_separate_prompts(
    name: str, related: int, nodes_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "RELATED", related)
    monkeypatch.setattr(prefill, "nodes_at_once", lambda model: nodes_at_once)
    model: Any = build(name)
    model.generation_config.eos_token_id = None
    random = np.random.default_rng(0)
    history = random.integers(4, tiny.VOCAB, 12).tolist()
    prompts = [
        [*history[: random.integers(0, 12)], *random.integers(4, tiny.VOCAB, random.integers(1, 5)).tolist()]
        for _ in range(8)
    ]
    prompts += [[5], prompts[0]]
    settings = {"max_new_tokens": 10, "do_sample": False, "pad_token_id": tiny.PAD}
    with torch.inference_mode():
        expected = model.generate(**pad_left([{"input_ids": prompt} for prompt in prompts], tiny.PAD), **settings)
        inputs = pad_left([{"input_ids": prompt} for prompt in prompts], tiny.PAD)
        cache = PromptTrees(model, prompts).cache(range(len(prompts)), inputs["input_ids"].shape[1])
        found = model.generate(**inputs, past_key_values=cache, **settings)
    assert torch.equal(found, expected)
    assert len(set(map(tuple, found[:, -10:].tolist()))) > 2
