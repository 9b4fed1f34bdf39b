"""Targets that generation can write: tokens that a model's generation config forces, forbids and ends answers with."""

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
from dair_hf.losses.per_sample import IGNORE_INDEX

logger = logging.get_logger(__name__)

# Settings that choose how `generate` searches. All others say which answers it may give.
SEARCH = (
    "num_beams", "do_sample", "num_return_sequences", "early_stopping", "length_penalty", "temperature", "top_k",
    "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff", "renormalize_logits", "penalty_alpha",
    "guidance_scale", "watermarking_config", "use_mtp", "prompt_lookup_num_tokens", "assistant_early_exit",
    "is_assistant", "max_length", "max_time", "stop_strings", "cache_implementation", "cache_config",
    "encoder_repetition_penalty", "encoder_no_repeat_ngram_size", "output_attentions", "output_hidden_states",
    "output_scores", "output_logits", "return_dict_in_generate",
)  # fmt: skip
ROWS_CHECKED = 4  # enough of them to tell a rule from a row
MOST_FORCED = 8
MOST_STEPS = 128  # positions of a target that are tried; each takes scores of the whole vocabulary
CERTAIN = 1e4  # score of the token that the stand-in wants to write; all others have 0


class TargetAffixes(NamedTuple):
    """Tokens around the text of every target.

    Attributes:
        start: Tokens that answers begin with, such as BART's `<s>` or a language code; often none.
        end: Tokens behind the text; the first of them ends the answer.
    """

    start: tuple[int, ...]
    end: tuple[int, ...]


class Mismatch(NamedTuple):
    """The first token of a target that generation will not write.

    Attributes:
        row: Number of the target.
        place: Position in the target; -1 is the decoder's first input.
        target: The token of the target there.
        written: The token that generation writes there.
    """

    row: int
    place: int
    target: int
    written: int


def target_affixes(model: Any, tokenizer: PreTrainedTokenizerBase) -> TargetAffixes:
    """Find the tokens around the text of a target, so that training teaches what generation will write.

    Targets of an encoder-decoder begin with the tokens that `generate` forces, else with those that
    `tokenizer(text_target=...)` puts there. They end with a token that ends generation. A model that derives its first
    decoder input from the last label (mBART) gets the token there with which generation starts the decoder.

    Args:
        model: A language model with its generation config.
        tokenizer: Its tokenizer.

    Returns:
        The tokens before and behind the text; none before the target of a decoder-only model.

    Raises:
        DataError: Neither tokenizer nor model has an end token, or training cannot start the decoder as generation
            does.

    Example:
        >>> target_affixes(bart, tokenizer)  # doctest: +SKIP
        TargetAffixes(start=(0,), end=(2,))
    """
    start: tuple[int, ...] = ()
    end: tuple[int, ...] = ()
    own = tokenizer.eos_token_id
    if model.config.is_encoder_decoder:
        start, end = added_tokens(tokenizer, text_target=True)
        start = forced_tokens(model) or start
    # The Trainer makes the tokenizer's end token one that generation ends with.
    ends = end_tokens(model) if own is None else {own, *end_tokens(model)}
    if not ends:
        raise DataError(
            f"{type(tokenizer).__name__} has no end token, which a target ends with, and the model has none; set "
            "tokenizer.eos_token"
        )
    if not ends.intersection(end):
        end = (min(ends) if own is None else own,)
    for language in ((), (decoder_start(model),)) if model.config.is_encoder_decoder else ((),):
        affixes = TargetAffixes(start, (*end, *language))
        wrong = _wrong_starts(model, [[*affixes.start, *affixes.end]])
        if not wrong:
            return affixes
    raise DataError(_described(model, wrong[0], 1, 1))


