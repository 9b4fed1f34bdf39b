"""Effective generation config compared with the one that `generate` itself uses."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from dair_hf import DataError
from dair_hf.evaluation.generation_settings import decoder_start, effective_config, with_limit
from tests.fixtures import tiny

COMPARED = (
    "num_beams",
    "eos_token_id",
    "forced_bos_token_id",
    "no_repeat_ngram_size",
    "max_new_tokens",
    "bad_words_ids",
)


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"num_beams": 3, "eos_token_id": [5, 7]},
        {"forced_bos_token_id": None, "max_new_tokens": 2},
        {"generation_config": GenerationConfig(num_beams=2, max_new_tokens=4)},
        {"generation_config": GenerationConfig(no_repeat_ngram_size=2), "max_new_tokens": 5},
        {"generation_config": GenerationConfig(eos_token_id=9), "eos_token_id": None},
    ],
)
def test_the_effective_config_is_that_of_generate(arguments: dict[str, Any]) -> None:
    def used_config(model: Any, input_ids: torch.Tensor, generation_config: GenerationConfig, **kwargs: Any) -> Any:
        return generation_config

    model = tiny.model("gpt2")
    model.generation_config.update(num_beams=1, forced_bos_token_id=6, no_repeat_ngram_size=3, max_length=30)
    before = copy.deepcopy(arguments)
    found = effective_config(model, arguments)
    used = model.generate(torch.tensor([[5]]), custom_generate=used_config, **arguments)
    assert {name: getattr(found, name) for name in COMPARED} == {name: getattr(used, name) for name in COMPARED}
    assert (model.generation_config.num_beams, model.generation_config.forced_bos_token_id) == (1, 6)
    assert str(arguments) == str(before)


def test_a_limit_replaces_both_lengths_where_they_are_given() -> None:
    config = GenerationConfig(max_length=9, num_beams=2)
    found = with_limit({"generation_config": config, "max_new_tokens": 7, "streamer": "s"}, 4)
    assert set(found) == {"generation_config", "streamer"}
    assert [getattr(found["generation_config"], name) for name in ("max_new_tokens", "max_length", "num_beams")] == [
        4,
        None,
        2,
    ]
    assert (config.max_new_tokens, config.max_length) == (None, 9)
    assert with_limit({"max_length": 9, "num_beams": 2}, None) == {"num_beams": 2}


@pytest.mark.parametrize(
    "settings", [{"num_beams": 0}, {"num_beams": -1}, {"num_return_sequences": 0}, {"num_beams": "4"}]
)
@pytest.mark.parametrize("in_config", [True, False])
def test_numbers_below_one_are_refused(settings: dict[str, Any], in_config: bool) -> None:
    (name,) = settings
    passed = {"generation_config": GenerationConfig(**settings)} if in_config else settings
    with pytest.raises(DataError, match=f"^generation: {name}=.* is out of range; give an integer >= 1"):
        effective_config(tiny.model("bart"), passed)


def test_several_answers_per_view_are_refused() -> None:
    with pytest.raises(DataError, match="^generation: num_return_sequences=2: a view has one answer; leave it out"):
        effective_config(tiny.model("bart"), {"num_beams": 2, "num_return_sequences": 2})


def test_the_decoder_start_is_that_of_the_config() -> None:
    assert decoder_start(None, GenerationConfig(decoder_start_token_id=4, bos_token_id=5)) == 4
    assert decoder_start(None, GenerationConfig(bos_token_id=5)) == 5
    with pytest.raises(DataError, match="NoneType: generation has no token to start the decoder with"):
        decoder_start(None, GenerationConfig())
