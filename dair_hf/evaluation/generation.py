"""Predictions of a model for single views: answers written token by token, or what becomes of the logits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer, EncoderDecoderCache
from transformers.distributed.fsdp import is_fsdp_managed_module
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.utils import ModelOutput

from dair_hf.errors import DataError, NonFiniteLossError
from dair_hf.evaluation.target_tokens import decoder_positions, decoder_start, end_tokens, rows_of
from dair_hf.losses.per_sample import IGNORE_INDEX

Feature = dict[str, Any]
# Settings of `generate` under which the next token depends on the input and the tokens before it and on nothing else,
# and under which a call takes up the cache that another has left.
GREEDY: dict[str, Any] = {
    "num_beams": 1, "do_sample": False, "num_return_sequences": 1, "min_length": 0, "min_new_tokens": None,
    "begin_suppress_tokens": None, "exponential_decay_length_penalty": None, "penalty_alpha": None,
    "encoder_repetition_penalty": 1.0, "encoder_no_repeat_ngram_size": 0, "guidance_scale": None,
    "cache_implementation": None, "watermarking_config": None, "max_time": None, "use_mtp": None,
    "prompt_lookup_num_tokens": None, "assistant_early_exit": None,
}  # fmt: skip
ENCODER_INPUTS = {"input_ids", "attention_mask"}
STRIDE = 32  # tokens after which answers that have ended leave their batch


def prompt_of(feature: Mapping[str, Any]) -> Feature:
    """What a decoder-only model is given at generation: the tokens before the first target.

    Args:
        feature: One view with `input_ids` and `labels` of the same length, -100 on the prompt.

    Returns:
        The view with its token columns cut before the first target and without labels. A view without any target keeps
        all its tokens.

    Example:
        >>> prompt_of({"input_ids": [5, 6, 7], "labels": [-100, -100, 7]})
        {'input_ids': [5, 6]}
    """
    labels = list(feature["labels"])
    length = next((place for place, label in enumerate(labels) if label != IGNORE_INDEX), len(labels))
    return {
        name: values[:length] if hasattr(values, "__len__") and len(values) == len(labels) else values
        for name, values in feature.items()
        if name != "labels"
    }


def pad_left(prompts: Sequence[Mapping[str, Any]], pad_token_id: int) -> dict[str, Tensor]:
    """Left-padded prompts, so that every row ends where generation begins.

    Args:
        prompts: Views with `input_ids`, each of its own length, and optionally `attention_mask`.
        pad_token_id: What fills the left side.

    Returns:
        `input_ids` and `attention_mask`, `[N, T]`; the mask of a view is its own where it has one, else all ones.

    Raises:
        DataError: A view whose mask is of another length than its tokens.

    Example:
        >>> pad_left([{"input_ids": [5]}, {"input_ids": [6, 7]}], 0)["input_ids"]
        tensor([[0, 5],
                [6, 7]])
    """
    longest = max(len(prompt["input_ids"]) for prompt in prompts)
    input_ids = torch.full((len(prompts), longest), pad_token_id)
    attention_mask = torch.zeros_like(input_ids)
    for row, prompt in enumerate(prompts):
        tokens = torch.as_tensor(prompt["input_ids"])
        mask = prompt.get("attention_mask")
        if mask is not None and len(mask) != len(tokens):
            raise DataError(
                f"prompt {row} has {len(tokens)} input_ids and an attention_mask of {len(mask)}; give one number for "
                "each token"
            )
        if len(tokens):
            input_ids[row, -len(tokens) :] = tokens
            attention_mask[row, -len(tokens) :] = 1 if mask is None else torch.as_tensor(mask)
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def strip_generated(
    tokens: Tensor, prompt_length: int, end_token_ids: Collection[int], pad_token_id: int
) -> list[list[int]]:
    """The generated ids of every row: after the prompt, up to and without the first end token, without padding.

    Args:
        tokens: `[N, T]`, as `generate` returns them.
        prompt_length: Leading positions that are no output (the prompt, or the decoder's start token).
        end_token_ids: Ids that end a row.
        pad_token_id: Fills the rows that ended early.

    Returns:
        N lists of ids.

    Example:
        >>> strip_generated(torch.tensor([[0, 5, 6, 1, 0], [0, 7, 1, 0, 0]]), 1, [1], 0)
        [[5, 6], [7]]
    """
    ends = set(end_token_ids) | {pad_token_id}
    rows = []
    for row in tokens[:, prompt_length:].tolist():
        length = next((place for place, token in enumerate(row) if token in ends), len(row))
        rows.append(row[:length])
    return rows


def output_of(outputs: Any, config: Any, ignore_keys: Sequence[str] | None = None) -> Any:
    """What `Trainer` takes for the predictions in a model's outputs, and gives to `preprocess_logits_for_metrics`.

    Args:
        outputs: The model's outputs for a batch without labels.
        config: The model's configuration; None: it has none.
        ignore_keys: Outputs that are left out; None: those that the configuration names.

    Returns:
        The one output that is left, mostly the logits, or a tuple of several.

    Example:
        >>> output_of({"logits": 1, "past_key_values": 2}, None)
        1
    """
    if not isinstance(outputs, dict):
        return getattr(outputs, "logits", outputs)
    if ignore_keys is None:
        ignore_keys = getattr(config, "keys_to_ignore_at_inference", ["past_key_values"])
    found = tuple(value for name, value in outputs.items() if name not in [*ignore_keys, "loss"])
    return found[0] if len(found) == 1 else found


def chosen_class(outputs: Any, labels: Tensor | None = None) -> Tensor:
    """The class with the largest logit, `[N, ..., C] -> [N, ...]`: all of a classifier's logits that is kept.

    Args:
        outputs: Logits, or a tuple of outputs that begins with them.
        labels: Not looked at; `preprocess_logits_for_metrics` is given them.

    Raises:
        NonFiniteLossError: A logit is NaN.

    Example:
        >>> chosen_class(torch.tensor([[0.1, 0.7, 0.2]]))
        tensor([1])
    """
    logits = outputs[0] if isinstance(outputs, tuple) else outputs
    if logits.isnan().any():
        raise NonFiniteLossError(
            "a logit is NaN, so no class is the largest: the model diverged; train it with a lower learning rate or a "
            "clipped gradient"
        )
    return logits.argmax(-1)


class ClassNumber(np.int64):
    """Number of the class that a classifier chose: a numpy integer without `argmax`.

    `argmax` of logits is the class, but `argmax` of one number is 0 whatever the class.

    Raises:
        DataError: `argmax` is called, also as `numpy.argmax`.

    Example:
        >>> ClassNumber(3) == 3
        np.True_
    """

    def argmax(self, *args: Any, **kwargs: Any) -> Any:
        """Refused."""
        raise DataError(
            f"argmax of the prediction {int(self)}: predictions of a classifier are already numbers of classes; "
            "compare them with the references as they are, or pass preprocess_logits_for_metrics=lambda logits, "
            "labels: logits to DAIRTrainer to be given logits"
        )


def _by_view(values: Any) -> list[Any]:
    """Predictions of a batch one by one: numbers, arrays, or tuples of them."""
    if isinstance(values, (tuple, list)):
        return list(zip(*(_by_view(part) for part in values), strict=True))
    values = values.detach().cpu()
    if values.is_floating_point():
        values = values.float()
    return values.tolist() if values.ndim == 1 else list(values.numpy())


class ViewPredictor:
    """Predicts single views: generated ids for language models, logits or what they are reduced to otherwise.

    Args:
        model: The model, prepared for evaluation.
        collator: Collates single views. What a decoder-only model is given at generation is the tokens of a view before
            its first target (`prompt_of`), padded on the left; a collator whose model is given more (images) says what,
            in a method `prompts(views)` that returns the inputs of `generate`, tokens likewise padded on the left.
        accelerator: Knows device and ranks.
        generates: Whether to call `generate`; else the outputs of a forward are the prediction.
        pad_token_id: Padding of prompts and outputs; needed to generate.
        generation: Arguments of `generate`.
        encoder_rows: Views that an encoder-decoder's encoder is given at once where it `encodes_apart`; None: all.
        reduce: `(outputs, labels) -> predictions` of a batch, so that less than its logits is kept; None: the logits.
        model_inputs: Batch -> the model's inputs and the labels (`PairLoss.model_inputs`), so that an encoder-decoder
            which does not generate has decoder inputs; None: labels are left out.

    Example:
        >>> predictor = ViewPredictor(model, collator, accelerator, generates=True, pad_token_id=0)  # doctest: +SKIP
        >>> predictor([{"input_ids": [5, 6], "labels": [7, 1]}])  # doctest: +SKIP
        [[7]]
    """

    def __init__(
        self,
        model: Any,
        collator: Callable[[list[Feature]], Mapping[str, Any]],
        accelerator: Accelerator,
        generates: bool,
        pad_token_id: int | None = None,
        generation: Mapping[str, Any] | None = None,
        encoder_rows: int | None = None,
        reduce: Callable[[Any, Tensor | None], Any] | None = None,
        model_inputs: Callable[[Mapping[str, Tensor]], tuple[dict[str, Tensor], Tensor | None]] | None = None,
    ) -> None:
        if generates and pad_token_id is None:
            raise DataError(
                "generation pads its rows, but neither the processing class nor the model's generation config has a "
                "pad_token_id; pass processing_class=tokenizer with tokenizer.pad_token set"
            )
        self.model = model
        self.collator = collator
        self.accelerator = accelerator
        self.generates = generates
        self.pad_token_id = pad_token_id
        self.generation = dict(generation or {})
        self.encoder_rows = encoder_rows
        self.reduce = reduce
        self.model_inputs = model_inputs or _without_labels
        # A classifier may be any module, without a configuration.
        self.is_encoder_decoder = bool(getattr(getattr(model, "config", None), "is_encoder_decoder", False))

    def __call__(self, features: list[Feature] | Mapping[str, Tensor]) -> list[Any]:
        """One prediction a view: a list of ids, an array of logits, or what `reduce` made of them.

        Args:
            features: Views under the model's column names, one by one or as a batch already.

        Returns:
            As many predictions as views.
        """
        if not self.generates:
            return self._forward(features)
        answers: dict[int, list[int]] = {}
        for rows, inputs, limit in self._by_limit(self._generation_inputs(features), _count(features)):
            settings = self.generation if limit is None else {**self.generation, "max_new_tokens": limit}
            with torch.inference_mode():
                written = self.model.generate(**inputs, **settings)
            answers |= zip(rows, self._answers(written, self._prompt_length(inputs)), strict=True)
        return [answers[row] for row in range(len(answers))]

    @property
    def takes_stages(self) -> bool:
        """Whether an answer that is broken off and taken up again (`advance`) is the one that would come at once.

        So it is for the most likely next token, with a limit on the new tokens. Beams, samples, and whatever counts
        tokens from the beginning of an answer, go in one piece.
        """
        if not self.generates or "max_new_tokens" not in self.generation:
            return False
        configured = self.model.generation_config
        # What the call says stands above what the model is configured with; None says nothing.
        said = {name: value for name, value in self.generation.items() if value is not None}
        settings = {name: said.get(name, getattr(configured, name, None)) for name in GREEDY}
        plain = all(settings[name] in (value, None) for name, value in GREEDY.items())
        # Adapters that put learned tokens before the input, and experts that take so many tokens of a forward, give
        # other answers to an answer that is begun.
        prompted = getattr(getattr(self.model, "active_peft_config", None), "is_prompt_learning", False)
        special = prompted or hasattr(self.model.config, "expert_capacity") or hasattr(self.collator, "prompts")
        return set(self.generation) - set(GREEDY) == {"max_new_tokens"} and plain and not special

    def encodes_apart(self, features: list[Feature] | Mapping[str, Tensor]) -> bool:
        """Whether such views are encoded in smaller batches (`encoder_rows`) than their answers are written in."""
        if not (self.is_encoder_decoder and self.takes_stages and self._keeps_memory):
            return False
        return self._is_text(self._generation_inputs(features))

    def advance(
        self, features: list[Feature] | Mapping[str, Tensor], begun: list[list[int]], until: int
    ) -> list[tuple[list[int], bool]]:
        """Answers taken up where they were broken off, until they hold so many tokens.

        As soon as an answer has ended, all that the model remembers of its row is dropped: every `STRIDE` tokens the
        batch gets smaller.

        Args:
            features: Views under the model's own column names.
            begun: The answers so far, all of one length.
            until: Tokens of an answer after which it is broken off again.

        Returns:
            For each view the answer so far and whether it has ended.
        """
        answers: dict[int, tuple[list[int], bool]] = {}
        for rows, inputs, limit in self._by_limit(self._generation_inputs(features), len(begun)):
            assert limit is not None
            found = self._advanced(inputs, [begun[row] for row in rows], until, limit)
            answers |= zip(rows, found, strict=True)
        return [answers[row] for row in range(len(answers))]

    def _by_limit(self, inputs: dict[str, Any], count: int) -> list[tuple[Sequence[int], dict[str, Any], int | None]]:
        """Rows of a batch that may write equally many tokens, with their inputs and that limit.

        A row may write as many as `max_new_tokens` says and the model has positions left.
        """
        limit, positions = self.generation.get("max_new_tokens"), decoder_positions(self.model)
        whole = range(count)
        if limit is None or positions is None:
            return [(whole, inputs, limit)]
        if self.is_encoder_decoder:
            return [(whole, inputs, min(limit, positions))]
        # The last token is written and not read. What begins beyond the last position is for the model to refuse.
        left = [positions + 1 - used for used in inputs["attention_mask"].sum(1).tolist()]
        limits = [min(limit, room) if room > 0 else limit for room in left]
        if len(set(limits)) == 1 or self._sharded or not self._is_text(inputs):
            return [(whole, inputs, min(limits))]
        groups = [[row for row in whole if limits[row] == own] for own in sorted(set(limits))]
        return [(rows, _rows(inputs, rows), limits[rows[0]]) for rows in groups]

    def _advanced(
        self, inputs: dict[str, Any], begun: list[list[int]], until: int, limit: int
    ) -> list[tuple[list[int], bool]]:
        """As `advance`, for rows of one limit."""
        end = min(until, limit)
        stride, cache = end, None
        if self._keeps_memory and (self._is_text(inputs) or not self.is_encoder_decoder):
            stride, inputs = STRIDE, self._encoded(inputs) if self.is_encoder_decoder else inputs
        answers, rows, reached = list(begun), list(range(len(begun))), len(begun[0])
        while rows and reached < end:
            steps = min(stride, end - reached)
            left = limit - reached
            found, cache = self._continued(inputs, [answers[row] for row in rows], steps, left, cache)
            reached += steps
            for row, answer in zip(rows, found, strict=True):
                answers[row] = answer[:reached]
            unfinished = [place for place, answer in enumerate(found) if len(answer) >= reached]
            rows = [rows[place] for place in unfinished]
            if reached == end or not rows:
                break
            if not _can_be_cut(cache):
                cache, stride = None, end
            if len(unfinished) < len(found):
                inputs = _rows(inputs, unfinished)
                if cache is not None:
                    cache.batch_select_indices(torch.tensor(unfinished))
        return [(answer, len(answer) < until or until >= limit) for answer in answers]

    @property
    def _keeps_memory(self) -> bool:
        """Whether what the model remembers can be cut and handed from one call of `generate` to the next.

        Models of more than text remember more than their cache, and on Apple's GPUs `generate` cannot return the two
        caches of an encoder-decoder.
        """
        config = self.model.config
        more_than_text = hasattr(config, "get_text_config") and config.get_text_config() is not config
        return not self._sharded and not more_than_text and self.accelerator.device.type != "mps"

    @property
    def _sharded(self) -> bool:
        """Whether ranks hold a part of the weights each, so that all must call the model equally often."""
        return is_deepspeed_zero3_enabled() or is_fsdp_managed_module(self.model)

    def _is_text(self, inputs: Mapping[str, Any]) -> bool:
        return set(inputs) == ENCODER_INPUTS and inputs["input_ids"].numel() > 0

    def _encoded(self, inputs: dict[str, Any]) -> dict[str, Any]:
        """Inputs with their encoder's states, which are computed `encoder_rows` at a time, the longest together."""
        ids, mask = inputs["input_ids"], inputs["attention_mask"]
        columns = torch.arange(1, mask.shape[1] + 1, device=mask.device)
        lengths = (mask.bool() * columns).amax(1).clamp(min=1)
        states: Any = None
        with torch.inference_mode():
            for rows in lengths.argsort(descending=True).split(self.encoder_rows or len(ids)):
                end = int(lengths[rows[0]])
                found = self.model.get_encoder()(
                    input_ids=ids[rows, :end], attention_mask=mask[rows, :end], return_dict=True
                )
                hidden = found.last_hidden_state.to(ids.device)  # of a model on several devices they may be elsewhere
                states = hidden.new_zeros(*ids.shape, hidden.shape[-1]) if states is None else states
                states[rows, :end] = hidden
        return {"encoder_outputs": type(found)(last_hidden_state=states), "attention_mask": mask}

    def _continued(
        self, inputs: Mapping[str, Any], begun: Sequence[list[int]], steps: int, left: int, cache: Any
    ) -> tuple[list[list[int]], Any]:
        """Answers with `steps` tokens more than those begun, or to their end, and what the model remembers of them.

        They may get `left` tokens more in all.
        """
        prompt_length, inputs = self._prompt_length(inputs), dict(inputs)
        if begun[0]:
            tokens = torch.tensor(begun, device=self.accelerator.device)
            if self.is_encoder_decoder:
                start = tokens.new_full((len(tokens), 1), decoder_start(self.model))
                inputs["decoder_input_ids"] = torch.cat([start, tokens], dim=1)
            else:
                inputs["input_ids"] = torch.cat([inputs["input_ids"], tokens], dim=1)
                inputs["attention_mask"] = torch.cat([inputs["attention_mask"], torch.ones_like(tokens)], dim=1)
        if cache is not None:
            inputs["past_key_values"] = cache
            if self.is_encoder_decoder:  # by this `generate` knows that the ids are all, and leaves out those it knows
                inputs["decoder_attention_mask"] = torch.ones_like(inputs["decoder_input_ids"])
        settings: dict[str, Any] = {**self.generation, "max_new_tokens": left}
        if steps < left:
            # Not a shorter limit: some models end their answers at the limit by force.
            settings["stopping_criteria"] = StoppingCriteriaList([_After(steps)])
        with torch.inference_mode():
            written = self.model.generate(**inputs, **settings, return_dict_in_generate=self._keeps_memory)
        return self._answers(written, prompt_length), getattr(written, "past_key_values", None)

    def _prompt_length(self, inputs: Mapping[str, Any]) -> int:
        """Tokens that `generate` returns before the answer."""
        return 1 if self.is_encoder_decoder else int(inputs["input_ids"].shape[1])

    def _answers(self, written: Any, prompt_length: int) -> list[list[int]]:
        """The answers in what `generate` returned."""
        pad = self.pad_token_id if self.pad_token_id is not None else -1
        return strip_generated(getattr(written, "sequences", written), prompt_length, end_tokens(self.model), pad)

    def _collate(self, features: list[Feature] | Mapping[str, Tensor]) -> Mapping[str, Tensor]:
        return features if isinstance(features, Mapping) else self.collator(features)

    def _generation_inputs(self, features: list[Feature] | Mapping[str, Tensor]) -> dict[str, Tensor]:
        if self.is_encoder_decoder:
            inputs = {
                name: values
                for name, values in self._collate(features).items()
                if name not in ("labels", "decoder_input_ids", "decoder_attention_mask")
            }
        elif not isinstance(features, Mapping) and hasattr(self.collator, "prompts"):
            inputs = self.collator.prompts(features)
        else:
            assert self.pad_token_id is not None
            inputs = pad_left([prompt_of(feature) for feature in rows_of(features)], self.pad_token_id)
        return {name: values.to(self.accelerator.device) for name, values in inputs.items()}

    def _forward(self, features: list[Feature] | Mapping[str, Tensor]) -> list[Any]:
        batch = {name: values.to(self.accelerator.device) for name, values in self._collate(features).items()}
        inputs, labels = self.model_inputs(batch)
        with torch.inference_mode():
            outputs = self.model(**inputs)
            if self.reduce is None:
                return _by_view(outputs.logits)
            return _by_view(self.reduce(output_of(outputs, getattr(self.model, "config", None)), labels))


def _without_labels(batch: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], Tensor | None]:
    return {name: values for name, values in batch.items() if name != "labels"}, batch.get("labels")


