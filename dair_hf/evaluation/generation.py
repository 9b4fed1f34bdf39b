"""Answers of language models: prompts cut from training rows, and `generate` on batches of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import ModelOutput

from dair_hf.errors import DataError
from dair_hf.evaluation.generation_settings import decoder_positions, effective_config, end_tokens
from dair_hf.evaluation.target_tokens import rows_of
from dair_hf.losses.per_sample import IGNORE_INDEX

Features = list[dict[str, Any]] | Mapping[str, Tensor]  # views one by one, or as a batch
TEXT_INPUTS = {"input_ids", "attention_mask"}
STAGE = 16  # tokens of answers that are written before those that have ended leave the batch
# Settings of `generate` that count from the first token of an answer, or end answers in another way than by a token.
NEEDS_ONE_CALL = (
    "min_new_tokens", "forced_eos_token_id", "exponential_decay_length_penalty", "begin_suppress_tokens",
    "stop_strings", "max_time", "watermarking_config",
)  # fmt: skip
# Settings of `generate` that read the input tokens, which it does not get where the encoder has run before, and the
# value that turns each off.
READ_INPUT_TOKENS = (
    ("encoder_repetition_penalty", 1), ("encoder_no_repeat_ngram_size", 0), ("guidance_scale", 1),
    ("prompt_lookup_num_tokens", 0),
)  # fmt: skip


def _prompt_of(features: Mapping[str, Any]) -> dict[str, Any]:
    """Return the prompt of a decoder-only model: the tokens before the first target."""
    labels = list(features.get("labels", ()))
    length = next((position for position, label in enumerate(labels) if label != IGNORE_INDEX), len(labels))
    return {
        name: values[:length] if hasattr(values, "__len__") and len(values) == len(labels) else values
        for name, values in features.items()
        if name != "labels"
    }


def _pad_left(prompts: Sequence[Mapping[str, Any]], pad_token_id: int) -> dict[str, Tensor]:
    """Pad prompts on the left, so that generation begins at the same position in every row."""
    longest = max(len(prompt["input_ids"]) for prompt in prompts)
    input_ids = torch.full((len(prompts), longest), pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        tokens = torch.as_tensor(prompt["input_ids"])
        if len(tokens):
            input_ids[row, -len(tokens) :] = tokens
            mask = prompt.get("attention_mask")
            attention_mask[row, -len(tokens) :] = torch.as_tensor(1 if mask is None else mask)
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def _strip_generated(
    tokens: Tensor, prompt_length: int, end_token_ids: Collection[int], pad_token_id: int
) -> list[list[int]]:
    """Cut prompt, end tokens and padding from generated rows.

    An answer ends before its first end token. Without one, padding at the end is cut, with which `generate` fills
    answers that other criteria have stopped.
    """
    answers = []
    for row in tokens[:, prompt_length:].tolist():
        length = next((position for position, token in enumerate(row) if token in end_token_ids), None)
        if length is None:
            length = len(row)
            while length and row[length - 1] == pad_token_id:
                length -= 1
        answers.append(row[:length])
    return answers


def _with_limit(arguments: Mapping[str, Any], max_new_tokens: int | None) -> dict[str, Any]:
    """Return arguments of `generate` with another limit of the length of an answer; None: without one."""
    limited = {name: value for name, value in arguments.items() if name not in ("max_new_tokens", "max_length")}
    config = limited.get("generation_config")
    if config is None:
        return limited if max_new_tokens is None else {**limited, "max_new_tokens": max_new_tokens}
    # In the config, since `generate` warns of settings that are passed beside one.
    config = copy.deepcopy(config)
    config.max_new_tokens, config.max_length = max_new_tokens, None
    return {**limited, "generation_config": config}


class AnswerGenerator:
    """Generates one answer per view."""

    def __init__(
        self,
        model: Any,
        collator: Callable[[list[dict[str, Any]]], Mapping[str, Any]],
        device: torch.device,
        pad_token_id: int | None,
        arguments: Mapping[str, Any],
        encoder_rows: int,
    ) -> None:
        if pad_token_id is None:  # answers are stripped of it
            raise DataError("generation: expected a pad_token_id of the processing class or the model, got none")
        self.model = model
        self.collator = collator
        self.device = device
        self.pad_token_id = pad_token_id
        self.arguments = dict(arguments)
        self.config = effective_config(model, arguments)
        self.encoder_rows = encoder_rows
        self.is_encoder_decoder = bool(model.config.is_encoder_decoder)

    def __call__(self, features: Features) -> list[list[int]]:
        """Return the token ids of the answer to every view, without end tokens."""
        return self._answers(self._inputs(features))

    def shared_prompts(self, features: Features) -> list[np.ndarray]:
        """Return the token ids of the prompts of views, whose common prefixes can be read once."""
        if isinstance(features, Mapping) or hasattr(self.collator, "prompts") or self._is_sharded:
            raise DataError("views are not token ids alone, or the weights of the model are distributed over processes")
        from dair_hf.trees.prefill import require_prefill, token_ids

        require_prefill(self.model, self.config, self.arguments)
        positions = decoder_positions(self.model)
        prompts = []
        for view in features:
            ids = token_ids(_prompt_of(view))
            if ids is None or (positions is not None and len(ids) > positions):
                raise DataError("a prompt is empty, too long, or has gaps in its mask or inputs besides its tokens")
            prompts.append(ids)
        return prompts

    def from_trees(self, prompts: Sequence[np.ndarray], batches: Sequence[np.ndarray]) -> list[list[int]]:
        """Return the answers to prompts whose common prefixes are read once."""
        from dair_hf.trees.prefill import PromptTrees

        answers: dict[int, list[int]] = {}
        with torch.inference_mode():
            trees = PromptTrees(self.model, prompts)
            for rows in batches:
                padded = _pad_left([{"input_ids": prompts[row]} for row in rows], self.pad_token_id)
                inputs = {name: values.to(self.device) for name, values in padded.items()}
                answers |= zip(rows.tolist(), self._answers(inputs, partial(trees.cache, rows)), strict=True)
        return [answers[row] for row in range(len(answers))]

    def _answers(
        self, inputs: Mapping[str, Tensor], cache: Callable[[Sequence[int], int], Any] | None = None
    ) -> list[list[int]]:
        """Generate from inputs; `cache` returns the cache of some of their rows, padded to a number of columns."""
        prompt_length = 1 if self.is_encoder_decoder else int(inputs["input_ids"].shape[1])
        answers: dict[int, list[int]] = {}
        for rows, limit in self._rows_by_limit(inputs, prompt_length):
            part: Mapping[str, Any] = inputs
            if len(rows) < len(next(iter(inputs.values()))):
                part = {name: values[list(rows)] for name, values in inputs.items()}
            if self._has_separate_encoder(part):
                part = self._encode(part)
            if cache is not None and limit is not None:
                answers |= zip(rows, self._generate_in_stages(part, cache(rows, prompt_length), limit), strict=True)
                continue
            with torch.inference_mode():
                tokens = self.model.generate(**part, **_with_limit(self.arguments, limit))
            tokens = getattr(tokens, "sequences", tokens)
            answers |= zip(
                rows, _strip_generated(tokens, prompt_length, end_tokens(self.config), self.pad_token_id), strict=True
            )
        return [answers[row] for row in range(len(answers))]

    def _generate_in_stages(self, inputs: Mapping[str, Tensor], cache: Cache, limit: int) -> list[list[int]]:
        """Return answers of at most `limit` tokens to prompts whose keys and values, but the last, are in a cache.

        They are written `STAGE` tokens at a time, and those that have ended leave the batch.
        """
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        prompt_length, ends = ids.shape[1], end_tokens(self.config)
        in_stages = all(getattr(self.config, name, None) in (None, 0) for name in NEEDS_ONE_CALL)
        answers: list[list[int]] = [[] for _ in range(len(ids))]
        rows = list(range(len(ids)))
        while rows:
            left = limit - (ids.shape[1] - prompt_length)
            settings = _with_limit(self.arguments, min(STAGE, left) if in_stages else left)
            tokens = self.model.generate(input_ids=ids, attention_mask=mask, past_key_values=cache, **settings)
            tokens = getattr(tokens, "sequences", tokens)
            written = tokens.shape[1] - prompt_length
            stripped = _strip_generated(tokens, prompt_length, ends, self.pad_token_id)
            for row, answer in zip(rows, stripped, strict=True):
                answers[row] = answer
            has_ended = torch.isin(tokens[:, prompt_length:], tokens.new_tensor(sorted(ends))).any(1).tolist()
            unfinished = [i for i, ended in enumerate(has_ended) if in_stages and written < limit and not ended]
            mask = nn.functional.pad(mask, (0, tokens.shape[1] - mask.shape[1]), value=1)
            if (count := len(unfinished)) < len(rows):
                # The last of them take the places of those that have ended, so that few rows of the cache are copied.
                last = [i for i in unfinished if i >= count]
                unfinished = [i if i in unfinished else last.pop() for i in range(count)]
                kept = torch.tensor(unfinished, dtype=torch.int64, device=ids.device)
                tokens, mask, rows = tokens[kept], mask[kept], [rows[i] for i in unfinished]
                for layer in cache.layers:
                    layer.keep(kept)
            ids = tokens
        return answers

    def encodes_first(self, features: Features) -> bool:
        """Return whether such views are encoded in smaller batches than their answers are written in.

        A step of the decoder costs nearly the same for 16 and for 128 rows, attention of an encoder does not.
        """
        return self.is_encoder_decoder and self._has_separate_encoder(self._inputs(features))

    def _has_separate_encoder(self, inputs: Mapping[str, Any]) -> bool:
        config = self.model.config
        is_multimodal = hasattr(config, "get_text_config") and config.get_text_config() is not config
        # An adapter that prepends learned tokens does so in its own forward.
        is_prompt_learning = getattr(getattr(self.model, "active_peft_config", None), "is_prompt_learning", False)
        # The capacity of experts is shared by the tokens of a forward: other batches, other answers.
        depends_on_batch = hasattr(config, "expert_capacity")
        reads_tokens = any(getattr(self.config, name, None) not in (None, off) for name, off in READ_INPUT_TOKENS)
        return (
            self.is_encoder_decoder
            and _is_text(inputs)
            and not (is_multimodal or is_prompt_learning or depends_on_batch or reads_tokens or self._is_sharded)
        )

    @property
    def _is_sharded(self) -> bool:
        """True if every rank holds a part of the weights, so that all ranks must call the model equally often."""
        return is_deepspeed_zero3_enabled() or is_fsdp_managed_module(self.model)

    def _rows_by_limit(self, inputs: Mapping[str, Any], prompt_length: int) -> list[tuple[Sequence[int], int | None]]:
        """Group rows by the number of tokens that they may generate: `max_new_tokens`, or the positions left."""
        rows = range(len(next(iter(inputs.values()))))
        positions = decoder_positions(self.model)
        limit = self._limit(prompt_length, positions)
        if limit is None or positions is None:
            return [(rows, limit)]
        if self.is_encoder_decoder:
            return [(rows, min(limit, positions))]
        # The last token is written but never read. A prompt beyond the last position is for the model to refuse.
        free_positions = [positions + 1 - used for used in inputs["attention_mask"].sum(1).tolist()]
        limits = [min(limit, free) if free > 0 else limit for free in free_positions]
        if len(set(limits)) == 1 or self._is_sharded or not _is_text(inputs):
            return [(rows, min(limits))]
        return [([row for row in rows if limits[row] == value], value) for value in sorted(set(limits))]

    def _limit(self, prompt_length: int, positions: int | None) -> int | None:
        """Return the number of new tokens that the settings allow; None without a limit."""
        config = self.config
        if config.max_new_tokens is not None or config.max_length is None:
            return config.max_new_tokens
        longest = config.max_length
        if positions is not None:
            # The last token of an answer is never read.
            longest = min(longest, positions if self.is_encoder_decoder else positions + 1)
        return int(longest - prompt_length)

    def _encode(self, inputs: Mapping[str, Tensor]) -> dict[str, Any]:
        """Replace inputs by encoder states, computed for `encoder_rows` views at a time, long inputs together."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        lengths = (mask.bool() * columns).amax(1).clamp(min=1)
        states: Any = None
        with torch.inference_mode():
            for rows in lengths.argsort(descending=True).split(self.encoder_rows):
                end = int(lengths[rows[0]])
                outputs = self.model.get_encoder()(
                    input_ids=ids[rows, :end], attention_mask=mask[rows, :end], return_dict=True
                )
                hidden = outputs.last_hidden_state.to(ids.device)  # a model may be spread over several devices
                states = hidden.new_zeros(*ids.shape, hidden.shape[-1]) if states is None else states
                states[rows, :end] = hidden
        encoder_outputs: ModelOutput = type(outputs)(last_hidden_state=states)
        return {"encoder_outputs": encoder_outputs, "attention_mask": mask}

    def _inputs(self, features: Features) -> dict[str, Tensor]:
        if self.is_encoder_decoder:
            batch = features if isinstance(features, Mapping) else self.collator(features)
            targets = ("labels", "decoder_input_ids", "decoder_attention_mask")
            inputs = {name: values for name, values in batch.items() if name not in targets}
        elif not isinstance(features, Mapping) and hasattr(self.collator, "prompts"):
            inputs = self.collator.prompts(features)
        else:
            inputs = _pad_left([_prompt_of(view) for view in rows_of(features)], self.pad_token_id)
        return {name: values.to(self.device) for name, values in inputs.items()}


def _is_text(inputs: Mapping[str, Any]) -> bool:
    return set(inputs) == TEXT_INPUTS and inputs["input_ids"].numel() > 0
