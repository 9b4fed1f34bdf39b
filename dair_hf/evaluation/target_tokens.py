"""Tokens around the text of targets, and labels that generation cannot produce."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers import GenerationConfig, PreTrainedTokenizerBase
from transformers.utils import logging

from dair_hf.errors import DataError
from dair_hf.evaluation.generation_settings import effective_config, end_tokens
from dair_hf.losses.per_sample import IGNORE_INDEX

logger = logging.get_logger(__name__)

ROWS_CHECKED = 4  # enough to distinguish a setting from a faulty row


class _TargetAffixes(NamedTuple):
    """Tokens around the text of every target."""

    start: tuple[int, ...]
    end: tuple[int, ...]


class _Conflict(NamedTuple):
    """First token of a target that generation will not produce, and the setting that forbids it."""

    position: int
    reason: str


def target_affixes(model: Any, tokenizer: PreTrainedTokenizerBase) -> _TargetAffixes:
    """Find the tokens around the text of a target, so that training targets are answers that generation can produce.

    Targets of an encoder-decoder begin with the token that `generate` forces, or else with the tokens of
    `tokenizer(text_target=...)`. They end with a token that ends generation. If a model derives its first decoder input
    from the last label (mBART), the last label is the token with which generation starts the decoder.
    """
    config = model.generation_config
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    if model.config.is_encoder_decoder:
        start, end = added_tokens(tokenizer, text_target=True)
        start = start if config.forced_bos_token_id is None else (config.forced_bos_token_id,)
    # The Trainer adds the end token of the tokenizer to those of generation.
    own = tokenizer.eos_token_id
    ends = end_tokens(config) if own is None else {own, *end_tokens(config)}
    if not ends:  # answers would never end
        raise DataError(f"{type(tokenizer).__name__}: expected an eos_token, or an eos_token_id of the model, got none")
    if not ends.intersection(end):
        end = (min(ends) if own is None else own,)
    first = _decoder_start(config)
    for affixes in (_TargetAffixes(start, end), _TargetAffixes(start, end if first is None else (*end, first))):
        conflict = _start_conflict(model, config, [*affixes.start, *affixes.end])
        if conflict is None:
            return affixes
    assert conflict is not None
    raise DataError(conflict.reason)


def added_tokens(
    tokenizer: PreTrainedTokenizerBase, text_target: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find the special tokens that a tokenizer puts before and after a text, or a target, which may differ."""
    encoded = tokenizer(**{"text_target" if text_target else "text": "a"}, return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    text = [position for position, is_special in enumerate(special) if not is_special] or [0]
    return tuple(ids[: text[0]]), tuple(ids[text[-1] + 1 :])


def check_targets(
    model: Any,
    views: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    *,
    refuse: bool = False,
) -> None:
    """Warn of labels that generation will not produce, whatever the model learns.

    Settings that forbid a label are the start token of the decoder, `forced_bos_token_id`, `suppress_tokens`,
    `begin_suppress_tokens`, `min_length`, `min_new_tokens` and `no_repeat_ngram_size`.

    The first `ROWS_CHECKED` views, or rows of a batch, are checked; `generation` holds arguments of `generate`. With
    `refuse`, an error is raised if every one fails at its first token.
    """
    if getattr(model, "generation_config", None) is None:
        return
    config, causal = effective_config(model, generation or {}), not model.config.is_encoder_decoder
    conflicts, count = [], 0
    for row in rows_of(views)[:ROWS_CHECKED]:
        labels, inputs = _token_ids(row.get("labels")), _token_ids(row.get("input_ids"))
        target = [label for label in labels if label != IGNORE_INDEX]
        prompt = inputs[: labels.index(target[0])] if causal and target else []
        if target and len(prompt) >= causal:  # rows without a prompt have nothing to continue
            count += 1
            prompt = prompt if causal else [_decoder_start(config)]
            if conflict := _start_conflict(model, config, target) or _conflict(config, prompt, target):
                conflicts.append(conflict)
    if not conflicts:
        return
    first = min(conflicts)
    message = (
        f"labels: {type(model).__name__} cannot generate {len(conflicts)} of {count} checked rows: {first.reason}; "
        "tokenize targets with tokenizer(text_target=...), or change model.generation_config"
    )
    if refuse and len(conflicts) == count and all(conflict.position <= 0 for conflict in conflicts):
        raise DataError(f"{message}; if no answers are to be generated, set predict_with_generate=False")
    logger.warning(message)


def rows_of(views: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a batch, or a sequence of views, as a list of views."""
    if isinstance(views, Mapping):
        return [dict(zip(views, row, strict=True)) for row in zip(*views.values(), strict=True)]
    return [dict(view) for view in views]


def _token_ids(values: Any) -> list[int]:
    """Return token ids as a list; an empty list for anything else."""
    ids = values.tolist() if hasattr(values, "tolist") else values
    return ids if isinstance(ids, list) and all(isinstance(value, int) for value in ids) else []


def _decoder_start(config: GenerationConfig) -> Any:
    """Return the token with which generation starts the decoder of an encoder-decoder."""
    return config.bos_token_id if config.decoder_start_token_id is None else config.decoder_start_token_id


def _start_conflict(model: Any, config: GenerationConfig, target: Sequence[int]) -> _Conflict | None:
    """Return the conflict of a target from which training derives another first decoder input than generation uses."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if not model.config.is_encoder_decoder or shift is None:
        return None
    trained, generated = int(shift(labels=torch.tensor([target]))[0, 0]), _decoder_start(config)
    if trained == generated:
        return None
    reason = (
        f"training starts the decoder of {type(model).__name__} with token {trained}, generation with {generated}; set "
        "decoder_start_token_id of model.config and model.generation_config to the same token"
    )
    return _Conflict(-1, reason)


def _conflict(config: GenerationConfig, prompt: Sequence[int], target: Sequence[int]) -> _Conflict | None:
    """Return the first token of a target that the settings of generation forbid."""
    ends = end_tokens(config)
    target = target[: next((at + 1 for at, token in enumerate(target) if token in ends), len(target))]
    forced = config.forced_bos_token_id if len(prompt) == 1 else None  # at the second position of a sequence
    at_start = set(config.begin_suppress_tokens or ())
    shortest = config.min_new_tokens or (config.min_length or 0) - len(prompt)
    size = config.no_repeat_ngram_size or 0
    seen = {tuple(prompt[end - size : end]) for end in range(size, len(prompt) + 1)}
    ids = list(prompt)
    for position, token in enumerate(target):
        ids.append(token)
        ngram = tuple(ids[len(ids) - size :])
        rules = {
            f"forced_bos_token_id is {forced}": position == 0 and forced not in (None, token),
            "suppress_tokens holds it": token in (config.suppress_tokens or ()),
            "begin_suppress_tokens holds it": position == (forced is not None) and token in at_start,
            f"answers have at least {shortest} tokens before their end": token in ends and position < shortest,
            f"no_repeat_ngram_size is {size}": size > 0 and len(ids) >= size and ngram in seen,
        }
        if reason := next((rule for rule, is_broken in rules.items() if is_broken), None):
            return _Conflict(position, f"the label at position {position} is token {token}, but {reason}")
        seen.add(ngram)
    return None