class _After(StoppingCriteria):
    """Breaks all answers of a batch off after so many tokens."""

    def __init__(self, steps: int) -> None:
        self.steps = steps
        self.taken = 0

    def __call__(self, input_ids: Tensor, scores: Tensor, **kwargs: Any) -> Tensor:
        self.taken += 1
        return torch.full((len(input_ids),), self.taken >= self.steps, device=input_ids.device, dtype=torch.bool)


def _count(features: list[Feature] | Mapping[str, Tensor]) -> int:
    """Number of views, whether they come one by one or as a batch."""
    return len(next(iter(features.values()))) if isinstance(features, Mapping) else len(features)


def _rows(inputs: Mapping[str, Any], rows: list[int]) -> dict[str, Any]:
    """The inputs of these rows."""
    return {
        name: type(value)(last_hidden_state=value.last_hidden_state[rows])
        if isinstance(value, ModelOutput)
        else value[rows]
        for name, value in inputs.items()
    }


def _can_be_cut(cache: Any) -> bool:
    """Whether a model's memory is keys and values, row by row, and nothing else."""
    of_both = isinstance(cache, EncoderDecoderCache)
    parts = [cache.self_attention_cache, cache.cross_attention_cache] if of_both else [cache]
    layers = [layer for part in parts for layer in getattr(part, "layers", [None])]
    return all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in layers)
