"""Requirements of a model on encoded texts: limits, labels, and the tokens around prompts and targets."""

from __future__ import annotations

from typing import Any

from torch import nn

from dair_hf.data.texts.encoder import ModelNeeds
from dair_hf.errors import DataError
from dair_hf.evaluation.generation_settings import end_tokens, virtual_tokens
from dair_hf.evaluation.target_tokens import TargetAffixes, added_tokens, target_affixes
from dair_hf.training.sample_loss import LANGUAGE_LOSSES, base_model_of, derived_sample_loss

UNLIMITED = 10**6  # `tokenizer.model_max_length` of a tokenizer that knows no limit is 10^30


def model_needs(model: Any, tokenizer: Any, loss: str | None, max_length: int | None = None) -> ModelNeeds:
    """Return what a model needs of encoded texts."""
    base = base_model_of(model)
    limit, name = max_positions(model), type(base).__name__
    if max_length is not None:
        if limit is not None and max_length > limit:
            raise DataError(f"max_length={max_length}: {name} has {limit} positions; give at most as many, or leave it")
        limit = max_length
    elif limit is None and tokenizer.model_max_length < UNLIMITED:
        limit = tokenizer.model_max_length
    if loss not in LANGUAGE_LOSSES:
        config = base.config
        # A model of another loss may keep its number of classes elsewhere.
        is_known = loss != "classification" or loss == derived_sample_loss(base)
        return ModelNeeds(loss, name, limit, dict(config.label2id or {}), config.num_labels if is_known else 0)
    affixes: TargetAffixes = target_affixes(base, tokenizer)
    ends = end_tokens(base.generation_config)
    if tokenizer.eos_token_id is not None:
        ends = {*ends, tokenizer.eos_token_id}
    before, _ = added_tokens(tokenizer)
    return ModelNeeds(loss, name, limit, {}, 0, before, affixes.start, affixes.end, frozenset(ends))


def max_positions(model: Any) -> int | None:
    """Return the number of positions of a model, possibly with adapters; None if there is no limit."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not isinstance(positions, int) or positions < 1:
        return None
    # RoBERTa and its relatives keep the positions up to that of padding free.
    tables = (module for name, module in model.named_modules() if "position" in name and type(module) is nn.Embedding)
    unused = max((table.padding_idx + 1 for table in tables if table.padding_idx is not None), default=0)
    return positions - unused - virtual_tokens(model)