def added_tokens(
    tokenizer: PreTrainedTokenizerBase, text_target: bool = False
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Find the special tokens that a tokenizer puts around a text.

    Args:
        tokenizer: Any tokenizer.
        text_target: Whether the text is a target, which some tokenizers encode in another way than a source.

    Returns:
        Token ids before and behind the text.

    Example:
        >>> added_tokens(tokenizer)  # doctest: +SKIP
        ((0,), (2,))
    """
    encoded = tokenizer(**{"text_target" if text_target else "text": "a"}, return_special_tokens_mask=True)
    ids, special = encoded["input_ids"], encoded["special_tokens_mask"]
    own = [place for place, mark in enumerate(special) if not mark] or [0]
    return tuple(ids[: own[0]]), tuple(ids[own[-1] + 1 :])


def forced_tokens(model: Any) -> tuple[int, ...]:
    """Find the tokens that every answer of a model begins with, whatever it has learned.

    `generate` itself is asked: a token is forced where all others are ruled out.

    Args:
        model: A language model with its generation config.

    Returns:
        Token ids; none where the model is free from the first token on.

    Example:
        >>> forced_tokens(bart)  # doctest: +SKIP
        (0,)
    """
    prompt = [decoder_start(model)] if model.config.is_encoder_decoder else [0, 0]
    ids, rules = _rules(model, [prompt], _settings(model, {}), {})
    while rules and ids.shape[1] < len(prompt) + MOST_FORCED:
        scores = rules(ids, torch.zeros(1, _vocabulary(model) or 0))
        allowed = torch.isfinite(scores[0]).nonzero().T
        if allowed.numel() != 1:
            break
        ids = torch.cat([ids, allowed], dim=1)
    return tuple(ids[0, len(prompt) :].tolist())


def decoder_start(model: Any) -> int:
    """Return the token with which generation starts the decoder of an encoder-decoder.

    Raises:
        DataError: The generation config has no such token.
    """
    settings = model.generation_config
    start = settings.bos_token_id if settings.decoder_start_token_id is None else settings.decoder_start_token_id
    if start is None:
        raise DataError(
            f"{type(model).__name__}: generation has no token to start the decoder with; set "
            "model.generation_config.decoder_start_token_id"
        )
    return int(start)


def decoder_positions(model: Any) -> int | None:
    """Return the number of tokens that a model with a table of positions can read or write; None without such a table.

    Rotary positions have no table: they are computed for any length.
    """
    config: Any = getattr(model, "config", None)
    config = config.get_text_config(decoder=True) if hasattr(config, "get_text_config") else config
    if getattr(config, "rope_parameters", None):
        return None
    names = ("max_target_positions", "max_decoder_position_embeddings", "max_position_embeddings")
    found = (getattr(config, name, None) for name in names)
    return next((number for number in found if isinstance(number, int) and number > 0), None)


def end_tokens(model: Any) -> set[int]:
    """Return the tokens that end an answer."""
    end = model.generation_config.eos_token_id
    return set(end) if isinstance(end, list) else set() if end is None else {end}


def find_mismatches(
    model: Any,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    generation: Mapping[str, Any] | None = None,
) -> list[Mismatch]:
    """Find targets that generation will not write, whatever the model learns.

    The rules by which `generate` forces and forbids tokens are applied to scores that are certain of every token of
    the targets. The model itself is not run. Tried are the positions at which a setting can act: the first, the last,
    those of tokens that a setting names and of repeated n-grams, `MOST_STEPS` at most. A `logits_processor` or
    `prefix_allowed_tokens_fn` is tried, as a copy, on the first `MOST_STEPS` positions; one that cannot be copied is
    not.

    Args:
        model: A language model with its generation config.
        prompts: `[N]` token ids that a decoder-only model continues; not looked at for an encoder-decoder.
        targets: `[N]` token ids of the targets, at least one each, with their end token.
        generation: Arguments of `generate`; limits on the length of an answer are set aside.

    Returns:
        One mismatch for each target that has one.

    Raises:
        DataError: As `decoder_start`.

    Example:
        >>> find_mismatches(bart, [[]], [[50, 2]])  # doctest: +SKIP
        [Mismatch(row=0, place=0, target=50, written=0)]
    """
    if not targets:
        return []
    if model.config.is_encoder_decoder:
        prompts = [[decoder_start(model)]] * len(targets)
    wanted = [_up_to_end(target, end_tokens(model)) for target in targets]
    settings, functions = _settings(model, generation or {}), _functions(generation or {})
    steps: Iterable[int] = _steps_at_risk(prompts, wanted, settings)
    found = _refused_tokens(model, prompts, wanted, settings, {}, steps)
    if functions:
        # One after the other: a function may remember what came before.
        found += _refused_tokens(model, prompts, wanted, settings, functions, range(MOST_STEPS))
    wrong = _wrong_starts(model, targets)
    for mismatch in sorted(found, key=lambda mismatch: (mismatch.row, mismatch.place)):
        if mismatch.row not in {other.row for other in wrong}:
            wrong.append(mismatch)
    return wrong


def check_targets(
    model: Any,
    views: Sequence[Mapping[str, Any]] | Mapping[str, Any],
    generation: Mapping[str, Any] | None = None,
    *,
    refuse: bool = False,
) -> None:
    """Warn of labels that generation will not write, whatever the model learns.

    Args:
        model: The model; one that does not generate is passed over.
        views: Single views, or a batch of them, with `labels` and for a decoder-only model `input_ids`; the first
            `ROWS_CHECKED` are looked at.
        generation: Arguments of `generate`.
        refuse: Whether to raise where every row fails at its first token; for labels that answers are to equal.

    Raises:
        DataError: With `refuse`, where no answer can ever begin as its label does.
    """
    vocabulary = _vocabulary(model)
    if vocabulary is None:
        return
    causal = not model.config.is_encoder_decoder
    prompts, targets = [], []
    for row in rows_of(views)[:ROWS_CHECKED]:
        labels, inputs = _ids(row.get("labels")), _ids(row.get("input_ids"))
        target = [label for label in labels if label != IGNORE_INDEX]
        prompt = inputs[: labels.index(target[0])] if causal and target else []
        # Where all tokens are learnt there is no prompt to go on from; ids of no token are for the model to refuse.
        if target and len(prompt) >= causal and all(0 <= token < vocabulary for token in (*prompt, *target)):
            prompts.append(prompt)
            targets.append(target)
    found = find_mismatches(model, prompts, targets, generation)
    if not found:
        return
    message = _described(model, min(found, key=lambda mismatch: mismatch.place), len(found), len(targets))
    if refuse and len(found) == len(targets) and all(mismatch.place <= 0 for mismatch in found):
        raise DataError(f"{message}; where nothing is to be generated, set predict_with_generate=False")
    logger.warning(message)


def rows_of(views: Sequence[Mapping[str, Any]] | Mapping[str, Any]) -> list[dict[str, Any]]:
    """Views one by one, whether they come so or as a batch.

    Example:
        >>> rows_of({"labels": [[5], [6]]})
        [{'labels': [5]}, {'labels': [6]}]
    """
    if isinstance(views, Mapping):
        return [dict(zip(views, row, strict=True)) for row in zip(*views.values(), strict=True)]
    return [dict(view) for view in views]


def _vocabulary(model: Any) -> int | None:
    """Size of the vocabulary of a model that generates; None for any other model."""
    if getattr(model, "generation_config", None) is None:
        return None
    return getattr(model.config.get_text_config(decoder=True), "vocab_size", None)


def _ids(values: Any) -> list[int]:
    """Token ids as a list; empty for anything else."""
    found = values.tolist() if hasattr(values, "tolist") else values
    return found if isinstance(found, list) and all(isinstance(value, int) for value in found) else []


def _described(model: Any, mismatch: Mismatch, count: int, of: int) -> str:
    name = type(model).__name__
    if mismatch.place < 0:
        return (
            f"labels: training starts the decoder of {name} with token {mismatch.target}, generation with token "
            f"{mismatch.written}; set model.config.decoder_start_token_id and the one of model.generation_config to "
            "the same token, or tokenise targets with tokenizer(text_target=...)"
        )
    return (
        f"labels: generation of {name} cannot write {count} of {of} rows looked at: at position {mismatch.place} it "
        f"writes token {mismatch.written} where the label is {mismatch.target}, whatever the model learns; tokenise "
        "targets with tokenizer(text_target=...), which adds the tokens that the model expects, or change "
        "model.generation_config (forced_bos_token_id, suppress_tokens, min_length, no_repeat_ngram_size, ...)"
    )


def _wrong_starts(model: Any, targets: Sequence[Sequence[int]]) -> list[Mismatch]:
    """Targets from which training derives another first decoder input than generation has."""
    derive = getattr(model, "prepare_decoder_input_ids_from_labels", None)
    if not model.config.is_encoder_decoder or derive is None:
        return []
    start = decoder_start(model)
    labels = [torch.as_tensor(target) for target in targets]
    first = derive(labels=nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORE_INDEX))[:, 0]
    return [Mismatch(row, -1, token, start) for row, token in enumerate(first.tolist()) if token != start]


def _up_to_end(target: Sequence[int], ends: set[int]) -> list[int]:
    place = next((place for place, token in enumerate(target) if token in ends), len(target))
    return list(target[: place + 1])


def _settings(model: Any, generation: Mapping[str, Any]) -> GenerationConfig:
    """Settings of a call of `generate` without those of its search."""
    given = {name: value for name, value in generation.items() if value is not None}
    settings: GenerationConfig = copy.deepcopy(given.get("generation_config", model.generation_config))
    settings.update(**{name: value for name, value in given.items() if hasattr(settings, name)})
    plain = GenerationConfig()
    for name in SEARCH:
        setattr(settings, name, getattr(plain, name, None))
    settings.use_cache = False
    return settings


def _functions(generation: Mapping[str, Any]) -> dict[str, Any]:
    """Copies of the caller's own rules: what they remember must not be spoilt before the real generation."""
    names = ("logits_processor", "prefix_allowed_tokens_fn")
    try:
        return copy.deepcopy({name: generation[name] for name in names if generation.get(name) is not None})
    except Exception:  # whatever an object raises that cannot be copied, such as a compiled grammar
        return {}


def _rules(
    model: Any,
    prompts: Sequence[Sequence[int]],
    settings: GenerationConfig,
    functions: Mapping[str, Any],
) -> tuple[Tensor, LogitsProcessorList]:
    """The prompts `[N, T]`, padded on the left, and the processors that `generate` would apply to answers to them."""
    # A caller's function may hold tensors where the model is.
    device = getattr(model, "device", "cpu") if functions else "cpu"
    pad, longest = settings.pad_token_id or 0, max(map(len, prompts))
    ids = torch.tensor([[pad] * (longest - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    mask = torch.tensor([[0] * (longest - len(prompt)) + [1] * len(prompt) for prompt in prompts], device=device)
    stand_in = _StandIn(_StandInConfig(vocab_size=_vocabulary(model) or 0)).to(device)
    stand_in.generation_config = copy.deepcopy(settings)
    stand_in.generation_config.max_new_tokens = 10**9  # no end is forced within an answer
    rules = stand_in.generate(ids, attention_mask=mask, custom_generate=_processors, **functions)
    return ids, rules


def _processors(model: Any, input_ids: Tensor, logits_processor: LogitsProcessorList, **kwargs: Any) -> Any:
    """In the place of the search of `generate`: the processors that it was given."""
    return logits_processor


def _refused_tokens(
    model: Any,
    prompts: Sequence[Sequence[int]],
    targets: Sequence[Sequence[int]],
    settings: GenerationConfig,
    functions: Mapping[str, Any],
    steps: Iterable[int],
) -> list[Mismatch]:
    """First token of each target, at the given positions, that the rules of `generate` replace by another one."""
    longest = max(map(len, targets))
    prompt_ids, rules = _rules(model, prompts, settings, functions)
    if not rules:
        return []
    padded = [[*target, *[target[-1]] * (longest - len(target))] for target in targets]
    tokens = torch.tensor(padded, device=prompt_ids.device)
    ids = torch.cat([prompt_ids, tokens], dim=1)
    found: dict[int, Mismatch] = {}
    for step in steps:
        rows = [row for row, target in enumerate(targets) if step < len(target) and row not in found]
        if not rows:
            continue
        scores = torch.zeros(len(targets), _vocabulary(model) or 0, device=ids.device)
        scores.scatter_(1, tokens[:, step : step + 1], CERTAIN)
        written = rules(ids[:, : prompt_ids.shape[1] + step], scores).argmax(-1).tolist()
        found |= {
            row: Mismatch(row, step, targets[row][step], written[row])
            for row in rows
            if written[row] != targets[row][step]
        }
    return list(found.values())


def _steps_at_risk(
    prompts: Sequence[Sequence[int]], targets: Sequence[Sequence[int]], settings: GenerationConfig
) -> list[int]:
    """Positions at which a setting can act: elsewhere all rules leave a score that is certain as it is."""
    named = set(_numbers(vars(settings)))
    size = settings.no_repeat_ngram_size or 0
    sure, others = {0}, set()
    for prompt, target in zip(prompts, targets, strict=True):
        sure.add(len(target) - 1)
        others |= {step for step, token in enumerate(target) if not named.isdisjoint((token, *target[step - 1 : step]))}
        ids, seen = [*prompt, *target], set()
        for end in range(size, len(ids) + 1) if size > 0 else ():
            ngram = tuple(ids[end - size : end])
            if ngram in seen and end > len(prompt):
                sure.add(end - 1 - len(prompt))
                break
            seen.add(ngram)
    return sorted(sure | set(sorted(others)[:MOST_STEPS]))


def _numbers(value: Any) -> Iterator[int]:
    """All whole numbers in nested settings, the ids of tokens among them."""
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
    """A decoder-only model that is asked for its rules of generation and never run.

    The decoder of an encoder-decoder is such a model as well; its prompt is the one token that it is started with.
    """

    config_class = _StandInConfig

    def __init__(self, config: _StandInConfig) -> None:
        super().__init__(config)
        self.anchor = nn.Parameter(torch.zeros(()))  # tells `generate` device and precision

    def prepare_inputs_for_generation(self, input_ids: Tensor, **kwargs: Any) -> dict[str, Tensor]:
        return {"input_ids": input_ids}

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Any:
        raise NotImplementedError
