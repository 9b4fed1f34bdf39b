"""Prompts that are prefilled as trees: the same answers as without, for prompts of any lengths."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import GenerationConfig

from dair_hf import DataError
from dair_hf.evaluation.generation import pad_left
from dair_hf.trees import prefill
from dair_hf.trees.prefill import PromptTrees, can_prefill
from tests.fixtures import tiny
from tests.fixtures.dialog_rows import dialog_rows
from tests.trees.test_exactness import build


@pytest.mark.parametrize("name", ["llama", "gpt2", "qwen3", "phi"])
@pytest.mark.parametrize("related", [1, 3, 16])
@pytest.mark.parametrize("nodes_at_once", [1024, 20])
def test_answers_are_those_of_separate_prompts(
    name: str, related: int, nodes_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "RELATED", related)
    monkeypatch.setattr(prefill, "ROOM", 3)  # the buffers of the cache grow several times
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
        cache = PromptTrees(model, prompts).cache(
            np.arange(len(prompts)), range(len(prompts)), inputs["input_ids"].shape[1]
        )
        found = model.generate(**inputs, past_key_values=cache, **settings)
    assert torch.equal(found, expected)
    assert len(set(map(tuple, found[:, -10:].tolist()))) > 2


def evaluated(folder: Path, data: Any, model: Any, **settings: Any) -> tuple[list[str], int]:
    """Return the answers of `evaluate_pairs`, and the number of tokens that the model computed."""
    made = tiny.trainer(folder, "gpt2", data, model=model, sample_loss="causal", **settings)
    tokens = 0

    def count(module: Any, inputs: tuple[Any, ...], named: dict[str, Any]) -> None:
        nonlocal tokens
        tokens += named["input_ids"].numel()

    hook = model.register_forward_pre_hook(count, with_kwargs=True)
    answers: list[str] = []

    def judge(said: list[str], wanted: list[str]) -> list[bool]:
        answers.extend(said)
        return [a == b for a, b in zip(said, wanted, strict=True)]

    made.evaluate_pairs(data, judge, max_new_tokens=6)
    hook.remove()
    return answers, tokens


@pytest.mark.parametrize("answers_at_once", [None, 3])
def test_trainer_reads_common_prefixes_once(
    answers_at_once: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "RELATED", 1)
    data = dialog_rows(dialogs=5)
    settings: dict[str, Any] = {"per_device_eval_batch_size": 2, "generation_batch_size": answers_at_once}
    expected, read = evaluated(tmp_path / "rows", data, build("gpt2"), **settings)
    found, read_in_trees = evaluated(tmp_path / "trees", data, build("gpt2"), share_prefixes="dialogue_id", **settings)
    assert found == expected
    assert len(set(found)) > 1
    assert read_in_trees < read


@pytest.mark.parametrize(
    "settings", [{"num_beams": 2}, {"use_cache": False}, {"prompt_lookup_num_tokens": 2}, {"guidance_scale": 1.5}]
)
def test_other_strategies_read_prompts_one_by_one(settings: dict[str, Any]) -> None:
    model, prompt = build("llama"), {"input_ids": [5, 6]}
    assert can_prefill(model, [prompt], model.generation_config)
    assert not can_prefill(model, [prompt], GenerationConfig(**settings))


@pytest.mark.parametrize(
    "prompt", [{"input_ids": []}, {"input_ids": [5, 6], "attention_mask": [0, 1]}, {"input_ids": [5], "pixels": [1]}]
)
def test_prompts_without_plain_text_are_read_one_by_one(prompt: dict[str, Any]) -> None:
    model = build("llama")
    assert not can_prefill(model, [{"input_ids": [5]}, prompt], model.generation_config)


def test_sliding_windows_are_read_one_by_one() -> None:
    model = build("mistral")
    assert not can_prefill(model, [{"input_ids": [5]}], model.generation_config)


def test_inexact_models_are_refused_before_they_answer(tmp_path: Path) -> None:
    data = dialog_rows(dialogs=2)
    with pytest.raises(DataError, match="share_prefixes and FalconForCausalLM cannot be combined"):
        evaluated(tmp_path, data, build("falcon_alibi"), share_prefixes="dialogue_id")
