"""Settings of a call of `generate`: the generation config that takes effect, its start and its end tokens."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Mapping
from typing import Any

import numpy as np
from transformers import GenerationConfig, GenerationMixin

from dair_hf.errors import DataError

LENGTHS = ("max_new_tokens", "max_length")
COUNTS = ("num_beams", "num_return_sequences", "max_length")  # `GenerationConfig.validate` lets 0 and less pass


def virtual_tokens(model: Any) -> int:
    """Return the number of positions that adapters of a model take before each row, as prefix tuning does; often 0.

    Example:
        >>> from peft import PrefixTuningConfig, get_peft_model
        >>> from transformers import GPT2Config, GPT2LMHeadModel
        >>> model = GPT2LMHeadModel(GPT2Config(vocab_size=8, n_embd=4, n_layer=1, n_head=1))
        >>> virtual_tokens(model)
        0
        >>> virtual_tokens(get_peft_model(model, PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)))
        3
    """
    adapter: Any = getattr(model, "active_peft_config", None)
    return int(adapter.num_virtual_tokens) if getattr(adapter, "is_prompt_learning", False) else 0


def effective_config(model: Any, arguments: Mapping[str, Any]) -> GenerationConfig:
    """Return the generation config that takes effect in `model.generate(**arguments)`.

    As in `generate`, keyword arguments take precedence over a passed `generation_config`, and its values that are not
    None over those of the model.

    Args:
        model: A language model with its generation config.
        arguments: Arguments of `generate`; those that are no settings are ignored.

    Returns:
        A copy; the generation config of the model is unchanged.

    Raises:
        DataError: A number of beams, of answers or of tokens is below 1, or several answers are asked for.
        ValueError: Another setting is out of range.

    Example:
        >>> effective_config(model, {"generation_config": GenerationConfig(num_beams=2)}).num_beams  # doctest: +SKIP
        2
    """
    config: GenerationConfig = copy.deepcopy(model.generation_config)
    passed = arguments.get("generation_config")
    for name, value in ({} if passed is None else vars(passed)).items():
        if value is not None and not name.startswith("_"):
            setattr(config, name, copy.deepcopy(value))
    config.update(**{name: value for name, value in arguments.items() if name != "generation_config"})
    for name in COUNTS:
        value = getattr(config, name)
        if value is not None and (not isinstance(value, (int, np.integer)) or value < 1):
            raise DataError(f"generation: {name}={value!r} is out of range; give an integer >= 1, or leave it out")
    if (config.num_return_sequences or 1) > 1:
        raise DataError(
            f"generation: num_return_sequences={config.num_return_sequences}: a view has one answer; leave it out"
        )
    return config


def unknown_arguments(model: Any, arguments: Mapping[str, Any]) -> list[str]:
    """Return the names of arguments that are neither settings of generation nor inputs of a language model."""
    functions = (GenerationMixin.generate, model.generate, model.forward) if arguments else ()
    taken = {name for function in functions for name in inspect.signature(function).parameters}
    settings = getattr(model, "generation_config", None)
    return [name for name in arguments if name not in taken and not hasattr(settings, name)]


def passed_setting(arguments: Mapping[str, Any], name: str) -> Any:
    """Return a setting that a call of `generate` passes, by keyword or in its generation config; None if neither."""
    return arguments[name] if name in arguments else getattr(arguments.get("generation_config"), name, None)


def with_limit(arguments: Mapping[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
    """Return arguments of `generate` with another limit of the length of an answer; None: without one."""
    limited = {name: value for name, value in arguments.items() if name not in LENGTHS}
    config = limited.get("generation_config")
    if config is None:
        return limited if max_new_tokens is None else {**limited, "max_new_tokens": max_new_tokens}
    # In the config, since `generate` warns of settings that are passed beside one.
    config = copy.deepcopy(config)
    config.max_new_tokens, config.max_length = max_new_tokens, None
    return {**limited, "generation_config": config}


def end_tokens(config: GenerationConfig) -> set[int]:
    """Return the tokens that end an answer.

    Example:
        >>> end_tokens(GenerationConfig(eos_token_id=[2, 5]))
        {2, 5}
    """
    end = config.eos_token_id
    return set(end) if isinstance(end, list) else set() if end is None else {end}


def decoder_start(model: Any, config: GenerationConfig) -> int:
    """Return the token with which generation starts the decoder of an encoder-decoder."""
    start = config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id
    if start is None:
        raise DataError(
            f"{type(model).__name__}: generation has no token to start the decoder with; set "
            "model.generation_config.decoder_start_token_id"
        )
    return int(start)
