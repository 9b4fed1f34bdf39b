"""Checks that generation can produce the targets: forced tokens, forbidden tokens and end tokens of a model."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import (
    GenerationConfig,
    GenerationMixin,
    LogitsProcessorList,
    PreTrainedConfig,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import logging

from dair_hf.errors import DataError
from dair_hf.evaluation.generation_settings import decoder_start, effective_config, end_tokens, virtual_tokens
from dair_hf.losses.per_sample import IGNORE_INDEX

logger = logging.get_logger(__name__)

# Settings of the search of `generate`. All others restrict the answers.
SEARCH = (
    "num_beams", "do_sample", "num_return_sequences", "early_stopping", "length_penalty", "temperature", "top_k",
    "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "renormalize_logits", "penalty_alpha",
    "guidance_scale", "watermarking_config", "use_mtp", "prompt_lookup_num_tokens", "assistant_early_exit",
    "is_assistant", "max_length", "max_time", "stop_strings", "cache_implementation", "cache_config",
    "encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate",
)  # fmt: skip
ROWS_CHECKED = 4  # enough to distinguish a setting from a faulty row
MAX_FORCED = 8
MAX_POSITIONS = 128  # positions checked per target; each needs scores of the whole vocabulary
TARGET_SCORE = 1e4  # score of the target token; all others have 0


class TargetAffixes(NamedTuple):
    """Tokens around the text of every target."""

    start: tuple[int, ...]
    end: tuple[int, ...]


class Mismatch(NamedTuple):
    """First token of a target that generation will not produce."""

    row: int
    position: int
    target: int
    generated: int


def target_affixes(model: Any, tokenizer: PreTrainedTokenizerBase) -> TargetAffixes:
    """Find the tokens around the text of a target, so that training targets are answers that generation can produce.

    Targets of an encoder-decoder begin with the tokens that `generate` forces, or else with those of
    `tokenizer(text_target=...)`. They end with a token that ends generation. If a model derives its first decoder input
    from the last label (mBART), the last label is the token with which generation starts the decoder.

    Args:
        model: A language model with its generation config.
        tokenizer: Its tokenizer.

    Returns:
        Tokens before and after the text; none before the target of a decoder-only model.

    Raises:
        DataError: Neither tokenizer nor model has an end token, or training starts the decoder with another token than
            generation.

    Example:
        >>> target_affixes(bart, tokenizer)  # doctest: +SKIP
        TargetAffixes(start=(0,), end=(2,))
    """
    config = model.generation_config
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    tokenizer_end = tokenizer.eos_token_id
    if model.config.is_encoder_decoder:
        start, end = added_tokens(tokenizer, text_target=True)
        start = forced_tokens(model) or start
    # The Trainer adds the end token of the tokenizer to those of generation.
    ends = end_tokens(config) if tokenizer_end is None else {tokenizer_end, *end_tokens(config)}
    if not ends:
        raise DataError(
            f"{type(tokenizer).__name__} has no end token, which targets need, and the model has none; set "
            "tokenizer.eos_token"
        )
    if not ends.intersection(end):
        end = (min(ends) if tokenizer_end is None else tokenizer_end,)
    for last in ((), (decoder_start(model, config),)) if model.config.is_encoder_decoder else ((),):
        affixes = TargetAffixes(start, (*end, *last))
        mismatches = _start_mismatches(model, config, [[*affixes.start, *affixes.end]])
        if not mismatches:
            return affixes
    raise DataError(_describe(model, mismatches[0], 1, 1))


def added_tokens(
    tokenizer: PreTrainedTokenizerBase, text_target: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find the special tokens that a tokenizer puts around a text.

    Args:
        tokenizer: Any tokenizer.
        text_target: Whether the text is a target, which some tokenizers encode differently.

    Returns:
        Token ids before and after the text.

    Example:
        >>> added_tokens(tokenizer)  # doctest: +SKIP
        ((0,), (2,))
    """
    encoded = tokenizer(**{"text_target" if text_target else "text": "a"}, return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    text = [position for position, is_special in enumerate(special) if not is_special] or [0]
    return tuple(ids[: text[0]]), tuple(ids[text[-1] + 1 :])


def forced_tokens(model: Any) -> tuple[int, ...]:
    """Find the tokens that generation forces at the start of every answer.

    A token is forced if the logits processors of `generate` exclude all others.
    """
    prompt = [decoder_start(model, model.generation_config)] if model.config.is_encoder_decoder else [0, 0]
    ids, processors = _logits_processors(model, [prompt], _restrictions(model.generation_config), {})
    while processors and ids.shape[1] < len(prompt) + MAX_FORCED:
        scores = processors(ids, torch.zeros(1, _vocabulary_size(model) or 0))
        allowed = torch.isfinite(scores[0]).nonzero().T
        if allowed.numel() != 1:
            break
        ids = torch.cat([ids, allowed], dim=1)
    return tuple(ids[0, len(prompt) :].tolist())


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


def find_mismatches(
    model: Any,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    generation: Mapping[str, Any] | None = None,
) -> list[Mismatch]:
    """Find targets that generation will not produce, whatever the model learns.

    The logits processors of `generate` are applied to scores at which every target token is certain. The model is not
    run. Checked are the positions at which a setting can have an effect: the first, the last, those of repeated
    n-grams, and the first `MAX_POSITIONS` with tokens that occur in a setting. A `logits_processor` or
    `prefix_allowed_tokens_fn` is copied and checked at the first `MAX_POSITIONS` positions, or ignored if it cannot be
    copied.
    """
    if not targets:
        return []
    config = effective_config(model, generation or {})
    if model.config.is_encoder_decoder:
        prompts = [[decoder_start(model, config)]] * len(targets)
    answers = [_up_to_end(target, end_tokens(config)) for target in targets]
    settings, functions = _restrictions(config), _custom_functions(generation or {})
    positions: Iterable[int] = _critical_positions(prompts, answers, settings)
    candidates = _replaced_tokens(model, prompts, answers, settings, {}, positions)
    if functions:
        # In order, since a function may have a state.
        candidates += _replaced_tokens(model, prompts, answers, settings, functions, range(MAX_POSITIONS))
    mismatches = {mismatch.row: mismatch for mismatch in _start_mismatches(model, config, targets)}
    for mismatch in sorted(candidates, key=lambda mismatch: (mismatch.row, mismatch.position)):
        mismatches.setdefault(mismatch.row, mismatch)
    return list(mismatches.values())


def check_targets(
    model: Any,
    views: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    *,
    refuse: bool = False,
) -> None:
    """Warn of labels that generation will not produce, whatever the model learns.

    Args:
        model: The model; nothing is checked if it does not generate.
        views: Single views, or a batch of them, with `labels` and for a decoder-only model `input_ids`; the first
            `ROWS_CHECKED` are checked.
        generation: Arguments of `generate`.
        refuse: Whether to raise an error if every row fails at its first token.

    Raises:
        DataError: With `refuse`, no answer can begin with the first token of its label.
    """
    vocabulary_size = _vocabulary_size(model)
    if vocabulary_size is None:
        return
    causal = not model.config.is_encoder_decoder
    prompts, targets = [], []
    for row in rows_of(views)[:ROWS_CHECKED]:
        labels, inputs = _token_ids(row.get("labels")), _token_ids(row.get("input_ids"))
        target = [label for label in labels if label != IGNORE_INDEX]
        prompt = inputs[: labels.index(target[0])] if causal and target else []
        # Rows without a prompt have nothing to continue; invalid ids are refused by the model.
        if target and len(prompt) >= causal and all(0 <= token < vocabulary_size for token in (*prompt, *target)):
            prompts.append(prompt)
            targets.append(target)
    mismatches = find_mismatches(model, prompts, targets, generation)
    if not mismatches:
        return
    first = min(mismatches, key=lambda mismatch: mismatch.position)
    message = _describe(model, first, len(mismatches), len(targets))
    if refuse and len(mismatches) == len(targets) and all(mismatch.position <= 0 for mismatch in mismatches):
        raise DataError(f"{message}; if no answers are to be generated, set predict_with_generate=False")
    logger.warning(message)


def rows_of(views: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a batch, or a sequence of views, as a list of views."""
    if isinstance(views, Mapping):
        return [dict(zip(views, row, strict=True)) for row in zip(*views.values(), strict=True)]
    return [dict(view) for view in views]


def _vocabulary_size(model: Any) -> int | None:
    """Return the size of the vocabulary of a model that generates; None for other models."""
    if getattr(model, "generation_config", None) is None:
        return None
    return getattr(model.config.get_text_config(decoder=True), "vocab_size", None)


def _token_ids(values: Any) -> list[int]:
    """Return token ids as a list; an empty list for anything else."""
    ids = values.tolist() if hasattr(values, "tolist") else values
    return ids if isinstance(ids, list) and all(isinstance(value, int) for value in ids) else []


def _describe(model: Any, mismatch: Mismatch, count: int, total: int) -> str:
    name = type(model).__name__
    if mismatch.position < 0:
        return (
            f"labels: training starts the decoder of {name} with token {mismatch.target}, generation with token "
            f"{mismatch.generated}; set decoder_start_token_id of model.config and model.generation_config to the same "
            "token, or tokenize targets with tokenizer(text_target=...)"
        )
    return (
        f"labels: {name} cannot generate {count} of {total} checked rows: at position {mismatch.position} it generates "
        f"token {mismatch.generated} instead of the label {mismatch.target}, whatever the model learns; tokenize "
        "targets with tokenizer(text_target=...), which adds the tokens that the model expects, or change "
        "model.generation_config (forced_bos_token_id, suppress_tokens, min_length, no_repeat_ngram_size, ...)"
    )


def _start_mismatches(model: Any, config: GenerationConfig, targets: Sequence[Sequence[int]]) -> list[Mismatch]:
    """Return the targets from which training derives another first decoder input than generation uses."""
    shift = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if not model.config.is_encoder_decoder or shift is None:
        return []
    start = decoder_start(model, config)
    labels = [torch.as_tensor(target) for target in targets]
    first = shift(labels=nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX))[:, 0]
    return [Mismatch(row, -1, token, start) for row, token in enumerate(first.tolist()) if token != start]


def _up_to_end(target: Sequence[int], ends: set[int]) -> list[int]:
    end = next((position for position, token in enumerate(target) if token in ends), len(target))
    return list(target[: end + 1])


def _restrictions(config: GenerationConfig) -> GenerationConfig:
    """Return a generation config with the defaults of the search of `generate`: only restrictions of answers remain."""
    settings, defaults = copy.deepcopy(config), GenerationConfig()
    for name in SEARCH:
        setattr(settings, name, getattr(defaults, name, None))
    settings.use_cache = False
    return settings


def _custom_functions(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Return copies of the functions among the arguments, whose state must not change before generation."""
    names = ("logits_processor", "prefix_allowed_tokens_fn")
    try:
        return copy.deepcopy({name: generation[name] for name in names if generation.get(name) is not None})
    except Exception:  # any error of an object that cannot be copied, such as a compiled grammar
        return {}


def _logits_processors(
    model: Any,
    prompts: Sequence[Sequence[int]],
    settings: GenerationConfig,
    functions: Mapping[str, Any],
) -> tuple[Tensor, LogitsProcessorList]:
    """Return the prompts `[N, T]`, padded on the left, and the logits processors of `generate` for their answers."""
    # Custom functions may hold tensors on the device of the model.
    device = getattr(model, "device", "cpu") if functions else "cpu"
    pad, longest = settings.pad_token_id or 0, max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    stand_in = _StandIn(_StandInConfig(vocab_size=_vocabulary_size(model) or 0)).to(device)
    stand_in.generation_config = copy.deepcopy(settings)
    stand_in.generation_config.max_new_tokens = 10**9  # no end is forced within an answer
    processors = stand_in.generate(ids, attention_mask=mask, custom_generate=_return_processors, **functions)
    return ids, processors


def _return_processors(model: Any, input_ids: Tensor, logits_processor: LogitsProcessorList, **kwargs: Any) -> Any:
    """Replace the search of `generate`: return its logits processors."""
    return logits_processor


def _replaced_tokens(
    model: Any,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    settings: GenerationConfig,
    functions: Mapping[str, Any],
    positions: Iterable[int],
) -> list[Mismatch]:
    """Return the first token of each target, among some positions, that logits processors replace by another one."""
    longest = max(map(len, targets))
    prompt_ids, processors = _logits_processors(model, prompts, settings, functions)
    if not processors:
        return []
    padded = [[*target, *[target[-1]] * (longest - len(target))] for target in targets]
    tokens = torch.tensor(padded, device=prompt_ids.device)
    ids = torch.cat([prompt_ids, tokens], dim=1)
    mismatches: dict[int, Mismatch] = {}
    for position in positions:
        rows = [row for row, target in enumerate(targets) if position < len(target) and row not in mismatches]
        if not rows:
            continue
        scores = torch.zeros(len(targets), _vocabulary_size(model) or 0, device=ids.device)
        scores.scatter_(1, tokens[:, position : position + 1], TARGET_SCORE)
        generated = processors(ids[:, : prompt_ids.shape[1] + position], scores).argmax(-1).tolist()
        mismatches |= {
            row: Mismatch(row, position, targets[row][position], generated[row])
            for row in rows
            if generated[row] != targets[row][position]
        }
    return list(mismatches.values())


def _critical_positions(
    prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: GenerationConfig
) -> list[int]:
    """Return the positions at which a setting can have an effect."""
    named = set(_numbers(vars(settings)))
    size = settings.no_repeat_ngram_size or 0
    required, optional = {0}, set()
    for prompt, target in zip(prompts, targets, strict=True):
        required.add(len(target) - 1)
        optional |= {
            position
            for position, token in enumerate(target)
            if not named.isdisjoint((token, *target[position - 1 : position]))
        }
        ids, seen = [*prompt, *target], set()
        for end in range(size, len(ids) + 1) if size > 0 else ():
            ngram = tuple(ids[end - size : end])
            if ngram in seen and end > len(prompt):
                required.add(end - 1 - len(prompt))
                break
            seen.add(ngram)
    return sorted(required | set(sorted(optional)[:MAX_POSITIONS]))


def _numbers(value: Any) -> Iterator[int]:
    """Yield all integers in nested settings, token ids among them."""
    if isinstance(value, Mapping):
        yield from _numbers([*value, *value.values()])
    elif isinstance(value, (list, tuple, set)):
        for part in value:
            yield from _numbers(part)
    elif isinstance(value, int):
        yield value


class _StandInConfig(PreTrainedConfig):
    model_type = "dair_hf_stand_in"


class _StandIn(PreTrainedModel, GenerationMixin):
    """Decoder-only model that provides the logits processors of `generate` and is never run.

    It also stands for the decoder of an encoder-decoder, with the start token as its prompt.
    """

    config_class = _StandInConfig

    def __init__(self, config: _StandInConfig) -> None:
        super().__init__(config)
        self.anchor = nn.Parameter(torch.zeros(()))  # gives `generate` device and precision

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        raise NotImplementedError
