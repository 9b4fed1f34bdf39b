"""Settings of a call of `generate`: the generation config that takes effect, end tokens and positions."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from dair_hf.errors import DataError


def effective_config(model: Any, arguments: Mapping[str, Any]) -> GenerationConfig:
    """Return a copy of the generation config that takes effect in `model.generate(**arguments)`.

    As in `generate`, keyword arguments take precedence over a passed `generation_config`, and its values that are not
    None over those of the model.
    """
    config: GenerationConfig = copy.deepcopy(model.generation_config)
    passed = arguments.get("generation_config")
    for name, value in ({} if passed is None else vars(passed)).items():
        if value is not None and not name.startswith("_"):
            setattr(config, name, copy.deepcopy(value))
    config.update(**{name: value for name, value in arguments.items() if name != "generation_config"})
    if (config.num_return_sequences or 1) > 1:  # answers would belong to other views
        raise DataError(f"generation: expected num_return_sequences=1, got {config.num_return_sequences}")
    return config


def end_tokens(config: GenerationConfig) -> set[int]:
    """Return the tokens that end an answer."""
    end = config.eos_token_id
    return set(end) if isinstance(end, list) else set() if end is None else {end}


def virtual_tokens(model: Any) -> int:
    """Return the number of positions that adapters of a model take before each row, as prefix tuning does; often 0."""
    adapter: Any = getattr(model, "active_peft_config", None)
    return int(adapter.num_virtual_tokens) if getattr(adapter, "is_prompt_learning", False) else 0


def decoder_positions(model: Any) -> int | None:
    """Return the number of positions of a model with position embeddings; None without such a limit.

    Rotary positions are computed for any length. Virtual tokens of adapters take some of the positions.
    """
    config: Any = getattr(model, "config", None)
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    if getattr(config, "rope_parameters", None):
        return None
    names = ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings")
    limits = (getattr(config, name, None) for name in names)
    return next((limit - virtual_tokens(model) for limit in limits if isinstance(limit, int) and limit > 0), None)
